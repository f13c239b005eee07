"""An audit in sentences: what its figures rest on, and what it comes to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from kgbench.audit.figures import Audit, Quantity
from kgbench.audit.methods import AREA, Method
from kgbench.effects.detectable import Detectable
from kgbench.numbers import number_text, percent_text, plain_text

__all__ = ["notes_of", "verdict_of"]

FEW = 5
"""Of fewer wordings a spread over them is known badly."""

TINY = 1e-12
"""Of variances, what rounding leaves."""

MAIN = ("FE+LT", AREA, "LT", "FE")
"""What the sentence is about: the first that there is, else any graft."""


def notes_of(audit: Audit) -> list[str]:
    """What the figures rest on."""
    found = [
        "mean: over wordings and seeds. All intervals are over facts, for the wordings and seeds that were run, and say nothing of others. "
        "SDs hold the noise of finitely many facts too; variances do not: they are estimated without bias, so that small ones may come out "
        "below 0.",
        "same facts: one wording and one seed, both methods on these facts. other facts: each on a sample of its own. all wordings: the "
        "mean over these wordings, to hold for others too. any seed: as same facts, to hold for other seeds too. necessity(S) = "
        "1 − recovery(S^C) varies as recovery(S^C) does.",
        f"Where one method is audited, another is assumed that varies as much, and whose value of a fact correlates with its own by "
        f"{plain_text(audit.asked.correlation)} (--correlation); two methods audited together need no such assumption.",
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
            f"{method.name} draws nothing at random{again}{': no variance is due to seeds' * _unmoved(some)}."
        )
    elif len(method.seeds) == 1:
        found.append(
            f"{method.name} was run under one seed, which says nothing of others (--seeds N)."
        )
    if 1 < len(method.wordings) < FEW:
        n, freedom = len(method.wordings), len(method.wordings) - 1
        degrees = f"{freedom} degree{'s' * (freedom != 1)} of freedom"
        found.append(
            f"{method.name}: {n} wordings are few ({degrees}); what varies between wordings is known badly (--template adds some)."
        )
    for part in ("wordings", "seeds"):
        if below := [
            one.label
            for one in some
            if part in one.parts and (one.parts[part].value or 0.0) < -TINY
        ]:
            told = f"variance between {part} came out below 0 for {', '.join(below)}"
            found.append(
                f"{method.name}: {told}: too small to be told from none, and what is said of other {part} there may be too little."
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
            told.append(f"{second} and {first}: {_smallest(audit, one.label, one.detectable)}")
    return " ".join(told)


def _of_alone(audit: Audit, method: Method) -> str:
    some = [one for one in audit.quantities[method.name] if one.components is not None]
    if not some:
        return f"{method.name}: no recovery has a variance that can be estimated, so that nothing can be said of it."
    others = [one for one in some if one.label not in ("ALL", "NONE")]
    one = next((one for label in MAIN for one in some if one.label == label), (others or some)[0])
    return f"{method.name}: {_shares(one)}; {_smallest(audit, one.label, one.detectable)}"


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
    return f"a figure of {_label(one.label)} has a standard deviation of {sd} and owes {', '.join(texts)} of its variance{told}"


def _smallest(audit: Audit, label: str, scopes: Mapping[str, Detectable]) -> str:
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
