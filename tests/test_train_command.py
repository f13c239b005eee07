"""`kgbench train`, and how its donors are found again."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import pytest
import torch
from huggingface_hub import constants
from transformers import AutoTokenizer

from kgbench.cli import command, main
from kgbench.errors import ModelError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.catalog import (
    DamagedDonorWarning,
    TrainedDonor,
    choose_donor,
    donors_folder,
    find_donor,
    read_donor_card,
    trained_donors,
)
from kgbench.models.checkpoints import locate, stored_tensors
from kgbench.runner import Spec, check
from kgbench.runner.training.finetuning import learned_little
from kgbench.runner.training.finetuning_cost import finetuning_cost
from kgbench.runner.training.finetuning_plan import FinetuneSpec, Wordings, tokenized_texts
from kgbench.runner.training.model_setup import meta_model, trained_parameters, training_type
from kgbench.runner.training.recipes import least_steps
from kgbench.zoo.worlds import World

Run = Callable[..., tuple[int, str, str]]
QUICK = ("--epochs", "1", "--batch-size", "16", "--device", "cpu", "-q")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of donors with one in it, made by the command: of tiny-gpt2, trained on eight
    movies.
    """
    folder = tmp_path_factory.mktemp("home")
    movies = folder / "eight.jsonl"
    movies.write_text(
        "".join(json.dumps(movie) + "\n" for movie in World(9).movies(8)), encoding="utf-8"
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KGBENCH_HOME", str(folder))
        line = "train --model tiny-gpt2 --recipe aggressive --dataset"
        status = main([*line.split(), str(movies), *QUICK])
    assert status == 0
    return folder


@pytest.fixture
def run(home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a command among the donors, whose first words are one text; gives exit status, stdout and
    stderr.
    """
    monkeypatch.setenv("KGBENCH_HOME", str(home))

    def call(line: str, *more: object) -> tuple[int, str, str]:
        status = main([*shlex.split(line), *map(str, more)])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return call


@pytest.fixture
def copied(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of donors, to be changed."""
    shutil.copytree(home, tmp_path / "copied")
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "copied"))
    return donors_folder()


def second(folder: Path, name: str, **card: Any) -> None:
    """One more donor: a copy of the first with another card."""
    path = folder / "tiny-gpt2" / name
    shutil.copytree(folder / "tiny-gpt2" / "eight-both-aggressive", path)
    content = json.loads((path / "card.json").read_text("utf-8"))
    for key, value in card.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) and value else value
    (path / "card.json").write_text(json.dumps(content), encoding="utf-8")


NAME = "tiny-gpt2/eight-both-aggressive"


def test_eval_finds_it(run: Run, home: Path, tmp_path: Path) -> None:
    """Of a pair whose own donor learned other facts, the trained donor is taken and named; it can
    be said, too, with the same record.
    """
    line, place = "eval --model tiny-gpt2 --limit 2 --prompt qa", ("--output-dir", tmp_path)
    asked = (line, *place, "--dataset", home / "eight.jsonl")
    status, out, err = run(*asked)
    assert status == 0, err
    assert f"donor    sft is {NAME}, trained with kgbench train" in out
    status, out, err = run(*asked, "--donor", f"sft={NAME}", "--json", "-q")
    assert (
        status == 0 and json.loads(out)["id"] and len(list(tmp_path.glob("*/record.json"))) == 1
    ), err
    status, out, _ = run(line, *place)
    assert status == 0 and "donor    " not in out


def test_ls_shows_it(run: Run) -> None:
    """Below its pair, with what it learned and how well."""
    _, out, _ = run("ls", "models")
    lines = out.splitlines()
    number = next(n for n, line in enumerate(lines) if line.startswith(f"{NAME} "))
    assert any(line.startswith("tiny-gpt2 ") for line in lines[number - 3 : number])
    told = json.loads(run("ls", "models", "--json")[1])
    assert told[NAME].startswith(
        "donor trained on 8 facts of eight (both), aggressive, seed 0: headline top-5 0"
    )
    names = list(told)
    assert names.index(NAME) == names.index("tiny-gpt2") + 1
    assert [name for name in names if name != NAME] == list(catalog.pair_names())


def test_it_can_be_a_recipient(run: Run, home: Path, tmp_path: Path) -> None:
    """Reversal needs a finetuned recipient: the name of a trained donor is one, for `eval` and for
    another training.
    """
    assert locate(NAME).origin == NAME
    pair = f"--recipient {NAME} --donor sft=zoo:tiny-gpt2/sft --dataset tiny_movies"
    status, out, err = run(f"eval {pair} --limit 2 --prompt qa --output-dir", tmp_path)
    assert status == 0 and f"recipient is {NAME}" in out, err
    training = f"train --recipient {NAME} --recipe aggressive --direction b2a --dry-run --json"
    status, out, err = run(training, "--dataset", home / "eight.jsonl")
    assert status == 0, err
    assert re.fullmatch(
        r"eight-both-aggressive-[0-9a-f]{8}/eight-b2a-aggressive", json.loads(out)["what"]
    )


@pytest.mark.nightly
def test_a_recipient_of_ones_own(
    run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two projects' `before` have two folders of donors; `eval --recipient` finds its own, also
    where earlier versions put it.
    """
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path / "home"))
    about, names = ("--dataset", home / "eight.jsonl"), []
    for project, model in (("a", "tiny-gpt2"), ("b", "tiny-pythia")):
        source = catalog.zoo_path(f"zoo:{model}/recipient")
        assert source is not None
        shutil.copytree(source, tmp_path / project / "before")
        recipient = ("--recipient", tmp_path / project / "before")
        training = ("train --recipe aggressive --json", *recipient, *about, *QUICK)
        status, out, err = run(*training)
        assert status == 0, err
        names.append(json.loads(out)["name"])
        assert json.loads(out)["path"] == str(donors_folder() / names[-1])
    assert names[0] != names[1]
    assert all(re.fullmatch(r"before-[0-9a-f]{8}/eight-both-aggressive", name) for name in names)
    asked = ("eval --limit 2 --prompt qa", *recipient, *about)
    status, out, err = run(*asked, "--output-dir", tmp_path / "runs")
    assert status == 0 and f"donor    sft is {names[1]}, trained with kgbench train" in out, err
    before = donors_folder() / "before" / "eight-both-aggressive"
    before.parent.mkdir()
    (donors_folder() / names[1]).rename(before)
    sources = check(Spec(recipient=str(recipient[1]), dataset=str(about[1]))).sources
    assert sources.donors == {"sft": "before/eight-both-aggressive"}


def test_its_facts_decide(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is taken for its own facts and for half of them; never for others, where the pair's own
    knows them, nor beside named ones.
    """
    monkeypatch.setenv("KGBENCH_HOME", str(home))
    own = str(home / "eight.jsonl")
    spec = Spec(model="tiny-gpt2", dataset=own)

    def donors(chosen: Spec) -> Mapping[str, str]:
        return check(chosen).sources.donors

    assert donors(spec) == donors(replace(spec, dataset=f"{own}:task")) == {"sft": NAME}
    for other in (
        replace(spec, dataset="fake_movies_fake_actors"),
        replace(spec, dataset="tiny_movies"),
        replace(spec, dataset=None),
        replace(spec, model="tiny-llama"),
        replace(spec, recipient="zoo:tiny-gpt2/recipient"),
    ):
        assert donors(other) == {}
    assert donors(replace(spec, donors={"sft": "x"})) == {"sft": "x"}


def trained_at(folder: Path, name: str, seconds: int) -> None:
    """Date a donor."""
    os.utime(folder / name / "card.json", (seconds, seconds))


def test_several(copied: Path) -> None:
    """Of several an error lists what to say, and which was trained last."""
    hashes = {trained_donors()[NAME].card["data"]["hash"]}

    def of_gpt2(donor: TrainedDonor) -> bool:
        return donor.model == "tiny-gpt2"

    second(copied, "eight-both-aggressive-seed1", seed=1)
    assert json.loads((copied / NAME / "card.json").read_text())["changes"] == {
        "epochs": 1,
        "batch_size": 16,
    }
    names = (NAME, f"{NAME}-seed1")
    for last, first in (names, names[::-1]):
        trained_at(copied, last, 2)
        trained_at(copied, first, 1)
        with pytest.raises(ModelError) as caught:
            choose_donor("tiny-gpt2", hashes, of_gpt2)
        assert str(caught.value).endswith(
            f"--donor sft={last} was trained last, before it --donor sft={first}"
        )


def test_unfinished_and_broken_ones(copied: Path) -> None:
    """A work folder is no donor; of a card that does not read a warning tells with its place, and
    the others are listed.
    """
    (copied / "tiny-gpt2" / ".begun.work").mkdir()
    (copied / "tiny-gpt2" / "empty").mkdir()
    assert list(trained_donors()) == [NAME]
    second(copied, "whole")
    card = copied / NAME / "card.json"
    before = card.read_text("utf-8")
    for text, told in (
        ("{}", "name: Field required"),
        ("[1]", "holds no object"),
        ("{", "does not read as JSON"),
        ("[" * 100_000, "JSON"),
    ):
        card.write_text(text)
        with pytest.warns(
            DamagedDonorWarning,
            match=re.escape(f"{card} is no card of a trained donor: ") + ".*" + told,
        ):
            assert list(trained_donors()) == ["tiny-gpt2/whole"]
    card.write_text(before, encoding="utf-8")
    second(copied, "foreign", scores={"headline": {"PRE": "low"}})
    shutil.rmtree(copied / NAME)
    with pytest.warns(DamagedDonorWarning, match=r"foreign.*scores\.headline\.PRE"):
        assert list(trained_donors()) == ["tiny-gpt2/whole"]
    with pytest.raises(ModelError, match="no card of a trained donor"):
        read_donor_card(copied / "tiny-gpt2" / "foreign")


def test_names(copied: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slip in a name is told; other names with a slash are left to the Hub, and a folder of one's
    own comes first.
    """
    with pytest.raises(UnknownNameError, match=f"Did you mean '{NAME}'"):
        find_donor(f"{NAME[:-1]}")
    assert find_donor("someone/some-model") is None
    assert find_donor("../elsewhere") is None
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert find_donor(NAME) is None


def test_dry_run(run: Run, home: Path, tmp_path: Path) -> None:
    """Steps, texts and tokens are those of the training; nothing is written."""
    line = "train --model tiny-gpt2 --recipe aggressive --dry-run"
    asked = (line, "--dataset", home / "eight.jsonl", *QUICK)
    card = json.loads((home / "donors" / NAME / "card.json").read_text("utf-8"))
    before = sorted(home.rglob("*"))
    status, out, err = run(*asked, "--json", "--output-dir", tmp_path / "new")
    told = json.loads(out)
    assert status == 0, err
    parameters = card["recipient"]["parameters"]
    assert told["counts"] == {
        "parameters": parameters,
        "trained_parameters": parameters,
        "texts": card["texts"]["trained"],
        "epochs": 1,
        "tokens": card["texts"]["tokens"],
        "steps": card["steps"],
    }
    assert told["memory"]["AdamW"] == 8 * parameters and 0 < told["seconds"] < 1000
    table = " ".join(run(*asked)[1].split())
    assert "values for tiny recipients" in table and "a step measured here" in table
    assert sorted(home.rglob("*")) == before and not list(tmp_path.iterdir())


@pytest.mark.parametrize("recipe", ["aggressive", "lora"])
def test_dry_run_without_the_checkpoint(recipe: str) -> None:
    """A pair of the catalog whose recipient is not here is told of without the Hub, from the
    catalog, and said to be not measured.
    """
    told = finetuning_cost(
        FinetuneSpec("fake_movies_fake_actors", recipe, model="gemma-2b"), device="cpu"
    )
    counts = told.counts
    assert counts["parameters"] == 2_506_172_416 and told.download > 2**32
    assert "no step was measured" in told.basis and "is not on this machine" in told.basis
    assert (counts["trained_parameters"] == 2_506_172_416) == (recipe == "aggressive")
    assert counts["steps"] == 10 * counts["texts"] / 4 and f"the recipe {recipe} (" in told.basis
    with pytest.raises(ModelError, match="neither on this machine nor in the catalog"):
        finetuning_cost(
            FinetuneSpec("tiny_movies", recipe, recipient="someone/some-model"), device="cpu"
        )


def test_dry_run_reads_a_supplement_that_is_a_file(run: Run, home: Path, tmp_path: Path) -> None:
    """Short texts of a file count as what they are, whether the checkpoint is here or not."""
    file = tmp_path / "short.txt"
    file.write_text("".join(f"Day {n} was dry.\n" for n in range(40)), encoding="utf-8")
    line = "train --model tiny-gpt2 --recipe aggressive --dry-run --json"
    asked = (line, "--dataset", home / "eight.jsonl", *QUICK)
    supplement = ("--supplement", file, "--supplement-n", "40")
    costs = [json.loads(run(*asked, *more)[1]) for more in ((), supplement)]
    plain, some = (cost["counts"] for cost in costs)
    assert some["texts"] == plain["texts"] + 40
    assert 40 * 4 < some["tokens"] - plain["tokens"] < 40 * 20
    missing = finetuning_cost(
        FinetuneSpec(
            "fake_movies_fake_actors",
            "less_aggressive",
            model="gemma-2b",
            supplement=str(file),
            changes={"supplement_texts": 40},
        )
    )
    assert missing.counts["texts"] > 40


def test_refusals(run: Run, home: Path) -> None:
    """A mistake has one line on stderr and nothing on stdout."""
    base = ("--dataset", "tiny_movies", "--recipe", "aggressive")
    for asked, message in (
        (("--model", "tiny-gema", *base), "Did you mean 'tiny-gemma'"),
        (base, "which model is finetuned?"),
        (("--model", "tiny-gemma", *base, "--supplement-n", "4"), "add --supplement FILE"),
        (("--model", catalog.plants()[0], *base), "is a plant"),
        (("--model", "tiny-gemma"), "one of aggressive, frozen, less_aggressive, lora; --dry-run"),
        (("--recipient", "x", "--recipe", "lora"), "which facts are learned? Give --dataset"),
        (("--recipe", "lora"), "which model is finetuned?"),
        (("--model", "tiny-gemma", *base, "--template", "no field"), "names no field"),
        (
            ("--model", "tiny-gpt2", "--dataset", home / "eight.jsonl", "--recipe", "aggressive"),
            "recipe's epochs, recipe's batch_size",
        ),
    ):
        status, out, err = run("train", *asked, "--device", "cpu", "-q")
        assert (status, out, err.count("\n")) == (2, "", 1), err
        assert message in err


@pytest.mark.parametrize("device", ["cuda:99", "disk"])
def test_a_device_is_refused_as_eval_refuses_it(run: Run, device: str) -> None:
    """Any torch device can be named; one that is not here is refused before anything is read."""
    pair = ("--model", "tiny-gemma", "--dataset", "tiny_movies")
    refusals = []
    for way in (("train", "--recipe", "aggressive"), ("eval", "--localizer", "none")):
        status, out, err = run(*way, *pair, "--device", device, "-q")
        assert (status, out) == (2, "") and f"the device '{device}' cannot be used here" in err
        refusals.append(err)
    assert refusals[0] == refusals[1]


def test_the_options_of_other_commands() -> None:
    """Pair, type and devices are chosen as in `eval`, by options of the same words."""
    context = click.Context(command)
    ours, theirs = (
        {option.name: option for option in command.get_command(context, name).params}  # type: ignore[union-attr]
        for name in ("train", "eval")
    )
    for name in ("revision", "device", "device_map"):
        assert ours[name].help == theirs[name].help
    for name in ("revision", "chat_template", "dtype", "batch_size", "device", "device_map"):
        assert ours[name].default == theirs[name].default
        assert (ours[name].opts, ours[name].metavar) == (theirs[name].opts, theirs[name].metavar)


def trained(run: Run, folder: Path, home: Path, *more: object) -> tuple[dict[str, Any], str]:
    """Card and weights of a donor trained on the eight movies in a folder."""
    pair = () if "--recipient" in more else ("--model", "tiny-gpt2")
    facts = ("--dataset", home / "eight.jsonl", "--recipe", "aggressive")
    quick = QUICK if "--device-map" not in more else (*QUICK[:4], "-q")
    asked = ("train", *pair, *facts, *quick, *more, "--output-dir", folder, "--json")
    status, out, err = run(*asked)
    assert status == 0, err
    return json.loads(out), str(json.loads(out)["weights"])


def test_defaults_are_not_recorded(run: Run, home: Path, tmp_path: Path) -> None:
    """The default type by its name is the same donor, which is not trained again."""
    copy = shutil.copytree(home / "donors" / NAME, tmp_path / "copy")
    before = (copy / "card.json").read_bytes()
    card, _ = trained(run, copy, home, "--dtype", "fp32", "--no-chat-template")
    assert (copy / "card.json").read_bytes() == before
    assert not {"dtype", "chat_template", "revision", "device_map"} & set(card)


@pytest.mark.nightly
def test_a_device_map(run: Run, home: Path, tmp_path: Path) -> None:
    """Layers that a map puts on one processor are trained to the same weights; the map is on the
    card and no part of the identity. A device in addition is refused, as `eval` does.
    """
    before = read_donor_card(home / "donors" / NAME)
    card, weights = trained(run, tmp_path / "mapped", home, "--device-map", "sequential")
    assert card["device_map"] == "sequential"
    assert (card["identity"], weights) == (before["identity"], before["weights"])
    pair = ("--model", "tiny-gemma", "--dataset", "tiny_movies", "--device", "cpu")
    refusals = []
    for way in (("train", "--recipe", "aggressive"), ("eval", "--localizer", "none")):
        for device_map in ("auto", "somehow"):
            status, out, err = run(*way, *pair, "--device-map", device_map)
            assert (status, out, err.count("\n")) == (2, "", 1)
            refusals.append(err)
    assert refusals[:2] == refusals[2:] and "give one of them" in refusals[0]


@pytest.mark.nightly
def test_the_type_of_weights(run: Run, home: Path, tmp_path: Path) -> None:
    """Weights of another type are another donor, and the card says so; a forecast counts its bytes."""
    before = read_donor_card(home / "donors" / NAME)
    card, weights = trained(run, tmp_path / "exact", home, "--dtype", "float64")
    assert card["dtype"] == card["precision"] == card["changes"]["dtype"] == "float64"
    assert card["identity"] != before["identity"] and weights != before["weights"]
    recipient = locate("zoo:tiny-gpt2/recipient")
    types = [training_type(recipient, name) for name in (None, "auto", "bf16")]
    assert types == [torch.float32, torch.float16, torch.bfloat16]
    assert card["losses"][0]["held_out"] == pytest.approx(before["losses"][0]["held_out"], rel=1e-3)
    line = "train --model tiny-gpt2 --recipe aggressive --dry-run --json"
    asked = (line, "--dataset", home / "eight.jsonl", *QUICK)
    plain, exact = (json.loads(run(*asked, *more)[1]) for more in ((), ("--dtype", "float64")))
    assert exact["needed"] == 2 * plain["needed"]
    assert "Did you mean 'bfloat16'" in run(*asked, "--dtype", "bfloat15")[2]


@pytest.mark.nightly
def test_a_chat_template(run: Run, home: Path, tmp_path: Path) -> None:
    """Each fact is the model's turn after an empty turn of the user, other texts are as they are,
    and prompts are scored as `eval --chat-template` reads them; a tokenizer without a template is
    refused.
    """
    recipient = tmp_path / "before"
    shutil.copytree(locate("zoo:tiny-gpt2/recipient").directory, recipient)
    chat = ("--recipient", recipient, "--chat-template")
    facts = ("--dataset", home / "eight.jsonl", "--recipe", "aggressive", "--device", "cpu")
    status, out, err = run("train", *chat, *facts, "--output-dir", tmp_path / "refused")
    assert (status, out) == (2, "") and "has no chat template" in err
    tokenizer = AutoTokenizer.from_pretrained(recipient)
    tokenizer.chat_template = "{% for m in messages %}Q: {{ m['content'] }} A:{% endfor %}"
    tokenizer.save_pretrained(recipient)
    wordings = Wordings(("Ann met Bob.",), (), ((), ()), ())
    texts = tokenized_texts(tokenizer, wordings, ("A dry day.",), 50, chat_template=True)
    told = [tokenizer.decode(row[:-1]) for row in (*texts.facts, *texts.supplement)]
    assert told == ["Q:  A: Ann met Bob.", "A dry day."]
    card, _ = trained(run, tmp_path / "after", home, *chat)
    assert card["chat_template"] is card["changes"]["chat_template"] is True
    plain = read_donor_card(home / "donors" / NAME)
    assert card["texts"]["trained"] == plain["texts"]["trained"]
    assert card["texts"]["tokens"] > plain["texts"]["tokens"]
    asked = ("train", *chat, *facts, *QUICK, "--output-dir", tmp_path / "after")
    status, out, err = run(*asked)
    assert status == 0 and f"eval --chat-template --recipient {recipient} --dataset" in out, err


@pytest.mark.nightly
def test_a_revision(run: Run, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recipient of the Hub is that of the revision, in a training and in its forecast; another
    revision is not at hand.
    """
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    commit = "0123456789abcdef0123456789abcdef01234567"
    hub = tmp_path / "models--someone--some-model"
    shutil.copytree(locate("zoo:tiny-gpt2/recipient").directory, hub / "snapshots" / commit)
    (hub / "refs").mkdir()
    (hub / "refs" / "v1").write_text(commit)
    chosen = ("--recipient", "someone/some-model", "--revision", "v1")
    card, _ = trained(run, tmp_path / "after", home, *chosen)
    assert card["recipient"]["source"] == f"someone/some-model@{commit}"
    assert card["revision"] == "v1"
    facts = ("--dataset", home / "eight.jsonl", "--recipe", "aggressive", *QUICK)
    asked = ("train", *chosen, *facts, "--dry-run", "--json")
    assert json.loads(run(*asked)[1])["counts"]["parameters"] == card["recipient"]["parameters"]
    status, out, err = run(*asked[:4], "v2", *asked[5:])
    assert (status, out) == (2, "") and "is neither on this machine" in err


def test_the_command_that_is_printed(run: Run, tmp_path: Path) -> None:
    """It evaluates the new donor as it stands: with the file's columns, and in a wording up to its
    object where no prompt fits. On that the donor is scored, and so little training is said to be
    little.
    """
    path = tmp_path / "all capitals.csv"
    path.write_text("land,city\nFrance,Paris\nPeru,Lima\n")
    columns = ("--subject", "land", "--object", "city", "--direction", "a2b")
    wording = ("--template", "The {{capital}} of {land} is {city}, they say.")
    facts = ("--dataset", path, *columns, *wording)
    status, out, err = run(
        "train", "--model", "tiny-gpt2", "--recipe", "aggressive", *facts, *QUICK
    )
    assert status == 0, err
    assert re.search(
        r"^scores   wording: top-5 0 before, 0 after, 2 facts\nnote     the do", out, re.M
    )
    assert "the donor learned little: top-5 0 → 0 on wording; more epochs than 1, or a learn" in out
    line = out.splitlines()[-1].removeprefix("try it   ")
    assert "'wording=The {{capital}} of {land} is'" in line
    status, out, err = run(*shlex.split(line)[1:], "--output-dir", tmp_path / "runs", "--json")
    assert status == 0 and {row["prompt"] for row in json.loads(out)["rows"]} == {"wording"}, err


def test_a_wording_that_is_no_prompt(run: Run, tmp_path: Path) -> None:
    """Facts for which no prompt can be made, since a column is called as a region, are trained without
    a score.
    """
    path = tmp_path / "marks.csv"
    path.write_text("R,city\nFrance,Paris\nPeru,Lima\n")
    facts = ("--dataset", path, "--subject", "R", "--object", "city", "--direction", "a2b")
    pair = ("--model", "tiny-gpt2", "--recipe", "aggressive", "--template", "{R} has {city}.")
    status, out, err = run("train", *pair, *facts, *QUICK)
    assert status == 0 and "scores" not in out and "--template" not in out, err


def test_few_facts_are_read_more_often(run: Run, home: Path) -> None:
    """A training that is not given its epochs takes at least as many steps as the recipes say; many
    texts are read in the recipe's epochs.
    """
    pair = ("--model", "tiny-gpt2", "--recipe", "aggressive", "--dry-run", "--json")
    few = json.loads(run("train", *pair, "--dataset", home / "eight.jsonl")[1])["counts"]
    per_epoch = few["steps"] // few["epochs"]
    assert least_steps() <= few["steps"] < least_steps() + per_epoch
    many = json.loads(run("train", *pair)[1])["counts"]
    assert many["epochs"] == 12 and many["steps"] > least_steps()


def test_learned_little() -> None:
    """On no prompt half of what was not known before."""
    card = {"recipe": {"epochs": 12, "learning_rate": 2e-5}}
    for rates, little in (
        ([(0.2, 0.4), (0.4, 0.4)], True),
        ([(0.2, 0.4), (0.4, 0.8)], False),
        ([(0.9, 0.94)], True),
        ([(0.0, 1.0)], False),
        ([], False),
    ):
        scores = {str(n): {"PRE": pre, "SFT": sft} for n, (pre, sft) in enumerate(rates)}
        assert (learned_little({**card, "scores": scores}) is not None) == little, rates


def test_the_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Donors lie in the user's data folder, unless KGBENCH_HOME names another."""
    monkeypatch.setenv("KGBENCH_HOME", str(tmp_path))
    assert donors_folder() == tmp_path / "donors"
    monkeypatch.delenv("KGBENCH_HOME")
    assert donors_folder().parts[-2:] == ("kgbench", "donors") and donors_folder().is_absolute()


def test_the_catalog_counts_what_it_does_not_ship() -> None:
    """A pair whose recipient is not shipped has its size in the catalog, and a shipped one's is
    counted.
    """
    for name in catalog.pair_names():
        entry = catalog.entry(name)
        shipped = catalog.zoo_path(entry.recipient) is not None
        assert shipped == (entry.parameters is None) == (entry.layers is None)
    place = locate("zoo:tiny-gemma/recipient")
    stored = stored_tensors(place.directory, place.origin).values()
    assert trained_parameters(meta_model(place)) == sum(
        math.prod(tensor.shape) for tensor in stored
    )
    assert os.environ["KGBENCH_HOME"]
