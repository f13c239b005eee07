"""A job: a specification with its model pair loaded, localizer made and names resolved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np
from pydantic import ValidationError

from kgbench.data import Prompt, prompt_hash
from kgbench.engine import Budget, Engine, load_pair
from kgbench.engine.treatment import (
    Configuration,
    graft_treatments,
    parse_configuration,
    parted,
)
from kgbench.errors import InputError, ModelError, check_choice
from kgbench.localizers import (
    FLOORS,
    KINDS,
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    class_fingerprint,
    fingerprint,
)
from kgbench.metrics import METRIC_VERSION
from kgbench.models.in_memory import refuse_hooks
from kgbench.models.loading import no_donor_text
from kgbench.models.pair import ModelPair
from kgbench.models.placement import main_device, usable_device
from kgbench.readouts import TextReadout, readout_code
from kgbench.records import (
    DatasetRef,
    Identity,
    LocalizerRef,
    ReadoutRef,
    WeightHashes,
    canonical_json,
)
from kgbench.records.identity import AFTER_BLANKS, json_differences
from kgbench.runner.earlier_runs import files_state
from kgbench.runner.lookup import Suite, Workload, check, made_localizer
from kgbench.runner.sources import Sources
from kgbench.runner.spec import Settings, Spec
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

    Cases and controls are split apart, so that each half has some of both.

    Raises:
        InputError: There is only one fact.
    """
    by_group: dict[str, set[str]] = {"on": set(), "off": set()}
    for prompt in chain.from_iterable(prompts.values()):
        by_group[prompt.group].add(prompt.fact.id)
    if len(by_group["on"]) < 2:
        raise InputError(
            "a ranking is made from one half of the facts and measured on the other, so it needs "
            f"two or more, not {len(by_group['on'])}"
        )
    first: set[str] = set()
    for group in by_group.values():
        ids, rng = sorted(group), np.random.default_rng(seed)
        order = rng.permutation(len(ids)).tolist()
        first |= {ids[i] for i in order[: (len(ids) + 1) // 2]}
    return frozenset(first), frozenset(chain.from_iterable(by_group.values())) - first


class Pairs:
    """Loads model pairs and keeps the last one."""

    def __init__(self) -> None:
        self._last: tuple[dict[str, Any], ModelPair] | None = None
        self.state: str | None = None
        """State of the files of the last pair before they were read, see `files_state`."""

    def load(self, sources: Sources, settings: Settings, dtype: str | None = None) -> ModelPair:
        """The pair that sources name, loaded and checked.

        Raises:
            InputError: The device cannot be used, or a checkpoint does not load or fit.
        """
        if (pair := self.loaded(sources, settings, dtype)) is None:
            check_donor(sources)
            self.forget()  # the one before is freed first
            self.state, arguments = files_state(sources), _wanted(sources, settings, dtype)
            pair = load_pair(**arguments)
            self._last = (arguments, pair)
        return pair

    def loaded(
        self, sources: Sources, settings: Settings, dtype: str | None = None
    ) -> ModelPair | None:
        """The pair that sources name, if it is loaded.

        Raises:
            InputError: The device cannot be used.
        """
        arguments, pair = self._last or ({}, None)
        return pair if arguments == _wanted(sources, settings, dtype) else None

    def forget(self) -> None:
        """Drop the pair, so that its memory is free."""
        self._last = None


def _wanted(sources: Sources, settings: Settings, dtype: str | None) -> dict[str, Any]:
    """Arguments of `load_pair`."""
    return {
        "name": sources.model,
        "recipient": sources.recipient,
        "donors": dict(sources.donors) or None,
        "dtype": dtype,
        "device": main_device_of(settings),
        "revision": sources.revision,
        "chat_template": sources.chat_template,
        "attention": settings.attention,
        "device_map": settings.device_map,
    }


def check_donor(sources: Sources) -> None:
    """Refuse a pair of the catalog without a donor.

    Args:
        sources: The pair, with a donor trained on this machine where there is one.

    Raises:
        ModelError: It has none.
    """
    entry = sources.entry
    if entry is not None and not (entry.donors or sources.donors or sources.recipient):
        raise ModelError(no_donor_text(entry.name, sources.dataset or entry.dataset))


def main_device_of(settings: Settings) -> str:
    """The device that answers would be computed on; of several, an accelerator.

    Raises:
        InputError: It cannot be used, or the map is none.
    """
    if settings.device_map is None:
        return usable_device(settings.device)
    return str(main_device(settings.device_map))


@dataclass(frozen=True)
class Job(Workload):
    """What is evaluated and how: all names are looked up, and the models are loaded."""

    pair: ModelPair
    localizer: AbstractLocalizer
    settings: Settings
    code: str
    """Hash of the localizer's code, where that is not kgbench's."""
    configurations: Mapping[str, str | None]
    """Each configuration with its complement."""

    def reading(self) -> AbstractContextManager[None]:
        """For the time of a block, have the pair read prompts by the readout."""
        if self.readout is None:
            return nullcontext()
        return self.pair.answered_by(self.readout.read)

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
    def all_prompts(self) -> list[Prompt]:
        """The prompts of all templates."""
        return list(chain.from_iterable(self.prompts.values()))

    @cached_property
    def halves(self) -> Halves:
        """Facts in two halves: each ranks sites for the other."""
        return split_facts(self.prompts, self.seed)

    @property
    def _readout_ref(self) -> ReadoutRef | None:
        if self.readout is None:
            return None
        parameters = json.loads(canonical_json(asdict(self.readout)))
        version = filter(None, (self.readout.version, readout_code(self.readout)))
        return ReadoutRef(name=self.readout.name, version=" ".join(version), parameters=parameters)

    @cached_property
    def identity(self) -> Identity:
        """Identity of the record.

        The version of the localizer is followed by `scan` where it ranks by a scan, and by a hash
        of foreign code.

        Raises:
            InputError: A name or a parameter is a local path, looks like a credential, or is no
                JSON value.
        """
        method = self.localizer
        try:
            # As JSON, which has no tuples.
            parameters = dict(json.loads(canonical_json(method.parameters())))
        except (TypeError, ValueError) as error:
            expected = f"expected numbers, texts, None, and lists of these ({error})"
            raise InputError(
                f"localizer {method.name!r}: its parameters do not fit into a record: {expected}"
            ) from error
        version = filter(None, (method.version, "scan" if self.scans else "", self.code))
        hashes = dict(self.pair.weight_hashes)
        # Whether the blank before the answer is a token of its own, which then ends the prompt.
        after_blanks = any(self.pair.encoded(prompt).blanks for prompt in self.all_prompts)
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
                metric_version=METRIC_VERSION + AFTER_BLANKS * after_blanks,
                dtype=str(self.pair.dtype).removeprefix("torch."),
                seeds=(self.seed,),
                limit=self.limit,
                truth=self.truth,
                ranking_version=RANKING_VERSION if self.ranks else None,
                readout=self._readout_ref,
            )
        except ValidationError as error:
            faults = (fault["msg"].removeprefix("Value error, ") for fault in error.errors())
            raise InputError(
                f"this run cannot be recorded: {'; '.join(faults)}; give a name in its place"
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
    pair = work.held.pair
    if (localizer := work.held.localizer) is None:
        localizer, code = made_localizer(work), fingerprint(work.localizer_name)
    else:
        code = work.held.code or class_fingerprint(type(localizer))
    check_choice("kind of localizer", localizer.kind, KINDS)
    check_choice("floor of localizer", localizer.floor, FLOORS)
    suite = work.suite
    ranking_only = isinstance(localizer, ScoringLocalizer)
    if ranking_only and not (suite.budgets or suite.truth or work.expressions):
        raise InputError(
            f"suite {suite.name!r} grafts what it names, and {localizer.name!r} ranks sites "
            "instead; choose another --suite, such as pathways, or a --localizer that intervenes, "
            "such as dynamic_graft"
        )
    labels = job_configurations(
        suite, work.expressions, work.layers, localizer.kind, localizer.floor
    )
    if pair is None:
        pair = (pairs or Pairs()).load(work.sources, settings, work.dtype)
    pair = parted(pair, (label for label in labels if parse_top(label) is None))
    with pair.lock:  # a forward of another thread has hooks of its own
        refuse_hooks(pair.recipient, *pair.donors.values())
    job = Job(
        **vars(work),
        pair=pair,
        localizer=localizer,
        settings=settings,
        code=code,
        configurations=labels,
    )
    _check_expected(job)
    with job.reading():
        _check_prompts(job)
    return job


def _check_prompts(job: Job) -> None:
    """Refuse prompts that are too long, or that a graft does not fit."""
    pair = job.pair
    most = getattr(pair.recipient.config, "max_position_embeddings", None)
    several, method, written = list[Prompt](), job.localizer, 0
    if isinstance(job.readout, TextReadout):
        if job.ranks:
            raise InputError(job.readout.no_objective)
        written = job.readout.tokens
    else:
        several = [prompt for prompt in job.all_prompts if len(pair.encoded(prompt).answer) > 1]
    if several and isinstance(method, InterventionLocalizer) and not method.reads_any_token:
        raise InputError(
            f"localizer {method.name!r} acts at the last token of a prompt, and the readout "
            f"{job.readout.name if job.readout else ''!r} reads after several: choose another "
            "--readout, or a method such as dynamic_graft"
        )
    for prompt in job.all_prompts:
        length = len(pair.encoded(prompt).ids)
        if most is not None and length + written > most:
            text = f" and a text of {written} after it" if written else ""
            raise InputError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r} has {length} tokens{text}; "
                f"the model reads at most {most}"
            )
    if job.ranks:
        job.halves  # noqa: B018 (refuses a single fact)
    for graft in job.grafts.values():
        # One prompt of each template shows whether the graft fits, before the long part.
        for prompts in job.prompts.values():
            graft_treatments(pair, prompts[:1], graft)


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
    """Refuse parts of the identity that are not those of the recorded run that a job is about.

    Raises:
        InputError: A part differs; the message names all that do.
    """
    if not job.expected:
        return
    expected = dict(job.expected)
    now = job.identity.model_dump(mode="json", include=set(expected))
    for part in {"prompts", "localizer"} & {*expected}:  # an audit asks one wording at a time
        shared = [name for name in expected[part] if name in now[part]]
        for of in (expected, now):
            of[part] = {name: of[part][name] for name in shared}
    texts = []
    for difference in json_differences(expected, now):
        hints = (hint for start, hint in HINTS.items() if difference.field.startswith(start))
        texts.append(f"{difference.text()} ({next(hints, 'other settings')})")
    if texts:
        raise InputError(
            "models, facts or settings here differ from those of the record (field: recorded | here): "
            + "; ".join(texts)
        )


def job_configurations(
    suite: Suite, grafts: Sequence[str], layers: str | None, kind: str, floor: str
) -> dict[str, str | None]:
    """Each configuration of a job with its complement.

    Args:
        suite: The suite.
        grafts: In place of the suite's; empty for the suite's.
        layers: Of grafts that name none.
        kind: Of the localizer, as is the floor.
        floor: What its grafts are measured from.
    """
    labels = configurations(
        grafts or (suite.grafts if kind == InterventionLocalizer.kind else ()), layers
    )
    if floor == "destroyed_donor":
        labels |= {"ALL": "NONE", "NONE": "ALL"}
    if kind == ScoringLocalizer.kind or suite.scan:
        labels |= dict.fromkeys(budget_labels(suite.budgets))
        labels |= {BEST: REST, REST: BEST} if suite.truth else {}
    return labels
