"""One plain sentence over a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from kgbench.records import Estimate, Row

__all__ = ["verdict"]

FIRST, SECOND, BOTH, REST = "FE", "LT", "FE+LT", "(FE+LT)^C"
ADDED = "what finetuning added"

Told = list[tuple[str, Row]]


def verdict(rows: Iterable[Row], metric: str) -> str:
    """What the run says, in one plain sentence over all its prompts.

    It speaks of FE+LT, of what is left without both and of each alone, as far as they were run; otherwise of the graft with the
    largest sufficiency. Where the donor shows no gain it says so, with the numbers.

    Args:
        rows: The rows of the run.
        metric: The metric of the ratios.
    """
    by_prompt: dict[str, dict[str, Row]] = {}
    for row in rows:
        by_prompt.setdefault(row.prompt, {})[row.graft] = row
    if not by_prompt:
        return "Nothing was run."
    sound = {name: own for name, own in by_prompt.items() if own["SFT"].sufficiency.undefined is None and _gained(own, metric)}
    clauses = _clauses(sound) if sound else []
    clauses += [_unsound(name, own) for name, own in by_prompt.items() if name not in sound]
    text = "; ".join(clauses)
    return f"{text[0].upper()}{text[1:]} ({metric})."


def _clauses(prompts: dict[str, dict[str, Row]]) -> list[str]:
    grafts = [g for g in dict.fromkeys(g for own in prompts.values() for g in own) if g not in ("PRE", "SFT")]
    if not grafts:
        return ["no graft was run, only the recipient and the donor"]
    lead = BOTH if BOTH in grafts else _best(_asked(grafts, prompts), prompts)
    clauses = [f"{lead} carries " + _list(prompts, lambda own: own.get(lead), _with_interval, f" of {ADDED}")]
    left = " is left" if len(prompts) == 1 else " are left"
    if lead == BOTH and REST in grafts:
        clauses.append("without both, " + _list(prompts, lambda own: own.get(REST), _with_interval) + left)
    elif any(own[lead].necessity.undefined is None for own in prompts.values() if lead in own) and lead != "ALL":
        clauses.append("without it, " + _list(prompts, lambda own: _rest(own, lead), _with_interval) + left)
    alone = [_alone(graft, prompts) for graft in (FIRST, SECOND) if graft in grafts and graft != lead]
    return clauses + ([", ".join(alone)] if alone else [])


def _alone(graft: str, prompts: dict[str, dict[str, Row]]) -> str:
    return f"{graft} alone " + _list(prompts, lambda own: own.get(graft), _short)


def _rest(own: dict[str, Row], lead: str) -> Row | None:
    return own.get(own[lead].complement or "") if lead in own else None


def _asked(grafts: Sequence[str], prompts: dict[str, dict[str, Row]]) -> list[str]:
    """The grafts without those that were run as the complement of an earlier one."""
    asked: list[str] = []
    for graft in grafts:
        if not any(own[earlier].complement == graft for own in prompts.values() for earlier in asked if earlier in own):
            asked.append(graft)
    return asked


def _best(grafts: Sequence[str], prompts: dict[str, dict[str, Row]]) -> str:
    """The graft with the largest sufficiency over the prompts, ALL only where nothing else was run."""

    def total(graft: str) -> float:
        return sum(own[graft].sufficiency.value or 0.0 for own in prompts.values() if graft in own)

    return max([g for g in grafts if g != "ALL"] or grafts, key=total)


def _list(
    prompts: dict[str, dict[str, Row]], pick: Callable[[dict[str, Row]], Row | None], show: Callable[[Estimate], str], of: str = ""
) -> str:
    """`97 % [94, 99] of … on headline and 99 % [97, 100] on qa`; only the lead names the prompts, the others keep their order."""
    found = [(name, row) for name, own in prompts.items() if (row := pick(own)) is not None]
    named = bool(of) or len(found) < len(prompts)
    texts = [show(row.sufficiency) + (of if i == 0 else "") + (f" on {name}" if named else "") for i, (name, row) in enumerate(found)]
    return ", ".join(texts[:-1]) + (" and " if len(texts) > 1 else "") + texts[-1]


def _gained(own: dict[str, Row], metric: str) -> bool:
    """Whether the donor is better than the recipient, not worse."""
    gain = own["SFT"].operands.gain.value
    return gain is not None and (gain < 0 if metric == "rank" else gain > 0)


def _unsound(name: str, own: dict[str, Row]) -> str:
    """Why a prompt has no share to tell of."""
    pre, sft, gain = (getattr(own["SFT"].operands, key) for key in ("pre", "sft", "gain"))
    if any(estimate.undefined is not None for estimate in (pre, sft, gain)):
        return f"on {name} nothing can be said: {own['SFT'].sufficiency.undefined}"
    interval = f"{_number(gain.value)} [{_number(gain.low)}, {_number(gain.high)}]"
    numbers = f"{_number(pre.value)} before, {_number(sft.value)} after, a difference of {interval} over {gain.n} facts"
    if own["SFT"].sufficiency.undefined is not None:
        return f"on {name} recovery is undefined, since the donor by itself shows no gain that could be told from 0: {numbers}"
    return f"on {name} finetuning added nothing, since the donor by itself is worse than the recipient: {numbers}"


def _with_interval(estimate: Estimate) -> str:
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return "an undefined share"
    return f"{_percent(estimate.value)} % [{_percent(estimate.low)}, {_percent(estimate.high)}]"


def _short(estimate: Estimate) -> str:
    return "undefined" if estimate.value is None else f"{_percent(estimate.value)} %"


def _percent(share: float) -> str:
    return f"{round(100 * share) + 0:d}".replace("-", "−")


def _number(value: float) -> str:
    return f"{value:.3g}".replace("-", "−")
