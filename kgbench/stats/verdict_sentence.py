"""One plain sentence over a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kgbench.numbers import count_text, figure_text, plain_text, reason_text, share_text, value_text
from kgbench.records import Curve, GroupContrast, Row
from kgbench.sites import CONTROLS, PATHWAYS
from kgbench.stats.answer_frequency import is_loss
from kgbench.stats.contrast import FEW, UNCHANGED

FIRST, SECOND, BOTH, REST = "FE", "LT", "FE+LT", "(FE+LT)^C"
BUDGETS = (1.0, 10.0)
"""Budgets of a ranking in the sentence, in per cent."""

MOST = 5
"""Grafts beyond the pathways in a sentence."""


def verdict(
    rows: Iterable[Row],
    metric: str,
    curves: Mapping[str, Curve] | None = None,
    doubts: Mapping[str, str] | None = None,
    contrasts: Mapping[str, Sequence[GroupContrast]] | None = None,
) -> str:
    """Summary of a run in one plain sentence over all its prompts.

    It covers FE+LT, the rest without both, and each alone, as far as they were run; then every
    other graft by descending sufficiency; of a ranking, its best sites. Shares are of what
    finetuning added, or took away; where that is little they are differences from PRE instead, and
    where controls changed as far as cases, that comes first.
    Donors that differ in nothing and configurations that the method cannot express are named, with
    numbers.

    Args:
        rows: The rows of the run; of those of controls, only how far finetuning changed them.
        metric: The metric of the ratios.
        curves: By prompt, recovery at growing budgets, where sites were ranked.
        doubts: By prompt, why nothing follows from its ratios.
        contrasts: By prompt that has controls, what its cases have beyond them.
    """
    controls: dict[str, Row] = {}
    by_prompt: dict[str, dict[str, Row]] = {}
    absent: dict[str, list[str]] = {}
    for row in rows:
        if row.prompt.endswith(CONTROLS):
            if row.graft == "SFT":
                controls[row.prompt.removesuffix(CONTROLS)] = row
        elif row.applicable:
            by_prompt.setdefault(row.prompt, {})[row.graft] = row
        else:
            absent.setdefault(row.graft, []).append(row.prompt)
    if not by_prompt:
        return "Nothing was run."
    sound: dict[str, dict[str, dict[str, Row]]] = {"added": {}, "took away": {}}
    unsound = []
    for name, by_graft in by_prompt.items():
        donor = by_graft["SFT"]
        if donor.sufficiency.undefined is not None:
            unsound.append(_unsound(name, by_graft, metric))
        elif doubts and name in doubts:
            unsound.append(f"on {name} nothing is concluded from {metric}: {doubts[name]}")
        else:
            lost = is_loss(donor.gain.value or 0.0, metric)
            sound["took away" if lost else "added"][name] = by_graft
    clauses = []
    for name, rest in (contrasts or {}).items():
        if name in {**sound["added"], **sound["took away"]}:
            clauses += _shared(name, by_prompt[name]["SFT"], controls[name], rest)
    for did, prompts in sound.items():
        ranked = {name: curve for name, curve in (curves or {}).items() if name in prompts}
        if ranked:
            clauses += _ranked(ranked, prompts, did)
        elif prompts:
            clauses += _clauses(prompts, did)
    for name, by_graft in sound["took away"].items():
        numbers = _numbers(by_graft, metric)
        clauses.append(f"on {name} the finetuned model is worse than the base: {numbers}")
    if sound["took away"]:
        clauses[-1] += " (was that meant, or are base and finetuned model swapped?)"
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


def _clauses(prompts: dict[str, dict[str, Row]], did: str) -> list[str]:
    """What was run of grafts.

    Args:
        prompts: By prompt and configuration, the rows.
        did: What finetuning did there: it added, or took away.
    """
    every: dict[str, None] = {}
    for by_graft in prompts.values():
        every.update(dict.fromkeys(by_graft))
    grafts = [graft for graft in every if graft not in ("PRE", "SFT")]
    if not grafts:
        return ["no graft was run, only the recipient and the donor"]

    def total(graft: str) -> float:
        return sum(row.sufficiency.value or 0.0 for row in _rows(graft, prompts).values())

    chosen = _asked(grafts, prompts)
    # ALL leads only where it is the only one.
    chosen = sorted([g for g in chosen if g != "ALL"] or chosen, key=total, reverse=True)
    lead = BOTH if BOTH in grafts else chosen[0]
    clauses = _of_one(lead, prompts, did)
    alone = [graft for graft in (FIRST, SECOND) if graft in grafts and graft != lead]
    texts = []
    for graft in alone:
        texts.append(f"{graft} alone {_list(_rows(graft, prompts), len(prompts))}")
    if texts:
        clauses.append(", ".join(texts))
    spoken = (lead, *PATHWAYS, "ALL", "NONE")
    others = [graft for graft in chosen if graft not in spoken and "top " not in graft]
    for graft in others[:MOST]:
        clauses += _of_one(graft, prompts)
    if len(others) > MOST:
        less = "less" if total(others[MOST]) < total(others[MOST - 1]) else "no more"
        clauses.append(f"the other {len(others) - MOST} grafts carry {less}, see the table")
    return clauses


def _of_one(graft: str, prompts: dict[str, dict[str, Row]], did: str = "") -> list[str]:
    """The sufficiency of a graft, in quotation marks where it has several terms, and the rest's."""
    rows, n = _rows(graft, prompts), len(prompts)
    quoted = f"“{graft}”" if ";" in graft else graft
    clauses = [f"{quoted} carries {_list(rows, n, did)}"]
    left = " is left" if n == 1 else " are left"
    if graft == BOTH and (rest := _rows(REST, prompts)):
        return [*clauses, f"without both, {_list(rest, n)}{left}"]
    if graft != "ALL" and any(row.necessity.value is not None for row in rows.values()):
        rest = {}
        for name, row in rows.items():
            if (other := row.complement or "") in prompts[name]:
                rest[name] = prompts[name][other]
        clauses.append(f"without it, {_list(rest, n)}{left}")
    return clauses


def _rows(graft: str, prompts: dict[str, dict[str, Row]]) -> dict[str, Row]:
    """The rows of a graft, by prompt."""
    return {name: by_graft[graft] for name, by_graft in prompts.items() if graft in by_graft}


def _ranked(curves: Mapping[str, Curve], prompts: dict[str, dict[str, Row]], did: str) -> list[str]:
    """Recovery of the best-ranked sites, and the area under the curve."""
    clauses = []
    for budget in BUDGETS:
        rows = _rows(f"top {plain_text(budget)}%", {name: prompts[name] for name in curves})
        if rows:
            clauses.append(
                f"the best-ranked {plain_text(budget)} % of all weights × tokens carry "
                f"{_list(rows, len(prompts), did)}"
            )
    areas = [figure_text(curve.area) + f" on {name}" for name, curve in curves.items()]
    return [*clauses, f"the area under the recovery curve is {_and(areas)}"]


def _and(texts: Sequence[str]) -> str:
    return ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]


def _asked(grafts: Sequence[str], prompts: dict[str, dict[str, Row]]) -> list[str]:
    """The grafts without those that were run as the complement of an earlier one."""
    chosen: list[str] = []
    complements: set[str | None] = set()
    for graft in grafts:
        if graft not in complements:
            chosen.append(graft)
            complements.update(row.complement for row in _rows(graft, prompts).values())
    return chosen


def _list(rows: Mapping[str, Row], prompts: int, did: str = "") -> str:
    """Shares as text, such as `97 % [94, 99] of … on headline and 99 % [97, 100] on qa`.

    Args:
        rows: By prompt.
        prompts: Number of prompts of the sentence.
        did: Where the sentence begins, so that it names what the shares are of: what finetuning
            did, it added or took away.
    """
    texts: list[str] = []
    for name, row in rows.items():
        share, of = share_text(row.sufficiency), "" if texts else f" of what finetuning {did}"
        if row.difference is not None:
            share = figure_text(row.difference)
            of = f" of the {figure_text(row.gain)} that finetuning {did}"
        named = f" on {name}" if did or len(rows) < prompts else ""
        texts.append(f"{share}{of if did else ''}{named}")
    return _and(texts)


def _shared(name: str, on: Row, off: Row, contrasts: Sequence[GroupContrast]) -> list[str]:
    """That finetuning changed the controls of a prompt as it did the cases, where it did.

    Args:
        name: The prompt.
        on: Its row of the donor.
        off: That of its controls.
        contrasts: What its cases have beyond its controls.
    """
    (reason,) = (row.recovery.undefined for row in contrasts if row.graft == "SFT")
    cases, others = on.gain.value or 0.0, off.gain.value or 0.0
    if reason == UNCHANGED:
        did = "did not change cases significantly more than controls"
    elif reason != FEW and abs(others) > abs(cases):
        did = "changed controls more than cases"
    elif reason != FEW and others == cases:
        did = "changed controls as far as cases"
    else:
        return []
    gains = f"cases by {figure_text(on.gain)}, controls by {figure_text(off.gain)}"
    return [f"on {name} finetuning {did}, {gains}"]


def _unsound(name: str, by_graft: Mapping[str, Row], metric: str) -> str:
    """Why a prompt has no recovery."""
    pre, donor = by_graft["PRE"].estimate(metric), by_graft["SFT"]
    sft, gain, undefined = donor.estimate(metric), donor.gain, donor.sufficiency.undefined
    if pre.undefined or sft.undefined or gain.undefined:
        return f"on {name} nothing can be said: {reason_text(undefined or '')}"
    return (
        f"on {name} recovery is undefined: the finetuned model is not significantly better "
        f"than the base: {_numbers(by_graft, metric)}"
    )


def _numbers(by_graft: Mapping[str, Row], metric: str) -> str:
    """What base and finetuned model have."""
    pre, sft = (by_graft[graft].estimate(metric) for graft in ("PRE", "SFT"))
    gain = by_graft["SFT"].gain
    return (
        f"{value_text(pre)} before, {value_text(sft)} after, a difference of "
        f"{figure_text(gain)} over {count_text(gain.n, 'fact')}"
    )
