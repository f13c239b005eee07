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
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.reproduction.forecast import Needs, PartForecast
    from kgbench.reproduction.ingredients import Ingredients
    from kgbench.reproduction.made import Made
    from kgbench.reproduction.measured import Measured

__all__ = ["answer_of", "is_figure", "reproduce_figures"]

_MODEL = "tiny-gemma"


def is_figure(what: str) -> bool:
    """Whether it is the name of a figure, or looks as if it was meant to be one."""
    from kgbench.reproduction.page import full_name, page

    known = page().figures
    if what in ("all", *page().shares, *known):
        return True
    return not Path(what).exists() and (
        bool(get_close_matches(what, known)) or full_name(what) != what
    )


def reproduce_figures(what: str, options: Mapping[str, Any]) -> int:
    """Make figures, print them beside the paper's, and write the report.

    Returns:
        The exit status, 0: a claim that fails is a result.
    """
    from kgbench.reproduction.ingredients import SHIPPED, Ingredients
    from kgbench.reproduction.page import chosen, page

    names = chosen(what)
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        if options["rows"]:
            answer = _again(what, options)
        else:
            model, seeds = options["model"] or _MODEL, options["seeds"] or (SHIPPED,)
            pairs = [Ingredients(page(), model, options["supplement"], seed) for seed in seeds]
            answer = (
                _forecast(names, pairs, options)
                if options["dry_run"]
                else _make(what, pairs, options)
            )
    if options["as_json"]:
        echo_json(answer)
    return 0


def _again(what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Figures from rows that are there."""
    from kgbench.reproduction.measured import read_measured

    if given := [name for name in ("model", "supplement", "seeds", "dry_run") if options[name]]:
        raise InputError(
            f"--rows computes figures from a file alone: leave out --{given[0].replace('_', '-')}"
        )
    return _report(what, read_measured(options["rows"]), options)


def _forecast(
    names: Sequence[str], pairs: Sequence[Ingredients], options: Mapping[str, Any]
) -> dict[str, Any]:
    from kgbench.reproduction.forecast import forecasts, needs, room

    what = pairs[0]
    free = room(what, options["output_dir"], options["device"])
    with progress(shown=not options["quiet"]) as report:
        known = _rows_there(_folder(what.model, options))
        parts = list(
            forecasts(names, pairs, options["output_dir"], options["device"], report, known)
        )
    found = needs(parts, free)
    if not options["as_json"]:
        echo_table(["part", "time", "memory", "disk", "it takes"], [_row(part) for part in parts])
        click.echo()
        for line in _total(parts, found):
            click.echo(line)
    return {
        "model": what.model,
        "figures": list(names),
        "parts": [part.to_json() for part in parts],
        **found.to_json(),
    }


def _row(part: PartForecast) -> list[str]:
    from kgbench.numbers import duration_text
    from kgbench.runner.forecast import size

    seconds = "–" if part.seconds is None else duration_text(part.seconds)
    memory = "–" if part.memory_bytes is None else size(part.memory_bytes)
    return [part.part, seconds, memory, size(part.disk_bytes), part.work]


def _total(parts: Sequence[PartForecast], found: Needs) -> Iterator[str]:
    """What all parts take, whether it is there, and what the figures rest on."""
    from kgbench.board.wrap import wrapped
    from kgbench.numbers import duration_text
    from kgbench.runner.forecast import size

    known = [part.seconds for part in parts if part.seconds is not None]
    left = len(parts) - len(known)
    unknown = f", and {left} of {len(parts)} parts that cannot be told beforehand" if left else ""
    more = found.disk_bytes - found.kept_bytes
    kept = f"{size(found.kept_bytes)} kept" + (
        f", {size(more)} more while a donor is trained" if more else ""
    )
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
    return {
        basis: some[0] if len(some) == 1 else f"{some[0]} and {len(some) - 1} more"
        for basis, some in found.items()
    }


def _make(what: str, pairs: Sequence[Ingredients], options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.reproduction.made import make
    from kgbench.reproduction.measured import ROWS, write_measured
    from kgbench.reproduction.page import chosen

    folder = _folder(pairs[0].model, options)

    def keep(measured: Measured) -> None:
        write_measured(measured, folder / ROWS)

    with progress(shown=not options["quiet"]) as report:
        known = _rows_there(folder)
        measured = make(
            chosen(what), pairs, options["output_dir"], options["device"], report, known, keep
        )
    return _report(what, measured, options)


def _folder(model: str, options: Mapping[str, Any]) -> Path:
    """Where the report and its rows go."""
    return Path(options["report"] or Path("kgbench-reproduction") / model)


def _rows_there(folder: Path) -> Measured | None:
    """The rows of an earlier call, whose evaluations are not made again."""
    from kgbench.reproduction.measured import ROWS, read_measured

    return read_measured(folder / ROWS) if (folder / ROWS).exists() else None


def _report(what: str, measured: Measured, options: Mapping[str, Any]) -> dict[str, Any]:
    """Print what was asked for; the report has all that there are rows of, but with --rows only that."""
    from kgbench.reproduction.acceptance import results
    from kgbench.reproduction.made import figures_of, figures_there, lacking
    from kgbench.reproduction.measured import ROWS
    from kgbench.reproduction.page import chosen, page
    from kgbench.reproduction.report import write_report

    names = list(chosen(what))
    # Of several figures those that are there will do; a single one that is not is an error.
    there = figures_there(names, measured, page())
    asked = figures_of(there if there and len(names) > 1 else names, measured, page())
    model, every = measured.about.model, list(page().figures)
    folder = _folder(model, options)
    rows = options["rows"] or folder / ROWS
    shown = names if options["rows"] else every
    made = (
        asked
        if options["rows"]
        else figures_of(figures_there(every, measured, page()), measured, page())
    )
    control = results(measured, page()) if measured.about.tiny and len(shown) > 1 else ()
    path = write_report(made, folder, lacking(shown, measured, page()), control)
    if not options["as_json"]:
        click.echo("\n".join(_lines(asked)))
        click.echo(f"report   {path}")
        click.echo(f"rows     {rows}")
    return {
        "model": model,
        "report": str(path),
        "rows": str(rows),
        "figures": [answer_of(one) for one in asked],
    }


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
    """What `--json` tells of a figure: its record under each training seed, and each claim here and in the paper."""
    claims = [
        {
            "prompt": claim.prompt,
            "says": claim.claim.says,
            "first": claim.claim.first,
            "second": claim.claim.second,
            "bounds": dict(claim.claim.bounds),
            "difference": claim.difference.answer(),
            "outcome": claim.outcome,
            "larger": None
            if claim.larger is None
            else {"term": claim.larger.name, "recovery": claim.larger.recovery},
            "paper": {
                model: {"difference": claim.paper[model].value, "keeps": kept}
                for model, kept in claim.in_paper.items()
            },
        }
        for claim in one.claims
    ]
    records = {
        str(seed): one.about.evaluations[seed][one.figure.evaluation].record for seed in one.seeds
    }
    return {"figure": one.name, "records": records, "claims": claims}
