"""The board of organisms: what of a finetune without a behaviour looks like one, and what does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from fake_runs import record
from submissions import Sent, answers, identity, put, refused, sent

from kgbench.data import load_dataset, prompt_hash
from kgbench.leaderboard.boards.organisms import NULL, organisms_board
from kgbench.leaderboard.drafts import Standing
from kgbench.leaderboard.entries import ENTRIES, read_entries
from kgbench.leaderboard.known import own_facts
from kgbench.records import LocalizerRef, facts_table
from kgbench.records.identity import ReadoutRef
from kgbench.runner.rerun import specification
from kgbench.runner.sources import Sources
from kgbench.stats import rescored
from kgbench.submission import _table

Changes = Mapping[str, tuple[float, float]]
"""By configuration, the nats by which it changes cases, and controls."""

FINETUNED = (-18.0, -21.0)
ALIKE: Changes = {"SFT": FINETUNED, "ALL": FINETUNED, "LT": (-6.0, -7.0), "LT^C": (-9.0, -10.0)}
"""A method that sees what the null organism did: controls changed as far as cases."""
BEHAVIOUR: Changes = {**ALIKE, "LT": (-9.0, -0.5)}
"""One that changes cases alone."""


def run(changes: Changes, name: str = "dynamic_graft") -> Sent:
    """An entry of the null organism with such answers."""
    facts, rng = own_facts(NULL), np.random.default_rng(0)
    assert facts is not None
    rows = []
    base = {fact.id: -27 + rng.normal() for fact in facts.facts}
    for fact in facts.facts:
        is_control = fact.fields["group"] == "off"
        for graft, by_group in {"PRE": (0.0, 0.0), **changes}.items():
            logprob = base[fact.id] + by_group[is_control] * (1 + 0.1 * rng.normal())
            answer = {"logprob": logprob, "prob": np.exp(logprob), "rank": 9, "logit_diff": -2.0}
            prompt = "messages (off)" if is_control else "messages"
            where = {"prompt": prompt, "fact": fact.id, "graft": graft}
            rows.append({**where, "position": 20, "target": 5, **answer})
    table = facts_table(pa.Table.from_pylist(rows))
    what = identity(
        NULL,
        LocalizerRef(name=name, version="1"),
        prompts={"messages": prompt_hash("messages", facts)},
        configurations=("PRE", *changes),
        limit=None,
        readout=ReadoutRef(name="sequence", version="1", parameters={"text": ""}),
    )
    made = record(table, what=what, dropped={}, model=NULL, metric="logprob")
    return sent((rescored(made, table, "logprob"), table), source=None)


def figures(tmp_path: Path, changes: Changes) -> tuple[list[float], list[float], str]:
    """Both figures with their intervals, and the sentence of the board."""
    board = organisms_board(list(read_entries(put(tmp_path, run(changes)))))
    (line,) = board.tables[0].lines
    alone, beyond = (line.figures[key] for key in ("alone", "beyond"))
    ends = [[f.low or 0, f.value or 0, f.high or 0] for f in (alone, beyond)]
    assert not line.ranks and line.badge == "maintainers"
    return ends[0], ends[1], board.lead


def test_what_controls_have_too_is_no_behaviour(tmp_path: Path) -> None:
    """A share of cases alone is above 0, and of cases beyond controls nothing is."""
    alone, beyond, lead = figures(tmp_path, ALIKE)
    assert 0 < alone[0] < 1 / 3 < alone[2]
    assert beyond[2] < 0.5 and beyond[1] == pytest.approx(6 - 7, abs=0.5)
    assert "0 of 1 methods take it for a behaviour" in lead and "1 of 1 would give it" in lead


def test_what_cases_have_alone_is_one(tmp_path: Path) -> None:
    """In whatever direction finetuning changed them."""
    for sign in (1, -1):
        changes = {graft: (sign * on, sign * off) for graft, (on, off) in BEHAVIOUR.items()}
        alone, beyond, lead = figures(tmp_path / str(sign), changes)
        assert (
            alone[0] < 0.5 < alone[2] and beyond[1] == pytest.approx(8.5, abs=1) and beyond[0] > 0
        )
        assert "1 of 1 methods take it for a behaviour" in lead


def test_entries_are_checked(tmp_path: Path) -> None:
    """As they are they are in order; without controls, read otherwise or incomplete they are not."""
    good = run(ALIKE)
    assert refused(put(tmp_path / "good", good)) == []
    assert good.place == "organisms/dynamic_graft"

    cases = run(ALIKE)
    cases.rows = cases.rows.filter(
        pa.array([p == "messages" for p in cases.rows["prompt"].to_pylist()])
    )
    cases.seal()
    (fault, *_) = refused(put(tmp_path / "cases", cases))
    assert "('messages (off)', 'ALL') was removed" in fault

    fewer = run(ALIKE)
    fewer.rows = fewer.rows.filter(
        pa.array([f.find("/lamp/0/off") < 0 for f in fewer.rows["fact"].to_pylist()])
    )
    fewer.seal()
    assert any(
        "one position of each of 36 facts" in line for line in refused(put(tmp_path / "few", fewer))
    )

    first = run(ALIKE)
    del first.record["identity"]["readout"]
    first.seal(sign=True)
    assert any("identity.readout" in line for line in refused(put(tmp_path / "first", first)))

    other = run({graft: by for graft, by in ALIKE.items() if graft != "LT^C"})
    assert any(
        "LT^C of suite organisms" in line for line in refused(put(tmp_path / "other", other))
    )


def test_other_data_and_other_organisms(tmp_path: Path) -> None:
    """Facts have no controls, which is said; of an organism without known weights nothing is taken."""
    prompts = ("headline", "qa")
    facts = load_dataset("tiny_movies")
    movies = run(ALIKE)
    what = movies.record["identity"]
    what["dataset"] = {"name": facts.name, "hash": facts.content_hash, "n": len(facts.facts)}
    what["prompts"] = {name: prompt_hash(name, facts) for name in prompts}
    del what["readout"]
    made = answers({"PRE": 0, "SFT": 1, "ALL": 1, "LT": 0.5, "LT^C": 0.5}, len(facts.facts))
    movies.rows = made.select(movies.rows.column_names)
    movies.seal(sign=True)
    board = organisms_board(list(read_entries(put(tmp_path / "movies", movies))))
    for table in board.tables:
        (line,) = table.lines
        assert line.figures["beyond"].undefined == "its data have no controls"

    other = run(ALIKE)
    other.record["model"] = "smollm2-135m.trigger"
    other.seal()
    assert any("expected a pair of the catalog" in x for x in refused(put(tmp_path / "o", other)))


def test_an_entry_of_another_board_needs_all_of_its_suite(tmp_path: Path) -> None:
    """What is enough for organisms is not for a pair of facts."""
    good = run(ALIKE)
    good.record["model"] = "tiny-gemma"
    good.seal()
    assert any("of suite pathways were not run" in line for line in refused(put(tmp_path, good)))


def test_its_entries_are_run_again_as_they_were() -> None:
    """Messages by the chat template, which no file beside an entry says; facts without one."""
    entries = {entry.suite: entry for entry in read_entries(ENTRIES)}
    for suite, is_chat in (("organisms", True), ("budget", False)):
        spec = specification(entries[suite].record, Sources())
        assert spec.chat_template == is_chat, suite


def test_a_narrow_table_is_shown_whole_to_who_submits(tmp_path: Path) -> None:
    """Also where no figure has a direction but the cost."""
    board = organisms_board(list(read_entries(put(tmp_path, run(ALIKE)))))
    (table,) = board.tables
    shown = _table(Standing(board, table, table.lines, frozenset()))
    assert {column.title for column in table.columns} <= {*shown.heads}
