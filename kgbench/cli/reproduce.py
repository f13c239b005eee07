"""`kgbench reproduce`: a figure of the paper computed again, or the study of architectures."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import RESULTS
from kgbench.cli.output import echo_json, echo_table, json_option, quiet_option
from kgbench.cli.records import rerun
from kgbench.cli.runs import again_options
from kgbench.errors import InputError
from kgbench.progress import progress

if TYPE_CHECKING:
    from kgbench.analyses.reproduction.parts import Needs, PartForecast

__all__ = ["STUDY", "is_figure", "reproduce_figures", "reproduce_study"]

STUDY = "study"

_MODEL = "tiny-gemma"


def reproduce_study(options: Mapping[str, Any]) -> int:
    """Make runs, write the page and print its verdicts.

    Returns:
        The exit status, 0.
    """
    from kgbench.api.reproduction import study

    if options["dry_run"]:
        _study_states(options)
        return 0

    def on_run(path: Path) -> None:
        click.echo(f"run      {path}")

    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        found = study(
            only=options["only"],
            seeds=options["seeds"] or (),
            runs=options["runs"],
            report=options["report"],
            on_run=on_run,
            progress=not options["quiet"],
        )
        click.echo(str(found))
    if options["as_json"]:
        echo_json(found.to_json())
    return 0


def _study_states(options: Mapping[str, Any]) -> None:
    """Print which runs are in."""
    from kgbench.analyses.reproduction.study.design import study_design
    from kgbench.analyses.reproduction.study.factorial import rows_path
    from kgbench.api.reproduction import report_folder

    design, folder, states = study_design(), report_folder(STUDY, options["report"]), {}
    for run in design.chosen(options["only"], options["seeds"] or ()):
        states[run.name] = "in" if rows_path(folder, run.name).is_file() else "missing"
    if options["as_json"]:
        missing = [name for name, state in states.items() if state == "missing"]
        echo_json({"missing": missing, "runs": len(design.runs)})
    else:
        echo_table(["run", "state"], [[name, state] for name, state in states.items()])


def is_figure(what: str) -> bool:
    """Whether it is the name of a figure, or looks as if it was meant to be one."""
    from kgbench.analyses.reproduction.page import full_name, page

    known = page().figures
    if what in ("all", *page().shares, *known):
        return True
    return not Path(what).exists() and (
        bool(get_close_matches(what, known)) or full_name(what) != what
    )


def reproduce_figures(what: str, options: Mapping[str, Any]) -> int:
    """Make figures, print them next to the paper's, and write the report.

    Returns:
        The exit status, 0: a claim that fails is a result.
    """
    from kgbench.api.reproduction import reproduce

    if options["rows"] and options["dry_run"]:
        raise InputError("--rows computes figures from files alone: leave out --dry-run")
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        if options["dry_run"]:
            answer = _forecast(what, options)
        else:
            names = ("model", "supplement", "rows", "report", "device", "output_dir")
            given = {name: options[name] for name in names}
            found = reproduce(
                what, seeds=options["seeds"] or (), progress=not options["quiet"], **given
            )
            click.echo(str(found))
            answer = found.to_json()
    if options["as_json"]:
        echo_json(answer)
    return 0


def _forecast(what: str, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.analyses.reproduction.page import chosen, page
    from kgbench.analyses.reproduction.parts import (
        SHIPPED,
        Ingredients,
        forecasts,
        room,
        total_needs,
    )
    from kgbench.api.reproduction import report_folder, rows_there

    names, model = chosen(what), options["model"] or _MODEL
    seeds = options["seeds"] or (SHIPPED,)
    pairs = [Ingredients(page(), model, options["supplement"], seed) for seed in seeds]
    output_dir, device = options["output_dir"], options["device"]
    free = room(pairs[0], output_dir, device)
    with progress(shown=not options["quiet"]) as report:
        known = rows_there(report_folder(model, options["report"]))
        parts = list(forecasts(names, pairs, output_dir, device, report, known))
    total = total_needs(parts, free)
    if not options["as_json"]:
        echo_table(["part", "time", "memory", "disk", "it takes"], list(map(_row, parts)))
        click.echo()
        for line in _total(parts, total):
            click.echo(line)
    return {
        "model": model,
        "figures": list(names),
        "parts": list(map(asdict, parts)),
        **total.to_json(),
    }


def _row(part: PartForecast) -> list[str]:
    from kgbench.numbers import duration_text
    from kgbench.runner.forecast import size

    seconds = "–" if part.seconds is None else duration_text(part.seconds)
    memory = "–" if part.memory_bytes is None else size(part.memory_bytes)
    return [part.part, seconds, memory, size(part.disk_bytes), part.work]


def _total(parts: Sequence[PartForecast], needs: Needs) -> Iterator[str]:
    """Needs of all parts, whether they fit, and the basis of the times."""
    from kgbench.numbers import duration_text
    from kgbench.report import wrapped
    from kgbench.runner.forecast import size

    known = [part.seconds for part in parts if part.seconds is not None]
    time = f"about {duration_text(sum(known))}"
    if left := len(parts) - len(known):
        time += f", and {left} of {len(parts)} parts of unknown time"
    memory = f"{_fits(needs.memory_fits)}: needs {size(needs.memory_bytes)}"
    kept = f"{size(needs.kept_bytes)} kept"
    if more := needs.disk_bytes - needs.kept_bytes:
        memory += " and the activations of a training"
        kept += f", {size(more)} more while a donor is trained"
    memory += f", {size(needs.room.memory_bytes)} free on {needs.room.device}"
    if needs.download_bytes:
        kept += f"; {size(needs.download_bytes)} of it to download"
    disk = f"{_fits(needs.disk_fits)}: needs {size(needs.disk_bytes)} ({kept}), "
    disk += f"{size(needs.room.disk_bytes)} free for {needs.room.folder}"
    lines = [("in all", time), ("memory", memory), ("disk", disk)]
    bases: dict[str, list[str]] = {}
    for part in parts:
        if part.basis:
            bases.setdefault(part.basis, []).append(part.part)
    for number, (basis, some) in enumerate(bases.items()):
        more_parts = f" and {len(some) - 1} more" if len(some) > 1 else ""
        lines.append(("" if number else "from", f"{some[0]}{more_parts}: {basis}"))
    for name, text in lines:
        yield wrapped(f"{name:<9}{text}", " " * 9)


def _fits(enough: bool) -> str:
    return "fits" if enough else "does not fit"


OF_FIGURES = ("report", "supplement", "seeds", "rows", "dry_run")
OF_RUNS = (
    "localizer",
    "recipient",
    "donor",
    "revision",
    "chat_template",
    "dataset",
    "subject",
    "object",
    "column",
    "template",
    "batch_size",
    "device_map",
    "stream_donors",
    "tolerance",
)
"""Options that only one of the two kinds takes and that have no default value."""
OF_STUDY = ("only", "runs")
"""Options of the study alone; of the others it takes --report, --seeds and --dry-run."""


@click.command(
    epilog="Exit status: 0 done, also where a claim fails; 2 wrong input; 130 interrupted."
)
@click.argument("what", metavar="FIGURE|acceptance|all|study")
@again_options
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=RESULTS,
    show_default=True,
    help="Where records go.",
)
@click.option(
    "--report",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where the report goes.  [default: ./kgbench-reproduction/MODEL]",
)
@click.option(
    "--supplement",
    metavar="FILE|ID",
    help="Other text for the gentle recipe; a tiny pair has its own.",
)
@click.option(
    "--seeds",
    metavar="N,N,…",
    callback=lambda _, __, text: _seeds(text),
    help="Training seeds; a tiny pair of another than 0 is pretrained anew. Intervals of several "
    "are over facts and seeds.  [default: 0]",
)
@click.option(
    "--rows",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Figures from the rows.parquet of a report, without a model; several, such as of further "
    "seeds, are joined in the report's folder.",
)
@click.option(
    "--only",
    multiple=True,
    metavar="RUN|CELL",
    help="Of the study: this run, or the runs of this cell; may be repeated.  [default: all]",
)
@click.option(
    "--runs",
    type=click.IntRange(min=0),
    metavar="N",
    help="Of the study: make at most N of the runs that are missing; 0 only writes the page from "
    "those that are in.",
)
@click.option("--dry-run", is_flag=True, help="Only forecast time, memory and disk.")
@json_option()
@quiet_option()
def command(what: str, output_dir: Path, as_json: bool, quiet: bool, **options: Any) -> int:
    """Compute a figure of the paper again, and compare it with the paper's.

    A figure (figure-2 to figure-15 or their numbers, title_in_prompt,
    title_in_prompt_names, movie_title, relation, head, layers, articles,
    articles_top50, forgetting; `all` for all, `acceptance` for those of the
    positive control) is computed on --model, by default tiny-gemma: missing
    donors are trained, evaluations run, and our estimates printed next to the
    paper's, with its claims checked one by one. A tiny pair has smaller data in
    place of the paper's. An interrupted command goes on where it was, and
    evaluations in the report's rows.parquet are not run again.

    The study asks which features of an architecture make it recall at the last
    token or enrich at the first entity: small models of one code base,
    pretrained and finetuned in eight cells under three seeds, some minutes a
    run. Runs in the report's folder are not made again, and several processes
    may work on one study.

    \b
    kgbench reproduce figure-2 --model tiny-gemma
    kgbench reproduce all --seeds 0,1,2,3,4            # over training seeds
    kgbench reproduce acceptance --seeds 1             # a share of one more seed
    kgbench reproduce all --rows kgbench-reproduction/tiny-gemma/rows.parquet
    kgbench reproduce all --model gemma-2b --supplement Skylion007/openwebtext --dry-run
    kgbench reproduce study --report study --runs 4    # the next four runs and the page
    kgbench rerun RUN                                  # a recorded run again
    """  # noqa: D301 (click reads the character, not its escape)
    given = {**options, "output_dir": output_dir, "as_json": as_json, "quiet": quiet}
    if what == STUDY:
        others = (*OF_RUNS, "supplement", "rows", "model")
        _refuse(what, "a figure or a run", [name for name in others if options[name]])
        return reproduce_study(given)
    _refuse(what, "the study", [name for name in OF_STUDY if options[name] not in (None, ())])
    if is_figure(what):
        _refuse(what, "a run", [name for name in OF_RUNS if options[name]])
        return reproduce_figures(what, given)
    _refuse(what, "a figure", [name for name in OF_FIGURES if options[name]])
    click.echo(f"kgbench: note: to run a recorded run again, write kgbench rerun {what}", err=True)
    return rerun(what, given)


for option in command.params:
    # They go with `kgbench reproduce RUN`, the older name of `kgbench rerun RUN`.
    if option.name == "model":
        option.help = "The pair.  [default: tiny-gemma]"
    option.hidden = option.name in (*OF_RUNS, "attention")  # type: ignore[attr-defined]  # arguments of this command are none of them


def _seeds(text: str | None) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise InputError(f"--seeds {text}: expected different whole numbers, such as 0,1,2,3,4")
    return tuple(map(int, parts))


def _refuse(what: str, kind: str, given: Sequence[str]) -> None:
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(f"{option} is an option of {kind}, and {what!r} is none: leave it out")
