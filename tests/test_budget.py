"""Rankings in a job: which half ranks, which is measured, what a budget holds, and what a method
cannot express.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from kgbench import grafted_logits
from kgbench.data import Prompt
from kgbench.engine import Answers, load_pair
from kgbench.engine.site_sets import all_sites, site_costs
from kgbench.errors import InputError
from kgbench.localizers import _measure, _scan
from kgbench.models.pair import ModelPair
from kgbench.records import Journal, Record, RecordStore
from kgbench.runner import Run, Settings, Spec, check, dry_run, forecast, load_prompts, run_job
from kgbench.runner.job import split_facts
from kgbench.runner.lookup import load_suite
from kgbench.runner.measure import SiteRanking, counted, mixed
from kgbench.runner.run import compute_job
from kgbench.sites import Site, scored_positions
from kgbench.sites.configurations import Top, budget_labels
from kgbench.testing import pico_pair

DATASET = "fake_movies_fake_actors"
BUDGETS = budget_labels(load_suite("budget").budgets)

METHODS = """
from dataclasses import dataclass, replace

from kgbench.engine.site_sets import all_sites
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import NotApplicableError
from kgbench.localizers import InterventionLocalizer, ScoringLocalizer

asked = []


class Half(ScoringLocalizer):
    '''Ranks one site first, another one for the facts of each half, and remembers what it was asked.'''

    name = "half"
    about = "test"

    def scores(self, pair, prompts):
        asked.append([(p.name, p.fact.id) for p in prompts])
        sites = all_sites(pair, prompts)
        first = next(i for i, s in enumerate(sites) if s[1:] == (("q", "LT") if len(asked) % 2 else ("o", "FE")))
        return {site: float(i == first) for i, site in enumerate(sites)}


class Partial(ScoringLocalizer):
    name = "partial"
    about = "test"

    def scores(self, pair, prompts):
        return {site: float("nan") for site in all_sites(pair, prompts)}


@dataclass(frozen=True)
class Draws(InterventionLocalizer):
    '''With draw 0 the graft, with draw 1 its complement's opposite: everything.'''

    name = "draws"
    about = "test"
    floor = "destroyed_donor"

    draw: int | None = None

    def fitted(self, pair, prompts):
        asked.append(len(prompts))
        return self

    def variants(self):
        return [replace(self, draw=i) for i in range(2)]

    def treat(self, pair, prompts, sites):
        if str(sites) == "LT" and prompts[0].name == "qa":
            raise NotApplicableError("LT is beyond this method")
        if str(sites) == "LT^C":
            raise NotApplicableError("the rest is beyond this method")
        from kgbench.sites import Site, parse_graft, scored_positions

        return graft_treatments(pair, prompts, sites if self.draw == 0 else parse_graft("ALL"))


class Silent(Draws):
    name = "silent"

    def units(self, pair, prompts):
        raise NotApplicableError("it has no units")
"""


@pytest.fixture(scope="module")
def methods(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("methods") / "methods.py"
    file.write_text(METHODS)
    return file


@pytest.fixture(scope="module")
def run(spec: Spec, settings: Settings, methods: Path) -> Run:
    """A ranking by `Half`."""
    return run_job(replace(spec, localizer=f"{methods}:Half"), settings)


def facts_of(settings: Settings, record: Record) -> dict[tuple[str, str, str], float]:
    """Log-probability by prompt, fact and configuration."""
    found = RecordStore(settings.output_dir).find(record.id)
    assert found is not None
    return {(r["prompt"], r["fact"], r["graft"]): r["logprob"] for r in found.facts().to_pylist()}


# ------------------------------------------------------------------------------- halves and budgets


def test_halves() -> None:
    """The facts fall into two halves of like size, the same whatever the order of prompts, and
    others under another seed.
    """
    prompts = {name: load_prompts(DATASET, [name], 11) for name in ("headline", "qa")}
    first, second = split_facts(prompts, 0)
    assert (len(first), len(second)) == (6, 5) and not first & second
    assert split_facts({name: some[::-1] for name, some in prompts.items()}, 0) == (first, second)
    assert split_facts(prompts, 1) != (first, second)
    with pytest.raises(InputError, match="two or more, not 1"):
        split_facts({"headline": prompts["headline"][:1]}, 0)


@pytest.mark.nightly
def test_one_half_ranks_the_other_is_measured(run: Run, settings: Settings, spec: Spec) -> None:
    """Each fact is measured under the ranking of the half that it is not of; both templates rank
    together.
    """
    prompts = {name: load_prompts(DATASET, [name], 5) for name in ("headline", "qa")}
    halves = split_facts(prompts, 0)
    pair = load_pair(recipient=spec.recipient, donors=spec.donors)
    found = facts_of(settings, run.record)
    scores = (
        first_of(pair, prompts, "q", "LT"),
        first_of(pair, prompts, "o", "FE"),
    )  # as `Half` has it
    ranking = SiteRanking(pair, prompts, halves, scores)
    for prompt in (p for some in prompts.values() for p in some):
        ranked = 0 if prompt.fact.id in halves[1] else 1
        for label, percent in BUDGETS.items():
            best = ranking.best(Top(percent), prompt.name, ranked)
            graft = "; ".join(term(site, pair, prompt) for site in best)
            logits = grafted_logits(pair, [prompt], [graft or "NONE"], "rows")[0, 0].double()
            expected = float(logits.log_softmax(0)[pair.encoded(prompt).target])
            assert found[prompt.name, prompt.fact.id, label] == pytest.approx(expected, abs=1e-4), (
                label,
                prompt.text,
            )


def first_of(
    pair: ModelPair, prompts: Mapping[str, Sequence[Prompt]], component: str, region: str
) -> dict[Site, float]:
    """1 for the first site of a component and region, 0 for all others."""
    sites = all_sites(pair, [p for some in prompts.values() for p in some])
    first = next(i for i, site in enumerate(sites) if site[1:] == (component, region))
    return {site: float(i == first) for i, site in enumerate(sites)}


def term(site: Site, pair: ModelPair, prompt: Prompt) -> str:
    """One site of one prompt as a graft; a region that the prompt does not have is nowhere."""
    regions = pair.encoded(prompt).regions
    where = (
        scored_positions(site.region, [regions])
        if site.region == "REST" or site.region in regions
        else "NONE"
    )
    return f"{where}:{site.component}" + ("" if site.layer is None else f"@{site.layer}")


@pytest.mark.parametrize("seed", range(3))
def test_a_budget_holds_the_longest_prefix(seed: int) -> None:
    """Best sites stay within the budget, one more would not; sites of equal scores stand in an
    order drawn anew for each half and seed.
    """
    pair = pico_pair("gpt2")
    prompts = {name: load_prompts(DATASET, [name], 4) for name in ("headline", "qa")}
    everything = [p for some in prompts.values() for p in some]
    rng = np.random.default_rng(seed)
    scores = {site: float(rng.integers(0, 3)) for site in all_sites(pair, everything)}
    ranking = SiteRanking(pair, prompts, split_facts(prompts, 0), (scores, scores))
    order = ranking.orders[0]
    assert sorted(order, key=all_sites(pair, everything).index) == list(all_sites(pair, everything))
    assert all(scores[a] >= scores[b] for a, b in pairwise(order))
    assert (
        ranking.orders
        == SiteRanking(pair, prompts, split_facts(prompts, 0), (scores, scores)).orders
    ), "repeatable"
    other = SiteRanking(pair, prompts, split_facts(prompts, 0), (scores, scores), seed=1)
    assert len({ranking.orders[0], ranking.orders[1], other.orders[0]}) == 3
    middle = [place for place, site in enumerate(ranking.sites) if scores[site] == 2]
    ranked = [ranking.sites.index(site) for site in order[: len(middle)]]
    assert sorted(ranked) == middle and abs(np.corrcoef(ranked, middle)[0, 1]) < 0.7, (
        "no end of the model is favoured"
    )
    for name, some in prompts.items():
        costs = site_costs(pair, some)
        total = sum(costs.values())
        for percent in BUDGETS.values():
            best = ranking.best(Top(percent), name, 0)
            spent = [sum(costs.get(s, 0) for s in order[:n]) for n in (len(best), len(best) + 1)]
            assert best == order[: len(best)] and spent[0] <= percent / 100 * total + 1e-9
            assert (
                len(best) == len(order)
                if percent == 100
                else spent[1] > percent / 100 * total - 1e-9
            )


def test_rounding_does_not_change_an_order() -> None:
    """Noise of another processor, on sites without effect and on others, leaves ties ties."""
    pair = pico_pair("gpt2")
    prompts = {name: load_prompts(DATASET, [name], 4) for name in ("headline", "qa")}
    everything = [p for some in prompts.values() for p in some]
    sites, rng = all_sites(pair, everything), np.random.default_rng(0)
    effects = np.where(rng.random(len(sites)) < 0.5, 0.0, rng.integers(1, 9, len(sites)))

    def orders(noise: float) -> list[tuple[Site, ...]]:
        scores = effects + noise * rng.standard_normal(len(sites))
        of = dict(zip(sites, scores.tolist(), strict=True))
        return SiteRanking(pair, prompts, split_facts(prompts, 0), (of, of)).orders

    assert orders(0) == orders(3e-7) == orders(3e-7)
    assert orders(0) != orders(1e-2), "a difference that is more than rounding orders"


def test_the_record_of_a_ranking(run: Run, settings: Settings) -> None:
    """The map, its agreement, the curve and what scoring cost are in the record; budget 0 is PRE,
    100 % is ALL.
    """
    record = run.record
    assert (record.kind, record.floor, record.not_applicable) == ("scoring", "recipient", {})
    assert record.curve is not None
    assert record.ranking is not None
    assert record.scores is not None
    assert record.cost.scoring is not None
    assert [p.budget for p in record.curve["qa"].points] == list(BUDGETS.values())
    assert record.ranking.facts == (3, 2) and record.ranking.agreement.n == len(record.scores)
    assert {s.score for s in record.scores} == {0, 0.5}
    assert record.ranking.sites["headline"]["top 0%"] == (0, 0)
    assert record.cost.scoring.seconds < record.cost.seconds
    found = facts_of(settings, record)
    for (prompt, fact, graft), value in found.items():
        same = {"top 0%": "PRE", "top 100%": "ALL"}.get(graft)
        assert same is None or value == pytest.approx(found[prompt, fact, same], abs=1e-5)
    answer = json.loads(json.dumps(run.to_json(), allow_nan=False))
    assert set(answer["curve"]) == {"headline", "qa"}
    assert set(answer["curve"]["qa"]) == {
        "points",
        "area",
    }


def test_another_metric_has_its_own_curve(
    run: Run, settings: Settings, spec: Spec, methods: Path
) -> None:
    """A stored ranking is shown on another metric without computing anything."""
    other = run_job(replace(spec, localizer=f"{methods}:Half", metric="logprob"), settings)
    assert other.reused and other.record.scores == run.record.scores
    assert other.record.curve is not None and other.record.curve != run.record.curve
    rows = {(r.prompt, r.graft): r.sufficiency for r in other.record.rows}
    assert all(
        p.recovery == rows["qa", f"top {p.budget:g}%"] for p in other.record.curve["qa"].points
    )


def test_scores_are_kept(
    spec: Spec, settings: Settings, methods: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run that is killed after scoring does not score again; one of another version of the code
    does, and says so.
    """
    from kgbench.records import provenance
    from kgbench.runner import run as running

    here = replace(settings, output_dir=tmp_path)
    job = check(replace(spec, localizer=f"{methods}:Half"))

    def killed(*of: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(running, "run_group", killed)
        with pytest.raises(KeyboardInterrupt):
            running.compute_job(job, here)
    kept = sorted(p.name for p in tmp_path.glob(".partial/*/scores-*.json"))
    assert kept == ["scores-0.json", "scores-1.json"]
    with monkeypatch.context() as patch:
        patch.setattr(provenance, "__version__", "0.0.0")
        with (
            pytest.warns(
                UserWarning, match=r"an unfinished run of kgbench \d.*this is kgbench 0\.0\.0"
            ),
            pytest.raises(KeyboardInterrupt),
        ):
            patch.setattr(running, "run_group", killed)
            running.compute_job(job, here)
    (folder,) = tmp_path.glob(".partial/*")
    stamp = (folder / "code.txt").read_text().replace("0.0.0", provenance.__version__)
    (folder / "code.txt").write_text(stamp)
    (folder / "scores-0.json").unlink()
    kept_scores = json.loads((folder / "scores-1.json").read_text())["value"]
    kept_scores["scores"] = [[*row[:3], 7.0] for row in kept_scores["scores"]]
    Journal(folder, stamp).keep("scores-1", kept_scores)
    resumed = running.compute_job(job, here).record
    assert resumed.scores is not None and {s.score for s in resumed.scores} == {3.5, 4.0}
    assert not list(tmp_path.glob(".partial/*"))


@pytest.mark.parametrize(
    ("localizer", "module", "size"),
    [
        ("dynamic_graft", _scan, "PROMPTS"),
        ("graft_drop", _measure, "DESCRIBED"),
        ("greedy_graft", _measure, "DESCRIBED"),
    ],
)
def test_a_ranking_goes_on_where_it_was_killed(
    localizer: str,
    module: ModuleType,
    size: str,
    spec: Spec,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Parts of a ranking are not computed again; scores, and cost in forwards, are those of a run in
    one piece.
    """
    computed: list[int] = []
    is_killed = False
    logprobs = _measure.logprobs

    def counting(*of: Any) -> Any:
        nonlocal is_killed
        if is_killed and len(computed) == 4:
            is_killed = False
            raise KeyboardInterrupt
        computed.append(len(of[1]))
        return logprobs(*of)

    monkeypatch.setattr(module, size, 1)
    monkeypatch.setattr(module, "logprobs", counting)
    arguments = {"steps": "2"} if localizer == "greedy_graft" else {}
    job = check(replace(spec, suite="budget", localizer=localizer, localizer_args=arguments))
    whole = compute_job(job, replace(settings, output_dir=tmp_path / "whole")).record
    parts, is_killed = list(computed), True
    computed.clear()
    here = replace(settings, output_dir=tmp_path / "killed")
    with pytest.raises(KeyboardInterrupt):
        compute_job(job, here)
    resumed = compute_job(job, here).record
    assert whole.cost.scoring is not None and resumed.cost.scoring is not None
    assert computed == parts and set(parts) == {1}
    assert resumed.scores == whole.scores
    for key in ("forwards", "token_rows"):
        assert getattr(resumed.cost.scoring, key) == getattr(whole.cost.scoring, key)
    assert not list(tmp_path.glob("*/.partial/*"))


def test_scores_must_be_finite(spec: Spec, settings: Settings, methods: Path) -> None:
    """A score that is no number ends the run in one line."""
    with pytest.raises(
        InputError, match=r"partial.*has the score nan; every site needs a finite number"
    ):
        run_job(replace(spec, localizer=f"{methods}:Partial"), settings)


def test_progress_of_scoring(spec: Spec, settings: Settings, tmp_path: Path) -> None:
    """Scoring tells its forwards; the second half knows about how many there will be."""
    told: list[tuple[int, int, str]] = []
    job = replace(spec, localizer="graft_scan", prompts=("qa",))
    found = run_job(job, replace(settings, output_dir=tmp_path), lambda *of: told.append(of))
    first, second = (
        [t for t in told if t[2].startswith(f"scoring, half {half}")] for half in (1, 2)
    )
    assert [t[0] for t in first] == list(range(1, len(first) + 1)) and {t[1] for t in first} == {0}
    assert {t[1] for t in second} >= {len(first)}
    assert found.record.cost.scoring is not None
    assert found.record.cost.scoring.forwards == len(first) + len(second)


def test_a_scan_is_told_from_grafts(spec: Spec, settings: Settings) -> None:
    """The suite `budget` ranks with an intervening method too; its record is another than that of
    the pathways.
    """
    job = replace(spec, localizer="dynamic_graft", prompts=("qa",), limit=3)
    grafts, scan = (
        run_job(job, settings).record,
        run_job(replace(job, suite="budget"), settings).record,
    )
    assert grafts.id != scan.id and scan.identity.localizer.version.endswith(" scan")
    assert scan.ranking is not None and scan.ranking.scan and scan.kind == "intervention"
    assert {row.graft for row in scan.rows} == {"PRE", "SFT", "ALL", *BUDGETS}
    assert grafts.curve is None and grafts.scores is None
    cost = dry_run(replace(job, suite="budget", seed=1), settings)
    assert "to rank the sites" in cost.basis and not cost.done


@pytest.mark.parametrize("long", [0.0, forecast.LONG])
@pytest.mark.parametrize(
    ("localizer", "arguments"),
    [("dynamic_graft", {}), ("graft_drop", {}), ("mask_graft", {"steps": "6", "sample": "2"})],
)
def test_a_forecast_grows_with_what_a_ranking_reads(
    localizer: str,
    arguments: Mapping[str, str],
    long: float,
    spec: Spec,
    settings: Settings,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With all prompts, or with a sample of them at every step; from few prompts, where these take
    long, or from more.
    """
    monkeypatch.setattr(forecast, "LONG", long)
    job = replace(spec, localizer=localizer, localizer_args=arguments, suite="budget", limit=14)
    cost = dry_run(job, replace(settings, output_dir=tmp_path))
    spent = run_job(job, replace(settings, output_dir=tmp_path)).record.cost
    assert spent.scoring is not None
    rows = spent.token_rows + spent.scoring.token_rows
    assert cost.counts["token_rows"] == pytest.approx(rows, rel=0.2)


# ---------------------------------------------------------------------------- not applicable, draws


def test_what_a_method_cannot_express(spec: Spec, settings: Settings, methods: Path) -> None:
    """A configuration that cannot be expressed has a row without figures, with the reason; others
    have theirs.
    """
    record = run_job(replace(spec, localizer=f"{methods}:Draws"), settings).record
    rows = {(r.prompt, r.graft): r for r in record.rows}
    for place, reason in {
        ("qa", "LT"): "on qa: LT is beyond this method",
        ("headline", "LT^C"): "the rest is beyond this method",
    }.items():
        row = rows[place]
        assert not row.applicable and row.n == 0
        assert (
            row.top5.undefined
            == row.gain.undefined
            == row.necessity.undefined
            == f"not applicable: {reason}"
        ), place
    assert rows["headline", "LT"].applicable and rows["headline", "LT"].n == 5
    assert (
        rows["headline", "LT"].necessity.undefined
        == "its complement LT^C is not applicable: the rest is beyond this method"
    )
    assert record.not_applicable == {
        "LT": "on qa: LT is beyond this method",
        "LT^C": "the rest is beyond this method",
    }
    assert (record.floor, record.kind) == ("destroyed_donor", "intervention")
    assert rows["headline", "NONE"].complement == "ALL"
    assert rows["headline", "ALL"].complement == "NONE"
    assert "the method cannot express LT^C and LT on qa" in record.verdict
    other = run_job(replace(spec, localizer=f"{methods}:Draws", metric="logprob"), settings)
    assert other.reused
    assert [r.applicable for r in other.record.rows] == [r.applicable for r in record.rows]


def test_draws_are_averaged(spec: Spec, settings: Settings, methods: Path) -> None:
    """The probability of a configuration is the mean over the draws, of the answer too, and
    parameters are those of the method itself.
    """
    record = run_job(replace(spec, localizer=f"{methods}:Draws"), settings).record
    assert record.identity.localizer.parameters == {"draw": None}
    found = facts_of(settings, record)
    pair = load_pair(recipient=spec.recipient, donors=spec.donors)
    for prompt in load_prompts(DATASET, ["headline"], 5):
        both = (
            grafted_logits(pair, [prompt], ["FE", "ALL"], "rows")[0]
            .double()
            .softmax(-1)[:, pair.encoded(prompt).target]
        )
        assert np.exp(found["headline", prompt.fact.id, "FE"]) == pytest.approx(
            float(both.mean()), rel=1e-3
        )
        assert np.exp(found["headline", prompt.fact.id, "SFT"]) != pytest.approx(
            float(both.mean()), rel=1e-3
        )


@dataclass(frozen=True)
class Chunks:
    """Answers in a given order, in chunks of two."""

    VOCABULARY: ClassVar[int] = 7

    labels: tuple[int, ...]
    prompts: int

    def logits(self) -> torch.Tensor:
        return torch.randn(
            self.prompts,
            len(self.labels),
            self.VOCABULARY,
            generator=torch.Generator().manual_seed(0),
        )

    def answers(self, seed: int) -> list[Answers]:
        cells = [(p, c) for p in range(self.prompts) for c in range(len(self.labels))]
        order = np.random.default_rng(seed).permutation(len(cells))
        rows = [cells[i] for i in order]
        chunks = [torch.tensor(rows[start : start + 2]) for start in range(0, len(rows), 2)]
        return [
            Answers(
                c[:, 0],
                c[:, 1],
                torch.zeros(len(c), dtype=torch.int64),
                self.logits()[c[:, 0], c[:, 1]],
                0,
            )
            for c in chunks
        ]


@pytest.mark.parametrize("labels", [(0, 1, 2), (0, 1, 1, 2, 2, 2), (0, 0)])
def test_mixtures_come_in_any_order(labels: tuple[int, ...]) -> None:
    """Whatever the order of answers, each (prompt, label) comes once, with the mean of its
    configurations' probabilities.
    """
    made = Chunks(labels, 3)
    shares = made.logits().softmax(-1)
    expected = torch.stack(
        [
            shares[:, [c for c, of in enumerate(labels) if of == label]].mean(1)
            for label in {*labels}
        ],
        1,
    )
    for seed in range(3):
        seen = {}
        for prompts, found, logits in mixed(made.answers(seed), labels):
            for prompt, label, row in zip(prompts.tolist(), found.tolist(), logits, strict=True):
                assert (prompt, label) not in seen
                seen[prompt, label] = row.softmax(0)
        assert len(seen) == 3 * len({*labels})
        for (prompt, label), row in seen.items():
            torch.testing.assert_close(row, expected[prompt, label])


def test_a_method_that_cannot_rank(spec: Spec, settings: Settings, methods: Path) -> None:
    """A scan that has no value for the sites leaves the budgets without figures, and says why."""
    record = run_job(
        replace(spec, localizer=f"{methods}:Silent", suite="budget", limit=3), settings
    ).record
    assert record.curve is None and record.scores is None and record.cost.scoring is None
    tops = [row for row in record.rows if row.graft.startswith("top ")]
    assert len(tops) == 2 * len(BUDGETS)
    assert all(row.top5.undefined == "not applicable: it has no units" for row in tops)
    assert "cannot rank sites" in record.verdict


def test_counting_forwards_leaves_the_models_as_they_were() -> None:
    """Forwards of any model of the pair are counted, and no hook stays."""
    pair = pico_pair("llama")
    prompts = load_prompts(DATASET, ["qa"], 2)
    with counted(pair) as count:
        grafted_logits(pair, prompts, ["PRE"], "rows")
    assert count.forwards >= 1 and count.token_rows >= sum(len(pair.encode(p)) for p in prompts)
    assert not pair.recipient._forward_pre_hooks
