"""`kgbench new-localizer`: a file to start a method from."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from re import ASCII, fullmatch
from string import Template

import click

from kgbench.errors import InputError, OutputError

KINDS = ("scoring", "intervention")


@click.command()
@click.argument("name", metavar="NAME")
@click.option(
    "--kind",
    type=click.Choice(KINDS),
    default=KINDS[0],
    show_default=True,
    help="Ranks sites, or intervenes at given ones.",
)
@click.option(
    "--output-dir",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(),
    metavar="DIR",
    help="Where the files go.  [default: .]",
)
def command(name: str, kind: str, output_dir: Path) -> None:
    """Write a working localizer of your own, and its test.

    NAME.py holds a short method to change into yours; test_NAME.py tries the
    contract of localizers on it.
    """
    _check(name)
    method = "".join(part.capitalize() for part in name.split("_"))
    made = {output_dir / f"{name}.py": kind, output_dir / f"test_{name}.py": "test"}
    _write({path: _filled(template, name, method) for path, template in made.items()})
    file, test = made
    click.echo(f"wrote {file} and {test}; next:")
    click.echo(f"    kgbench check-localizer {file}:{method}")
    click.echo(f"    python -m pytest {test}")
    click.echo(f"    kgbench eval --localizer {file}:{method} --model tiny-gemma --limit 20")


def _check(name: str) -> None:
    """Refuse a name that cannot be a module's, or that would hide another's."""
    from kgbench.localizers import names

    if not fullmatch(r"[a-z][a-z0-9_]*", name, ASCII) or iskeyword(name):
        raise InputError(
            f"{name!r} cannot name a localizer: expected small letters, digits and underscores, "
            "such as my_method"
        )
    if name in names():
        raise InputError(
            f"there is a localizer {name!r} already, see `kgbench ls localizers`: choose another "
            "name"
        )


def _filled(template: str, name: str, method: str) -> str:
    text = files("kgbench.cli").joinpath("templates", f"{template}.txt").read_text(encoding="utf-8")
    return Template(text).substitute(name=name, method=method)


def _write(texts: Mapping[Path, str]) -> None:
    """Write all files, or none where one is there already."""
    for path in texts:
        if path.exists():
            raise OutputError(
                f"{path} is there already: choose another name or another --output-dir, or remove "
                "it"
            )
        if path.stem in sys.stdlib_module_names or find_spec(path.stem) is not None:
            raise InputError(
                f"a Python module {path.stem!r} is installed, and {path} would hide it: choose "
                "another name"
            )
    try:
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(
            f"{path.parent} cannot be written: {error.strerror}; give another --output-dir"
        ) from None
