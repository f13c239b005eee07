"""Cost of a localizer, timed by pytest-benchmark, against a plain forward of the same prompts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

import pytest

from kgbench.errors import check_choice
from kgbench.testing.session import guarding, in_a_line, session_of

if TYPE_CHECKING:
    from kgbench.data import Prompt
    from kgbench.localizers import InterventionLocalizer
    from kgbench.runner.job import Job


@pytest.fixture(scope="session")
def kgbench_job(pytestconfig: pytest.Config) -> Iterator[Job]:
    """The localizer on the model pair that the options name."""
    from kgbench.runner import Settings
    from kgbench.runner.job import prepare_job
    from kgbench.runner.measure import warm_up

    with in_a_line(), guarding(pytestconfig) as watch:
        session = session_of(pytestconfig)
        session.check()
        job = prepare_job(session.spec, Settings(), session.pairs)
        watch.add(job.pair)
        warm_up(job)
        yield job


@pytest.fixture
def time_localizer(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that times the localizer on the facts in a prompt, given by name.

    A method that intervenes is fitted and run under all configurations; one that scores ranks all
    sites. Each round follows a plain forward of the same prompts, and `extra_info` holds the median
    ratio over rounds. Groups are prompts, and names do not depend on the localizer, so that
    `--benchmark-compare` compares one with another, or with its last version.
    """
    if not request.config.pluginmanager.has_plugin("benchmark"):
        pytest.fail(
            "time_localizer times with pytest-benchmark, which is not there: pip install "
            "pytest-benchmark",
            pytrace=False,
        )
    job: Job = request.getfixturevalue("kgbench_job")
    benchmark = request.getfixturevalue("benchmark")

    def timed(prompt: str) -> None:
        from kgbench.localizers import fingerprint
        from kgbench.runner.measure import counted, now, plain_seconds

        with in_a_line():
            check_choice("prompt", prompt, job.prompts)
        prompts = job.prompts[prompt]
        work, seconds, plain = _work(job, prompts), list[float](), list[float]()

        def round_of_work() -> None:
            started = now(job.pair)
            work()
            seconds.append(now(job.pair) - started)

        with counted(job.pair) as count:
            work()
        benchmark.group = prompt
        rounds = int(request.config.getoption("benchmark_min_rounds"))
        benchmark.pedantic(
            round_of_work,
            setup=lambda: plain.append(plain_seconds(job.engine, prompts)),
            rounds=rounds,
        )
        version = filter(None, (job.localizer.version, fingerprint(job.spec.localizer)))
        benchmark.extra_info.update(
            localizer=job.localizer.name,
            version=" ".join(version),
            kind=job.localizer.kind,
            model=job.pair.name,
            device=job.pair.device.type,
            prompts=len(prompts),
            forwards=count.forwards,
            token_rows=count.token_rows,
            ratio_to_plain_forward=median(map(float.__truediv__, seconds, plain)),
        )

    return timed


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
