"""What a loading error tells to do works: the pair then loads, and answers as what was given."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from adapters import quiet
from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import kgbench
from kgbench import load_pair
from kgbench.errors import InputError
from kgbench.testing import PICO_FAMILIES, pico_tokenizer

IDS = torch.tensor([[3, 4, 5, 6, 7, 8, 3]])
Options = dict[str, Any]


@dataclass(frozen=True)
class Place:
    """Where a case finds and leaves its models."""

    root: Path

    @property
    def before(self) -> Path:
        """The recipient's folder."""
        return self.root / "before"

    @property
    def after(self) -> Path:
        """The donor's folder."""
        return self.root / "after"

    @property
    def tokenizer(self) -> Any:
        """The recipient's tokenizer."""
        return AutoTokenizer.from_pretrained(self.before)

    def model(self, name: str, **options: Any) -> PreTrainedModel:
        """A model as its owner loads it."""
        return AutoModelForCausalLM.from_pretrained(self.root / name, **options).eval()

    def adapted(self, config: PeftConfig | None = None, **said: Any) -> PeftModel:
        """PEFT's model of the recipient with an adapter of random weights."""
        lora = {"r": 4, "target_modules": ["q_proj", "down_proj"], "task_type": "CAUSAL_LM", **said}
        torch.manual_seed(0)
        with quiet():
            model = get_peft_model(self.model("before"), config or LoraConfig(**lora)).eval()
        for weight in model.parameters():
            if weight.requires_grad:
                weight.data.add_(0.2 * torch.randn(weight.shape))
        return model

    def files(self, **options: Any) -> Options:
        """The pair of both folders."""
        return {"recipient": str(self.before), "donors": {"sft": str(self.after)}, **options}

    def beside(self, donor: Any, **options: Any) -> Options:
        """A pair of the recipient's folder and a donor."""
        return {"recipient": str(self.before), "donors": {"sft": donor}, **options}

    def held(self, donor: Any, **options: Any) -> Options:
        """A pair of a donor in memory."""
        return {"donors": {"sft": donor}, "tokenizer": self.tokenizer, **options}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """Two models of Gemma type with tied embeddings, and their tokenizer."""
    place = Place(tmp_path)
    for seed, folder in enumerate((place.before, place.after)):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(PICO_FAMILIES["gemma"](300, True))
        with torch.no_grad():
            for weight in model.parameters():
                weight.add_(0.2 * torch.randn(weight.shape))
        model.save_pretrained(folder)
        pico_tokenizer(bos=True).save_pretrained(folder)
    return place


def logits(model: nn.Module) -> Tensor:
    with torch.no_grad(), quiet():
        return model(input_ids=IDS).logits.float()


Tried = Iterator[Options | tuple[Options, Tensor]]
"""First what is refused; then each way on, with the answers that the donor is then to give, if it
is not to give those of `after`.
"""


def off(place: Place) -> Tried:
    model = place.adapted()
    on = logits(model)
    model.base_model.disable_adapter_layers()
    yield place.held(model)
    model.base_model.enable_adapter_layers()
    yield place.held(model), on


def merged(place: Place) -> Tried:
    model = place.adapted()
    on = logits(model)
    model.merge_adapter()
    yield place.held(model)
    model.unmerge_adapter()
    yield place.held(model), on


def changed_base(place: Place) -> Tried:
    model = place.adapted(bias="all")
    yield place.held(model)
    yield place.held(model, recipient=str(place.before)), logits(model)


def read_by_peft(place: Place, model: PeftModel) -> Tried:
    """The folder of an adapter, and PEFT's own model of it."""
    with quiet():
        model.save_pretrained(place.root / "adapter")
        again = PeftModel.from_pretrained(place.model("before"), place.root / "adapter").eval()
    yield place.beside(str(place.root / "adapter"))
    yield place.held(again), logits(model)


def another_kind(place: Place) -> Tried:
    factors = IA3Config(
        task_type="CAUSAL_LM", target_modules=["k_proj", "up_proj"], feedforward_modules=[]
    )
    yield from read_by_peft(place, place.adapted(factors))


def tied_embeddings(place: Place) -> Tried:
    yield from read_by_peft(
        place, place.adapted(target_modules=r".*(embed_tokens|layers\.\d+\.self_attn\.q_proj)")
    )


def single_tokens(place: Place) -> Tried:
    yield from read_by_peft(place, place.adapted(trainable_token_indices=[3, 5]))


def narrow_donor(place: Place) -> Tried:
    before, after = place.model("before"), place.model("after", dtype=torch.bfloat16)
    yield place.held(after, recipient=before)
    yield place.held(after.to(torch.float32), recipient=before), logits(after)


def another_type(place: Place) -> Tried:
    before, after = place.model("before"), place.model("after")
    yield place.held(after, recipient=before, dtype="bfloat16")
    yield place.held(after, recipient=before)
    before, after = before.to(torch.bfloat16), after.to(torch.bfloat16)
    yield place.held(after, recipient=before, dtype="bfloat16"), logits(after)


def rounded(place: Place) -> Tried:
    before = place.model("before", dtype=torch.bfloat16)
    said = {"recipient": before, "donors": {"sft": str(place.after)}, "tokenizer": place.tokenizer}
    yield said
    yield {**said, "dtype": "bfloat16"}, logits(place.model("after", dtype=torch.bfloat16))
    before.to(torch.float32)
    yield said


def fewer_tokens(place: Place) -> Tried:
    before = place.model("before")
    before.resize_token_embeddings(310, mean_resizing=False)
    before.save_pretrained(place.before)
    yield place.files()
    before.resize_token_embeddings(300)
    before.save_pretrained(place.before)
    yield place.files()


def other_tokenizer(place: Place) -> Tried:
    pico_tokenizer(bos=False).save_pretrained(place.after)
    yield place.files()
    for file in place.after.glob("token*"):
        file.unlink()
    yield place.files()


def in_training(place: Place) -> Tried:
    after = place.model("after")
    after.cache = after(input_ids=IDS).logits
    yield place.held(after, recipient=str(place.before))
    after.save_pretrained(place.root / "again")
    yield place.beside(str(place.root / "again"))


def pickled(place: Place) -> Tried:
    after = place.model("after")
    torch.save(after.state_dict(), place.after / "pytorch_model.bin")
    (place.after / "model.safetensors").unlink()
    yield place.files()
    AutoModelForCausalLM.from_pretrained(place.after).save_pretrained(place.after)
    yield place.files()


def pickled_adapter(place: Place) -> Tried:
    model, folder = place.adapted(), place.root / "adapter"
    with quiet():
        model.save_pretrained(folder)
    stored = folder / "adapter_model.safetensors"
    torch.save(load_file(stored), folder / "adapter_model.bin")
    stored.unlink()
    yield place.beside(str(folder))
    with quiet():
        PeftModel.from_pretrained(place.model("before"), folder).save_pretrained(folder)
    yield place.beside(str(folder)), logits(model)


def adapter_as_recipient(place: Place) -> Tried:
    model, folder = place.adapted(), place.root / "adapter"
    with quiet():
        model.save_pretrained(folder)
    yield {"recipient": str(folder), "donors": {"sft": str(place.after)}}
    yield place.beside(str(folder)), logits(model)
    one = place.root / "one"
    model.merge_and_unload().save_pretrained(one)
    place.tokenizer.save_pretrained(one)
    yield {"recipient": str(one), "donors": {"sft": str(place.after)}}


def adapter_and_model(place: Place) -> Tried:
    model, folder = place.adapted(), place.root / "adapter"
    with quiet():
        model.save_pretrained(folder)
    shutil.copy(place.after / "model.safetensors", folder)
    yield place.beside(str(folder))
    (folder / "model.safetensors").unlink()
    yield place.beside(str(folder)), logits(model)


def no_tokenizer(place: Place) -> Tried:
    before, after = place.model("before"), place.model("after")
    yield {"recipient": before, "donors": {"sft": after}}
    yield {"recipient": before, "donors": {"sft": after}, "tokenizer": place.tokenizer}


def hook_everywhere(place: Place) -> Tried:
    handle = torch_module.register_module_forward_hook(lambda *_: None)
    yield place.files()
    handle.remove()
    yield place.files()


def within_autocast(place: Place) -> Tried:
    with torch.autocast("cpu", torch.bfloat16):
        yield place.files()
    yield place.files()
    yield place.files(dtype="bfloat16"), logits(place.model("after", dtype=torch.bfloat16))


REMEDIES: Mapping[str, tuple[Callable[[Place], Tried], str]] = {
    "off": (off, "switch it on (PEFT: model.base_model.enable_adapter_layers(), "),
    "merged": (merged, "take it out first (model.unmerge_adapter())"),
    "a changed base": (changed_base, "give the model before training as the recipient"),
    "another kind": (another_kind, "(peft: PeftModel.from_pretrained(MODEL, FOLDER)), and give"),
    "tied embeddings": (tied_embeddings, "(peft: PeftModel.from_pretrained(MODEL, FOLDER))"),
    "single tokens": (single_tokens, "(peft: PeftModel.from_pretrained(MODEL, FOLDER))"),
    "a narrow donor": (narrow_donor, "bring both to one by model.to("),
    "another type": (another_type, "leave out dtype, or convert it (model.to(torch."),
    "rounded": (rounded, "convert it (model.to(torch."),
    "fewer tokens": (fewer_tokens, "(model.resize_token_embeddings("),
    "another tokenizer": (other_tokenizer, "take the tokenizer's files out of its folder"),
    "in training": (in_training, "save it (save_pretrained), and give its folder"),
    "pickled": (pickled, "save the model with save_pretrained"),
    "a pickled adapter": (pickled_adapter, "save the adapter with save_pretrained"),
    "an adapter as recipient": (
        adapter_as_recipient,
        "(the adapter is a donor), or both merged into one (peft: merge_and_unload, save_pretrained)",
    ),
    "an adapter and a model": (adapter_and_model, "or one without them"),
    "no tokenizer": (no_tokenizer, "add tokenizer="),
    "a hook everywhere": (hook_everywhere, "(its handle's remove())"),
    "autocast": (within_autocast, "leave its block, or say the type by dtype"),
}
UNTRIED = {
    "move it to one device (model.to(DEVICE))": "takes two devices",
    "(model.dequantize()": "takes a library of quantised weights",
    "model(input_ids=ids)": "names what is expected",
    "written by save_pretrained": "names what is expected",
    "neither ": "the same as without weights",
}
"""Parts of messages that name a call and are no case here, and why."""


@pytest.mark.parametrize("case", REMEDIES)
def test_what_an_error_tells_to_do_works(place: Place, case: str) -> None:
    """Each way on that the line names; the donor then answers as the caller's model does."""
    run, said = REMEDIES[case]
    tried = run(place)
    wanted = logits(place.model("after"))
    refused = next(tried)
    with quiet(), pytest.raises(InputError) as caught:
        load_pair(**refused)
    assert said in str(caught.value)
    for step in tried:
        options, own = step if isinstance(step, tuple) else (step, wanted)
        with quiet():
            got = logits(load_pair(**options).donors["sft"])
        torch.testing.assert_close(got, own, atol=2e-3 * float(own.abs().max()), rtol=1e-3)


def messages() -> Iterator[str]:
    """Literal text of what loading raises, each f-string without its values."""
    for name in ("lora", "in_memory", "loading", "checkpoints"):
        file = Path(kgbench.__file__).parent / "models" / f"{name}.py"
        nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
        within: set[ast.AST] = set()
        for node in nodes:
            if isinstance(node, ast.JoinedStr):
                within.update(node.values)
                yield "".join(str(p.value) for p in node.values if isinstance(p, ast.Constant))
            elif isinstance(node, ast.Constant) and node not in within:
                yield str(node.value)


def test_every_call_that_an_error_names_is_tried() -> None:
    """A call in a message is a way on, and each of these is a case above or has a reason."""
    known = [*(said for _, said in REMEDIES.values()), *UNTRIED]
    named = [text for text in messages() if re.search(r"\bmodel\.\w+\(|save_pretrained", text)]
    assert len(named) > 10
    for text in named:
        if " " in text and "\n" not in text:
            assert any(part in text for part in known), text
