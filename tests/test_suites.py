"""The shipped suites run as they are on every kind of pair."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from packages import install_package

from kgbench import evaluate
from kgbench.errors import InputError, UnknownNameError
from kgbench.leaderboard.entries import BOARDS
from kgbench.models import catalog
from kgbench.records import Row
from kgbench.runner import lookup
from kgbench.runner.lookup import load_suite, suites
from kgbench.sites import parse_graft
from kgbench.sites.configurations import canonical, configurations

INTERVENING = [
    suite.name for suite in map(load_suite, suites()) if not suite.truth and not suite.scan
]
PAIRS = ("tiny-gemma", "tiny-gpt2")
"""With a gate and without, with BOS and without."""


@pytest.mark.sampled(2)
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


@pytest.mark.sampled(1)
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


def test_the_second_half_is_both_quarters() -> None:
    """Suites name layers by fractions, which every number of layers has."""
    grafts = {graft for name in INTERVENING for graft in load_suite(name).grafts}
    for n_layers in (2, 4, 16, 18, 32, 48):
        for graft in grafts:
            assert all(term.sites(n_layers) for term in parse_graft(graft).terms) or n_layers < 4


@pytest.fixture
def theirs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of suites of a package that is on the path as pip would lay it out."""
    folder = (
        install_package(tmp_path, "kgbench.suites", {"theirs": "their_suites"}) / "their_suites"
    )
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "ends.yaml").write_text(
        "about: the ends of a prompt\nprompts: [qa]\ngrafts: [FE, LT]\nbudgets: []\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "their_suites", raising=False)
    importlib.invalidate_caches()
    lookup._suites.cache_clear()
    yield folder
    lookup._suites.cache_clear()


def test_suites_of_other_packages(theirs: Path) -> None:
    """An entry point in the group `kgbench.suites` adds the YAML files in its package; none
    replaces one of kgbench's own.
    """
    (theirs / "pathways.yaml").write_text("about: mine\nprompts: [qa]\ngrafts: []\nbudgets: []\n")
    assert suites()["ends@1"] == "the ends of a prompt" and "pathways@1" in suites()
    assert load_suite("ends").grafts == ("FE", "LT")
    assert load_suite("pathways").about != "mine"


def test_suites_have_the_versions_of_their_boards() -> None:
    """A name with the present version is the name without; another is refused with what to give."""
    for board, version in BOARDS.items():
        assert load_suite(f"{board}@{version}") is load_suite(board)
    with pytest.raises(InputError, match=r"'planted@1' is not what .*: give planted@2, or"):
        load_suite("planted@1")
    with pytest.raises(UnknownNameError, match="Did you mean 'planted'"):
        load_suite("plantd@2")


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("mine.yaml", "about: mine\nprompts: [qa]\n", "mine.yaml is no suite.*KeyError: 'grafts'"),
        ("mine.yaml", "about: [", "mine.yaml is no suite"),
        ("__init__.py", "import no_such_module", "suites 'theirs' of an installed package do not"),
    ],
)
def test_suites_that_do_not_do(theirs: Path, file: str, text: str, said: str) -> None:
    """A file that is no suite is refused with its path, a package that does not load by name."""
    (theirs / file).write_text(text)
    with pytest.raises(InputError, match=said):
        suites()
