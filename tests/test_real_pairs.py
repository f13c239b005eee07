"""The catalog's real pairs: forecast without network, refused where the Hub is needed, loaded from
checkpoints of their published shape.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import forks
import pytest
import torch
from real_pairs import PUBLISHED, published_config, write_pair
from transformers import AutoModelForCausalLM

import kgbench
from kgbench.cli import command, main
from kgbench.errors import ModelError
from kgbench.harness.model import KgbenchLM
from kgbench.leaderboard.entries import read_entries
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.records import RecordStore

ROOT = Path(__file__).parent.parent
REAL = tuple(
    name
    for name, pair in ((name, catalog.entry(name)) for name in catalog.pair_names())
    if pair.like is not None and "/" in pair.recipient
)
"""Those of the Hub."""
FACTS = "fake_movies_fake_actors"
EVERYTHING = "ALL:all+ln_f+head"

real = pytest.mark.parametrize("name", REAL)


def forecasts(name: str) -> dict[str, list[str]]:
    """Every command that has --dry-run and is about a pair."""
    return {
        "eval": ["eval", "--model", name, "--limit", "3"],
        "eval of layers": f"eval --model {name} --limit 3 --suite layers --prompt qa".split(),
        "train": ["train", "--model", name, "--dataset", FACTS, "--recipe", "aggressive"],
        "train lora": ["train", "--model", name, "--dataset", FACTS, "--recipe", "lora"],
        "reproduce": ["reproduce", "articles", "--model", name],
    }


def runs(name: str) -> dict[str, list[str]]:
    """Every command that would load a pair."""
    pair = ["--model", name, "--donor", "sft=no-one/no-donor"]
    return {
        "eval": ["eval", *pair],
        "eval of a pair without a donor": ["eval", "--model", name],
        "train": ["train", "--model", name, "--dataset", FACTS, "--recipe", "aggressive", "-q"],
        "reproduce": ["reproduce", "articles", "--model", name, "-q"],
    }


CLOSED = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "0", "PYTHONPATH": str(ROOT)}
"""The Hub refuses every connection: port 9 of this machine is closed."""

ALL = """
import io, json, sys, time
from contextlib import redirect_stderr, redirect_stdout
from kgbench.cli import main
answers = {}
for what, arguments in json.load(sys.stdin).items():
    out, err, started = io.StringIO(), io.StringIO(), time.monotonic()
    with redirect_stdout(out), redirect_stderr(err):
        status = main(arguments)
    answers[what] = [status, out.getvalue(), err.getvalue()]
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, tuple[int, str, str]]:
    """Status, stdout and stderr of all forecasts and runs of all pairs, in one process that finds
    the Hub closed.
    """
    folder = tmp_path_factory.mktemp("closed")
    asked = {
        f"{name}: dry {what}": [*line, "--dry-run"]
        for name in REAL
        for what, line in forecasts(name).items()
    }
    asked |= {f"{name}: {what}": line for name in REAL for what, line in runs(name).items()}
    environment = {
        **os.environ,
        **CLOSED,
        "HF_HOME": str(folder / "hub"),
        "KGBENCH_HOME": str(folder / "home"),
    }
    done = forks.run(
        [sys.executable, "-c", ALL],
        input=json.dumps(asked),
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert sorted(path.name for path in folder.rglob("*.safetensors")) == []
    return {what: tuple(answer) for what, answer in json.loads(done.stdout).items()}


def dry_commands(group: click.Group) -> Iterator[str]:
    """Names of the commands that have --dry-run."""
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if isinstance(found, click.Group):
            yield from dry_commands(found)
        elif found is not None and any("--dry-run" in parameter.opts for parameter in found.params):
            yield name


def test_no_forecast_is_left_out() -> None:
    """Every command that has --dry-run is tried below, but for those of records and studies."""
    tried = {line[0] for line in forecasts("gemma-2b").values()}
    assert tried == set(dry_commands(command)) - {"submit", "sweep"}


@real
def test_the_catalog_has_the_published_shape(name: str) -> None:
    """What a forecast takes from the catalog is what the published configuration makes."""
    entry, config = catalog.entry(name), published_config(name)
    with torch.device("meta"):
        model: Any = AutoModelForCausalLM.from_config(config)
    said = PUBLISHED[name]
    assert entry.parameters == sum(parameter.numel() for parameter in model.parameters())
    assert (entry.layers, entry.width, entry.vocabulary) == (
        config.num_hidden_layers,
        config.hidden_size,
        said["vocab_size"],
    )
    assert (entry.tied, entry.stored) == (
        said.get("tie_word_embeddings", True),
        said.get("torch_dtype", "float32"),
    )
    like = catalog.entry(str(entry.like))
    assert (
        like.recipient.startswith("zoo:")
        and kgbench.load_pair(like.name).recipient.config.model_type == said["model_type"]
    )


def checked(kind: str, answer: tuple[int, str, str]) -> None:
    """A forecast that was given, with time, memory and disk; of a pair without a donor it says that
    the run would stop.
    """
    status, out, err = answer
    stops = kind.startswith("eval")
    assert status == (2 if stops else 0) and err == "", err
    assert ("the run would stop" in out) == stops
    assert "time" in out and "cannot" not in out and "–" not in out
    assert "memory" in out and "disk" in out
    assert kind.startswith("reproduce") or "is not on this machine" in " ".join(out.split())


@pytest.mark.sampled(6)
@real
@pytest.mark.parametrize("kind", list(forecasts("gemma-2b")))
def test_a_forecast_where_the_hub_is_closed(
    closed: Mapping[str, tuple[int, str, str]], name: str, kind: str
) -> None:
    """What a command would take is told where nothing answers, with time, memory and disk."""
    checked(kind, closed[f"{name}: dry {kind}"])


@pytest.mark.parametrize("kind", list(forecasts("gemma-2b")))
def test_a_forecast_offline(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Likewise with HF_HUB_OFFLINE, as in all these tests; nothing is written."""
    monkeypatch.chdir(tmp_path)
    status = main([*forecasts("llama-3.2-1b")[kind], "--dry-run"])
    captured = capsys.readouterr()
    checked(kind, (status, captured.out, captured.err))
    assert list(tmp_path.iterdir()) == []


@real
@pytest.mark.parametrize("kind", list(runs("gemma-2b")))
def test_a_run_where_the_hub_is_closed(
    closed: Mapping[str, tuple[int, str, str]], name: str, kind: str
) -> None:
    """A run that needs a checkpoint from the Hub ends with status 2 and one line, which names what
    is missing and what to do.
    """
    status, _, err = closed[f"{name}: {kind}"]
    assert status == 2 and err.startswith("kgbench: error: ") and err.count("\n") == 1, err
    if kind == "eval of a pair without a donor":
        assert (
            f"{name} has no finetuned model (donor) here" in err and "kgbench train --model" in err
        )
        return
    assert repr(catalog.entry(name).recipient) in err
    assert "the Hugging Face Hub cannot be reached" in err and "on this machine" in err


def test_a_forecast_says_what_the_pair_would_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Memory is that of the weights of both models with a head each, at the type asked for; a donor
    more adds a model.
    """
    entry = catalog.entry("gemma-2b")
    assert entry.parameters and entry.vocabulary and entry.width
    model = entry.parameters + entry.vocabulary * entry.width
    line = "eval --model gemma-2b --limit 2 --device cpu --json --dry-run --output-dir"
    asked = [*line.split(), str(tmp_path)]

    def told(*more: str) -> dict[str, Any]:
        assert main([*asked, *more]) == (0 if "--donor" in more else 2)
        return dict(json.loads(capsys.readouterr().out))

    whole = told()
    assert whole["memory"]["weights"] == 2 * 4 * model and whole["download"] == 2 * entry.parameters
    assert told("--dtype", "bfloat16")["memory"]["weights"] == 2 * 2 * model
    assert (
        told("--donor", "sft=no-one/a", "--donor", "task=no-one/b", "--graft", "FE=task; LT")[
            "memory"
        ]["weights"]
        == 3 * 4 * model
    )
    rows = whole["counts"]["token_rows"] + whole["counts"]["plain_token_rows"]
    assert whole["seconds"] == pytest.approx(2 * entry.parameters * rows / 1e11)
    (counts := dict(whole["counts"])).pop("forwards")
    text = ["--readout", "text", "--readout-arg", "samples=3", "--readout-arg", "temperature=1"]
    (written := dict(told(*text)["counts"])).pop("forwards")
    tokens = counts["configurations"] * 20 * counts["prompts"]
    assert written == {**counts, "token_rows": 3 * (counts["token_rows"] + tokens)}


def test_lm_eval_where_the_recipient_is_missing() -> None:
    """The model that lm-eval makes refuses in the same words."""
    with pytest.raises(
        ModelError, match=r"cannot be reached for 'google/gemma-1\.1-2b-it'.*no directory here"
    ):
        KgbenchLM.create_from_arg_string("pair=gemma-2b,donor=no-one/no-donor")


@pytest.mark.parametrize("again", ["rerun", "answers", "audit", "heads", "specificity", "tokens"])
def test_a_record_whose_checkpoints_are_missing(
    again: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A record of a real pair is not run again, and nothing is asked of it, where its checkpoints
    cannot be had.
    """
    shipped = next(read_entries(ROOT / "leaderboard" / "results"))
    record = shipped.record.model_copy(update={"model": "gemma-2b"})
    folder = RecordStore(tmp_path).write(record, shipped.facts())
    (folder / "sources.json").write_text('{"donors": {"sft": "no-one/no-donor"}}', "utf-8")
    assert main([again, str(folder), "-q"]) == 2
    out, err = capsys.readouterr()
    assert (
        out == ""
        and err.count("\n") == 1
        and "cannot be reached for 'google/gemma-1.1-2b-it'" in err
    )


# ------------------------------------------------------------------------------------------ loading


def test_the_length_that_rotary_angles_follow_from(tmp_path: Path) -> None:
    """Two checkpoints that read different numbers of tokens are a pair, unless positions are
    computed from that number.
    """
    folders = {}
    for length, kind in itertools.product((128, 256), ("default", "dynamic")):
        folder = folders[length, kind] = tmp_path / f"{kind}-{length}"
        shutil.copytree(locate("zoo:tiny-llama/recipient").directory, folder)
        config = json.loads((folder / "config.json").read_text("utf-8"))
        rope = {**config["rope_parameters"], "rope_type": kind, "factor": 2.0}
        (folder / "config.json").write_text(
            json.dumps({**config, "max_position_embeddings": length, "rope_parameters": rope}),
            "utf-8",
        )
    kgbench.load_pair(
        recipient=str(folders[256, "default"]), donors={"sft": str(folders[128, "default"])}
    )
    with pytest.raises(ModelError, match="differ in max_position_embeddings: 256 against 128"):
        kgbench.load_pair(
            recipient=str(folders[256, "dynamic"]), donors={"sft": str(folders[128, "dynamic"])}
        )


@pytest.fixture(scope="module", params=REAL)
def written(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, dict[str, Path]]:
    """A pair's name, and checkpoints of its published shape."""
    name: str = request.param
    return name, write_pair(name, tmp_path_factory.mktemp(name))


@pytest.fixture(scope="module")
def facts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Facts that the tokenizer can split."""
    path = tmp_path_factory.mktemp("facts") / "facts.jsonl"
    header = {
        "kgbench": 1,
        "subject": "actor",
        "object": "costar",
        "templates": {"stars": "{actor} {R:stars} {RP:in} a movie {P:with}"},
    }
    rows = [
        {"actor": f"{first} Lee", "costar": f"{second} Chen"}
        for first, second in zip("ABCDEF", "UVWXYZ", strict=True)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in (header, *rows)), "utf-8")
    return path


@pytest.mark.sampled(1)
def test_the_published_shape_loads(written: tuple[str, dict[str, Path]], facts: Path) -> None:
    """The pair passes the self-test of its family map, keeps what is published, and grafts between
    its own two models.
    """
    name, folders = written
    pair = kgbench.load_pair(
        recipient=str(folders["recipient"]), donors={"sft": str(folders["sft"])}
    )
    given, config = PUBLISHED[name], pair.recipient.config.to_dict()
    for key in (
        "vocab_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "n_head",
        "use_parallel_residual",
        "resid_pdrop",
    ):
        assert config.get(key) == given.get(key, config.get(key)), key
    prompts = kgbench.load_prompts(str(facts), ["stars"], limit=2)
    logits = {
        how: kgbench.grafted_logits(pair, prompts, ["FE", EVERYTHING], executor=how)
        for how in ("packed", "sequential")
    }
    assert torch.allclose(logits["packed"], logits["sequential"], atol=1e-4, rtol=1e-4)
    for graft, model in (("PRE", pair.recipient), (EVERYTHING, pair.donors["sft"])):
        found = kgbench.grafted_logits(pair, prompts[:1], [graft])[0, 0]
        with torch.no_grad():
            alone = model(torch.tensor([pair.encode(prompts[0])])).logits[0, -1]
        assert torch.allclose(found, alone, atol=1e-4, rtol=1e-4)
        assert found.shape == (given["vocab_size"],)


@pytest.mark.sampled(1)
def test_it_reads_the_weights_that_are_stored(written: tuple[str, dict[str, Path]]) -> None:
    """Every tensor is read from its file, in half precision and in shards too, and a donor of half
    precision is widened without loss.
    """
    name, folders = written
    pair = kgbench.load_pair(
        recipient=str(folders["recipient"]), donors={"sft": str(folders["sft"])}
    )
    plain = AutoModelForCausalLM.from_pretrained(folders["sft"], dtype=torch.float32)
    read = {key: value for key, value in pair.donors["sft"].state_dict().items()}
    assert all(torch.equal(value, read[key]) for key, value in plain.state_dict().items())
    assert len(list(folders["sft"].glob("*.safetensors"))) == (2 if name == "gemma-2b" else 1)


@pytest.mark.sampled(1)
def test_it_is_evaluated(
    written: tuple[str, dict[str, Path]],
    facts: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """`kgbench eval` on the two folders makes a record of all configurations; the same run in the
    stored type does, too.
    """
    name, folders = written
    pair = [
        "--recipient",
        str(folders["recipient"]),
        "--donor",
        f"sft={folders['sft']}",
        "--dataset",
        str(facts),
    ]
    for more in ([], ["--dtype", PUBLISHED[name].get("torch_dtype", "float32"), "--limit", "2"]):
        assert main(["eval", *pair, *more, "--output-dir", str(tmp_path), "--json", "-q"]) == 0
        rows = {row["graft"]: row for row in json.loads(capsys.readouterr().out)["rows"]}
        assert {"PRE", "SFT", "ALL", "FE", "LT", "FE+LT", "(FE+LT)^C"} <= set(rows)
        assert {row["n"] for row in rows.values()} == {2 if more else 6}
