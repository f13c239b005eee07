"""Cost of a localizer, timed by pytest-benchmark, against a plain forward of the same prompts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from statistics import median

import pytest

from kgbench.errors import check_choice
from kgbench.testing.session import in_a_line, session_of


@pytest.fixture
def time_localizer(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """A function that times the localizer on the facts in a prompt, given by name.

    A method that intervenes is fitted and run under all configurations; one that scores ranks all
    sites. Each round follows a plain forward of the same prompts, and `extra_info` holds the ratio
    of the medians over rounds. Groups are prompts, and names do not depend on the localizer, so
    that `--benchmark-compare` compares one with another, or with its last version.
    """
    if not request.config.pluginmanager.has_plugin("benchmark"):
        pytest.fail(
            "time_localizer times with pytest-benchmark, which is not there: pip install "
            "pytest-benchmark",
            pytrace=False,
        )
    request.getfixturevalue("localizer")  # which must not change models or process
    benchmark = request.getfixturevalue("benchmark")

    def timed(prompt: str) -> None:
        from kgbench.engine.engine import choosing
        from kgbench.localizers import InterventionLocalizer
        from kgbench.localizers._base import asked
        from kgbench.runner import Settings
        from kgbench.runner.job import prepare_job
        from kgbench.runner.measure import (
            GROUP,
            chunks,
            counted,
            expressed,
            plain_seconds,
            run_group,
            score_sites,
        )

        session = session_of(request.config)
        with in_a_line():
            job = prepare_job(session.spec, Settings(), session.pairs)
            check_choice("prompt", prompt, job.prompts)
        method, pair, prompts = job.localizer, job.pair, job.prompts[prompt]
        measurement = expressed(replace(job, prompts={prompt: prompts}))

        def work() -> None:
            if isinstance(method, InterventionLocalizer):
                fitted = method.fitted(pair, asked(method, pair, prompts))
                for group in chunks(prompts, GROUP):
                    run_group(replace(measurement, method=fitted), group, plain_each=0.0)
            else:
                with choosing(job.engine.executor, job.engine.budget):
                    score_sites(method, pair, prompts)

        with counted(pair) as count:
            work()  # the first, whose start-up is no part of the cost
        benchmark.group = prompt
        benchmark.extra_info.update(
            localizer=method.name,
            version=" ".join(filter(None, (method.version, job.code))),
            kind=method.kind,
            model=pair.name,
            device=pair.device.type,
            prompts=len(prompts),
            **vars(count),
        )
        plain = list[float]()
        benchmark.pedantic(
            work,
            setup=lambda: plain.append(plain_seconds(job.engine, prompts)),
            rounds=int(request.config.getoption("benchmark_min_rounds")),
        )
        if benchmark.stats is not None:  # not with --benchmark-disable
            ratio = benchmark.stats.stats.median / median(plain)
            benchmark.extra_info["ratio_to_plain_forward"] = ratio

    return timed
