"""One job, loaded and checked: a localizer on a model pair, from a specification."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pydantic import ValidationError

from kgbench.data import Dataset, Prompt, prompt_hash
from kgbench.engine import Budget, Engine
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import InputError
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    create,
    fingerprint,
)
from kgbench.metrics import METRIC_VERSION
from kgbench.models.pair import ModelPair
from kgbench.records import DatasetRef, Identity, LocalizerRef, Truth, WeightHashes, canonical_json
from kgbench.runner.pairs import Pairs
from kgbench.runner.ranking import RANKING_VERSION, Halves, split_facts
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.workload import Suite, check, localizer_arguments, truth_of, with_donor
from kgbench.sites.configurations import BEST, REST, budget_labels, configurations, parse_top

__all__ = ["Job", "job_configurations", "prepare_job"]


@dataclass(frozen=True)
class Job:
    """Everything a run needs, loaded and checked."""

    spec: Spec
    settings: Settings
    dataset: Dataset
    prompts: Mapping[str, Sequence[Prompt]]
    suite: Suite
    configurations: Mapping[str, str | None]
    """Each configuration and its complement."""
    localizer: AbstractLocalizer
    pair: ModelPair

    @cached_property
    def engine(self) -> Engine:
        """The engine with the job's executor and batch size."""
        return Engine(
            self.pair,
            self.settings.executor,
            Budget.on(self.pair.device, prompts=self.settings.batch_size),
        )

    @property
    def ranks(self) -> bool:
        """Whether sites are ranked and the best of them grafted."""
        return any(parse_top(label) is not None for label in self.configurations)

    @property
    def scans(self) -> bool:
        """Whether a method that intervenes is made to rank, by its effect at each site alone."""
        return self.ranks and isinstance(self.localizer, InterventionLocalizer)

    @property
    def budgets(self) -> Mapping[str, float]:
        """Budgets in per cent, of the configurations that have one."""
        labels = budget_labels(self.suite.budgets)
        return {label: budget for label, budget in labels.items() if label in self.configurations}

    @property
    def truth(self) -> Truth | None:
        """Where the facts were planted, where the suite compares with it."""
        return truth_of(self.spec) if self.suite.truth else None

    @property
    def all_prompts(self) -> list[Prompt]:
        """The prompts of all templates."""
        return [prompt for some in self.prompts.values() for prompt in some]

    @cached_property
    def halves(self) -> Halves:
        """The facts in two halves."""
        return split_facts(self.prompts, self.spec.seed)

    @cached_property
    def identity(self) -> Identity:
        """What the record is of.

        Raises:
            InputError: A name or a parameter is a place on this machine, or looks like a credential.
        """
        try:
            return self._identity()
        except ValidationError as error:
            reason = "; ".join(
                found["msg"].removeprefix("Value error, ") for found in error.errors()
            )
            raise InputError(
                f"this run cannot be recorded: {reason}; give a name in its place"
            ) from error

    def _identity(self) -> Identity:
        hashes = dict(self.pair.weight_hashes)
        return Identity(
            dataset=DatasetRef(
                name=self.dataset.name, hash=self.dataset.content_hash, n=len(self.dataset.facts)
            ),
            prompts={name: prompt_hash(name, self.dataset) for name in self.prompts},
            weights=WeightHashes(recipient=hashes.pop("recipient"), donors=hashes),
            tokenizer=self.pair.tokenizer_hash,
            localizer=LocalizerRef(
                name=self.localizer.name, version=self._version, parameters=self._parameters
            ),
            configurations=tuple(self.configurations),
            metric_version=METRIC_VERSION,
            dtype=str(self.pair.dtype).removeprefix("torch."),
            seeds=(self.spec.seed,),
            limit=self.spec.limit,
            truth=self.truth,
            ranking_version=RANKING_VERSION if self.ranks else None,
        )

    @property
    def _parameters(self) -> dict[str, Any]:
        """The localizer's parameters as JSON, which has no tuples.

        Raises:
            InputError: One is no JSON value.
        """
        given = self.localizer.parameters()
        try:
            return dict(json.loads(canonical_json(given)))
        except (TypeError, ValueError) as error:
            told = f"expected numbers, texts, None, and lists of these ({error})"
            raise InputError(
                f"localizer {self.localizer.name!r}: its parameters do not fit into a record: {told}"
            ) from error

    @property
    def _version(self) -> str:
        """The localizer's version, whether it is scanned, and where its code is not kgbench's, which state of it."""
        return " ".join(
            filter(
                None,
                (
                    self.localizer.version,
                    "scan" if self.scans else "",
                    fingerprint(self.spec.localizer),
                ),
            )
        )


def prepare_job(spec: Spec, settings: Settings, pairs: Pairs | None = None) -> Job:
    """Check everything that can be checked cheaply, then load the models and check the rest.

    Args:
        spec: What is evaluated.
        settings: How.
        pairs: Where models are loaded, and perhaps are already.

    Raises:
        InputError: Something is wrong.
    """
    asked = check(spec)
    spec = with_donor(spec, asked.dataset)
    localizer = create(spec.localizer, localizer_arguments(spec), spec.seed)
    if isinstance(localizer, ScoringLocalizer) and not (
        asked.suite.budgets or asked.suite.truth or spec.grafts
    ):
        raise InputError(
            f"suite {spec.suite!r} grafts what it names, and {localizer.name!r} ranks sites instead; "
            "choose another --suite, such as pathways, or a --localizer that intervenes, such as dynamic_graft"
        )
    wanted = job_configurations(spec, asked.suite, localizer)
    pair = (pairs or Pairs()).load(spec, settings)
    _check_lengths(pair, asked.prompts)
    job = Job(spec, settings, asked.dataset, asked.prompts, asked.suite, wanted, localizer, pair)
    if job.ranks:
        split_facts(asked.prompts, spec.seed)
    for label in (label for label in wanted if parse_top(label) is None):
        for some in asked.prompts.values():
            graft_treatments(
                pair, some[:1], parse_configuration(label)
            )  # one that does not fit is found here, before the long part
    return job


def job_configurations(
    spec: Spec, suite: Suite, localizer: AbstractLocalizer
) -> dict[str, str | None]:
    """Each configuration of a job and its complement."""
    ranks = isinstance(localizer, ScoringLocalizer) or suite.scan
    grafts = spec.grafts or (suite.grafts if isinstance(localizer, InterventionLocalizer) else ())
    found = configurations(grafts, spec.layers)
    if localizer.floor == "destroyed_donor":
        found |= {"ALL": "NONE", "NONE": "ALL"}
    if ranks:
        found |= dict.fromkeys(budget_labels(suite.budgets))
        found |= {BEST: REST, REST: BEST} if suite.truth else {}
    return found


def _check_lengths(pair: ModelPair, prompts: Mapping[str, Sequence[Prompt]]) -> None:
    most = getattr(pair.recipient.config, "max_position_embeddings", None)
    for prompt in (p for some in prompts.values() for p in some):
        if most is not None and (n := len(pair.encoded(prompt).ids)) > most:
            raise InputError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r} has {n} tokens; the model reads at most {most}"
            )
