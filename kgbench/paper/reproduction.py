"""Figures of the paper made again in Python, and the study of architectures."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kgbench.errors import InputError, python_names
from kgbench.paper.architectures.design import study_design
from kgbench.paper.architectures.factorial import Findings, findings
from kgbench.paper.architectures.run_rows import RunRows, rows_path
from kgbench.paper.architectures.study_page import verdicts, write_study
from kgbench.paper.architectures.study_runs import finished, make_runs
from kgbench.paper.figure_claims import PaperFigure, figures_from, figures_there, lacking
from kgbench.paper.figure_parts import make
from kgbench.paper.figure_specs import chosen, page
from kgbench.paper.ingredients import SHIPPED, Ingredients
from kgbench.paper.pair_rows import (
    ROWS,
    PairRows,
    joined,
    read_measured,
    write_measured,
)
from kgbench.paper.paper_report import terminal_report, write_report
from kgbench.paper.positive_control import results
from kgbench.progress import Progress, with_progress
from kgbench.records.mirror import folder_of
from kgbench.report import Lines, Report, to_html, to_text
from kgbench.runner import Run
from kgbench.runner.spec import RESULTS

_FOLDER = Path("kgbench-reproduction")


@dataclass(frozen=True)
class Reproduction:
    """Figures of the paper, made again."""

    model: str
    figures: Sequence[PaperFigure]
    path: Path
    """The report and its pictures."""
    rows: Path
    """The per-fact rows that every figure is computed from."""

    @property
    def report(self) -> Report:
        """Estimates next to the paper's, and its claims."""
        return terminal_report(self.figures)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        return {
            "model": self.model,
            "report": str(self.path),
            "rows": str(self.rows),
            "figures": list(map(answer_of, self.figures)),
        }

    def __str__(self) -> str:
        return f"{to_text(self.report)}\n\nreport   {self.path}\nrows     {self.rows}"

    def _repr_html_(self) -> str:
        return to_html(self.report)


@python_names()
def reproduce(
    what: str,
    *,
    model: str | None = None,
    seeds: Sequence[int] = (),
    supplement: str | None = None,
    rows: Sequence[str | os.PathLike[str]] = (),
    report: str | os.PathLike[str] | None = None,
    device: str = "auto",
    output_dir: str | os.PathLike[str] = RESULTS,
    on_record: Callable[[Run], None] | None = None,
    progress: Progress | bool = True,
) -> Reproduction:
    """Compute figures of the paper again, compare them with the paper's, and write a report.

    Donors that are missing are trained, and evaluations run. What is interrupted goes on where it
    was, and evaluations in the report's `rows.parquet` are not run again.

    Args:
        what: A figure, such as `figure-2` or `title_in_prompt`; `acceptance`; or `all`.
        model: A pair of the catalog; by default tiny-gemma.
        seeds: Training seeds; a tiny pair of another than 0 is pretrained again. Intervals of
            several are over facts and seeds. By default 0.
        supplement: Other text for the gentle recipe; a tiny pair has its own.
        rows: Figures from the `rows.parquet` of reports alone, without a model.
        report: The report's folder; by default `kgbench-reproduction/MODEL`.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes an accelerator if there is one.
        output_dir: Where records are kept.
        on_record: Called with each run when its record is there.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Raises:
        InputError: There is no such figure, or something that it needs cannot be had.
    """
    if rows:
        for option, value in (("model", model), ("supplement", supplement), ("seeds", seeds)):
            if value:
                raise InputError(f"--rows computes figures from files alone: leave out --{option}")
        given = list(map(Path, rows))
        measured = _joined(given, report)
        return _reported(chosen(what, measured.about.scale), measured, report, given)
    pairs = ingredients_of(model, supplement, seeds)
    names, folder = chosen(what, pairs[0].scale), report_folder(pairs[0].model, report)
    measured = with_progress(
        progress,
        lambda callback: make(
            names,
            pairs,
            folder_of(output_dir),
            device,
            known=rows_there(folder),
            keep=lambda measured: write_measured(measured, folder / ROWS),
            on_record=on_record,
            progress=callback,
        ),
    )
    return _reported(names, measured, report)


def ingredients_of(
    model: str | None, supplement: str | None, seeds: Sequence[int]
) -> list[Ingredients]:
    """The ingredients of a pair, by default of tiny-gemma, under each training seed."""
    name = model or "tiny-gemma"
    return [Ingredients(page(), name, supplement, seed) for seed in seeds or (SHIPPED,)]


def report_folder(model: str, report: str | os.PathLike[str] | None = None) -> Path:
    """Where the report of a model and its rows go."""
    return _FOLDER / model if report is None else Path(report)


def rows_there(folder: Path) -> PairRows | None:
    """The rows of an earlier call, whose evaluations are not made again."""
    return read_measured(folder / ROWS) if (folder / ROWS).exists() else None


def _joined(paths: Sequence[Path], report: str | os.PathLike[str] | None) -> PairRows:
    """The rows of all files; of several, those together are written next to the report."""
    found = read_measured(paths[0])
    for path in paths[1:]:
        found = joined(found, read_measured(path))
    if len(paths) > 1:
        folder = report_folder(found.about.model, report)
        there = rows_there(folder)
        if there is not None and joined(found, there).table.num_rows > found.table.num_rows:
            raise InputError(
                f"{folder / ROWS} has rows that are in none of these files: add it as --rows, or "
                "give another folder with --report"
            )
        write_measured(found, folder / ROWS)
    return found


def _reported(
    names: Sequence[str],
    measured: PairRows,
    report: str | os.PathLike[str] | None,
    files: Sequence[Path] = (),
) -> Reproduction:
    """The requested figures; the report has all with rows, but of given files only these."""
    # Of several figures those that are there will do; a single one that is not is an error.
    about = measured.about
    there = figures_there(names, about)
    asked = figures_from(there if there and len(names) > 1 else names, measured)
    shown, figures = names, asked
    if not files:
        shown = chosen("all", about.scale)
        figures = figures_from(figures_there(shown, about), measured)
    folder = report_folder(about.model, report)
    control = results(measured) if about.tiny and len(shown) > 1 else ()
    path = write_report(figures, folder, lacking(shown, about), control)
    return Reproduction(about.model, asked, path, files[0] if len(files) == 1 else folder / ROWS)


def answer_of(figure: PaperFigure) -> dict[str, Any]:
    """JSON of a figure: its record per training seed, and each claim here and in the paper."""
    claims = []
    for claim in figure.claims:
        spec, larger, paper = claim.spec, claim.larger, {}
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
            "larger": larger and {"term": larger.name, "recovery": larger.recovery},
            "paper": paper,
        }
        claims.append(answer)
    evaluation, about = figure.spec.evaluation, figure.about.evaluations
    records = {str(seed): about[seed][evaluation].record for seed in figure.seeds}
    return {"figure": figure.name, "records": records, "claims": claims}


@dataclass(frozen=True)
class StudyResults:
    """The study of architectures, as far as its runs are in."""

    findings: Findings
    made: int
    """Runs that were made just now."""
    path: Path
    """The page."""

    @property
    def runs(self) -> int:
        """Runs of the design."""
        return len(self.findings.study.runs)

    def to_json(self) -> dict[str, Any]:
        """The object that `--json` prints."""
        counts = {"made": self.made, "in": len(self.findings.runs), "runs": self.runs}
        return {**counts, "report": str(self.path)}

    def __str__(self) -> str:
        return "\n".join([*verdicts(self.findings), f"report   {self.path}"])

    def _repr_html_(self) -> str:
        return to_html(Report("", [Lines(list(verdicts(self.findings)))]))


@python_names()
def study(
    *,
    only: Sequence[str] = (),
    seeds: Sequence[int] = (),
    runs: int | None = None,
    report: str | os.PathLike[str] | None = None,
    on_run: Callable[[Path], None] | None = None,
    progress: Progress | bool = True,
) -> StudyResults:
    """Ask which features of an architecture make it recall at the last token.

    Small models of one code base are pretrained and finetuned in sixteen cells under three seeds,
    some minutes a run. Runs in the report's folder are not made again, and several processes may
    work on one study.

    Args:
        only: These runs, or the runs of these cells; by default all.
        seeds: These training seeds; by default all.
        runs: Make at most so many of the runs that are missing; 0 only writes the page.
        report: The study's folder; by default `kgbench-reproduction/study`.
        on_run: Called with the rows' file of each run that is made.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Raises:
        InputError: There is no such run, cell or seed.
    """
    design, folder = study_design(), report_folder("study", report)
    chosen_runs = design.chosen(only, seeds)

    def keep(rows: RunRows) -> None:
        write_study(findings(design, finished(design, folder)), folder)
        if on_run is not None:
            on_run(rows_path(folder, rows.about.run))

    made = with_progress(
        progress, lambda callback: make_runs(design, chosen_runs, folder, runs, callback, keep)
    )
    found = findings(design, finished(design, folder))
    return StudyResults(found, made, write_study(found, folder))
