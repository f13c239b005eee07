"""Figures of specificity in words."""

from __future__ import annotations

from collections.abc import Sequence

from kgbench.specificity.figures import Row
from kgbench.stats import Figure

__all__ = ["figure_text", "number_text", "sentence"]


def number_text(value: float) -> str:
    """Two significant digits, since divergences span many orders: `2.4`, `.028`, `3e-06`."""
    if value == 0:
        return "0"
    text = f"{value:#.2g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.0e}"
    text = f"{value:.0f}" if "e+" in text else text
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def figure_text(figure: Figure) -> str:
    """`2.4 [2.0, 2.8]`, or what is wrong."""
    if figure.value is None or figure.low is None or figure.high is None:
        return f"undefined ({figure.undefined})"
    return f"{number_text(figure.value)} [{number_text(figure.low)}, {number_text(figure.high)}]"


def sentence(rows: Sequence[Row], donor: Row) -> str:
    """What one graft does to texts of all kinds, in a sentence.

    Args:
        rows: The graft's, by kind of texts, in the order of `KINDS`.
        donor: The whole donor's on neutral texts.
    """
    by_kind = {row.kind: row for row in rows}
    target, neutral, known = (by_kind[kind] for kind in ("target", "neutral", "known"))
    said = [f"{target.graft} moves the next token of the facts that it is meant for by {figure_text(target.kl)} nats"]
    said.append(f"and that of everyday sentences by {_neutral(neutral)}")
    if neutral.of_sft is not None and neutral.of_sft.value is not None:
        said.append(f", {_percent(neutral.of_sft)} of what the whole donor does to them")
    if neutral.leak is not None:
        said.append(f"; its leak is {_percent(neutral.leak)}, the donor's {_percent(donor.leak) if donor.leak else 'undefined'}")
    if known.top5 is not None and known.top5_before is not None and known.top5.value is not None and known.top5_before.value is not None:
        said.append(f"; of known answers {known.top5_before.value:.0%} are among the five likeliest tokens before".replace("%", " %"))
        said.append(f" and {known.top5.value:.0%} after".replace("%", " %"))
    return " ".join(said).replace(" ;", ";").replace(" ,", ",").replace("  ", " ") + "."


def _neutral(row: Row) -> str:
    if row.largest == 0:
        return f"0 in all {row.prompts}"
    return figure_text(row.kl) if row.kl.undefined is None or row.prompts else "nothing that could be measured"


def _percent(figure: Figure) -> str:
    """`46 % [34, 59]`."""
    if figure.value is None or figure.low is None or figure.high is None:
        return f"undefined ({figure.undefined})"
    value, low, high = (number_text(100 * x) if abs(x) < 0.1 else f"{100 * x:.0f}" for x in (figure.value, figure.low, figure.high))
    return f"{value} % [{low}, {high}]"
