"""`kgbench rerun`: a recorded run comes out the same, or what does not is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import fake_runs
import pyarrow as pa
import pytest
from again import FRESH, edited, evaluated
from commands import Call
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_runs import submitted

from kgbench.errors import InputError
from kgbench.leaderboard.entries import find_run, read_entries
from kgbench.leaderboard.folders import document_hash, rows_hash
from kgbench.localizers import create
from kgbench.records import Record, RecordStore, SiteScore, StoredRecord
from kgbench.records.identity import identity_differences
from kgbench.runner import Settings, Spec, run_job
from kgbench.runner.job import job_configurations
from kgbench.runner.lookup import load_suite
from kgbench.runner.rerun import _suite_of, job_of, sample_facts, specification
from kgbench.runner.sources import Sources
from kgbench.stats.rerun_comparison import Repeated, repeated, repeated_map

CPU = Settings(device="cpu")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, StoredRecord]:
    """Fresh tiny runs."""
    root = tmp_path_factory.mktemp("runs")
    return {name: evaluated(root, name) for name in FRESH}


# ------------------------------------------------------------------- from a record to what it is of


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", FRESH)
def test_a_record_says_what_it_is_of(runs: dict[str, StoredRecord], name: str) -> None:
    """From a record alone comes the job that made it: the same identity, suite and grafts included."""
    record = runs[name].record
    job = job_of(record, Sources(), CPU)
    assert job.identity == record.identity and job.metric == record.metric
    if name == "custom":
        assert specification(record, Sources()).grafts == ("LT:o+ffn@second_half", "FE")


RECORD = fake_runs.record()
GRAFTS = st.sampled_from(
    [
        "FE",
        "LT",
        "FE+LT",
        "LT^C",
        "(FE+LT)^C",
        "ALL",
        "NONE",
        "LT:o+ffn",
        "FE:q",
        "ALL; LT:o=recipient",
        "FE+LT=0.5*sft",
        "M:emb",
        "PRE",
    ]
)


@settings(max_examples=40)
@given(
    st.lists(GRAFTS, min_size=1, max_size=4),
    st.sampled_from([None, "second_half", "0-1"]),
    st.sampled_from(["dynamic_graft", "ablation"]),
)
def test_grafts_are_found_again(grafts: list[str], layers: str | None, name: str) -> None:
    """Whatever grafts were asked for, on whatever layers, those that are found give the same
    configurations.
    """
    layers = None if "M:emb" in grafts else layers
    localizer = create(name, {}, 0)
    of = (localizer.kind, localizer.floor)
    wanted = tuple(job_configurations(load_suite("pathways"), grafts, layers, *of))
    what = fake_runs.identity(configurations=wanted)
    parts = {"identity": what, "id": what.digest(), "kind": of[0], "floor": of[1]}
    record = RECORD.model_copy(update=parts)
    suite, found = _suite_of(record)
    again = job_configurations(load_suite(suite), found, None, *of)
    assert tuple(again) == wanted


def changed(record: Record, **parts: object) -> Record:
    what = record.identity.model_copy(update=parts)
    return record.model_copy(update={"identity": what, "id": what.digest()})


def test_what_is_not_at_hand_is_named(runs: dict[str, StoredRecord]) -> None:
    """Other weights, facts, code, prompts or configurations: the field, both values, and what to
    do.
    """
    record = runs["scores"].record
    what = record.identity
    other_weights = what.weights.model_copy(update={"donors": {"sft": "f" * 64}})
    other_code = what.localizer.model_copy(update={"version": "0"})
    for parts, message in (
        (
            {"weights": other_weights},
            (
                rf"weights.donors.sft: f{{12}}… \| {what.weights.donors['sft'][:12]}.*give the"
                r" checkpoints"
            ),
        ),
        (
            {"localizer": other_code},
            r"localizer.version: 0 \| 1 \(another version of the method's code\)",
        ),
        ({"prompts": {"qa": "e" * 64}}, "prompts.qa: .*another wording"),
        ({"configurations": ("PRE", "SFT", "ALL", "top 3%")}, "no suite of this version"),
        (
            {"dataset": what.dataset.model_copy(update={"name": "mine", "hash": "0" * 64})},
            "facts 'mine' are not shipped: .*--dataset",
        ),
    ):
        with pytest.raises(InputError, match=message):
            job_of(changed(record, **parts), Sources(), CPU)
    with pytest.raises(
        InputError,
        match=r"'nowhere' is not in the catalog, .*give --recipient PATH --donor sft=PATH",
    ):
        specification(record.model_copy(update={"model": "nowhere"}), Sources())
    for name in ("theirs", "theirs.py:Theirs"):
        unknown = what.localizer.model_copy(update={"name": name})
        with pytest.raises(
            InputError, match=rf"'{name}' is not installed here: .*--localizer FILE"
        ):
            specification(changed(record, localizer=unknown), Sources())


METHOD = """
from dataclasses import dataclass
from kgbench.engine.site_sets import all_sites
from kgbench.localizers import ScoringLocalizer

@dataclass(frozen=True)
class Mine(ScoringLocalizer):
    name = "mine"
    about = "scores by the layer"
    up: bool = True
    weights: tuple[float, ...] = (1.0, 0.5)

    def scores(self, pair, prompts):
        sign = 1 if self.up else -1
        return {site: sign * self.weights[0] * (site.layer or 0) + self.weights[1] for site in all_sites(pair, prompts)}
"""


def test_checkpoints_facts_and_code_of_ones_own(folders: dict[str, Path], tmp_path: Path) -> None:
    """A run of somebody's checkpoints, file of facts and method is run again from where these are;
    other code is told as such.
    """
    code, facts = tmp_path / "mine.py", tmp_path / "facts.jsonl"
    code.write_text(METHOD)
    rows = [
        json.dumps({"subject": f"actor {i}", "object": "movie one" if i % 2 else "title two"})
        for i in range(6)
    ]
    facts.write_text("\n".join(rows))
    from kgbench.data import ImportOptions

    imports = ImportOptions(templates={"ask": "{subject} stars in"})
    pair = {
        "recipient": str(folders["recipient"]),
        "donors": {"sft": str(folders["sft"])},
        "dataset": str(facts),
        "imports": imports,
    }
    mine = f"{code}:Mine"
    spec = Spec(localizer=mine, localizer_args={"up": "false", "weights": "2,1"}, **pair)
    record = run_job(spec, Settings(device="cpu", output_dir=tmp_path / "runs")).record
    assert job_of(record, Sources(**pair), CPU, mine).identity == record.identity
    with pytest.raises(InputError, match=r".*give --recipient PATH --donor sft=PATH"):
        specification(record, Sources(), mine)
    code.write_text(METHOD + "\n# changed\n")
    with pytest.raises(InputError, match=r"localizer\.version"):
        job_of(record, Sources(**pair), CPU, mine)
    with pytest.raises(InputError, match=r"weights.recipient|weights.donors"):
        job_of(record, Sources(**{**pair, "donors": {"sft": str(folders["recipient"])}}), CPU, mine)


# ------------------------------------------------------------------------------------------ command


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", FRESH)
def test_a_fresh_run_comes_out_the_same(
    runs: dict[str, StoredRecord], run: Call, name: str
) -> None:
    """Every row agrees to the last bit on one machine, and so does the map of a method that ranks;
    status 0.
    """
    status, out, _ = run("rerun", runs[name].path, "--device", "cpu", "--json")
    answer = json.loads(out)
    assert status == 0 and answer["agrees"], answer["verdict"]
    assert answer["rows_compared"] == runs[name].facts().num_rows and answer["largest"] == 0
    assert answer["tolerance"] == (1e-6 if name == "custom" else 1e-3)
    assert (answer["scores"] is None) == (runs[name].record.scores is None)
    if answer["scores"] is not None:
        assert answer["scores"]["largest"] == 0 and answer["scores"]["agrees"]


def test_an_edited_row_is_told(runs: dict[str, StoredRecord], run: Call, tmp_path: Path) -> None:
    """Status 1, with prompt, configuration and fact; facts that were taken out are told too."""
    first = runs["intervenes"]
    where = {"prompt": "qa", "graft": "LT", "fact": "tiny_movies/5"}
    place = edited(first, tmp_path, where, rank=1, logprob=-0.01, prob=0.99)
    status, out, _ = run("rerun", place, "--device", "cpu")
    assert status == 1 and "qa, LT, tiny_movies/5: rank 1 stored," in " ".join(out.split())
    assert "It differs: all 12 facts run again, 1 of 216 rows differ" in " ".join(out.split())


def test_other_settings_agree(runs: dict[str, StoredRecord], run: Call) -> None:
    """Another batch size rounds otherwise, within the tolerance; a tolerance below that
    is told as a difference.
    """
    place = runs["intervenes"].path
    other = ("--device", "cpu", "--batch-size", 3)
    status, out, _ = run("rerun", place, *other)
    assert status == 0 and "within .001 nats" in out
    assert run("rerun", place, *other, "--tolerance", "1e-12")[0] == 1


# --------------------------------------------------------------------------------------- comparison


def again(run: StoredRecord, tolerance: float = 1e-3, **changes: object) -> Repeated:
    """A run beside itself, some columns of its third row changed."""
    facts = run.facts()
    columns = facts.to_pydict()
    for name, value in changes.items():
        columns[name][2] = value
    return repeated(run.record, facts, pa.table(columns, schema=facts.schema), tolerance)


def test_which_rows_agree(runs: dict[str, StoredRecord]) -> None:
    """Within the tolerance in log-probability, one rank apart at most, the same target; no row more
    and none less.
    """
    run = runs["intervenes"]
    row = run.facts().slice(2, 1).to_pylist()[0]
    assert again(run).agrees and again(run).largest == 0
    assert again(run, logprob=row["logprob"] + 9e-4).agrees
    for changes in (
        {"logprob": row["logprob"] + 2e-3},
        {"rank": row["rank"] + 50},
        {"target": row["target"] + 1},
        {"logit_diff": row["logit_diff"] + 3e-3},
        {"prob": row["prob"] + 2e-3},
    ):
        found = again(run, **changes)
        assert not found.agrees and len(found.others) == 1 and found.others[0].fact == row["fact"]
    less = repeated(run.record, run.facts().slice(1), run.facts(), 1e-3)
    more = repeated(run.record, run.facts(), run.facts().slice(1), 1e-3)
    assert not less.agrees and len(less.missing) == 1 and not more.agrees and len(more.extra) == 1


def test_many_hits_that_flip_are_no_ties(runs: dict[str, StoredRecord]) -> None:
    """A few hits may flip by one rank, as ties do; as many as could move a figure may not."""
    run = runs["intervenes"]
    facts = run.facts()
    ranks = facts["rank"].to_pylist()
    for flips, agrees in ((1, True), (20, False)):
        moved = [6 if i < flips else max(rank, 9) for i, rank in enumerate(ranks)]
        before = [5 if i < flips else max(rank, 9) for i, rank in enumerate(ranks)]
        columns = [{**facts.to_pydict(), "rank": values} for values in (before, moved)]
        found = repeated(run.record, *(pa.table(c, schema=facts.schema) for c in columns), 1e-3)
        assert found.flipped == flips and not found.others and found.agrees == agrees


def scores(values: list[float]) -> list[SiteScore]:
    return [
        SiteScore(layer=i, component="q", region="LT", score=value)
        for i, value in enumerate(values)
    ]


@given(
    st.lists(st.floats(-10, 10).map(lambda x: round(x, 3)), min_size=4, max_size=9),
    st.floats(0.02, 1),
)
def test_maps(values: list[float], moved: float) -> None:
    """A map agrees with itself, and with one of which a score moved by more than a thousandth of
    the spread it does not.
    """
    assert repeated_map(scores(values), scores(values)).agrees
    other = [values[0] + moved * 20, *values[1:]]
    assert not repeated_map(scores(other), scores(values)).agrees or max(values) - min(values) > 20
    assert repeated_map(scores(values), scores(values[1:])).missing == 1


def test_nothing_of_an_earlier_run_is_used(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """A record of the same identity that lies where the record was found does not take the place of
    a run.
    """
    edited(runs["scores"], tmp_path, {"graft": "SFT"}, logprob=-9.0, prob=0.0001234)
    (place,) = tmp_path.iterdir()
    assert run("rerun", place.name[:40], "--output-dir", tmp_path, "--device", "cpu")[0] == 1
    assert RecordStore(tmp_path).load(runs["scores"].record.id).path == place
    assert identity_differences(runs["scores"].record.identity, runs["planted"].record.identity)


def test_a_record_that_counts_ties_for_the_method(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """A record of metric version 1 is shown, on another metric too, compared and run again, and each
    says how ties count.
    """
    stored = runs["custom"]
    what = stored.record.identity.model_copy(update={"metric_version": "1"})
    old = RecordStore(tmp_path).write(
        stored.record.model_copy(update={"identity": what, "id": what.digest()}), stored.facts()
    )
    status, out, _ = run("rerun", str(old), "--device", "cpu", "-q")
    assert status == 0
    assert "It agrees" in out
    assert "metric version 1, which counted ties for the method" in " ".join(out.split())
    assert run("show", str(old))[0] == 0
    assert run("show", str(old), "--metric", "top1")[0] == 0
    status, out, _ = run("compare", str(old), str(stored.path))
    assert status == 0
    assert "A counts ties for the method (metric version 1), B against it" in " ".join(out.split())


# ------------------------------------------------------------------------------ samples and entries

MINE = ("intervenes", "draws")
SMALL = ("--sample", 4, "--seed", 0, "--device", "cpu")
IDS = [f"f/{i}" for i in range(60)]


@given(st.integers(0, 2**32), st.integers(1, 80), st.permutations(IDS))
def test_samples(seed: int, n: int, ids: list[str]) -> None:
    """The same seed draws the same facts whatever their order; as many as asked for or all; a
    larger sample holds a smaller one.
    """
    found = sample_facts(ids, n, seed)
    assert found == sample_facts(IDS, n, seed)
    assert len(found) == min(n, 60)
    assert set(found) <= set(IDS)
    assert set(found) <= set(sample_facts(IDS, n + 1, seed))


def test_seeds_draw_different_facts() -> None:
    """Another seed draws other facts, so that nobody can know which are run again."""
    assert len({sample_facts(IDS, 10, seed) for seed in range(20)}) == 20


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ["intervenes", "scores", "planted", "draws"])
def test_a_fresh_run_agrees(runs: dict[str, StoredRecord], run: Call, name: str) -> None:
    """All rows of the sampled facts, on every prompt and configuration; the map of a method that
    ranks; status 0.
    """
    status, out, _ = run("rerun", runs[name].path, *SMALL, "--json")
    answer = json.loads(out)
    assert status == 0 and answer["agrees"] and len(answer["facts"]) == 4 and not answer["written"]
    n_facts = runs[name].record.identity.n_facts
    assert answer["rows_compared"] == runs[name].facts().num_rows / n_facts * 4
    assert (answer["scores"] is not None) == (runs[name].record.scores is not None)
    assert (
        json.loads(run("rerun", runs[name].path, *SMALL, "--json")[1])["facts"] == answer["facts"]
    )


@pytest.mark.nightly
def test_an_edited_fact_is_told(runs: dict[str, StoredRecord], run: Call, tmp_path: Path) -> None:
    """A fact whose rows were edited is told where it is in the sample; status 1, and nothing is
    written.
    """
    first = runs["intervenes"]
    wrong = edited(first, tmp_path, {"fact": "tiny_movies/7", "graft": "FE"}, rank=1)
    place = submitted(wrong, tmp_path / "leaderboard" / "results")
    status, out, _ = run("rerun", place, "--device", "cpu", "--write")
    assert status == 1
    assert "FE, tiny_movies/7: rank 1 stored" in out
    assert "not written, since it differs" in out
    assert find_run(place, tmp_path).verification is None


def test_an_edited_map_is_told(runs: dict[str, StoredRecord], run: Call, tmp_path: Path) -> None:
    """A map whose scores were edited is told."""
    place = shutil.copytree(runs["scores"].path, tmp_path / "run")
    record = json.loads((place / "record.json").read_text())
    region, component = next((r, c) for r, by in record["scores"].items() for c in by)
    layer = next(iter(record["scores"][region][component]))
    record["scores"][region][component][layer] += 5
    (place / "record.json").write_text(json.dumps(record))
    (place / "seal.json").unlink()
    status, out, _ = run("rerun", place, *SMALL)
    assert status == 1 and "the map of scores differs" in " ".join(out.split())


def test_facts_of_no_data_set_are_told(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """Rows of facts that the data set does not have are told, whatever the sample."""
    place = edited(
        runs["intervenes"], tmp_path, {"fact": "tiny_movies/7"}, fact="tiny_movies/made up"
    )
    status, out, _ = run("rerun", place, *SMALL)
    assert status == 1
    assert "tiny_movies/made up: in the record, and not measured now" in " ".join(out.split())


def test_an_entry_becomes_verified(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path
) -> None:
    """With --write, what was run stands beside an entry that agrees, with hashes of what was
    compared; other entries stay as they were.
    """
    results = tmp_path / "leaderboard" / "results"
    place, other = (submitted(shutil.copytree(runs[n].path, tmp_path / n), results) for n in MINE)
    before = {entry.folder: entry for entry in read_entries(tmp_path / "leaderboard" / "results")}
    status, out, _ = run("rerun", place, "--device", "cpu", "--write")
    assert status == 0 and str(place / "verification.json") in "".join(out.split("\n"))
    entry, same = find_run(place, tmp_path), find_run(other, tmp_path)
    found = entry.verification
    assert found is not None and (found.n, found.rows, found.changed_hits) == (12, 216, 0)
    assert entry.verified and found.drawn
    assert found.record_hash == document_hash(before[place].documents["record.json"])
    assert found.facts_hash == rows_hash(before[place].facts())
    assert 0 <= found.largest_difference <= found.tolerance == 1e-3
    assert "verified: 12 facts (seed " in run("show", place)[1]
    assert same.documents == before[other].documents and same.facts() == before[other].facts()


def test_the_sample_is_not_known_beforehand(runs: dict[str, StoredRecord], run: Call) -> None:
    """Each verification draws a seed of its own, from the machine's randomness."""
    commands = [run("rerun", runs["draws"].path, "--sample", 1, "--json") for _ in range(2)]
    first, second = (json.loads(out)["seed"] for _, out, _ in commands)
    assert first != second


@pytest.mark.parametrize(
    "weak", [("--seed", 5), ("--sample", 11), ("--tolerance", 0.1)], ids=lambda weak: weak[0]
)
def test_no_badge_for_a_weak_sample(
    runs: dict[str, StoredRecord], run: Call, tmp_path: Path, weak: tuple[object, ...]
) -> None:
    """A chosen seed, a part of few facts and a wide tolerance go without --write."""
    entry = shutil.copytree(runs["intervenes"].path, tmp_path / "entry")
    place = submitted(entry, tmp_path / "leaderboard" / "results")
    status, out, err = run("rerun", place, *weak, "--write")
    assert (status, out) == (2, "") and weak[0] in str(err) and "--write" in err
    assert find_run(place, tmp_path).verification is None
