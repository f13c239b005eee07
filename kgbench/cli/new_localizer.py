"""`kgbench new-localizer`: write a working localizer, and its test."""

from __future__ import annotations

from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from re import ASCII, fullmatch
from string import Template

import click

from kgbench.cli.options import Folder, cli_command
from kgbench.cli.output import Output, write_file
from kgbench.errors import InputError, OutputError
from kgbench.runner.choices import NAMES

KINDS = ("scoring", "intervention")


@cli_command(kind={"type": click.Choice(KINDS)})
def new_localizer_command(
    name: str, *, kind: str = KINDS[0], output_dir: Folder = Path()
) -> Output:
    """Write a working localizer of your own, and its test.

    NAME.py holds a short method to change into yours; test_NAME.py tries the
    contract of localizers on it.

    Args:
        name: The localizer's name.
        kind: Ranks sites, or intervenes at given ones.
        output_dir (DIR): Where the files go.  [default: .]
    """
    if not fullmatch(r"[a-z][a-z0-9_]*", name, ASCII) or iskeyword(name):
        raise InputError(
            f"{name!r} cannot name a localizer: expected small letters, digits and underscores, "
            "such as my_method"
        )
    if name in NAMES["localizers"]():
        raise InputError(
            f"there is a localizer {name!r} already, see `kgbench ls localizers`: choose another "
            "name"
        )
    method = "".join(part.capitalize() for part in name.split("_"))
    made = {output_dir / f"{name}.py": kind, output_dir / f"test_{name}.py": "test"}
    for path in made:
        if path.exists():
            raise OutputError(
                f"{path} is there already: choose another name or another --output-dir, or remove "
                "it"
            )
        if find_spec(path.stem) is not None:
            raise InputError(
                f"a Python module {path.stem!r} is installed, and {path} would hide it: choose "
                "another name"
            )
    try:
        output_dir.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError(
            f"{output_dir} cannot be written: {error.strerror}; give another --output-dir"
        ) from None
    for path, template in made.items():
        source = files("kgbench.cli").joinpath("templates", f"{template}.txt").read_text("utf-8")
        write_file(path, Template(source).substitute(name=name, method=method).encode())
    file, test = made
    lines = [
        f"wrote {file} and {test}; next:",
        f"    kgbench check-localizer {file}:{method}",
        f"    python -m pytest {test}",
        f"    kgbench eval --localizer {file}:{method} --model tiny-gemma --limit 20",
    ]
    return Output(lines)
