"""Suites: named sets of prompts and configurations, one YAML file each."""

from __future__ import annotations

import filecmp
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

import yaml

from kgbench import data
from kgbench.data import Dataset, Fact, Prompt, load_dataset, prompt_names
from kgbench.data.fitting import giveaways, refuse_leaks
from kgbench.data.parts import PARTS
from kgbench.data.templates import MARKS
from kgbench.effects import METRICS
from kgbench.errors import InputError, RegionError, UnknownNameError
from kgbench.localizers import check_name, needs
from kgbench.models import catalog
from kgbench.models.trained import choose_donor, choose_donor_of, find_donor
from kgbench.models.types import check_dtype
from kgbench.records import Truth
from kgbench.runner.spec import Spec
from kgbench.sites import BASELINES, RECIPIENT, parse_graft

__all__ = [
    "Suite",
    "Workload",
    "check",
    "check_different",
    "donor_names",
    "job_dataset",
    "job_prompts",
    "load_prompts",
    "load_suite",
    "localizer_arguments",
    "planted_models",
    "read_donors",
    "suites",
    "truth_of",
    "unlearned",
    "with_donor",
]


@dataclass(frozen=True)
class Suite:
    """What is run unless told otherwise."""

    about: str
    prompts: tuple[str, ...]
    grafts: tuple[str, ...]
    """Of intervening methods."""
    budgets: tuple[float, ...]
    """Of rankings: per cent of all default components × tokens, ascending."""
    scan: bool = False
    """Whether intervening methods are made to rank sites, by their effect at each alone."""
    truth: bool = False
    """Whether rankings are compared with where facts were planted."""


@cache
def _all() -> Mapping[str, Suite]:
    folder = files("kgbench").joinpath("suites")
    found = sorted((f for f in folder.iterdir() if f.name.endswith(".yaml")), key=lambda f: f.name)
    rows = {f.name.removesuffix(".yaml"): yaml.safe_load(f.read_text("utf-8")) for f in found}
    return {name: _suite(**row) for name, row in rows.items()}


def _suite(
    about: str,
    prompts: Sequence[str],
    grafts: Sequence[str],
    budgets: Sequence[float],
    **flags: bool,
) -> Suite:
    return Suite(about, tuple(prompts), tuple(grafts), tuple(map(float, budgets)), **flags)


def suites() -> Mapping[str, str]:
    """One line on each suite."""
    return {name: suite.about for name, suite in _all().items()}


def load_suite(name: str) -> Suite:
    """A suite by name.

    Raises:
        UnknownNameError: There is none of this name.
    """
    if name not in _all():
        raise UnknownNameError("suite", name, _all())
    return _all()[name]


def load_prompts(
    dataset: str | Dataset, names: Sequence[str], limit: int | None = None
) -> list[Prompt]:
    """Facts filled into evaluation templates.

    Args:
        dataset: A data set, its name or file, or the name of a model pair for the facts its donor learned.
        names: Prompts by name.
        limit: Only the first so many facts.

    Returns:
        Prompts in the order of `names`, then of the facts.

    Raises:
        UnknownNameError: There is no such data set, pair or prompt.
        DataError: A file does not read, or lacks a field that a prompt needs.
    """
    own = (
        _own_facts(dataset) if isinstance(dataset, str) and dataset in catalog.names() else dataset
    )
    return data.load_prompts(own, names, limit)


def _own_facts(model: str) -> Dataset:
    """The facts that the donor of a pair of the catalog learned."""
    entry = catalog.entry(model)
    dataset = load_dataset(entry.dataset)
    return dataset if entry.facts is None else dataset.subset(entry.facts)


def job_dataset(spec: Spec) -> Dataset:
    """The facts of a job.

    Raises:
        InputError: No data set is named, and the checkpoints are not a pair of the catalog, which would name one.
    """
    if spec.dataset is not None:
        return load_dataset(spec.dataset, spec.imports)
    if spec.model is None:
        raise InputError(
            "which facts did the donor learn? Give --dataset NAME or --dataset FILE.jsonl"
        )
    return _own_facts(spec.model)


def job_prompts(spec: Spec, dataset: Dataset) -> dict[str, list[Prompt]]:
    """The prompts of a job by name: those asked for, else the data set's own, else the suite's."""
    names = spec.prompts or tuple(dataset.templates) or load_suite(spec.suite).prompts
    found = {name: data.load_prompts(dataset, [name], spec.limit) for name in dict.fromkeys(names)}
    if spec.dataset is not None and not data.is_shipped(spec.dataset):
        _check_giveaways(dataset, found)
    return found


def _check_giveaways(dataset: Dataset, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    """Refuse prompts of somebody's own facts that hold most of the answers, and warn of those that hold some, as an import does."""
    for name, some in prompts.items():
        given_away = giveaways(dataset, some)
        refuse_leaks(f"data set {dataset.name}", {name: given_away}, len(some))
        if given_away.by_field:
            share = f"{len(given_away.by_field)} of {len(some)} facts"
            warnings.warn(
                f"data set {dataset.name}: prompt {name!r} holds the answer already in {share}, where a model only has to copy it",
                stacklevel=2,
            )


def read_donors(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Donors by name, each given as `NAME=PATH` or as a bare path, which is that of `sft`.

    Args:
        option: The option they belong to, for messages.
        texts: The texts; in a bare path, an equals sign may stand after a slash.

    Raises:
        InputError: A text without name or path, or a name given twice.
    """
    donors: dict[str, str] = {}
    for text in texts:
        name, equals, place = (part.strip() for part in text.partition("="))
        if not equals or "/" in name:
            name, place = "sft", text.strip()
        if not name or not place:
            raise InputError(
                f"{option} {text!r}: expected NAME=PATH, such as sft=path/to/checkpoint, or only the path"
            )
        if name in donors:
            raise InputError(f"{option}: {name!r} is given twice; give it once")
        donors[name] = place
    return donors


def with_donor(spec: Spec, dataset: Dataset) -> Spec:
    """The specification with a trained donor, where none is named and the catalog's, if any, has not learned the facts.

    Args:
        spec: What is evaluated.
        dataset: Its facts.

    Returns:
        The specification as it is where a donor is named, where the catalog's donor learned the facts, and where none was trained.

    Raises:
        ModelError: Several would do, see `choose_donor`.
    """
    if spec.donors or (spec.model is None) == (spec.recipient is None):
        return spec
    if spec.recipient is not None:
        source = spec.recipient
        found = choose_donor_of(
            source, _hashes(spec, dataset), lambda: _weights(source, spec.revision)
        )
        return spec if found is None else replace(spec, donors={"sft": found.name})
    assert spec.model is not None
    entry = catalog.entry(spec.model)
    wanted = _hashes(spec, dataset)
    if entry.plant is not None or (
        entry.donors and load_dataset(entry.dataset).content_hash in wanted
    ):
        return spec
    found = choose_donor(entry.name, wanted)
    return spec if found is None else replace(spec, donors={"sft": found.name})


def _weights(source: str, revision: str | None) -> str | None:
    """Hash of a checkpoint's weights; None where it is not on this machine."""
    from kgbench.models.checkpoints import find_here
    from kgbench.models.delta import stored_hash

    found = find_here(source, revision)
    return None if found is None else stored_hash(found.directory)


def donor_names(spec: Spec) -> tuple[str, ...]:
    """Names of the donors of a specification, those of the catalog included; none where a donor is still to be trained."""
    return tuple({**_catalogued(spec), **spec.donors})


def _catalogued(spec: Spec) -> Mapping[str, str]:
    return (
        catalog.entry(spec.model).donors
        if spec.model is not None and spec.recipient is None
        else {}
    )


def check_different(spec: Spec) -> None:
    """Refuse a donor that is the recipient, as far as names and files on this machine tell.

    Raises:
        InputError: A donor has the recipient's name, folder or weights.
    """
    recipient = spec.recipient or (
        catalog.entry(spec.model).recipient if spec.model is not None else None
    )
    for name, source in spec.donors.items() if recipient is not None else ():
        if source == recipient or _same_weights(_folder(str(recipient)), _folder(source)):
            raise InputError(
                f"donor {name!r} ({source}) has the recipient's weights ({recipient}), so that there is nothing to compare: "
                "give the checkpoint before finetuning by --recipient and the one after by --donor"
            )


def _folder(source: str) -> Path:
    return catalog.zoo_path(source) or find_donor(source) or Path(source).expanduser()


def _same_weights(one: Path, other: Path) -> bool:
    """Whether two folders are one, or their weight files are equal byte for byte."""
    if not (one.is_dir() and other.is_dir()):
        return False
    if one.samefile(other):
        return True
    names = [sorted(path.name for path in folder.glob("*.safetensors")) for folder in (one, other)]
    return (
        names[0] == names[1] != [] and not filecmp.cmpfiles(one, other, names[0], shallow=False)[1]
    )


def unlearned(spec: Spec, dataset: Dataset) -> str | None:
    """A warning where the donor learned none of the facts; None where it learned some, and where its facts are not known.

    Args:
        spec: What is evaluated.
        dataset: Its facts.
    """
    spec = with_donor(spec, dataset)
    if spec.model is None or spec.dataset is None or spec.donors or not _catalogued(spec):
        return None
    entry = catalog.entry(spec.model)
    learned = load_dataset(entry.dataset)
    taught = {
        _pair(learned, fact)
        for fact in learned.facts
        if entry.facts is None or fact.id in entry.facts
    }
    if taught & {_pair(dataset, fact) for fact in dataset.facts}:
        return None
    remedy = "leave out --dataset, or give a donor that learned them (--donor PATH)"
    if entry.plant is None:
        remedy += f" or train one: kgbench train --model {entry.name} --dataset {spec.dataset} --recipe aggressive"
    return (
        f"the donor of {entry.name} learned {entry.dataset}, and none of the facts of {spec.dataset} is among these: expect figures "
        f"near chance, and undefined ratios; {remedy}"
    )


def _pair(dataset: Dataset, fact: Fact) -> tuple[str, str]:
    return fact.fields[dataset.subject], fact.fields[dataset.object]


def _hashes(spec: Spec, dataset: Dataset) -> set[str]:
    """Content hashes of the facts, and where they are half of a data set, of the whole."""
    whole, _, part = (spec.dataset or "").rpartition(":")
    return {
        dataset.content_hash,
        *((load_dataset(whole, spec.imports).content_hash,) if whole and part in PARTS else ()),
    }


def truth_of(spec: Spec) -> Truth | None:
    """Where the facts of a specification's pair were planted; None where nobody knows.

    Other checkpoints in the place of the catalog's make it another pair, and of other facts nobody knows.
    """
    if spec.model is None or spec.recipient is not None or spec.donors or spec.dataset is not None:
        return None
    entry = catalog.entry(spec.model)
    return Truth(plant=entry.plant, decoy=entry.decoy) if entry.plant is not None else None


def check_truth(spec: Spec) -> None:
    """Refuse what only a pair with a plant can answer.

    Raises:
        InputError: The suite compares with the truth, and the pair has none.
    """
    if load_suite(spec.suite).truth and truth_of(spec) is None:
        if spec.dataset is not None:
            raise InputError(
                f"suite {spec.suite!r} is about the facts that were planted: leave out --dataset {spec.dataset}"
            )
        raise InputError(
            f"suite {spec.suite!r} needs a pair whose facts were planted at a known place, and {_name(spec)} is none; {_instead()}"
        )


def planted_models(base: str | None = None) -> tuple[str, ...]:
    """The shipped pairs with a plant.

    Args:
        base: Only those in this pair, whose names begin with its; there may be none.

    Raises:
        InputError: There are none at all.
    """
    if base is not None:
        return tuple(name for name in catalog.plants() if name.startswith(f"{base}."))
    if not (found := catalog.plants()):
        raise InputError(
            "no pair with planted facts is shipped here; give one: --model PATH, as `kgbench zoo build NAME --plant EXPR` makes"
        )
    return found


def localizer_arguments(spec: Spec) -> Mapping[str, str]:
    """The arguments of a specification's localizer, with the truth for one that must be told.

    Raises:
        InputError: It must be told, and the pair has no plant.
    """
    if "truth" not in needs(spec.localizer) or "truth" in spec.localizer_args:
        return spec.localizer_args
    if (truth := truth_of(spec)) is None:
        raise InputError(
            f"localizer {spec.localizer!r} must know where the facts were planted, and in {_name(spec)} none were; {_instead()}"
        )
    graded = catalog.entry(spec.model).truth if spec.model is not None else None
    return {
        **spec.localizer_args,
        "truth": truth.plant,
        **({"graded": graded.relevance_text} if graded is not None else {}),
    }


def _name(spec: Spec) -> str:
    return (
        f"model {spec.model!r}"
        if spec.model is not None and not spec.donors and spec.recipient is None
        else "a pair of checkpoints"
    )


def _instead() -> str:
    known = ", ".join(catalog.plants())
    shipped = f"give --model with one of {known}, or" if known else "give --model"
    return f"{shipped} the path of one that `kgbench zoo build NAME --plant EXPR` made"


@dataclass(frozen=True)
class Workload:
    """The facts, prompts and suite of a specification."""

    dataset: Dataset
    prompts: Mapping[str, Sequence[Prompt]]
    suite: Suite


def check(spec: Spec) -> Workload:
    """Read what a specification names.

    Raises:
        UnknownNameError: A model, data set, prompt, suite, metric, donor or type of weights does not exist.
        RegionError: A graft names a region that a prompt does not have.
        InputError: Something else is wrong with it.
    """
    if spec.metric not in (*METRICS, "mrr"):
        raise UnknownNameError("metric", spec.metric, (*METRICS, "mrr"))
    if spec.model is not None:
        catalog.entry(spec.model)
    if spec.dtype is not None:
        check_dtype(spec.dtype)
    check_name(spec.localizer)
    suite = load_suite(spec.suite)
    check_truth(spec)
    dataset = job_dataset(spec)
    prompts = job_prompts(spec, dataset)
    for text in (graft for graft in spec.grafts if graft not in BASELINES):
        _check_regions(text, dataset, prompts)
    known = donor_names(with_donor(spec, dataset))
    for text in (graft for graft in spec.grafts or suite.grafts if graft not in BASELINES):
        _check_donors(text, known)
    return Workload(dataset, prompts, suite)


def _check_regions(text: str, dataset: Dataset, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    """Refuse a graft at a region that a prompt's template does not mark."""
    for region in sorted(parse_graft(text).regions() & {*MARKS}):
        lacking = [name for name, some in prompts.items() if region not in some[0].spans]
        if lacking:
            having = _prompts_with(region, dataset)
            instead = (
                f"choose --prompt among {', '.join(having)}"
                if having
                else f"no prompt of {dataset.name!r} has it"
            )
            raise RegionError(
                f"graft {text!r}: prompt {lacking[0]!r} has no region {region}; {instead}"
            )


def _prompts_with(region: str, dataset: Dataset) -> list[str]:
    """Prompts that the facts can fill and that have a region."""
    having = []
    for name in (*dataset.templates, *prompt_names()):
        try:
            (prompt,) = data.load_prompts(dataset, [name], limit=1)
        except InputError:  # a built-in prompt that asks for a field that these facts lack
            continue
        if region in prompt.spans:
            having.append(name)
    return having


def _check_donors(text: str, known: Sequence[str]) -> None:
    """Refuse a graft of a donor that the pair does not have."""
    alone = len(known) == 1 or "relation" in known
    for donor in parse_graft(text).donors():
        if known and donor not in known and not (donor == "sft" and alone):
            raise UnknownNameError(
                "donor", donor, (RECIPIENT, *known), f"Give it with --donor {donor}=PATH."
            )
