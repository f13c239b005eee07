"""`kgbench reproduce`: a figure of the paper, made again."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import RESULTS
from kgbench.cli.output import echo_json, echo_table, progress
from kgbench.cli.rerun import rerun
from kgbench.cli.runs import again_options
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.reproduction.forecast import Needs, PartForecast
    from kgbench.reproduction.ingredients import Ingredients
    from kgbench.reproduction.made import Made
    from kgbench.reproduction.measured import Measured

__all__ = ["STUDY", "answer_of", "is_figure", "reproduce_figures", "reproduce_study"]

STUDY = "study"


def reproduce_study(options: Mapping[str, Any]) -> int:
    """Make runs, write the page and print what the effects say.

    Returns:
        The exit status, 0.
    """
    from kgbench.reproduction.study.design import study
    from kgbench.reproduction.study.figures import findings
    from kgbench.reproduction.study.report import verdicts, write_study
    from kgbench.reproduction.study.rows import RunRows, rows_path
    from kgbench.reproduction.study.series import finished, make_runs

    design, folder = study(), options["report"] or Path("kgbench-reproduction") / STUDY
    runs = design.chosen(options["only"], options["seeds"] or ())
    if options["dry_run"]:
        missing = [run.name for run in runs if not rows_path(folder, run.name).is_file()]
        if options["as_json"]:
            echo_json({"missing": missing, "runs": len(design.runs)})
        else:
            echo_table(
                ["run", "state"], [[r.name, "missing" if r.name in missing else "in"] for r in runs]
            )
        return 0

    def on_run(rows: RunRows) -> None:
        write_study(findings(design, finished(design, folder)), folder)
        click.echo(f"run      {rows_path(folder, rows.about.run)}")

    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        with progress(shown=not options["quiet"]) as report:
            made = make_runs(design, runs, folder, options["runs"], report, on_run)
        found = findings(design, finished(design, folder))
        path = write_study(found, folder)
        for line in verdicts(found):
            click.echo(line)
        click.echo(f"report   {path}")
    if options["as_json"]:
        echo_json(
            {"made": made, "in": len(found.runs), "runs": len(design.runs), "report": str(path)}
        )
    return 0


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
    from kgbench.numbers import duration_text
    from kgbench.report import wrapped
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
    """Print the requested figures; the report has all with rows, but with --rows only these."""
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
    from kgbench.report import wrapped
    from kgbench.reproduction.report import CLAIMS_LEGEND, claims_text, figure_lines

    for one in made:
        yield f"{one.name}: {one.figure.title}\n"
        yield from figure_lines(one)
        yield from claims_text(one)
    if any(one.claims for one in made):
        yield wrapped(CLAIMS_LEGEND, "  ")


def answer_of(one: Made) -> dict[str, Any]:
    """JSON of a figure: its record per training seed, and each claim here and in the paper."""
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


OF_FIGURES = ("report", "supplement", "seeds", "rows", "dry_run")
OF_RUNS = (
    *(
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
    ),
    *("batch_size", "device_map", "stream_donors", "tolerance"),
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
    metavar="FILE",
    help="Figures from the rows.parquet of a report, without a model.",
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
@click.option("--dry-run", is_flag=True, help="Only say what it would take: time, memory, disk.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(what: str, output_dir: Path, as_json: bool, quiet: bool, **options: Any) -> int:
    """Make a figure of the paper again, and print it beside the paper's.

    A figure (figure-2 to figure-15 or their numbers, title_in_prompt,
    title_in_prompt_names, movie_title, relation, head, layers, articles,
    articles_top50, forgetting; `all` for all, `acceptance` for those of the
    positive control) is made on --model, by default tiny-gemma: donors that
    are missing are trained, evaluations run, and ours printed beside the
    paper's figures, with its claims checked one by one. On a tiny pair smaller
    data stands for the paper's. Whatever is interrupted goes on where it was, and
    what the report's rows.parquet holds is not made again.

    The study asks which features of an architecture make it recall at the last
    token or enrich at the first entity: small models of one code base,
    pretrained and finetuned in eight cells under three seeds, some minutes a
    run. Runs that are in the report's folder are not made again, and several
    processes may work on one study.

    \b
    kgbench reproduce figure-2 --model tiny-gemma
    kgbench reproduce all --seeds 0,1,2,3,4            # over training seeds
    kgbench reproduce acceptance --seeds 1             # a share of one more seed
    kgbench reproduce all --rows kgbench-reproduction/tiny-gemma/rows.parquet
    kgbench reproduce all --model gemma-2b --supplement Skylion007/openwebtext --dry-run
    kgbench reproduce study --report study --runs 4    # the next four runs and the page
    kgbench rerun RUN                                  # a recorded run again
    """  # noqa: D301 (click reads the character, not its escape)
    said = {**options, "output_dir": output_dir, "as_json": as_json, "quiet": quiet}
    if what == STUDY:
        others = (
            *OF_RUNS,
            *(name for name in OF_FIGURES if name not in ("report", "seeds", "dry_run")),
            "model",
        )
        _refuse(what, "a figure or a run", [name for name in others if options[name]])
        return reproduce_study(said)
    _refuse(what, "the study", [name for name in OF_STUDY if options[name] not in (None, ())])
    if is_figure(what):
        _refuse(what, "a run", [name for name in OF_RUNS if options[name]])
        return reproduce_figures(what, said)
    _refuse(what, "a figure", [name for name in OF_FIGURES if options[name]])
    click.echo(f"kgbench: note: to run a recorded run again, write kgbench rerun {what}", err=True)
    return rerun(what, said)


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


def _refuse(what: str, kind: str, given: list[str]) -> None:
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(
            f"{option} says how {kind} is reproduced, and {what!r} is none: leave it out"
        )
