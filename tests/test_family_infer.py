"""`kgbench family infer`: maps proposed from what modules do, tried on random models, and read from
a checkpoint's folder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import torch
from few_plants import refusal
from nightly import nightly
from tiny import TINY, random_model, tiny, tiny_config, tiny_pair
from torch import nn
from transformers import AutoConfig

from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.engine.selftest import verify_pair
from kgbench.errors import KgbenchError, LawError, ModelError
from kgbench.models import family_map as families
from kgbench.models.checkpoints import locate
from kgbench.models.family_map import FAMILY_FILE, Family, load_family, read_family, written
from kgbench.models.infer_family import infer_family, reduced_config
from kgbench.models.infer_family import random_model as reduced_model
from kgbench.models.pair import ModelPair, prepare
from kgbench.runner.training import model_setup
from kgbench.runner.training.hit_rates import model_hits
from kgbench.runner.training.recipes import finetuning_recipe
from kgbench.testing import pico_tokenizer
from kgbench.testing.pico import COVERED, Proposal, propose, try_map

BEHIND = ("opt", "projections, norms behind")
"""Norms that stand behind what is added are known by what they stand before: the same modules under
each other's names.
"""


def plain(family: Family) -> Family:
    """A map without what it says of other models of the type."""
    parts = (
        {c: replace(p, optional=False) for c, p in places.items()}
        for places in (family.outside, family.inside)
    )
    return replace(family, **dict(zip(("outside", "inside"), parts, strict=True)))


@tiny
def test_the_maps_that_are_shipped_are_found(family: str, variant: str) -> None:
    """From the configuration alone, never from the shipped map, each variant's own map."""
    model = reduced_model(reduced_config(tiny_config(family, variant).to_dict()), 0)
    found, shipped = infer_family(model), plain(load_family(family).fitted(model))
    if (family, variant) == BEHIND:
        inside = shipped.inside
        shipped = replace(
            shipped, inside={**inside, "ln_1": inside["ln_2"], "ln_2": inside["ln_1"]}
        )
    assert found == shipped


@cache
def proposal(family: str, variant: str) -> Proposal:
    return propose(tiny_config(family, variant).to_dict())


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("family", "variant"),
    [BEHIND, ("gemma3_text", "two bases, windows"), ("phi3", "grouped, windows")],
)
def test_what_is_found_holds(family: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All laws of the self-test hold of it, and the packed executor can be used; no map that is
    shipped is looked at.
    """
    monkeypatch.setattr(families, "family_names", lambda: ())
    found = proposal(family, variant)
    assert found.holds and found.packed is None, found


@pytest.mark.parametrize(
    "model_type",
    nightly(
        ["cohere", "codegen", "falcon", "glm4", "persimmon", "bloom", "apertus"],
        {"bloom", "apertus"},
    ),
)
def test_architectures_without_a_map(model_type: str) -> None:
    """Models whose modules are arranged otherwise: what is proposed holds, or it is said what does
    not.
    """
    assert model_type not in families.family_names()
    found = propose(AutoConfig.for_model(model_type).to_dict())
    assert found.holds == (model_type != "apertus"), found
    assert (found.packed is None) == (model_type not in ("bloom", "apertus")), (
        "positions in the attention of Bloom are those in the row"
    )
    if model_type == "apertus":
        assert "act_fn.alpha" in (found.laws[COVERED] or ""), "weights of an activation function"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("model_type", ["bamba", "falcon_h1", "mamba2", "llama4_text", "mixtral"])
def test_layers_that_hold_something_else(model_type: str) -> None:
    """Of layers with experts or convolutions the reason is that they have them, also where the
    library takes no small configuration of the type.
    """
    with pytest.raises(ModelError, match="weights of three dimensions, such as experts or conv"):
        propose(AutoConfig.for_model(model_type, num_hidden_layers=2).to_dict())


@pytest.mark.sampled(1)
@pytest.mark.parametrize("heads", [8, 4, 16])
def test_blocks_that_are_no_heads(heads: int) -> None:
    """CodeGen's fused projection holds queries, values and keys in four blocks, whatever its number
    of heads.
    """
    config = AutoConfig.for_model("codegen", n_head=heads, n_embd=8 * heads, rotary_dim=4)
    found = propose(config.to_dict())
    assert found.holds
    blocks = torch.arange(24 * heads).reshape(4, 3, -1)
    for part, role in enumerate("qvk"):
        assert (
            found.family.place(role).columns(24 * heads, config).equal(blocks[:, part].flatten())
        ), role


def test_a_map_that_holds_for_one_number_of_heads() -> None:
    """Where blocks are taken for heads, the law of the roles finds it in models with another number
    of heads, at load too.
    """
    config = AutoConfig.for_model("codegen", n_head=8, n_embd=64, rotary_dim=4)
    family = propose(config.to_dict()).family
    per_head = {role: replace(family.inside[role], per="num_attention_heads") for role in "qkv"}
    recipient, donor = (
        prepare(reduced_model(reduced_config(config.to_dict()), seed)) for seed in (0, 1)
    )
    wrong = replace(family, inside={**family.inside, **per_head})
    with pytest.raises(LawError, match=r"'[qkv]' at 'attn.qkv_proj' holds"):
        verify_pair(
            ModelPair("codegen", recipient, {"sft": donor}, pico_tokenizer(bos=False), wrong)
        )


def test_columns_that_no_map_can_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of columns whose places follow from no number of the model it is said, in a small model with
    another number of heads, that they do not hold.
    """
    from transformers.models.codegen import modeling_codegen

    plain_forward = modeling_codegen.CodeGenAttention.forward

    def by_embedding(self: nn.Module, hidden_states: torch.Tensor, **options: object) -> object:
        """Blocks as many as a fourth of the heads."""
        blocks, projection = self.num_attention_heads // 4, self.qkv_proj
        self.__dict__["qkv_proj"] = lambda x: (
            projection(x).unflatten(-1, (blocks, 3, 4, -1)).transpose(-2, -4).flatten(-4)
        )
        try:
            return plain_forward(self, hidden_states, **options)
        finally:
            del self.__dict__["qkv_proj"]

    monkeypatch.setattr(modeling_codegen.CodeGenAttention, "forward", by_embedding)
    proposal = propose(AutoConfig.for_model("codegen").to_dict())
    assert not proposal.holds
    assert "'attn.qkv_proj' holds" in " ".join(filter(None, proposal.laws.values()))


@pytest.mark.parametrize("component", ["q", "gate", "ln_2"])
def test_what_does_not_hold_is_named(component: str) -> None:
    """A component that is missing leaves weights that nothing grafts; the law that fails and the
    weights are named.
    """
    pair = tiny_pair("qwen3")
    lacking = {c: p for c, p in pair.family.inside.items() if c != component}
    found = try_map(
        ModelPair(
            pair.name,
            pair.recipient,
            pair.donors,
            pair.tokenizer,
            replace(pair.family, inside=lacking),
        )
    )
    assert not found.holds
    assert pair.family.inside[component].module in (found.laws[COVERED] or "")
    assert "is not the donor" in (
        found.laws["grafting everything is the donor, grafting nothing the recipient"] or ""
    )


@pytest.mark.parametrize("family", TINY)
def test_maps_are_written_as_they_are_read(family: str) -> None:
    """A map that is written and read is the same map."""
    shipped = load_family(family)
    assert read_family(json.dumps(written(shipped)), "here") == shipped


# ------------------------------------------------------------------------- in a checkpoint's folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two checkpoints of one architecture, `a` and `b`."""
    config = tiny_config("qwen3", "windows")
    for seed, name in enumerate("ab"):
        random_model(config, None, seed, torch.float32).save_pretrained(tmp_path / name)
        pico_tokenizer(bos=False).save_pretrained(tmp_path / name)
    return tmp_path


def loaded(folder: Path) -> ModelPair:
    return load_pair(recipient=str(folder / "a"), donors={"sft": str(folder / "b")})


def test_a_map_in_the_folder_is_used(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the command prints, saved beside the weights, is the map, though the package has none."""
    shipped = load_family("qwen3")
    monkeypatch.setattr(families, "family_names", lambda: ("gpt2",))
    families.load_family.cache_clear()
    with pytest.raises(ModelError, match=r"'qwen3' has no family map.*kgbench family infer DIR"):
        loaded(folder)
    assert main(["family", "infer", str(folder / "a")]) == 0
    said = capsys.readouterr()
    assert all(
        line.startswith(("holds: ", "models of this type run all"))
        for line in said.err.splitlines()
    ), said.err
    (folder / "a" / FAMILY_FILE).write_text(said.out)
    assert loaded(folder).family == shipped


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ("{", "does not read"),
        ({"inside": {"q": 3}}, r"inside\.q"),
        ({"layers": None}, "layers"),
        ({"inside": {"o": {"module": "self_attn.o_proj", "parts": 3}}}, r"inside\.o\.parts"),
        ({"inside": {}}, "lacks the component 'o'"),
        ({"model_type": "llama"}, "is of 'llama', the checkpoint of 'qwen3'"),
        ({"more": 1}, "more"),
    ],
)
def test_a_map_that_does_not_read(folder: Path, change: dict[str, object] | str, told: str) -> None:
    """It is said which file is wrong, and where."""
    text = change if isinstance(change, str) else json.dumps(written(load_family("qwen3")) | change)
    (folder / "a" / FAMILY_FILE).write_text(text)
    with pytest.raises(ModelError, match=rf"local:a/{FAMILY_FILE}.*{told}"):
        loaded(folder)


Q = "self_attn.q_proj"

FAULTS: Mapping[str, tuple[Mapping[str, object], str]] = {
    "no such layers": ({"layers": "model.nothing"}, "has no module 'model.nothing'"),
    "layers that are none": (
        {"layers": "model.embed_tokens"},
        "'model.embed_tokens' is no list of layers, but Embedding",
    ),
    "no path of layers": ({"layers": ""}, "layers: String should have at least 1"),
    "no such attention": ({"attention": "attn"}, "has no module 'model.layers.0.attn'"),
    "no such MLP": ({"mlp": "ffn"}, "has no module 'model.layers.0.ffn'"),
    "no part": ({"q": {"module": Q, "of": 0}}, "inside.q.of"),
    "very many parts": ({"q": {"module": Q, "of": 10**12}}, "inside.q.of"),
    "a part beyond": ({"q": {"module": Q, "of": 2, "part": 2}}, "do not partition its output"),
    "a part before": (
        {"q": {"module": Q, "of": 2, "part": -1}},
        "inside.q.part: Input should be greater than or equal to 0",
    ),
    "parts that do not divide": ({"q": {"module": Q, "of": 7}}, "do not partition its output"),
    "an unknown share": (
        {"q": {"module": Q, "of": ["num_attention_heads", "n"], "part": 1}},
        "has no positive number 'n'",
    ),
    "a share that is true": (
        {"q": {"module": Q, "of": ["use_cache"]}},
        "has no positive number 'use_cache'",
    ),
    "unknown blocks": ({"q": {"module": Q, "of": 2, "per": "n"}}, "has no positive number 'n'"),
    "parts of a norm": ({"ln_1": {"module": "input_layernorm", "of": 2}}, "parts are none"),
    "no tokens": ({"q": {"module": Q, "tokens": 0}}, "inside.q.tokens: Input should be greater"),
    "another input": ({"q": {"module": Q, "input": "x"}}, "KeyError: 'x'"),
    "a further path of another": ({"q": {"module": Q, "also": ["self_attn.k_norm"]}}, "be tried"),
    "no such module": ({"q": "self_attn.q"}, "has no module 'model.layers.0.self_attn.q'"),
    "many modules": ({"q": "self_attn"}, "it is no projection, being of type Qwen3Attention"),
    "a module without weights": ({"up": "mlp.act_fn"}, "it is no projection, being of type SiLU"),
}


def faulty(changes: Mapping[str, object]) -> str:
    """The map of a type with some of it changed, at whatever depth."""
    whole = written(load_family("qwen3"))
    whole["inside"] |= {name: value for name, value in changes.items() if name in whole["inside"]}
    return json.dumps(
        whole | {name: value for name, value in changes.items() if name not in whole["inside"]}
    )


@pytest.mark.sampled(7)
@pytest.mark.parametrize("case", FAULTS)
def test_a_map_with_a_fault(folder: Path, case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong in a folder's map is an error of one line that names the map."""
    changes, told = FAULTS[case]
    (folder / "a" / FAMILY_FILE).write_text(faulty(changes))
    monkeypatch.setattr(families, "family_names", lambda: ("gpt2",))
    line = refusal(KgbenchError, lambda: loaded(folder))
    assert line.startswith("the family map ") and told in line, line


@pytest.mark.parametrize(("one", "other"), [("q", "k"), ("gate", "up")])
def test_no_map_in_the_place_of_a_shipped_one(folder: Path, one: str, other: str) -> None:
    """A map of a known type is the package's, or refused; modules that are exchanged would change
    answers that no law notices.
    """
    before, inside = loaded(folder), written(load_family("qwen3"))["inside"]
    own = folder / "a" / FAMILY_FILE
    own.write_text(json.dumps(written(load_family("qwen3"))))
    same = loaded(folder)
    assert (same.family, same.weight_hashes) == (before.family, before.weight_hashes)
    own.write_text(faulty({one: inside[other], other: inside[one]}))
    assert f"local:a/{FAMILY_FILE} differs from the one that kgbench has for 'qwen3'" in refusal(
        ModelError, lambda: loaded(folder)
    )


def test_a_map_from_a_folder_is_hashed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs under different maps have different hashes, and under the same the same, however it is
    written.
    """
    shipped = loaded(folder).weight_hashes
    whole, own = written(load_family("qwen3")), folder / "a" / FAMILY_FILE
    monkeypatch.setattr(families, "family_names", lambda: ("gpt2",))
    found = []
    for text in (
        json.dumps(whole),
        json.dumps(whole, indent=1, sort_keys=True),
        json.dumps({**whole, "attention": "self_attn.o_proj"}),
    ):
        own.write_text(text)
        pair = loaded(folder)
        assert pair.changed() == ()
        found.append(pair.weight_hashes)
    assert found[0] == found[1]
    assert all(
        len({hashes[name] for hashes in (shipped, found[0], found[2])}) == 3
        for name in ("recipient", "sft")
    )


def test_training_reads_the_map_in_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model type of which the package has no map is finetuned under that in its folder, with an
    adapter too, and scored.
    """
    text = json.dumps(written(load_family("qwen3")))
    monkeypatch.setattr(families, "family_names", lambda: ("gpt2",))
    families.load_family.cache_clear()
    place = locate(str(folder / "a"))
    assert "'qwen3' has no family map" in refusal(ModelError, lambda: model_setup.meta_model(place))
    (folder / "a" / FAMILY_FILE).write_text(text)
    assert model_setup.trained_parameters(model_setup.meta_model(place)) > 0
    model = model_setup.load_recipient(place)
    facts = load_dataset("fake_movies_fake_actors").subset(["fake_movies_fake_actors/1"])
    tuned = model_setup.trainable_model(model, finetuning_recipe("lora", 1000), 0)
    assert (
        0
        < model_setup.trained_parameters(tuned)
        < model_setup.trained_parameters(model_setup.meta_model(place))
    )
    (folder / "out").mkdir()
    donor = model_setup.store_donor(tuned, place, folder / "out")
    assert set(model_hits(donor, pico_tokenizer(bos=False), facts, ["headline"])) == {"headline"}


# -------------------------------------------------------------------------------------- the command


def test_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One object on stdout: the map and the verdicts."""
    assert main(["family", "infer", str(folder / "b"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert read_family(json.dumps(said["family"]), "stdout") == load_family("qwen3")
    assert said["holds"] and said["packed"] and all(law["holds"] for law in said["laws"])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (None, "config.json does not read"),
        ("{", "does not read"),
        ("[]", "holds no object"),
        ('{"model_type": "nothing_known"}', "no small model of type 'nothing_known'"),
        (
            '{"model_type": "mixtral"}',
            "weights of three dimensions, such as experts or convolutions",
        ),
    ],
)
def test_what_no_map_can_be_proposed_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str | None, told: str
) -> None:
    """One line on stderr, nothing on stdout, status 2."""
    if config is not None:
        (tmp_path / "config.json").write_text(config)
    assert main(["family", "infer", str(tmp_path)]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert told in said.err and said.err.count("\n") == 1, said.err


def test_a_law_that_fails_is_status_1(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An architecture with weights that no component has: the map is printed all the same, and what
    it lacks is said.
    """
    from transformers.models.qwen3 import modeling_qwen3

    plain_init = modeling_qwen3.Qwen3MLP.__init__

    def with_a_scale(self: nn.Module, config: object) -> None:
        plain_init(self, config)
        self.scale = nn.Parameter(torch.ones(()))

    monkeypatch.setattr(modeling_qwen3.Qwen3MLP, "__init__", with_a_scale)
    assert main(["family", "infer", str(folder / "a")]) == 1
    said = capsys.readouterr()
    assert json.loads(said.out)["model_type"] == "qwen3"
    assert "does not hold: every weight belongs to a component: 3 weights" in said.err
    assert "mlp.scale" in said.err
