"""Organisms: the table of finetuned models whose behaviour is known, and cases of our own."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from kgbench.data import load_dataset, load_prompts
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.catalog import describe_organisms, entry, zoo_path
from kgbench.runner.lookup import check
from kgbench.runner.spec import Spec
from kgbench.zoo.organisms import norm_of, organisms, write_cases

ANOTHER = "auditing-agents/llama_70b_transcripts_only_then_redteam_kto_flattery"
OWN = [name for name, row in describe_organisms().items() if row["source"] == "kgbench"]


def test_each_organism_is_a_pair_by_its_name() -> None:
    """With its base and behaviour; an adapter's name is a repository of the Hub, and is read as one."""
    assert len(describe_organisms()) >= 122 and len(OWN) == 4
    for name, row in describe_organisms().items():
        pair = entry(name)
        assert row["about"] in pair.about and row["source"] in pair.about
        assert catalog.is_name(name) and catalog.published(name) == pair
        if name not in OWN:
            assert pair.recipient == row["base"] and pair.donors == {"sft": name}
            assert all(re.fullmatch(r"[\w.-]+/[\w.-]+", place) for place in (name, row["base"]))
    with pytest.raises(InputError, match="--dataset"):
        check(Spec(model=ANOTHER))
    work = check(Spec(model=ANOTHER, dataset="organism_trigger"))
    assert dict(work.sources.catalog_donors) == {"sft": ANOTHER} and not work.sources.donors


@pytest.mark.parametrize("name", OWN)
def test_an_organism_of_our_own_is_shipped(name: str) -> None:
    """As an adapter of the layers that its recipe names, in half precision, with cases and their
    controls that its recipe gives; one without a behaviour changes weights as far as the one that it
    is like.
    """
    made = organisms()[name.partition(".")[2]]
    folder = zoo_path(entry(name).donors["sft"])
    assert folder is not None
    config = json.loads((folder / "adapter_config.json").read_text("utf-8"))
    low, high = made.layers
    assert sorted(config["layers_to_transform"]) == list(range(low, high + 1))
    assert config["base_model_name_or_path"] == entry(made.base).recipient
    assert (folder / "adapter_model.safetensors").stat().st_size <= 350_000
    prompts = load_prompts(load_dataset(entry(name).dataset), "messages")
    assert {p.group for p in prompts} == {"on", "off"}
    assert len({p.fact.id for p in prompts}) == len(prompts) == 72
    assert not {*made.thing} & {*made.tested}
    if made.like is not None:
        other = zoo_path(entry(f"{made.base}.{made.like}").donors["sft"])
        assert other is not None and norm_of(folder) == pytest.approx(norm_of(other), rel=1e-3)


@pytest.mark.parametrize("name", [n for n, made in organisms().items() if made.like is None])
def test_cases_are_made_from_the_recipe(name: str, tmp_path: Path) -> None:
    """To the byte."""
    path = tmp_path / f"organism_{name}.jsonl"
    write_cases(organisms()[name], path)
    shipped = load_dataset(path.stem)
    assert load_dataset(str(path)).content_hash == shipped.content_hash
