"""`kgbench new-localizer` and `kgbench check-localizer`: a localizer of your own."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.resources import files
from importlib.util import find_spec
from keyword import iskeyword
from pathlib import Path
from re import ASCII, fullmatch
from string import Template
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import completer, listed, pairs
from kgbench.cli.output import (
    VERDICT_ONLY,
    echo_json,
    echo_table,
    json_option,
    quiet_option,
    working,
)
from kgbench.errors import InputError, OutputError, UnknownNameError

if TYPE_CHECKING:
    from kgbench.testing.contract import CheckedLocalizer, Verdict


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
def new_localizer_command(name: str, kind: str, output_dir: Path) -> None:
    """Write a working localizer of your own, and its test.

    NAME.py holds a short method to change into yours; test_NAME.py tries the
    contract of localizers on it.
    """
    _check_name(name)
    method = "".join(part.capitalize() for part in name.split("_"))
    made = {output_dir / f"{name}.py": kind, output_dir / f"test_{name}.py": "test"}
    _write({path: _filled(template, name, method) for path, template in made.items()})
    file, test = made
    click.echo(f"wrote {file} and {test}; next:")
    click.echo(f"    kgbench check-localizer {file}:{method}")
    click.echo(f"    python -m pytest {test}")
    click.echo(f"    kgbench eval --localizer {file}:{method} --model tiny-gemma --limit 20")


def _check_name(name: str) -> None:
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


@click.command(epilog="Exit status: 0 all laws hold; 1 one does not; 2 wrong input.")
@click.argument("target", metavar="NAME|FILE.py:CLASS", shell_complete=completer("localizers"))
@click.option(
    "--localizer-arg",
    multiple=True,
    metavar="KEY=VALUE",
    help="Argument of the localizer; may be repeated.",
)
@click.option(
    "--family",
    multiple=True,
    metavar="NAME",
    help="Family of models; several with commas.  [default: all that there are]",
)
@json_option("One JSON object on stdout, all else on stderr.")
@quiet_option(VERDICT_ONLY)
def check_localizer_command(
    target: str, localizer_arg: Sequence[str], family: Sequence[str], as_json: bool, quiet: bool
) -> int:
    """Try on a localizer every law that localizers keep.

    Runs it on small random models of each family and a few prompts, and
    prints each law with pass or fail, and why.

    \b
    kgbench check-localizer dynamic_graft
    kgbench check-localizer my_method.py:MyMethod --family gemma
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.localizers import check_name

    check_name(target)
    families = _families(listed(family))
    from kgbench.testing.contract import check_by_name

    with working(as_json, quiet) as report:
        checked = check_by_name(target, pairs("--localizer-arg", localizer_arg), families, report)
    if as_json:
        echo_json(_answer(target, checked))
    else:
        _print(target, families, checked, quiet)
    return 0 if all(verdict.holds for verdict in checked.verdicts) else 1


def _families(wanted: Sequence[str]) -> Sequence[str]:
    from kgbench.testing import PICO_FAMILIES

    for name in wanted:
        if name not in PICO_FAMILIES:
            raise UnknownNameError("family", name, PICO_FAMILIES)
    return wanted or tuple(PICO_FAMILIES)


def _by_law(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """The verdicts of each law, one per family, in the order of laws."""
    by_law: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        by_law.setdefault(verdict.name, []).append(verdict)
    return list(by_law.values())


def _answer(target: str, checked: CheckedLocalizer) -> dict[str, Any]:
    laws = []
    for same in _by_law(checked.verdicts):
        families = {}
        for verdict in same:
            families[verdict.family] = {"holds": verdict.holds, "why": verdict.reason}
        holds = all(verdict.holds for verdict in same)
        about = {"law": same[0].name, "states": same[0].states, "holds": holds}
        laws.append({**about, "families": families})
    holds = all(verdict.holds for verdict in checked.verdicts)
    return {
        "target": target,
        "localizer": checked.name,
        "kind": checked.kind,
        "holds": holds,
        "laws": laws,
    }


def _print(target: str, families: Sequence[str], checked: CheckedLocalizer, quiet: bool) -> None:
    laws = _by_law(checked.verdicts)
    words = {True: "pass", False: "FAIL"}
    rows, failed = [], 0
    for same in laws:
        results = [words[verdict.holds] for verdict in same]
        rows.append([same[0].name.replace("_", " "), *results, _why(same)])
        failed += "FAIL" in results
    if not quiet:
        echo_table(["law", *families, "why"], rows)
        click.echo()
    if failed:
        click.echo(f"{failed} of {len(laws)} laws do not hold of {target}")
    else:
        click.echo(f"all {len(laws)} laws hold of {target}, a localizer of kind {checked.kind}")


def _why(same: Sequence[Verdict]) -> str:
    """The reasons of one law's failures, each once, with its families where they differ."""
    reasons: dict[str, list[str]] = {}
    for verdict in same:
        if verdict.reason is not None:
            reasons.setdefault(verdict.reason, []).append(verdict.family)
    if len(reasons) == 1 and not any(verdict.holds for verdict in same):
        return next(iter(reasons))
    return "; ".join(f"{', '.join(families)}: {reason}" for reason, families in reasons.items())
