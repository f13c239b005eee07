"""What an audit says of wordings, seeds and facts, and of what can be told apart."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stored_runs
from scipy.stats import nct, norm, t

from kgbench.analyses._audit_figures import AuditedRun, AuditSettings, audited, methods_of
from kgbench.analyses.audit import audit_report, wordings_of
from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.errors import InputError
from kgbench.report import to_text
from kgbench.stats import linearised, resample
from kgbench.stats.variance import (
    SOURCES,
    Detectable,
    components,
    detectable_between,
    detectable_by_assumption,
    multiplier,
)

TRUE: Mapping[str, float] = dict(zip(SOURCES, (1.0, 0.25, 0.16, 0.5, 0.1, 0.04, 0.36), strict=True))
"""Components of the tables that are drawn."""

AXES: Mapping[str, tuple[int, ...]] = dict(
    zip(SOURCES, ((0,), (1,), (2,), (0, 1), (0, 2), (1, 2), (0, 1, 2)), strict=True)
)


def table(
    rng: np.random.Generator, shape: tuple[int, int, int], true: Mapping[str, float] = TRUE
) -> np.ndarray[Any, Any]:
    """A crossed table of facts, wordings and seeds with these components."""
    found = np.zeros(shape)
    for source, variance in true.items():
        size = [n if axis in AXES[source] else 1 for axis, n in enumerate(shape)]
        found = found + sqrt(variance) * rng.standard_normal(size)
    return found


def once(n: int) -> np.ndarray[Any, Any]:
    """A resample in which every fact comes once."""
    return np.ones((1, n))


def mean_square(cube: np.ndarray[Any, Any], source: str) -> float:
    """As the textbook has it: the interaction contrasts of the means over all other axes, squared
    and summed, over their freedom.
    """
    kept = AXES[source]
    part = cube.mean(axis=tuple(set(range(3)) - set(kept)), keepdims=True)
    for axis in kept:
        part = part - part.mean(axis=axis, keepdims=True)
    freedom = np.prod([cube.shape[axis] - 1 for axis in kept])
    return float((np.broadcast_to(part, cube.shape) ** 2).sum() / freedom)


def test_components_are_unbiased() -> None:
    """Over many tables of known components the estimates average to them, all seven of them."""
    rng = np.random.default_rng(0)
    drawn = [components(table(rng, (12, 4, 3)), once(12)) for _ in range(1500)]
    for source, variance in TRUE.items():
        values = np.array([one.value(source) for one in drawn])
        assert abs(values.mean() - variance) < 4 * values.std() / sqrt(len(values)), source


def test_components_are_the_analysis_of_variance() -> None:
    """The expected mean squares of a crossed design, made of the estimates, are the mean squares of
    the table.
    """
    cube = table(np.random.default_rng(1), (9, 4, 3))
    found = components(cube, once(9))
    for source, axes in AXES.items():
        expected = sum(
            found.value(other)
            * np.prod([n for axis, n in enumerate(cube.shape) if axis not in AXES[other]])
            for other in SOURCES
            if set(axes) <= set(AXES[other])
        )
        assert mean_square(cube, source) == pytest.approx(expected), source


def test_a_bootstrap_of_facts_is_unbiased() -> None:
    """The draws of a component average to its estimate, where a bootstrap of mean squares would add
    the noise of facts.
    """
    cube = table(
        np.random.default_rng(2), (30, 4, 3), {**TRUE, "wordings": 0.0, "facts:wordings": 4.0}
    )
    found = components(cube, resample(30, 4000))
    for source in SOURCES:
        draws = found.drawn[source][1:]
        assert abs(draws.mean() - found.value(source)) < 5 * draws.std() / sqrt(
            len(draws)
        ) + 0.01 * abs(found.value(source)), source


def test_what_is_the_same_does_not_vary() -> None:
    """Identical wordings have no variance between them, nor identical seeds; one alone has an
    undefined one.
    """
    cube = table(np.random.default_rng(3), (20, 1, 1))
    found = components(np.tile(cube, (1, 3, 2)), resample(20, 50))
    for source in set(SOURCES) - {"facts"}:
        assert found.value(source) == pytest.approx(0, abs=1e-12)
    alone = components(cube, resample(20, 50))
    assert alone.value("facts") == pytest.approx(float(cube.var(ddof=1)))
    assert "wordings" in str(alone.figure("wordings").undefined) and "seeds" in str(
        alone.figure("facts:seeds").undefined
    )


def test_nothing_is_clamped() -> None:
    """A component whose estimate is below 0 is reported below 0."""
    cube = np.array(
        [[[1.0], [-1.0]], [[-1.0], [1.0]], [[0.5], [-0.5]], [[-0.5], [0.5]]]
    )  # all wordings have the same mean
    found = components(cube, resample(4, 200)).figure("wordings")
    assert found.value is not None and found.value < 0


def test_linearised_values_carry_the_ratio() -> None:
    """Their mean is the ratio of means, and their standard error that of its bootstrap."""
    rng = np.random.default_rng(4)
    bottom = (rng.random(400) < 0.9).astype(int)
    top = bottom * (rng.random(400) < 0.4)
    values, counts = linearised(top, bottom), resample(400, 4000)
    assert values.mean() == pytest.approx(top.mean() / bottom.mean())
    assert values.std(ddof=1) / 20 == pytest.approx(
        float(((counts @ top) / (counts @ bottom)).std()), rel=0.05
    )


def test_multiplier() -> None:
    """With a known standard error it is z(.975) + z(.8); with an estimated one, the noncentrality
    of a t test with that power.
    """
    assert multiplier() == pytest.approx(norm.ppf(0.975) + norm.ppf(0.8))
    for freedom in (2.0, 4.0, 30.0):
        bound, found = t.ppf(0.975, freedom), multiplier(freedom)
        assert nct.sf(bound, freedom, found) == pytest.approx(0.8, abs=2e-3)
    assert multiplier(1e6) == pytest.approx(multiplier(), abs=1e-3)


def test_it_shrinks_with_facts() -> None:
    """Four times the facts halve the smallest difference; the facts that it takes are those that it
    was found with.
    """
    one, four = Detectable(0.0, 0.3, 100), Detectable(0.0, 0.3, 400)
    assert one.smallest is not None and four.smallest == pytest.approx(one.smallest / 2)
    assert one.facts_for(one.smallest * (1 + 1e-9)) == 100
    stuck = Detectable(fixed=0.01, per_fact=0.3, n=100)
    assert "no number of facts" in str(stuck.facts_for(0.05))
    cube = table(np.random.default_rng(5), (50, 3, 2))
    many = np.tile(cube, (4, 1, 1))
    small, large = (
        detectable_by_assumption(some, components(some, once(len(some))), 0.5)
        for some in (cube, many)
    )
    for scope in ("facts", "sample"):
        first, second = small[scope].smallest, large[scope].smallest
        assert (
            first is not None
            and second is not None
            and first / second == pytest.approx(2, rel=0.01)
        )


def test_power_on_the_same_facts() -> None:
    """With a true difference of that size, a paired test of 5 % rejects in 80 % of draws; unpaired
    with its own.
    """
    rng, n, correlation = np.random.default_rng(6), 80, 0.7
    cube = table(rng, (4000, 1, 1))
    found = detectable_by_assumption(cube, components(cube, once(4000)), correlation)
    sd = float(cube.std(ddof=1))
    for scope, shared in (("facts", correlation), ("sample", 0.0)):
        size = multiplier() * sqrt(found[scope].per_fact / n)
        base = rng.standard_normal((3000, n))
        other = shared * base + sqrt(1 - shared**2) * rng.standard_normal((3000, n))
        apart = sd * (other - base) + size
        rejected = np.abs(apart.mean(1)) > norm.ppf(0.975) * apart.std(axis=1, ddof=1) / sqrt(n)
        assert abs(rejected.mean() - 0.8) < 0.05


def test_power_over_wordings() -> None:
    """So it is where wordings are drawn anew each time, with few of them."""
    rng, n, wordings, true = (
        np.random.default_rng(7),
        40,
        4,
        {"facts": 1.0, "wordings": 0.2, "facts:wordings": 1.0},
    )
    facts, asked, both = wordings * 1.0 + 1.0, n * 0.2 + 1.0, 1.0
    se = sqrt((facts + asked - both) / (n * wordings))
    freedom = (facts + asked - both) ** 2 / (
        facts**2 / (n - 1) + asked**2 / (wordings - 1) + both**2 / ((n - 1) * (wordings - 1))
    )
    size, rejected = multiplier(freedom) * se, []
    for _ in range(800):
        apart = size + table(rng, (n, wordings, 1), true)
        nothing = components(apart, once(n))
        found = detectable_between(apart, np.zeros_like(apart), (nothing, nothing))["wordings"]
        rejected.append(abs(apart.mean()) > t.ppf(0.975, found.freedom) * sqrt(found.variance))
    assert abs(np.mean(rejected) - 0.8) < 0.05


def test_measured_beats_assumed() -> None:
    """Two methods that agree on most facts are told apart by less than two that are assumed to; one
    wording says nothing of others.
    """
    rng = np.random.default_rng(8)
    first = table(rng, (60, 3, 2))
    second = first + 0.1 * rng.standard_normal(first.shape)
    of = components(first, once(60)), components(second, once(60))
    measured, assumed = (
        detectable_between(first, second, of),
        detectable_by_assumption(first, of[0], 0.5),
    )
    assert measured["sample"].per_fact == pytest.approx(assumed["sample"].per_fact, rel=0.05)
    again = detectable_between(
        first[:, :1, :1],
        second[:, :1, :1],
        tuple(components(x[:, :1, :1], once(60)) for x in (first, second)),
    )
    assert again["facts"].per_fact < 0.05 * assumed["facts"].per_fact
    assert again["wordings"].undefined and again["seeds"].undefined
    with_seeds = assumed["seeds"].smallest
    assert (
        with_seeds is not None
        and assumed["facts"].smallest is not None
        and with_seeds > assumed["facts"].smallest
    )


def part(seed: int = 0, rows_seed: int = 0, **changes: Any) -> AuditedRun:
    """A record of a run that never happened, under a seed."""
    return AuditedRun(*stored_runs.stored(seed=rows_seed, seeds=(seed,), **changes))


def named(name: str, **parameters: Any) -> dict[str, Any]:
    """A localizer's part of an identity."""
    return {"localizer": {"name": name, "version": "1", "parameters": parameters}}


def test_a_method_that_draws_nothing() -> None:
    """Its seeds have no variance, whether one was run or two, and the text says so."""
    for parts in ([part()], [part(0), part(1)]):
        found = audited(methods_of(parts), AuditSettings(draws=200))
        for one in found.quantities["dynamic_graft"]:
            assert one.seeds_sd.value == 0
            assert not one.parts or one.parts["seeds"].value == pytest.approx(0, abs=1e-12)
        assert "dynamic_graft draws nothing at random" in to_text(
            audit_report(found, "this", whole=True)
        )
    assert "came out the same under all seeds" in to_text(audit_report(found, "this", whole=True))


def test_values_are_those_of_the_record() -> None:
    """On each wording the recovery of an audit is the sufficiency of the record."""
    one = part()
    found = audited(methods_of([one]))
    by_label = {quantity.label: quantity for quantity in found.quantities["dynamic_graft"]}
    rows = [row for row in one.record.rows if row.graft in by_label]
    assert len(rows) == 2 * len(by_label)
    for row in rows:
        figure = by_label[row.graft].by_wording[row.prompt]
        assert figure.value == pytest.approx(row.sufficiency.value, abs=1e-5)


def test_seeds_that_move_a_method() -> None:
    """A method that came out otherwise under another seed has a spread over seeds, and needs a
    larger difference to hold for others.
    """
    method = named("drawing", seed=0)
    worse = AuditedRun(
        *stored_runs.stored(stored_runs.WORSE, seeds=(1,), **named("drawing", seed=1))
    )
    found = audited(methods_of([part(**method), worse]), AuditSettings(draws=200))
    one = next(one for one in found.quantities["drawing"] if one.label == "FE+LT")
    assert (
        set(one.by_seed) == {"0", "1"}
        and one.seeds_sd.value is not None
        and one.seeds_sd.value > 0.2
    )
    same, drawn = one.detectable["facts"].smallest, one.detectable["seeds"].smallest
    assert same is not None and drawn is not None and drawn > 5 * same


def test_a_drawing_method_under_one_seed() -> None:
    """Nothing is known of its other seeds, nor of its difference from a method that was run under
    several.
    """
    methods = methods_of(
        [
            part(**named("drawing", seed=0)),
            *(part(seed, seed, **named("other", seed=seed)) for seed in (0, 1)),
        ]
    )
    found = audited(methods, AuditSettings(draws=50))
    some = [*found.quantities["drawing"], *found.differences["drawing", "other"]]
    assert some and all(one.detectable["seeds"].smallest is None for one in some)
    assert any(
        one.detectable["facts"].smallest is not None
        for one in found.differences["drawing", "other"]
    )


def test_facts_that_not_all_have_are_told() -> None:
    """Runs over other facts are audited over those in common, and how many are left out is said."""
    fewer = AuditedRun(*stored_runs.stored(n=40, **named("fewer")))
    first, second = methods_of([part(), fewer])
    assert first.n == second.n == 40
    assert (
        "dynamic_graft: 20 of 60 facts left out, for not every run and wording has them"
        in first.notes
        and not second.notes
    )


def test_hardly_known_is_undefined() -> None:
    """Where the parts of an estimated variance all but cancel, there are less than one degree of
    freedom, and no smallest difference.
    """
    rng = np.random.default_rng(0)
    for _ in range(2000):
        apart = table(rng, (4, 2, 1), {"facts:wordings": 1.0})
        found = detectable_between(apart, np.zeros_like(apart), (components(apart, once(4)),) * 2)[
            "wordings"
        ]
        assert found.undefined or found.freedom >= 1
        if "degree of freedom" in str(found.undefined):
            return
    pytest.fail("no table was drawn whose parts all but cancel")


def test_two_methods() -> None:
    """Their difference is the second's recovery less the first's, and what can be told apart is
    measured.
    """
    parts = [part(), AuditedRun(*stored_runs.stored(stored_runs.WORSE, **named("worse")))]
    found = audited(methods_of(parts), AuditSettings(draws=200))
    values = [
        next(one.value.value for one in found.quantities[name] if one.label == "LT")
        for name in ("dynamic_graft", "worse")
    ]
    apart = next(one for one in found.differences["dynamic_graft", "worse"] if one.label == "LT")
    assert None not in values and apart.value.value == pytest.approx(values[1] - values[0])
    assert apart.detectable["facts"].smallest is not None
    same = audited(
        methods_of([part(), part(**named("twin"))]), AuditSettings(draws=50)
    ).differences["dynamic_graft", "twin"]
    assert all(
        one.value.value == 0 and "0 of 60 facts" in str(one.detectable["facts"].undefined)
        for one in same
    )


@pytest.mark.parametrize(
    ("second", "match"),
    [
        (
            lambda: part(1, **stored_runs.OTHER),
            "differ in weights.recipient: .*weights.donors.sft: ",
        ),
        (
            lambda: part(1, prompts={"headline": "other", "qa": "q" * 64}),
            "'headline' has one wording",
        ),
        (
            lambda: part(0, limit=60),
            "two runs of dynamic_graft have the prompt 'headline' under seed 0",
        ),
    ],
)
def test_runs_that_do_not_go_together(second: Callable[[], AuditedRun], match: str) -> None:
    """Other weights, another wording under the same name, and a cell that comes twice are refused,
    and named.
    """
    with pytest.raises(InputError, match=match):
        methods_of([part(), second()])


def test_wordings() -> None:
    """All prompts that ask for the same, but no earlier versions; a data set's own, and those that
    are added.
    """
    movies = wordings_of(load_dataset("tiny_movies"))
    assert {"headline", "qa"} < set(movies) and not any(name.endswith("_v1") for name in movies)
    assert wordings_of(load_dataset("battles")) == ("battle_year", "battle_question")


def test_command(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A pair is audited, each wording under each seed a record; the same records by name give the
    same figures without running.
    """
    asked = [
        "audit",
        "--model",
        "tiny-gpt2",
        "--limit",
        "20",
        "--prompt",
        "headline,qa",
        "--graft",
        "LT",
        "--output-dir",
        str(tmp_path),
    ]
    assert main([*asked, "--seeds", "2", "--json", "-q"]) == 0
    computed = json.loads(capsys.readouterr().out)
    assert computed["n"] == 20 and len(computed["runs"]) == 4
    (method,) = computed["methods"]
    assert (
        method["wordings"] == ["headline", "qa"]
        and method["seeds"] == ["0", "1"]
        and not method["drawn"]
    )
    rows = {row["graft"]: row for row in method["rows"]}
    assert {"LT", "LT^C"} <= set(rows) and all(
        row["seeds_sd"]["value"] == 0 for row in rows.values()
    )
    assert computed["verdict"].startswith("dynamic_graft: ")
    assert main(["audit", *computed["runs"], "--json", "--output-dir", str(tmp_path)]) == 0
    stored = json.loads(capsys.readouterr().out)
    assert {**stored, "runs": None} == {**computed, "runs": None}
    assert main(["audit", *computed["runs"][:2], "--variance", "--output-dir", str(tmp_path)]) == 0
    text = capsys.readouterr().out
    assert (
        "2 wordings are few" in text
        and "2 wordings, 1 seed" in text
        and max(map(len, text.splitlines())) <= 100
    )


def test_runs_need_no_torch(tmp_path: Path) -> None:
    """Records are audited where nothing could be run; what comes out below 0 is said."""
    folder = stored_runs.folder(tmp_path)
    line = ["audit", str(folder), "--variance"]
    code = (
        f"import sys; from kgbench.cli import main; assert main({line}) == 0 and 'torch' not in"
        " sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "variance between wordings came out below 0" in done.stdout


def test_what_it_would_take(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A dry run writes nothing; a ranking is run under three seeds."""
    asked = [
        "audit",
        "--model",
        "tiny-gpt2",
        "--limit",
        "8",
        "--prompt",
        "qa",
        "--output-dir",
        str(tmp_path),
        "--dry-run",
        "--json",
    ]
    assert main([*asked, "--localizer", "random"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["seeds"] == 3 and "splits the facts" in answer["why"] and answer["forwards"] > 0
    assert answer["memory_bytes"] > 0 and answer["fits"] and answer["disk_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_what_a_large_pair_would_take(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hours are hours; memory, disk, downloads and what the time rests on are told, as those of one
    evaluation are.
    """
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert main(["audit", "--model", "gemma-2b", "--prompt", "qa,headline", "--dry-run"]) == 0
    text = " ".join(capsys.readouterr().out.split())
    assert re.search(
        r"memory (fits|does not fit): needs [\d.]+ GiB, [\d.]+ GiB free disk about [\d.]+ MiB for"
        r" the records, and",
        text,
    )
    assert re.search(
        r"GiB to download time about [\d.]+ h, less what exists already from the catalog's number"
        r" of parameters",
        text,
    )


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ([], "which model"),
        (["somewhere", "--seeds", "3"], "--seeds says what to run"),
        (["--model", "tiny-gpt2", "--prompt", "qq"], "unknown prompt 'qq'"),
        (["--model", "tiny-gpt2", "--template", "mine=The {first_actor} of"], "add --dataset"),
    ],
)
def test_mistakes(arguments: list[str], match: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They are told in a line before anything is loaded."""
    assert main(["audit", *arguments]) == 2
    assert match in capsys.readouterr().err
