"""Entries are held against each other, against those on the board, and against what says that they were run again."""

from __future__ import annotations

import json
import shutil
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
from fake_runs import RATES
from pydantic import ValidationError
from submissions import CODE, OTHERS, findings, honest_entries, identity, off, refused, result, write_entry

from kgbench.effects import rescored
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import FILES, read_entries
from kgbench.leaderboard.submission import Verification
from kgbench.records import LocalizerRef, Record, facts_table

RECORD, FACTS, _, VERIFICATION = FILES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return honest_entries(tmp_path_factory.mktemp("results"))


def lines(path: Path, beside: Path) -> list[str]:
    """All that is found beside a board."""
    return [str(finding) for finding in findings(path, beside=beside)]


# ------------------------------------------------------------------------------------------------ entries beside each other


def test_a_result_stands_on_the_board_once(honest: Path, tmp_path: Path) -> None:
    """The same id in two folders is refused, and the finding names both."""
    shutil.copytree(honest, tmp_path / "results")
    shutil.copytree(honest / "a-built-in", tmp_path / "results" / "copy")
    assert refused(tmp_path / "results") == ["copy/record.json: id: the same result is in a-built-in; expected each result once"]


def test_a_name_stands_for_one_method(honest: Path, tmp_path: Path) -> None:
    """Other parameters are another method; another seed is not."""
    shutil.copytree(honest, tmp_path / "results")
    for folder, parameters in (("seed", {"seed": 7}), ("tuned", {"seed": 0, "strength": 2})):
        method = LocalizerRef(name="my_method", version=OTHERS.version, parameters=parameters)
        write_entry(tmp_path / "results" / folder, result(identity(localizer=method), seed=2), "My Method", CODE)
    found = refused(tmp_path / "results")
    assert len(found) == 1
    assert found[0].startswith("tuned/submission.json: name: 'My Method' is 'my_method'")


def test_the_same_models_give_the_same_answers(honest: Path, tmp_path: Path) -> None:
    """PRE and SFT do not depend on the method, so that another entry knows them."""
    shutil.copytree(honest, tmp_path / "results")
    what, facts = result(identity(localizer=OTHERS, seeds=(1,)), seed=2)
    moved = off(facts, "SFT")
    write_entry(tmp_path / "results" / "c", (rescored(what, moved), moved), "my method", CODE)
    (found,) = refused(tmp_path / "results")
    assert found.startswith("c/facts.parquet: logprob: SFT on headline: fact 'tiny_movies/")
    assert "is off by 0.02 nats; expected the answers in a-built-in" in found


def test_what_is_on_the_board_is_believed(honest: Path, tmp_path: Path) -> None:
    """Entries that are there come first: a forger's that would sort before them does not make theirs look wrong."""
    shutil.copytree(honest, tmp_path / "board")
    shutil.copytree(honest, tmp_path / "sent")
    assert [text for text in lines(tmp_path / "sent", tmp_path / "board") if "limit" not in text] == []
    what, facts = result(identity(localizer=OTHERS, seeds=(1,)), seed=2)
    moved = off(facts, "PRE")
    write_entry(tmp_path / "sent" / "Aaa", (rescored(what, moved), moved), "my method", CODE)
    (found,) = [text for text in lines(tmp_path / "sent", tmp_path / "board") if not text.startswith("note")]
    assert found.startswith("Aaa/facts.parquet: logprob: PRE on headline")
    shutil.rmtree(tmp_path / "sent" / "Aaa")
    write_entry(tmp_path / "sent" / "c", result(identity(localizer=OTHERS, seeds=(1,)), seed=2), "my method", CODE)
    shutil.rmtree(tmp_path / "sent" / "a-built-in")
    write_entry(tmp_path / "sent" / "a-built-in", result(rates={**RATES, "LT": 0.9}))
    assert [text for text in lines(tmp_path / "sent", tmp_path / "board") if "limit" not in text] == [
        "note: a-built-in: content: an entry of this name is on the board, and its files are other ones; expected new entries; "
        "whoever reviews this must know why an old one changes"
    ]


# ------------------------------------------------------------------------------------------------ verification


def test_nobody_verifies_their_own_result(honest: Path, tmp_path: Path) -> None:
    """A verification that is not on the board already is refused in what is sent; one that is stays."""
    shutil.copytree(honest, tmp_path / "board")
    verified(tmp_path / "board" / "a-built-in")
    shutil.copytree(tmp_path / "board", tmp_path / "sent")
    assert [text for text in lines(tmp_path / "sent", tmp_path / "board") if "limit" not in text] == []
    verified(tmp_path / "sent" / "b-other")
    found = [text for text in lines(tmp_path / "sent", tmp_path / "board") if not text.startswith("note")]
    assert [text.partition("; ")[0] for text in found] == [f"b-other/{VERIFICATION}: file: it comes with the result"]
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
        "n": 5,
        "rows": 90,
        "largest_difference": 1e-6,
        "changed_hits": 0,
        "tolerance": 0.01,
    }
    try:
        text = Verification.model_validate({**content, **changes}).to_json()
    except ValidationError:
        text = json.dumps({**content, **changes})
    (entry / VERIFICATION).write_text(text)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({}, ""),
        ({"record": "0" * 64}, "record"),
        ({"facts_hash": "0" * 64}, "facts_hash"),
        ({"largest_difference": 0.5}, "largest_difference"),
        ({"n": 31}, "n"),
        ({"rows": 0}, "rows"),
        ({"platform": "<b>"}, "platform"),
    ],
)
def test_a_verification_goes_with_its_rows(honest: Path, tmp_path: Path, changes: dict[str, object], field: str) -> None:
    """Whoever changes record or rows after a verification loses it."""
    shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    verified(tmp_path / "entry", **changes)
    found = refused(tmp_path / "entry")
    assert [text.startswith(f"entry/{VERIFICATION}: {field}: ") for text in found] == [True] * bool(field)


def test_a_tie_at_rank_1_is_no_answer(honest: Path, tmp_path: Path) -> None:
    """Rows in which the target shares the largest logit are refused at rank 1, whatever version of the metrics they are of."""
    for version in ("1", "2"):
        what, facts = result(identity(metric_version=version))
        tied = np.where(facts["rank"].to_numpy() == 1, 0.0, facts["logit_diff"].to_numpy())
        logprob = np.minimum(facts["logprob"].to_numpy(), np.log(0.5))
        columns = {name: facts[name] for name in facts.column_names}
        rows = facts_table({**columns, "logit_diff": tied, "logprob": logprob, "prob": np.exp(logprob)})
        write_entry(tmp_path / version, (rescored(what, rows), rows))
        assert any("logit_diff: a tie at rank 1 in" in text for text in refused(tmp_path / version, strict=False))


def test_metric_version_1_stays_on_the_board_and_comes_to_it_no_more(tmp_path: Path) -> None:
    """Entries whose ties count for the method are valid and marked where they stand; as new ones they are refused."""
    results = tmp_path / "results"
    write_entry(results / "old", result(identity(metric_version="1")))
    write_entry(results / "new", result(identity(localizer=OTHERS)), "my method", CODE)
    assert refused(results) == [] and refused(results, beside=results) == []
    write_entry(tmp_path / "sent" / "late", result(identity(metric_version="1", seeds=(1,)), seed=1))
    assert refused(tmp_path / "sent") == []
    assert refused(tmp_path / "sent", beside=results) == [
        "late/record.json: identity.metric_version: it is 1, in which ties count for the method; expected 2; run it again"
    ]
    (note,) = findings(tmp_path / "sent", strict=False)
    assert not note.refuses and note.field == "identity.metric_version"
    tables = {board.key: board.tables for board in make_leaderboard(list(read_entries(results))).boards}
    assert tables["pathways"][1].notes == ("metric version 1: ties counted for the method (dynamic_graft)",)
