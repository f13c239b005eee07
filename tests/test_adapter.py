"""How adapters are read: where they are found, and what is said of those that do not do."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from adapters import (
    Made,
    adapter_pair,
    maker,
    merged,
    quiet,
    respoil,
    rewrite,
    write_adapter,
    write_recipient,
)
from few_plants import refusal
from huggingface_hub import constants
from laws import EXACT, distance, pool
from peft import LoraConfig, PeftModel, get_peft_model
from transformers import AutoModelForCausalLM, AutoTokenizer

from kgbench.engine import grafted_logits, load_pair
from kgbench.engine.weights import parts
from kgbench.errors import ModelError
from kgbench.models.checkpoints import locate
from kgbench.models.loading import UnconfirmedBaseWarning
from kgbench.models.pair import ModelPair
from kgbench.paper.figure_parts import merged_adapters, store_merged
from kgbench.paper.figure_specs import page
from kgbench.paper.ingredients import Ingredients
from kgbench.runner import Spec
from kgbench.testing import pico_tokenizer

pytestmark = pytest.mark.usefixtures("exact")


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Pairs by family, each made once; every test leaves them as they are."""
    return maker(tmp_path_factory)


@pytest.fixture
def spoiled(made: Callable[[str], Made], tmp_path: Path) -> tuple[Path, Path]:
    """A recipient of GPT-2 type, and a copy of its adapter to spoil."""
    *_, recipient, adapter = made("gpt2")
    return recipient, Path(shutil.copytree(adapter, tmp_path / "adapter"))


FIRST = "transformer.h.0.attn.c_attn"

CONFIGURATIONS: Mapping[str, tuple[Mapping[str, Any], str]] = {
    "another method": ({"peft_type": "IA3"}, "peft_type: Input should be 'LORA'; from files only"),
    "biases": ({"bias": "lora_only"}, "bias: Input should be 'none'"),
    "code by name": ({"megatron_config": {"a": 1}}, "megatron_config: Extra inputs are not"),
    "invocation": ({"alora_invocation_tokens": [3]}, "alora_invocation_tokens"),
    "a changed base": ({"init_lora_weights": "pissa_niter_4"}, "init_lora_weights"),
    "what is not known": ({"use_next_year": {"much": 1}}, "use_next_year: Extra inputs are not"),
    "no rank": ({"r": 0}, "r: Input should be greater than 0"),
    "a rank that is none": ({"r": "4"}, "r: Input should be a valid integer"),
    "an endless alpha": ({"lora_alpha": float("nan")}, "lora_alpha: Input should be a finite"),
    "a pattern of targets": ({"target_modules": r".*\.(c_attn|c_proj)"}, "target_modules"),
    "one name for a list": ({"target_modules": "c_attn"}, "list the names, or have PEFT read it"),
    "a pattern of exclusions": ({"exclude_modules": "(a?)?"}, "exclude_modules"),
    "a pattern of ranks": ({"rank_pattern": {"([a-z_.0-9]+)+!": 2}}, "rank_pattern"),
    "a pattern of alphas": ({"alpha_pattern": {"^c_attn": 2}}, "alpha_pattern"),
    "a pattern of layers": ({"layers_pattern": "layers|h"}, "layers_pattern"),
    "a rank beyond all": ({"r": 10**400}, "r: Input should be less than or equal to 65536"),
    "another rank": ({"r": 3}, f"{FIRST}.lora_A.weight is [4, 32], expected [3, 32]"),
    "a rank that memory has no room for": (
        {"rank_pattern": {"c_attn": 65536}},
        f"{FIRST}.lora_A.weight is [4, 32], expected [65536, 32]",
    ),
    "fewer targets": (
        {"target_modules": ["c_proj"]},
        f"it holds '{FIRST}.lora_A.weight', which its settings do not name",
    ),
    "more targets": (
        {"target_modules": ["c_attn", "c_proj", "c_fc"]},
        "it lacks transformer.h.0.mlp.c_fc.lora_A.weight",
    ),
    "magnitudes": ({"use_dora": True}, f"it lacks {FIRST}.lora_magnitude_vector"),
    "no such module": (
        {"target_modules": ["q_proj"]},
        "does not fit the recipient: Target modules",
    ),
    "whole modules": (
        {"modules_to_save": ["ln_f"]},
        "it lacks transformer.ln_f.weight, which its settings name",
    ),
}


@pytest.mark.parametrize("case", CONFIGURATIONS)
def test_configurations_that_do_not_do(spoiled: tuple[Path, Path], case: str) -> None:
    """One line each: what is said, what was expected, and what to do where an adapter is more than
    its layers.
    """
    changes, said = CONFIGURATIONS[case]
    rewrite(spoiled[1], lambda config: config.update(changes))
    line = refusal(ModelError, lambda: adapter_pair(*spoiled))
    assert line.startswith("local:adapter ")
    assert said in line


MEASURED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "scale by the root of the rank": ("llama", {"use_rslora": True}),
    "magnitudes": ("llama", {"use_dora": True}),
    "magnitudes of Conv1D": ("gpt2", {"use_dora": True, "target_modules": ["c_attn", "c_proj"]}),
    "biases of rows": ("gpt2", {"lora_bias": True, "target_modules": ["c_attn"]}),
    "a layout that is not the base's": ("llama", {"fan_in_fan_out": True}),
    "ranks and scales by module": (
        "llama",
        {"rank_pattern": {"v_proj": 2, "layers.2.v_proj": 5}, "alpha_pattern": {"down_proj": 3}},
    ),
    "some layers": ("llama", {"layers_to_transform": [0, 2], "layers_pattern": ["layers"]}),
    "exclusions": ("llama", {"exclude_modules": ["layers.1.mlp.down_proj"]}),
    "all linear modules": ("llama", {"target_modules": "All-Linear"}),
    "embeddings": ("gpt2", {"target_modules": ["wte", "wpe", "c_attn"]}),
    "embeddings of a tied model": ("gemma", {"target_modules": ["embed_tokens", "q_proj"]}),
    "the head of a tied model": ("gemma", {"target_modules": ["lm_head", "q_proj"]}),
    "whole modules": ("llama", {"modules_to_save": ["up_proj", "norm"]}),
    "whole embeddings of a tied model": ("gemma", {"modules_to_save": ["embed_tokens"]}),
    "a whole head of a tied model": ("gemma", {"modules_to_save": ["lm_head"]}),
}
"""What an adapter can be, on disk as in memory."""
OF_LAYERS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "a pattern": ("llama", {"target_modules": r".*layers\.[02]\..*down_proj"}),
    "single tokens of a tied model": ("gemma", {"trainable_token_indices": [3, 5]}),
    "a parameter": (
        "llama",
        {"target_modules": ["q_proj"], "target_parameters": ["mlp.down_proj.weight"]},
    ),
    "tied whole embeddings": (
        "gemma",
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
    ),
}
"""What it can be in memory."""
IDS = torch.tensor([[3, 4, 5, 6, 7, 8, 3]])


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Recipients of a family; of Gemma with tied embeddings."""

    @cache
    def base(family: str) -> Path:
        folder = write_recipient(family, tmp_path_factory.mktemp(family))
        if family == "gemma":
            tied = AutoModelForCausalLM.from_pretrained(folder)
            tied.config.tie_word_embeddings = True
            tied.tie_weights()
            tied.save_pretrained(folder)
        return folder

    return base


def trained(folder: Path, said: Mapping[str, Any]) -> PeftModel:
    """A model with an adapter all of whose trained weights are random."""
    settings = {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj", "down_proj"]}
    generator = torch.Generator().manual_seed(0)
    with quiet():
        base = AutoModelForCausalLM.from_pretrained(folder)
        model = get_peft_model(base, LoraConfig(**{**settings, **said}))
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(0.1 * torch.randn(weight.shape, generator=generator))
    model.eval()
    return model


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", [*MEASURED, *OF_LAYERS])
def test_a_donor_is_what_peft_computes(
    bases: Callable[[str], Path], tmp_path: Path, case: str
) -> None:
    """In memory, and as saved and read again: the logits of PEFT's own forward."""
    family, said = {**MEASURED, **OF_LAYERS}[case]
    folder = bases(family)
    model = trained(folder, said)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = [load_pair(donors={"sft": model}, tokenizer=tokenizer)]
    if case in MEASURED:
        with quiet():
            model.save_pretrained(tmp_path)
        pairs.append(load_pair(recipient=str(folder), donors={"sft": str(tmp_path)}))
    with torch.no_grad():
        wanted = model(input_ids=IDS).logits
        for pair in pairs:
            got = pair.donors["sft"](input_ids=IDS).logits
            assert float((got - wanted).abs().max()) <= 1e-5 * float(wanted.abs().max())
            off = pair.recipient(input_ids=IDS).logits
            assert float((off - wanted).abs().max()) > 0.1, "the adapter does something"


def test_an_adapter_without_peft(
    spoiled: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused with what to install."""
    monkeypatch.setitem(sys.modules, "peft", None)
    line = refusal(ModelError, lambda: adapter_pair(*spoiled))
    assert line == "local:adapter is an adapter, which takes PEFT: pip install 'peft>=0.17'"


def test_tensors_that_do_not_fit(spoiled: tuple[Path, Path]) -> None:
    """Of another model, too few, too many, not finite, of another kind: one line each, which names
    the tensor.
    """
    recipient, folder = spoiled
    a, b = f"{FIRST}.lora_A.weight", f"{FIRST}.lora_B.weight"
    cases: Mapping[str, Callable[[dict[str, torch.Tensor]], object]] = {
        f"{a} is [4, 16], expected [4, 32]": lambda t: t.update({a: t[a][:, :16]}),
        f"{b} is [4, 96], expected [96, 4]": lambda t: t.update({b: t[b].T}),
        f"it lacks {b}": lambda t: t.pop(b),
        "it holds 'transformer.h.7.attn.c_attn.lora_A.weight', which its settings": lambda t: (
            t.update({"transformer.h.7.attn.c_attn.lora_A.weight": t[a].clone()})
        ),
        f"{a!r} holds 1 numbers of ": lambda t: t[a].view(-1)[5].fill_(float("inf")),
        f"{b!r} is of type torch.int8": lambda t: t.update({b: t[b].to(torch.int8)}),
        f"it holds '{FIRST}.lora_magnitude_vector', which its settings": lambda t: t.update(
            {f"{FIRST}.lora_magnitude_vector": torch.zeros(96)}
        ),
        "it holds other weights for 'transformer.ln_f.bias', which its modules_to_save do not name": lambda t: (
            t.update({"transformer.ln_f.bias": torch.zeros(32)})
        ),
        "it holds 'transformer.ln_f.sting', which its settings do not name": lambda t: t.update(
            {"transformer.ln_f.sting": torch.zeros(32)}
        ),
    }
    whole = (folder / "adapter_model.safetensors").read_bytes()
    for said, change in cases.items():
        (folder / "adapter_model.safetensors").write_bytes(whole)
        respoil(folder, change)
        line = refusal(ModelError, lambda: adapter_pair(recipient, folder))
        assert said in line
    (folder / "adapter_model.safetensors").write_bytes(whole[: len(whole) // 2])
    assert "is no safetensors file" in refusal(ModelError, lambda: adapter_pair(recipient, folder))


def test_rows_too_large_for_the_type(spoiled: tuple[Path, Path]) -> None:
    """Rows whose products the pair's type cannot hold are refused, not turned into infinity."""
    respoil(spoiled[1], lambda t: t[f"{FIRST}.lora_B.weight"].view(-1)[0].fill_(1e6))
    assert adapter_pair(*spoiled).dtype == torch.float32
    line = refusal(ModelError, lambda: adapter_pair(*spoiled, dtype="float16"))
    assert "donor 'sft' answers with logits that are not finite in float16" in line


def test_an_adapter_of_another_model(made: Callable[[str], Made]) -> None:
    """One of another family, by the names of its modules."""
    *_, adapter = made("llama")
    line = refusal(ModelError, lambda: adapter_pair(made("gpt2")[2], adapter))
    assert "does not fit the recipient: Target modules" in line


def test_files(spoiled: tuple[Path, Path]) -> None:
    """Pickled rows, a broken configuration, an adapter as a recipient, an adapter amid a whole
    checkpoint, another tokenizer.
    """
    recipient, folder = spoiled
    line = refusal(ModelError, lambda: adapter_pair(folder, recipient))
    assert "cannot be a recipient" in line and "merge_and_unload, save_pretrained" in line
    outer = shutil.copytree(folder, folder.parent / "output" / "checkpoint-9").parent
    assert "such as 'checkpoint-9' in it" in refusal(
        ModelError, lambda: adapter_pair(recipient, outer)
    )
    pico_tokenizer(bos=True).save_pretrained(folder)
    assert "different tokenizers" in refusal(ModelError, lambda: adapter_pair(*spoiled))
    pico_tokenizer(bos=False).save_pretrained(folder)
    assert adapter_pair(*spoiled, dtype="float64").dtype == torch.float64
    shutil.copy(recipient / "model.safetensors", folder)
    assert "both an adapter and other weights" in refusal(
        ModelError, lambda: adapter_pair(*spoiled)
    )
    (folder / "model.safetensors").unlink()
    torch.save({}, folder / "adapter_model.bin")
    (folder / "adapter_model.safetensors").unlink()
    assert "pickled weights are never loaded" in refusal(ModelError, lambda: adapter_pair(*spoiled))
    for text in ("{", "[]"):
        (folder / "adapter_config.json").write_text(text)
        assert "adapter_config.json" in refusal(ModelError, lambda: adapter_pair(*spoiled))


def test_the_base_s_name_is_not_looked_up(spoiled: tuple[Path, Path]) -> None:
    """An adapter that names a base of which nothing is known here is grafted all the same, and a
    line warns of it.
    """
    rewrite(
        spoiled[1],
        lambda config: config.update(base_model_name_or_path="nobody/nothing", revision="nowhere"),
    )
    with pytest.warns(
        UnconfirmedBaseWarning,
        match=r"local:adapter is an adapter of 'nobody/nothing', .* whether it was made for these",
    ):
        assert adapter_pair(*spoiled, dtype="float64").origins["sft"] == "local:adapter"


def test_an_adapter_on_the_hub(
    made: Callable[[str], Made], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By its id, from the cache; its origin is the id and the commit."""
    pair, _, recipient, adapter = made("gpt2")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    shutil.copytree(adapter, tmp_path / "models--someone--some-adapter" / "snapshots" / commit)
    (tmp_path / "models--someone--some-adapter" / "refs").mkdir()
    (tmp_path / "models--someone--some-adapter" / "refs" / "main").write_text(commit)
    found = load_pair(
        recipient=str(recipient), donors={"sft": "someone/some-adapter"}, dtype="float64"
    )
    assert found.origins["sft"] == f"someone/some-adapter@{commit}"
    assert found.weight_hashes == pair.weight_hashes


def test_two_adapters_beside_a_whole_donor(made: Callable[[str], Made], tmp_path: Path) -> None:
    """Several donors of both kinds in one graft."""
    pair, _, recipient, adapter = made("gpt2")
    second = write_adapter(pair.recipient, tmp_path / "second", seed=1, target_modules=["c_fc"])
    whole = merged(pair.recipient, adapter)
    whole.save_pretrained(tmp_path / "whole")
    donors = {"sft": str(adapter), "task": str(second), "whole": str(tmp_path / "whole")}
    found = load_pair(recipient=str(recipient), donors=donors, dtype="float64")
    plain = {"sft": whole, "task": merged(pair.recipient, second), "whole": whole}
    wanted = ModelPair("plain", pair.recipient, plain, pair.tokenizer, pair.family)
    grafts = ["FE:attn; LT:up=task; R:down=whole", "ALL:all+head=task"]
    assert (
        distance(*(grafted_logits(each, pool()[:2], grafts) for each in (found, wanted))) <= EXACT
    )
    assert [p.name for p in parts(found, 5)] == [p.name for p in parts(wanted, 5)]


def test_a_merged_adapter_can_be_the_recipient(made: Callable[[str], Made], tmp_path: Path) -> None:
    """Stored whole, the finetuned model is what grafts start from, and the base can be the donor."""
    pair, _, recipient, adapter = made("llama")
    store_merged(locate(str(recipient)), adapter, tmp_path / "whole")
    turned = load_pair(
        recipient=str(tmp_path / "whole"), donors={"sft": str(recipient)}, dtype="float64"
    )
    found = grafted_logits(turned, pool()[:2], ["PRE", "SFT"])
    wanted = grafted_logits(pair, pool()[:2], ["SFT", "PRE"])
    assert distance(found, wanted) <= 1e-5  # merged in float32


def test_a_finetuned_recipient_and_its_donor_are_each_merged_into_the_base(
    made: Callable[[str], Made], tmp_path: Path
) -> None:
    """An evaluation whose recipient is an adapter compares the two finetuned models: neither
    adapter is added to the other.
    """
    pair, _, base, first = made("llama")
    second = write_adapter(
        pair.recipient, tmp_path / "second", seed=1, target_modules=["down_proj"]
    )
    spec = Spec(recipient=str(first), donors={"sft": str(second)})
    what = SimpleNamespace(job=lambda _: spec, page=page(), recipient=str(base))
    with merged_adapters(cast(Ingredients, what), "reversal") as given:
        turned = load_pair(recipient=given.recipient, donors=given.donors, dtype="float64")
    found = grafted_logits(turned, pool()[:2], ["PRE", "SFT"])
    for place, adapter in enumerate((first, second)):
        alone = load_pair(recipient=str(base), donors={"sft": str(adapter)}, dtype="float64")
        wanted = grafted_logits(alone, pool()[:2], ["SFT"])
        assert distance(found[:, place : place + 1], wanted) <= 1e-5  # merged in float32
    assert not Path(str(given.recipient)).exists()
