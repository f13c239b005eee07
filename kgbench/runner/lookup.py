"""What a specification asks for, with its names looked up: suite, facts, prompts and grafts.

Nothing here loads a model, so that a mistake is reported at once.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgbench import data
from kgbench.data import Dataset, ImportOptions, Prompt
from kgbench.data.facts import dataset_of
from kgbench.data.prompts import find_giveaways, refuse_leaks
from kgbench.data.templates import prompts_of
from kgbench.errors import InputError, ModelError, RegionError, check_choice, python_names
from kgbench.localizers import AbstractLocalizer, check_name, create, needs
from kgbench.models import catalog, check_dtype
from kgbench.records import Truth
from kgbench.registry import named_files, told
from kgbench.runner.sources import Sources, checkpoint_folder, pair_facts, with_donor
from kgbench.runner.spec import Held, Spec
from kgbench.runner.yaml_files import read_yaml
from kgbench.sites import (
    BASELINES,
    COMPONENTS,
    is_mark,
    missing_region,
    named_donor,
    parse_graft,
    part_of,
)
from kgbench.stats.scores import DEFAULT_METRIC, check_metric

if TYPE_CHECKING:
    from kgbench.readouts import Readout


@dataclass(frozen=True)
class Suite:
    """A named set of prompts and configurations, one YAML file each.

    The files are in `kgbench/suites`, and in the packages that entry points in the group
    `kgbench.suites` name.
    """

    name: str
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
    version: int = 1
    """Grows where equal names would give figures that cannot be compared."""

    @property
    def versioned(self) -> str:
        """Its name with its version, such as `planted@2`."""
        return f"{self.name}@{self.version}"


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
        return Suite(file.stem, **row)
    except (InputError, KeyError, TypeError, ValueError) as error:
        fields = "about, prompts, grafts and budgets"
        raise InputError(f"{file} is no suite, which has {fields}: {told(error)}") from error


def suites() -> Mapping[str, str]:
    """Names of all suites with their versions, and one line on each."""
    return {suite.versioned: suite.about for suite in _suites().values()}


def load_suite(name: str) -> Suite:
    """Load a suite.

    Args:
        name: Its name, with or without its version.

    Raises:
        InputError: It has another version.
        UnknownNameError: No suite has this name.
    """
    bare, marked, _ = name.partition("@")
    check_choice("suite", bare, _suites())
    suite = _suites()[bare]
    if marked and name != suite.versioned:
        raise InputError(
            f"suite {name!r} is not what this version of kgbench runs: give {suite.versioned}, or "
            "install the kgbench that has it; its records are still read"
        )
    return suite


@dataclass(frozen=True)
class Workload:
    """What is evaluated, with its names looked up; the models are not loaded."""

    sources: Sources
    """Where models and facts are, with a donor trained on this machine where one is needed."""
    dataset: Dataset
    prompts: Mapping[str, Sequence[Prompt]]
    """Prompts of all facts, by name."""
    suite: Suite
    expressions: tuple[str, ...]
    """Grafts in place of the suite's; empty for the suite's."""
    layers: str | None
    localizer_name: str
    """As it was given: a name, or a class of a file."""
    arguments: Mapping[str, str]
    """Of the localizer."""
    limit: int | None
    dtype: str | None
    seed: int
    metric: str | None
    held: Held
    """What the caller holds in memory."""
    expected: Mapping[str, Any]
    """Parts of the identity that the run must have, as JSON."""
    readout: Readout | None
    """What is read of the output; None for the first token of the answer."""
    truth: Truth | None
    """Ground-truth location of planted facts, in suites that compare with it."""


def check(spec: Spec) -> Workload:
    """Look up all names of a specification and check what needs no model.

    Args:
        spec: What is evaluated.

    Raises:
        UnknownNameError: A model, data set, prompt, suite, metric, donor or dtype does not exist.
        RegionError: A graft names a region that a prompt lacks.
        InputError: Another part of the specification is wrong.
    """
    held = spec.held or Held()
    if spec.metric is not None:
        check_metric(spec.metric)
    if spec.dtype is not None:
        check_dtype(spec.dtype)
    if held.localizer is None:
        check_name(spec.localizer)
    suite, sources = load_suite(spec.suite), Sources.of(spec)
    truth = sources.truth if suite.truth else None
    if suite.truth and truth is None:
        raise InputError(
            f"suite {suite.name!r} is about the facts that were planted: "
            f"leave out --dataset {sources.dataset}"
            if sources.dataset is not None
            else f"suite {suite.name!r} needs a pair whose facts were planted at a known place, "
            f"and {sources.pair_text} is none; {_plants_text()}"
        )
    dataset = sources.facts() if held.dataset is None else held.dataset
    names = spec.prompts or tuple(dataset.templates) or suite.prompts
    prompts = {name: data.load_prompts(dataset, [name], spec.limit) for name in names}
    if sources.dataset is not None and not data.is_shipped(sources.dataset):
        _check_giveaways(dataset, prompts)
    if held.pair is None:
        sources = with_donor(sources, dataset)
    readout = _readout(spec, dataset)
    work = Workload(
        sources=sources,
        dataset=dataset,
        prompts=prompts,
        suite=suite,
        expressions=spec.grafts,
        layers=spec.layers,
        localizer_name=spec.localizer,
        arguments=spec.localizer_args,
        limit=spec.limit,
        dtype=spec.dtype,
        seed=spec.seed,
        # On the board of plants all ratios are of one metric, however often five guesses hit.
        metric=spec.metric
        or (None if readout is None else readout.metric)
        or (DEFAULT_METRIC if suite.truth else None),
        held=held,
        expected=spec.expected,
        readout=readout,
        truth=truth,
    )
    _check_grafts(work)
    return work


def _readout(spec: Spec, dataset: Dataset) -> Readout | None:
    """The readout that is given, or that of the data set."""
    if spec.readout is None and spec.readout_args:
        raise InputError("--readout-arg is of a readout: give --readout too")
    if spec.readout is None and dataset.readout is None:
        return None
    from kgbench.readouts import DEFAULT, readout_named, readout_stored  # which load torch

    readout = (
        readout_stored(dataset.readout or {}, spec.seed)
        if spec.readout is None
        else readout_named(spec.readout, spec.readout_args, spec.seed)
    )
    if spec.metric is not None and check_metric(spec.metric) not in readout.metrics:
        raise InputError(
            f"readout {readout.name!r} has no {spec.metric}, but {', '.join(readout.metrics)}: leave "
            "--metric out"
        )
    return None if readout.name == DEFAULT else readout


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
        dataset = pair_facts(catalog.entry(dataset))
    chosen, templates = prompts_of(names)
    facts = dataset_of(dataset, ImportOptions(subject, object, columns or {}, templates))
    if not (chosen or facts.templates):
        raise InputError(
            f"data set {facts.name!r} has no prompts of its own: name some (see `kgbench ls "
            "prompts`), or give a template by --template TEXT"
        )
    return data.load_prompts(facts, chosen or tuple(facts.templates), limit)


def _check_giveaways(dataset: Dataset, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    """Check a user's prompts for answers in the prompt, as an import does."""
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


# Grafts


def _check_grafts(work: Workload) -> None:
    sources = work.sources
    donors = {**sources.catalog_donors, **sources.donors}  # none where one is still to be trained
    components = _components(sources)
    for text in work.expressions or work.suite.grafts:
        if text in BASELINES:
            continue
        graft = parse_graft(text, components)
        for region in sorted(filter(is_mark, graft.regions())) if work.expressions else ():
            for name, group in work.prompts.items():
                if region not in group[0].spans:
                    why = missing_region(region, group[0].spans)
                    raise RegionError(f"graft '{graft}', prompt {name!r}: {why}")
        for donor in graft.donors() if donors else ():
            named_donor(donor, donors)


def _components(sources: Sources) -> tuple[str, ...]:
    """Components of the models by the map of their type; all names where there is no such map."""
    entry, recipient = sources.entry, sources.recipient
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


# Warnings


def unlearned(work: Workload) -> str | None:
    """Warn where the donor learned none of the facts.

    Returns:
        The warning; None where the donor learned some facts, and where its facts are unknown.
    """
    sources, entry = work.sources, work.sources.entry
    if entry is None or sources.dataset is None or sources.donors or not sources.catalog_donors:
        return None
    if not entry.dataset or _answered(pair_facts(entry)) & _answered(work.dataset):
        return None
    remedy = "leave out --dataset, or give a donor that learned them (--donor PATH)"
    if entry.plant is None:
        remedy += (
            f" or train one: kgbench train --model {entry.name} --dataset {sources.dataset} "
            "--recipe aggressive"
        )
    return (
        f"the donor of {entry.name} learned {entry.dataset}, and none of the facts of "
        f"{sources.dataset} is among these: expect figures near chance, and undefined ratios; "
        f"{remedy}"
    )


def along_donors(spec: Spec) -> dict[str, Spec]:
    """A specification for each of several donors that no configuration names, the pair's own last.

    Each is evaluated as if it alone were given. Empty where there is one donor, and where a
    configuration names one.

    Raises:
        ModelError: A donor is a path, and nothing is there.
    """
    sources = Sources.of(spec)
    donors = {**sources.donors, **sources.catalog_donors, **sources.donors}
    if len(donors) < 2 or not sources.donors:
        return {}
    grafts = spec.grafts or load_suite(spec.suite).grafts
    if _named_donors(grafts, _components(sources)) - {"sft"}:
        return {}
    for name, path in donors.items():
        is_path = path.startswith((".", "~")) or Path(path).is_absolute()
        if is_path and not checkpoint_folder(path).exists():
            raise ModelError(f"donor {name!r}: there is no {path!r}; give a checkpoint's folder")
    alone = replace(spec, recipient=sources.recipient_source)
    return {name: replace(alone, donors={name: path}) for name, path in donors.items()}


def _named_donors(grafts: Iterable[str], components: Sequence[str] = COMPONENTS) -> set[str]:
    """Donors of some configurations."""
    parsed = (parse_graft(text, components) for text in grafts if text not in BASELINES)
    named = chain.from_iterable(graft.donors() for graft in parsed)
    return {part_of(name).donor for name in named}


def idle_donors(work: Workload) -> str | None:
    """Warn of donors that are given and that no configuration uses."""
    pair = work.held.pair
    names = list(work.sources.donors if pair is None else pair.donors)
    used = {"sft" if "sft" in names else "relation"} | _named_donors(
        work.expressions or work.suite.grafts
    )
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


# Plants


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


def localizer_arguments(
    localizer: str, arguments: Mapping[str, str], sources: Sources
) -> Mapping[str, str]:
    """Arguments of a localizer, with the truth for a privileged one, whose code is loaded here.

    Raises:
        InputError: The localizer needs the truth, and the pair has no plant.
    """
    if "truth" not in needs(localizer) or "truth" in arguments:
        return arguments
    truth = sources.truth
    if truth is None:
        raise InputError(
            f"localizer {localizer!r} must know where the facts were planted, and in "
            f"{sources.pair_text} none were; {_plants_text()}"
        )
    return {**arguments, "truth": truth.plant}


def made_localizer(work: Workload) -> AbstractLocalizer:
    """The localizer that a workload names, made with its arguments.

    Raises:
        InputError: It does not load, an argument is wrong, or it needs the truth of a plant.
    """
    arguments = localizer_arguments(work.localizer_name, work.arguments, work.sources)
    return create(work.localizer_name, arguments, work.seed)


def _plants_text() -> str:
    names = ", ".join(catalog.plants())
    shipped = f"give --model with one of {names}, or" if names else "give --model"
    return f"{shipped} the path of one that `kgbench zoo build NAME --blocks ffn@5` made"
