"""Figures over facts and training seeds: what their intervals hold, and that they follow from rows
alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import fake_reproduction
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from kgbench.cli import main
from kgbench.errors import DataError, InputError
from kgbench.estimate import Estimate
from kgbench.models.catalog import CARD, HOME, read_pair_card
from kgbench.models.tensors import stored_hash
from kgbench.paper.figure_claims import figures_from, figures_there, lacking
from kgbench.paper.figure_parts import costs, make, parts_of
from kgbench.paper.figure_specs import page
from kgbench.paper.ingredients import Ingredients
from kgbench.paper.pair_rows import (
    ROWS,
    SCHEMA,
    Donor,
    PairRows,
    joined,
    read_measured,
    write_measured,
)
from kgbench.paper.paper_report import REPORT, report_text, write_report
from kgbench.paper.training_seeds import (
    between_configurations,
    difference_over,
    mean_over,
    median_rank_over,
    over_seeds,
)
from kgbench.runner import Settings
from kgbench.stats import mean
from kgbench.stats.intervals import median
from kgbench.stats.scores import PromptColumns
from kgbench.zoo.tiny_pairs import Recipe, build_recipe, recipe

FIGURES = ["figure-2", "figure-8", "figure-4"]


def seeds_of(rates: Sequence[float], n: int = 60, seed: int = 0) -> tuple[PromptColumns, ...]:
    """A prompt under as many seeds as there are rates of LT; PRE misses and SFT hits nearly all."""
    rng = np.random.default_rng(seed)
    ids = np.array([f"f/{i:03}" for i in range(n)])

    def column(rate: float) -> dict[str, np.ndarray]:
        return {"fact": ids, "rank": np.where(rng.random(n) < rate, 1, rng.integers(6, 900, n))}

    return tuple(
        PromptColumns("headline", {"PRE": column(0.02), "SFT": column(0.98), "LT": column(rate)})
        for rate in rates
    )


# ---------------------------------------------------------------------------------------- intervals


@given(
    low=st.floats(0, 0.5),
    high=st.floats(0, 0.5),
    by_seed=st.lists(st.floats(0, 1), min_size=2, max_size=6),
)
def test_seeds_only_widen(low: float, high: float, by_seed: list[float]) -> None:
    """The value stays; both ends move outwards as far as seeds differ, whatever their order, and
    not at all where they do not.
    """
    value = float(np.mean(by_seed))
    facts = Estimate(value, value - low, value + high, 50)
    found = over_seeds(facts, np.array(by_seed))
    assert found.value == value and found.n == 50
    assert found.low is not None and found.high is not None
    assert found.low <= value - low + 1e-12 and found.high >= value + high - 1e-12
    again = over_seeds(facts, np.array(by_seed[::-1]))
    assert (again.low, again.high) == pytest.approx((found.low, found.high))
    alike = over_seeds(facts, np.full(len(by_seed), value))
    assert (alike.low, alike.high) == pytest.approx((facts.low, facts.high))


def test_one_seed_says_nothing_of_others() -> None:
    with pytest.raises(ValueError, match="needs two of them, not 1"):
        over_seeds(Estimate(0.5, 0.4, 0.6, 9), np.array([0.5]))
    missing = Estimate.missing("why", 9)
    assert over_seeds(missing, np.array([0.1, 0.2])) is missing


def test_of_one_seed_figures_are_those_over_facts() -> None:
    """To the digit those of a single run."""
    (one,) = seeds_of([0.4])
    assert mean_over([one], "top5", "LT") == mean(one.scores("top5")["LT"])
    assert difference_over([one], "top5", "LT", "PRE") == between_configurations(
        one, "top5", "LT", "PRE"
    )
    assert median_rank_over([one], "LT") == median(one.columns["LT"]["rank"])


def test_of_several_seeds_the_value_is_their_mean() -> None:
    """Also of recoveries, each with what its own finetuning added; intervals hold the values of all
    seeds where these are two.
    """
    seeds = seeds_of([0.3, 0.5])
    for metric in ("top5", "log_rank"):
        whole = difference_over(seeds, metric, "LT", "PRE")
        parts = [between_configurations(one, metric, "LT", "PRE").value for one in seeds]
        assert whole.value == pytest.approx(np.mean([part for part in parts if part is not None]))
        assert whole.low is not None and whole.high is not None
        assert all(part is not None and whole.low < part < whole.high for part in parts)
        assert mean_over(seeds, metric, "LT").value == pytest.approx(
            np.mean([one.scores(metric)["LT"] for one in seeds])
        )
    assert median_rank_over(seeds, "SFT").value == 1


def test_seeds_without_a_gain_leave_nothing_to_ask() -> None:
    one, other = seeds_of([0.3, 0.5])
    none = replace(other, columns={**other.columns, "SFT": other.columns["PRE"]})
    found = difference_over([one, none], "top5", "LT", "PRE")
    assert "under one of 2 training seeds: the finetuned model" in str(found.undefined)


def test_seeds_are_of_the_same_facts() -> None:
    one, other = seeds_of([0.3, 0.5])
    columns = {graft: {**own, "fact": own["fact"][::-1]} for graft, own in other.columns.items()}
    with pytest.raises(DataError, match="different facts under different training seeds"):
        mean_over([one, replace(other, columns=columns)], "top5", "LT")


@pytest.mark.parametrize("spread", [0.03, 0.07])
def test_intervals_hold_the_recipe(spread: float) -> None:
    """Of 400 facts and five seeds, the interval holds the mean over all facts and seeds in about 95
    %; that over facts does not.
    """
    rng, n, centre, repetitions = np.random.default_rng(1), 400, norm.ppf(0.35), 300
    scale = spread / norm.pdf(centre)
    truth = norm.cdf(centre / np.sqrt(1 + scale**2))
    held, facts_alone = 0, 0
    for _ in range(repetitions):
        shifts, hard = rng.normal(0, scale, (5, 1)), rng.normal(0, 1, n)
        hits = (rng.random((5, n)) < norm.cdf((centre + shifts) * np.sqrt(2) + hard)).astype(float)
        facts = mean(hits.mean(0), (0, 1))
        both = over_seeds(facts, hits.mean(1), (0, 1))
        for figure in (facts, both):
            assert figure.low is not None and figure.high is not None
        facts_alone += facts.low <= truth <= facts.high
        held += both.low <= truth <= both.high
    assert 0.93 <= held / repetitions <= 0.99
    assert facts_alone / repetitions < 0.9


# --------------------------------------------------------------------------------------------- rows


def texts(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != ROWS}


@pytest.mark.nightly
def test_a_report_follows_from_its_rows(tmp_path: Path) -> None:
    """Written and read back, rows are the same, and give the same report and pictures to the byte."""
    rows = fake_reproduction.measured(FIGURES)
    write_measured(rows, tmp_path / ROWS)
    again = read_measured(tmp_path / ROWS)
    assert again.about == rows.about and again.table.num_rows == rows.table.num_rows
    write_measured(again, tmp_path / "again.parquet")
    assert (tmp_path / ROWS).read_bytes() == (tmp_path / "again.parquet").read_bytes()
    for name, one in (("first", rows), ("second", again)):
        write_report(figures_from(FIGURES, one), tmp_path / name)
    assert texts(tmp_path / "first") == texts(tmp_path / "second")


@pytest.mark.nightly
def test_a_report_says_what_its_intervals_are_over(tmp_path: Path) -> None:
    """Over facts where there is one seed, over facts and seeds where there are several; ranks as
    medians and mean logs.
    """
    said = {}
    for seeds in ((0,), (0, 1, 2)):
        made = figures_from(FIGURES, fake_reproduction.measured(FIGURES, seeds=seeds))
        said[len(seeds)] = write_report(made, tmp_path / str(len(seeds))).read_text("utf-8")
    assert (
        "over facts and 3 training seeds (0, 1, 2), with 95 % intervals over both" in said[3]
        and "--seeds 0,1,2" in said[3]
    )
    assert "each donor was trained once" in said[1] and "--seeds" not in said[1]
    assert (
        "tiny-gemma, median rank, n = 40 | tiny-gemma, mean log rank, n = 40 | gemma-2b (paper,"
        " mean rank, " in said[3]
    )
    assert (
        "here 3, of pretraining and finetuning: 0, 1, 2." in said[3]
        and "here one run, with seed 0." in said[1]
    )


def without(measured: PairRows, seed: int, evaluation: str) -> PairRows:
    """Rows without one evaluation under one seed."""
    table, about = measured.table, measured.about
    own = pc.and_(pc.equal(table["seed"], seed), pc.equal(table["evaluation"], evaluation))
    left = {
        at: {name: run for name, run in runs.items() if (at, name) != (seed, evaluation)}
        for at, runs in about.evaluations.items()
    }
    return PairRows(about.model_copy(update={"evaluations": left}), table.filter(pc.invert(own)))


def test_a_report_says_what_is_not_there_yet() -> None:
    """Figures of an evaluation that lacks a seed are over fewer; those that lack all are not shown."""
    measured = without(fake_reproduction.measured(FIGURES), 1, "reversal")
    left = lacking([*FIGURES, "figure-5"], measured.about)
    assert left == {"reversal": (1,), "hybrid": (0, 1, 2)}
    there = figures_there([*FIGURES, "figure-5"], measured.about)
    assert there == FIGURES
    made = figures_from(there, measured)
    assert {one.name: one.seeds for one in made} == {
        "figure-2": (0, 1, 2),
        "figure-8": (0, 1, 2),
        "figure-4": (0, 2),
    }
    text = report_text(made, left)
    assert "Not measured yet: under seeds 0, 1, 2 hybrid; under seed 1 reversal. " in text
    assert "Of the seeds above this figure has 0, 2." in text


def test_rows_of_an_evaluation_are_put_in_place_of_earlier_ones() -> None:
    """Taken out and put back, rows are the same; put in twice they are there once; another pair's
    are refused.
    """
    whole = fake_reproduction.measured(FIGURES, seeds=(0, 1))
    less = without(whole, 1, "reversal")
    own = pc.and_(pc.equal(whole.table["seed"], 1), pc.equal(whole.table["evaluation"], "reversal"))
    about = whole.about.model_copy(
        update={
            "donors": {1: whole.about.donors[1]},
            "evaluations": {1: {"reversal": whole.about.evaluations[1]["reversal"]}},
        }
    )
    rows = PairRows(about, whole.table.filter(own))
    for before in (less, whole, joined(less, rows)):
        found = joined(before, rows)
        keys = [(name, "ascending") for name in SCHEMA.names]
        assert (
            found.table.sort_by(keys).equals(whole.table.sort_by(keys))
            and found.about == whole.about
        )
    assert joined(None, rows) == rows
    with pytest.raises(InputError, match="are of tiny-gemma, not of tiny-llama"):
        joined(whole, replace(rows, about=about.model_copy(update={"model": "tiny-llama"})))


def test_evaluations_keep_the_donors_that_they_are_of(tmp_path: Path) -> None:
    """Where a donor was trained again and ended elsewhere, evaluations that are kept are of the
    first training, further ones of the second, and the report says so; read back, rows are equal.
    """
    whole = fake_reproduction.measured(FIGURES, seeds=(0, 1))
    own = pc.and_(pc.equal(whole.table["seed"], 1), pc.equal(whole.table["evaluation"], "reversal"))
    again = {
        name: donor.model_copy(update={"weights": "f" * 64})
        for name, donor in whole.about.donors[1].items()
    }
    evaluations = {1: {"reversal": whole.about.evaluations[1]["reversal"]}}
    about = whole.about.model_copy(update={"donors": {1: again}, "evaluations": evaluations})
    further = PairRows(about, whole.table.filter(own))
    found = joined(whole, further)
    for evaluation, seed, weights in (
        ("actors", 0, "w"),
        ("actors", 1, "w"),
        ("reversal", 0, "w"),
        ("reversal", 1, "f"),
    ):
        trainings = page().trainings_of([evaluation], "tiny")
        donors = found.about.donors_of(evaluation, trainings)
        assert {donors[seed, name].weights for name in trainings} == {weights * 64}
    write_measured(found, tmp_path / ROWS)
    assert read_measured(tmp_path / ROWS).about == found.about
    assert joined(found, further).about == found.about
    text = report_text(figures_from(FIGURES, found))
    assert "Under seed 1 the donor actors was trained twice" in text
    assert "processor: actors is of the first training, others" in text
    text = report_text(figures_from(FIGURES, whole))
    assert "trained twice" not in text


def share(whole: PairRows, seed: int) -> PairRows:
    """The rows of one training seed."""
    about = whole.about
    update = {
        "donors": {seed: about.donors[seed]},
        "evaluations": {seed: about.evaluations[seed]},
    }
    rows = whole.table.filter(pc.equal(whole.table["seed"], seed))
    return PairRows(about.model_copy(update=update), rows)


def test_shares_of_seeds_are_joined(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Rows that were made apart, seed by seed, give the report of those made together; the joined
    rows are written beside it.
    """
    whole = fake_reproduction.measured(FIGURES, seeds=(0, 1))
    paths = [tmp_path / "0.parquet", tmp_path / "1.parquet", tmp_path / "both.parquet"]
    for path, rows in zip(paths, (share(whole, 0), share(whole, 1), whole), strict=True):
        write_measured(rows, path)
    first, second, both = map(str, paths)
    report = tmp_path / "report"
    command = ["reproduce", "figure-2", "--report", str(report)]
    assert main([*command, "--rows", both]) == 0
    together = (report / REPORT).read_text("utf-8")
    assert not (report / ROWS).exists()
    assert main([*command, "--rows", first, "--rows", second]) == 0
    assert (report / REPORT).read_text("utf-8") == together
    assert (report / ROWS).read_bytes() == paths[2].read_bytes()
    assert f"rows     {report / ROWS}" in capsys.readouterr().out
    assert main([*command, "--rows", first, "--rows", first]) == 2
    assert "in none of these files" in capsys.readouterr().err
    assert (report / ROWS).read_bytes() == paths[2].read_bytes(), "nothing is lost"


def test_rows_of_earlier_versions_are_read(tmp_path: Path) -> None:
    """They had log-probabilities besides, and their provenance as JSON; a column that is missing or
    of another type is refused, and so is what does not read.
    """
    rows, path = fake_reproduction.measured(FIGURES), tmp_path / ROWS
    write_measured(rows, path)
    now, stored = read_measured(path), pq.read_table(path)
    logprobs = pa.array([-1.5] * stored.num_rows, pa.float32())
    ((key, about),) = stored.schema.metadata.items()
    earlier = stored.append_column("logprob", logprobs)
    json = rows.about.model_dump_json()
    assert len(about) < len(json) / 2
    pq.write_table(earlier.replace_schema_metadata({key: json}), path)
    before = read_measured(path)
    assert before.about == now.about and before.table.equals(now.table)
    for wrong in (
        stored.drop_columns(["rank"]),
        stored.set_column(5, "rank", stored["rank"].cast(pa.float32())),
    ):
        pq.write_table(wrong, path)
        with pytest.raises(DataError, match=r"the columns are .* expected .*'rank'"):
            read_measured(path)
    for broken in (about[:-8], b"no base64", b"{}"):
        pq.write_table(stored.replace_schema_metadata({key: broken}), path)
        with pytest.raises(DataError, match=r"expected the rows\.parquet that"):
            read_measured(path)


def test_rows_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures without a model; what is not in the file, and what does not go with it, is a line."""
    path = tmp_path / "mine.parquet"
    write_measured(fake_reproduction.measured(FIGURES), path)
    report = tmp_path / "report"
    assert main(["reproduce", "figure-4", "--rows", str(path), "--report", str(report)]) == 0
    out = capsys.readouterr().out
    assert (
        f"report   {report / REPORT}" in out
        and f"rows     {path}" in out
        and not (report / ROWS).exists()
    )
    for asked, told in (
        (
            ["figure-5", "--rows", str(path)],
            "these rows hold nothing of the evaluation 'hybrid'; make its figures first",
        ),
        (["figure-2", "--rows", str(path), "--seeds", "0,1"], "leave out --seeds"),
        (
            ["figure-2", "--rows", __file__],
            "expected the rows.parquet that `kgbench reproduce` writes",
        ),
        (["figure-2", "--seeds", "0,0"], "expected different whole numbers"),
        (["figure-2", "--seeds", "one"], "expected different whole numbers"),
    ):
        assert main(["reproduce", *asked]) == 2
        error = capsys.readouterr().err
        assert told in error and error.count("\n") == 1


# -------------------------------------------------------------------------------------------- seeds

MODEL = "tiny-gpt2"


def pico() -> Recipe:
    """The recipe of a pair that is made in seconds and knows next to nothing."""
    whole = recipe(MODEL)
    return replace(
        whole,
        config={**whole.config, "n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 32},
        dataset="tiny_movies:first12",
        vocabulary=400,
        tokenizer_movies=40,
        lasting_movies=12,
        passing_movies=2,
        pretraining=replace(whole.pretraining, rounds=1, batch_size=16),
        finetuning=replace(whole.finetuning, rounds=1, batch_size=16),
    )


@pytest.mark.nightly
def test_each_seed_is_a_pair_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretrained and finetuned under its seed in a folder of its own, once: made again, nothing is
    computed.
    """
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    small = fake_reproduction.small(12, {"epochs": 1})
    pairs = [Ingredients(small, MODEL, seed=seed, built=pico()) for seed in (1, 2)]
    told: list[str] = []
    measured = make(
        ["figure-2"],
        pairs,
        tmp_path / "results",
        "cpu",
        lambda done, total, what: told.append(what),
    )
    assert dict.fromkeys(what.split(":")[0] for what in told).keys() == {
        f"{part} of 6" for part in range(1, 7)
    }
    assert [what.made.name for what in pairs] == ["seed1", "seed2"]
    assert measured.about.seeds == (1, 2)
    weights = {own["actors"].weights for own in measured.about.donors.values()}
    assert len(weights) == 2, "other weights under another seed"
    before = {path: path.stat().st_mtime for path in tmp_path.rglob("*") if path.is_file()}
    again = make(["figure-2"], pairs, tmp_path / "results", "cpu")
    assert {path: path.stat().st_mtime for path in tmp_path.rglob("*") if path.is_file()} == before
    assert again.about == measured.about and again.table.equals(measured.table)
    (made,) = figures_from(["figure-2"], again, small)
    assert made.n("headline") == 12 and len(made.prompts["headline"]) == 2
    assert not parts_of(["figure-2"], pairs, measured), "rows that are there are not made again"
    assert len(parts_of(["figure-2"], pairs[:1])) == 3
    other = [replace(what, page=fake_reproduction.small(11, {"epochs": 1})) for what in pairs]
    assert len(parts_of(["figure-2"], other, measured)) == 6, "other facts"


@pytest.mark.nightly
def test_a_recipient_without_its_donor_is_completed(tmp_path: Path) -> None:
    """The recipient alone has no card; the donor follows, from the same recipient, and then nothing
    is made again.
    """
    build_recipe(pico(), tmp_path / "pair", seed=1, donor=False)
    weights = stored_hash(tmp_path / "pair" / "recipient")
    assert not (tmp_path / "pair" / "sft").exists() and not (tmp_path / "pair" / CARD).exists()
    told: list[str] = []
    build_recipe(
        pico(),
        tmp_path / "pair",
        seed=1,
        donor=False,
        progress=lambda done, total, what: told.append(what),
    )
    assert not told
    build_recipe(
        pico(), tmp_path / "pair", seed=1, progress=lambda done, total, what: told.append(what)
    )
    assert told and all("finetuning" in what for what in told)
    assert stored_hash(tmp_path / "pair" / "recipient") == weights
    before = (tmp_path / "pair" / CARD).stat().st_mtime
    build_recipe(pico(), tmp_path / "pair", seed=1)
    assert (tmp_path / "pair" / CARD).stat().st_mtime == before and not (
        tmp_path / "pair" / ".work"
    ).exists()


def test_the_pairs_own_donor_is_not_trained_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the shipped seed it is the shipped donor; of another it comes with the pair."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    shipped, other = (Ingredients(page(), MODEL, seed=seed, built=pico()) for seed in (0, 1))
    assert [part.kind for part in parts_of(["figure-10"], [shipped])] == ["evaluation"]
    assert dict(shipped.job("names").donors) == {"sft": f"zoo:{MODEL}/sft"}
    pair, evaluation = parts_of(["figure-10"], [other])
    assert (pair.kind, pair.name, evaluation.kind) == ("pair", "donor", "evaluation")
    assert parts_of(["figure-2"], [other])[0].name == ""
    card, weights = read_pair_card(shipped.pair), stored_hash(shipped.pair / "sft")
    assert Donor.of_pair(card, weights, 8800).steps == 552


def test_a_forecast_of_seeds_is_of_every_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that is not there yet is forecast by the shipped one; nothing of it is made."""
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    small = fake_reproduction.small(12, {"epochs": 1})
    pairs = [Ingredients(small, MODEL, seed=seed) for seed in (0, 1)]
    settings = Settings(device="cpu", output_dir=tmp_path)
    told = list[str]()
    parts = costs(["figure-2"], pairs, settings, lambda done, total, what: told.append(what))
    found = {cost.what: cost for cost in parts}
    assert told == [*found][:-1], "in the order of measuring"
    assert list(found) == [
        *("donor actors, seed 0", "evaluation actors, seed 0"),
        *("pair, seed 1", "donor actors, seed 1", "evaluation actors, seed 1", "in all"),
    ]
    assert found["pair, seed 1"].basis == "the training of the shipped pair"
    assert found["pair, seed 1"].seconds > 10
    assert found["donor actors, seed 1"].memory == found["donor actors, seed 0"].memory
    assert not pairs[1].ready and not (pairs[1].made / "pair").exists()
