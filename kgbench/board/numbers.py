"""How figures are written in tables and pictures."""

from __future__ import annotations

from kgbench.records import NOT_APPLICABLE, Estimate

__all__ = ["exact_text", "figure_text", "metric_name", "number_text", "undefined_text"]

NAMES = {"rr": "mean reciprocal rank", "rank": "mean rank", "prob": "mean probability", "logprob": "mean log-probability"}


def number_text(value: float) -> str:
    """Two decimals below 10 without the leading zero, three significant digits above: `.87`, `-.02`, `1.03`, `12.4`, `461`."""
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    text = f"{value:.2f}"
    if text in ("-0.00", "0.00"):
        return "0"
    return text.replace("0.", ".", 1) if text.lstrip("-").startswith("0.") else text


def undefined_text(estimate: Estimate) -> str:
    """What stands in the place of a figure that there is none of."""
    return "not applicable" if (estimate.undefined or "").startswith(NOT_APPLICABLE) else "undefined"


def figure_text(estimate: Estimate) -> str:
    """`.87 [.81, .92]`; a value without width, which holds by definition, as `1`."""
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return undefined_text(estimate)
    if estimate.low == estimate.high:
        return f"{estimate.value:g}" if estimate.value in (0, 1) else number_text(estimate.value)
    return f"{number_text(estimate.value)} [{number_text(estimate.low)}, {number_text(estimate.high)}]"


def exact_text(estimate: Estimate) -> str:
    """A figure as it is stored, with its number of facts; where it is undefined, the reason."""
    if estimate.undefined is not None:
        return f"undefined: {estimate.undefined}"
    return f"{estimate.value:g} [{estimate.low:g}, {estimate.high:g}], n = {estimate.n}"


def metric_name(metric: str) -> str:
    """The metric in words, for an axis."""
    if metric.startswith("top"):
        return f"top-{metric[3:]} hit rate"
    return NAMES.get(metric, "mean logit difference")
