"""`kgbench audit`: how far a figure would move under other wordings, seeds and facts."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from kgbench.cli.options import (
    COMPUTING,
    FACTS,
    PAIR,
    check_pair,
    run_options,
    settings_of,
    spec_of,
)
from kgbench.cli.output import echo_json, echo_table, progress, terminal_text
from kgbench.cli.values import listed, pairs
from kgbench.errors import InputError

if TYPE_CHECKING:
    from kgbench.audit import Part
    from kgbench.audit.run import Plan
    from kgbench.runner import Spec

ASKED = ("metric", "correlation", "difference")
"""What an audit is asked."""

FOR_RUNS = ("runs", *ASKED, "output_dir", "variance", "as_json", "quiet")
"""Options that go with runs that exist."""


@click.command()
@click.argument("runs", nargs=-1, metavar="[RUN]...")
@run_options(
    "localizer",
    "localizer_args",
    *PAIR,
    *FACTS,
    "grafts",
    "limit",
    "metric",
    *COMPUTING,
    "output_dir",
    localizer={
        "multiple": True,
        "default": ["dynamic_graft"],
        "help": "Localizer; with several, separated by commas, their differences are audited too.",
    },
    localizer_args={
        "metavar": "[NAME.]KEY=VALUE",
        "help": "Argument of all localizers, or of the one named.",
    },
    prompts={
        "help": "Wordings; several with commas.  [default: every prompt that asks for the same]"
    },
    grafts={"help": "With its complement; several with commas.  [default: FE, LT, FE+LT]"},
    limit={"type": click.IntRange(min=2)},
    metric={"help": "Metric of the recoveries."},
    output_dir={"help": "Where records are."},
)
@click.option(
    "--seeds",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many.  [default: 3 where a method draws or ranks, else 1]",
)
@click.option(
    "--correlation",
    type=click.FloatRange(-1, 1, max_open=True),
    default=0.5,
    show_default=True,
    metavar="R",
    help="Of two methods' values of one fact, assumed where one method is audited.",
)
@click.option(
    "--difference",
    type=click.FloatRange(0, min_open=True),
    default=0.05,
    show_default=True,
    metavar="D",
    help="To count facts for.",
)
@click.option(
    "--variance", is_flag=True, help="Print values by wording, variance components and notes too."
)
@click.option("--dry-run", is_flag=True, help="Only say what it would take.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
@click.option("-q", "--quiet", is_flag=True, help="No progress.")
def command(**options: Any) -> int:
    """Tell what a figure owes to wording, seed and facts, and what can be told apart.

    Runs a method in every wording of a data set's question under several
    seeds, or takes RUNs that exist, and splits the variance of each recovery
    into what facts, wordings and seeds contribute. Then says how small a
    difference between two methods can be detected, and how many facts it takes.

    \b
    kgbench audit --model tiny-gemma
    kgbench audit --model tiny-gemma --localizer dynamic_graft,activation_patch --limit 50
    kgbench audit --model tiny-gemma --localizer random --seeds 5
    kgbench audit RUN OTHER                            # of several seeds, prompts or methods
    """  # noqa: D301 (click reads the character, not its escape)
    context = click.get_current_context()
    given = [
        name
        for name in options
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    # Whatever a library or a localizer prints must not mix with the JSON object.
    with redirect_stdout(sys.stderr if options["as_json"] else sys.stdout):
        if options["runs"]:
            parts = _stored(options, given)
        elif options["dry_run"]:
            answer = [_forecast(plan, options) for plan in _plans(options)]
        else:
            parts = _computed(options)
    if options["dry_run"]:
        if options["as_json"]:
            echo_json(answer[0] if len(answer) == 1 else {"methods": answer})
        return 0
    _print(parts, options)
    return 0


def _stored(options: Mapping[str, Any], given: Sequence[str]) -> list[Part]:
    """Runs that exist.

    Raises:
        InputError: An option says how to run something.
    """
    from kgbench.audit import Part
    from kgbench.cli.runs import find_run

    if foreign := [name for name in given if name not in FOR_RUNS]:
        option = foreign[0].replace("_", "-")
        raise InputError(
            f"--{option} says what to run, and runs are given that exist; leave out one of the two"
        )
    folders = {
        (found := find_run(run, options["output_dir"])).folder: found for run in options["runs"]
    }
    return [Part(found.record, found.facts()) for found in folders.values()]


def _plans(options: Mapping[str, Any]) -> list[Plan]:
    """What to run of each localizer.

    Raises:
        InputError: Something is wrong with the options.
    """
    check_pair(options)
    localizers = listed(options["localizer"])
    if not localizers:
        raise InputError("--localizer: expected a name, see `kgbench ls localizers`")
    from kgbench.audit.run import planned

    return [planned(_spec(options, name), options["seeds"]) for name in localizers]


def _spec(options: Mapping[str, Any], localizer: str) -> Spec:
    """The specification of one localizer; own templates are wordings too."""
    prompts = listed(options["prompt"])
    if prompts:
        prompts = tuple(dict.fromkeys((*prompts, *pairs("--template", options["template"]))))
    return spec_of(options, localizer=localizer, prompts=prompts)


def _computed(options: Mapping[str, Any]) -> list[Part]:
    from kgbench.audit.run import run

    plans = _plans(options)
    for plan in plans if not options["quiet"] else ():
        click.echo(terminal_text(f"{_size(plan)}: {plan.why}"), err=True)
    with progress(shown=not options["quiet"]) as report:
        return run(plans, settings_of(options), report)


def _size(plan: Plan) -> str:
    wordings = (
        f"{len(plan.wordings)} wording{'s' * (len(plan.wordings) != 1)} "
        f"({', '.join(plan.wordings)})"
    )
    return f"{plan.spec.localizer}: {wordings} × {plan.seeds} seed{'s' * (plan.seeds != 1)}"


def _forecast(plan: Plan, options: Mapping[str, Any]) -> dict[str, Any]:
    from kgbench.audit.run import forecast
    from kgbench.numbers import duration_text
    from kgbench.runner import Pairs
    from kgbench.runner.forecast import size

    found = forecast(plan, settings_of(options), Pairs())
    most = max(found, key=lambda one: one.weights_bytes + one.logits_bytes + one.activations_bytes)
    download = max(one.download_bytes for one in found)
    answer: dict[str, Any] = {
        "localizer": plan.spec.localizer,
        "wordings": list(plan.wordings),
        "seeds": plan.seeds,
        "why": plan.why,
        "forwards": plan.seeds * sum(one.forwards for one in found),
        "token_rows": plan.seeds * sum(one.token_rows for one in found),
        "seconds": plan.seeds * sum(one.seconds for one in found),
        "memory_bytes": most.weights_bytes + most.logits_bytes + most.activations_bytes,
        "free_bytes": most.free_bytes,
        "fits": most.fits,
        "disk_bytes": plan.seeds * sum(one.disk_bytes for one in found),
        "download_bytes": download,
        "basis": found[0].basis,
    }
    if not options["as_json"]:
        shown = [
            ("wordings", ", ".join(plan.wordings)),
            ("seeds", f"{plan.seeds}: {plan.why}"),
            ("forwards", str(answer["forwards"])),
            ("token rows", str(answer["token_rows"])),
            (
                "memory",
                f"{'fits' if most.fits else 'does not fit'}: needs {size(answer['memory_bytes'])}, "
                f"{size(most.free_bytes)} free",
            ),
            (
                "disk",
                f"about {size(answer['disk_bytes'])} for the records"
                + (f", and {size(download)} to download" if download else ""),
            ),
            ("time", f"about {duration_text(answer['seconds'])}, less what exists already"),
            ("from", answer["basis"]),
        ]
        echo_table(["what", plan.spec.localizer], shown)
    return answer


def _print(parts: Sequence[Part], options: Mapping[str, Any]) -> None:
    from kgbench.audit import Asked, audit_report, audited, methods_of, verdict_of
    from kgbench.cli.jobs import trained_lines
    from kgbench.report import to_text

    found = audited(methods_of(parts), Asked(**{name: options[name] for name in ASKED}))
    first = parts[0].record
    if options["as_json"]:
        what = {
            "model": first.model,
            "dataset": first.identity.dataset.name,
            "dtype": first.identity.dtype,
            **found.to_json(),
        }
        echo_json(
            {**what, "runs": [part.record.id for part in parts], "verdict": verdict_of(found)}
        )
    else:
        what_of = f"{first.model}, {first.identity.dataset.name}, {first.identity.dtype}"
        click.echo(to_text(audit_report(found, what_of, options["variance"])))
        for line in trained_lines(first.notes.get("origins")):
            click.echo(line)
