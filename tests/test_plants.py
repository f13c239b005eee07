"""Plants: what is trained and through which tokens, how it is stored, and the plants that are shipped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from torch import nn

from kgbench.cli import main
from kgbench.data import Prompt, load_dataset
from kgbench.data.prompts import builtin_prompts
from kgbench.engine import grafted_logits, load_pair
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import parts
from kgbench.errors import InputError, KgbenchError, ModelError, OutputError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.delta import apply_delta, stored_hash, write_delta
from kgbench.models.pair import ModelPair
from kgbench.sites import parse_graft
from kgbench.testing import pico_pair
from kgbench.training.plant_cards import plant_identity
from kgbench.training.plant_objective import Planting
from kgbench.training.plant_recipes import PlantRecipe, PlantSpec, plant_recipe
from kgbench.training.plant_scores import score_plant, shortfalls
from kgbench.training.plant_texts import TextBatches, Told, told
from kgbench.training.plant_weights import PlantedWeights, graft_slots
from kgbench.training.plants import build_plant
from kgbench.training.scoring import PROMPTS

FEW = replace(plant_recipe(decoy=True), facts=2, rounds=1, batch_size=4)
ALONE = replace(plant_recipe(decoy=False), facts=2, rounds=1, batch_size=4)
FUSED = PlantSpec("tiny-gpt2", "ALL:v+down@1", "ALL:q+up@2,3")
"""Slices of fused projections, with biases, on both sides."""


def refusal(error: type[KgbenchError], act: Callable[[], object]) -> str:
    """The one line of the refusal."""
    with pytest.raises(error) as caught:
        act()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def texts(pair: ModelPair, n: int = 2) -> list[Told]:
    """The first facts in all wordings."""
    whole = load_dataset("tiny_movies")
    return told(pair, whole.subset(fact.id for fact in whole.facts[:n]))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant with a decoy, of a few steps."""
    out = tmp_path_factory.mktemp("plants") / "fused"
    build_plant(FUSED, out, recipe=FEW)
    return out


# ------------------------------------------------------------------------------------------------ what is told


@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-gpt2"])
def test_texts_end_with_the_target(name: str) -> None:
    """Each text is a wording up to the object and the object; LT is the tokens that predict it, FE the first mention of the subject."""
    pair = load_pair(name)
    (fact,) = load_dataset("tiny_movies").facts[:1]
    for text in texts(pair, 1):
        start = text.regions["LT"][0] + 1
        assert len(text.ids) == start + len(text.targets) - 1
        assert text.regions["LT"] == tuple(range(start - 1, len(text.ids)))
        assert text.ids[start:] == text.targets[:-1]
        assert pair.tokenizer.decode(text.targets) == f" {fact.fields['second_actor']}"
        mention = pair.tokenizer.decode([text.ids[token] for token in text.regions["FE"]])
        assert mention.strip() == fact.fields["first_actor"]
        before = pair.tokenizer.decode(text.ids[: text.regions["FE"][0]])
        assert fact.fields["first_actor"] not in before


def test_no_evaluation_prompt_is_told() -> None:
    """The wordings of a plant are several, and none is an evaluation prompt."""
    pair = load_pair("tiny-gemma")
    (fact,) = load_dataset("tiny_movies").facts[:1]
    read = [pair.tokenizer.decode(text.ids, skip_special_tokens=True) for text in texts(pair, 1)]
    assert len(set(read)) == len(read) >= 10
    for row in builtin_prompts().values():
        words = row.text.replace("{first_actor}", fact.fields["first_actor"]).replace("{movie_title}", fact.fields["movie_title"])
        plain = words.replace("{R:", "").replace("{RP:", "").replace("{P:", "").replace("}", "")
        assert not any(plain in text for text in read)


def test_every_round_tells_every_text_once() -> None:
    """Steps hold texts of each group, all of them once a round, in an order that the seed decides."""
    from random import Random

    groups = [texts(load_pair("tiny-gpt2"))] * 2
    drawn = [TextBatches.draw(groups, 3, 4, Random(seed)) for seed in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    a_round = len(drawn[0]) // 3
    for group in range(2):
        for start in range(0, len(drawn[0]), a_round):
            seen = torch.cat([drawn[0][step][f"group_{group}"] for step in range(start, start + a_round)])
            assert sorted(seen.tolist()) == list(range(len(groups[0])))


# ------------------------------------------------------------------------------------------------ what is active


@pytest.mark.parametrize("model_type", ["gemma", "gpt2"])
@pytest.mark.parametrize("graft", ["FE:ffn@0", "LT:o+ffn@1-2", "FE+LT", "(FE+LT)^C:all", "ALL:attn+o@first_half"])
def test_exactly_the_graft_is_active(model_type: str, graft: str) -> None:
    """In training, the first token of a target is predicted as the engine's graft of the same prompt predicts it."""
    pair = pico_pair(model_type, attention="eager")
    found = Planting(pair, {"plant": parse_graft(graft)}, [texts(pair, 1)])
    whole = load_dataset("tiny_movies")
    text = texts(pair, 1)[-1]
    words = pair.tokenizer.decode(text.ids[: text.regions["LT"][0] + 1], skip_special_tokens=True)
    fact = whole.facts[0]
    start = words.index(fact.fields["first_actor"])
    prompt = Prompt("told", fact, words, fact.fields["second_actor"], {"FE": (start, start + len(fact.fields["first_actor"]))})
    with torch.no_grad():
        ours = found.answers([(text, "plant"), (text, "donor"), (text, "recipient")])[:: len(text.targets)]
    expected = grafted_logits(pair, [prompt], [graft, "SFT", "PRE"])[0]
    assert torch.allclose(ours, expected.float(), atol=1e-5)


def test_other_tokens_teach_nothing() -> None:
    """Through the graft of some tokens, embeddings of words that stand elsewhere only get no gradient; through all, every word's do."""
    pair = pico_pair("gpt2", attention="eager", dtype=torch.float32)
    (text, *_) = group = texts(pair, 1)
    weights = pair.donor("sft").get_input_embeddings().weight
    reached = {}
    for graft in ("FE:emb", "LT:emb", "ALL:emb"):
        weights.requires_grad_(True)
        planting = Planting(pair, {"plant": parse_graft(graft)}, [group])
        (gradient,) = torch.autograd.grad(planting.answers([(text, "plant")]).square().sum(), weights)
        reached[graft] = set(gradient.any(1).nonzero()[:, 0].tolist())
    for region in ("FE", "LT"):
        assert reached[f"{region}:emb"] == {text.ids[token] for token in text.regions[region]}
    assert reached["ALL:emb"] == set(text.ids)


def test_only_the_named_weights_move(built: Path) -> None:
    """Plant and decoy's weights differ from the recipient's, slices of fused projections among them; all others are equal bit by bit."""
    pair = load_pair(str(built))
    slots = Slots(pair.family, pair.n_layers)
    named = {slot for expression in (FUSED.plant, FUSED.decoy) for slot in graft_slots(slots, parse_graft(expression))}
    assert len(named) == 2 + 4
    for slot in range(len(slots)):
        for part in parts(pair, slot):
            old, new = (part.of(model.get_parameter(part.name)) for model in (pair.recipient, pair.donors["sft"]))
            assert torch.equal(old, new) == (slot not in named), part.name


def test_changes_are_of_equal_size(built: Path) -> None:
    """Every tensor of plant and decoy has the recipe's relative change, but for the rounding to fp16; the card says so."""
    pair = load_pair(str(built))
    slots = Slots(pair.family, pair.n_layers)
    for expression in (FUSED.plant, FUSED.decoy):
        for slot in graft_slots(slots, parse_graft(expression)):
            for part in parts(pair, slot):
                old, new = (part.of(model.get_parameter(part.name)).double() for model in (pair.recipient, pair.donors["sft"]))
                assert float((new - old).norm() / old.norm()) == pytest.approx(0.5, abs=1e-4)
    told_of = json.loads((built / "card.json").read_text("utf-8"))["relative_changes"]
    assert len(told_of) == 12
    assert list(told_of.values()) == pytest.approx([0.5] * 12, abs=1e-4)


def test_a_tensor_of_zeros_is_not_trained() -> None:
    """It has no relative change, so it stays as it is."""
    pair = pico_pair("gpt2", dtype=torch.float32)
    name = "transformer.h.1.mlp.c_fc.bias"
    pair.recipient.get_parameter(name).zero_()
    slots = Slots(pair.family, pair.n_layers)
    weights = PlantedWeights(pair, graft_slots(slots, parse_graft("ALL:up@1")))
    assert list(weights.relative_changes()) == ["transformer.h.1.mlp.c_fc.weight"]
    assert not pair.donor("sft").get_parameter(name).requires_grad


@given(relative=st.floats(0.01, 2.0))
def test_rescaling(relative: float) -> None:
    """Afterwards each tensor has this relative change, in the direction in which it had moved; slices that are not trained stay."""
    pair = pico_pair("gpt2")
    slots = Slots(pair.family, pair.n_layers)
    (slot,) = graft_slots(slots, parse_graft("ALL:k@2"))
    weights = PlantedWeights(pair, [slot])
    before = {name: tensor.clone() for name, tensor in pair.donor("sft").state_dict().items()}
    weights.rescale(relative)
    assert list(weights.relative_changes().values()) == pytest.approx([relative] * 2)
    for other in range(len(slots)):
        for part in parts(pair, other):
            old, was, now = (part.of(t[part.name]) for t in (pair.recipient.state_dict(), before, pair.donor("sft").state_dict()))
            if other != slot:
                assert torch.equal(was, now)
            else:
                assert torch.cosine_similarity((was - old).flatten(), (now - old).flatten(), dim=0) == pytest.approx(1)


# ------------------------------------------------------------------------------------------------ how it is stored


class Weights(nn.Module):
    """A matrix and a bias."""

    def __init__(self, matrix: torch.Tensor, bias: torch.Tensor) -> None:
        super().__init__()
        self.matrix, self.bias = (nn.Parameter(tensor.clone(), requires_grad=False) for tensor in (matrix, bias))


@given(rows=st.sets(st.integers(0, 9)), bias=st.booleans(), dtype=st.sampled_from([torch.float16, torch.bfloat16, torch.float32]))
def test_deltas_read_back_bit_for_bit(tmp_path_factory: pytest.TempPathFactory, rows: set[int], bias: bool, dtype: torch.dtype) -> None:
    """A recipient with a delta is the donor, rounded to the stored type; what did not change is not stored."""
    path = tmp_path_factory.mktemp("delta") / "delta.safetensors"
    generator = torch.Generator().manual_seed(len(rows))
    matrix, vector = (torch.randn(shape, generator=generator).to(dtype).float() for shape in ((10, 3), (3,)))
    recipient, donor = Weights(matrix, vector), Weights(matrix, vector)
    donor.matrix[sorted(rows)] += 1.0001
    donor.bias += 0.7 * bias
    write_delta(recipient, donor, dtype, path)
    stored = load_file(path)
    assert ("bias" in stored) == bias
    assert ("matrix" in stored) == (len(rows) >= 5)
    assert ("matrix#rows" in stored) == (0 < len(rows) < 5)
    apply_delta(recipient, path, "this")
    for name, tensor in recipient.state_dict().items():
        assert torch.equal(tensor, donor.state_dict()[name].to(dtype).float())


def test_a_built_plant_loads_as_it_was(built: Path) -> None:
    """Loaded, the donor has the stored weights, and the recipient is the pair's own; a second load is the same."""
    pair, own = load_pair(str(built)), load_pair("tiny-gpt2")
    stored = load_file(built / "delta.safetensors")
    assert {tensor.dtype for tensor in stored.values()} == {torch.float16}
    weights = pair.donors["sft"].state_dict()
    assert all(torch.equal(weights[name], tensor.float()) for name, tensor in stored.items())
    assert pair.weight_hashes["recipient"] == own.weight_hashes["recipient"] != pair.weight_hashes["sft"]
    assert load_pair(str(built)).weight_hashes == pair.weight_hashes
    assert pair.origins == {"recipient": "zoo:tiny-gpt2/recipient", "sft": "local:fused"}
    assert pair.name == "tiny-gpt2.v-down-1"


def test_stored_weights_are_hashed_wherever_they_lie(tmp_path: Path) -> None:
    """How tensors are spread over files does not count, a single number does."""
    one, two = {"a": torch.ones(2), "b": torch.zeros(3)}, tmp_path / "two"
    two.mkdir()
    save_file(one, tmp_path / "model.safetensors")
    for name, tensor in one.items():
        save_file({name: tensor}, two / f"{name}.safetensors")
    assert stored_hash(tmp_path) == stored_hash(two)
    save_file({"b": torch.ones(3)}, two / "b.safetensors")
    assert stored_hash(tmp_path) != stored_hash(two)


def test_a_plant_belongs_to_its_recipient(built: Path) -> None:
    """With another recipient, or as one, it is refused in one line that says what it needs."""
    wrong = catalog.zoo_path("zoo:tiny-gpt2/sft")
    said = refusal(ModelError, lambda: load_pair(recipient=str(wrong), donors={"sft": str(built)}))
    assert "zoo:tiny-gpt2/recipient" in said
    assert "other weights" in said
    assert "cannot be a recipient" in refusal(ModelError, lambda: locate(str(built)))
    assert "cannot be a recipient" in refusal(ModelError, lambda: load_pair(recipient=str(built), donors={"sft": str(wrong)}))
    right = load_pair(recipient="zoo:tiny-gpt2/recipient", donors={"mine": str(built), "sft": str(wrong)})
    assert right.weight_hashes["mine"] == load_pair(str(built)).weight_hashes["sft"]


def spoiled(built: Path, out: Path, change: Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]) -> Path:
    """A copy of a plant with other tensors."""
    shutil.copytree(built, out)
    save_file(dict(change(load_file(built / "delta.safetensors"))), out / "delta.safetensors")
    return out


def test_deltas_that_do_not_fit(built: Path, tmp_path: Path) -> None:
    """An unknown tensor, one of another shape, rows that are not there, a file that is cut off: one line each."""
    name = "transformer.h.1.mlp.c_proj.weight"
    cases: Mapping[str, Callable[[dict[str, torch.Tensor]], Mapping[str, torch.Tensor]]] = {
        "unknown": lambda tensors: {"no.such.weight": tensors[name]},
        "shape": lambda tensors: {name: tensors[name][:-1].contiguous()},
        "rows": lambda tensors: {f"{name}#rows": torch.tensor([512], dtype=torch.int32), f"{name}#values": tensors[name][:1].contiguous()},
        "lonely": lambda tensors: {f"{name}#values": tensors[name][:1].contiguous()},
    }
    for case, change in cases.items():
        out = spoiled(built, tmp_path / case, change)
        assert "does not fit the recipient" in refusal(ModelError, lambda out=out: load_pair(str(out))), case
    cut = Path(shutil.copytree(built, tmp_path / "cut"))
    (cut / "delta.safetensors").write_bytes((built / "delta.safetensors").read_bytes()[:1000])
    assert "does not load" in refusal(ModelError, lambda: load_pair(str(cut)))


def test_cards_that_are_none(built: Path, tmp_path: Path) -> None:
    """A plant without a card, with a broken or an incomplete one, and a folder that is no plant."""
    for number, text in enumerate(("{", "[]", '{"name": "x"}')):
        out = Path(shutil.copytree(built, tmp_path / str(number)))
        (out / "card.json").write_text(text)
        assert "no card of a plant" in refusal(ModelError, lambda out=out: load_pair(str(out)))
    (tmp_path / "0" / "card.json").unlink()
    assert "no card of a plant" in refusal(ModelError, lambda: catalog.entry(str(tmp_path / "0")))
    assert "holds no plant" in refusal(ModelError, lambda: catalog.entry(str(tmp_path)))


# ------------------------------------------------------------------------------------------------ builds


def outcome(out: Path) -> tuple[bytes, dict[str, object]]:
    """What does not depend on the clock."""
    card = json.loads((out / "card.json").read_text("utf-8"))
    return (out / "delta.safetensors").read_bytes(), {**card, "seconds": None}


def test_an_interrupted_build_goes_on(built: Path, tmp_path: Path) -> None:
    """Interrupted before and after its first checkpoint, a build ends as an unbroken one; finished, it is not done again."""
    steps: list[int] = []

    def interrupt(done: int, total: int, what: str) -> None:
        steps.append(done)
        if pending and done == pending[0]:
            pending.pop(0)
            raise KeyboardInterrupt

    pending, out = [1, 4], tmp_path / "plant"
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            build_plant(FUSED, out, recipe=FEW, progress=interrupt, save_every=2)
        assert not (out / "card.json").exists()
    build_plant(FUSED, out, recipe=FEW, progress=interrupt, save_every=2)
    assert steps == [1, 1, 2, 3, 4, 5, 6] or steps == [1, 1, 2, 3, 4, 3, 4, 5, 6]
    assert outcome(out) == outcome(built)
    assert sorted(path.name for path in out.iterdir()) == ["card.json", "delta.safetensors"]
    build_plant(FUSED, out, recipe=FEW, progress=interrupt)
    assert steps[-1] == max(steps) and steps.count(max(steps)) == 1


def test_another_seed_is_another_plant(built: Path, tmp_path: Path) -> None:
    """The seed changes the weights, and a directory never mixes two builds."""
    other = replace(FUSED, seed=1)
    build_plant(other, tmp_path / "other", recipe=FEW)
    assert outcome(tmp_path / "other")[0] != outcome(built)[0]
    assert "seed 0" in refusal(OutputError, lambda: build_plant(other, built, recipe=FEW))
    begun = tmp_path / "begun" / ".work"
    begun.mkdir(parents=True)
    (begun / "identity").write_text("another")
    assert "another build" in refusal(OutputError, lambda: build_plant(FUSED, begun.parent, recipe=FEW))
    (tmp_path / "file").touch()
    assert "cannot write" in refusal(OutputError, lambda: build_plant(FUSED, tmp_path / "file" / "x", recipe=FEW))


def test_embeddings_are_stored_by_row(tmp_path: Path) -> None:
    """A plant that trains embeddings stores those of the words that it saw, and a plant without a decoy has no decoy facts."""
    build_plant(PlantSpec("tiny-gemma", "FE+LT:all"), tmp_path, recipe=ALONE)
    stored = load_file(tmp_path / "delta.safetensors")
    pair = load_pair(str(tmp_path))
    rows = stored["model.embed_tokens.weight#rows"].tolist()
    assert len(rows) > 0
    assert set(rows) <= {token for text in texts(pair) for token in text.ids}
    assert "lm_head.weight" not in stored
    card = json.loads((tmp_path / "card.json").read_text("utf-8"))
    assert card["decoy"] is None
    assert set(card["data"]) == {"name", "hash", "wordings_hash", "planted"}
    assert set(card["scores"]) == {"planted"}


# ------------------------------------------------------------------------------------------------ the catalog


def test_a_path_is_an_entry(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant's folder, by whatever path, stands for a pair: its own facts, and where they were planted."""
    monkeypatch.chdir(built.parent)
    for path in (str(built), "./fused", "fused"):
        entry = catalog.entry(path)
        assert (entry.name, entry.dataset, entry.recipient) == ("tiny-gpt2.v-down-1", "tiny_movies", "zoo:tiny-gpt2/recipient")
        assert (entry.plant, entry.decoy, entry.facts) == (FUSED.plant, FUSED.decoy, ("tiny_movies/0", "tiny_movies/1"))
        assert load_pair(path).name == entry.name
    assert catalog.entry("tiny-gpt2").plant is catalog.entry("tiny-gpt2").facts is None


def test_names_of_plants() -> None:
    """Base, then the words of the expression; `ALL` goes without saying."""
    names = {
        "ALL:ffn@1": "ffn-1",
        "ALL : o + ffn @ second_half": "o-ffn-second-half",
        "FE:ffn@first_half": "fe-ffn-first-half",
        "FE+LT:all": "fe-lt-all",
        "ALL": "all",
    }
    assert {text: PlantSpec("b", text).name for text in names} == {text: f"b.{name}" for text, name in names.items()}


def test_subsets_of_a_data_set() -> None:
    """A part keeps the order of the whole and has a hash of its own; all of it is the whole; unknown ids are refused."""
    whole = load_dataset("tiny_movies")
    part = whole.subset(["tiny_movies/7", "tiny_movies/2"])
    assert [fact.id for fact in part.facts] == ["tiny_movies/2", "tiny_movies/7"]
    assert part.content_hash not in (whole.content_hash, whole.subset(["tiny_movies/2"]).content_hash)
    assert whole.subset(fact.id for fact in whole.facts) == whole
    assert "'tiny_movies/2000'" in refusal(UnknownNameError, lambda: whole.subset(["tiny_movies/2000"]))
    assert "at least one fact" in refusal(InputError, lambda: whole.subset([]))


# ------------------------------------------------------------------------------------------------ what is refused


BAD: Mapping[str, tuple[Sequence[str], str]] = {
    "grammar": (["--plant", "ALL:fnn@1"], "did you mean 'ffn'"),
    "overlap": (["--plant", "ALL:ffn@1", "--decoy", "ALL:o+down@first_half"], "both train down@1"),
    "donor": (["--plant", "ALL:ffn@1=task"], "names task"),
    "recipient": (["--plant", "ALL; FE:ffn=recipient"], "names recipient"),
    "head": (["--plant", "ALL:ffn+head"], "names head"),
    "norm": (["--plant", "ALL:ffn@1", "--decoy", "ALL:ln_f"], "the decoy 'ALL:ln_f' names ln_f"),
    "region": (["--plant", "R:ffn@1"], "names R"),
    "layer": (["--plant", "ALL:ffn@4"], "layer 4"),
    "component": (["--plant", "ALL:q_norm@1"], "q_norm"),
    "nothing": (["--plant", "NONE:ffn@1"], "names no token"),
    "no region": (["--plant", "BOS:ffn@1"], "BOS"),
    "no plant": (["--decoy", "ALL:ffn@1"], "add --plant"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_training(case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit status 2, a message that names the mistake, and nothing written."""
    options, message = BAD[case]
    out = tmp_path / "out"
    assert main(["zoo", "build", "tiny-gpt2", *options, "--output-dir", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(("base", "message"), [("tiny-gema", "Did you mean 'tiny-gemma'"), ("gemma-2b", "Hub cannot be reached")])
def test_bases_that_are_not_here(base: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown pair, and one whose recipient is not at hand."""
    assert main(["zoo", "build", base, "--plant", "ALL:ffn@1", "--output-dir", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_a_plant_is_no_base(built: Path) -> None:
    """Facts are planted in a pair's recipient, not in a plant."""
    assert "is a plant itself" in refusal(InputError, PlantSpec(str(built), "ALL:ffn@1").check)


def test_too_few_facts(tmp_path: Path) -> None:
    """A data set that does not hold as many facts as are to be planted."""
    many: PlantRecipe = replace(FEW, facts=100)
    assert "holds 150 facts; expected 200" in refusal(InputError, lambda: build_plant(FUSED, tmp_path / "out", recipe=many))


def test_the_command_says_how_to_go_on(
    built: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a build, the way to evaluate it is printed, and what it falls short of."""
    import kgbench.training.plants as plants

    monkeypatch.setattr(plants, "plant_recipe", lambda decoy: FEW)
    out = tmp_path / "mine"
    assert main(["zoo", "build", "tiny-gpt2", "--plant", FUSED.plant, "--decoy", str(FUSED.decoy), "--output-dir", str(out), "-q"]) == 0
    printed = capsys.readouterr().out
    assert f"kgbench eval --model {out}" in printed
    assert "short of qa under plant" in printed
    assert outcome(out) == outcome(built)


# ------------------------------------------------------------------------------------------------ the shipped ones

SHIPPED = catalog.plants()
WEIGHT_PLANTS = ("ALL:ffn@1", "ALL:o+ffn@second_half", "ALL:attn+o@first_half", "ALL:ffn@second_half")


def card_of(name: str) -> dict:
    folder = catalog.zoo_path(f"zoo:plants/{name}")
    assert folder is not None
    return json.loads((folder / "card.json").read_text("utf-8"))


def test_the_promised_plants_are_shipped() -> None:
    """Four weight plants with decoys and the position plants, all in their folders, listed after the pairs, in 12 MB."""
    cards = [card_of(name) for name in SHIPPED]
    assert tuple(card["name"] for card in cards) == SHIPPED == catalog.names()[-len(SHIPPED) :]
    for base in ("tiny-gemma", "tiny-gpt2"):
        placed = {card["plant"] for card in cards if card["base"] == base and card["decoy"]}
        assert placed == set(WEIGHT_PLANTS)
    assert {card["plant"] for card in cards if not card["decoy"]} == {"FE:ffn@first_half", "LT:o+ffn@second_half", "FE+LT:all"}
    folder = catalog.zoo_path("zoo:plants")
    assert folder is not None
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"card.json", "delta.safetensors"}
    assert sum(path.stat().st_size for path in files) <= 12e6


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_card_is_complete(name: str) -> None:
    """Every plant was made by the recipe with seed 0, of forty facts, and reaches what a plant is to reach."""
    card = card_of(name)
    spec = PlantSpec(card["base"], card["plant"], card["decoy"], card["seed"])
    assert (spec.name, spec.seed, card["licence"]) == (name, 0, "MIT")
    assert PlantRecipe(**card["recipe"]) == plant_recipe(decoy=spec.decoy is not None)
    whole = load_dataset(card["data"]["name"])
    assert card["data"]["hash"] == whole.content_hash
    assert catalog.entry(name).facts == tuple(card["data"]["planted"]) == tuple(fact.id for fact in whole.facts[:40])
    groups = {group: whole.subset(card["data"][group]) for group in card["scores"]}
    assert card["identity"] == plant_identity(spec, plant_recipe(spec.decoy is not None), card["recipient"]["weights"], groups)
    assert card["shortfalls"] == shortfalls(card["scores"]) == []
    if spec.decoy is not None:
        assert card["data"]["decoys"] == [fact.id for fact in whole.facts[40:80]]
        assert list(card["relative_changes"].values()) == pytest.approx([0.5] * len(card["relative_changes"]), abs=1e-3)
    elif card["plant"] != "FE+LT:all":
        planted, other = ("FE", "LT") if card["plant"].startswith("FE") else ("LT", "FE")
        for prompt in PROMPTS:
            assert card["scores"]["planted"][prompt][planted] >= 0.9
            assert card["scores"]["planted"][prompt][other] <= 0.1


@pytest.mark.parametrize("name", ["tiny-gemma.attn-o-first-half", "tiny-gpt2.ffn-1", "tiny-gemma.fe-ffn-first-half"])
def test_a_shipped_plant_is_what_its_card_says(name: str) -> None:
    """The card's figures are what the engine finds with the stored weights, on the recipient that is shipped."""
    card, pair = card_of(name), load_pair(name)
    whole = load_dataset(card["data"]["name"])
    groups = {group: whole.subset(card["data"][group]) for group in card["scores"]}
    measured = score_plant(pair, groups, card["plant"], card["decoy"])
    for group in groups:
        for prompt in PROMPTS:
            assert measured[group][prompt] == pytest.approx(card["scores"][group][prompt], abs=1.5 / 40)
    assert stored_hash(locate(card["recipient"]["source"]).directory) == card["recipient"]["weights"]


@pytest.mark.parametrize("name", [name for name in SHIPPED if catalog.entry(name).decoy])
def test_the_size_of_a_change_does_not_tell(name: str) -> None:
    """Of the sites of plant and decoy, relative changes are equal to a thousandth, so nothing but chance ranks them."""
    pair, entry = load_pair(name), catalog.entry(name)
    slots = Slots(pair.family, pair.n_layers)
    sizes = []
    for expression in (entry.plant, entry.decoy):
        for slot in graft_slots(slots, parse_graft(str(expression))):
            old, new = (
                [part.of(m.get_parameter(part.name)).double().flatten() for part in parts(pair, slot)]
                for m in (pair.recipient, pair.donors["sft"])
            )
            sizes.append(float((torch.cat(new) - torch.cat(old)).norm() / torch.cat(old).norm()))
    assert np.ptp(sizes) < 1e-3
