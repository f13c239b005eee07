"""What `kgbench reproduce FIGURE` does: make, print, report."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, echo_table
from kgbench.cli.progress import progress

if TYPE_CHECKING:
    from kgbench.reproduction.forecast import Needs, PartForecast
    from kgbench.reproduction.ingredients import Ingredients
    from kgbench.reproduction.made import Made

__all__ = ["answer_of", "is_figure", "reproduce_figures"]

_MODEL = "tiny-gemma"


def is_figure(what: str) -> bool:
    """Whether it is the name of a figure, or looks as if it was meant to be one."""
    from kgbench.reproduction.page import full_name, page

    known = page().figures
    return what == "all" or what in known or (not Path(what).exists() and (bool(get_close_matches(what, known)) or full_name(what) != what))


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
    from kgbench.reproduction.forecast import forecasts, needs, room

    free = room(what, options["output_dir"], options["device"])
    with progress(shown=not options["quiet"]) as report:
        parts = list(forecasts(names, what, options["output_dir"], options["device"], report))
    found = needs(parts, free)
    if not options["as_json"]:
        echo_table(["part", "time", "memory", "disk", "it takes"], [_row(part) for part in parts])
        click.echo()
        for line in _total(parts, found):
            click.echo(line)
    return {"model": what.model, "figures": list(names), "parts": [part.to_json() for part in parts], **found.to_json()}


def _row(part: PartForecast) -> list[str]:
    from kgbench.numbers import duration_text
    from kgbench.runner.memory import size

    seconds = "–" if part.seconds is None else duration_text(part.seconds)
    memory = "–" if part.memory_bytes is None else size(part.memory_bytes)
    return [part.part, seconds, memory, size(part.disk_bytes), part.work]


def _total(parts: Sequence[PartForecast], found: Needs) -> Iterator[str]:
    """What all parts take, whether it is there, and what the figures rest on."""
    from kgbench.board.wrap import wrapped
    from kgbench.numbers import duration_text
    from kgbench.runner.memory import size

    known = [part.seconds for part in parts if part.seconds is not None]
    left = len(parts) - len(known)
    unknown = f", and {left} of {len(parts)} parts that cannot be told beforehand" if left else ""
    more = found.disk_bytes - found.kept_bytes
    kept = f"{size(found.kept_bytes)} kept" + (f", {size(more)} more while a donor is trained" if more else "")
    download = f"; {size(found.download_bytes)} of it to download" if found.download_bytes else ""
    said = {
        "in all": f"about {duration_text(sum(known))}{unknown}",
        "memory": f"{_fits(found.memory_fits)}: needs {size(found.memory_bytes)}{' and the activations of a training' if more else ''}, "
        f"{size(found.room.memory_bytes)} free on {found.room.device}",
        "disk": f"{_fits(found.disk_fits)}: needs {size(found.disk_bytes)} ({kept}{download}), "
        f"{size(found.room.disk_bytes)} free for {found.room.folder}",
    }
    for name, text in said.items():
        yield wrapped(f"{name:<9}{text}", " " * 9)
    for number, (basis, some) in enumerate(_bases(parts).items()):
        yield wrapped(f"{'' if number else 'from':<9}{some}: {basis}", " " * 9)


def _fits(enough: bool) -> str:
    return "fits" if enough else "does not fit"


def _bases(parts: Sequence[PartForecast]) -> dict[str, str]:
    """What times rest on, and those of which parts."""
    found: dict[str, list[str]] = {}
    for part in parts:
        if part.basis:
            found.setdefault(part.basis, []).append(part.part)
    return {basis: some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} more" for basis, some in found.items()}


def _make(names: Sequence[str], what: Ingredients, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.reproduction.made import make
    from kgbench.reproduction.report import write_report

    with progress(shown=not options["quiet"]) as report:
        made = list(make(names, what, options["output_dir"], options["device"], report))
    path = write_report(what.model, made, options["report"])
    if not options["as_json"]:
        click.echo("\n".join(_lines(made)))
        click.echo(f"report   {path}")
    return {"model": what.model, "report": str(path), "figures": [answer_of(one) for one in made]}


def _lines(made: Sequence[Made]) -> Iterator[str]:
    from kgbench.board.wrap import wrapped
    from kgbench.reproduction.terminal import CLAIMS_LEGEND, claims_text, figure_text

    for one in made:
        yield f"{one.name}: {one.figure.title}\n"
        yield from figure_text(one)
        yield from claims_text(one)
    if any(one.claims for one in made):
        yield wrapped(CLAIMS_LEGEND, "  ")


def answer_of(one: Made) -> dict[str, Any]:
    """What `--json` tells of a figure: its record, and each claim here and in the paper."""
    claims = [
        {
            "prompt": claim.prompt,
            "says": claim.claim.says,
            "first": claim.claim.first,
            "second": claim.claim.second,
            "bounds": dict(claim.claim.bounds),
            "difference": claim.difference.answer(),
            "outcome": claim.outcome,
            "larger": None if claim.larger is None else {"term": claim.larger.name, "recovery": claim.larger.recovery},
            "paper": {model: {"difference": claim.paper[model].value, "keeps": kept} for model, kept in claim.in_paper.items()},
        }
        for claim in one.claims
    ]
    return {"figure": one.name, "record": one.record.id, "claims": claims}
