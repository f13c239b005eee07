"""Figures of specificity in words."""

from __future__ import annotations

from collections.abc import Sequence

from kgbench.estimate import Estimate
from kgbench.numbers import percent_text, reason_text, significant_text
from kgbench.specificity.figures import Row

__all__ = ["figure_text", "sentence"]


def figure_text(figure: Estimate) -> str:
    """`2.4 [2.0, 2.8]`, or what is wrong."""
    if figure.value is None or figure.low is None or figure.high is None:
        return f"undefined ({reason_text(figure.undefined or '')})"
    value, low, high = map(significant_text, (figure.value, figure.low, figure.high))
    return f"{value} [{low}, {high}]"


def sentence(rows: Sequence[Row], donor: Row) -> str:
    """What one graft does to texts of all kinds, in a sentence.

    Args:
        rows: The graft's, by kind of texts, in the order of `KINDS`.
        donor: The whole donor's on neutral texts.
    """
    by_kind = {row.kind: row for row in rows}
    target, neutral, known = (by_kind[kind] for kind in ("target", "neutral", "known"))
    said = [
        f"{target.graft} moves the next token of the facts that it is meant for by {figure_text(target.kl)} nats"
    ]
    said.append(f"and that of everyday sentences by {_neutral(neutral)}")
    if neutral.of_sft is not None and neutral.of_sft.value is not None:
        said.append(f", {_percent(neutral.of_sft)} of what the whole donor does to them")
    if neutral.leak is not None:
        said.append(
            f"; its leak is {_percent(neutral.leak)}, the donor's {_percent(donor.leak) if donor.leak else 'undefined'}"
        )
    if (
        known.top5 is not None
        and known.top5_before is not None
        and known.top5.value is not None
        and known.top5_before.value is not None
    ):
        said.append(
            f"; of known answers {percent_text(known.top5_before.value)} % are among the five likeliest tokens before"
        )
        said.append(f" and {percent_text(known.top5.value)} % after")
    return " ".join(said).replace(" ;", ";").replace(" ,", ",").replace("  ", " ") + "."


def _neutral(row: Row) -> str:
    if row.largest == 0:
        return f"0 in all {row.prompts}"
    return (
        figure_text(row.kl)
        if row.kl.undefined is None or row.prompts
        else "nothing that could be measured"
    )


def _percent(figure: Estimate) -> str:
    """`46 % [34, 59]`."""
    if figure.value is None or figure.low is None or figure.high is None:
        return f"undefined ({reason_text(figure.undefined or '')})"
    value, low, high = map(_in_percent, (figure.value, figure.low, figure.high))
    return f"{value} % [{low}, {high}]"


def _in_percent(share: float) -> str:
    """Small shares, which leaks are, with two significant digits."""
    return significant_text(100 * share) if abs(share) < 0.1 else percent_text(share)
