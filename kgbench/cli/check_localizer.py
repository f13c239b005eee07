"""`kgbench check-localizer`: try on a localizer every law that localizers keep."""

from __future__ import annotations

from kgbench.cli.options import VERDICT_ONLY, cli_command, completer, pairs
from kgbench.cli.output import Output, table_text
from kgbench.errors import check_choice
from kgbench.progress import Progress
from kgbench.runner.choices import NAMES
from kgbench.runner.spec import listed


@cli_command(
    *("as_json", "quiet"),
    epilog="Exit status: 0 all laws hold; 1 one does not; 2 wrong input.",
    target={"shell_complete": completer(NAMES["localizers"])},
    as_json={"help": "One JSON object on stdout, all else on stderr."},
    quiet=VERDICT_ONLY,
)
def check_localizer_command(
    target: str,
    *,
    localizer_arg: tuple[str, ...],
    family: tuple[str, ...],
    progress: Progress | None,
) -> Output:
    """Try on a localizer every law that localizers keep.

    Runs it on small random models of each family and a few prompts, and
    prints each law with pass or fail, and why. Its code runs with your rights:
    read a stranger's first.

    \b
    kgbench check-localizer dynamic_graft
    kgbench check-localizer my_method.py:MyMethod --family gemma

    Args:
        target (NAME|FILE.py:CLASS): The localizer.
        localizer_arg (KEY=VALUE): Argument of the localizer; may be repeated.
        family (NAME): Family of models; several with commas.  [default: all that there are]
        progress: Progress callback.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.localizers import check_name

    check_name(target)
    from kgbench.testing import PICO_FAMILIES
    from kgbench.testing.contract import check_by_name

    families = listed(family) or tuple(PICO_FAMILIES)
    for name in families:
        check_choice("family", name, PICO_FAMILIES)

    checked = check_by_name(target, pairs("--localizer-arg", localizer_arg), families, progress)
    rows, laws = [], []
    for name, verdicts in checked.laws.items():
        results = ["pass" if verdict.holds else "FAIL" for verdict in verdicts]
        reasons = dict.fromkeys(filter(None, (verdict.reason for verdict in verdicts)))
        rows.append([name.replace("_", " "), *results, "; ".join(reasons)])
        each = {v.family: {"holds": v.holds, "why": v.reason} for v in verdicts}
        holds = name not in checked.broken
        laws.append({"law": name, "states": verdicts[0].states, "holds": holds, "families": each})
    answer = {
        "target": target,
        "localizer": checked.name,
        "kind": checked.kind,
        "holds": not checked.broken,
        "laws": laws,
    }
    verdict_text = f"all {len(laws)} laws hold of {target}, a localizer of kind {checked.kind}"
    if checked.broken:
        verdict_text = f"{len(checked.broken)} of {len(laws)} laws do not hold of {target}"
    table = table_text(["law", *families, "why"], rows)
    return Output([table, "", verdict_text], answer, int(bool(checked.broken)), verdict_text)
