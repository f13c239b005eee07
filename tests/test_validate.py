"""Entries are checked alone, against each other, and against those on the board."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from fake_runs import RATES
from submissions import (
    CODE,
    OTHERS,
    N,
    Sent,
    entries_of,
    findings,
    honest_entries,
    identity,
    off,
    put,
    refused,
    result,
    sent,
)

import kgbench
from kgbench.cli import main
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import Entry, Verification, read_entries
from kgbench.leaderboard.folders import MethodFolder
from kgbench.leaderboard.known import known
from kgbench.leaderboard.validate import CheckedEntry, validate, validate_entries
from kgbench.leaderboard.validate.board import Others
from kgbench.records import (
    SEAL,
    DatasetRef,
    LocalizerRef,
    Record,
    RecordStore,
    Result,
    WeightHashes,
    facts_table,
)
from kgbench.records.fact_rows import STORED, with_derived
from kgbench.sites import BASELINES
from kgbench.stats import rescored

THEIRS = LocalizerRef(name="theirs", version="1 Theirs 0123456789abcdef")


@cache
def honest() -> tuple[Sent, Sent]:
    """A built-in method's entry and that of `my method`, which no test changes."""
    return honest_entries()


def check(*entries: Sent, board: Path | None = None) -> list[str]:
    """Lines of what is refused of entries in memory, after those that are in order."""
    lines = []
    drafts = [CheckedEntry(each.name, dict(each.documents), each.rows) for each in entries]
    for entry in validate_entries(drafts, strict=True, board=board):
        lines += [str(finding) for finding in entry.findings if finding.refuses]
    return lines


@pytest.fixture
def board(tmp_path: Path) -> Path:
    """A board with both entries, of which the first is verified."""
    first, second = honest_entries()
    first.verify()
    return put(tmp_path / "board" / "results", first, second)


@pytest.fixture
def theirs(board: Path, tmp_path: Path) -> Path:
    """A copy of the board that is sent."""
    return Path(shutil.copytree(board, tmp_path / "sent" / "results"))


# --------------------------------------------------------------------------------------------- runs


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run's own folder."""
    return RecordStore(tmp_path / "runs").write(*result())


def test_runs_of_the_engine_are_accepted(tmp_path: Path) -> None:
    """What `kgbench eval` writes stands every check; strict ones lack only a submission."""
    for method, options in (
        ("dynamic_graft", {}),
        ("weight_delta", {"prompts": ["headline"]}),
    ):
        kgbench.evaluate(
            "tiny-gemma",
            localizer=method,
            limit=6,
            metric="top5",
            output_dir=tmp_path,
            **options,
        )
    assert refused(tmp_path, strict=False) == []
    found = [finding for finding in findings(tmp_path) if finding.refuses]
    assert {finding.field for finding in found} == {"file"}
    assert len(list(validate(tmp_path))) == 2


def test_a_record_alone_names_its_folder(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record.json stands for its folder; `--json` prints one object."""
    assert main(["validate", str(run / "record.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(run / "record.json"),
        "strict": False,
        "entries": 1,
        "accepted": 1,
        "findings": [],
    }


RUNS: dict[str, tuple[str, bytes | None, str | None]] = {
    "a picture of its own": ("chart-top5.png", b"", None),
    "its seal": (SEAL, b"{}", None),
    "code": ("method.py", b"", None),
    "no record": ("record.json", None, "RUN/record.json: JSON: it cannot be read"),
    "no rows": ("facts.parquet", None, "RUN/facts.parquet: Parquet: it cannot be read"),
    "no JSON": ("record.json", b"{", "RUN/record.json: JSON: "),
    "no Parquet": ("facts.parquet", b"PAR1", "RUN/facts.parquet: Parquet: it is no whole"),
    "a large record": ("record.json", bytes(2_000_001), "RUN/record.json: JSON: it is too large"),
}


@pytest.mark.parametrize("what", RUNS)
def test_files_of_a_run(what: str, run: Path) -> None:
    """Record and rows are read, and nothing else, for only they are submitted."""
    name, content, expected = RUNS[what]
    if content is None:
        (run / name).unlink()
    else:
        (run / name).write_bytes(content)
    found = list(map(str, findings(run, strict=False)))
    assert [text.startswith((expected or "").replace("RUN", run.name)) for text in found] == (
        [True] if expected else []
    )


def test_the_line_that_counts_comes_first(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Then what is refused; the exit status says whether all is in order."""
    (run / "record.json").write_bytes(b"{}")
    assert main(["validate", str(run.parent)]) == 1
    first, *lines = capsys.readouterr().out.splitlines()
    assert first == "0 of 1 entry is in order (not --strict)"
    assert lines and all(line.startswith(f"{run.name}/record.json: ") for line in lines)


def test_unknown_data_and_models_are_remarked_upon(tmp_path: Path) -> None:
    """A run on one's own data and models is in order by itself, with a note; on the board it is
    refused.
    """
    data = DatasetRef(name="mine", hash="0" * 64, n=150)
    weights = identity().weights.model_copy(update={"recipient": "1" * 64})
    made = result(identity(dataset=data, weights=weights))
    made = (made[0].model_copy(update={"model": "mine"}), made[1])
    run = RecordStore(tmp_path / "runs").write(*made)
    found = findings(run, strict=False)
    assert {finding.field for finding in found} == {"identity.dataset.name", "model"}
    assert not any(finding.refuses for finding in found)
    assert len(check(sent(made))) == 2


def test_forwards_that_rank_sites_have_rows_of_their_own() -> None:
    """A ranking may take more forwards than all configurations have token rows."""
    entry = sent(result())
    cost = entry.record["cost"]
    rows = 100 * cost["token_rows"]
    scoring = {"forwards": rows // 10, "token_rows": rows, "seconds": 99 * cost["seconds"]}
    ratio = [round(100 * value, 3) for value in cost["plain_forward_ratio"][:3]]
    cost["scoring"] = scoring | {"plain_forward_ratio": [*ratio, 1]}
    cost["seconds"] *= 100
    cost["forwards"] += scoring["forwards"]
    cost["plain_forward_ratio"][:3] = ratio
    entry.seal()
    assert check(entry) == []


def test_no_model_is_needed(board: Path) -> None:
    """Neither torch nor what loads models is imported, whatever is checked."""
    code = (
        "import sys; from kgbench.cli import main; assert main(['validate', '--strict',"
        f" {str(board)!r}]) == 0; assert not {{'torch', 'transformers'}} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# ------------------------------------------------------------------------ entries beside each other


def test_a_result_stands_on_the_board_once(board: Path) -> None:
    """The same id under two names is refused, and the finding names both."""
    first, _ = honest()
    copy = Sent(first.place, "copy", first.documents, first.rows)
    wrong = f"record.json: id: the same result is in {first.name}; expected each result once"
    assert check(first, copy) == [f"copy/{wrong}"]
    assert check(copy, board=board) == [f"copy/{wrong}"]


def variant(name: str = "my method", code: str = CODE, draw: int = 2, **parameters: Any) -> Sent:
    """Another run of the submitted method, with these parameters."""
    method = LocalizerRef(name="my_method", version=OTHERS.version, parameters=parameters)
    what = identity(localizer=method, seeds=(parameters.get("seed", 0),))
    return sent(result(what, {**RATES, "FE": 0.3}, seed=draw), name, code)


NAMED: dict[str, tuple[Sent, str]] = {
    "another seed": (variant(draw=3, seed=7), ""),
    "other parameters": (variant(seed=7, strength=2), "name: my method is 'my_method "),
    "parameters in brackets": (variant("my method (strength=3)", strength=3), ""),
    "a newer version of the package": (variant(code="My_Method==2.0", seed=7), ""),
    "another repository": (
        variant(code="https://github.com/ada/my-method@0123abc", seed=7),
        "code: my method is from https://github.com/ada/my-method here, and from 'my-method'",
    ),
}


@pytest.mark.parametrize("what", NAMED)
def test_a_name_is_one_method_of_one_origin(what: str) -> None:
    """Other parameters are another method, and a name belongs to its code."""
    entry, expected = NAMED[what]
    found = check(*honest(), entry)
    start = f"{entry.name}/submission.json: {expected}"
    assert [text.startswith(start) for text in found] == ([True] if expected else []), found


LOOKALIKES = (
    *("dynamic_graft (verified)", "dynamic_graft (v2)", "dynamicgraft", "DynamicGraft"),
    *("Dynamic-Graft", "sn1p", "m (yours)", "m (verified)", "self-reported", "MyMethod"),
    *("my-rnethod", "my method (v2)", "my(+++=+=+x"),
    *("Rank 1", "1st", "top", "the best method", "kgbench", "kgbench core team", "peer reviewed"),
    *("confirmed", "re-run by maintainers", "verifiedx", "dynamic-graft v2", "dynamic_graft 2"),
    *("dynamic_grafts", "graft scan 2", "www.evil.example", "random 2"),
)


def test_names_that_look_like_another_are_refused() -> None:
    """A name is neither taken for another method's nor for a word of the board's own."""
    made = result(identity(localizer=THEIRS), {**RATES, "FE": 0.3}, seed=3)
    for name in LOOKALIKES:
        entry = sent(made, name, "theirs==1.0")
        start = f"{entry.name}/submission.json: name: "
        assert any(text.startswith(start) for text in check(*honest(), entry)), name
    for name in ("theirs", "rank one edits", "top k masks", "first order 2.5", "small grafts"):
        assert check(*honest(), sent(made, name, "theirs==1.0")) == [], name


@pytest.mark.parametrize(
    ("address", "fault"),
    [
        *((number, "no public host") for number in ("127.0.0.1/ada/it", "8.8.8.8/ada/it")),
        *((name, "no public host") for name in ("localhost/it", "git.local/it", "intranet/it")),
        ("2130706433/ada/it", "no public host"),
        ("git.corp.internal/ada/it", "no public host"),
        ("github.com/you/my-method", "a placeholder"),
        ("github.com/OWNER/REPOSITORY", "a placeholder"),
        ("github.com/YOUR-USERNAME/localizer", "a placeholder"),
        ("github.com/ada/your_repo.git", "a placeholder"),
        ("example.org/ada/method", "a placeholder"),
        ("github.com/ada/my-method", None),
        ("codeberg.org/ada/it", None),
        ("youtube.com/ada", None),
    ],
)
def test_code_and_paper_are_on_public_hosts(address: str, fault: str | None) -> None:
    """What a reader's browser is sent to is the same place for everybody, and somebody's own."""
    made = result(identity(localizer=THEIRS), {**RATES, "FE": 0.3}, seed=3)
    coded = sent(made, "theirs", f"https://{address}@0123abc")
    cited = sent(made, "theirs", "theirs==1.0")
    cited.submission["paper"] = f"https://{address}"
    for entry, field in ((coded, "code"), (cited, "paper")):
        found = check(*honest(), entry)
        start = f"{entry.name}/submission.json: {field}: "
        assert [text.startswith(start) for text in found] == [True] * bool(fault), found
        assert all(str(fault) in text for text in found)


def test_another_s_rows_are_no_method_s_own() -> None:
    """Rows that are those of another method, under a name of one's own, are refused."""
    entry = sent(result(identity(localizer=THEIRS)), "theirs", "theirs==1.0")
    (found,) = check(*honest(), entry)
    wrong = "facts.parquet: rank: all ranks are those of 'dynamic_graft'"
    assert found.startswith(f"{entry.name}/{wrong}")


def missed(facts: pa.Table, rows: np.ndarray) -> pa.Table:
    """Per-fact rows of which some are made misses."""
    columns = {name: facts[name].to_numpy(zero_copy_only=False).copy() for name in STORED.names}
    for name, value in (("rank", 37), ("logprob", -9.0), ("logit_diff", -3.0)):
        columns[name][rows] = value
    return with_derived(pa.table(columns, STORED))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_answers_in_16_bits_are_those_of_the_models(dtype: str) -> None:
    """They are compared with those in single precision, as near as rounding leaves them."""
    weights = dict(known().pairs["tiny-gemma"].weights[dtype])
    hashes = WeightHashes(recipient=weights.pop("recipient"), donors=weights)
    record, facts = result(identity(localizer=THEIRS, dtype=dtype, weights=hashes), seed=3)
    assert check(sent((record, facts), "theirs", "theirs==1.0")) == []
    rows = missed(facts, np.array([graft == "SFT" for graft in facts["graft"].to_pylist()]))
    (found,) = check(sent((rescored(record, rows), rows), "theirs", "theirs==1.0"))
    assert "SFT on headline: " in found and "what is known of tiny-gemma" in found


@pytest.mark.parametrize(("share", "noted"), [(0.004, True), (0.05, False)])
def test_a_copy_with_some_ranks_altered_is_noted(share: float, noted: bool) -> None:
    """More than 99 % of ranks in common is a note, since two honest methods may come close."""
    record, facts = result(identity(localizer=THEIRS))
    grafted = np.array([graft not in BASELINES for graft in facts["graft"].to_pylist()])
    altered = np.flatnonzero(grafted)[: max(1, int(share * grafted.sum()))]
    rows = missed(facts, altered)
    entry = sent((rescored(record, rows), rows), "theirs", "theirs==1.0")
    drafts = [CheckedEntry(e.name, dict(e.documents), e.rows) for e in (*honest(), entry)]
    found = list(validate_entries(drafts, strict=True))[-1].findings
    told = [finding for finding in found if finding.field == "rank"]
    assert [finding.refuses for finding in told] == ([False] if noted else []), found
    assert not noted or "% of ranks are those of 'dynamic_graft'" in str(told[0])


def test_a_second_run_of_a_method_on_a_cell_is_refused() -> None:
    """Neither one more configuration nor fewer prompts make room for other figures of a method."""
    rates = {**RATES, "FE+LT": 0.2, "FE@1": 0.1}
    more = sent(result(identity(configurations=tuple(rates)), rates, seed=3))
    what, facts = result(identity(prompts={"qa": identity().prompts["qa"]}), seed=5)
    rows = facts.filter(pa.array([prompt == "qa" for prompt in facts["prompt"].to_pylist()]))
    fewer = sent((rescored(what, rows), rows))
    for entry, prompt in ((more, "headline"), (fewer, "qa")):
        found = check(*honest(), entry)
        wrong = f"identity: dynamic_graft has a run of pathways on {prompt}"
        assert any(text.startswith(f"{entry.name}/record.json: {wrong}") for text in found), found


def alone(name: str, record: Record, facts: pa.Table) -> Entry:
    """A run as it is compared with others."""
    home = MethodFolder(Path(), {}, {name: facts.select(STORED.names)})
    return Entry(Path(name), record, None, None, home)


def test_the_same_models_give_the_same_answers() -> None:
    """PRE and SFT do not depend on the method, so that another entry knows them, at whatever
    position they are read.
    """
    what, facts = result(identity(localizer=OTHERS, seeds=(1,)), seed=2)
    columns = {name: facts[name] for name in facts.column_names}
    elsewhere = facts_table({**columns, "position": facts["position"].to_numpy() + 1})
    for rows, column, words in (
        (off(facts, "SFT"), "logprob", "is off by 0.02"),
        (elsewhere, "position", "is off by 1"),
    ):
        others = Others()
        again = result(identity(seeds=(2,)))[0]
        assert not others.compared(alone("a", what, facts))
        (found,) = others.compared(alone("b", again, rows))
        assert found.field == column and words in found.wrong
        assert str(found.expected).startswith("the answers in a")
    twice = pa.concat_tables([facts, elsewhere])
    found = check(sent((rescored(what, twice), twice), "my method", CODE))
    assert any("60 rows of 30 facts" in text for text in found)


# ----------------------------------------------------------------------- what is on the board stays


def test_what_is_on_the_board_is_believed(board: Path, theirs: Path) -> None:
    """Entries that are there come first: a forger's that would sort before them does not make
    theirs look wrong.
    """
    assert refused(theirs, beside=board) == []
    what, facts = result(identity(localizer=OTHERS, seeds=(1,)), seed=2)
    moved = off(facts, "PRE")
    forged = sent((rescored(what, moved), moved), "Aaa", "aaa==1.0")
    (found,) = refused(put(theirs, forged), beside=board)
    assert found.startswith(f"{forged.name}/facts.parquet: logprob: PRE on headline")


def test_an_entry_is_never_edited(board: Path, theirs: Path) -> None:
    """Other rows under an entry's own id are refused, and status is 1."""
    first = entries_of(board)[0]
    other = sent(result(rates={**RATES, "LT": 0.9}))
    assert other.name == first.name
    other.documents["record.json"] = first.record
    other.seal()
    found = refused(put(theirs, other), beside=board)
    wrong = "file: it is another one than on the board"
    assert [text.partition("; ")[0] for text in found] == [
        f"{first.name}/facts.parquet: {wrong}",
        f"{first.name}/submission.json: {wrong}",
        f"{first.name}/verification.json: file: it is gone",
    ]
    assert main(["validate", "--strict", "--against", str(board), str(theirs)]) == 1


def test_an_entry_that_is_gone_is_a_line_of_its_own(board: Path, theirs: Path) -> None:
    """Nobody deletes another's entries or verification by leaving them out."""
    first, second = entries_of(board)
    first.documents.pop("verification.json")
    put(theirs, first)
    shutil.rmtree(theirs / second.place)
    assert refused(theirs, beside=board) == [
        f"{first.name}/verification.json: file: it is gone; expected entries as they are, and new ones with them",
        f"{second.name}: entry: it is on the board, and gone here; expected every entry of the "
        f"board, or --withdraw {second.name} by those who keep it",
    ]


def test_those_who_keep_the_board_withdraw(board: Path, theirs: Path) -> None:
    """A withdrawn entry, named by its own name or its method's, may be gone or give way to a new
    version.
    """
    _, second = honest()
    shutil.rmtree(theirs / second.place)
    arguments = ["validate", "--strict", "--against", str(board), str(theirs)]
    assert main(arguments) == 1
    newer = LocalizerRef(name="my_method", version="2 MyMethod 0123456789abcdef")
    made = result(identity(localizer=newer), {**RATES, "FE": 0.4}, seed=4)
    for name in (second.name, "my method"):
        assert main([*arguments, "--withdraw", name]) == 0
    put(theirs, sent(made, "my method", CODE))
    assert main([*arguments, "--withdraw", "my method"]) == 0
    assert main([*arguments, "--withdraw", "nothing"]) == 2


def test_nobody_verifies_their_own_result(board: Path, theirs: Path) -> None:
    """A verification that is not on the board already is refused in what is sent."""
    second = entries_of(board)[1]
    second.verify()
    (found,) = refused(put(theirs, second), beside=board)
    assert found.startswith(f"{second.name}/verification.json: file: it comes with the result")
    assert refused(theirs) == []


def test_nobody_but_the_project_runs_its_methods_for_it(board: Path, tmp_path: Path) -> None:
    """A run of a built-in method, with its parameters or others, is self-reported where somebody
    sends it, and one without that word is refused; the project adds its own without a check of
    what is new.
    """
    for draw, parameters in enumerate(({}, {"n": 3})):
        method = LocalizerRef(name="random", version="1", parameters={"seed": 0, **parameters})
        what = identity("tiny-gpt2", localizer=method)
        made = result(what, model="tiny-gpt2", seed=9 + draw)
        name = "random (n=3)" if parameters else "random"
        entry, own = (sent(made, name, source=source) for source in ("self-reported", None))
        assert not [line for line in check(entry, board=board) if "source" in line]
        (line,) = [line for line in check(own, board=board) if "source" in line]
        assert "submission.json: source: it is missing, of a built-in method" in line
        assert not [line for line in check(own) if "source" in line]
        for each, badge in ((entry, "self-reported"), (own, "maintainers")):
            (there,) = read_entries(put(tmp_path / f"{badge} {draw}", each))
            assert there.badge == badge


def test_a_small_or_known_sample_verifies_nothing(tmp_path: Path) -> None:
    """A badge needs all facts, or 200 that nobody knew beforehand."""
    entry = sent(result())
    for n, counts in ((5, False), (N - 1, False), (N, True)):
        entry.verify(n=n, rows=18 * n)
        results = put(tmp_path / "results", entry)
        (there,) = read_entries(results)
        assert there.verified == counts
        notes = [str(finding) for finding in findings(results) if "limit" not in finding.field]
        assert len(notes) == (not counts)
        assert all("known facts of 30" in note and note.startswith("note") for note in notes)
    large = identity(n=1000, limit=None, dataset=DatasetRef(name="large", hash="0" * 64, n=1000))
    record = Result.model_validate(entry.record).model_copy(update={"identity": large})
    checked = there.verification
    assert checked is not None
    for n, drawn, counts in ((200, True, True), (199, True, False), (200, None, False)):
        sampled = Verification.model_validate({**checked.to_json(), "n": n, "drawn": drawn})
        assert sampled.counts(record) == counts


def test_metric_version_1_stays_on_the_board_and_comes_to_it_no_more(tmp_path: Path) -> None:
    """Entries whose ties count for the method are valid and marked where they stand; as new ones
    they are refused.
    """
    mine = sent(result(identity(localizer=OTHERS), {**RATES, "FE": 0.4}), "my method", CODE)
    board = put(tmp_path / "board", sent(result(identity(metric_version="1"))), mine)
    assert refused(board) == [] and refused(board, beside=board) == []
    late = sent(result(identity(metric_version="1", seeds=(1,)), seed=1))
    assert check(late) == []
    seed, found = check(late, board=board)
    assert "identity.seeds: it is [1]; expected 0: " in seed
    wrong = "identity.metric_version: it is 1, in which ties count for the method"
    assert found.startswith(f"{late.name}/record.json: {wrong}; expected 2; run it again")
    boards = {
        board.key: board.tables for board in make_leaderboard(list(read_entries(board))).boards
    }
    notes = boards["pathways"][1].notes
    assert notes == ("metric version 1: ties counted for the method (dynamic_graft)",)
