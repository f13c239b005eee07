"""Data files of pictures: maps of scores and budget curves, as compactly as a picture allows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby, product
from typing import Any

from kgbench.leaderboard.board_tables import Line, Table
from kgbench.leaderboard.entries import Entry
from kgbench.leaderboard.hits import DIGITS
from kgbench.leaderboard.validate.recomputation import planted_sites
from kgbench.records import Curve, Record
from kgbench.sites import COMPONENTS, OUTSIDE, SCORED_REGIONS, Site, parse_graft

__all__ = ["compact_json", "curve_points", "map_data", "script_call", "table_curves"]

_STEPS = 4094


def compact_json(value: Any) -> str:
    """JSON without blanks."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False)


def script_call(function: str, *arguments: Any) -> bytes:
    """A data file: a script that passes JSON to the page, since pages opened as files cannot fetch."""
    return f"{function}({','.join(map(compact_json, arguments))});\n".encode()


def _short(value: float) -> float:
    """Four significant digits: what a picture can show."""
    return float(f"{value:.4g}")


def table_curves(table: Table, entries: Mapping[str, Entry]) -> Iterator[tuple[str, Curve]]:
    """Budget curves of a table's methods on its prompt, of those lines that are from one run."""
    prompt = table.scope.get("prompt")
    for line in table.lines if prompt is not None else ():
        if (curve := _run_curves(line, entries).get(prompt or "")) is not None:
            yield line.method, curve


def _run_curves(line: Line, entries: Mapping[str, Entry]) -> Mapping[str, Curve]:
    runs = [entries[id] for id in line.runs if id in entries]
    return (runs[0].record.curve or {}) if len(runs) == 1 else {}


def curve_points(curve: Curve) -> list[list[float]]:
    """Points: budget in per cent, recovery with its interval; without undefined points."""
    points = []
    for point in curve.points:
        numbers = (point.budget, point.recovery.value, point.recovery.low, point.recovery.high)
        if None not in numbers:
            points.append([_short(number) for number in numbers if number is not None])
    return points


def map_data(record: Record) -> dict[str, Any] | None:
    """Two characters per site by region, component and layer; one outside the layers.

    A score is its step of 4,094 between the least and the largest; `..` means that the model has no
    such site, and `AB(7)` seven times `AB`.
    """
    if not record.scores:
        return None
    scores = {Site(s.layer, s.component, s.region): s.score for s in record.scores}
    used_regions = {site.region for site in scores}
    used_components = {site.component for site in scores}
    regions = [region for region in SCORED_REGIONS if region in used_regions]
    components = [component for component in COMPONENTS if component in used_components]
    layers = sorted({site.layer for site in scores if site.layer is not None})
    low, high = min(scores.values()), max(scores.values())
    sites = []
    for region, component in product(regions, components):
        places = [None] if component in OUTSIDE else layers
        sites += [Site(layer, component, region) for layer in places]
    codes = [_code(scores.get(site), low, high) for site in sites]
    return {
        "regions": " ".join(regions),
        "components": " ".join(components),
        "layers": layers,
        "ends": [_short(low), _short(high)],
        "grid": _repeated(codes),
        **_planted(record, sites),
    }


def _planted(record: Record, sites: list[Site]) -> dict[str, list[int]]:
    """Starts and ends of the stretches of planted sites."""
    if record.planted is None:
        return {}
    n_layers = len({site.layer for site in sites} - {None})
    true = planted_sites(sites, parse_graft(record.planted.plant), n_layers)
    inside = [False, *(site in true for site in sites), False]
    return {"planted": [i for i in range(len(sites) + 1) if inside[i] != inside[i + 1]]}


def _repeated(codes: list[str]) -> str:
    text = ""
    for code, same in groupby(codes):
        n = len(list(same))
        text += f"{code}({n})" if n > 2 else code * n
    return text


def _code(score: float | None, low: float, high: float) -> str:
    if score is None:
        return ".."
    step = round((score - low) / (high - low) * _STEPS) if high > low else 0
    return DIGITS[step // len(DIGITS)] + DIGITS[step % len(DIGITS)]
