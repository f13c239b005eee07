"""`kgbench reproduce`: a figure of the paper computed again, or the study of architectures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import ExistingFile, Folder, cli_command
from kgbench.cli.output import Output, table_text
from kgbench.cli.verify import AGAIN, AGAIN_HELP, rerun
from kgbench.errors import InputError
from kgbench.progress import Progress
from kgbench.runner.spec import RESULTS

if TYPE_CHECKING:
    from kgbench.paper.parts import Needs, PartForecast

STUDY = "study"
_MODEL = "tiny-gemma"
Seeds = tuple[int, ...]

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
    "tolerance",
)
"""Options that only one of the two kinds takes and that have no default value."""
OF_STUDY = ("only", "runs")
"""Options of the study alone; of the others it takes --report, --seeds and --dry-run."""


def _read_seeds(ctx: click.Context, parameter: click.Parameter, text: str | None) -> Seeds:
    parts = [part.strip() for part in text.split(",")] if text else []
    if not all(part.isdecimal() for part in parts) or len(set(map(int, parts))) < len(parts):
        raise InputError(f"--seeds {text}: expected different whole numbers, such as 0,1,2,3,4")
    return tuple(map(int, parts))


@cli_command(
    *(*AGAIN, "output_dir", "report", "supplement", "seeds", "rows", "only", "runs", "dry_run"),
    *("as_json", "quiet"),
    epilog="Exit status: 0 done, also where a claim fails; 2 wrong input; 130 interrupted.",
    seeds={"callback": _read_seeds},
    runs={"type": click.IntRange(min=0)},
    **AGAIN_HELP,
)
def reproduce_command(
    what: str,
    *,
    output_dir: Folder = RESULTS,
    report: Folder | None,
    supplement: str | None,
    seeds: Seeds | None,
    rows: tuple[ExistingFile, ...],
    only: tuple[str, ...],
    runs: int | None,
    dry_run: bool,
    progress: Progress | None,
    **options: Any,
) -> Output:
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

    Args:
        what (FIGURE|acceptance|all|study): What is computed.
        output_dir: Where records go.
        report (DIR): Where the report goes.  [default: ./kgbench-reproduction/MODEL]
        supplement (FILE|ID): Other text for the gentle recipe; a tiny pair has its own.
        seeds (N,N,…): Training seeds; a tiny pair of another than 0 is pretrained anew. Intervals
            of several are over facts and seeds.  [default: 0]
        rows (FILE): Figures from the rows.parquet of a report, without a model; several, such as of
            further seeds, are joined in the report's folder.
        only (RUN|CELL): Of the study: this run, or the runs of this cell; may be repeated.
            [default: all]
        runs (N): Of the study: make at most N of the runs that are missing; 0 only writes the page
            from those that are in.
        dry_run: Only forecast time, memory and disk.
        progress: Progress callback.
        **options: Of a recorded run: its parts, and how it is computed.
    """  # noqa: D301 (click reads the character, not its escape)
    given, chosen_seeds = click.get_current_context().params, seeds or ()
    if what == STUDY:
        others = (*OF_RUNS, "supplement", "rows", "model")
        _refuse(what, "a figure or a run", [name for name in others if given[name]])
        if dry_run:
            return _study_states(only, chosen_seeds, report)
        from kgbench.paper.reproduction import study

        studied = study(
            only=only,
            seeds=chosen_seeds,
            runs=runs,
            report=report,
            on_run=lambda path: click.echo(f"run      {path}"),
            progress=progress or False,
        )
        return Output([str(studied)], studied.to_json())
    _refuse(what, "the study", [name for name in OF_STUDY if given[name] not in (None, ())])
    if not _is_figure(what):
        _refuse(what, "a figure", [name for name in OF_FIGURES if given[name]])
        note = f"kgbench: note: to run a recorded run again, write kgbench rerun {what}"
        click.echo(note, err=True)
        return rerun(what, given, progress)
    _refuse(what, "a run", [name for name in OF_RUNS if given[name]])
    if rows and dry_run:
        raise InputError("--rows computes figures from files alone: leave out --dry-run")
    if dry_run:
        return _forecast(what, given, progress)
    from kgbench.paper.reproduction import reproduce

    made = reproduce(
        what,
        model=options["model"],
        seeds=chosen_seeds,
        supplement=supplement,
        rows=rows,
        report=report,
        device=options["device"],
        output_dir=output_dir,
        progress=progress or False,
    )
    return Output([str(made)], made.to_json())


for option in reproduce_command.params:
    # They go with `kgbench reproduce RUN`, the older name of `kgbench rerun RUN`.
    if isinstance(option, click.Option):
        option.hidden = option.name in (*OF_RUNS, "attention")
        if option.name == "model":
            option.help = "The pair.  [default: tiny-gemma]"


def _refuse(what: str, kind: str, given: Sequence[str]) -> None:
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise InputError(f"{option} is an option of {kind}, and {what!r} is none: leave it out")


def _is_figure(what: str) -> bool:
    """Whether it is the name of a figure, or looks as if it was meant to be one."""
    from kgbench.paper.page import full_name, page

    known = page().figures
    if what in ("all", *page().shares, *known):
        return True
    return not Path(what).exists() and (
        bool(get_close_matches(what, known)) or full_name(what) != what
    )


def _study_states(only: Sequence[str], seeds: Seeds, report: Path | None) -> Output:
    """Which runs are in."""
    from kgbench.paper.reproduction import report_folder
    from kgbench.paper.study.design import study_design
    from kgbench.paper.study.factorial import rows_path

    design, folder = study_design(), report_folder(STUDY, report)
    states = []
    for run in design.chosen(only, seeds):
        states.append([run.name, "in" if rows_path(folder, run.name).is_file() else "missing"])
    missing = [name for name, state in states if state == "missing"]
    answer = {"missing": missing, "runs": len(design.runs)}
    return Output([table_text(["run", "state"], states)], answer)


def _forecast(what: str, options: Mapping[str, Any], progress: Progress | None) -> Output:
    from kgbench.paper.page import chosen, page
    from kgbench.paper.parts import (
        SHIPPED,
        Ingredients,
        forecasts,
        room,
        total_needs,
    )
    from kgbench.paper.reproduction import report_folder, rows_there

    names, model = chosen(what), options["model"] or _MODEL
    seeds = options["seeds"] or (SHIPPED,)
    pairs = [Ingredients(page(), model, options["supplement"], seed) for seed in seeds]
    output_dir, device = options["output_dir"], options["device"]
    free = room(pairs[0], output_dir, device)
    known = rows_there(report_folder(model, options["report"]))
    parts = forecasts(names, pairs, output_dir, device, progress, known)
    total = total_needs(parts, free)
    table = table_text(["part", "time", "memory", "disk", "it takes"], list(map(_row, parts)))
    answer = {
        "model": model,
        "figures": list(names),
        "parts": list(map(asdict, parts)),
        **total.to_json(),
    }
    return Output([table, "", *_total(parts, total)], answer)


def _row(part: PartForecast) -> list[str]:
    from kgbench.numbers import duration_text, size_text

    seconds = "–" if part.seconds is None else duration_text(part.seconds)
    memory = "–" if part.memory_bytes is None else size_text(part.memory_bytes)
    return [part.part, seconds, memory, size_text(part.disk_bytes), part.work]


def _total(parts: Sequence[PartForecast], needs: Needs) -> Iterator[str]:
    """Needs of all parts, whether they fit, and the basis of the times."""
    from kgbench.numbers import duration_text, size_text
    from kgbench.report import wrapped

    known = [part.seconds for part in parts if part.seconds is not None]
    time = f"about {duration_text(sum(known))}"
    if left := len(parts) - len(known):
        time += f", and {left} of {len(parts)} parts of unknown time"
    memory = f"{_fits(needs.memory_fits)}: needs {size_text(needs.memory_bytes)}"
    kept = f"{size_text(needs.kept_bytes)} kept"
    if more := needs.disk_bytes - needs.kept_bytes:
        memory += " and the activations of a training"
        kept += f", {size_text(more)} more while a donor is trained"
    memory += f", {size_text(needs.room.memory_bytes)} free on {needs.room.device}"
    if needs.download_bytes:
        kept += f"; {size_text(needs.download_bytes)} of it to download"
    disk = f"{_fits(needs.disk_fits)}: needs {size_text(needs.disk_bytes)} ({kept}), "
    disk += f"{size_text(needs.room.disk_bytes)} free for {needs.room.folder}"
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
