"""What `kgbench reproduce study` does: make the runs that are missing, and write the page."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import click

from kgbench.cli.output import echo_json, echo_table
from kgbench.cli.progress import progress

__all__ = ["STUDY", "reproduce_study"]

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
