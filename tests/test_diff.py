"""What finetuning changed: norms and ranks that are known by construction, from files alone."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
import torch
from adapters import Made, maker
from click.testing import CliRunner
from pages import code
from torch import Tensor

from kgbench.cli import command
from kgbench.engine.weights import parts, tensors
from kgbench.errors import ModelError
from kgbench.models.catalog import zoo_path
from kgbench.models.checkpoints import locate
from kgbench.models.difference import Change, Difference, difference
from kgbench.models.pair import ModelPair
from kgbench.testing import PICO_FAMILIES, pico_pair


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    """Pairs with an adapter by family, each made once."""
    return maker(tmp_path_factory)


def saved(pair: ModelPair, folder: Path, part: str = "recipient") -> Path:
    """A model of a pair as a checkpoint."""
    model = pair.recipient if part == "recipient" else pair.donors[part]
    model.save_pretrained(folder)
    pair.tokenizer.save_pretrained(folder)
    return folder


def apart(base: Path, finetuned: Path) -> Difference:
    first = locate(str(base))
    return difference(first, locate(str(finetuned), None, first))


def changed(found: Difference) -> dict[tuple[int | None, str], Change]:
    return {(each.layer, each.component): each for each in found.changes if each.norm}


@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_norms_are_those_of_the_loaded_pair(family: str, tmp_path: Path) -> None:
    """Each component's relative norm is that of its weights in the loaded models, slices of fused
    projections too; a checkpoint does not differ from itself.
    """
    pair = pico_pair(family)
    base, donor = saved(pair, tmp_path / "base"), saved(pair, tmp_path / "sft", "sft")
    by_site = {(each.layer, each.component): each for each in apart(base, donor).changes}
    assert tuple(by_site) == pair.slots.sites
    for slot, site in enumerate(pair.slots.sites):
        ours, theirs = (tensors(pair, m, slot) for m in (pair.recipient, pair.donors["sft"]))
        squares = [
            sum(float(each.double().square().sum()) for each in several)
            for several in ([b - a for a, b in zip(ours, theirs, strict=True)], ours)
        ]
        assert by_site[site].norm == pytest.approx((squares[0] / squares[1]) ** 0.5, rel=1e-5)
    same = apart(base, base)
    assert not changed(same) and same.equal == same.tensors > 0
    assert (same.settings, same.tokenizer, same.chat_template, same.notes) == ({}, "", "", ())


@pytest.mark.parametrize("family", PICO_FAMILIES)
def test_an_edit_in_one_place_is_found_there_alone(family: str, tmp_path: Path) -> None:
    """A change of rank one, in `down` of layer 1 and then in `v` of layer 0, is the only one, has
    effective rank 1, and its norm; of two equal directions the rank is 2.
    """
    pair = pico_pair(family)
    base = saved(pair, tmp_path / "base")
    generator = torch.Generator().manual_seed(0)
    for site, rank in (((1, "down"), 1), ((0, "v"), 2)):
        part = parts(pair, pair.slots.index[site])[0]
        weight = pair.recipient.get_parameter(part.name)
        kept = weight.detach().clone()
        share = part.of(kept)
        change = directions(share, rank, generator)
        columns = torch.arange(kept.shape[part.dim]) if part.columns is None else part.columns
        with torch.no_grad():
            weight.index_add_(part.dim, columns, change)
            found = apart(base, saved(pair, tmp_path / f"edited{rank}"))
            weight.copy_(kept)
        ((place, alone),) = changed(found).items()
        assert place == site
        assert alone.rank == pytest.approx(rank, rel=1e-3)
        several = tensors(pair, pair.recipient, pair.slots.index[site])
        whole = sum(float(each.detach().square().sum()) for each in several) ** 0.5
        assert alone.norm == pytest.approx(float(change.norm()) / whole, rel=1e-3)


def directions(weight: Tensor, rank: int, generator: torch.Generator) -> Tensor:
    """A change with so many equal singular values."""
    left, right = (
        torch.linalg.qr(torch.randn(n, rank, generator=generator, dtype=weight.dtype)).Q
        for n in weight.shape
    )
    return left @ right.T


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_an_adapter_is_what_it_is_merged(made: Callable[[str], Made], family: str) -> None:
    """An adapter differs from its base as the merged model does."""
    _, whole, base, adapter = made(family)
    folder = saved(whole, adapter.parent / "merged", "sft")
    of_adapter, of_merged = changed(apart(base, adapter)), changed(apart(base, folder))
    assert of_adapter and of_adapter.keys() == of_merged.keys()
    for site, each in of_adapter.items():
        assert each.norm == pytest.approx(of_merged[site].norm, rel=1e-4)


def test_what_is_no_weight_is_compared_too(tmp_path: Path) -> None:
    """Settings, tokens and chat templates that differ are named, and rows that one has alone."""
    pair = pico_pair("llama")
    pair.tokenizer = deepcopy(pair.tokenizer)  # which pairs share
    pair.tokenizer.chat_template = None
    base, other = saved(pair, tmp_path / "base"), tmp_path / "other"
    shutil.copytree(base, other)
    config = json.loads((base / "config.json").read_text("utf-8"))
    (other / "config.json").write_text(json.dumps({**config, "rms_norm_eps": 0.5}), "utf-8")
    (other / "chat_template.jinja").write_text("{{ messages[0].content }}")
    found = apart(base, other)
    assert list(found.settings) == ["rms_norm_eps"] and found.settings["rms_norm_eps"][1] == 0.5
    assert (found.tokenizer, found.chat_template) == ("", "added")
    words = pair.recipient.config.vocab_size
    pair.recipient.resize_token_embeddings(words + 3)
    pair.tokenizer.add_tokens(["<one>", "<two>", "<three>"])
    found = apart(base, saved(pair, tmp_path / "longer"))
    assert found.tokenizer == "3 tokens added, 0 removed"
    assert any(f"the first {words:,} rows are compared" in note for note in found.notes)
    assert not changed(found)


def test_models_of_two_types_are_refused(tmp_path: Path) -> None:
    """They have no weights in common."""
    base, other = (saved(pico_pair(name), tmp_path / name) for name in ("llama", "gpt2"))
    with pytest.raises(ModelError, match=r"is of type 'llama' and .* of type 'gpt2'"):
        apart(base, other)


def test_each_model_goes_by_the_name_of_a_pair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before finetuning it is the pair's base, after it the pair's finetuned model, also with a
    folder of one's own as the other; a folder of that name comes first, and a base without a
    finetuned model is one only as BASE.
    """
    monkeypatch.chdir(tmp_path)

    def origins(*names: str) -> tuple[str, str]:
        answer = CliRunner().invoke(command, ["diff", *names, "--json"])
        assert not answer.exit_code, answer.output
        found = json.loads(answer.stdout)
        return found["base"], found["finetuned"]

    recipient, donor = "zoo:tiny-gemma/recipient", "zoo:tiny-gemma/sft"
    assert origins("tiny-gemma", "tiny-gemma") == (recipient, donor)
    plant = "tiny-gemma.one-0"
    assert origins("tiny-gemma", plant) == (recipient, f"zoo:plants/{plant}")
    shutil.copytree(str(zoo_path(recipient)), "own")
    assert origins("tiny-gemma", "own") == (recipient, "local:own")
    assert origins("own", "tiny-gemma") == ("local:own", donor)
    shutil.copytree("own", "tiny-gemma")
    assert origins(recipient, "tiny-gemma") == (recipient, "local:tiny-gemma")
    assert origins("tiny-gemma") == (recipient, donor)
    refused = CliRunner().invoke(command, ["diff", "own", "gemma-2b"])
    assert "gemma-2b has no finetuned model" in str(refused.exception)


def test_the_command(tmp_path: Path) -> None:
    """It takes the name of a pair, or two checkpoints; `--json` has every component, a picture one
    panel for each number.
    """
    picture = tmp_path / "change.svg"
    drawn = CliRunner().invoke(command, ["diff", "tiny-gemma", "-o", str(picture)])
    assert drawn.stdout.endswith(f"picture  {picture}\n")
    assert picture.read_text("utf-8").count("<image") == 4  # two panels, and their colour bars
    run = CliRunner().invoke(command, ["diff", "tiny-gemma", "--json"])
    answer = json.loads(run.stdout)
    assert (answer["tensors"], answer["equal"]) == (74, 2)
    table = CliRunner().invoke(command, ["diff", "zoo:tiny-gemma/recipient", "zoo:tiny-gemma/sft"])
    shown = code("output of kgbench diff")
    assert table.stdout.strip() == shown.strip()
