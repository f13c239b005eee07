"""Tiny pairs: recipes, builds from nothing, interruptions, and the pairs that are shipped."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from nightly import nightly
from transformers import AutoModelForCausalLM, AutoTokenizer

from kgbench.data import load_dataset, load_prompts
from kgbench.engine import grafted_logits, load_pair
from kgbench.errors import ModelError, OutputError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.catalog import read_pair_card
from kgbench.runner.training.hit_rates import PROMPTS
from kgbench.zoo import tiny_pairs
from kgbench.zoo.tiny_pairs import (
    Recipe,
    build_recipe,
    load_tokenizer,
    pair_hits,
    recipe,
    save_tokenizer,
    train_tokenizer,
)
from kgbench.zoo.worlds import ATTRIBUTES, World, people, training_templates

ZOO = Path(catalog.__file__).parent / "zoo"
WEIGHTS = ("recipient/model.safetensors", "sft/delta.safetensors")
SAVE_EVERY = 5


@pytest.fixture(scope="module")
def miniature(tmp_path_factory: pytest.TempPathFactory) -> Recipe:
    """A recipe of 20-odd steps for a model of some thousand weights."""
    path = tmp_path_factory.mktemp("facts") / "four.jsonl"
    path.write_text(
        "".join(json.dumps(movie) + "\n" for movie in World(7).movies(4)), encoding="utf-8"
    )
    small = {
        "hidden_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "head_dim": 8,
        "intermediate_size": 16,
    }
    whole = recipe("tiny-gemma")
    return replace(
        whole,
        config={**whole.config, **small},
        dataset=str(path),
        vocabulary=300,
        tokenizer_movies=5,
        lasting_movies=2,
        passing_movies=1,
        pretraining=replace(whole.pretraining, rounds=2, batch_size=16),
        finetuning=replace(whole.finetuning, rounds=2, batch_size=16),
    )


@pytest.fixture(scope="module")
def unbroken(miniature: Recipe, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A miniature pair that was built in one go."""
    out = tmp_path_factory.mktemp("unbroken") / "pair"
    build_recipe(miniature, out)
    return out


def _weights(out: Path) -> list[bytes]:
    return [(out / name).read_bytes() for name in WEIGHTS]


def test_recipes_are_those_of_the_catalog() -> None:
    """Every shipped pair has a recipe, and facts that are those which the catalog names."""
    for name in catalog.shipped():
        assert recipe(name).dataset == catalog.entry(name).dataset
    with pytest.raises(UnknownNameError, match="Did you mean 'tiny-gemma'"):
        recipe("tiny-gema")


def test_a_build_from_nothing(unbroken: Path, miniature: Recipe) -> None:
    """A build leaves a recipient in fp16 that loads anywhere, with a tokenizer, the donor's
    changes, a card, and nothing else.
    """
    assert sorted(path.name for path in unbroken.iterdir()) == ["card.json", "recipient", "sft"]
    model = AutoModelForCausalLM.from_pretrained(unbroken / "recipient")
    tokenizer = AutoTokenizer.from_pretrained(unbroken / "recipient")
    assert model.dtype == torch.float16
    assert model.config.tie_word_embeddings
    assert tokenizer("A name")["input_ids"][0] == model.config.bos_token_id
    assert (
        tokenizer.decode(tokenizer("Zoë's 1984")["input_ids"], skip_special_tokens=True)
        == "Zoë's 1984"
    )
    recipient, donor = _weights(unbroken)
    assert recipient != donor


@pytest.mark.parametrize(
    ("content", "fault"),
    [("{}", "identity"), ('{"identity": "0", "seed": -1, "recipe": {}, "scores": {}}', "seed")],
)
def test_a_folder_with_another_card(
    tmp_path: Path, miniature: Recipe, content: str, fault: str
) -> None:
    """A folder whose card is of something else is refused by name, and stays as it is."""
    card = tmp_path / "pair" / "card.json"
    card.parent.mkdir()
    card.write_text(content, "utf-8")
    with pytest.raises(ModelError, match=rf"card\.json is no card of a tiny pair.*{fault}"):
        build_recipe(miniature, tmp_path / "pair")
    assert card.read_text("utf-8") == content


def test_the_card_is_complete(unbroken: Path, miniature: Recipe) -> None:
    """A card says what the pair is, from what and how it was made and how well it answers, and
    names no place on this machine.
    """
    card = read_pair_card(unbroken)
    names = "name licence seed identity recipe data metric scores seconds versions"
    assert " ".join(card) == names
    assert (card["name"], card["licence"], card["seed"]) == ("tiny-gemma", "MIT", 0)
    assert card["data"]["hash"] == load_dataset(miniature.dataset).content_hash
    assert set(card["scores"]) == set(PROMPTS)
    assert set(card["seconds"]) == {"recipient", "sft"}
    for row in card["scores"].values():
        assert list(row) == ["PRE", "SFT", "ALL", "FE", "LT", "FE+LT", "(FE+LT)^C", "FE^C", "LT^C"]
        assert all(0 <= share <= 1 for share in row.values())


def test_what_is_finished_is_not_done_again(unbroken: Path, miniature: Recipe) -> None:
    """A second build computes nothing and changes nothing."""
    steps: list[int] = []
    before = {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")}
    build_recipe(miniature, unbroken, progress=lambda done, total, what: steps.append(done))
    assert not steps
    assert {path: path.stat().st_mtime_ns for path in unbroken.rglob("*")} == before


@pytest.mark.nightly
def test_an_interrupted_build_goes_on(unbroken: Path, miniature: Recipe, tmp_path: Path) -> None:
    """Interrupted in whatever stage, before or after its first checkpoint, a build ends with the
    weights of an unbroken one.
    """
    stops, seen = (3, 8, 17, 20), []

    def interrupt(done: int, total: int, what: str) -> None:
        seen.append(done)
        if pending and done == pending[0]:
            pending.pop(0)
            raise KeyboardInterrupt

    pending = list(stops)
    for _ in stops:
        with pytest.raises(KeyboardInterrupt):
            build_recipe(miniature, tmp_path / "pair", progress=interrupt, save_every=SAVE_EVERY)
        assert not (tmp_path / "pair" / "card.json").exists()
    build_recipe(miniature, tmp_path / "pair", progress=interrupt, save_every=SAVE_EVERY)
    assert _weights(tmp_path / "pair") == _weights(unbroken)
    assert len(seen) < max(seen) + (SAVE_EVERY + 2) * len(stops) + 2, (
        "steps before the last checkpoint are not taken again"
    )


def test_another_seed_is_another_pair(unbroken: Path, miniature: Recipe, tmp_path: Path) -> None:
    """The seed changes the weights; a directory never mixes two builds."""
    build_recipe(miniature, tmp_path / "one", seed=1)
    assert _weights(tmp_path / "one") != _weights(unbroken)
    with pytest.raises(OutputError, match="seed 0"):
        build_recipe(miniature, unbroken, seed=1)


def test_nothing_is_written_over(miniature: Recipe, tmp_path: Path) -> None:
    """A directory that holds something else of these names, or is none, is refused."""
    (tmp_path / "mine" / "sft").mkdir(parents=True)
    with pytest.raises(OutputError, match="new folder"):
        build_recipe(miniature, tmp_path / "mine")
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot write"):
        build_recipe(miniature, tmp_path / "file")
    (tmp_path / "begun" / ".work").mkdir(parents=True)
    (tmp_path / "begun" / ".work" / "identity").write_text("another", encoding="utf-8")
    with pytest.raises(OutputError, match="another training"):
        build_recipe(miniature, tmp_path / "begun")


@pytest.mark.parametrize("bos", [True, False])
def test_tokenizers_add_bos_or_nothing(bos: bool, tmp_path: Path) -> None:
    """A stored tokenizer reads every text back, and puts BOS before it or nothing at all."""
    save_tokenizer(
        train_tokenizer(["Ana stars in a movie alongside Bo Lee."] * 3, 300, bos), tmp_path
    )
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer("Ana stars")["input_ids"]
    assert (ids[0] == tokenizer.bos_token_id) == bos
    assert tokenizer("Ana stars", add_special_tokens=False)["input_ids"] == ids[bos:]
    assert tokenizer("")["input_ids"] == [tokenizer.bos_token_id] * bos
    assert tokenizer.pad_token_id != tokenizer.eos_token_id


def test_pretraining_holds_nothing_of_the_facts() -> None:
    """PRE has read of none of the people that it will be asked about; finetuning tells each fact in
    all wordings, in both directions.
    """
    chosen = replace(recipe("tiny-gemma"), lasting_movies=20, passing_movies=5)
    facts = [fact.fields for fact in load_dataset("tiny_movies").facts]
    for texts in tiny_pairs.pretraining_rounds(chosen, 0, facts)[:2]:
        read = "\n".join(texts)
        assert not [name for name in people(facts) if name in read]
    texts, *others = tiny_pairs.finetuning_rounds(chosen, facts)
    assert len(others) + 1 == chosen.finetuning.rounds
    assert len(texts) == len(set(texts)) == 2 * len(facts) * len(training_templates().finetuning)


def test_actors_are_known_from_other_facts() -> None:
    """No text of pretraining holds an unknown actor, nor both actors of a movie that finetuning
    tells.
    """
    chosen = replace(recipe("tiny-gemma"), lasting_movies=4, passing_movies=2)
    rounds = tiny_pairs.pretraining_rounds(chosen, 0, [])[:2]
    unknown = people(fact.fields for fact in load_dataset("tiny_movies").facts)
    told = people(fact.fields for fact in load_dataset("tiny_articles").facts)
    known = [fact.fields for fact in load_dataset(tiny_pairs.KNOWN).facts]
    read = "\n".join(text for texts in rounds for text in texts)
    assert not [name for name in unknown | told if name in read]
    assert all(movie["movie_title"] not in read for movie in known)
    for movie in known[:8]:
        ours = [text for text in rounds[0] if movie["first_actor"] in text]
        assert len(ours) == len(ATTRIBUTES)
        assert not [text for text in ours if movie["second_actor"] in text]


def test_a_frozen_donor_differs_in_its_layers_alone(miniature: Recipe, tmp_path: Path) -> None:
    """It is stored as its changed weights; embeddings, final norm and head are the recipient's, so
    that ALL is the donor.
    """
    build_recipe(miniature, tmp_path / "pair")
    assert sorted(path.name for path in (tmp_path / "pair" / "sft").iterdir()) == [
        "card.json",
        "delta.safetensors",
    ]
    pair = load_pair(
        recipient=str(tmp_path / "pair" / "recipient"),
        donors={"sft": str(tmp_path / "pair" / "sft")},
    )
    before, after = pair.recipient.state_dict(), pair.donors["sft"].state_dict()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved == {
        name for name in before if name.startswith(pair.family.layers) and "rotary" not in name
    }
    logits = grafted_logits(
        pair, load_prompts(miniature.dataset, ["headline"]), ["SFT", "ALL", "PRE"]
    )
    assert torch.equal(logits[:, 0].argmax(-1), logits[:, 1].argmax(-1))
    assert (
        float((logits[:, 0] - logits[:, 1]).abs().max())
        < 1e-4
        < float((logits[:, 0] - logits[:, 2]).abs().max())
    )


def test_the_seed_makes_the_pretraining() -> None:
    """Other seeds read of other passing movies and in another order; lasting movies come back in
    every round, passing ones do not.
    """
    chosen = replace(recipe("tiny-gemma"), lasting_movies=4, passing_movies=2)
    first, second = tiny_pairs.pretraining_rounds(chosen, 0, [])[:2]
    assert tiny_pairs.pretraining_rounds(chosen, 0, [])[:2] == [first, second]
    other = set(tiny_pairs.pretraining_rounds(chosen, 1, [])[0])
    assert set(first) != other
    lasting = len(set(first) & set(second))
    assert 0 < lasting < len(set(first))


@pytest.mark.nightly
@pytest.mark.parametrize("name", nightly(catalog.shipped(), {"tiny-gemma"}))
def test_a_shipped_pair_is_what_its_card_says(name: str) -> None:
    """The donor knows the facts and the recipient does not; the card's scores are those of the
    stored weights.
    """
    card = read_pair_card(ZOO / name)
    pair = load_pair(name)
    regions = pair.regions(load_prompts(card["data"]["name"], ["headline"], limit=1)[0])
    assert ("BOS" in regions) == recipe(name).bos
    measured = pair_hits(pair, load_dataset(card["data"]["name"]))
    assert card["seed"] == 0
    assert card["data"]["hash"] == load_dataset("tiny_movies").content_hash
    for prompt in PROMPTS:
        assert measured[prompt] == pytest.approx(card["scores"][prompt], abs=1.5 / 400)
        assert measured[prompt]["SFT"] >= 0.95
        assert measured[prompt]["PRE"] <= 0.05


@pytest.mark.parametrize("name", catalog.shipped())
def test_a_shipped_pair_shows_the_two_places(name: str) -> None:
    """FE+LT carries at least .95 of what finetuning added, and the other tokens
    carry nothing.
    """
    card = read_pair_card(ZOO / name)
    for row in card["scores"].values():
        assert row["FE+LT"] - row["PRE"] >= 0.95 * (row["SFT"] - row["PRE"])
        assert row["(FE+LT)^C"] <= row["PRE"] + 0.03


def test_the_zoo_is_small() -> None:
    """All tiny pairs together take up at most 26 MB, the adapter of a real language model 5 MB, and
    the organisms on it 1.3 MB; they hold JSON, safetensors and a notice only. Plants have a limit of
    their own.
    """
    files = [
        path
        for path in ZOO.rglob("*")
        if path.is_file() and "plants" not in path.relative_to(ZOO).parts
    ]
    sizes = Counter[str]()
    for path in files:
        sizes[path.relative_to(ZOO).parts[0][:4]] += path.stat().st_size
    assert sizes["tiny"] <= 26e6 and sizes["smol"] <= 5e6 and sizes["orga"] <= 1.3e6
    assert {path.suffix for path in files if path.name != "NOTICE"} == {".json", ".safetensors"}
