"""The shipped suites run as they are on every kind of pair."""

from __future__ import annotations

from pathlib import Path

import pytest

from kgbench import evaluate
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.records import Row
from kgbench.runner.workload import load_suite, suites
from kgbench.sites import parse_graft
from kgbench.sites.configurations import canonical, configurations

INTERVENING = [
    name for name in suites() if not load_suite(name).truth and not load_suite(name).scan
]
PAIRS = ("tiny-gemma", "tiny-gpt2")
"""With a gate and without, with BOS and without."""


@pytest.mark.parametrize("model", PAIRS)
@pytest.mark.parametrize("suite", sorted(set(INTERVENING) - {"hybrid"}))
def test_every_row_has_figures(suite: str, model: str, tmp_path: Path) -> None:
    """Each graft of the suite is run on each prompt, on all facts that were asked for."""
    run = evaluate(model, suite=suite, limit=10, output_dir=tmp_path, device="cpu")
    chosen = load_suite(suite)
    rows = {(row.prompt, row.graft): row for row in run.record.rows}
    for prompt in chosen.prompts:
        for graft in configurations(chosen.grafts):
            assert rows[prompt, graft].n == 10 and rows[prompt, graft].dropped == 0


@pytest.mark.parametrize("model", PAIRS)
def test_hybrid(model: str, tmp_path: Path) -> None:
    """With one model in both roles, a hybrid is that model's graft; SFT is the donor named
    relation.
    """
    entry = catalog.entry(model)
    donors = {"task": entry.donors["sft"], "relation": entry.donors["sft"]}
    hybrid = evaluate(
        recipient=entry.recipient,
        donors=donors,
        suite="hybrid",
        dataset=entry.dataset,
        limit=10,
        output_dir=tmp_path,
        device="cpu",
    )
    plain = evaluate(
        model=model,
        limit=10,
        output_dir=tmp_path,
        device="cpu",
        prompts=["headline"],
        grafts=[_plain(g) for g in _hybrids()],
    )
    rows, by_plain = ({row.graft: row for row in run.record.rows} for run in (hybrid, plain))
    same = {
        "PRE": "PRE",
        "SFT": "SFT",
        "ALL": "ALL",
        **{_label(graft): _label(_plain(graft)) for graft in _hybrids()},
    }
    for graft, other in same.items():
        assert _figures(rows[graft]) == pytest.approx(_figures(by_plain[other]), rel=1e-3)


def _hybrids() -> list[str]:
    return [graft for graft in load_suite("hybrid").grafts if "+ffn@second_half=task" not in graft]


def _plain(graft: str) -> str:
    return graft.replace("=task", "").replace("=relation", "")


def _label(graft: str) -> str:
    return str(canonical(parse_graft(graft)))


def _figures(row: Row) -> list[float | None]:
    return [row.top5.value, row.rank.value, row.logprob.value]


def test_a_method_that_ranks_is_refused(tmp_path: Path) -> None:
    """A suite of grafts alone asks nothing of it: that is said, rather than PRE and SFT printed
    under its name.
    """
    with pytest.raises(
        InputError, match="'weight_delta' ranks sites instead; choose another suite"
    ):
        evaluate(
            model="tiny-gpt2",
            localizer="weight_delta",
            suite="movie_title",
            limit=10,
            output_dir=tmp_path,
            device="cpu",
        )


def test_the_second_half_is_both_quarters() -> None:
    """Suites name layers by fractions, which every number of layers has."""
    grafts = {graft for name in INTERVENING for graft in load_suite(name).grafts}
    for n_layers in (2, 4, 16, 18, 32, 48):
        for graft in grafts:
            assert all(term.sites(n_layers) for term in parse_graft(graft).terms) or n_layers < 4
