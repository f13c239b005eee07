"""Look up what a specification names: suite, facts, prompts, donors and planted truth.

Nothing here loads a model, so that a mistake is reported at once.
"""

from __future__ import annotations

import filecmp
import json
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path

from kgbench import data
from kgbench.data import Dataset, ImportOptions, Prompt, load_dataset, prompt_names
from kgbench.data.facts import PARTS, dataset_of
from kgbench.data.prompts import find_giveaways, refuse_leaks
from kgbench.data.templates import prompts_of
from kgbench.errors import InputError, RegionError, check_choice, python_names
from kgbench.localizers import check_name, needs
from kgbench.models import catalog, check_dtype
from kgbench.models.catalog import Entry, choose_donor, find_donor
from kgbench.records import Truth
from kgbench.registry import named_files, told
from kgbench.runner.spec import Spec
from kgbench.runner.yaml_files import read_yaml
from kgbench.sites import (
    BASELINES,
    COMPONENTS,
    Graft,
    is_mark,
    missing_region,
    named_donor,
    parse_graft,
)
from kgbench.stats.scores import check_metric


@dataclass(frozen=True)
class Suite:
    """A named set of prompts and configurations, one YAML file each.

    The files are in `kgbench/suites`, and in the packages that entry points in the group
    `kgbench.suites` name.
    """

    about: str
    prompts: tuple[str, ...]
    grafts: tuple[str, ...]
    """Grafts of intervention localizers."""
    budgets: tuple[float, ...]
    """Budgets of rankings: per cent of all default components × tokens, ascending."""
    scan: bool = False
    """Rank sites by the effect of an intervention localizer at each site alone."""
    truth: bool = False
    """Compare rankings with the places where facts were planted."""


@cache
def _suites() -> Mapping[str, Suite]:
    folder = Path(__file__).parents[1] / "suites"
    files = named_files("suites", folder, "*.yaml", "kgbench.suites")
    return {name: _read_suite(files[name]) for name in sorted(files)}


def _read_suite(file: Path) -> Suite:
    try:
        row = read_yaml(file)
        for key, kind in (("prompts", str), ("grafts", str), ("budgets", float)):
            row[key] = tuple(map(kind, row[key]))
        return Suite(**row)
    except (InputError, KeyError, TypeError, ValueError) as error:
        fields = "about, prompts, grafts and budgets"
        raise InputError(f"{file} is no suite, which has {fields}: {told(error)}") from error


def suites() -> Mapping[str, str]:
    """Names of all suites, with one line on each."""
    return {name: suite.about for name, suite in _suites().items()}


def load_suite(name: str) -> Suite:
    """Load a suite by name.

    Raises:
        UnknownNameError: No suite has this name.
    """
    check_choice("suite", name, _suites())
    return _suites()[name]


@dataclass(frozen=True)
class Workload:
    """A specification with its names looked up."""

    spec: Spec
    """The specification, with a donor trained on this machine where it needs one."""
    suite: Suite
    dataset: Dataset
    prompts: Mapping[str, Sequence[Prompt]]
    """Prompts of all facts, by name."""
    truth: Truth | None
    """Ground-truth location of planted facts; None on a pair without a plant."""


def check(spec: Spec) -> Workload:
    """Look up all names of a specification and check what needs no model.

    Args:
        spec: What is evaluated.

    Raises:
        UnknownNameError: A model, data set, prompt, suite, metric, donor or dtype does not exist.
        RegionError: A graft names a region that a prompt lacks.
        InputError: Another part of the specification is wrong.
    """
    if spec.metric is not None:
        check_metric(spec.metric)
    if spec.dtype is not None:
        check_dtype(spec.dtype)
    if spec.in_memory.localizer is None:
        check_name(spec.localizer)
    suite = load_suite(spec.suite)
    truth = truth_of(spec)
    if suite.truth and truth is None:
        raise InputError(
            f"suite {spec.suite!r} is about the facts that were planted: "
            f"leave out --dataset {spec.dataset}"
            if spec.dataset is not None
            else f"suite {spec.suite!r} needs a pair whose facts were planted at a known place, "
            f"and {_pair_text(spec)} is none; {_plants_text()}"
        )
    dataset = job_dataset(spec)
    prompts = job_prompts(spec, dataset)
    with_trained = with_donor(spec, dataset)
    _check_grafts(with_trained, suite, dataset, prompts)
    return Workload(with_trained, suite, dataset, prompts, truth)


# Facts and prompts


@python_names(prompt="names", template="names")
def load_prompts(
    dataset: object,
    names: str | Sequence[str] | Mapping[str, str] = (),
    limit: int | None = None,
    *,
    subject: str | None = None,
    object: str | None = None,
    columns: Mapping[str, str] | None = None,
) -> list[Prompt]:
    """Fill facts into evaluation templates.

    Args:
        dataset: Facts, as `kgbench.evaluate` takes them, or the name of a model pair for its
            donor's facts.
        names: Prompts by name, or templates of your own, by name or alone; by default the data
            set's own.
        limit: Number of facts, from the first on; by default all.
        subject: Column that a fact is about.
        object: Column of the answer.
        columns: Column that holds a field, where the names differ.

    Returns:
        Prompts in the order of `names`, then of the facts.

    Raises:
        UnknownNameError: No data set, pair or prompt has this name.
        DataError: A file does not read, or lacks a field that a prompt needs.
    """
    if isinstance(dataset, str) and dataset in catalog.pair_names():
        dataset = _pair_facts(catalog.entry(dataset))
    chosen, templates = prompts_of(names)
    facts = dataset_of(dataset, ImportOptions(subject, object, columns or {}, templates))
    if not (chosen or facts.templates):
        raise InputError(
            f"data set {facts.name!r} has no prompts of its own: name some (see `kgbench ls "
            "prompts`), or give a template by --template TEXT"
        )
    return data.load_prompts(facts, chosen or tuple(facts.templates), limit)


def _pair_facts(entry: Entry) -> Dataset:
    """Facts of the donor of a catalog pair."""
    dataset = load_dataset(entry.dataset)
    return dataset if entry.facts is None else dataset.subset(entry.facts)


def job_dataset(spec: Spec) -> Dataset:
    """Load the facts of a specification.

    Raises:
        InputError: The specification names neither a data set nor a pair of the catalog.
    """
    if spec.in_memory.dataset is not None:
        return spec.in_memory.dataset
    if spec.dataset is not None:
        return load_dataset(spec.dataset, spec.imports)
    if spec.entry is None:
        raise InputError(
            "which facts did the donor learn? Give --dataset NAME or --dataset FILE.jsonl"
        )
    return _pair_facts(spec.entry)


def job_prompts(spec: Spec, dataset: Dataset) -> dict[str, list[Prompt]]:
    """Prompts by name: those of the specification, else of the data set, else of the suite."""
    names = spec.prompts or tuple(dataset.templates) or load_suite(spec.suite).prompts
    prompts = {name: data.load_prompts(dataset, [name], spec.limit) for name in names}
    if spec.dataset is None or data.is_shipped(spec.dataset):
        return prompts
    # A user's prompts are checked for answers in the prompt, as an import does.
    for name, group in prompts.items():
        given_away = find_giveaways(dataset, group)
        refuse_leaks(f"data set {dataset.name}", {name: given_away}, len(group))
        if given_away.by_field:
            share = f"{len(given_away.by_field)} of {len(group)} facts"
            warnings.warn(
                f"data set {dataset.name}: prompt {name!r} holds the answer already in {share}, "
                "where a model only has to copy it",
                stacklevel=1,
            )
    return prompts


# Grafts


def _check_grafts(
    spec: Spec, suite: Suite, dataset: Dataset, prompts: Mapping[str, Sequence[Prompt]]
) -> None:
    donors = {**_catalog_donors(spec), **spec.donors}  # none where one is still to be trained
    components = _components(spec)
    for text in spec.grafts or suite.grafts:
        if text in BASELINES:
            continue
        graft = parse_graft(text, components)
        if spec.grafts:
            _check_regions(graft, dataset, prompts)
        for donor in graft.donors() if donors else ():
            named_donor(donor, donors)


def _components(spec: Spec) -> tuple[str, ...]:
    """Components of the models by the map of their type; all names where there is no such map."""
    entry, recipient = spec.entry, spec.recipient
    if entry is not None and recipient is None:
        recipient = entry.recipient if entry.like is None else catalog.entry(entry.like).recipient
    if recipient is None:
        return COMPONENTS
    try:
        config = json.loads((checkpoint_folder(recipient) / "config.json").read_text("utf-8"))
        file = files("kgbench.models").joinpath("families", f"{config['model_type']}.json")
        places = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError, LookupError, TypeError):
        return COMPONENTS
    return (*places["outside"], *places["inside"])


def _check_regions(graft: Graft, dataset: Dataset, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    """Refuse a graft at a region that a prompt's template does not mark."""
    for region in sorted(filter(is_mark, graft.regions())):
        lacking = [name for name, group in prompts.items() if region not in group[0].spans]
        if not lacking:
            continue
        having = []
        for name in (*dataset.templates, *prompt_names()):
            with suppress(InputError):  # of a built-in prompt with a field that these facts lack
                (prompt,) = data.load_prompts(dataset, [name], limit=1)
                having += [name] if region in prompt.spans else []
        instead = f"choose --prompt among {', '.join(having)}"
        if not having:
            instead = f"no prompt has it: {missing_region(region, prompts[lacking[0]][0].spans)}"
        raise RegionError(
            f"graft '{graft}': prompt {lacking[0]!r} has no region {region}; {instead}"
        )


# Donors


def read_donors(option: str, texts: Sequence[str]) -> dict[str, str]:
    """Parse donors, each given as `NAME=PATH` or as a path alone, whose name is `sft`.

    Args:
        option: The option's name, for messages.
        texts: Values of the option; a path alone may have an equals sign after a slash.

    Raises:
        InputError: A value has no name or no path, or a name comes twice.
    """
    donors: dict[str, str] = {}
    for text in texts:
        name, equals, place = (part.strip() for part in text.partition("="))
        if not equals or "/" in name:
            name, place = "sft", text.strip()
        if not name or not place:
            raise InputError(
                f"{option} {text!r}: expected NAME=PATH, such as sft=path/to/checkpoint, "
                "or only the path"
            )
        if name in donors:
            raise InputError(f"{option}: {name!r} is given twice; give it once")
        donors[name] = place
    return donors


def with_donor(spec: Spec, dataset: Dataset) -> Spec:
    """Add a donor trained on this machine, where a specification needs one.

    Args:
        spec: What is evaluated.
        dataset: Its facts.

    Returns:
        The same specification where it names a donor, where the catalog's donor learned the facts,
        and where no donor was trained.

    Raises:
        ModelError: Several donors would do, see `choose_donor`.
    """
    held = spec.in_memory.pair is not None
    if held or spec.donors or (spec.model is None) == (spec.recipient is None):
        return spec
    hashes = {dataset.content_hash}
    dataset_name, _, part = (spec.dataset or "").rpartition(":")
    if dataset_name and part in PARTS:  # a half of a data set
        hashes.add(load_dataset(dataset_name, spec.imports).content_hash)
    if (entry := spec.entry) is None:
        source = str(spec.recipient)
        weights = cache(lambda: _weights_hash(source, spec.revision))
        donor = choose_donor(source, hashes, lambda donor: donor.recipient == weights())
    else:
        learned = entry.donors and load_dataset(entry.dataset).content_hash in hashes
        if learned or entry.plant is not None:
            return spec
        model = entry.name
        donor = choose_donor(model, hashes, lambda donor: donor.model == model)
    return spec if donor is None else replace(spec, donors={"sft": donor.name})


def _weights_hash(source: str, revision: str | None) -> str | None:
    """Hash of a checkpoint's weights; None where it is not on this machine."""
    from kgbench.models.checkpoints import find_here
    from kgbench.models.tensors import stored_hash

    checkpoint = find_here(source, revision)
    return None if checkpoint is None else stored_hash(checkpoint.directory)


def _catalog_donors(spec: Spec) -> Mapping[str, str]:
    return {} if spec.entry is None or spec.recipient is not None else spec.entry.donors


def check_different(spec: Spec) -> None:
    """Refuse a donor that is the recipient, as far as names and local files show.

    Raises:
        InputError: A donor has the recipient's name, folder or weights.
    """
    recipient = spec.recipient or (None if spec.entry is None else spec.entry.recipient)
    if recipient is None:
        return
    for name, source in spec.donors.items():
        if source == recipient or _same_weights(
            checkpoint_folder(recipient), checkpoint_folder(source)
        ):
            raise InputError(
                f"donor {name!r} ({source}) has the recipient's weights ({recipient}), so that "
                "there is nothing to compare: give the checkpoint before finetuning by "
                "--recipient and the one after by --donor"
            )


def checkpoint_folder(source: str) -> Path:
    """Where a checkpoint would be on this machine, by its name or path."""
    return catalog.zoo_path(source) or find_donor(source) or Path(source).expanduser()


def _same_weights(first: Path, second: Path) -> bool:
    """Whether two folders are the same, or their weight files are equal byte for byte."""
    if not (first.is_dir() and second.is_dir()):
        return False
    names = {path.name for path in first.glob("*.safetensors")}
    others = {path.name for path in second.glob("*.safetensors")}
    if first.samefile(second) or not names or names != others:
        return first.samefile(second)
    _, differing, unreadable = filecmp.cmpfiles(first, second, names, shallow=False)
    return not differing and not unreadable


def unlearned(work: Workload) -> str | None:
    """Warn where the donor learned none of the facts.

    Returns:
        The warning; None where the donor learned some facts, and where its facts are unknown.
    """
    spec, entry = work.spec, work.spec.entry
    if entry is None or spec.dataset is None or spec.donors or not _catalog_donors(spec):
        return None
    if _answered(_pair_facts(entry)) & _answered(work.dataset):
        return None
    remedy = "leave out --dataset, or give a donor that learned them (--donor PATH)"
    if entry.plant is None:
        remedy += (
            f" or train one: kgbench train --model {entry.name} --dataset {spec.dataset} "
            "--recipe aggressive"
        )
    return (
        f"the donor of {entry.name} learned {entry.dataset}, and none of the facts of "
        f"{spec.dataset} is among these: expect figures near chance, and undefined ratios; "
        f"{remedy}"
    )


def idle_donors(work: Workload) -> str | None:
    """Warn of donors that are given and that no configuration uses."""
    spec, pair = work.spec, work.spec.in_memory.pair
    names = list(pair.donors if pair is not None else spec.donors)
    used = {"sft" if "sft" in names else "relation"}
    for text in spec.grafts or work.suite.grafts:
        if text not in BASELINES:
            used |= set(parse_graft(text).donors())
    idle = [name for name in names if name not in used]
    if len(names) < 2 or not idle:
        return None
    return (
        f"no graft uses the donor {', '.join(map(repr, idle))}: name it in one, as in "
        f"LT={idle[0]}, or evaluate it as a pair of its own"
    )


def _answered(dataset: Dataset) -> set[tuple[str, str]]:
    """Subject and object of each fact."""
    roles = dataset.subject, dataset.object
    return {(f.fields.get(roles[0], ""), f.fields.get(roles[1], "")) for f in dataset.facts}


# Planted truth


def truth_of(spec: Spec) -> Truth | None:
    """Ground-truth location of the facts of a specification's pair.

    Returns:
        None on a pair without a plant. A pair with other checkpoints or other facts than those of
        the catalog has no known truth.
    """
    entry = spec.entry
    others = spec.recipient is not None or spec.donors or spec.dataset is not None
    if entry is None or entry.plant is None or others:
        return None
    return Truth(plant=entry.plant, decoy=entry.decoy)


def planted_models(base: str | None = None) -> tuple[str, ...]:
    """Names of the shipped plants.

    Args:
        base: Restrict to plants in this pair, which may have none; otherwise to pairs that come
            with the package.

    Raises:
        InputError: No plants are shipped at all.
    """
    if base is not None:
        return tuple(name for name in catalog.plants() if name.startswith(f"{base}."))
    if not (plants := catalog.plants_in_shipped_pairs()):
        raise InputError(
            "no pair with planted facts is shipped here; give one: --model PATH, as "
            "`kgbench zoo build NAME --blocks ffn@5` makes"
        )
    return plants


def localizer_arguments(spec: Spec) -> Mapping[str, str]:
    """Arguments of a specification's localizer, with the truth for a privileged one.

    Raises:
        InputError: The localizer needs the truth, and the pair has no plant.
    """
    if "truth" not in needs(spec.localizer) or "truth" in spec.localizer_args:
        return spec.localizer_args
    truth = truth_of(spec)
    if truth is None:
        raise InputError(
            f"localizer {spec.localizer!r} must know where the facts were planted, and in "
            f"{_pair_text(spec)} none were; {_plants_text()}"
        )
    return {**spec.localizer_args, "truth": truth.plant}


def _pair_text(spec: Spec) -> str:
    if spec.model is not None and not spec.donors and spec.recipient is None:
        return f"model {spec.model!r}"
    return "a pair of checkpoints"


def _plants_text() -> str:
    names = ", ".join(catalog.plants())
    shipped = f"give --model with one of {names}, or" if names else "give --model"
    return f"{shipped} the path of one that `kgbench zoo build NAME --blocks ffn@5` made"
