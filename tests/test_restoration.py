"""The models are left alone: after any run, and after an exception, they are bit for bit what they
were.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from laws import (
    EVERYTHING,
    EXACT,
    EXECUTORS,
    alone,
    distance,
    executors,
    families,
    kinds,
    pair_of,
    pool,
)
from torch import nn

from kgbench.engine import Budget, Engine, grafted_logits
from kgbench.engine.forward import Weights, Wiring, one_treatment, treated
from kgbench.models.pair import weights_hash

pytestmark = pytest.mark.usefixtures("exact")


def state(model: nn.Module) -> tuple[str, list[str], bool]:
    """All that a block could leave behind: weights, forwards and hooks in modules' own
    dictionaries, the mode.
    """
    own = [
        f"{path}.{key}"
        for path, m in model.named_modules()
        for key in m.__dict__
        if key == "forward" or (key.endswith("hooks") and m.__dict__[key])
    ]
    return weights_hash(model), own, model.training


@pytest.mark.sampled(2)
@kinds
def test_models_are_restored_bit_for_bit(family: str, attention: str, tied: bool) -> None:
    """After a run, all weights have the bytes they had, no module a forward of its own, and plain
    logits are equal bit for bit.
    """
    pair = pair_of(family, attention, tied)
    models = (pair.recipient, *pair.donors.values())
    before = [(state(m), alone(m, pair, pool()[:1])) for m in models]
    for executor in EXECUTORS:
        grafted_logits(
            pair, pool()[:2], ["FE", f"{EVERYTHING}; LT:q+emb+head=task", "PRE", "SFT"], executor
        )
        for model, (weights, logits) in zip(models, before, strict=True):
            assert state(model) == weights
            assert torch.equal(alone(model, pair, pool()[:1]), logits)
    assert all(not own for (_, own, _), _ in before)


@pytest.mark.crossed
@families
@executors
def test_models_are_restored_after_an_exception(family: str, executor: str) -> None:
    """The same when a module in the middle of the forward raises, in the recipient or in a donor."""
    pair = pair_of(family)
    before = [state(m) for m in (pair.recipient, *pair.donors.values())]
    for broken in (pair.recipient, pair.donors["sft"]):
        module = broken.get_submodule(f"{pair.family.layers}.1.{pair.family.inside['down'].module}")

        def explode(*_: object) -> None:
            raise ZeroDivisionError("in the middle")

        module.__dict__["forward"] = explode
        try:
            with pytest.raises(ZeroDivisionError, match="in the middle"):
                grafted_logits(pair, pool()[:2], ["FE", "SFT", "LT:down"], executor)
            assert module.__dict__["forward"] is explode
        finally:
            del module.__dict__["forward"]
        assert [state(m) for m in (pair.recipient, *pair.donors.values())] == before
    assert (
        distance(
            grafted_logits(pair, pool()[:1], ["PRE"], executor)[:, 0],
            alone(pair.recipient, pair, pool()[:1]),
        )
        <= EXACT
    )


@pytest.mark.sampled(4)
@families
@executors
def test_a_module_s_own_forward_is_used_and_put_back(family: str, executor: str) -> None:
    """A forward that someone had put on a module, as wrappers do, is what computes, and the same
    object stands there afterwards.
    """
    pair = pair_of(family)
    plain = grafted_logits(pair, pool()[:2], ["LT", "FE^C"], executor)
    modules = [
        pair.recipient.get_submodule(pair.family.path(layer, c))
        for layer, c in ((1, "o"), (None, "head"), (None, "emb"))
    ]
    forwards = []
    for module in modules:
        forwards.append(lambda *a, inner=module.forward: 2 * inner(*a))
        module.__dict__["forward"] = forwards[-1]
    try:
        changed = grafted_logits(pair, pool()[:2], ["LT", "FE^C"], executor)
        assert [m.__dict__["forward"] for m in modules] == forwards
        assert distance(changed, plain) > 1e-3
    finally:
        for module in modules:
            del module.__dict__["forward"]
    assert distance(grafted_logits(pair, pool()[:2], ["LT", "FE^C"], executor), plain) == 0


def test_blocks_restore_when_their_body_raises() -> None:
    """Every block of forward.py undoes itself when what stands in it raises."""
    pair = pair_of("gpt2")
    wiring = Wiring(pair)
    before = state(pair.recipient)
    table = np.array([[0] * len(wiring.slots), [1] * len(wiring.slots)], dtype=np.uint8)
    blocks = (
        lambda: treated(wiring, Weights(table), np.array([0, 1, 1]), np.array([2])),
        lambda: one_treatment(wiring, Weights(table[1:2])),
    )
    for block in blocks:
        with pytest.raises(KeyboardInterrupt), block() as model:
            assert state(model)[1], "the block does something"
            raise KeyboardInterrupt
        assert state(pair.recipient) == before


def test_an_abandoned_run_leaves_nothing_behind() -> None:
    """A caller who stops listening after the first chunk finds the models as they were."""
    pair = pair_of("gemma")
    before = state(pair.recipient)
    for executor in EXECUTORS:
        engine = Engine(pair, executor, Budget(prompts=1))
        next(engine.run(engine.plan(pool()[:3], ["FE", "LT"])))
        assert state(pair.recipient) == before
        assert not torch.is_inference_mode_enabled()
