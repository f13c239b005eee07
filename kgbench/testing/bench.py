"""Cost of a localizer, timed by pytest-benchmark, against a plain forward of the same prompts.

    pytest --pyargs kgbench.testing.bench --kgbench-localizer NAME [--kgbench-model tiny-gemma]

One group per prompt. Names and groups are the same for every localizer, so that
`--benchmark-compare` compares one with another, or with its last version; `extra_info` names it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import pytest

from kgbench.testing.claim_session import running
from kgbench.testing.session import guarding, in_a_line

if TYPE_CHECKING:
    from pytest_benchmark.fixture import BenchmarkFixture

    from kgbench.data import Prompt
    from kgbench.localizers import InterventionLocalizer
    from kgbench.runner.job import Job


@pytest.fixture(scope="module")
def job(pytestconfig: pytest.Config) -> Iterator[Job]:
    """The localizer on the model pair."""
    from kgbench.runner import Settings
    from kgbench.runner.job import prepare_job
    from kgbench.runner.measure import warm_up

    with in_a_line(), guarding(pytestconfig) as watch:
        session = running(pytestconfig)
        made = prepare_job(session.spec, Settings(), session.pairs)
        watch.add(made.pair)
        warm_up(made)
        yield made


def test_plain_forward(
    prompt: str, job: Job, benchmark: BenchmarkFixture, pytestconfig: pytest.Config
) -> None:
    """One forward of the recipient over the prompts, in batches."""
    import torch

    from kgbench.engine.batch_rows import plain
    from kgbench.runner.measure import now

    plan = job.engine.plan(job.prompts[prompt], ["PRE"])

    @torch.inference_mode()
    def forward() -> int:
        rows = plain(job.engine.wiring, plan, job.engine.budget)
        now(job.pair)
        return rows

    forward()
    _label(benchmark, prompt)
    rows = benchmark.pedantic(forward, rounds=_rounds(pytestconfig))  # type: ignore[no-untyped-call]  # it has no types
    benchmark.extra_info.update(
        model=job.pair.name, prompts=len(job.prompts[prompt]), token_rows=rows
    )


def test_localizer(
    prompt: str, job: Job, benchmark: BenchmarkFixture, pytestconfig: pytest.Config
) -> None:
    """A method that intervenes, fitted, under all configurations; a method that scores, all sites.

    Each round is timed after a plain forward of the same prompts, and the ratio is the median over
    rounds.
    """
    from kgbench.localizers import fingerprint
    from kgbench.runner.measure import counted, now, plain_seconds

    prompts = job.prompts[prompt]
    work, seconds, plain = _work(job, prompts), list[float](), list[float]()

    def plain_first() -> None:
        plain.append(plain_seconds(job.engine, prompts))

    def timed() -> None:
        started = now(job.pair)
        work()
        seconds.append(now(job.pair) - started)

    with counted(job.pair) as count:
        work()
    _label(benchmark, prompt)
    benchmark.pedantic(timed, setup=plain_first, rounds=_rounds(pytestconfig))  # type: ignore[no-untyped-call]
    benchmark.extra_info.update(
        localizer=job.localizer.name,
        version=" ".join(filter(None, (job.localizer.version, fingerprint(job.spec.localizer)))),
        kind=job.localizer.kind,
        model=job.pair.name,
        device=job.pair.device.type,
        prompts=len(prompts),
        forwards=count.forwards,
        token_rows=count.token_rows,
        ratio_to_plain_forward=median(own / one for own, one in zip(seconds, plain, strict=True)),
    )


def _work(job: Job, prompts: Sequence[Prompt]) -> Callable[[], object]:
    """The timed work of a method."""
    from kgbench.engine.engine import choosing
    from kgbench.localizers import InterventionLocalizer
    from kgbench.runner.measure import score_sites

    if isinstance(job.localizer, InterventionLocalizer):
        return _interventions(job, job.localizer, prompts)

    def work() -> None:
        with choosing(job.engine.executor, job.engine.budget):
            score_sites(job.localizer, job.pair, prompts)

    return work


def _interventions(
    job: Job, method: InterventionLocalizer, prompts: Sequence[Prompt]
) -> Callable[[], object]:
    from kgbench.localizers._base import asked
    from kgbench.runner.measure import expressed

    workload = replace(job.workload, prompts={prompts[0].name: prompts})
    applicable = expressed(replace(job, workload=workload))

    def work() -> None:
        measurement = replace(
            applicable, method=method.fitted(job.pair, asked(method, job.pair, prompts))
        )
        for start in range(0, len(prompts), measurement.at_once):
            plan, _ = measurement.plan(prompts[start : start + measurement.at_once])
            for _ in job.engine.run(plan):
                pass

    return work


def _label(benchmark: BenchmarkFixture, prompt: str) -> None:
    """Group and name, which must not depend on where the package lies or pytest is called."""
    benchmark.group, benchmark.fullname = prompt, f"kgbench.testing.bench::{benchmark.name}"


def _rounds(config: pytest.Config) -> int:
    return int(config.getoption("benchmark_min_rounds"))
