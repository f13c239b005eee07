"""Model pairs: what fits together, what does not, and what is said then."""

from __future__ import annotations

import copy
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from few_plants import refusal
from safetensors.torch import load_file, save_file
from tiny import LAYERS, TINY, random_model, tiny_config
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, AutoTokenizer, PretrainedConfig

from kgbench import evaluate, grafted_logits
from kgbench.data import load_prompts
from kgbench.engine import load_pair
from kgbench.errors import ModelError, RegionError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.loading import MissingBosWarning
from kgbench.models.pair import prepare, weights_hash
from kgbench.testing import PICO_FAMILIES, pico_tokenizer

Folders = Mapping[str, Path]


def loaded(folders: Folders, **options: object):
    return load_pair(
        recipient=str(folders["recipient"]), donors={"sft": str(folders["sft"])}, **options
    )


@pytest.fixture
def copied(folders: Folders, tmp_path: Path) -> dict[str, Path]:
    """Copies of the checkpoints, to spoil."""
    return {
        name: Path(shutil.copytree(folder, tmp_path / name)) for name, folder in folders.items()
    }


def rewrite(file: Path, change: Callable[[dict], object]) -> None:
    """Change a JSON file."""
    data = json.loads(file.read_text("utf-8"))
    change(data)
    file.write_text(json.dumps(data), "utf-8")


def write_pair(folder: Path, *configs: PretrainedConfig, bos: bool = True) -> dict[str, Path]:
    """Random models of a recipient's and a donor's configuration, with tokenizers."""
    places = {"recipient": folder / "recipient", "sft": folder / "sft"}
    for seed, (place, config) in enumerate(zip(places.values(), configs, strict=True)):
        random_model(config, None, seed, torch.float32).save_pretrained(place)
        pico_tokenizer(bos=bos).save_pretrained(place)
    return places


# ---------------------------------------------------------------------------------------- what fits


def test_a_pair_from_directories(folders: Folders) -> None:
    """Models in eval mode, in float32, without gradients; origins name no place on the machine."""
    pair = loaded(folders)
    for model in (pair.recipient, pair.donors["sft"]):
        assert not model.training
        assert model.dtype == torch.float32
        assert not any(p.requires_grad for p in model.parameters())
    assert dict(pair.origins) == {"recipient": "local:recipient", "sft": "local:sft"}
    assert pair.name == "recipient"
    assert pair.n_layers == 3
    assert pair.donor("recipient") is pair.recipient
    assert pair.donor("sft") is pair.donors["sft"]


def test_embeddings_are_untied(folders: Folders) -> None:
    """A tied checkpoint comes out with a head of its own, of equal values, and answers as the
    checkpoint does.
    """
    pair = loaded(folders)
    for name, model in (("recipient", pair.recipient), ("sft", pair.donors["sft"])):
        head, embeddings = model.get_output_embeddings().weight, model.get_input_embeddings().weight
        assert head.data_ptr() != embeddings.data_ptr()
        assert torch.equal(head, embeddings)
        original = AutoModelForCausalLM.from_pretrained(folders[name])
        ids = torch.tensor([[5, 6, 7]])
        with torch.no_grad():
            assert torch.equal(model(input_ids=ids).logits, original(input_ids=ids).logits)


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("float64", torch.float64), ("bfloat16", torch.bfloat16), ("float16", torch.float16)],
)
def test_types(folders: Folders, name: str, dtype: torch.dtype) -> None:
    """Weights are of the type asked for, and the self-test at load knows how that type rounds."""
    pair = loaded(folders, dtype=name)
    assert pair.dtype == dtype
    prompts = load_prompts("fake_movies_fake_actors", ["headline"], limit=2)
    assert grafted_logits(pair, prompts, ["FE"]).isfinite().all()


def test_hashes_tell_weights_and_tokenizers_apart(folders: Folders) -> None:
    """Equal weights hash alike, a change of one number or of the type does not; places on disk do
    not matter.
    """
    pair, again = loaded(folders), loaded(folders)
    assert pair.weight_hashes == again.weight_hashes
    assert len(set(pair.weight_hashes.values())) == 2
    assert pair.tokenizer_hash == again.tokenizer_hash
    again.recipient.get_input_embeddings().weight[7, 3] += 1e-6
    assert weights_hash(again.recipient) != pair.weight_hashes["recipient"]
    assert loaded(folders, dtype="float64").weight_hashes["sft"] != pair.weight_hashes["sft"]


def test_encodings_are_computed_once(folders: Folders) -> None:
    """A prompt's tokens are kept; what a caller gets is a copy."""
    pair = loaded(folders)
    (prompt,) = load_prompts("fake_movies_fake_actors", ["headline"], limit=1)
    assert pair.encoded(prompt) is pair.encoded(prompt)
    pair.encode(prompt).clear()
    pair.regions(prompt)["LT"].clear()
    read = pair.encoded(prompt)
    assert pair.encode(prompt) == [*pair.encode(prompt.text), *read.ids[-read.blanks :]]
    assert pair.regions(prompt)["LT"] == [len(pair.encode(prompt)) - 1]


# ------------------------------------------------------------------------------------ what does not


def test_names(folders: Folders) -> None:
    """An unknown donor; a donor called recipient; no donor; nothing at all. See tests/golden too."""
    assert "Did you mean 'sft'" in refusal(UnknownNameError, lambda: loaded(folders).donor("sfft"))
    recipient = str(folders["recipient"])
    assert "reserved" in refusal(
        ModelError, lambda: load_pair(recipient=recipient, donors={"recipient": recipient})
    )
    assert 'donors={"sft": PATH}' in refusal(ModelError, lambda: load_pair(recipient=recipient))
    assert "no model given" in refusal(ModelError, load_pair)
    assert "no recipient given" in refusal(ModelError, lambda: load_pair(donors={"sft": recipient}))


@pytest.mark.parametrize(
    ("names", "change", "told"),
    [
        ("sft", {"n_embd": 48}, "differ in n_embd: 32 against 48"),
        ("sft", {"model_type": "llama"}, "differ in model_type: gpt2 against llama"),
        ("sft", {"n_positions": "many"}, "does not load"),
        ("recipient sft", {"n_layer": 2}, "weights are taken by no module"),
        ("recipient sft", {"n_layer": 4}, "weights are missing"),
        (
            "recipient sft",
            {"n_inner": 64},
            "weights have another shape, such as 'transformer.h.0.mlp.c_fc.bias'",
        ),
    ],
)
def test_configurations_that_do_not_fit(
    copied: Folders, names: str, change: dict[str, object], told: str
) -> None:
    """The line names what differs between recipient and donor, with both values, or between
    configuration and weights, in place of the library's report.
    """
    for name in names.split():
        rewrite(copied[name] / "config.json", lambda config: config.update(change))
    said = refusal(ModelError, lambda: loaded(copied))
    assert told in said and "report" not in said


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "relu"),
    ],
)
def test_another_forward(copied: Folders, key: str, value: object) -> None:
    """A donor that computes something else with weights of equal shapes is refused; one that leaves
    out what is the default is not.
    """
    rewrite(copied["sft"] / "config.json", lambda config: config.pop(key))
    loaded(copied)
    rewrite(copied["sft"] / "config.json", lambda config: config.update({key: value}))
    said = refusal(ModelError, lambda: loaded(copied))
    assert f"recipient and donor 'sft' differ in {key}: " in said
    assert f"against {value};" in said


@pytest.mark.parametrize(
    ("family", "variant", "changes"),
    [
        ("mistral", "windows", {"sliding_window": 7}),
        ("llama", "grouped", {"rope_parameters": {"rope_type": "default", "rope_theta": 77.0}}),
    ],
)
def test_other_windows_bases_caps_and_multipliers(
    tmp_path: Path, family: str, variant: str, changes: dict[str, Any]
) -> None:
    """The same for what only the recipient's forward pass would use."""
    places = write_pair(
        tmp_path, tiny_config(family, variant), tiny_config(family, variant, **changes)
    )
    (key,) = changes
    assert f"differ in {key}: " in refusal(ModelError, lambda: loaded(places))
    places["sft"] = shutil.copytree(places["recipient"], tmp_path / "again")
    assert loaded(places).n_layers == LAYERS


@pytest.mark.sampled(3)
@pytest.mark.parametrize("asked", ["someone/kernel", "eager", "flash_attention_2", "paged|eager"])
@pytest.mark.parametrize("key", ["_attn_implementation", "attn_implementation"])
def test_a_checkpoint_does_not_choose_the_attention_backend(
    copied: Folders, key: str, asked: str
) -> None:
    """Whatever the configurations of recipient and donors ask for, all get the same, which is no
    code from outside.
    """
    for spoiled in (["sft"], ["recipient", "sft"]):
        for name in spoiled:
            rewrite(copied[name] / "config.json", lambda config: config.update({key: asked}))
        for attention, wanted in (("auto", "sdpa"), ("eager", "eager")):
            pair = loaded(copied, attention=attention)
            assert {
                m.config._attn_implementation for m in (pair.recipient, pair.donors["sft"])
            } == {wanted}
    assert "unknown attention backend 'someone/kernel'" in refusal(
        UnknownNameError, lambda: loaded(copied, attention="someone/kernel")
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", TINY)
def test_the_attention_backend_of_each_family(tmp_path: Path, family: str) -> None:
    """Where nobody says, sdpa, and eager where the model cannot be computed by it."""
    places = write_pair(tmp_path, *[tiny_config(family, next(iter(TINY[family])))] * 2)
    pair = loaded(places)
    library = AutoModelForCausalLM.from_pretrained(places["recipient"]).config._attn_implementation
    found = {m.config._attn_implementation for m in (pair.recipient, pair.donors["sft"])}
    assert found == {"eager" if family == "gemma2" else "sdpa"} == {library}


def test_unsupported_model_type(copied: Folders) -> None:
    """A model type without a map: the error says which there are and how to add one."""
    for folder in copied.values():
        rewrite(folder / "config.json", lambda config: config.update(model_type="mamba"))
    said = refusal(ModelError, lambda: loaded(copied))
    assert "'mamba' has no family map" in said
    assert "kgbench/models/families/mamba.json" in said
    assert all(family in said for family in PICO_FAMILIES)


def test_another_tokenizer(copied: Folders) -> None:
    """Donors with another vocabulary, or that splits or frames texts in another way, are refused; a
    donor without one is not.
    """
    pico_tokenizer(bos=True).save_pretrained(copied["sft"])
    assert "'sft' have different tokenizers" in refusal(ModelError, lambda: loaded(copied))
    tokenizer = copied["sft"] / "tokenizer.json"
    for change in (_swap_two_words, lambda data: data["model"]["merges"].reverse()):
        shutil.copy(copied["recipient"] / "tokenizer.json", tokenizer)
        rewrite(tokenizer, change)
        Tokenizer.from_file(str(tokenizer))
        assert "'sft' have different tokenizers" in refusal(ModelError, lambda: loaded(copied))
    tokenizer.unlink()
    assert loaded(copied).tokenizer.is_fast


def with_tokens(folder: Path, tokens: list[str], rows: int, special: bool = True) -> None:
    """Add tokens to a checkpoint's tokenizer, and rows for them to its embeddings."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(tokens, special_tokens=special)
    tokenizer.save_pretrained(folder)
    if rows:
        model = AutoModelForCausalLM.from_pretrained(folder)
        model.resize_token_embeddings(model.config.vocab_size + rows, mean_resizing=False)
        model.save_pretrained(folder)


@pytest.mark.parametrize("rows", [0, 2])
def test_a_donor_with_added_tokens(copied: Folders, tmp_path: Path, rows: int) -> None:
    """It answers as it does by itself, over the recipient's tokens; what is left out is said."""
    plain = loaded(copied)
    with_tokens(copied["sft"], ["<|a|>", "<|b|>"], rows)
    pair = loaded(copied)
    assert pair.tokenizer_hash == plain.tokenizer_hash
    assert dict(pair.weight_hashes) == dict(plain.weight_hashes)
    said = "2 tokens of donor 'sft' beyond the recipient's 300 are left out"
    assert list(pair.notes.values()) == [said] * (rows > 0)
    after = AutoModelForCausalLM.from_pretrained(copied["sft"])
    (prompt,) = load_prompts("tiny_movies", ["headline"], limit=1)
    with torch.no_grad():
        own = after(input_ids=torch.tensor([pair.encode(prompt)])).logits[0, -1, :300]
    got = grafted_logits(pair, [prompt], ["ALL:all+ln_f+head"])[0, 0]
    torch.testing.assert_close(got, own, atol=1e-4, rtol=1e-4)
    run = evaluate(
        recipient=str(copied["recipient"]),
        donors={"sft": str(copied["sft"])},
        dataset="tiny_movies",
        prompts=["headline"],
        limit=3,
        output_dir=tmp_path / "out",
    )
    assert (said in str(run)) == (rows > 0)


def test_a_donor_in_memory_with_added_tokens(copied: Folders) -> None:
    """The same of a model in memory, and of rows that an adapter stores."""
    plain = loaded(copied)
    with_tokens(copied["sft"], ["<|a|>"], 1)
    after = AutoModelForCausalLM.from_pretrained(copied["sft"])
    pair = load_pair(
        recipient=str(copied["recipient"]), donors={"sft": after}, tokenizer=plain.tokenizer
    )
    assert pair.weight_hashes == plain.weight_hashes
    assert len(pair.notes) == 1 and len(after.get_input_embeddings().weight) == 301


def test_tokens_that_a_prompt_holds(copied: Folders) -> None:
    """A prompt that the donor would read in other tokens than the recipient is refused."""
    (prompt,) = load_prompts("tiny_movies", ["headline"], limit=1)
    word = prompt.text.split()[-1]
    with_tokens(copied["sft"], [word], 0, special=False)
    pair = loaded(copied)
    said = refusal(RegionError, lambda: grafted_logits(pair, [prompt], ["FE"]))
    assert f"holds {word!r}, a token that was added to a donor" in said


@pytest.mark.parametrize(
    ("bos", "kind", "warned"),
    [("<bos>", "gemma", True), ("<s>", "llama", True), ("<|start|>", "llama", False)],
)
def test_a_tokenizer_that_lost_its_bos(tmp_path: Path, bos: str, kind: str, warned: bool) -> None:
    """A warning where the models were surely trained with one; none where it is added."""
    for added in (False, True):
        places = write_pair(tmp_path, *[tiny_config(kind, next(iter(TINY[kind])))] * 2, bos=added)
        for file in tmp_path.glob("*/tokenizer*.json"):
            file.write_text(file.read_text("utf-8").replace("<bos>", bos), "utf-8")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", MissingBosWarning)
            loaded(places)
        assert any(MissingBosWarning is w.category for w in said) == (warned and not added)


@pytest.mark.parametrize("key", ["return_dict", "output_hidden_states", "output_attentions"])
def test_settings_of_what_is_returned(copied: Folders, key: str) -> None:
    """A configuration that asks for other outputs asks for the same answers."""
    plain = loaded(copied).weight_hashes
    for folder in copied.values():
        rewrite(folder / "config.json", lambda data: data.update({key: key != "return_dict"}))
    assert loaded(copied).weight_hashes == plain


def _swap_two_words(data: dict) -> None:
    words = data["model"]["vocab"]
    words["a"], words["b"] = words["b"], words["a"]


def test_no_tokenizer(copied: Folders) -> None:
    """A recipient without a tokenizer is refused in one line."""
    for file in copied["recipient"].glob("*token*"):
        file.unlink()
    assert "local:recipient holds no tokenizer" in refusal(ModelError, lambda: loaded(copied))


def with_numbers(tensor: torch.Tensor, *numbers: float) -> torch.Tensor:
    """Its first numbers replaced."""
    changed = tensor.clone()
    changed.view(-1)[: len(numbers)] = torch.tensor(numbers)
    return changed


SPOILT: dict[str, tuple[str, Callable[[torch.Tensor], torch.Tensor], str]] = {
    "shape": ("mlp.c_fc.weight", lambda tensor: tensor[:-1].contiguous(), "another shape"),
    "integers": (
        "mlp.c_fc.weight",
        lambda tensor: tensor.to(torch.int8),
        "is of type I8; expected weights of a float type",
    ),
    # In keys, which attention may not pass on.
    "not finite": (
        "attn.c_attn.bias",
        lambda tensor: with_numbers(tensor, float("nan"), float("inf"), float("nan")),
        "holds 3 numbers of 96 that are not finite in float16 (2 NaN, 1 infinite",
    ),
    "too large": (
        "mlp.c_fc.weight",
        lambda tensor: with_numbers(tensor, 1e30),
        "(0 NaN, 1 infinite; the largest of the type is 6.55e+04)",
    ),
}
"""Tensors of a layer, what is stored in their place, and what is said in float16."""


@pytest.mark.parametrize("fault", SPOILT)
def test_spoilt_weights(copied: Folders, fault: str) -> None:
    """Weights of another shape, integers and what is not finite in the type asked for are refused
    by the tensor's name, not filled with random numbers.
    """
    part, spoil, told = SPOILT[fault]
    file, name = copied["sft"] / "model.safetensors", f"transformer.h.1.{part}"
    tensors = load_file(file)
    save_file(tensors | {name: spoil(tensors[name])}, file, {"format": "pt"})
    said = refusal(ModelError, lambda: loaded(copied, dtype="float16"))
    assert told in said and name in said and "local:sft does not load: " in said


def test_broken_weights(copied: Folders) -> None:
    """A file that lacks a tensor, or is cut off, does not load."""
    file = copied["sft"] / "model.safetensors"
    tensors = load_file(file)
    tensors.pop("transformer.h.1.mlp.c_fc.weight")
    save_file(tensors, file, {"format": "pt"})
    assert "local:sft does not load" in refusal(ModelError, lambda: loaded(copied))
    del tensors  # mapped from the file that is cut off
    file.write_bytes(file.read_bytes()[:1000])
    assert "local:sft does not load" in refusal(ModelError, lambda: loaded(copied))


def test_weights_that_no_module_takes(copied: Folders) -> None:
    """Weights of further modules are refused by name; buffers of earlier versions of the library,
    and tied copies, are not.
    """
    file = copied["sft"] / "model.safetensors"
    tensors = load_file(file)
    embeddings = next(tensor for name, tensor in tensors.items() if name.endswith("wte.weight"))
    old = {
        "transformer.h.0.attn.bias": torch.ones(1, 1, 8, 8, dtype=torch.uint8),
        "transformer.h.0.attn.masked_bias": torch.tensor(-1e4),
        "lm_head.weight": embeddings.clone(),
    }
    before = loaded(copied).weight_hashes
    save_file(tensors | old, file, {"format": "pt"})
    assert loaded(copied).weight_hashes == before
    save_file(
        tensors | {"transformer.h.0.adapter.weight": embeddings.clone()}, file, {"format": "pt"}
    )
    said = refusal(ModelError, lambda: loaded(copied))
    assert (
        "local:sft does not load: 1 weights are taken by no module, such as"
        " 'transformer.h.0.adapter.weight'" in said
    )


@pytest.mark.parametrize(
    "named",
    ["weights.bin", "../sft/model-1.safetensors", "sub/model-1.safetensors", "nothing.safetensors"],
)
def test_an_index_that_names_other_files(copied: Folders, named: str) -> None:
    """Only safetensors files in the folder itself are read."""
    folder = copied["sft"]
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").rename(folder / "model-1.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(
        json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, "model-1.safetensors")})
    )
    loaded(copied)
    index.write_text(json.dumps({"metadata": {}, "weight_map": dict.fromkeys(tensors, named)}))
    assert f"model.safetensors.index.json names {named!r}" in refusal(
        ModelError, lambda: loaded(copied)
    )


def test_shards_that_are_not_what_the_index_says(copied: Folders) -> None:
    """A tensor in two files is refused."""
    folder = copied["sft"]
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first, second = dict(list(tensors.items())[::2]), dict(list(tensors.items())[1::2])
    index, name = folder / "model.safetensors.index.json", next(iter(first))
    places = {**dict.fromkeys(first, "a.safetensors"), **dict.fromkeys(second, "b.safetensors")}

    def write(more: dict[str, torch.Tensor], named: dict[str, str]) -> None:
        save_file(first, folder / "a.safetensors", {"format": "pt"})
        save_file({**second, **more}, folder / "b.safetensors", {"format": "pt"})
        index.write_text(json.dumps({"metadata": {}, "weight_map": named}))

    write({}, places)
    loaded(copied)
    write({name: first[name] + 1}, places)
    said = refusal(ModelError, lambda: loaded(copied))
    assert f"b.safetensors and another of its files hold {name!r}" in said


def test_files_that_change_after_loading(copied: Folders) -> None:
    """What is held stays as it was read, also where the file was mapped and is cut off."""
    pair = loaded(copied)
    hashes, file = dict(pair.weight_hashes), copied["sft"] / "model.safetensors"
    with file.open("r+b") as opened:
        opened.truncate(1000)
    assert pair.changed() == ()
    assert dict(pair.weight_hashes) == hashes


@pytest.mark.parametrize("place", ["ALL:attn@0", "ALL:ffn@0-1"])
def test_a_plant_elsewhere_than_its_card_says(tmp_path: Path, place: str) -> None:
    """A card that names another place than the changed weights, or one that holds more than that,
    is not believed.
    """
    source = catalog.zoo_path(catalog.entry("tiny-gemma.one-0").donors["sft"])
    assert source is not None
    folder = Path(shutil.copytree(source, tmp_path / "plant"))
    load_pair(str(folder))
    rewrite(folder / "card.json", lambda card: card.update(plant=place, decoy=None))
    said = refusal(ModelError, lambda: load_pair(str(folder)))
    assert (
        f"its card says that it was planted at {place}, and its weights differ from the"
        " recipient's at" in said
    )


@pytest.mark.parametrize("name", ["config.json", "card.json"])
def test_files_nested_without_end(copied: Folders, tmp_path: Path, name: str) -> None:
    """JSON of 100,000 levels is refused in a line."""
    folder = copied["sft"]
    if name == "card.json":
        folder = tmp_path / "plant"
        folder.mkdir()
        (folder / "delta.safetensors").write_bytes(b"")
    (folder / name).write_text('{"a":' * 100_000 + "1" + "}" * 100_000, "utf-8")
    act = {"config.json": lambda: loaded(copied), "card.json": lambda: load_pair(str(folder))}[name]
    assert name in refusal(ModelError, act)


def test_preparing_a_model_leaves_it_as_it_was() -> None:
    """A tied model in training, given by its owner, keeps its tie, its mode, its gradients and its
    configuration, and takes no memory.
    """
    config = PICO_FAMILIES["gemma"](300, True)
    model = AutoModelForCausalLM.from_config(config).train()
    before, said = (
        {name: (id(p), p.clone()) for name, p in model.named_parameters()},
        copy.deepcopy(vars(model.config)),
    )
    ready = prepare(model)
    assert vars(model.config) == said and model.config.tie_word_embeddings
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    assert all(
        id(p) == before[name][0] and torch.equal(p, before[name][1])
        for name, p in model.named_parameters()
    )
    assert not ready.training and not any(p.requires_grad for p in ready.parameters())
    heads = ready.get_output_embeddings().weight, ready.get_input_embeddings().weight
    assert (
        heads[0].data_ptr() != heads[1].data_ptr() == model.get_input_embeddings().weight.data_ptr()
    )


def test_a_configuration_is_part_of_the_hash(copied: Folders) -> None:
    """Two models with equal weights and another norm's epsilon answer differently, so their hashes
    differ.
    """
    before = loaded(copied).weight_hashes
    rewrite(copied["sft"] / "config.json", lambda data: data.update(layer_norm_epsilon=1e-3))
    after = loaded(copied).weight_hashes
    assert before["recipient"] == after["recipient"]
    assert before["sft"] != after["sft"]


def stored_as(folder: Path, dtype: torch.dtype) -> None:
    """Store a checkpoint's weights in another type."""
    file = folder / "model.safetensors"
    save_file({n: t.to(dtype) for n, t in load_file(file).items()}, file, {"format": "pt"})
    rewrite(folder / "config.json", lambda data: data.update(dtype=str(dtype)[6:]))


@pytest.mark.parametrize(
    ("recipient", "donor", "held"),
    [
        (torch.float32, torch.float16, torch.float32),
        (torch.bfloat16, torch.float32, torch.float32),
        (torch.bfloat16, torch.float16, torch.float32),
        (torch.float16, torch.float16, torch.float16),
    ],
)
def test_weights_are_held_in_the_widest_type(
    copied: Folders, recipient: torch.dtype, donor: torch.dtype, held: torch.dtype
) -> None:
    """Where no type is asked for, none of what a checkpoint stores is rounded."""
    stored_as(copied["recipient"], recipient)
    stored_as(copied["sft"], donor)
    pair = loaded(copied, dtype="auto")
    assert pair.dtype == held
    stored = load_file(copied["sft"] / "model.safetensors")
    for name, weight in pair.donors["sft"].named_parameters():
        assert weight.dtype == held
        if name in stored:
            assert torch.equal(weight, stored[name].to(held))


def test_equal_texts_with_other_marks(folders: Folders) -> None:
    """Two prompts that share name, fact and text but not the marked words have encodings of their
    own.
    """
    pair = loaded(folders)
    (prompt,) = load_prompts("tiny_movies", ["headline"], limit=1)
    other = replace(prompt, spans={"FE": prompt.spans["FE"], "M": prompt.spans["R"]})
    assert "R" in pair.regions(prompt)
    assert pair.regions(other)["M"] == pair.regions(prompt)["R"]
    assert "R" not in pair.regions(other)
