"""nnsight and TransformerLens work on the models of a pair, and leave the pair as it was.

Measured with nnsight 0.8.1 and TransformerLens 4.3.0 on the four tiny pairs, in single precision:
nnsight's logits and residual streams differ by 0 from the plain models', TransformerLens's logits
by at most 1.1e-5 (it computes attention by itself, as transformers' `eager` does) and a layer that
nnsight patches by at most 1.3e-5 from kgbench's own patch, which runs packed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import forks
import pytest
from other_tools import PAIRS

ROUNDING = 5e-5
ROOT = Path(__file__).parent.parent
pairs = pytest.mark.parametrize("pair", PAIRS)

pytestmark = pytest.mark.nightly


@pytest.fixture(scope="module")
def measured() -> Any:
    """Largest distances by pair and tool, from a process of its own."""
    line = [sys.executable, "-m", "tests.other_tools"]
    done = forks.run(line, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pairs
def test_nnsight_traces_the_models(measured: Any, pair: str) -> None:
    """Logits, and the residual stream after each layer, are the plain model's bit for bit."""
    assert measured[pair]["nnsight"]["logits"] == 0
    assert measured[pair]["nnsight"]["states"] == 0


@pairs
def test_nnsight_patches_as_kgbench_does(measured: Any, pair: str) -> None:
    """The donor's output of a layer at the last token, put into the recipient's run by nnsight,
    gives what `activation_patch` gives, at every layer.
    """
    assert measured[pair]["nnsight"]["patches"] < ROUNDING


@pairs
def test_transformer_lens_computes_the_models(measured: Any, pair: str) -> None:
    """On a copy that shares the weights, logits and residual streams are the plain model's."""
    assert measured[pair]["transformer_lens"]["logits"] < ROUNDING
    assert measured[pair]["transformer_lens"]["states"] < ROUNDING


@pairs
@pytest.mark.parametrize("tool", ["nnsight", "transformer_lens"])
def test_the_pair_is_as_it_was(measured: Any, pair: str, tool: str) -> None:
    """Logits of grafts and of the models alone are bit for bit those of before, no weight changed
    and no hook is left.
    """
    found = measured[pair][tool]
    assert (found["grafts"], found["alone"]) == (0, 0)
    assert (found["changed"], found["hooks"]) == ([], 0)
