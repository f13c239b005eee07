"""The contract as pytest sees it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from test_testing import Grafts, Lengths, Misscored

import kgbench.testing
from kgbench.errors import LawError
from kgbench.localizers.random import Random
from kgbench.testing import laws_of, parametrize_with_checks

ROOT = Path(__file__).parent.parent


@parametrize_with_checks([Grafts, Random(seed=3), "oracle"], families=["gemma"])
def test_contract(check: Callable[[], None]) -> None:
    """Classes, instances and names: each law is a test of its own."""
    check()


def test_checks_are_named_and_fail_with_the_reason() -> None:
    """An id says localizer, parameters that are no defaults, family and law; a law that does not
    hold raises why.
    """
    mark = parametrize_with_checks([Misscored, Random(seed=3)], ["llama"]).mark
    checks = {mark.kwargs["ids"](check): check for check in mark.args[1]}
    assert "random-seed=3-llama-same_under_a_seed" in checks
    with pytest.raises(LawError, match="the same score"):
        checks["lengths-llama-not_all_sites_are_alike"]()


def test_all_families_by_default() -> None:
    """A test for each law on each family of `PICO_FAMILIES`."""
    checks = parametrize_with_checks([Lengths]).mark.args[1]
    assert len(checks) == len(kgbench.testing.PICO_FAMILIES) * len(laws_of(Lengths()))


@pytest.mark.parametrize("absent", ["torch", "pytest"])
def test_importing_needs_neither_torch_nor_pytest(absent: str) -> None:
    """`import kgbench.testing` loads no torch; and the contract itself is usable where pytest is
    not installed.
    """
    use = (
        ""
        if absent == "torch"
        else "from kgbench.testing import check_localizer, parametrize_with_checks"
    )
    code = f"import sys\nsys.modules[{absent!r}] = None\nimport kgbench.testing\n{use}"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_public_names() -> None:
    """What is exported is there; anything else is an attribute error, as in any module."""
    assert all(getattr(kgbench.testing, name) is not None for name in kgbench.testing.__all__)
    with pytest.raises(AttributeError, match="no attribute 'pico_model'"):
        _ = kgbench.testing.pico_model
