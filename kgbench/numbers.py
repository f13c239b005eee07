"""How numbers are written for people: tables, sentences, pictures and pages.

Machine formats (JSON, CSV, records) hold plain numbers and do not use this module.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal

from kgbench.estimate import Estimate
from kgbench.records import NOT_APPLICABLE

NAMES = {
    "mrr": "mean reciprocal rank",
    "rank": "mean rank",
    "median_rank": "median rank",
    "log_rank": "mean log rank",
    "prob": "mean probability",
    "logprob": "mean log-probability",
}

MINUTE, HOUR, DAY = 60, 3600, 86400

_DECIMAL = re.compile(r"(?<![\w.])(?:-?\d*\.\d+(?:e[-+]?\d+)?|-\d+)(?!\w|\.\d)(?P<unit>%?)")


def number_text(value: float) -> str:
    """Two decimals below 10 without the leading zero, three significant digits above.

    `.87`, `−.02`, `1.03`, `12.4`, `461`; what rounds to 0 is `0`.
    """
    return _styled(_rounded(value))


def _rounded(value: float) -> str:
    if abs(value) >= 99.95:
        return f"{value:.0f}"
    if abs(value) >= 9.995:
        return f"{value:.1f}"
    text = f"{value:.2f}"
    return "0" if float(text) == 0 else text


def _styled(text: str) -> str:
    """A number with a true minus sign and without the zero before the point."""
    sign, digits = ("−", text[1:]) if text.startswith("-") else ("", text)
    return sign + (digits[1:] if digits.startswith("0.") else digits)


def plain_text(value: float, digits: int = 6) -> str:
    """At most so many significant digits, without trailing zeros: `.9`, `2`, `−.125`, `3e−6`."""
    return _styled(re.sub(r"e([-+])0*", _exponent, f"{value:.{digits}g}"))


def significant_text(value: float, digits: int = 2) -> str:
    """Exactly so many significant digits, for figures that span many orders: `2.4`, `.028`."""
    if value == 0:
        return "0"
    if abs(value) < 1e-4:
        return plain_text(value, digits - 1)
    text = f"{value:#.{digits}g}".rstrip(".")
    return _styled(f"{value:.0f}" if "e+" in text else text)


def _exponent(match: re.Match[str]) -> str:
    return "e−" if match[1] == "-" else "e"


def signed_text(value: float) -> str:
    """A difference with its sign: `+.02`, `−3`; 0 has none."""
    return ("+" if value > 0 else "") + plain_text(value, 2)


def percent_text(share: float) -> str:
    """A share in per cent with the digits of `number_text`: `97` for `.97`."""
    return _styled(f"{Decimal(_rounded(share)) * 100:.0f}")


LARGEST_SHARE = 2.0
"""Beyond this per cent are not readable."""


def is_readable(share: Estimate) -> bool:
    """Whether a share has an interval and is within 200 per cent with it."""
    return share.numbers is not None and max(map(abs, share.numbers)) <= LARGEST_SHARE


def share_text(estimate: Estimate) -> str:
    """A share with its interval, in per cent: `97 % [94, 99]`; in words where that is not readable."""
    if estimate.value is None:
        return f"an {undefined_text(estimate)} share"
    if estimate.numbers is None or not is_readable(estimate):
        return "an uncertain share"
    value, low, high = map(percent_text, estimate.numbers)
    return f"{value} % [{low}, {high}]"


def undefined_text(estimate: Estimate) -> str:
    """The word in the place of an undefined figure."""
    absent = (estimate.undefined or "").startswith(NOT_APPLICABLE)
    return "not applicable" if absent else "undefined"


def value_text(estimate: Estimate) -> str:
    """The value without its interval, or `undefined`."""
    return "undefined" if estimate.value is None else number_text(estimate.value)


def figure_text(estimate: Estimate) -> str:
    """`.87 [.81, .92]`; without an interval, or by definition without width, the value alone."""
    if estimate.value is None:
        return undefined_text(estimate)
    if estimate.numbers is None:
        return number_text(estimate.value)
    if estimate.low == estimate.high:
        return f"{estimate.value:g}" if estimate.value in (0, 1) else number_text(estimate.value)
    return interval_text(estimate.numbers, number_text)


def interval_text(numbers: tuple[float, float, float], text: Callable[[float], str]) -> str:
    """A value with the ends of its interval in brackets, each written by a function."""
    value, low, high = map(text, numbers)
    return f"{value} [{low}, {high}]"


def exact_text(estimate: Estimate) -> str:
    """A figure in all digits, with its number of facts; where it is undefined, the reason."""
    if estimate.value is None:
        return f"undefined: {reason_text(estimate.undefined or '')}"
    if estimate.numbers is None:
        return (
            f"{plain_text(estimate.value)}, n = {estimate.n}, no interval: "
            f"{reason_text(estimate.undefined or '')}"
        )
    return f"{interval_text(estimate.numbers, plain_text)}, n = {estimate.n}"


def reason_text(reason: str) -> str:
    """Why a figure is undefined, as a record has it, with its numbers in this style."""
    return _DECIMAL.sub(_restyled, reason)


def _restyled(match: re.Match[str]) -> str:
    unit = match["unit"]
    value = float(match[0].removesuffix(unit))
    return f"{plain_text(value)} %" if unit else number_text(value)


def count_text(n: int, noun: str) -> str:
    """`1 forward`, `2 forwards`, `18,231 facts`."""
    return f"{n:,} {noun}{'' if n == 1 else 's'}"


def duration_text(seconds: float) -> str:
    """`12.3 s`, `4 min`, `2.5 h`, `141 days`."""
    if seconds < 100:
        return f"{seconds:.1f} s"
    if seconds < 100 * MINUTE:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        return f"{seconds / HOUR:.1f} h"
    days = seconds / DAY
    return f"{days:.1f} days" if days < 10 else f"{days:,.0f} days"


def size_text(n: int) -> str:
    """Bytes in MiB or GiB."""
    return f"{n / 2**30:.1f} GiB" if n >= 2**30 else f"{n / 2**20:.1f} MiB"


def metric_name(metric: str) -> str:
    """The metric in words, for an axis."""
    if metric.startswith("top"):
        return f"top-{metric[3:]} hit rate"
    return NAMES.get(metric, "mean logit difference")
