"""A job: a specification with its model pair loaded, localizer made and names resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from pydantic import ValidationError

from kgbench.data import Dataset, Prompt, prompt_hash
from kgbench.engine import Budget, Engine, load_pair
from kgbench.engine.treatment import Configuration, graft_treatments, parse_configuration
from kgbench.errors import InputError, ModelError, check_choice
from kgbench.localizers import (
    FLOORS,
    KINDS,
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    class_fingerprint,
    create,
    fingerprint,
)
from kgbench.metrics import METRIC_VERSION
from kgbench.models.in_memory import refuse_hooks
from kgbench.models.loading import no_donor_text, pair_sources
from kgbench.models.pair import ModelPair
from kgbench.models.placement import (
    DeviceMap,
    main_device,
    usable_device,
)
from kgbench.records import DatasetRef, Identity, LocalizerRef, Truth, WeightHashes, canonical_json
from kgbench.records.identity import AFTER_BLANKS, json_differences
from kgbench.runner.known import files_state
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.workload import Suite, Workload, check, localizer_arguments
from kgbench.sites.configurations import (
    BEST,
    REST,
    Top,
    budget_labels,
    configurations,
    parse_top,
)

RANKING_VERSION = "1"
"""Version of the rules for halves, ties and budgets, part of a record's identity."""

Halves = tuple[frozenset[str], frozenset[str]]
"""Ids of facts."""


def split_facts(prompts: Mapping[str, Sequence[Prompt]], seed: int) -> Halves:
    """Split the facts in two halves, the same for all prompts, by a seeded permutation of ids.

    Raises:
        InputError: There is only one fact.
    """
    facts: set[str] = set()
    for group in prompts.values():
        facts |= {prompt.fact.id for prompt in group}
    ids = sorted(facts)
    if len(ids) < 2:
        raise InputError(
            "a ranking is made from one half of the facts and measured on the other, so it needs "
            f"two or more, not {len(ids)}"
        )
    order = np.random.default_rng(seed).permutation(len(ids)).tolist()
    first = frozenset(ids[i] for i in order[: (len(ids) + 1) // 2])
    return first, frozenset(ids) - first


class Pairs:
    """Loads model pairs and keeps the last one."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, Any], ModelPair] | None = None
        self.state: str | None = None
        """State of the files of the last pair before they were read, see `files_state`."""

    def load(self, spec: Spec, settings: Settings) -> ModelPair:
        """The pair that a specification names, loaded and checked.

        Raises:
            InputError: The device cannot be used, or a checkpoint does not load or fit.
        """
        if (pair := self.loaded(spec, settings)) is None:
            check_donor(spec)
            self.forget()  # the one before is freed first
            self.state, arguments = files_state(spec), _wanted(spec, settings)
            pair = load_pair(**arguments)
            self._last = (arguments, pair)
        return pair

    def loaded(self, spec: Spec, settings: Settings) -> ModelPair | None:
        """The pair that a specification names, if it is loaded.

        Raises:
            InputError: The device cannot be used.
        """
        if spec.in_memory.pair is not None:
            return spec.in_memory.pair
        arguments, pair = self._last or ({}, None)
        return pair if arguments == _wanted(spec, settings) else None

    def forget(self) -> None:
        """Drop the pair, so that its memory is free."""
        self._last = None


def _wanted(spec: Spec, settings: Settings) -> dict[str, Any]:
    """Arguments of `load_pair`."""
    return {
        "name": spec.model,
        "recipient": spec.recipient,
        "donors": dict(spec.donors) or None,
        "dtype": spec.dtype,
        "device": main_device_of(settings),
        "revision": spec.revision,
        "chat_template": spec.chat_template,
        "attention": settings.attention,
        "device_map": device_map_of(settings),
    }


def check_donor(spec: Spec) -> None:
    """Refuse a pair without a donor; of the catalog with what it takes to train one.

    Args:
        spec: What is evaluated, with a donor trained on this machine where there is one.

    Raises:
        ModelError: It has none.
    """
    entry = spec.entry
    if entry is None or entry.donors or spec.donors or spec.recipient is not None:
        pair_sources(spec.model, spec.recipient, spec.donors)
        return
    from kgbench.runner.training.finetuning_cost import recipes_text

    facts = spec.dataset or entry.dataset
    costs = recipes_text(entry.name, facts, spec.imports)
    raise ModelError("; ".join(filter(None, (no_donor_text(entry.name, facts), costs))))


def device_map_of(settings: Settings) -> DeviceMap | None:
    """How layers are spread over devices; None where no map is given.

    Raises:
        InputError: It is no map, or --device is given too.
    """
    if settings.device_map is None:
        return None
    if settings.device != "auto":
        raise InputError(
            "--device is one device, --device-map says which layers are where: give one of them"
        )
    main_device(settings.device_map)  # refuses what is no map
    return settings.device_map


def main_device_of(settings: Settings) -> str:
    """The device that answers would be computed on; of several, an accelerator.

    Raises:
        InputError: It cannot be used.
    """
    device_map = device_map_of(settings)
    return usable_device(settings.device) if device_map is None else str(main_device(device_map))


@dataclass(frozen=True)
class Job:
    """A localizer on a model pair, loaded and checked."""

    workload: Workload
    settings: Settings
    configurations: Mapping[str, str | None]
    """Each configuration with its complement."""
    localizer: AbstractLocalizer
    pair: ModelPair

    @property
    def spec(self) -> Spec:
        """The specification, with its donors."""
        return self.workload.spec

    @property
    def dataset(self) -> Dataset:
        """The data set."""
        return self.workload.dataset

    @property
    def prompts(self) -> Mapping[str, Sequence[Prompt]]:
        """Prompts of all facts, by name."""
        return self.workload.prompts

    @cached_property
    def engine(self) -> Engine:
        """The engine with the job's executor and batch size."""
        return Engine(
            self.pair,
            self.settings.executor,
            Budget.on(self.pair.device, self.pair.width, self.settings.batch_size),
        )

    @cached_property
    def tops(self) -> Mapping[str, Top]:
        """Configurations of the best-ranked sites, parsed."""
        tops = {label: parse_top(label) for label in self.configurations}
        return {label: top for label, top in tops.items() if top is not None}

    @cached_property
    def grafts(self) -> Mapping[str, Configuration]:
        """All other configurations, parsed."""
        others = (label for label in self.configurations if label not in self.tops)
        return {label: parse_configuration(label) for label in others}

    @property
    def ranks(self) -> bool:
        """Whether sites are ranked and the highest ones grafted."""
        return bool(self.tops)

    @property
    def scans(self) -> bool:
        """Whether an intervention localizer ranks sites, by its effect at each site alone."""
        return self.ranks and isinstance(self.localizer, InterventionLocalizer)

    @property
    def truth(self) -> Truth | None:
        """Ground-truth location of planted facts, in suites that compare with it."""
        return self.workload.truth if self.workload.suite.truth else None

    @property
    def all_prompts(self) -> list[Prompt]:
        """The prompts of all templates."""
        return list(chain.from_iterable(self.prompts.values()))

    @property
    def after_blanks(self) -> bool:
        """Whether the tokenizer keeps the blank before an answer apart, so that it is given."""
        return any(self.pair.encoded(prompt).blanks for prompt in self.all_prompts)

    @cached_property
    def halves(self) -> Halves:
        """Facts in two halves: each ranks sites for the other."""
        return split_facts(self.prompts, self.spec.seed)

    @cached_property
    def identity(self) -> Identity:
        """Identity of the record.

        The version of the localizer is followed by `scan` where it ranks by a scan, and by a hash
        of foreign code.

        Raises:
            InputError: A name or a parameter is a local path, looks like a credential, or is no
                JSON value.
        """
        method, held = self.localizer, self.spec.in_memory
        try:
            # As JSON, which has no tuples.
            parameters = dict(json.loads(canonical_json(method.parameters())))
        except (TypeError, ValueError) as error:
            expected = f"expected numbers, texts, None, and lists of these ({error})"
            raise InputError(
                f"localizer {method.name!r}: its parameters do not fit into a record: {expected}"
            ) from error
        code = held.code
        if code is None:
            of = held.localizer
            code = fingerprint(self.spec.localizer) if of is None else class_fingerprint(type(of))
        version = filter(None, (method.version, "scan" if self.scans else "", code))
        hashes = dict(self.pair.weight_hashes)
        try:
            return Identity(
                dataset=DatasetRef(
                    name=self.dataset.name,
                    hash=self.dataset.content_hash,
                    n=len(self.dataset.facts),
                ),
                prompts={name: prompt_hash(name, self.dataset) for name in self.prompts},
                weights=WeightHashes(recipient=hashes.pop("recipient"), donors=hashes),
                tokenizer=self.pair.tokenizer_hash,
                localizer=LocalizerRef(
                    name=method.name, version=" ".join(version), parameters=parameters
                ),
                configurations=tuple(self.configurations),
                metric_version=METRIC_VERSION + AFTER_BLANKS * self.after_blanks,
                dtype=str(self.pair.dtype).removeprefix("torch."),
                seeds=(self.spec.seed,),
                limit=self.spec.limit,
                truth=self.truth,
                ranking_version=RANKING_VERSION if self.ranks else None,
            )
        except ValidationError as error:
            told = (found["msg"].removeprefix("Value error, ") for found in error.errors())
            raise InputError(
                f"this run cannot be recorded: {'; '.join(told)}; give a name in its place"
            ) from error


def prepare_job(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Job:
    """Check a specification, load its models and check the rest; see `load_job`."""
    return load_job(check(spec), settings, pairs)


def load_job(work: Workload, settings: Settings, pairs: Pairs | None = None) -> Job:
    """Load the models of a specification that is checked, and check the rest.

    Args:
        work: What is evaluated.
        settings: How it is computed.
        pairs: Loader that may hold the models already.

    Raises:
        InputError: The specification is wrong, or does not fit the models.
    """
    spec, suite = work.spec, work.suite
    localizer = spec.in_memory.localizer
    if localizer is None:
        localizer = create(spec.localizer, localizer_arguments(spec), spec.seed)
    check_choice("kind of localizer", localizer.kind, KINDS)
    check_choice("floor of localizer", localizer.floor, FLOORS)
    ranking_only = isinstance(localizer, ScoringLocalizer)
    if ranking_only and not (suite.budgets or suite.truth or spec.grafts):
        raise InputError(
            f"suite {spec.suite!r} grafts what it names, and {localizer.name!r} ranks sites "
            "instead; choose another --suite, such as pathways, or a --localizer that intervenes, "
            "such as dynamic_graft"
        )
    labels = job_configurations(spec, suite, localizer.kind, localizer.floor)
    pair = (pairs or Pairs()).load(spec, settings)
    refuse_hooks(pair.recipient, *pair.donors.values())
    job = Job(work, settings, labels, localizer, pair)
    _check_expected(job)
    most = getattr(pair.recipient.config, "max_position_embeddings", None)
    for prompt in job.all_prompts:
        length = len(pair.encoded(prompt).ids)
        if most is not None and length > most:
            raise InputError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r} has {length} tokens; "
                f"the model reads at most {most}"
            )
    if job.ranks:
        job.halves  # noqa: B018 (refuses a single fact)
    for graft in job.grafts.values():
        # One prompt of each template shows whether the graft fits, before the long part.
        for prompts in job.prompts.values():
            graft_treatments(pair, prompts[:1], graft)
    return job


HINTS: Mapping[str, str] = {
    "weights": "other weights: give the checkpoints with --recipient and --donor",
    "tokenizer": "another tokenizer, or prompts in a chat template, which the same kgbench eval "
    "once more notes with the run",
    "dataset": "other facts: give the file with --dataset",
    "prompts": "another wording of the prompt",
    "localizer.version": "another version of the method's code",
    "truth": "a plant somewhere else",
    "ranking_version": "another rule of ranking",
    "metric_version": "another version of the metrics",
}
"""What it means that a part of the identity differs, and what to do, where anything can be done."""


def _check_expected(job: Job) -> None:
    """Refuse parts that are not those of the recorded run that a job is about.

    Raises:
        InputError: A part differs; the message names all that do.
    """
    if not job.spec.expected:
        return
    expected = dict(job.spec.expected)
    now = job.identity.model_dump(mode="json", include=set(expected))
    for part in {"prompts", "localizer"} & {*expected}:  # an audit asks one wording at a time
        shared = [name for name in expected[part] if name in now[part]]
        for of in (expected, now):
            of[part] = {name: of[part][name] for name in shared}
    parts = []
    for difference in json_differences(expected, now):
        hints = (hint for start, hint in HINTS.items() if difference.field.startswith(start))
        parts.append(f"{difference.text()} ({next(hints, 'other settings')})")
    if parts:
        raise InputError(
            "what this record is of is not at hand (field: in the record | here): "
            + "; ".join(parts)
        )


def job_configurations(spec: Spec, suite: Suite, kind: str, floor: str) -> dict[str, str | None]:
    """Each configuration of a job with its complement.

    Args:
        spec: What is evaluated.
        suite: Its suite.
        kind: Of its localizer, as is the floor.
        floor: What its grafts are measured from.
    """
    grafts = spec.grafts or (suite.grafts if kind == InterventionLocalizer.kind else ())
    labels = configurations(grafts, spec.layers)
    if floor == "destroyed_donor":
        labels |= {"ALL": "NONE", "NONE": "ALL"}
    if kind == ScoringLocalizer.kind or suite.scan:
        labels |= dict.fromkeys(budget_labels(suite.budgets))
        labels |= {BEST: REST, REST: BEST} if suite.truth else {}
    return labels
