"""The documentation's tables of a pair of 8 B are what its script prints."""

from __future__ import annotations

import large_pair
import pytest
from pages import block


def test_where_its_layers_go() -> None:
    """On empty tensors of the published size."""
    assert block("memory of a pair of 8 B") == large_pair.memory_table()


@pytest.mark.nightly
def test_what_a_study_of_it_takes() -> None:
    """Token rows are counted; time is by operations, and so the same on every machine."""
    assert block("work of a pair of 8 B") == large_pair.work_table()


def test_the_longest_run_is_waited_for() -> None:
    """Runs go to cards as these are free, the longest first."""
    assert large_pair.spread([3, 1, 2], 1) == 6
    assert large_pair.spread([3, 1, 2], 2) == 3
    assert large_pair.spread([3, 1, 2], 9) == 3
