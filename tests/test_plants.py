"""Plants: how they are built, what is refused, and those that are shipped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from few_plants import ALONE, FEW, FUSED, build_fused, refusal, texts

from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.engine.treatment import Slots
from kgbench.engine.weights import parts
from kgbench.errors import InputError, OutputError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.delta import read_delta, stored_hash
from kgbench.sites import parse_graft
from kgbench.training.plant_cards import plant_identity
from kgbench.training.plant_recipes import PlantRecipe, PlantSpec, plant_recipe
from kgbench.training.plant_scores import score_plant, shortfalls
from kgbench.training.plant_weights import graft_slots
from kgbench.training.plants import build_plant
from kgbench.training.scoring import PROMPTS


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant with a decoy, of a few steps."""
    return build_fused(tmp_path_factory.mktemp("plants") / "fused")


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
    assert steps == [1, 1, 2, 3, 4, 3, 4, 5, 6], "it goes on from the last checkpoint"
    assert outcome(out) == outcome(built)
    assert sorted(path.name for path in out.iterdir()) == ["card.json", "delta.safetensors"]
    build_plant(FUSED, out, recipe=FEW, progress=interrupt)
    assert len(steps) == 9


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
    stored = read_delta(tmp_path / "delta.safetensors", "this")
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


def test_the_command_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped plant is what the command makes, so where it lies nothing is computed; the way to evaluate it is printed."""
    shipped = catalog.zoo_path("zoo:plants/tiny-gpt2.ffn-1")
    assert shipped is not None
    out = Path(shutil.copytree(shipped, tmp_path / "mine"))
    command = ["zoo", "build", "tiny-gpt2", "--plant", "ALL:ffn@1", "--decoy", "ALL:ffn@2", "--seed", "0", "--output-dir", str(out), "-q"]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"kgbench eval --model {out}" in printed
    assert "short of" not in printed
    assert outcome(out) == outcome(shipped)


# ------------------------------------------------------------------------------------------------ the shipped ones

SHIPPED = catalog.plants()
WEIGHT_PLANTS = ("ALL:ffn@1", "ALL:o+ffn@second_half", "ALL:attn+o@first_half", "ALL:ffn@second_half")


def card_of(name: str) -> dict:
    folder = catalog.zoo_path(f"zoo:plants/{name}")
    assert folder is not None
    return json.loads((folder / "card.json").read_text("utf-8"))


def test_the_promised_plants_are_shipped() -> None:
    """Four weight plants with decoys and the position plants, all in their folders, listed after the pairs, in 11 MB."""
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
    assert sum(path.stat().st_size for path in files) <= 11e6


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
