"""One plain sentence over a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from kgbench.estimate import Estimate
from kgbench.numbers import (
    figure_text,
    percent_text,
    plain_text,
    reason_text,
    share_text,
    value_text,
)
from kgbench.records import Curve, Row
from kgbench.sites import PATHWAYS

FIRST, SECOND, BOTH, REST = "FE", "LT", "FE+LT", "(FE+LT)^C"
ADDED = "what finetuning added"
BUDGETS = (1.0, 10.0)
"""Budgets of a ranking in the sentence, in per cent."""

MOST = 5
"""Grafts beyond the pathways in a sentence."""


def verdict(rows: Iterable[Row], metric: str, curves: Mapping[str, Curve] | None = None) -> str:
    """Summary of a run in one plain sentence over all its prompts.

    It covers FE+LT, the rest without both, and each alone, as far as they were run; then every
    other graft by descending sufficiency; of a ranking, its best sites. Donors without a gain and
    configurations that the method cannot express are named, with numbers.

    Args:
        rows: The rows of the run.
        metric: The metric of the ratios.
        curves: By prompt, recovery at growing budgets, where sites were ranked.
    """
    by_prompt: dict[str, dict[str, Row]] = {}
    absent: dict[str, list[str]] = {}
    for row in rows:
        if row.applicable:
            by_prompt.setdefault(row.prompt, {})[row.graft] = row
        else:
            absent.setdefault(row.graft, []).append(row.prompt)
    if not by_prompt:
        return "Nothing was run."
    sound, unsound = {}, []
    for name, by_graft in by_prompt.items():
        added = by_graft["SFT"].gain.value or 0.0
        gained = added < 0 if metric == "log_rank" else added > 0
        if by_graft["SFT"].sufficiency.undefined is None and gained:
            sound[name] = by_graft
        else:
            unsound.append(_unsound(name, by_graft, metric))
    ranked = {name: curve for name, curve in (curves or {}).items() if name in sound}
    clauses = _ranked(ranked) if ranked else _clauses(sound) if sound else []
    clauses += unsound
    named = []
    for graft, on in absent.items():
        if "top " not in graft:
            named.append(graft if len(on) == len(by_prompt) else f"{graft} on {_and(on)}")
    if named:
        clauses.append(f"the method cannot express {_and(named)}")
    if len(named) < len(absent):
        clauses.append("the method cannot rank sites")
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]} ({metric})."


def _clauses(prompts: dict[str, dict[str, Row]]) -> list[str]:
    every: dict[str, None] = {}
    for by_graft in prompts.values():
        every.update(dict.fromkeys(by_graft))
    grafts = [graft for graft in every if graft not in ("PRE", "SFT")]
    if not grafts:
        return ["no graft was run, only the recipient and the donor"]

    def total(graft: str) -> float:
        return sum(row.sufficiency.value or 0.0 for row in _rows(graft, prompts).values())

    asked = _asked(grafts, prompts)
    # ALL leads only where it is the only one.
    asked = sorted([g for g in asked if g != "ALL"] or asked, key=total, reverse=True)
    lead = BOTH if BOTH in grafts else asked[0]
    clauses = _of_one(lead, prompts, f" of {ADDED}")
    alone = [graft for graft in (FIRST, SECOND) if graft in grafts and graft != lead]
    texts = []
    for graft in alone:
        texts.append(f"{graft} alone {_list(_rows(graft, prompts), len(prompts), _short)}")
    if texts:
        clauses.append(", ".join(texts))
    spoken = (lead, *PATHWAYS, "ALL", "NONE")
    others = [graft for graft in asked if graft not in spoken and "top " not in graft]
    for graft in others[:MOST]:
        clauses += _of_one(graft, prompts, "")
    if len(others) > MOST:
        clauses.append(f"the other {len(others) - MOST} grafts carry less, see the table")
    return clauses


def _of_one(graft: str, prompts: dict[str, dict[str, Row]], of: str) -> list[str]:
    """The sufficiency of a graft, in quotation marks where it has several terms, and the rest's."""
    rows, n = _rows(graft, prompts), len(prompts)
    quoted = f"“{graft}”" if ";" in graft else graft
    clauses = [f"{quoted} carries {_list(rows, n, _with_interval, of)}"]
    left = " is left" if n == 1 else " are left"
    if graft == BOTH and (rest := _rows(REST, prompts)):
        return [*clauses, f"without both, {_list(rest, n, _with_interval)}{left}"]
    if graft != "ALL" and any(row.necessity.value is not None for row in rows.values()):
        rest = {}
        for name, row in rows.items():
            if (other := row.complement or "") in prompts[name]:
                rest[name] = prompts[name][other]
        clauses.append(f"without it, {_list(rest, n, _with_interval)}{left}")
    return clauses


def _rows(graft: str, prompts: dict[str, dict[str, Row]]) -> dict[str, Row]:
    """The rows of a graft, by prompt."""
    return {name: by_graft[graft] for name, by_graft in prompts.items() if graft in by_graft}


def _ranked(curves: Mapping[str, Curve]) -> list[str]:
    """Recovery of the best-ranked sites, and the area under the curve."""
    clauses = []
    for budget in BUDGETS:
        texts: list[str] = []
        for name, curve in curves.items():
            for point in curve.points:
                if point.budget == budget:
                    of = "" if texts else f" of {ADDED}"
                    texts.append(f"{_with_interval(point.recovery)}{of} on {name}")
        if texts:
            clauses.append(
                f"the best-ranked {plain_text(budget)} % of all weights × tokens carry "
                f"{_and(texts)}"
            )
    areas = [figure_text(curve.area) + f" on {name}" for name, curve in curves.items()]
    return [*clauses, f"the area under the recovery curve is {_and(areas)}"]


def _and(texts: Sequence[str]) -> str:
    return ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]


def _asked(grafts: Sequence[str], prompts: dict[str, dict[str, Row]]) -> list[str]:
    """The grafts without those that were run as the complement of an earlier one."""
    asked: list[str] = []
    complements: set[str | None] = set()
    for graft in grafts:
        if graft not in complements:
            asked.append(graft)
            complements.update(row.complement for row in _rows(graft, prompts).values())
    return asked


def _list(
    rows: Mapping[str, Row], prompts: int, show: Callable[[Estimate], str], of: str = ""
) -> str:
    """Shares as text, such as `97 % [94, 99] of … on headline and 99 % [97, 100] on qa`."""
    named = bool(of) or len(rows) < prompts
    texts: list[str] = []
    for name, row in rows.items():
        share = show(row.sufficiency) + ("" if texts else of)
        texts.append(f"{share} on {name}" if named else share)
    return _and(texts)


def _unsound(name: str, by_graft: Mapping[str, Row], metric: str) -> str:
    """Why a prompt has no recovery."""
    pre, donor = by_graft["PRE"].estimate(metric), by_graft["SFT"]
    sft, gain, undefined = donor.estimate(metric), donor.gain, donor.sufficiency.undefined
    if pre.undefined or sft.undefined or gain.undefined:
        return f"on {name} nothing can be said: {reason_text(undefined or '')}"
    numbers = (
        f"{value_text(pre)} before, {value_text(sft)} after, a difference of "
        f"{figure_text(gain)} over {gain.n} facts"
    )
    if undefined is not None:
        return (
            f"on {name} recovery is undefined, since the donor by itself shows no gain that "
            f"could be told from 0: {numbers}"
        )
    return (
        f"on {name} finetuning added nothing, since the donor by itself is worse than the "
        f"recipient: {numbers}"
    )


def _with_interval(estimate: Estimate) -> str:
    return "an undefined share" if estimate.value is None else share_text(estimate)


def _short(estimate: Estimate) -> str:
    return "undefined" if estimate.value is None else f"{percent_text(estimate.value)} %"
