"""An audit as a report: its tables, its verdict, and what its figures rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from kgbench.audit.figures import AREA, Audit, Difference, Method, Quantity
from kgbench.estimate import Estimate
from kgbench.numbers import number_text, percent_text, plain_text
from kgbench.report import Cell, Column, Dash, Lines, Report, Table
from kgbench.stats.variance import SCOPES, Detectable

__all__ = ["audit_report", "notes_of", "verdict_of"]

COLUMNS = 6
"""Wordings in a row of a table."""

GRAFT_WIDTH = 16

POINTS = 1e4
"""Variances are shown in squared percentage points."""

PARTS = ("facts", "wordings", "seeds", "interaction")

HEADS: Mapping[str, str] = {
    "facts": "same facts",
    "sample": "other facts",
    "wordings": "all\nwordings",
    "seeds": "any seed",
}
"""Scopes of a difference."""

MORE = (
    "--variance adds values by wording, the components of the variance, "
    "and notes on what figures rest on"
)

SMALLEST = (
    "the smallest difference of two methods that a test of 5 % finds in 80 % of repetitions, "
    "by what it is to hold for"
)


def audit_report(audit: Audit, what: str, whole: bool = False) -> Report:
    """The spreads of each method and the smallest detectable differences.

    Args:
        audit: The figures.
        what: Pair, facts and dtype.
        whole: Add values by wording, the components of the variance, and notes.
    """
    title = (
        f"audit of {what}: {audit.n} facts; recovery on {audit.asked.metric}, "
        "with 95 % intervals over facts"
    )
    parts: list[Table | Lines] = []
    difference = audit.asked.difference
    for method in audit.methods:
        some = audit.quantities[method.name]
        parts.append(_spreads(method, some))
        if whole:
            parts += [*_by_wording(method, some), _variances(audit, some)]
        parts.append(_smallest({one.label: one.detectable for one in some}, difference))
    for (first, second), pairs in audit.differences.items():
        if not pairs:
            parts.append(
                Lines([f"{second} − {first}: no configuration that both have in one wording"])
            )
            continue
        parts.append(_differences(f"{second} − {first}, on the same facts and wordings", pairs))
        parts.append(_smallest({one.label: one.detectable for one in pairs}, difference))
    parts += [Lines([note], "  ") for note in notes_of(audit)] if whole else [Lines([MORE])]
    return Report(title, parts, verdict=verdict_of(audit))


def _spreads(method: Method, some: Sequence[Quantity]) -> Table:
    rows: list[list[Cell]] = []
    for one in some:
        values = [figure.value for figure in one.by_wording.values() if figure.value is not None]
        reach: Cell = Dash()
        if values:
            reach = f"{number_text(min(values))} to {number_text(max(values))}"
        spreads = [one.wordings_sd.rounded(), reach, one.seeds_sd.rounded()]
        rows.append([one.label, one.value.rounded(), *spreads])
    wordings, seeds = len(method.wordings), len(method.seeds)
    title = (
        f"{method.name}: {wordings} wording{'s' * (wordings != 1)}, {seeds} "
        f"seed{'s' * (seeds != 1)}"
    )
    return _table(
        title, ["graft", "mean", "SD over wordings", "their range", "SD over seeds"], rows
    )


def _differences(title: str, some: Sequence[Difference]) -> Table:
    return _table(
        title, ["graft", "difference"], [[one.label, one.value.rounded()] for one in some]
    )


def _by_wording(method: Method, some: Sequence[Quantity]) -> list[Table]:
    """Values of the wordings, a few to a table."""
    if len(method.wordings) < 2:
        return []
    tables = []
    for start in range(0, len(method.wordings), COLUMNS):
        shown = method.wordings[start : start + COLUMNS]
        rows: list[list[Cell]] = []
        for one in some:
            estimates = [one.by_wording.get(wording) for wording in shown]
            rows.append([one.label, *map(_value, estimates)])
        tables.append(_table("", ["by wording", *shown], rows))
    return tables


def _value(estimate: Estimate | None) -> Cell:
    """A value without its interval."""
    if estimate is None or estimate.value is None:
        return Dash()
    return number_text(estimate.value)


def _variances(audit: Audit, some: Sequence[Quantity]) -> Table:
    rows: list[list[Cell]] = []
    for one in some:
        if not (parts := one.parts):
            missing = Estimate.missing(one.undefined)
            rows.append([one.label, *[missing] * len(PARTS), Dash()])
            continue
        total = sum(figure.value or 0.0 for figure in parts.values())
        sd: Cell = number_text(sqrt(total)) if total >= 0 else Dash()
        rows.append([one.label, *(_scaled(parts[part], POINTS) for part in PARTS), sd])
    title = (
        f"what the variance of one figure (one wording, one seed, {audit.n} facts) is from, "
        "in squared percentage points"
    )
    return _table(title, ["graft", *PARTS, "its SD"], rows)


def _scaled(estimate: Estimate, by: float) -> Estimate:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return estimate.rounded()
    low, high = estimate.low * by, estimate.high * by
    return Estimate(estimate.value * by, low, high, estimate.n).rounded()


def _smallest(by_label: Mapping[str, Mapping[str, Detectable]], difference: float) -> Table:
    """The smallest differences, and how many facts a given one takes."""
    rows: list[list[Cell]] = []
    for label, scopes in by_label.items():
        cells = [_detectable(scopes.get(scope)) for scope in SCOPES]
        needed = [_facts(scopes.get(scope), difference) for scope in ("facts", "wordings")]
        rows.append([label, *cells, *needed])
    needed_heads = [f"facts\nfor {number_text(difference)}", "over all\nwordings"]
    return _table(SMALLEST, ["graft", *HEADS.values(), *needed_heads], rows)


def _detectable(one: Detectable | None) -> Cell:
    if one is None:
        return Dash()
    if one.smallest is None:
        return Estimate.missing(one.undefined or "", one.n)
    return number_text(one.smallest)


def _facts(one: Detectable | None, difference: float) -> Cell:
    """The number of facts, or that none would do."""
    if one is None or one.undefined:
        return Dash()
    facts = one.facts_for(difference)
    return f"{facts:,}" if isinstance(facts, int) else "no number"


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(title, [Column(head) for head in heads], rows, GRAFT_WIDTH)


FEW_WORDINGS = 5
"""Of fewer wordings a spread over them is known badly."""

TINY = 1e-12
"""Of variances, what rounding leaves."""

MAIN = ("FE+LT", AREA, "LT", "FE")
"""What the sentence is about: the first that there is, else any graft."""


def notes_of(audit: Audit) -> list[str]:
    """What the figures rest on."""
    found = [
        "mean: over wordings and seeds. All intervals are over facts, for the wordings and seeds "
        "that were run, and say nothing of others. "
        "SDs hold the noise of finitely many facts too; variances do not: they are estimated "
        "without bias, so that small ones may come out "
        "below 0.",
        "same facts: one wording and one seed, both methods on these facts. other facts: each on a "
        "sample of its own. all wordings: the "
        "mean over these wordings, to hold for others too. any seed: as same facts, to hold for "
        "other seeds too. necessity(S) = "
        "1 − recovery(S^C) varies as recovery(S^C) does.",
        "Where one method is audited, another is assumed that varies as much, and whose value of "
        "a fact correlates with its own by "
        f"{plain_text(audit.asked.correlation)} (--correlation); two methods audited together need "
        "no such assumption.",
    ]
    for method in audit.methods:
        found += [*method.notes, *_of_method(audit, method)]
    return found


def _of_method(audit: Audit, method: Method) -> list[str]:
    some, found = audit.quantities[method.name], []
    if not method.drawn:
        same = (
            "came out the same under all seeds"
            if _unmoved(some)
            else "came out otherwise under another seed"
        )
        again = f", and {same}" if len(method.seeds) > 1 else ""
        found.append(
            f"{method.name} draws nothing at "
            f"random{again}{': no variance is due to seeds' * _unmoved(some)}."
        )
    elif len(method.seeds) == 1:
        found.append(
            f"{method.name} was run under one seed, which says nothing of others (--seeds N)."
        )
    if 1 < len(method.wordings) < FEW_WORDINGS:
        n, freedom = len(method.wordings), len(method.wordings) - 1
        degrees = f"{freedom} degree{'s' * (freedom != 1)} of freedom"
        found.append(
            f"{method.name}: {n} wordings are few ({degrees}); what varies between wordings is "
            "known badly (--template adds some)."
        )
    for part in ("wordings", "seeds"):
        if below := [
            one.label
            for one in some
            if part in one.parts and (one.parts[part].value or 0.0) < -TINY
        ]:
            told = f"variance between {part} came out below 0 for {', '.join(below)}"
            found.append(
                f"{method.name}: {told}: too small to be told from none, and what is said of other "
                f"{part} there may be too little."
            )
    without: dict[tuple[str, str], list[str]] = {}
    for one in some:
        for missing in one.left_out.items():
            without.setdefault(missing, []).append(one.label)
    for (wording, why), labels in without.items():
        of = f" of {', '.join(labels)}" if len(labels) < len(some) else ""
        found.append(f"{method.name}: {wording} left out{of}: {why}")
    return found


def _unmoved(some: Sequence[Quantity]) -> bool:
    return all(one.seeds_sd.value in (None, 0.0) for one in some)


def verdict_of(audit: Audit) -> str:
    """One plain sentence for each method, and one for each pair of methods."""
    told = [_of_alone(audit, method) for method in audit.methods]
    for (first, second), some in audit.differences.items():
        label = next(
            (label for label in MAIN if any(one.label == label for one in some)),
            some[0].label if some else None,
        )
        for one in (one for one in some if one.label == label):
            told.append(
                f"{second} and {first}: {_smallest_clause(audit, one.label, one.detectable)}"
            )
    return " ".join(told)


def _of_alone(audit: Audit, method: Method) -> str:
    some = [one for one in audit.quantities[method.name] if one.components is not None]
    if not some:
        return (
            f"{method.name}: no recovery has a variance that can be estimated, so that "
            "nothing can be said of it."
        )
    others = [one for one in some if one.label not in ("ALL", "NONE")]
    one = next((one for label in MAIN for one in some if one.label == label), (others or some)[0])
    return f"{method.name}: {_shares(one)}; {_smallest_clause(audit, one.label, one.detectable)}"


def _shares(one: Quantity) -> str:
    """What a figure of one wording and one seed owes to each source."""
    values = {part: figure.value for part, figure in one.parts.items()}
    total = sum(value or 0.0 for value in values.values())
    if total <= 0:
        return f"a figure of {_label(one.label)} has no variance that can be told from 0"
    known = {part: value / total for part, value in values.items() if value is not None}
    texts = [f"{percent_text(share)} % to {part}" for part, share in known.items()]
    unknown = [part for part in ("wordings", "seeds") if values[part] is None]
    told = f" (nothing is known of {' and '.join(unknown)})" if unknown else ""
    sd = number_text(sqrt(total))
    return (
        f"a figure of {_label(one.label)} has a standard deviation of {sd} and owes "
        f"{', '.join(texts)} of its variance{told}"
    )


def _smallest_clause(audit: Audit, label: str, scopes: Mapping[str, Detectable]) -> str:
    same, over, drawn = scopes["facts"], scopes["wordings"], scopes["seeds"]
    if same.smallest is None:
        return (
            f"what difference of {_label(label)} can be told apart is undefined: {same.undefined}."
        )
    told = f"differences of {_label(label)} below {number_text(same.smallest)} cannot be told apart"
    told += f" with {audit.n} facts, one wording and one seed"
    if drawn.smallest is not None and drawn != same:
        told += f", below {number_text(drawn.smallest)} if they are to hold for other seeds"
    if over.smallest is not None:
        told += f", below {number_text(over.smallest)} as means over all wordings if they are to hold for others"
    facts = same.facts_for(audit.asked.difference)
    needed = f"{facts:,} facts" if isinstance(facts, int) else facts
    return f"{told}; {number_text(audit.asked.difference)} takes {needed} on one wording."


def _label(label: str) -> str:
    return "the area under the curve" if label == AREA else label
