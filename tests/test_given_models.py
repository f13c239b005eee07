"""A pair answers as the models that were given: each as it stands, or it is refused by name."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import quiet, write_recipient
from peft import (
    AdaptionPromptConfig,
    IA3Config,
    LoraConfig,
    PeftConfig,
    PeftMixedModel,
    PeftModel,
    PromptTuningConfig,
    get_peft_model,
)
from peft.helpers import rescale_adapter_scale
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import (
    AttentionInterface,
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from kgbench import evaluate, grafted_logits, load_pair, load_prompts
from kgbench.errors import InputError, ModelError
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair

PROMPTS = load_prompts("tiny_movies", ["headline"], limit=2)
TARGETS = ["q_proj", "v_proj", "down_proj"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A checkpoint of Llama type with its tokenizer."""
    return str(write_recipient("llama", tmp_path_factory.mktemp("llama") / "recipient"))


@pytest.fixture(scope="module")
def tokenizer(folder: str) -> Any:
    return AutoTokenizer.from_pretrained(folder)


def base_of(folder: str) -> PreTrainedModel:
    """The checkpoint as a user loads it."""
    return AutoModelForCausalLM.from_pretrained(folder).eval()


def shaken(model: nn.Module) -> Any:
    """The model with noise on all that is trained, in eval mode."""
    generator = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(0.2 * torch.randn(weight.shape, generator=generator))
    return model.eval()


def adapted(folder: str, config: PeftConfig | None = None, **said: Any) -> PeftModel:
    """PEFT's model, by default with rows of LoRA."""
    lora = {"r": 4, "lora_alpha": 8, "target_modules": TARGETS, "task_type": "CAUSAL_LM", **said}
    torch.manual_seed(0)
    with quiet():
        return shaken(get_peft_model(base_of(folder), config or LoraConfig(**lora)))


def alone(model: nn.Module, pair: ModelPair) -> Tensor:
    """Logits of a model by itself, as its owner computes them."""
    with torch.no_grad(), quiet():
        rows = [model(input_ids=torch.tensor([pair.encode(p)])).logits[0, -1] for p in PROMPTS]
    return torch.stack(rows)


def refused(**models: Any) -> str:
    """The one line of the refusal."""
    with quiet(), pytest.raises(InputError) as caught:
        load_pair(**models)
    assert "\n" not in str(caught.value)
    return str(caught.value)


# ---------------------------------------------------------------------------------------- adapters


def scaled(model: PeftModel) -> None:
    for layer in model.modules():
        if isinstance(layer, LoraLayer):
            layer.set_scale("default", 3.0)


def off_in_one_layer(model: PeftModel) -> None:
    next(layer for layer in model.modules() if isinstance(layer, LoraLayer)).enable_adapters(False)


def with_another(model: PeftModel) -> None:
    with quiet():
        model.add_adapter("other", LoraConfig(r=2, target_modules=["q_proj", "k_proj"]))
        for weight in model.parameters():
            weight.requires_grad_(True)
        shaken(model)


def both_active(model: PeftModel) -> None:
    with_another(model)
    model.base_model.set_adapter(["default", "other"])


def other_active(model: PeftModel) -> None:
    with_another(model)
    model.set_adapter("other")


CHANGES: Mapping[str, Callable[[PeftModel], object]] = {
    "as it is": lambda _: None,
    "scaled": scaled,
    "off in one layer": off_in_one_layer,
    "two active": both_active,
    "another active": other_active,
    "in training": lambda model: model.train(),
}
KINDS: Mapping[str, Callable[[str], PeftModel]] = {
    "factors": lambda folder: adapted(
        folder,
        IA3Config(task_type="CAUSAL_LM", target_modules=TARGETS, feedforward_modules=["down_proj"]),
    ),
    "repeated layers": lambda folder: adapted(folder, layer_replication=[[0, 2], [1, 3]]),
}


def assert_measured_as_given(model: PeftModel, folder: str) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with quiet():
        pair = load_pair(donors={"sft": model}, tokenizer=tokenizer)
    grafted = grafted_logits(pair, PROMPTS, ["ALL:all+ln_f+head", "NONE"])
    on = alone(model.eval(), pair)
    with quiet(), model.disable_adapter():
        off = alone(model, pair)
    torch.testing.assert_close(grafted[:, 0], on, atol=1e-3, rtol=1e-4)
    torch.testing.assert_close(grafted[:, 1], off, atol=1e-3, rtol=1e-4)
    assert float((on - off).abs().max()) > 0.1


@pytest.mark.parametrize("change", CHANGES)
def test_adapters_as_they_stand(folder: str, change: str) -> None:
    """Everything grafted is PEFT's own answer at that moment, nothing grafted the one without."""
    model = adapted(folder)
    CHANGES[change](model)
    assert_measured_as_given(model, folder)


@pytest.mark.parametrize("kind", KINDS)
def test_adapters_of_other_kinds(folder: str, kind: str) -> None:
    """The same for whatever PEFT can merge into weights."""
    assert_measured_as_given(KINDS[kind](folder), folder)


def test_a_scale_within_a_block(folder: str) -> None:
    """What holds within a block of PEFT's holds for a pair that is loaded within it."""
    model = adapted(folder)
    with rescale_adapter_scale(model, 0.25):
        assert_measured_as_given(model, folder)


def test_rows_of_a_wider_type_than_the_base(folder: str, tokenizer: Any) -> None:
    """Of a base in 16 bits, PEFT keeps the rows in 32, and so does the pair."""
    with quiet():
        base = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        model = shaken(get_peft_model(base, LoraConfig(r=4, target_modules=TARGETS)))
    pair = load_pair(donors={"sft": model}, tokenizer=tokenizer)
    kinds = {name: weight.dtype for name, weight in pair.donors["sft"].named_parameters()}
    assert pair.dtype == torch.bfloat16
    assert {kind for name, kind in kinds.items() if name.endswith((".a", ".b"))} == {torch.float32}
    torch.testing.assert_close(alone(pair.donors["sft"], pair), alone(model, pair))


def hooked(module: nn.Module) -> None:
    module.register_forward_hook(lambda _module, _inputs, output: 0.1 * output)


@pytest.mark.parametrize(
    "path",
    [
        "base_model.model.model.layers.1.self_attn.q_proj",
        "base_model.model.model.layers.1.self_attn.q_proj.lora_A.default",
        "base_model",
    ],
)
def test_hooks_on_adapted_layers_are_refused(folder: str, tokenizer: Any, path: str) -> None:
    """Wherever in PEFT's layers they are."""
    model = adapted(folder)
    hooked(model.get_submodule(path))
    line = refused(donors={"sft": model}, tokenizer=tokenizer)
    assert line.startswith("recipient has hooks or replaced functions at ")


REFUSED: Mapping[str, tuple[Callable[[str], PeftModel], str]] = {
    "biases of rows": (lambda folder: adapted(folder, lora_bias=True), "q_proj cannot be merged ("),
    "by invocation": (
        lambda folder: adapted(folder, alora_invocation_tokens=[5]),
        "q_proj cannot be merged (aLoRA does not support",
    ),
    "a changed base": (
        lambda folder: adapted(folder, init_lora_weights="pissa"),
        "training changed too (init_lora_weights",
    ),
    "tokens before the prompt": (
        lambda folder: adapted(
            folder, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
        ),
        "an adapter of type PROMPT_TUNING",
    ),
    "tokens in the layers": (
        lambda folder: adapted(
            folder,
            AdaptionPromptConfig(task_type="CAUSAL_LM", adapter_len=2, adapter_layers=2),
        ),
        "has PEFT's AdaptedAttention at model.layers.",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_adapters_that_no_weights_stand_for(folder: str, tokenizer: Any, case: str) -> None:
    """In one line that names what it is."""
    make, said = REFUSED[case]
    model = make(folder)
    assert said in refused(donors={"sft": model}, tokenizer=tokenizer)


def test_an_adapter_that_changed_its_base(folder: str, tokenizer: Any) -> None:
    """Beside the model before training it is measured as PEFT computes it."""
    model = adapted(folder, init_lora_weights="pissa")
    pair = load_pair(recipient=folder, donors={"sft": model}, tokenizer=tokenizer)
    got = grafted_logits(pair, PROMPTS, ["ALL:all+ln_f+head"])[:, 0]
    torch.testing.assert_close(got, alone(model, pair), atol=1e-3, rtol=1e-4)


@pytest.mark.parametrize("part", ["recipient", "sft"])
def test_adapters_inside_transformers(folder: str, tokenizer: Any, part: str) -> None:
    """A model that loaded its adapter by itself is measured with it, wherever it stands."""
    models = {name: base_of(folder) for name in ("recipient", "sft")}
    models[part].add_adapter(LoraConfig(r=4, target_modules=TARGETS, init_lora_weights=False))
    models[part].eval()
    pair = load_pair(
        recipient=models["recipient"], donors={"sft": models["sft"]}, tokenizer=tokenizer
    )
    got = grafted_logits(pair, PROMPTS, ["NONE", "ALL:all+ln_f+head"])
    for i, model in enumerate(models.values()):
        torch.testing.assert_close(got[:, i], alone(model, pair), atol=1e-3, rtol=1e-4)
    assert float((got[:, 0] - got[:, 1]).abs().max()) > 0.1


@pytest.mark.parametrize(
    "said",
    [{}, {"modules_to_save": ["embed_tokens"]}, {"target_modules": ["q_proj", "lm_head"]}],
)
def test_an_adapter_with_added_tokens(
    folder: str, tokenizer: Any, tmp_path: Path, said: dict[str, Any]
) -> None:
    """From memory and from files: its answers over the recipient's tokens; the others are said."""
    base = base_of(folder)
    words = base.config.vocab_size
    base.resize_token_embeddings(words + 2, mean_resizing=False)
    torch.manual_seed(0)
    with quiet():
        lora = {"r": 4, "target_modules": TARGETS, "task_type": "CAUSAL_LM", **said}
        model = shaken(get_peft_model(base, LoraConfig(**lora)))
        model.save_pretrained(tmp_path)  # by default with the embeddings, since they were resized
    for donor in (model, str(tmp_path)):
        with quiet():
            pair = load_pair(recipient=folder, donors={"sft": donor}, tokenizer=tokenizer)
        got = grafted_logits(pair, PROMPTS, ["ALL:all+ln_f+head"])[:, 0]
        torch.testing.assert_close(got, alone(model, pair)[:, :words], atol=1e-3, rtol=1e-4)
        assert list(pair.notes.values()) == [
            f"2 tokens of donor 'sft' beyond the recipient's {words} are left out"
        ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_an_adapter_in_a_folder_beside_its_base_in_memory(
    folder: str, tokenizer: Any, tmp_path: Path, dtype: torch.dtype
) -> None:
    """A donor by its folder and a recipient in memory are the pair of PEFT's model of both."""
    with quiet():
        adapted(folder).save_pretrained(tmp_path)
        base = base_of(folder).to(dtype)
        model = PeftModel.from_pretrained(base_of(folder).to(dtype), tmp_path).eval()
    pair = load_pair(recipient=base, donors={"sft": str(tmp_path)}, tokenizer=tokenizer)
    atol, rtol = (1e-3, 1e-4) if dtype == torch.float32 else (0.3, 0.1)
    got = grafted_logits(pair, PROMPTS, ["NONE", "ALL:all+ln_f+head"])
    torch.testing.assert_close(got[:, 0], alone(base, pair).to(got), atol=atol, rtol=rtol)
    torch.testing.assert_close(got[:, 1], alone(model, pair).to(got), atol=atol, rtol=rtol)


# ------------------------------------------------------------------------------- any other change


def steered(module: nn.Module, *inputs: Tensor, **options: Any) -> tuple[Tensor, None]:
    """Attention whose outputs are halved."""
    output, _ = sdpa_attention_forward(module, *inputs, **options)
    return output / 2, None


def test_what_is_no_weight_is_refused(folder: str, tokenizer: Any) -> None:
    """A model whose attention function was replaced answers otherwise than its weights do."""
    AttentionInterface.register("steered", steered)
    models = {}
    for part in ("recipient", "sft"):
        models[part] = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="steered")
    line = refused(recipient=folder, donors={"sft": models["sft"]}, tokenizer=tokenizer)
    assert "donor 'sft' does not answer as its weights do: logits differ by" in line
    line = refused(recipient=models["recipient"], donors={"sft": folder}, tokenizer=tokenizer)
    assert "recipient does not answer as its weights do" in line


def other_scaling(model: PreTrainedModel) -> str:
    model.model.layers[1].self_attn.scaling *= 2
    return "model.layers.1.self_attn.scaling: "


def other_activation(model: PreTrainedModel) -> str:
    model.model.layers[1].mlp.act_fn = nn.ReLU()
    return "model.layers.1.mlp.act_fn: "


def other_rotation(model: PreTrainedModel) -> str:
    model.model.rotary_emb.inv_freq.mul_(3)
    return "the numbers of model.rotary_emb.inv_freq"


class Doubled(LlamaForCausalLM):
    """A model whose logits are doubled."""

    def forward(self, *inputs: Any, **options: Any) -> Any:
        output = super().forward(*inputs, **options)
        output.logits = 2 * output.logits
        return output


def other_class(model: PreTrainedModel) -> str:
    model.__class__ = Doubled
    return "class: LlamaForCausalLM against Doubled"


@pytest.mark.parametrize("change", [other_scaling, other_activation, other_rotation, other_class])
def test_a_donor_of_another_forward_pass(
    folder: str, tokenizer: Any, change: Callable[[PreTrainedModel], str]
) -> None:
    """What no weight carries is named, and no family map is blamed."""
    before, after = base_of(folder), base_of(folder)
    said = change(after)
    line = refused(recipient=before, donors={"sft": after}, tokenizer=tokenizer)
    assert f"recipient and donor 'sft' differ in {said}" in line


def test_what_is_no_language_model(folder: str, tokenizer: Any) -> None:
    """One without a head, one whose head is no module of weights, and PEFT's of mixed adapters."""
    whole, wrapped = base_of(folder), base_of(folder)
    wrapped.lm_head = nn.Sequential(wrapped.lm_head, nn.Softplus())
    config = LoraConfig(r=4, target_modules=TARGETS)
    with quiet():
        mixed = PeftMixedModel(base_of(folder), config)
    for model in (whole.model, wrapped, mixed):
        line = refused(recipient=folder, donors={"sft": model}, tokenizer=tokenizer)
        assert f"is a {type(model).__name__}; expected a causal language model" in line


WRAPPED: Mapping[str, Callable[[nn.Module], Any]] = {
    "compiled": torch.compile,
    "of several devices": nn.DataParallel,
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("how", sorted(WRAPPED))
def test_models_inside_others(folder: str, tokenizer: Any, how: str) -> None:
    """The error names the attribute that holds the model, and that loads."""
    model = adapted(folder)
    outer = WRAPPED[how](model)
    line = refused(recipient=folder, donors={"sft": outer}, tokenizer=tokenizer)
    named = re.search(r"give the model inside it \(its \.(\w+)\)", line)
    assert named and getattr(outer, named[1]) is model
    line = refused(donors={"sft": outer}, tokenizer=tokenizer)
    assert "no recipient given: add recipient=PATH" in line
    with quiet():
        load_pair(donors={"sft": getattr(outer, named[1])}, tokenizer=tokenizer)


@pytest.mark.filterwarnings("ignore")
def test_a_model_that_torch_quantised(folder: str, tokenizer: Any) -> None:
    """Its weights are no tensors that a graft could take."""
    model = torch.ao.quantization.quantize_dynamic(base_of(folder), {nn.Linear}, torch.qint8)
    assert "donor 'sft' is quantised" in refused(
        recipient=folder, donors={"sft": model}, tokenizer=tokenizer
    )


def test_a_tokenizer_by_its_folder(folder: str) -> None:
    """It is asked for as the object that the error tells to load."""
    with pytest.raises(ModelError, match="tokenizer: expected a tokenizer, got str; load it"):
        read_pair(recipient=folder, donors={"sft": folder}, tokenizer="x")  # type: ignore[arg-type]


@pytest.mark.parametrize("part", ["recipient", "sft"])
def test_answers_that_are_not_finite(folder: str, tokenizer: Any, part: str) -> None:
    """The model is named, and the number that makes them."""
    models = {name: base_of(folder) for name in ("recipient", "sft")}
    models[part].model.norm.variance_epsilon = float("nan")
    line = refused(
        recipient=models["recipient"],
        donors={"sft": models["sft"]},
        tokenizer=tokenizer,
    )
    who = "recipient" if part == "recipient" else "donor 'sft'"
    assert f"{who} answers with logits that are not finite in float32" in line
    assert "since model.norm.variance_epsilon is nan" in line


# -------------------------------------------------------------------------------- changes to torch


def louder(module: nn.Module, _inputs: object, output: Any) -> Any:
    return 1.5 * output if isinstance(module, nn.Linear) else None


@contextmanager
def hooks_everywhere(kind: str) -> Iterator[None]:
    hook = louder if kind == "forward_hook" else (lambda *_: None)
    handle = getattr(torch_module, f"register_module_{kind}")(hook)
    try:
        yield
    finally:
        handle.remove()


TORCH: Mapping[str, tuple[Callable[[], Any], str]] = {
    **{
        kind: ((lambda kind=kind: hooks_everywhere(kind)), "torch has a hook at all modules (")
        for kind in (
            "forward_hook",
            "forward_pre_hook",
            "full_backward_hook",
            "full_backward_pre_hook",
        )
    },
    "autocast": (lambda: torch.autocast("cpu", torch.bfloat16), "torch.autocast is on"),
}


def test_what_changes_every_model_is_refused(tmp_path: Path) -> None:
    """At load, for logits, and before a record of a pair that was loaded without it."""
    pair = load_pair("tiny-gemma")
    options = {"dataset": "tiny_movies", "prompts": ["headline"], "limit": 3}
    acts = (
        lambda: load_pair("tiny-gemma"),
        lambda: grafted_logits(pair, PROMPTS, ["FE"]),
        lambda: evaluate(pair, output_dir=tmp_path, **options),
    )
    for (block, said), act in product(TORCH.values(), acts):
        with block(), pytest.raises(InputError) as caught:
            act()
        assert said in str(caught.value)
    assert not list(tmp_path.glob("*/record.json"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate(pair, output_dir=tmp_path, **options)


def test_hooks_on_a_loaded_pair(tmp_path: Path) -> None:
    """What is hooked to a pair's own models after it was loaded gets no record either."""
    pair = load_pair("tiny-gemma")
    options = {"dataset": "tiny_movies", "prompts": ["headline"], "limit": 3}
    handle = pair.donors["sft"].model.layers[1].mlp.down_proj.register_forward_hook(louder)
    with pytest.raises(
        InputError, match=r"of the pair has hooks .* at model\.layers\.1\.mlp\.down_proj,"
    ):
        evaluate(pair, output_dir=tmp_path, **options)
    handle.remove()
    evaluate(pair, output_dir=tmp_path, **options)
