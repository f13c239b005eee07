"""What a submitter could try in place of a method: none of it is ranked above `random`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from submissions import entries_of, put

from kgbench import evaluate
from kgbench.cli import main
from kgbench.leaderboard.board_tables import Line, Table
from kgbench.leaderboard.build import make_leaderboard
from kgbench.leaderboard.entries import read_entries
from kgbench.records import RecordStore
from kgbench.records.fact_rows import facts_bytes

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
CHEATS = {"donor_at_lt": "DonorAtTheLastToken", "always_donor": "AlwaysTheDonor"}


@dataclass
class Board:
    """A leaderboard with `random` and a graft on a plant, and a file of methods."""

    folder: Path

    @property
    def root(self) -> Path:
        return self.folder / "board"

    def code(self, name: str) -> str:
        return f"{self.folder / 'methods.py'}:{name}"

    def run(self, localizer: str) -> str:
        """Evaluate a method on the plant; gives the start of the record's id."""
        suite = {
            "model": PLANT,
            "suite": "planted",
            "limit": 6,
            "prompts": ["headline", "qa"],
            "metric": "top5",
            "device": "cpu",
        }
        return evaluate(localizer=localizer, output_dir=self.folder / "runs", **suite).record.id[
            :12
        ]

    def submit(self, run: str, *options: str, root: Path | None = None) -> int:
        places = ("--output-dir", str(self.folder / "runs"), "--root", str(root or self.root))
        return main(["submit", run, *options, *places])

    def stored(self, run: str) -> Path:
        return RecordStore(self.folder / "runs").load(run).path

    def tables(self, root: Path | None = None) -> Iterator[tuple[Table, dict[str, Line]]]:
        """Tables that rank, with their lines."""
        for board in make_leaderboard(list(read_entries((root or self.root) / "results"))).boards:
            for table in board.tables:
                if any(line.rank is not None for line in table.lines):
                    yield table, {line.method: line for line in table.lines}


@pytest.fixture(scope="module")
def board(tmp_path_factory: pytest.TempPathFactory) -> Board:
    made = Board(tmp_path_factory.mktemp("hostile"))
    (made.folder / "methods.py").write_text(CODE)
    for name in ("random", "dynamic_graft"):
        assert made.submit(made.run(name)) == 0
    return made


@pytest.fixture(scope="module")
def cheated(board: Board) -> Board:
    """With both cheats submitted, as `kgbench submit` does it."""
    for name, own in CHEATS.items():
        run = board.run(board.code(own))
        assert (
            board.submit(
                run,
                "--localizer",
                board.code(own),
                "--as",
                name,
                "--code",
                f"{name.replace('_', '-')}==1.0",
            )
            == 0
        )
    return board


@pytest.mark.nightly
def test_a_copied_output_has_no_rank(cheated: Board) -> None:
    """Neither the donor wherever LT is named, nor the donor always; the line says which law is
    broken, and `random` has a rank.
    """
    found = [lines for _, lines in cheated.tables() if "random" in lines]
    assert found
    for lines in found:
        assert lines["random"].rank is not None
        for name in CHEATS:
            assert lines[name].rank is None
            assert (
                "depends_on_the_sites" in lines[name].broken
                and "depends on the sites" in lines[name].unranked
            )


@pytest.mark.nightly
def test_a_false_claim_lifts_nothing_and_is_told(
    cheated: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who writes by hand that all laws hold stands in brackets, not above `random`; verification
    tells the claim and writes nothing.
    """
    shutil.copytree(cheated.root, tmp_path / "board")
    results = tmp_path / "board" / "results"
    claim = next(entry for entry in entries_of(results) if entry.name.startswith("donor_at_lt"))
    claim.submission["contract"].update(broken=[])
    place = put(results, claim) / claim.place / claim.name
    for _, lines in cheated.tables(tmp_path / "board"):
        rank, chance = lines["donor_at_lt"], lines["random"].rank
        assert (
            rank.rank_text.startswith("(")
            and rank.rank is not None
            and chance is not None
            and rank.rank >= chance
        )
    capsys.readouterr()
    asked = [
        "rerun",
        str(place),
        "--localizer",
        cheated.code(CHEATS["donor_at_lt"]),
        "--device",
        "cpu",
        "--write",
        "--json",
    ]
    assert main(asked) == 1
    told = json.loads(capsys.readouterr().out)
    assert told["agrees"] and not told["contract"]["as_claimed"] and not told["written"]
    assert "depends_on_the_sites" in told["contract"]["broken"]


@pytest.mark.nightly
def test_a_copied_record_is_refused(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    """As it is under another name, and made out as the run of a method that keeps the contract."""
    (original,) = (e for e in read_entries(board.root / "results") if e.method == "dynamic_graft")
    run = original.record.id[:12]
    assert board.submit(run, "--as", "my idea") == 1
    assert "the same result is in" in capsys.readouterr().out
    copy = board.stored(board.run(board.code("Honest")))
    assert (copy / "facts.parquet").is_file()
    mine = json.loads((copy / "record.json").read_text("utf-8"))
    content = json.loads(json.dumps(original.documents["record.json"]))
    content["identity"]["localizer"], content["id"] = mine["identity"]["localizer"], mine["id"]
    (copy / "record.json").write_text(
        json.dumps(content, indent=1, ensure_ascii=False) + "\n", "utf-8"
    )
    (copy / "facts.parquet").write_bytes(facts_bytes(original.facts()))
    (copy / "seal.json").unlink()
    assert (
        board.submit(
            str(copy), "--as", "my idea", "--code", "mine==1.0", "--localizer", board.code("Honest")
        )
        == 1
    )
    assert "all ranks are those of 'dynamic_graft'" in capsys.readouterr().out
    assert not any("my idea" in lines for _, lines in board.tables())


@pytest.mark.nightly
def test_the_code_given_must_be_what_ran(board: Board, capsys: pytest.CaptureFixture[str]) -> None:
    """The laws are not tried on a well-behaved stand-in."""
    run = board.run(board.code(CHEATS["always_donor"]))
    assert (
        board.submit(run, "--localizer", board.code("Honest"), "--code", "mine==1.0", "--dry-run")
        == 2
    )
    assert "the run is of always_donor" in capsys.readouterr().err


@pytest.mark.nightly
def test_without_its_code_a_method_has_no_rank(
    board: Board, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The laws cannot be tried, which is said, and the method stands without a rank."""
    root = tmp_path / "board"
    assert board.submit(board.run("random"), root=root) == 0
    assert (
        board.submit(
            board.run(board.code("Honest")), "--as", "unseen", "--code", "mine==1.0", root=root
        )
        == 0
    )
    assert "contract      not run" in capsys.readouterr().out
    found = [lines for _, lines in board.tables(root)]
    assert found and all(
        lines["unseen"].rank is None and "contract not run" in lines["unseen"].unranked
        for lines in found
    )
