"""Entries are held against each other, against those on the board, and against what says that they
were run again.
"""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fake_runs import RATES
from pydantic import ValidationError
from submissions import (
    CODE,
    OTHERS,
    findings,
    honest_entries,
    identity,
    off,
    refused,
    result,
    write_entry,
)

from kgbench.cli import main
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import FILES, Verification, read_entries, read_entry
from kgbench.leaderboard.validate.board import Others
from kgbench.records import DatasetRef, LocalizerRef, Record, facts_table
from kgbench.stats import rescored

RECORD, FACTS, _, VERIFICATION = FILES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return honest_entries(tmp_path_factory.mktemp("results"))


def lines(path: Path, beside: Path) -> list[str]:
    """All that is found beside a board."""
    return [str(finding) for finding in findings(path, beside=beside)]


# ------------------------------------------------------------------------ entries beside each other


def test_a_result_stands_on_the_board_once(honest: Path, tmp_path: Path) -> None:
    """The same id in two folders is refused, and the finding names both."""
    shutil.copytree(honest, tmp_path / "results")
    shutil.copytree(honest / "a-built-in", tmp_path / "results" / "copy")
    assert refused(tmp_path / "results") == [
        "copy/record.json: id: the same result is in a-built-in; expected each result once"
    ]


def test_a_name_stands_for_one_method(honest: Path, tmp_path: Path) -> None:
    """Other parameters are another method; another seed is not."""
    shutil.copytree(honest, tmp_path / "results")
    for folder, parameters in (("seed", {"seed": 7}), ("tuned", {"seed": 7, "strength": 2})):
        method = LocalizerRef(name="my_method", version=OTHERS.version, parameters=parameters)
        made = result(identity(localizer=method, seeds=(7,)), seed=2)
        write_entry(tmp_path / "results" / folder, made, "my method", CODE)
    found = refused(tmp_path / "results")
    assert len(found) == 1
    assert found[0].startswith("tuned/submission.json: name: 'my method' is 'my_method'")


def test_the_same_models_give_the_same_answers(honest: Path, tmp_path: Path) -> None:
    """PRE and SFT do not depend on the method, so that another entry knows them."""
    shutil.copytree(honest, tmp_path / "results")
    what, facts = result(identity(localizer=OTHERS, seeds=(1,)), seed=2)
    moved = off(facts, "SFT")
    write_entry(tmp_path / "results" / "c", (rescored(what, moved), moved), "my method", CODE)
    (found,) = refused(tmp_path / "results")
    assert found.startswith("c/facts.parquet: logprob: SFT on headline: fact 'tiny_movies/")
    assert "is off by 0.02 nats; expected what is known of tiny-gemma" in found
    others = Others()
    assert others.compare("a", what, facts, None) == []
    (beside,) = others.compare("b", result(identity(seeds=(2,)))[0], moved, None)
    assert "is off by 0.02 nats; expected the answers in a" in str(beside)


def test_what_is_on_the_board_is_believed(honest: Path, tmp_path: Path) -> None:
    """Entries that are there come first: a forger's that would sort before them does not make
    theirs look wrong.
    """
    shutil.copytree(honest, tmp_path / "board")
    shutil.copytree(honest, tmp_path / "sent")
    assert [
        text for text in lines(tmp_path / "sent", tmp_path / "board") if "limit" not in text
    ] == []
    what, facts = result(identity(localizer=OTHERS, seeds=(1,)), seed=2)
    moved = off(facts, "PRE")
    write_entry(tmp_path / "sent" / "Aaa", (rescored(what, moved), moved), "my method", CODE)
    (found,) = [
        text for text in lines(tmp_path / "sent", tmp_path / "board") if not text.startswith("note")
    ]
    assert found.startswith("Aaa/facts.parquet: logprob: PRE on headline")
    shutil.rmtree(tmp_path / "sent" / "Aaa")
    write_entry(
        tmp_path / "sent" / "c",
        result(identity(localizer=OTHERS, seeds=(1,)), seed=2),
        "my method",
        CODE,
    )
    assert refused(tmp_path / "sent", beside=tmp_path / "board") == []


# ----------------------------------------------------------------------- what is on the board stays


def board_and_sent(honest: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A board with a verified entry, and a copy of it that is sent."""
    board = shutil.copytree(honest, tmp_path / "board")
    verified(board / "a-built-in")
    return board, shutil.copytree(board, tmp_path / "sent")


def test_an_entry_is_never_edited(honest: Path, tmp_path: Path) -> None:
    """Other rows and figures under an entry's own id are refused, and status is 1."""
    board, sent = board_and_sent(honest, tmp_path)
    shutil.rmtree(sent / "a-built-in")
    write_entry(sent / "a-built-in", result(rates={**RATES, "LT": 0.9}))
    found = refused(sent, beside=board)
    assert [text.partition("; ")[0] for text in found] == [
        "a-built-in/record.json: file: it is another one than on the board",
        "a-built-in/facts.parquet: file: it is another one than on the board",
        "a-built-in/submission.json: file: it is another one than on the board",
        "a-built-in/verification.json: file: it is gone",
    ]
    assert main(["validate", "--strict", "--beside", str(board), str(sent)]) == 1


def test_an_entry_that_is_gone_is_a_line_of_its_own(honest: Path, tmp_path: Path) -> None:
    """Nobody deletes another's entries or verification by leaving them out."""
    board, sent = board_and_sent(honest, tmp_path)
    (sent / "a-built-in" / VERIFICATION).unlink()
    shutil.rmtree(sent / "b-other")
    assert refused(sent, beside=board) == [
        f"a-built-in/{VERIFICATION}: file: it is gone; expected the file that is on the board",
        (
            "b-other: entry: it is on the board, and gone here; expected every entry of the board,"
            " or --withdraw b-other by those who keep it"
        ),
    ]
    assert refused(sent / "a-built-in", beside=board)[1:] == []


@pytest.mark.parametrize("name", ["b-other", "my method"])
def test_those_who_keep_the_board_withdraw(honest: Path, tmp_path: Path, name: str) -> None:
    """A withdrawn entry, named by folder or method, may be gone or give way to a new version."""
    board, sent = board_and_sent(honest, tmp_path)
    shutil.rmtree(sent / "b-other")
    arguments = ["validate", "--strict", "--beside", str(board), str(sent)]
    assert main(arguments) == 1
    assert main([*arguments, "--withdraw", name]) == 0
    newer = LocalizerRef(name="my_method", version="2 MyMethod 0123456789abcdef")
    rates = {**RATES, "FE": 0.4}
    write_entry(sent / "c", result(identity(localizer=newer), rates, seed=4), "my method", CODE)
    assert main([*arguments, "--withdraw", name]) == 0
    assert main([*arguments, "--withdraw", "nothing"]) == 2


# -------------------------------------------------------------------- one run of a method on a cell


def test_a_second_run_of_a_method_on_a_cell_is_refused(honest: Path, tmp_path: Path) -> None:
    """Neither one more configuration nor fewer prompts make room for other figures of a method."""
    board, sent = board_and_sent(honest, tmp_path)
    rates = {**RATES, "FE+LT": 0.2, "FE@1": 0.1}
    more = identity(configurations=tuple(rates))
    write_entry(sent / "more", result(more, rates, seed=3))
    prompts = {"qa": identity().prompts["qa"]}
    write_entry(sent / "qa", only_qa(result(identity(prompts=prompts), seed=5)))
    found = [text for text in refused(sent, beside=board) if "identity" in text]
    assert [text.partition("; ")[0] for text in found] == [
        (
            "more/record.json: identity: 'dynamic_graft' has a run of pathways on headline in"
            " a-built-in"
        ),
        "qa/record.json: identity: 'dynamic_graft' has a run of pathways on qa in a-built-in",
    ]


def only_qa(made: tuple[Record, pa.Table]) -> tuple[Record, pa.Table]:
    what, facts = made
    rows = facts.filter(pa.array([prompt == "qa" for prompt in facts["prompt"].to_pylist()]))
    return rescored(what, rows), rows


def test_a_name_belongs_to_its_code(honest: Path, tmp_path: Path) -> None:
    """Another repository does not continue a method; another version of the same package does."""
    seven = LocalizerRef(name="my_method", version=OTHERS.version, parameters={"seed": 7})
    for name, code in (
        ("theirs", "https://example.org/x/my-method@0123abc"),
        ("newer", "My_Method==2.0"),
    ):
        sent = shutil.copytree(honest, tmp_path / name)
        write_entry(
            sent / "c", result(identity(localizer=seven, seeds=(7,)), seed=3), "my method", code
        )
        found = refused(sent, beside=honest)
        assert [text.partition("; ")[0] for text in found] == {
            "newer": [],
            "theirs": [
                "c/submission.json: code: 'my method' is from 'https://example.org/x/my-method'"
                " here, and from 'my-method' in b-other"
            ],
        }[name]


LOOKALIKES = (
    "dynamic_graft (verified)",
    "dynamic_graft (v2)",
    "dynamicgraft",
    "DynamicGraft",
    "Dynamic-Graft",
    "sn1p",
    "m (yours)",
    "m (verified)",
    "self-reported",
    "MyMethod",
    "my-rnethod",
    "my method (v2)",
    "my(+++=+=+x",
)


@pytest.mark.parametrize("name", LOOKALIKES)
def test_names_that_look_like_another_are_refused(honest: Path, tmp_path: Path, name: str) -> None:
    """A name is neither taken for another method's nor for a word of the board's own."""
    sent = shutil.copytree(honest, tmp_path / "sent")
    other = LocalizerRef(name="theirs", version="1 Theirs 0123456789abcdef")
    rates = {**RATES, "FE": 0.3}
    write_entry(sent / "c", result(identity(localizer=other), rates, seed=3), name, "theirs==1.0")
    assert any(
        text.startswith("c/submission.json: name: ") for text in refused(sent, beside=honest)
    )


def test_another_s_rows_are_no_method_s_own(honest: Path, tmp_path: Path) -> None:
    """Rows that are those of another method, under a name of one's own, are refused."""
    sent = shutil.copytree(honest, tmp_path / "sent")
    other = LocalizerRef(name="theirs", version="1 Theirs 0123456789abcdef")
    write_entry(sent / "c", result(identity(localizer=other)), "theirs", "theirs==1.0")
    (found,) = refused(sent, beside=honest)
    assert found.startswith("c/facts.parquet: rank: all ranks are those of 'dynamic_graft'")


def test_ids_that_share_their_pages_are_refused() -> None:
    """An entry is known by the first twelve digits of its id, in folders and pages."""
    record, _ = result()
    others = Others(ids={record.id[:12]: "first"})
    (found,) = others.compare("second", record, None, None)
    assert str(found).startswith("second/record.json: id: the same result is in first")


def test_answers_are_compared_at_any_position(honest: Path, tmp_path: Path) -> None:
    """Other positions do not take PRE and SFT out of the comparison with the board."""
    sent = shutil.copytree(honest, tmp_path / "sent")
    theirs = LocalizerRef(name="theirs", version="1 Theirs 0123456789abcdef")
    what, facts = result(identity(localizer=theirs), {**RATES, "FE": 0.4}, seed=3)
    columns = {name: facts[name] for name in facts.column_names}
    moved = facts_table({**columns, "position": facts["position"].to_numpy() + 1})
    others = Others()
    assert others.compare("a", result()[0], facts, None) == []
    (found,) = others.compare("c", what, moved, None)
    assert "is read at another position" in str(found)
    other = facts_table({**columns, "position": facts["position"].to_numpy() + 2})
    twice = pa.concat_tables([facts, other])
    write_entry(sent / "c", (rescored(what, twice), twice), "theirs", "theirs==1.0")
    assert any("60 positions of 30 facts are read" in text for text in refused(sent, beside=honest))


@pytest.mark.parametrize("column", ["position", "target", "logprob", "rank"])
def test_answers_of_a_shipped_pair_are_known(tmp_path: Path, column: str) -> None:
    """Where no other entry is beside it, a false PRE or SFT is refused, and honest ones are not."""
    what, facts = result()
    pre = np.array([graft == "PRE" for graft in facts["graft"].to_pylist()])
    columns = {name: facts[name] for name in facts.column_names}
    values = facts[column].to_numpy().copy()
    if column == "rank":
        values[pre] = np.where(values[pre] > 5, 5, values[pre])
    elif column == "logprob":
        values[pre] -= 0.02
        columns["prob"] = np.exp(values)
    else:
        values += 1
    moved = facts_table({**columns, column: values})
    write_entry(tmp_path / "results" / "a-false", (rescored(what, moved), moved))
    rates = {**RATES, "FE": 0.4}
    write_entry(
        tmp_path / "results" / "b", result(identity(localizer=OTHERS), rates), "my method", CODE
    )
    (found,) = refused(tmp_path / "results")
    assert found.startswith(f"a-false/facts.parquet: {column}: PRE on headline: ")
    assert found.endswith("expected what is known of tiny-gemma")


def test_arguments_of_a_method_stand_in_brackets(honest: Path, tmp_path: Path) -> None:
    """A variant has its argument in its name, and is of the code that the name belongs to."""
    sent = shutil.copytree(honest, tmp_path / "sent")
    tuned = LocalizerRef(
        name="my_method", version=OTHERS.version, parameters={"seed": 0, "strength": 3}
    )
    made = result(identity(localizer=tuned), {**RATES, "FE": 0.3}, seed=3)
    write_entry(sent / "c", made, "my method (strength=3)", CODE)
    assert refused(sent, beside=honest) == []


# ------------------------------------------------------------------------------------- verification


def test_nobody_verifies_their_own_result(honest: Path, tmp_path: Path) -> None:
    """A verification that is not on the board already is refused in what is sent; one that is
    stays.
    """
    shutil.copytree(honest, tmp_path / "board")
    verified(tmp_path / "board" / "a-built-in")
    shutil.copytree(tmp_path / "board", tmp_path / "sent")
    assert [
        text for text in lines(tmp_path / "sent", tmp_path / "board") if "limit" not in text
    ] == []
    verified(tmp_path / "sent" / "b-other")
    found = [
        text for text in lines(tmp_path / "sent", tmp_path / "board") if not text.startswith("note")
    ]
    assert [text.partition("; ")[0] for text in found] == [
        f"b-other/{VERIFICATION}: file: it comes with the result"
    ]
    assert refused(tmp_path / "sent") == []


def verified(entry: Path, **changes: object) -> None:
    record = Record.model_validate_json((entry / RECORD).read_bytes())
    content = {
        "record": record.id,
        "facts_hash": sha256((entry / FACTS).read_bytes()).hexdigest(),
        "kgbench": "0.1.0",
        "platform": "Linux",
        "time": "2026-01-01T00:00:00+00:00",
        "seed": 0,
        "n": 30,
        "rows": 540,
        "largest_difference": 1e-6,
        "changed_hits": 0,
        "tolerance": 0.001,
    }
    try:
        text = Verification.model_validate({**content, **changes}).to_json()
    except ValidationError:
        text = json.dumps({**content, **changes})
    (entry / VERIFICATION).write_text(text)


def test_a_small_or_known_sample_verifies_nothing(honest: Path, tmp_path: Path) -> None:
    """A badge needs all facts, or 200 that nobody knew beforehand."""
    entry = shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    for n, counts in ((5, False), (29, False), (30, True)):
        verified(entry, n=n, rows=18 * n)
        assert read_entry(entry).verified == counts
        assert refused(entry) == []
        told = [text for text in lines(entry, tmp_path / "no") if "limit" not in text]
        assert [text for text in told if "known facts of 30" in text] == (
            [] if counts else told[:1]
        )
    record = read_entry(entry).record.model_copy(update={"identity": identity(n=1000, limit=None)})
    record = record.model_copy(
        update={"identity": record.identity.model_copy(update={"dataset": LARGE})}
    )
    fields = {"record": record.id, "facts_hash": "", "kgbench": "", "platform": "", "time": ""}
    sampled = {
        **fields,
        "seed": 3,
        "rows": 1,
        "largest_difference": 0,
        "changed_hits": 0,
        "tolerance": 1,
    }
    assert Verification(**sampled, n=200, drawn=True).counts(record)
    assert not Verification(**sampled, n=199, drawn=True).counts(record)
    assert not Verification(**sampled, n=200).counts(record)


LARGE = DatasetRef(name="large", hash="0" * 64, n=1000)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, ""),
        ({"record": "0" * 64}, "record"),
        ({"facts_hash": "0" * 64}, "facts_hash"),
        ({"largest_difference": 0.5}, "largest_difference"),
        ({"n": 31, "rows": 558}, "n"),
        ({"rows": 0}, "rows"),
        ({"n": 30, "rows": 30}, "rows"),
        ({"record_hash": "0" * 64}, "record_hash"),
        ({"tolerance": 1000}, "tolerance"),
        ({"changed_hits": 100}, "changed_hits"),
        ({"platform": "<b>"}, "platform"),
    ],
)
def test_a_verification_goes_with_its_rows(
    honest: Path, tmp_path: Path, changes: dict[str, object], field: str
) -> None:
    """Whoever changes record or rows after a verification loses it."""
    shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    verified(tmp_path / "entry", **changes)
    found = refused(tmp_path / "entry")
    assert [text.startswith(f"entry/{VERIFICATION}: {field}: ") for text in found] == [True] * bool(
        field
    )


def test_a_tie_at_rank_1_is_no_answer(honest: Path, tmp_path: Path) -> None:
    """Rows in which the target shares the largest logit are refused at rank 1, whatever version of
    the metrics they are of.
    """
    for version in ("1", "2"):
        what, facts = result(identity(metric_version=version))
        tied = np.where(facts["rank"].to_numpy() == 1, 0.0, facts["logit_diff"].to_numpy())
        logprob = np.minimum(facts["logprob"].to_numpy(), np.log(0.5))
        columns = {name: facts[name] for name in facts.column_names}
        rows = facts_table(
            {**columns, "logit_diff": tied, "logprob": logprob, "prob": np.exp(logprob)}
        )
        write_entry(tmp_path / version, (rescored(what, rows), rows))
        assert any(
            "logit_diff: a tie at rank 1 in" in text
            for text in refused(tmp_path / version, strict=False)
        )


def test_metric_version_1_stays_on_the_board_and_comes_to_it_no_more(tmp_path: Path) -> None:
    """Entries whose ties count for the method are valid and marked where they stand; as new ones
    they are refused.
    """
    results = tmp_path / "results"
    write_entry(results / "old", result(identity(metric_version="1")))
    write_entry(
        results / "new", result(identity(localizer=OTHERS), {**RATES, "FE": 0.4}), "my method", CODE
    )
    assert refused(results) == [] and refused(results, beside=results) == []
    write_entry(
        tmp_path / "sent" / "late", result(identity(metric_version="1", seeds=(1,)), seed=1)
    )
    assert refused(tmp_path / "sent") == []
    assert refused(tmp_path / "sent" / "late", beside=results) == [
        "late/record.json: identity.metric_version: it is 1, in which ties count for the method;"
        " expected 2; run it again"
    ]
    (note,) = findings(tmp_path / "sent", strict=False)
    assert not note.refuses and note.field == "identity.metric_version"
    tables = {
        board.key: board.tables for board in make_leaderboard(list(read_entries(results))).boards
    }
    assert tables["pathways"][1].notes == (
        "metric version 1: ties counted for the method (dynamic_graft)",
    )
