"""Plants: how they are built, what is refused, and those that are shipped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from fake_plants import replica_card, shipped_replicas
from few_plants import ALONE, FEW, FUSED, build_fused, refusal, texts

from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.engine import load_pair
from kgbench.errors import InputError, OutputError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.tensors import read_delta, stored_hash
from kgbench.runner.training.hit_rates import PROMPTS
from kgbench.zoo.plant_spec import PlantSpec
from kgbench.zoo.plants import build_plant, plant_hits, plant_identity, shortfalls
from kgbench.zoo.recipes import PlantRecipe, level_table, plant_recipe


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plant with a decoy, of a few steps."""
    return build_fused(tmp_path_factory.mktemp("plants") / "fused")


# ------------------------------------------------------------------------------------------- builds


def outcome(out: Path) -> tuple[bytes, dict[str, object]]:
    """What does not depend on the clock."""
    card = json.loads((out / "card.json").read_text("utf-8"))
    return (out / "delta.safetensors").read_bytes(), {**card, "seconds": None}


@pytest.mark.nightly
def test_an_interrupted_build_goes_on(built: Path, tmp_path: Path) -> None:
    """Interrupted before and after its first checkpoint, a build ends as an unbroken one; finished,
    it is not done again.
    """
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
    assert steps == [0, 1, 0, 1, 2, 3, 4, 0, 3, 4, 5, 6], "it goes on from the last checkpoint"
    assert outcome(out) == outcome(built)
    assert sorted(path.name for path in out.iterdir()) == ["card.json", "delta.safetensors"]
    build_plant(FUSED, out, recipe=FEW, progress=interrupt)
    assert len(steps) == 12


@pytest.mark.nightly
def test_the_card_has_the_hash_of_the_weights(built: Path) -> None:
    """It is that of the donor as runs load it."""
    card = json.loads((built / "card.json").read_text("utf-8"))
    assert card["donor_hash"] == load_pair(str(built)).weight_hashes["sft"]


@pytest.mark.nightly
def test_another_seed_is_another_plant(built: Path, tmp_path: Path) -> None:
    """The seed changes the weights, and a directory never mixes two builds."""
    other = replace(FUSED, seed=1)
    build_plant(other, tmp_path / "other", recipe=FEW)
    assert outcome(tmp_path / "other")[0] != outcome(built)[0]
    assert "seed 0" in refusal(OutputError, lambda: build_plant(other, built, recipe=FEW))
    begun = tmp_path / "begun" / ".work"
    begun.mkdir(parents=True)
    (begun / "identity").write_text("another")
    assert "another training" in refusal(
        OutputError, lambda: build_plant(FUSED, begun.parent, recipe=FEW)
    )
    (tmp_path / "file").touch()
    assert "cannot write" in refusal(
        OutputError, lambda: build_plant(FUSED, tmp_path / "file" / "x", recipe=FEW)
    )


def test_embeddings_of_words_that_were_not_read_stay(tmp_path: Path) -> None:
    """A plant that trains embeddings changes those of the words that it saw, and a plant without a
    decoy has no decoy facts.
    """
    build_plant(PlantSpec.at("tiny-gemma", "FE+LT:emb"), tmp_path, recipe=ALONE)
    stored = read_delta(tmp_path / "delta.safetensors", "this")
    pair = load_pair(str(tmp_path))
    change, _ = stored["model.embed_tokens.weight"]
    rows = change.any(dim=1).nonzero()[:, 0].tolist()
    assert len(rows) > 0
    assert set(rows) <= {token for text in texts(pair) for token in text.ids}
    assert "lm_head.weight" not in stored
    card = json.loads((tmp_path / "card.json").read_text("utf-8"))
    assert card["decoy"] is None
    assert set(card["data"]) == {"name", "hash", "wordings_hash", "planted"}
    assert set(card["scores"]) == {"planted"}


# -------------------------------------------------------------------------------------- the catalog


def test_a_path_is_an_entry(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A plant's folder, by whatever path, stands for a pair: its own facts, and where they were
    planted.
    """
    monkeypatch.chdir(built.parent)
    for path in (str(built), "./fused", "fused"):
        entry = catalog.entry(path)
        assert (entry.name, entry.dataset, entry.recipient) == (
            "tiny-gpt2.v-down-1",
            "tiny_movies",
            "zoo:tiny-gpt2/recipient",
        )
        assert (entry.plant, entry.decoy, entry.facts) == (
            FUSED.plant,
            FUSED.decoy,
            ("tiny_movies/0", "tiny_movies/1"),
        )
        assert load_pair(path).name == entry.name
    assert catalog.entry("tiny-gpt2").plant is catalog.entry("tiny-gpt2").facts is None


@pytest.fixture
def with_replica(tmp_path: Path) -> Iterator[Path]:
    """A catalog with a replica besides: the folder of its card."""
    card = replica_card("tiny-gemma.tight", 1)
    with shipped_replicas(tmp_path / "catalog", [card]) as plants:
        yield plants / str(card["name"])


def test_a_replica_is_known_by_its_card(
    with_replica: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its place and truth are published; a run says how its weights are made, and takes them where
    they are.
    """
    name, twin = with_replica.name, catalog.entry("tiny-gemma.tight")
    assert catalog.replicas() == (name,) and name not in catalog.pair_names()
    published = catalog.published(name)
    assert published is not None and (published.plant, published.facts) == (twin.plant, twin.facts)
    assert published.level == twin.level == twin.name
    assert catalog.graded_truth(name) == twin.truth
    assert main(["eval", "--suite", "planted", "--localizer", "prior", "--model", name]) == 2
    error = capsys.readouterr().err
    assert "kgbench zoo build tiny-gemma --level tight --seed 1" in error and error.count("\n") == 1
    zoo = catalog.zoo_path("zoo:plants/tiny-gemma.tight")
    assert zoo is not None
    shutil.copy(zoo / "delta.safetensors", with_replica)
    assert catalog.entry(str(with_replica)).plant == twin.plant
    catalog._with_weights.cache_clear()
    assert name in catalog.plants() and catalog.replicas() == ()


def test_names_of_plants() -> None:
    """Base, then the words of the expression; `ALL` goes without saying."""
    names = {
        "ALL:ffn@1": "ffn-1",
        "ALL : o + ffn @ second_half": "o-ffn-second-half",
        "FE:ffn@first_half": "fe-ffn-first-half",
        "FE+LT:all": "fe-lt-all",
        "ALL": "all",
    }
    assert {text: PlantSpec.at("b", text).name for text in names} == {
        text: f"b.{name}" for text, name in names.items()
    }
    assert PlantSpec.of_level("b", "tight", seed=3).name == "b.tight-seed3"


def test_subsets_of_a_data_set() -> None:
    """A part keeps the order of the whole and has a hash of its own; all of it is the whole;
    unknown ids are refused.
    """
    whole = load_dataset("tiny_movies")
    part = whole.subset(["tiny_movies/7", "tiny_movies/2"])
    assert [fact.id for fact in part.facts] == ["tiny_movies/2", "tiny_movies/7"]
    assert part.content_hash not in (
        whole.content_hash,
        whole.subset(["tiny_movies/2"]).content_hash,
    )
    assert whole.subset(fact.id for fact in whole.facts) == whole
    assert "'tiny_movies/2000'" in refusal(
        UnknownNameError, lambda: whole.subset(["tiny_movies/2000"])
    )
    assert "at least one fact" in refusal(InputError, lambda: whole.subset([]))


# ---------------------------------------------------------------------------------- what is refused


BAD: Mapping[str, tuple[Sequence[str], str]] = {
    "grammar": (["--plant", "ALL:fnn@1"], "did you mean 'ffn'"),
    "overlap": (["--plant", "ALL:ffn@1", "--decoy", "ALL:o+down@first_half"], "both train down@1"),
    "donor": (["--plant", "ALL:ffn@1=task"], "names task"),
    "recipient": (["--plant", "ALL; FE:ffn=recipient"], "names recipient"),
    "head": (["--plant", "ALL:ffn+head"], "names head"),
    "norm": (["--plant", "ALL:ffn@1", "--decoy", "ALL:ln_f"], "the decoy 'ALL:ln_f' names ln_f"),
    "region": (["--plant", "R:ffn@1"], "names R"),
    "layer": (["--plant", "ALL:ffn@8"], "layer 8"),
    "component": (["--plant", "ALL:q_norm@1"], "q_norm"),
    "nothing": (["--plant", "NONE:ffn@1"], "names no token"),
    "no region": (["--plant", "BOS:ffn@1"], "BOS"),
    "no plant": (["--decoy", "ALL:ffn@1"], "add --plant"),
    "level": (["--level", "tigth"], "Did you mean 'tight'"),
    "both": (["--level", "tight", "--plant", "ALL:ffn@1"], "leave out --plant"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_refused_before_training(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit status 2, a message that names the mistake, and nothing written."""
    options, message = BAD[case]
    out = tmp_path / "out"
    assert main(["zoo", "build", "tiny-gpt2", *options, "--output-dir", str(out)]) == 2
    assert message in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize(
    ("base", "message"),
    [("tiny-gema", "Did you mean 'tiny-gemma'"), ("gemma-2b", "Hub cannot be reached")],
)
def test_bases_that_are_not_here(
    base: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown pair, and one whose recipient is not at hand."""
    assert (
        main(["zoo", "build", base, "--plant", "ALL:ffn@1", "--output-dir", str(tmp_path / "out")])
        == 2
    )
    assert message in capsys.readouterr().err


def test_a_plant_is_no_base(built: Path) -> None:
    """Facts are planted in a pair's recipient, not in a plant."""
    assert "is a plant itself" in refusal(InputError, PlantSpec.at(str(built), "ALL:ffn@1").check)


def test_too_few_facts(tmp_path: Path) -> None:
    """A data set that does not hold as many facts as are to be planted."""
    many: PlantRecipe = replace(FEW, facts=250)
    assert "holds 400 facts; expected 500" in refusal(
        InputError, lambda: build_plant(FUSED, tmp_path / "out", recipe=many)
    )


def test_the_command_says_how_to_go_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The shipped plant is what the command makes, so where it lies nothing is computed; the way to
    evaluate it is printed.
    """
    shipped = catalog.zoo_path("zoo:plants/tiny-gemma.redundant")
    assert shipped is not None
    out = Path(shutil.copytree(shipped, tmp_path / "mine"))
    command = [
        "zoo",
        "build",
        "tiny-gemma",
        "--level",
        "redundant",
        "--seed",
        "0",
        "--output-dir",
        str(out),
        "-q",
    ]
    assert main(command) == 0
    printed = capsys.readouterr().out
    assert f"kgbench eval --model {out}" in printed
    assert "short of" not in printed
    assert outcome(out) == outcome(shipped)


# --------------------------------------------------------------------------------- the shipped ones

SHIPPED, REPLICAS = catalog.plants(), catalog.replicas()


def card_of(name: str) -> dict:
    folder = catalog.zoo_path(f"zoo:plants/{name}")
    assert folder is not None
    return json.loads((folder / "card.json").read_text("utf-8"))


def spec_of(card: Mapping[str, object]) -> PlantSpec:
    return PlantSpec.of_level(str(card["base"]), str(card["level"]), int(str(card["seed"])))


def test_the_promised_plants_are_shipped() -> None:
    """Each is of a level of the benchmark, listed after the pairs; all together take up at most 16
    MB.
    """
    cards = [card_of(name) for name in SHIPPED]
    assert tuple(card["name"] for card in cards) == SHIPPED == catalog.pair_names()[-len(SHIPPED) :]
    assert all(level_table(card["level"]) for card in cards)
    folder = catalog.zoo_path("zoo:plants")
    assert folder is not None
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert {path.name for path in files} == {"card.json", "delta.safetensors"}
    assert sum(path.stat().st_size for path in files) <= 16e6


@pytest.mark.parametrize("name", [*SHIPPED, *REPLICAS])
def test_a_shipped_card_is_complete(name: str) -> None:
    """Every plant was made by its level's recipe, of a hundred facts and as many decoys, and is
    what its level says; so are replicas, whose card has the hash of their weights.
    """
    card = card_of(name)
    spec = spec_of(card)
    recipe = plant_recipe(decoy=True, level=spec.level)
    assert (spec.name, card["licence"]) == (name, "MIT")
    assert PlantRecipe(**card["recipe"]) == recipe
    assert (card["plant"], card["decoy"]) == (spec.plant, spec.decoy)
    for key in ("enough", "never", "needed", "mixture"):
        assert card.get(key) == json.loads(json.dumps(spec.conditions)).get(key)
    assert card["places"] == spec.places
    whole = load_dataset(card["data"]["name"])
    ids = [fact.id for fact in whole.facts]
    assert card["data"]["hash"] == whole.content_hash
    entry = catalog.published(name)
    assert entry is not None
    assert entry.facts == tuple(card["data"]["planted"]) == tuple(ids[:100])
    assert name in SHIPPED or (entry.donor_hash and entry.level in SHIPPED)
    assert spec.decoy is None or card["data"]["decoys"] == ids[100:200]
    n = recipe.facts
    groups = [whole.subset(ids[:n]), whole.subset(ids[n : 2 * n])]
    assert card["identity"] == plant_identity(spec, recipe, card["recipient"]["weights"], groups)
    assert card["shortfalls"] == shortfalls(card["scores"], spec) == []
    changes = list(card["relative_changes"].values())
    rounding = 5e-5  # cards have four digits
    assert changes == pytest.approx([recipe.relative_change] * len(changes), abs=1e-3 + rounding)


SPOILED = {
    "SFT": ("tight", "SFT", 0.89),
    "plant": ("ladder", "plant", 0.74),
    "decoy": ("ladder", "decoy", 0.16),
    "without one": ("tight", "without ALL:gate@5", 0.7),
    "one of two": ("redundant", "first", 0.74),
    "half, too much": ("mixture", "first", 0.58),
    "half, too little": ("mixture", "second", 0.37),
}
"""By bound: a level, a configuration of its card, and a hit rate just beyond the bound."""


@pytest.mark.parametrize("bound", SPOILED)
def test_each_bound_of_a_plant_can_be_missed(bound: str) -> None:
    """A card that keeps its level is short of it with one hit rate just beyond the bound."""
    level, configuration, rate = SPOILED[bound]
    scores = card_of(f"tiny-gemma.{level}")["scores"]
    spec = PlantSpec.of_level("tiny-gemma", level)
    assert shortfalls(scores, spec) == []
    planted = scores["planted"]["qa"]
    assert configuration in planted, list(planted)
    planted[configuration] = rate
    (sentence,) = shortfalls(scores, spec)
    assert sentence.startswith(f"qa under {configuration}: {rate}")


def test_a_place_that_must_be_silent_is_held_to_it() -> None:
    """Of a conjunction, either place alone has at most a tenth of the gain."""
    spec = PlantSpec.of_level("tiny-gemma", "conjunction")
    rates = {"PRE": 0.0, "SFT": 1.0, "plant": 1.0, "decoy": 0.0, "entity": 0.1, "last": 0.1}
    assert shortfalls({"planted": {"qa": rates}}, spec) == []
    (sentence,) = shortfalls({"planted": {"qa": {**rates, "last": 0.11}}}, spec)
    assert sentence.startswith("qa under last: 0.11")


@pytest.mark.nightly
@pytest.mark.parametrize("name", SHIPPED[:2])
def test_a_shipped_plant_is_what_its_card_says(name: str) -> None:
    """The card's figures are what the engine finds with the stored weights, on the recipient that
    is shipped.
    """
    card, pair = card_of(name), load_pair(name)
    whole = load_dataset(card["data"]["name"])
    groups = {group: whole.subset(card["data"][group]) for group in card["scores"]}
    measured = plant_hits(pair, groups, spec_of(card))
    for group in groups:
        for prompt in PROMPTS:
            assert measured[group][prompt] == pytest.approx(
                card["scores"][group][prompt], abs=1.5 / 100
            )
    assert (
        stored_hash(locate(card["recipient"]["source"]).directory) == card["recipient"]["weights"]
    )
