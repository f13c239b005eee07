"""The self-test at load: which wrong maps it catches, and how `auto` chooses an executor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from kgbench.data import load_prompts
from kgbench.engine import Engine, grafted_logits, load_pair, selftest
from kgbench.engine.selftest import packed_agrees, stages_agree, tolerance, verify_pair
from kgbench.errors import LawError, ModelError
from kgbench.models.family_map import Family, Place
from kgbench.models.pair import ModelPair, prepare, weights_hash
from kgbench.testing import PICO_FAMILIES, pico_pair


def with_map(pair: ModelPair, **inside: object) -> ModelPair:
    """The same models under a changed map; None leaves a component out."""
    changed = {**pair.family.inside, **inside}
    return with_family(
        pair, replace(pair.family, inside={c: p for c, p in changed.items() if p is not None})
    )


def with_family(pair: ModelPair, family: Family) -> ModelPair:
    return ModelPair(pair.name, pair.recipient, pair.donors, pair.tokenizer, family)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("family", PICO_FAMILIES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_true_maps_pass(family: str, attention: str, dtype: torch.dtype) -> None:
    """Every shipped map fits its models, in every type, tied or not, and the test leaves the models
    as they are.
    """
    pair = pico_pair(
        family, attention=attention, dtype=dtype, donors=("sft", "task"), tied=attention == "sdpa"
    )
    before = [weights_hash(m) for m in (pair.recipient, *pair.donors.values())]
    verify_pair(pair)
    assert packed_agrees(pair) is None
    assert stages_agree(pair)
    assert [weights_hash(m) for m in (pair.recipient, *pair.donors.values())] == before


@pytest.mark.parametrize("shift", [False, True])
def test_layers_that_remember_the_rows_of_the_batch(shift: bool) -> None:
    """A model whose layers use something of the whole batch by token gets no rows by layer, whether
    it fails on other rows or takes the wrong ones; its answers are right.
    """
    pair = pico_pair("llama")
    seen: list[torch.Tensor] = []

    def remember(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        seen[:] = [output]

    def add(module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        kept = seen[0][:, : output.shape[1]] if shift else seen[0]
        return output + kept

    for model in (pair.recipient, *pair.donors.values()):
        model.get_input_embeddings().register_forward_hook(remember)
        model.model.layers[1].register_forward_hook(add)
    assert packed_agrees(pair) is None
    assert not stages_agree(pair)
    prompts = load_prompts("tiny_movies", ["headline"], limit=2)
    grafts = ["PRE", "LT:down@1", "LT:down@2", "LT:up@2", "LT:o@2"]
    got = [grafted_logits(pair, prompts, grafts, executor) for executor in ("packed", "rows")]
    assert float((got[0] - got[1]).abs().max()) < 1e-5


def test_a_misplaced_module() -> None:
    """A component at a place that is none."""
    with pytest.raises(ModelError, match=r"no module 'model\.layers\.0\.mlp\.gate'"):
        verify_pair(with_map(pico_pair("llama"), gate=Place("mlp.gate")))


@pytest.mark.parametrize(
    "wrong", [{"k": Place("attn.c_attn", 2, 3)}, {"v": None}, {"q": Place("attn.c_attn", 0, 6)}]
)
def test_wrong_slices(wrong: dict[str, Place | None]) -> None:
    """Slices that overlap, or leave a part of the fused output out."""
    with pytest.raises(LawError, match="slices of a fused projection do not partition its output"):
        verify_pair(with_map(pico_pair("gpt2"), **wrong))


def test_a_component_that_computes_nothing() -> None:
    """A component whose module does not take part in the forward pass."""
    pair = pico_pair("gemma")
    for model in (pair.recipient, *pair.donors.values()):
        for layer in model.model.layers:
            layer.self_attn.spare = nn.LayerNorm(2, dtype=torch.float64)
    with pytest.raises(LawError, match="component 'q_norm' does not move the logits"):
        verify_pair(with_map(pair, q_norm=Place("self_attn.spare")))


def test_outputs_without_names() -> None:
    """A model whose configuration asks for tuples is computed like any other."""
    pair = pico_pair("llama")
    for model in (pair.recipient, *pair.donors.values()):
        model.config.return_dict = False
    again = ModelPair(
        pair.name,
        prepare(pair.recipient),
        {name: prepare(donor) for name, donor in pair.donors.items()},
        pair.tokenizer,
        pair.family,
    )
    verify_pair(again)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shift", [-60.0, 60.0])
def test_logits_far_from_zero(dtype: torch.dtype, shift: float) -> None:
    """A constant that is added to all logits changes no answer: true maps pass, and wrong ones are
    found as before.
    """
    pair = _shifted(dtype, shift)
    verify_pair(pair)
    assert packed_agrees(pair) is None
    for component in ("ln_1", "o", "up", "down"):
        with pytest.raises(LawError, match="grafting everything is not the donor 'sft'"):
            verify_pair(with_map(pair, **{component: None}))
    with pytest.raises(LawError, match="grafting everything is not the donor"):
        verify_pair(with_map(pair, gate=Place("mlp.up_proj")))


def _shifted(dtype: torch.dtype, shift: float) -> ModelPair:
    """A pair whose head adds a constant."""
    pair = pico_pair("llama", dtype=dtype)
    for model in (pair.recipient, *pair.donors.values()):
        head = model.get_output_embeddings()
        head.bias = nn.Parameter(
            torch.full((head.out_features,), shift, dtype=dtype), requires_grad=False
        )
    return pair


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_shift_hides_nothing(dtype: torch.dtype) -> None:
    """In types of many digits, what is allowed for rounding of shifted logits is next to nothing."""
    logits = torch.randn(300, dtype=dtype, generator=torch.Generator().manual_seed(0))
    pair = pico_pair("llama", dtype=dtype)
    assert tolerance(pair, logits - 60) == pytest.approx(tolerance(pair, logits), rel=0.03)


@pytest.mark.parametrize(
    ("hooks", "error", "said"),
    [
        (
            {"mlp": "self_attn"},
            LawError,
            (
                "'mlp' is 'self_attn', where it should be the module whose output is added to the"
                " stream"
            ),
        ),
        ({"attention": "nowhere"}, ModelError, r"no module 'model\.layers\.0\.nowhere'"),
    ],
)
def test_wrong_hooks(hooks: dict[str, str], error: type[Exception], said: str) -> None:
    """Modules at which what attention and MLP add is read, and that add something else, or are
    none.
    """
    pair = pico_pair("llama")
    with pytest.raises(error, match=said):
        verify_pair(with_family(pair, replace(pair.family, **hooks)))


def _refusing(forward: Callable[..., object]) -> Callable[..., object]:
    def run(*args: object, attention_mask: torch.Tensor | None = None, **options: object) -> object:
        if attention_mask is not None and attention_mask.ndim == 4:
            raise ValueError("attention_mask must have two dimensions\nand more was said")
        return forward(*args, attention_mask=attention_mask, **options)

    return run


def _ignoring(forward: Callable[..., object]) -> Callable[..., object]:
    return lambda *args, attention_mask=None, **options: forward(*args, **options)


@pytest.mark.parametrize(
    ("wrap", "reason"),
    [
        (_refusing, "refuses a 4-D mask (attention_mask must have two dimensions)"),
        (_ignoring, "logits differ by"),
    ],
)
def test_auto_takes_rows_where_packed_does_not_work(
    wrap: Callable[..., Callable[..., object]], reason: str
) -> None:
    """A model that refuses a 4-D mask, or takes no notice of it, is run one row per configuration,
    and the engine says why; packed by name is refused.
    """
    pair = pico_pair("gemma")
    pair.recipient.forward = wrap(pair.recipient.forward)
    engine = Engine(pair, "auto")
    assert engine.executor == "rows"
    assert reason in engine.reason
    prompts = load_prompts("fake_movies_fake_actors", ["headline", "qa"], limit=2)
    assert torch.equal(
        engine.logits(engine.plan(prompts, ["FE"]))[:, :, 0],
        grafted_logits(pico_pair("gemma"), prompts, ["FE"], "rows"),
    )
    with pytest.raises(
        ModelError, match=r"executor 'packed' cannot run pico-gemma: .*; take 'auto' or 'rows'"
    ):
        Engine(pair, "packed")


def test_what_is_read_again_is_not_tried_again(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The laws are tried once for the same files read in the same way, and again for others."""
    tried: list[str] = []
    monkeypatch.setattr(selftest, "LAWS", {"count": lambda pair: tried.append(pair.name)})
    after = tmp_path / "after"
    shutil.copytree(folders["sft"], after)

    def load(**options: Any) -> int:
        load_pair(recipient=folders["recipient"], donors={"sft": after}, **options)
        return len(tried)

    assert [load(), load(), load(dtype="bfloat16"), load(dtype="bfloat16")] == [1, 1, 2, 2]
    os.utime(after / "model.safetensors", (0, 0))
    assert load() == 3
