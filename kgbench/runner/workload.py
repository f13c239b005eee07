"""What a specification asks for, read and checked as far as that needs no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgbench.data import Dataset, Prompt, load_prompts, prompt_names
from kgbench.data.templates import MARKS
from kgbench.effects import METRICS
from kgbench.errors import InputError, RegionError, UnknownNameError
from kgbench.localizers import check_name
from kgbench.models import catalog
from kgbench.models.types import check_dtype
from kgbench.runner.donors import donor_names, with_donor
from kgbench.runner.prompts import job_dataset, job_prompts
from kgbench.runner.spec import Spec
from kgbench.runner.suites import Suite, load_suite
from kgbench.runner.truth import check_truth
from kgbench.sites import BASELINES, RECIPIENT, parse_graft

__all__ = ["Workload", "check"]


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
            (prompt,) = load_prompts(dataset, [name], limit=1)
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
