"""`kgbench ls`: what there is to choose from."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click

from kgbench.cli.options import CATALOGUES, NAMES, NOTES, Rows, cli_command, completer
from kgbench.cli.output import Output, table_text
from kgbench.errors import InputError, check_choice

CELL = 18
"""Columns of a cell of a list of runs."""

RUNS = "runs"


KINDS = (*CATALOGUES, RUNS)


@cli_command(
    *("records", "as_json"),
    kind={"metavar": "|".join(KINDS), "shell_complete": completer(lambda: KINDS)},
    as_json={
        "help": "One JSON object on stdout: name to description; of localizers, name to object."
    },
)
def ls_command(kind: str | None, name: str | None, **options: Path) -> Output:
    """List models, datasets, prompts, localizers, suites or recorded runs.

    With the NAME of a localizer: its parameters, with defaults and types;
    without anything: what can be listed.

    \b
    kgbench ls localizers mask_graft
    kgbench ls runs --results kgbench-results
    """  # noqa: D301 (click reads the character, not its escape)
    if kind is None:
        return _kinds(options["output_dir"])
    check_choice("kind", kind, KINDS)
    if name is not None and kind != "localizers":
        raise click.UsageError(
            f"a NAME goes with `kgbench ls localizers`, and {name!r} is given with {kind}"
        )
    if kind == RUNS:
        return _runs(options["output_dir"])
    if name is not None:
        return _parameters(name)
    rows = CATALOGUES[kind]()
    if kind == "models":
        rows = _with_donors(rows)
    notes = ["", NOTES[kind]()] if kind in NOTES else []
    return Output([_table(kind.removesuffix("s"), rows), *notes], dict(rows))


def _kinds(folder: Path) -> Output:
    """Each kind with the number of its entries."""
    from kgbench.records import RecordStore

    counts = {kind: len(names()) for kind, names in NAMES.items()}
    counts[RUNS] = len(RecordStore(folder).folders())
    rows = [[f"kgbench ls {kind}", str(count)] for kind, count in counts.items()]
    return Output([table_text(["list", "entries"], rows)], counts)


def _runs(folder: Path) -> Output:
    """The records of a folder, the oldest first."""
    from kgbench.records import RecordStore
    from kgbench.report.export import run_columns

    if not folder.is_dir():
        raise InputError(
            f"--results {str(folder)!r}: no such folder; `kgbench eval` makes one, or name another"
        )
    found = sorted(RecordStore(folder).scan(), key=lambda stored: stored.record.provenance.time)
    rows = [{"id": stored.record.id[:12], **run_columns(stored.record)} for stored in found]
    if not rows:
        return Output([f"no run in {folder}"], {"runs": []})
    # Columns in which every run is empty are left out.
    columns = []
    for key in rows[0]:
        if {row[key] for row in rows} - {"", "–"}:
            columns.append(key)
    cells = []
    for row in rows:
        cells.append([_wrapped(key, row[key]) for key in columns])
    return Output([table_text(columns, cells)], {"runs": rows})


def _wrapped(column: str, text: str) -> str:
    """Wrap long cells; of the verdict, the last column, only the first clause is shown."""
    if column == "verdict":
        # A graft has a semicolon too; `kgbench show` prints the whole.
        return re.split("; (?=without|the )", text)[0]
    if len(text) <= CELL:
        return text or "–"
    return "\n".join(textwrap.wrap(text, CELL, break_long_words=False, break_on_hyphens=False))


def _parameters(name: str) -> Output:
    """The parameters of one localizer."""
    from kgbench.localizers import parameters_of

    rows = parameters_of(name)
    if not rows:
        return Output([f"{name} has no parameters"], rows)
    table = table_text(
        ["parameter", "default", "values", "what it is"],
        [[key, *row.values()] for key, row in rows.items()],
    )
    hint = f"give one with --localizer-arg {next(iter(rows))}=VALUE"
    return Output([table, "", hint], rows)


def _with_donors(models: Rows) -> Rows:
    """Pairs, each with the donors trained here; last, donors of recipients without a name.

    They are no names for --model, and so not among what is completed for it.
    """
    from kgbench.models.catalog import trained_donors

    donors = trained_donors()
    rows: dict[str, str | Mapping[str, Any]] = {}
    for model, about in models.items():
        rows[model] = about
        rows |= {donor.name: donor.about for donor in donors.values() if donor.model == model}
    return {**rows, **{donor.name: donor.about for donor in donors.values()}}


def _table(what: str, rows: Rows) -> str:
    tables = {}
    columns: dict[str, None] = {}
    for name, row in rows.items():
        tables[name] = row if isinstance(row, Mapping) else {"about": row}
        columns |= dict.fromkeys(tables[name])
    if {row.get("from") for row in tables.values()} == {"kgbench"}:
        del columns["from"]  # shown only where another package has one
    shown = list(columns) or ["about"]
    headers = [what, *("what it is" if column == "about" else column for column in shown)]
    lines = []
    for name, row in tables.items():
        lines.append([name, *(_text(row[column]) for column in shown)])
    return table_text(headers, lines)


def _text(value: Any) -> str:
    return ", ".join(value) if isinstance(value, list) else str(value)
