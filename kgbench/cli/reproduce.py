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
    from kgbench.reproduction.ingredients import Ingredients
    from kgbench.reproduction.measurements import PairRows
    from kgbench.reproduction.paper_figures import PaperFigure
    from kgbench.reproduction.parts import Needs, PartForecast

__all__ = ["STUDY", "answer_of", "is_figure", "reproduce_figures", "reproduce_study"]

STUDY = "study"

_MODEL = "tiny-gemma"


def reproduce_study(options: Mapping[str, Any]) -> int:
    """Make runs, write the page and print its verdicts.

    Returns:
        The exit status, 0.
    """
    from kgbench.reproduction.study.design import study
    from kgbench.reproduction.study.factorial import RunRows, findings, rows_path
    from kgbench.reproduction.study.study_page import verdicts, write_study
    from kgbench.reproduction.study.study_runs import finished, make_runs

    design, folder = study(), options["report"] or Path("kgbench-reproduction") / STUDY
    runs = design.chosen(options["only"], options["seeds"] or ())
    if options["dry_run"]:
        states = {}
        for run in runs:
            states[run.name] = "in" if rows_path(folder, run.name).is_file() else "missing"
        if options["as_json"]:
            missing = [name for name, state in states.items() if state == "missing"]
            echo_json({"missing": missing, "runs": len(design.runs)})
        else:
            echo_table(["run", "state"], [[name, state] for name, state in states.items()])
        return 0

    def on_run(rows: RunRows) -> None:
        write_study(findings(design, finished(design, folder)), folder)
        click.echo(f"run      {rows_path(folder, rows.about.run)}")

    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        with progress(shown=not options["quiet"]) as report:
            made = make_runs(design, runs, folder, options["runs"], report, on_run)
        results = findings(design, finished(design, folder))
        path = write_study(results, folder)
        for line in verdicts(results):
            click.echo(line)
        click.echo(f"report   {path}")
    if options["as_json"]:
        counts = {"made": made, "in": len(results.runs), "runs": len(design.runs)}
        echo_json({**counts, "report": str(path)})
    return 0


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
    """Make figures, print them next to the paper's, and write the report.

    Returns:
        The exit status, 0: a claim that fails is a result.
    """
    from kgbench.reproduction.ingredients import SHIPPED, Ingredients
    from kgbench.reproduction.page import chosen, page

    names = chosen(what)
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        if options["rows"]:
            for name in ("model", "supplement", "seeds", "dry_run"):
                if options[name]:
                    option = f"--{name.replace('_', '-')}"
                    raise InputError(
                        f"--rows computes figures from files alone: leave out {option}"
                    )
            answer = _report(names, _joined_rows(options), options)
        else:
            model, seeds = options["model"] or _MODEL, options["seeds"] or (SHIPPED,)
            pairs = [Ingredients(page(), model, options["supplement"], seed) for seed in seeds]
            work = _forecast if options["dry_run"] else _make
            answer = work(names, pairs, options)
    if options["as_json"]:
        echo_json(answer)
    return 0


def _forecast(
    names: Sequence[str], pairs: Sequence[Ingredients], options: Mapping[str, Any]
) -> dict[str, Any]:
    from kgbench.reproduction.parts import forecasts, room, total_needs

    what, output_dir, device = pairs[0], options["output_dir"], options["device"]
    free = room(what, output_dir, device)
    with progress(shown=not options["quiet"]) as report:
        known = _rows_there(_folder(what.model, options))
        parts = list(forecasts(names, pairs, output_dir, device, report, known))
    total = total_needs(parts, free)
    if not options["as_json"]:
        echo_table(["part", "time", "memory", "disk", "it takes"], list(map(_row, parts)))
        click.echo()
        for line in _total(parts, total):
            click.echo(line)
    return {
        "model": what.model,
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


def _make(
    names: Sequence[str], pairs: Sequence[Ingredients], options: Mapping[str, Any]
) -> dict[str, Any]:
    from kgbench.reproduction.measurements import ROWS, write_measured
    from kgbench.reproduction.parts import make

    folder, output_dir = _folder(pairs[0].model, options), options["output_dir"]

    def keep(measured: PairRows) -> None:
        write_measured(measured, folder / ROWS)

    with progress(shown=not options["quiet"]) as report:
        known = _rows_there(folder)
        measured = make(names, pairs, output_dir, options["device"], report, known, keep)
    return _report(names, measured, options)


def _folder(model: str, options: Mapping[str, Any]) -> Path:
    """Where the report and its rows go."""
    return Path(options["report"] or Path("kgbench-reproduction") / model)


def _joined_rows(options: Mapping[str, Any]) -> PairRows:
    """The rows of all given files; of several, those together are written beside the report."""
    from kgbench.reproduction.measurements import ROWS, joined, read_measured, write_measured

    rows = read_measured(options["rows"][0])
    for path in options["rows"][1:]:
        rows = joined(rows, read_measured(path))
    if len(options["rows"]) > 1:
        folder = _folder(rows.about.model, options)
        there = _rows_there(folder)
        if there is not None and joined(rows, there).table.num_rows > rows.table.num_rows:
            raise InputError(
                f"{folder / ROWS} has rows that are in none of these files: add it as --rows, or "
                "give another folder with --report"
            )
        write_measured(rows, folder / ROWS)
    return rows


def _rows_there(folder: Path) -> PairRows | None:
    """The rows of an earlier call, whose evaluations are not made again."""
    from kgbench.reproduction.measurements import ROWS, read_measured

    return read_measured(folder / ROWS) if (folder / ROWS).exists() else None


def _report(names: Sequence[str], measured: PairRows, options: Mapping[str, Any]) -> dict[str, Any]:
    """Print the requested figures; the report has all with rows, but with --rows only these."""
    from kgbench.report import to_text
    from kgbench.reproduction.measurements import ROWS
    from kgbench.reproduction.page import page
    from kgbench.reproduction.paper_figures import figures_from, figures_there, lacking, results
    from kgbench.reproduction.paper_report import terminal_report, write_report

    # Of several figures those that are there will do; a single one that is not is an error.
    there = figures_there(names, measured, page())
    asked = figures_from(there if there and len(names) > 1 else names, measured, page())
    shown, figures = names, asked
    if not options["rows"]:
        shown = list(page().figures)
        figures = figures_from(figures_there(shown, measured, page()), measured, page())
    folder = _folder(measured.about.model, options)
    rows = options["rows"][0] if len(options["rows"]) == 1 else folder / ROWS
    control = results(measured, page()) if measured.about.tiny and len(shown) > 1 else ()
    path = write_report(figures, folder, lacking(shown, measured, page()), control)
    if not options["as_json"]:
        click.echo(f"{to_text(terminal_report(asked))}\n")
        click.echo(f"report   {path}")
        click.echo(f"rows     {rows}")
    return {
        "model": measured.about.model,
        "report": str(path),
        "rows": str(rows),
        "figures": list(map(answer_of, asked)),
    }


def answer_of(figure: PaperFigure) -> dict[str, Any]:
    """JSON of a figure: its record per training seed, and each claim here and in the paper."""
    claims, records = [], {}
    for claim in figure.claims:
        spec, larger, paper = claim.spec, None, {}
        if claim.larger is not None:
            larger = {"term": claim.larger.name, "recovery": claim.larger.recovery}
        for model, kept in claim.in_paper.items():
            paper[model] = {"difference": claim.paper[model].value, "keeps": kept}
        answer = {
            "prompt": claim.prompt,
            "says": spec.says,
            "first": spec.first,
            "second": spec.second,
            "bounds": dict(spec.bounds),
            "difference": claim.difference.answer(),
            "outcome": claim.outcome,
            "larger": larger,
            "paper": paper,
        }
        claims.append(answer)
    for seed in figure.seeds:
        evaluation = figure.about.evaluations[seed][figure.spec.evaluation]
        records[str(seed)] = evaluation.record
    return {"figure": figure.name, "records": records, "claims": claims}


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
