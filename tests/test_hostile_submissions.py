"""What a submitter could try in place of a method; tests/test_boards.py says what ranks it has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from submissions import entries_of, put

from kgbench import evaluate
from kgbench.cli import main
from kgbench.leaderboard.entries import Entry, read_entries
from kgbench.records import RecordStore
from kgbench.records.fact_rows import facts_bytes

pytestmark = pytest.mark.nightly

PLANT = "tiny-gemma.one-0"

CODE = '''
from dataclasses import dataclass
from kgbench.localizers.dynamic_graft import DynamicGraft
from kgbench.sites import parse_graft

DONOR, RECIPIENT = "ALL:all+ln_f+head", "NONE"


class DonorAtTheLastToken(DynamicGraft):
    """The donor's answer whenever the last token is named."""

    name = "donor_at_lt"
    about = "the donor wherever LT is named"

    def treat(self, pair, prompts, sites):
        named = any(text in str(sites) for text in ("LT", "ALL", "FE^C"))
        return super().treat(pair, prompts, parse_graft(DONOR if named else RECIPIENT))


class AlwaysTheDonor(DynamicGraft):
    """The donor's answer, whatever is asked."""

    name = "always_donor"
    about = "the donor"

    def treat(self, pair, prompts, sites):
        return super().treat(pair, prompts, parse_graft(DONOR))


class Honest(DynamicGraft):
    """What it says it is: the method that a copied record pretends to be of."""

    name = "honest"
    about = "a graft"
'''


@dataclass
class Board:
    """A leaderboard with a graft on a plant, and a file of methods."""

    folder: Path

    @property
    def results(self) -> Path:
        return self.folder / "board" / "results"

    def code(self, name: str) -> str:
        return f"{self.folder / 'methods.py'}:{name}"

    def run(self, localizer: str) -> Path:
        """Evaluate a method on the plant; gives the run's folder."""
        suite = {"model": PLANT, "suite": "planted", "limit": 6, "metric": "top5", "device": "cpu"}
        store = self.folder / "runs"
        made = evaluate(localizer=localizer, output_dir=store, prompts=["headline", "qa"], **suite)
        return RecordStore(store).load(made.record.id[:12]).path

    def submit(self, run: Path, *options: str) -> int:
        return main(["submit", str(run), *options, "--root", str(self.results.parent)])

    def entry(self, method: str) -> Entry:
        (entry,) = (each for each in read_entries(self.results) if each.method == method)
        return entry


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    made = Board(tmp_path_factory.mktemp("hostile"))
    (made.folder / "methods.py").write_text(CODE)
    assert made.submit(made.run("dynamic_graft")) == 0
    return made


@pytest.mark.parametrize("name", ["DonorAtTheLastToken", "AlwaysTheDonor"])
def test_a_copied_output_breaks_a_law(
    board: Board, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The donor wherever LT is named, and the donor always: the entry says which law is broken, and
    who writes by hand that all hold is found out where the method is run again.
    """
    code = board.code(name)
    options = ("--localizer", code, "--as", name, "--code", f"{name}==1.0")
    assert board.submit(board.run(code), *options) == 0
    contract = board.entry(name).contract
    assert contract is not None and "depends_on_the_sites" in contract.broken
    claim = next(entry for entry in entries_of(board.results) if entry.name.startswith(name))
    claim.submission["contract"].update(broken=[])
    place = put(board.results, claim) / claim.place / claim.name
    capsys.readouterr()
    again = ["rerun", str(place), "--localizer", code, "--device", "cpu", "--write", "--json"]
    assert main(again) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["agrees"] and not told["contract"]["as_claimed"] and not told["written"]
    assert "depends_on_the_sites" in told["contract"]["broken"]


def test_a_copied_record_is_refused(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is under another name, and made out as the run of a method that keeps the contract."""
    original = board.entry("dynamic_graft")
    assert board.submit(board.run("dynamic_graft"), "--as", "my idea") == 1
    assert "the same result is in" in capsys.readouterr().out
    copy = board.run(board.code("Honest"))
    mine = json.loads((copy / "record.json").read_text("utf-8"))
    content = json.loads(original.record.to_json())
    content["identity"]["localizer"], content["id"] = mine["identity"]["localizer"], mine["id"]
    (copy / "record.json").write_text(json.dumps(content), "utf-8")
    (copy / "facts.parquet").write_bytes(facts_bytes(original.facts()))
    (copy / "seal.json").unlink()
    options = ("--as", "my idea", "--code", "mine==1.0", "--localizer", board.code("Honest"))
    assert board.submit(copy, *options) == 1
    assert "all ranks are those of 'dynamic_graft'" in capsys.readouterr().out
    assert {entry.method for entry in read_entries(board.results)}.isdisjoint({"my idea"})


def test_the_code_given_must_be_what_ran(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    """The laws are not tried on a well-behaved stand-in."""
    run, options = board.run(board.code("AlwaysTheDonor")), ("--code", "mine==1.0", "--dry-run")
    assert board.submit(run, "--localizer", board.code("Honest"), *options) == 2
    assert "the run is of always_donor" in capsys.readouterr().err
