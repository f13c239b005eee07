"""Contrasts of cases and controls: known values, intervals that hold, and what is undefined."""

from __future__ import annotations

import numpy as np
import pytest

from kgbench.stats.contrast import ALIKE, FEW, contrast_recovery, group_contrast

Groups = tuple[dict[str, np.ndarray], dict[str, np.ndarray]]


def drawn(rng: np.random.Generator, n_on: int = 30, n_off: int = 20) -> Groups:
    """Scores of cases and controls: finetuning adds 4 to the one and 1 to the other, and a graft .6
    of their difference.
    """
    groups = []
    for n, gain, share in ((n_on, 4.0, 3.0), (n_off, 1.0, 1.2)):
        pre = rng.normal(-8, 1, n)
        graft, sft = (pre + rng.normal(added, 1.5, n) for added in (share, gain))
        groups.append({"PRE": pre, "SFT": sft, "LT": graft})
    return groups[0], groups[1]


def test_values_are_differences_of_means() -> None:
    """And the recovery is their ratio; the base has 0 and the finetuned model 1."""
    on, off = drawn(np.random.default_rng(0))
    apart = {graft: on[graft].mean() - off[graft].mean() for graft in on}
    for graft, value in apart.items():
        assert group_contrast(on, off, graft).value == pytest.approx(value)
    wanted = (apart["LT"] - apart["PRE"]) / (apart["SFT"] - apart["PRE"])
    assert contrast_recovery(on, off, "LT").value == pytest.approx(wanted)
    assert [contrast_recovery(on, off, graft).value for graft in ("PRE", "SFT")] == [0, 1]


def test_intervals_hold_what_is_so() -> None:
    """In 600 samples, the difference and the recovery each in 93 to 98 %."""
    rng, held = np.random.default_rng(1), np.zeros(2)
    for _ in range(600):
        on, off = drawn(rng)
        for number, (estimate, truth) in enumerate(
            [(group_contrast(on, off, "LT"), 1.8), (contrast_recovery(on, off, "LT"), 0.6)]
        ):
            assert estimate.numbers is not None
            held[number] += estimate.numbers[1] <= truth <= estimate.numbers[2]
    assert ((held / 600 >= 0.93) & (held / 600 <= 0.98)).all()


def test_what_has_no_interval_says_why() -> None:
    """Few cases, groups without spread, and finetuning that changes both groups alike."""
    on, off = drawn(np.random.default_rng(2))
    one = {graft: values[:1] for graft, values in off.items()}
    assert group_contrast(on, one, "LT").undefined == FEW
    assert contrast_recovery(on, one, "LT").undefined == FEW
    hits = {graft: np.ones(9, bool) for graft in on}
    assert group_contrast(hits, off, "LT").undefined == ALIKE
    assert contrast_recovery(hits, off, "LT").undefined == ALIKE
    other = drawn(np.random.default_rng(3))[0]
    assert "does not significantly" in str(contrast_recovery(on, other, "LT").undefined)
