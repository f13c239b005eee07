"""`kgbench ls`: what there is to choose from."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

import click

from kgbench.cli.options import NOTES, cli_command, completer
from kgbench.cli.output import Output, shortened, table_text
from kgbench.errors import check_choice
from kgbench.runner.choices import CATALOGUES, KINDS, NAMES, RUNS, Rows, recorded_runs, with_donors
from kgbench.version import __version__

MACHINE = "machine"
SHOWN = (*KINDS, MACHINE)
"""All that is listed."""

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
"""Distributions whose versions decide what comes out."""

GIB = 2**30

CELL = 18
"""Columns of a cell of a list of runs."""
BRIEF = ("id", "method", "model", "prompts", "grafts", "n", "verdict")
"""Columns of a run in one line."""


@cli_command(
    *("records", "as_json"),
    kind={"metavar": "|".join(SHOWN), "shell_complete": completer(lambda: SHOWN)},
    as_json={
        "help": "One JSON object on stdout: name to description; of localizers, name to object."
    },
)
def ls_command(kind: str | None, name: str | None, *, records: Path) -> Output:
    """List what there is to choose from, or recorded runs.

    Of models, datasets, prompts, localizers, readouts, suites, lm-eval tasks and
    organisms, finetuned models whose behaviour is known; and what this machine
    has: versions, devices, memory, the folders of models, extras.

    With the NAME of a localizer: its parameters, with defaults and types;
    without anything: what can be listed.

    \b
    kgbench ls localizers mask_graft
    kgbench ls runs --results kgbench-results

    Args:
        kind: What is listed.
        name: A localizer.
        records: Where records are.
    """  # noqa: D301 (click reads the character, not its escape)
    if kind is None:
        return _kinds(records)
    check_choice("kind", kind, SHOWN)
    if name is not None and kind != "localizers":
        raise click.UsageError(
            f"a NAME goes with `kgbench ls localizers`, and {name!r} is given with {kind}"
        )
    if kind == MACHINE:
        return _machine()
    if kind == RUNS:
        return _runs(records)
    if name is not None:
        return _parameters(name)
    rows = CATALOGUES[kind]()
    if kind == "models":
        rows = with_donors(rows)
    notes = ["", NOTES[kind]()] if kind in NOTES else []
    return Output([_table(kind.removesuffix("s"), rows), *notes], dict(rows))


def _kinds(folder: Path) -> Output:
    """Each kind with the number of its entries."""
    from kgbench.records import RecordStore

    counts = {kind: len(names()) for kind, names in NAMES.items()}
    counts[RUNS] = len(RecordStore(folder).folders())
    rows = [[f"kgbench ls {kind}", str(count)] for kind, count in counts.items()]
    rows.append([f"kgbench ls {MACHINE}", "–"])
    return Output([table_text(["list", "entries"], rows)], counts)


def _machine() -> Output:
    """Versions, devices, memory, the folders of models, and which extras are installed."""
    import psutil
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    from kgbench.extras import install_command, is_installed
    from kgbench.models.catalog import donors_folder

    memory = psutil.virtual_memory()
    facts = {
        "kgbench": __version__,
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        **{name: metadata.version(name) for name in PACKAGES},
        "memory": f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}",
        "devices": ", ".join(_devices()),
        "hub cache": HF_HUB_CACHE + (", offline (HF_HUB_OFFLINE)" if HF_HUB_OFFLINE else ""),
        "donors": str(donors_folder()),
    }
    names = metadata.metadata("kgbench").get_all("Provides-Extra") or ()
    extras = {name: is_installed(name) for name in names}
    lines = [table_text(["what", "here"], list(facts.items())), ""]
    for name, installed in extras.items():
        state = "installed" if installed else f"not installed: {install_command(name)}"
        lines.append(f"extra    {name:8}  {state}")
    return Output(lines, {"facts": facts, "extras": extras})


def _devices() -> list[str]:
    import torch

    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({properties.name}, {properties.total_memory / GIB:.0f} GiB)")
    return devices + ["mps"] * torch.backends.mps.is_available()


def _runs(folder: Path) -> Output:
    """The records of a folder, the oldest first."""
    rows = recorded_runs(folder)
    if not rows:
        return Output([f"no run in {folder}"], {"runs": []})
    cells = []
    for row in rows:
        cut = [_brief(row[key]) for key in BRIEF[:-1]]
        # A graft has a semicolon too; `kgbench show` prints the whole verdict.
        cells.append([*cut, re.split("; (?=without|the )", row["verdict"])[0]])
    return Output([table_text(BRIEF, cells, one_line=True)], {"runs": rows})


def _brief(text: str) -> str:
    """A cell in one line: of a long list its first item, and how many more there are."""
    first, *others = text.split(", ")
    if len(text) > CELL and others:
        return f"{first} +{len(others)}"
    return shortened(text, CELL) or "–"


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


def _table(what: str, rows: Rows) -> str:
    tables = {}
    columns: dict[str, None] = {}
    for name, row in rows.items():
        cells: dict[str, Any] = dict(row) if isinstance(row, Mapping) else {"about": row}
        if arguments := cells.pop("parameters", None):
            each = [
                f"{key}={argument['default']} ({argument['values']})"
                for key, argument in arguments.items()
            ]
            cells["about"] += f"; arguments: {', '.join(each)}"
        tables[name] = cells
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
