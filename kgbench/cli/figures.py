"""What `kgbench reproduce FIGURE` does: make, print, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, echo_table
from kgbench.cli.progress import progress

if TYPE_CHECKING:
    from kgbench.reproduction.forecast import PartForecast
    from kgbench.reproduction.ingredients import Ingredients
    from kgbench.reproduction.made import Made

__all__ = ["is_figure", "reproduce_figures"]

_MODEL = "tiny-gemma"


def is_figure(what: str) -> bool:
    """Whether it is the name of a figure, or looks as if it was meant to be one."""
    from kgbench.reproduction.page import page

    return what == "all" or what in page().figures or (what.startswith("figure") and not Path(what).exists())


def reproduce_figures(what: str, options: Mapping[str, Any]) -> int:
    """Make figures, print them beside the paper's, and write the report.

    Returns:
        The exit status, 0: a claim that fails is a result.
    """
    from kgbench.reproduction.ingredients import Ingredients
    from kgbench.reproduction.page import chosen, page

    names, model = chosen(what), options["model"] or _MODEL
    folder = options["report"] or Path("kgbench-reproduction") / model
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        ingredients = Ingredients(page(), model, options["supplement"])
        answer = _forecast(names, ingredients, options) if options["dry_run"] else _make(names, ingredients, {**options, "report": folder})
    if options["as_json"]:
        echo_json(answer)
    return 0


def _forecast(names: Sequence[str], what: Ingredients, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.reproduction.forecast import forecasts

    parts = list(forecasts(names, what, options["output_dir"], options["device"]))
    if not options["as_json"]:
        echo_table(["part", "it takes", "time", "memory"], [_row(part) for part in parts])
        click.echo(_total(parts))
    return {"model": what.model, "figures": list(names), "parts": [part.to_json() for part in parts]}


def _row(part: PartForecast) -> list[str]:
    seconds = "–" if part.seconds is None else _duration(part.seconds)
    memory = "–" if part.memory_bytes is None else f"{part.memory_bytes / 2**20:,.0f} MiB"
    return [part.part, part.work, seconds, memory]


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:,.0f} h"


def _total(parts: Sequence[PartForecast]) -> str:
    known = [part.seconds for part in parts if part.seconds is not None]
    disk, memory = (
        max((size or 0 for size in sizes), default=0) for sizes in zip(*((p.disk_bytes, p.memory_bytes) for p in parts), strict=True)
    )
    left = len(parts) - len(known)
    unknown = f", and {left} of {len(parts)} parts that cannot be told beforehand" if left else ""
    room = f"at most {memory / 2**20:,.0f} MiB of memory, and {disk / 2**20:,.0f} MiB of disk while one is trained"
    return f"in all {_duration(sum(known))}{unknown}; {room}"


def _make(names: Sequence[str], what: Ingredients, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.reproduction.made import make
    from kgbench.reproduction.report import write_report

    with progress(shown=not options["quiet"]) as report:
        made = list(make(names, what, options["output_dir"], options["device"], report))
    path = write_report(what.model, made, options["report"])
    if not options["as_json"]:
        click.echo("\n".join(_lines(made)))
        click.echo(f"report   {path}")
    return {"model": what.model, "report": str(path), "figures": [_answer(one) for one in made]}


def _lines(made: Sequence[Made]) -> Iterator[str]:
    from kgbench.reproduction.report import claims_table, figure_tables

    for one in made:
        yield f"{one.name}: {one.figure.title}\n"
        yield from figure_tables(one, "simple")
        if one.claims:
            yield claims_table([one], "simple")
            yield ""


def _answer(one: Made) -> dict[str, Any]:
    claims = [
        {
            "prompt": claim.prompt,
            "says": claim.claim.says,
            "first": claim.claim.first,
            "second": claim.claim.second,
            "bounds": dict(claim.claim.bounds),
            "difference": claim.difference.answer(),
            "outcome": claim.outcome,
            "paper": {model: {"difference": claim.paper[model], "keeps": kept} for model, kept in claim.in_paper.items()},
        }
        for claim in one.claims
    ]
    return {"figure": one.name, "record": one.record.id, "claims": claims}
