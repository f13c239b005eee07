"""What a specification asks for, read and checked as far as that needs no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kgbench.data import Dataset, Prompt
from kgbench.effects import METRICS
from kgbench.errors import UnknownNameError
from kgbench.localizers import check_name
from kgbench.models import catalog
from kgbench.runner.prompts import job_dataset, job_prompts
from kgbench.runner.spec import Spec
from kgbench.runner.suites import Suite, load_suite
from kgbench.runner.truth import check_truth

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
        UnknownNameError: A model, data set, prompt, suite or metric does not exist.
        InputError: Something else is wrong with it.
    """
    if spec.metric not in (*METRICS, "mrr"):
        raise UnknownNameError("metric", spec.metric, (*METRICS, "mrr"))
    if spec.model is not None:
        catalog.entry(spec.model)
    check_name(spec.localizer)
    suite = load_suite(spec.suite)
    check_truth(spec)
    dataset = job_dataset(spec)
    return Workload(dataset, job_prompts(spec, dataset), suite)
