"""Runs the paper's claims on all tiny pairs and prints the table of docs/results/claims.md.

    python tests/claims_table.py [PAIR…]

Half a minute a pair on one core.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree

__all__ = ["main"]

PAIRS = ("tiny-gemma", "tiny-llama", "tiny-gpt2", "tiny-pythia")

TITLES: Mapping[str, str] = {
    "test_fe_and_lt_suffice": "FE+LT suffices: ≥ .9",
    "test_without_fe_and_lt_nothing_is_left": "without FE and LT nothing is left: ≤ .1",
    "test_fe_alone_carries_a_part": "FE alone carries a part: > .02, < FE+LT",
    "test_lt_alone_carries_a_part": "LT alone carries a part: > .02, < FE+LT",
    "test_all_but_fe_does_what_lt_does": "all but FE does what LT does: ± .1",
    "test_all_but_lt_does_what_fe_does": "all but LT does what FE does: ± .1",
    "test_it_is_the_position_not_the_preposition": "position, not preposition: as on headline",
    "test_a_graft_is_all_else_grafted_the_other_way": "a graft is all else grafted the other way",
    "test_and_the_other_way_round": "and the other way round",
}
"""Each claim in a few words, in the order of the table."""

Outcome = tuple[str, Sequence[str]]
"""What became of a claim, and its figures."""


def ask(pair: str) -> dict[tuple[str, str], Outcome]:
    """What became of each claim on each prompt."""
    with TemporaryDirectory() as folder:
        report = Path(folder, "claims.xml")
        command = [
            "--pyargs",
            "kgbench.paper.claims",
            "--kgbench-model",
            pair,
            f"--junitxml={report}",
            "-p",
            "no:cacheprovider",
            "-q",
        ]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *command], cwd=folder, capture_output=True, text=True
        )
        if done.returncode not in (0, 1):
            raise SystemExit(f"{pair}: the claims did not run\n{done.stdout}{done.stderr}")
        return dict(_outcome(case) for case in ElementTree.parse(report).iter("testcase"))


def _outcome(case: ElementTree.Element) -> tuple[tuple[str, str], Outcome]:
    claim, _, prompt = case.attrib["name"].removesuffix("]").partition("[")
    noted = [(each.attrib["name"], each.attrib["value"]) for each in case.iter("property")]
    if case.find("error") is not None:
        raise SystemExit(f"{claim} on {prompt} did not run: {case.find('error').attrib['message']}")  # type: ignore[union-attr]
    undecided = any(name == "kgbench_undecided" for name, _ in noted)
    outcome = (
        "**fails**" if case.find("failure") is not None else "undecided" if undecided else "holds"
    )
    return (claim, prompt), (outcome, [value for name, value in noted if name == "figure"])


def table(found: Mapping[str, Mapping[tuple[str, str], Outcome]]) -> str:
    """The table, for the outcomes on each pair."""
    claims = sorted(next(iter(found.values())), key=lambda claim: list(TITLES).index(claim[0]))
    lines = [
        "| claim | prompt | " + " | ".join(f"`{pair}`" for pair in found) + " |",
        "|---" * (len(found) + 2) + "|",
    ]
    for claim in claims:
        cells = [
            f"{outcome}: {'; '.join(figures)}"
            for outcome, figures in (rows[claim] for rows in found.values())
        ]
        lines.append(f"| {TITLES[claim[0]]} | {claim[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main(pairs: Sequence[str]) -> None:
    print(
        f"<!-- begin: claims -->\n{table({pair: ask(pair) for pair in pairs})}\n<!-- end:"
        " claims -->"
    )


if __name__ == "__main__":
    main(sys.argv[1:] or PAIRS)
