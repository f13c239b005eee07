"""`kgbench check-localizer`: whether a localizer keeps the contract."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.output import echo_json, echo_table, progress
from kgbench.cli.values import completer, listed, pairs
from kgbench.errors import UnknownNameError

if TYPE_CHECKING:
    from kgbench.testing.contract import CheckedLocalizer, Verdict


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
@click.option(
    "--json", "as_json", is_flag=True, help="One JSON object on stdout, all else on stderr."
)
@click.option("-q", "--quiet", is_flag=True, help="The verdict only, with --json not even that.")
def command(
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

    # Whatever a library or a localizer prints must not mix with the JSON object.
    with (
        redirect_stdout(sys.stderr if as_json else sys.stdout),
        progress(shown=not quiet) as report,
    ):
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
    names = dict.fromkeys(verdict.name for verdict in verdicts)
    return [[verdict for verdict in verdicts if verdict.name == name] for name in names]


def _answer(target: str, checked: CheckedLocalizer) -> dict[str, Any]:
    laws = [
        {
            "law": same[0].name,
            "states": same[0].states,
            "holds": all(verdict.holds for verdict in same),
            "families": {
                verdict.family: {"holds": verdict.holds, "why": verdict.reason} for verdict in same
            },
        }
        for same in _by_law(checked.verdicts)
    ]
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
    rows = [
        [same[0].name.replace("_", " "), *(words[verdict.holds] for verdict in same), _why(same)]
        for same in laws
    ]
    if not quiet:
        echo_table(["law", *families, "why"], rows)
        click.echo()
    failed = sum(not all(verdict.holds for verdict in same) for same in laws)
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
