"""Leaderboards for tests of pages: tables made of records straight away, without the science of
ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Board, Column, Leaderboard, Line, Table
from kgbench.leaderboard.cells import FORWARDS
from kgbench.leaderboard.entries import Entry, Submission, Verification
from kgbench.leaderboard.known import known
from kgbench.leaderboard.site.pages import render_site
from kgbench.records import (
    Curve,
    CurvePoint,
    Effect,
    LocalizerRef,
    Planted,
    Record,
    SiteScore,
    Truth,
    WeightHashes,
)
from kgbench.records.fact_rows import facts_bytes
from tests import fake_runs

Figures = Mapping[str, Estimate]

PATHWAYS = (
    *(Column(f"top5_{g}", g, f"top-5 hit rate of {g}") for g in fake_runs.RATES),
    Column(
        "sufficiency",
        "Sufficiency",
        "Share of what finetuning added that FE+LT brings back.",
        "higher",
    ),
    Column("necessity", "Necessity", "Share that is lost without FE+LT.", "higher"),
    Column("separation", "Separation", "Sufficiency + necessity - 1.", "higher"),
)
PLANTED = (
    Column(
        "average_precision",
        "Average precision",
        "Mean precision at the blocks that learned the facts.",
        "higher",
    ),
)
BUDGET = (
    Column("area", "Area", "Mean recovery over the logarithm of the budget.", "higher"),
    FORWARDS,
)


def figure(value: float, width: float = 0.05, n: int = 50) -> Estimate:
    """An estimate of a given value."""
    return Estimate(value=value, low=value - width, high=value + width, n=n)


def entry(
    folder: Path,
    method: str,
    pair: str = "tiny-gemma",
    rate: float = 0.9,
    kind: str = "pathways",
    **how: object,
) -> Entry:
    """An entry of a run that never happened, with its rows on the disk.

    Args:
        folder: Where entries lie.
        method: Its name on the board.
        pair: Name of the model pair; a plant's, where the kind is `planted`.
        rate: How good it is.
        kind: `pathways`, `budget` or `planted`.
        how: `verified`, `submitted`, `facts` (how many).
    """
    rates = {**fake_runs.RATES, "FE+LT": rate, "(FE+LT)^C": (1 - rate) / 2}
    rows = fake_runs.rows(n=int(str(how.get("facts", 20))), rates=rates)
    what = fake_runs.identity(
        localizer=LocalizerRef(name=method, version="1", parameters={"pair": pair, "kind": kind}),
        weights=_weights(pair),
        truth=Truth(plant="ALL:ffn@1") if kind == "planted" else None,
    )
    extra = {"pathways": {}, "budget": _budget(rate), "planted": _planted(rate)}[kind]
    record = fake_runs.record(rows, what=what, model=pair, **extra)
    return _stored(folder, record, method, rows, how)


def _weights(pair: str) -> WeightHashes:
    """Those of a shipped pair, and some of any other."""
    shipped = known().pairs.get(pair)
    if shipped is None:
        return WeightHashes(recipient="r" * 64, donors={"sft": "s" * 64})
    own = {**shipped.weights["float32"]}
    return WeightHashes(recipient=own.pop("recipient"), donors=own)


def _stored(
    folder: Path, record: Record, method: str, rows: object, how: Mapping[str, object]
) -> Entry:
    place = folder / f"{record.model}-{record.id[:12]}"
    place.mkdir(parents=True)
    (place / "facts.parquet").write_bytes(facts_bytes(rows))
    (place / "record.json").write_text(record.to_json(), "utf-8")
    submission, checked = _beside(record, method) if how.get("submitted", True) else (None, None)
    return Entry(place, record, submission, checked if how.get("verified") else None)


def _beside(record: Record, method: str) -> tuple[Submission, Verification]:
    submission = Submission(
        record=record.id,
        record_hash="r" * 64,
        facts_hash="f" * 64,
        name=method,
        code="https://github.com/ada/code@0123456",
        paper="https://arxiv.org/abs/2506.20746",
    )
    checked = Verification(
        record=record.id,
        record_hash="r" * 64,
        facts_hash="f" * 64,
        kgbench="0.1.0",
        platform="Linux",
        time="2026-01-01T00:00:00+00:00",
        seed=0,
        n=record.identity.dataset.n,
        rows=180,
        largest_difference=1e-6,
        changed_hits=0,
        tolerance=1e-3,
    )
    return submission, checked


def _budget(rate: float) -> dict[str, object]:
    budgets = (0.0, 0.1, 1.0, 10.0, 100.0)
    points = tuple(
        CurvePoint(budget=b, recovery=figure(rate * np.log10(1 + b) / 2)) for b in budgets
    )
    curve = Curve(points=points, area=figure(rate / 2))
    return {"curve": {"headline": curve, "qa": curve}, "scores": _scores(), "kind": "scoring"}


def _planted(rate: float) -> dict[str, object]:
    effect = Effect(
        sufficiency=figure(rate),
        necessity=Estimate(undefined="the denominator's interval holds 0", n=50),
    )
    planted = Planted(
        plant="ALL:ffn@1",
        units="block",
        n_units=37,
        n_true=3,
        average_precision=figure(rate, 0.1, 37),
        chance=0.1,
        k=3,
        effect=effect,
        prompts={"headline": effect, "qa": effect},
    )
    return {"planted": planted, "scores": _scores(), "kind": "scoring"}


def _scores() -> tuple[SiteScore, ...]:
    found = [
        (None, "emb"),
        *(
            (layer, name)
            for layer in range(4)
            for name in ("ln_1", "q", "k", "v", "o", "gate", "up", "down")
        ),
    ]
    return tuple(
        SiteScore(layer=k, component=c, region=r, score=i * 0.01 - 0.5)
        for i, (k, c) in enumerate(found)
        for r in ("LT", "FE")
    )


def leaderboard(entries: Iterable[Entry]) -> Leaderboard:
    """Boards of the kinds that the entries are of."""
    found = tuple(sorted(entries, key=lambda e: (e.method, e.pair, e.record.id)))
    plants = [e for e in found if e.record.planted is not None]
    curves = [e for e in found if e.record.curve]
    paths = [e for e in found if not e.record.curve and e.record.planted is None]
    boards = (
        _board("pathways", PATHWAYS, "separation", _by_prompt(paths, _paths)),
        _board(
            "planted",
            PLANTED,
            "average_precision",
            [(e.pair, {"plant": e.pair}, e, _plant(e.record)) for e in plants],
        ),
        _board("budget", BUDGET, "area", _by_prompt(curves, _area)),
        _published(),
    )
    return Leaderboard(tuple(board for board in boards if board.tables), found)


Cell = tuple[str, Mapping[str, str], Entry, Figures]


def _by_prompt(entries: Sequence[Entry], figures: Callable[[Record, str], Figures]) -> list[Cell]:
    return [
        (f"{e.pair}-{p}", {"pair": e.pair, "prompt": p}, e, figures(e.record, p))
        for e in entries
        for p in ("headline", "qa")
    ]


def _paths(record: Record, prompt: str) -> Figures:
    rows = {row.graft: row for row in record.rows if row.prompt == prompt}
    found = {f"top5_{graft}": row.top5 for graft, row in rows.items()}
    if "FE+LT" not in rows:
        return found
    parts = {"sufficiency": rows["FE+LT"].sufficiency, "necessity": rows["FE+LT"].necessity}
    return {**found, **parts, "separation": _combined(list(parts.values()), lambda x: sum(x) - 1)}


def _plant(record: Record) -> Figures:
    assert record.planted is not None
    return {"average_precision": record.planted.average_precision}


def _area(record: Record, prompt: str) -> Figures:
    assert record.curve is not None
    cost = 3 + sum(map(ord, record.identity.localizer.name)) % 90
    return {
        "area": record.curve[prompt].area,
        FORWARDS.key: Estimate(value=cost, low=cost, high=cost, n=1),
    }


def _combined(some: Sequence[Estimate], how: Callable[[list[float]], float]) -> Estimate:
    if missing := [e for e in some if e.value is None]:
        return missing[0]
    value, low, high = (how([getattr(e, part) for e in some]) for part in ("value", "low", "high"))
    return Estimate(
        value=value, low=min(low, value), high=max(high, value), n=sum(e.n for e in some)
    )


def _board(key: str, columns: tuple[Column, ...], ranked_by: str, cells: Sequence[Cell]) -> Board:
    keys = list(dict.fromkeys(cell[0] for cell in cells))
    tables = [
        _table(name, columns, ranked_by, [cell for cell in cells if cell[0] == name])
        for name in keys
    ]
    whole = _whole(columns, ranked_by, cells, len(keys))
    lead = (
        f"{whole.lines[0].method} leads; {whole.lines[1].method} cannot be told from it."
        if len(whole.lines) > 1
        else "One method."
    )
    return Board(
        key,
        key.capitalize(),
        f"What {key} measures, in a sentence or two.",
        lead,
        (whole, *tables) if tables else (),
    )


def _table(name: str, columns: tuple[Column, ...], ranked_by: str, cells: Sequence[Cell]) -> Table:
    lines = [_line(e, figures, (e.record.id,), (1, 1)) for _, _, e, figures in cells]
    scope = cells[0][1]
    return Table(
        name, ", ".join(scope.values()), columns, tuple(_ranked(lines, ranked_by)), scope, ranked_by
    )


def _whole(columns: tuple[Column, ...], ranked_by: str, cells: Sequence[Cell], total: int) -> Table:
    lines = []
    for method in dict.fromkeys(e.method for _, _, e, _ in cells):
        found = [(e, figures) for _, _, e, figures in cells if e.method == method]
        whole = len(found) == total
        means = {
            c.key: _combined([f[c.key] for _, f in found], lambda x: sum(x) / len(x))
            for c in columns
            if whole and c.key in found[0][1]
        }
        lines.append(
            _line(
                found[0][0],
                means,
                tuple(dict.fromkeys(e.record.id for e, _ in found)),
                (len(found), total),
            )
        )
    return Table(
        "all",
        "All cells",
        columns,
        tuple(_ranked(lines, ranked_by)),
        {},
        ranked_by,
        ("Means over all cells.",),
    )


def _line(found: Entry, figures: Figures, runs: tuple[str, ...], coverage: tuple[int, int]) -> Line:
    badge = (
        "yours"
        if found.submission is None
        else "verified"
        if found.verification is not None
        else "self-reported"
    )
    return Line(
        found.method,
        figures,
        runs,
        coverage,
        badge,
        baseline=found.method in ("none", "all", "random"),
    )


def _ranked(lines: Iterable[Line], key: str) -> Iterator[Line]:
    def value(line: Line) -> float | None:
        return line.figures[key].value if key in line.figures else None

    best = sorted(
        (line for line in lines if value(line) is not None),
        key=lambda line: -float(value(line) or 0),
    )
    rank, first = 0, None
    for line in best:
        if first is None or float(value(first) or 0) - float(value(line) or 0) > 0.05:
            rank, first = rank + 1, line
        yield Line(**{**vars(line), "ranks": (rank, rank)})
    for line in lines:
        if value(line) is None:
            yield Line(**{**vars(line), "unranked": "not all cells were run"})


def _published() -> Board:
    columns = (Column("top5", "Top-5 hit rate", "As the paper gives it.", "higher"),)
    lines = tuple(
        Line(f"gemma, {g}", {"top5": figure(0.5, 0.03, 999)}, (), (1, 1), "published")
        for g in ("FE", "LT")
    )
    about = "Figures of the paper, cited; not reproduced here."
    return Board(
        "published",
        "Published",
        about,
        "Never ranked with ours.",
        (Table("paper", "The paper", columns, lines),),
    )


def several(folder: Path, own: str = "own_idea") -> Iterator[Entry]:
    """Methods of all kinds: baselines, one that ran only one pair, one that a maintainer ran again,
    and one of the reader's own.
    """
    rates = {
        "none": 0.02,
        "all": 0.5,
        "random": 0.3,
        "dynamic_graft": 0.96,
        "path_patch": 0.9,
        "causal_trace": 0.94,
    }
    for method, rate in rates.items():
        pairs = ("tiny-gemma",) if method == "path_patch" else ("tiny-gemma", "tiny-gpt2")
        for pair in pairs:
            yield entry(folder, method, pair, rate, verified=method == "dynamic_graft")
        yield entry(
            folder,
            method,
            "tiny-gemma.one-0",
            rate,
            "planted",
            verified=method == "dynamic_graft",
        )
        yield entry(folder, method, "tiny-gemma", rate, "budget")
    yield entry(folder, own, rate=0.7, submitted=False)


def write_site(board: Leaderboard, folder: Path) -> None:
    """Write the pages into a folder."""
    for name, content in render_site(board):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
