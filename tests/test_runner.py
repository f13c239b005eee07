"""From a specification to a record: what it holds, when it is computed anew, and how a killed run
goes on.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import forks
import numpy as np
import pytest
import torch

from kgbench import grafted_logits
from kgbench.data import Prompt, load_dataset
from kgbench.data import load_prompts as facts_in
from kgbench.engine import load_pair
from kgbench.errors import InputError, OutputError, UnknownNameError
from kgbench.records import RecordStore
from kgbench.runner import Run, Settings, Spec, dry_run, load_prompts, run_job, suites
from kgbench.runner.job import prepare_job
from kgbench.sites import CONFIGURATIONS
from kgbench.sites.configurations import configurations
from kgbench.testing import pico_tokenizer

ROOT = Path(__file__).parent.parent
DATASET = "fake_movies_fake_actors"


@pytest.fixture(scope="module")
def run(spec: Spec, settings: Settings) -> Run:
    """The job's first run."""
    return run_job(spec, settings)


def rows_of(settings: Settings, run: Run) -> list[dict[str, Any]]:
    """The per-fact rows stored for a run, sorted."""
    found = RecordStore(settings.output_dir).find(run.record.id)
    assert found is not None
    rows: list[dict[str, Any]] = found.facts().to_pylist()
    return rows


def close(ours: list[dict[str, Any]], theirs: list[dict[str, Any]], within: float) -> bool:
    """Whether the same rows hold the same scores, up to rounding."""
    scores = ("rank", "prob", "logprob", "logit_diff")
    named = [
        [{k: v for k, v in row.items() if k not in scores} for row in rows]
        for rows in (ours, theirs)
    ]
    figures = [[[row[k] for k in scores[1:]] for row in rows] for rows in (ours, theirs)]
    return named[0] == named[1] and bool(np.allclose(*figures, rtol=0, atol=within))


def digest(spec: Spec) -> str:
    return prepare_job(spec, Settings(device="cpu")).identity.digest()


# ------------------------------------------------------------------------------ what a record holds


def test_rows_are_what_the_engine_says(run: Run, spec: Spec, settings: Settings) -> None:
    """Every stored score is that of the grafted logits at the last token, for every prompt, fact
    and configuration.
    """
    pair = load_pair(recipient=spec.recipient, donors=spec.donors)
    rows = {(r["prompt"], r["fact"], r["graft"]): r for r in rows_of(settings, run)}
    assert len(rows) == 2 * 5 * len(CONFIGURATIONS)
    for prompt in load_prompts(DATASET, ["headline", "qa"], limit=5):
        logits = grafted_logits(pair, [prompt], CONFIGURATIONS, "rows")[0].double()
        target = pair.encoded(prompt).target
        for graft, of in zip(CONFIGURATIONS, logits, strict=True):
            row = rows[prompt.name, prompt.fact.id, graft]
            assert (row["target"], row["position"]) == (target, len(pair.encode(prompt)) - 1)
            others = torch.cat([of[:target], of[target + 1 :]])
            assert abs(row["rank"] - int((of >= of[target]).sum())) <= int(
                (others - of[target]).abs().lt(1e-4).sum()
            )
            np.testing.assert_allclose(row["logprob"], float(of.log_softmax(0)[target]), atol=1e-4)
            np.testing.assert_allclose(row["prob"], float(of.softmax(0)[target]), atol=1e-4)
            np.testing.assert_allclose(
                row["logit_diff"], float(of[target] - others.max()), atol=1e-4
            )


def test_a_record_s_rows_are_means_over_facts(run: Run, settings: Settings) -> None:
    """Each row's figures are the means of what is stored for its prompt and configuration; what was
    run is recorded.
    """
    stored = rows_of(settings, run)
    assert {(r.prompt, r.graft) for r in run.record.rows} == {
        (p, g) for p in ("headline", "qa") for g in CONFIGURATIONS
    }
    for row in run.record.rows:
        of = [r for r in stored if (r["prompt"], r["graft"]) == (row.prompt, row.graft)]
        assert len(of) == row.n == 5
        assert row.top50.value == sum(r["rank"] <= 50 for r in of) / 5
        np.testing.assert_allclose(row.mrr.value, np.mean([1 / r["rank"] for r in of]), rtol=1e-5)
        np.testing.assert_allclose(
            row.logprob.value, np.mean([r["logprob"] for r in of]), rtol=1e-5
        )
    assert run.record.cost.token_rows > 0
    assert run.record.environment.executor == "packed"
    assert run.record.notes["origins"] == {"recipient": "local:recipient", "sft": "local:sft"}


def test_no_place_on_this_machine_is_recorded(run: Run, settings: Settings) -> None:
    """The record's text holds no path to the checkpoints or the output."""
    text = (run.path / "record.json").read_text("utf-8")
    assert str(settings.output_dir.parent) not in text
    assert os.path.expanduser("~") not in text.replace('"~', "")


# ----------------------------------------------------------------------------------------- identity


def test_a_second_run_computes_nothing(run: Run, spec: Spec, settings: Settings) -> None:
    """The same job again is found, in the same place, with the same bytes."""
    before = {file: file.read_bytes() for file in run.path.iterdir()}
    told: list[object] = []
    again = run_job(spec, settings, lambda *of: told.append(of))
    assert (again.reused, run.reused) == (True, False)
    assert told == []
    assert again.path == run.path
    assert again.record == run.record
    assert {file: file.read_bytes() for file in run.path.iterdir()} == before


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "how",
    [
        {"batch_size": 1},
        {"batch_size": 3},
        {"executor": "rows"},
        {"attention": "eager"},
        {"device": "auto"},
    ],
)
def test_how_it_is_computed_is_no_part_of_the_identity(
    run: Run, spec: Spec, settings: Settings, tmp_path: Path, how: dict
) -> None:
    """Batch size, executor, device and attention change neither the identity nor, beyond rounding,
    a score.
    """
    assert run_job(spec, replace(settings, **how)).reused
    other = run_job(spec, replace(settings, output_dir=tmp_path, **how))
    assert not other.reused
    assert other.record.id == run.record.id
    assert close(
        rows_of(settings, run), rows_of(replace(settings, output_dir=tmp_path), other), 1e-4
    )


def test_every_part_of_the_identity_counts(
    run: Run, spec: Spec, folders: Mapping[str, Path], tmp_path: Path
) -> None:
    """Another data set, prompt, weight, tokenizer, localizer, state of its file, parameter,
    configuration, type, seed or limit is another record.
    """
    facts = tmp_path / "facts.jsonl"
    lines = [
        f'{{"id": "{i}", "first_actor": "Ann {c}", "second_actor": "Bo {c}"}}'
        for i, c in enumerate("ABCDE")
    ]
    facts.write_text("\n".join(lines) + "\n", "utf-8")
    plugin = tmp_path / "theirs.py"
    plugin.write_text(
        "from dataclasses import dataclass\nfrom kgbench.localizers.dynamic_graft import"
        " DynamicGraft\n\n\n@dataclass(frozen=True)\nclass Theirs(DynamicGraft):\n    name ="
        " 'theirs'\n    knob: int = 1\n\n\n@dataclass(frozen=True)\nclass Later(Theirs):\n   "
        " version = '2'\n"
    )
    copies = {
        name: str(shutil.copytree(folder, tmp_path / name)) for name, folder in folders.items()
    }
    for copy in copies.values():
        pico_tokenizer(bos=True).save_pretrained(copy)
    changes = {
        "dataset": {"dataset": str(facts)},
        "tokenizer": {"recipient": copies["recipient"], "donors": {"sft": copies["sft"]}},
        "prompts": {"prompts": ("headline",)},
        "prompt": {"prompts": ("headline", "control")},
        "weights": {"donors": {"sft": str(folders["recipient"])}},
        "recipient": {"recipient": str(folders["sft"])},
        "second donor": {"donors": {"sft": str(folders["sft"]), "task": str(folders["sft"])}},
        "that donor's graft": {
            "donors": {"sft": str(folders["sft"]), "task": str(folders["sft"])},
            "grafts": ("FE=task",),
        },
        "localizer": {"localizer": "all"},
        "file": {"localizer": f"{plugin}:Theirs"},
        "parameter": {"localizer": f"{plugin}:Theirs", "localizer_args": {"knob": "2"}},
        "version": {"localizer": f"{plugin}:Later"},
        "configurations": {"grafts": ("FE",)},
        "layers": {"layers": "0-1"},
        "dtype": {"dtype": "float64"},
        "seed": {"seed": 1},
        "limit": {"limit": 4},
        "no limit": {"limit": None, "dataset": str(facts)},
    }
    found = {what: digest(replace(spec, **change)) for what, change in changes.items()}
    assert digest(spec) == run.record.id
    assert len({run.record.id, *found.values()}) == 1 + len(changes), found
    plugin.write_text(plugin.read_text() + "# changed\n")
    assert digest(replace(spec, **changes["file"])) not in found.values()
    assert digest(replace(spec, metric="top1")) == run.record.id, (
        "the metric of the ratios is told from the same rows"
    )


def test_another_metric_of_the_same_rows(run: Run, spec: Spec, settings: Settings) -> None:
    """Asking for the ratios on another metric computes no forward; the record on disk stays."""
    other = run_job(replace(spec, metric="logprob"), settings)
    assert other.reused
    assert other.record.metric == "logprob"
    assert other.record.rows[0].top5 == run.record.rows[0].top5
    assert run_job(spec, settings).record == run.record


# ------------------------------------------------------------------------------- killed and resumed

KILLED = """
import os, sys
from kgbench import evaluate
from kgbench.runner import run as running

recipient, sft, folder, how = sys.argv[1:]
compute, running.GROUP = running.run_group, 2

def killed_after_computing(*of):
    found = compute(*of)
    if how == "kill" and len(calls) == 4:
        os.kill(os.getpid(), 9)  # nothing is cleaned up, and what was computed last is lost
    return found

calls = []
running.run_group = killed_after_computing

def progress(done, total, what):
    calls.append(done)
    if how == "interrupt" and len(calls) == 5:
        os.kill(os.getpid(), 2)

evaluate(recipient=recipient, donors={"sft": sft}, dataset="fake_movies_fake_actors", prompts=["headline", "qa"], limit=5,
         output_dir=folder, device="cpu", progress=progress)
"""


@pytest.mark.sampled(1)
@pytest.mark.posix
@pytest.mark.parametrize(("how", "done"), [("kill", 5), ("interrupt", 7)])
def test_a_killed_run_goes_on(
    run: Run,
    spec: Spec,
    settings: Settings,
    folders: Mapping[str, Path],
    tmp_path: Path,
    how: str,
    done: int,
) -> None:
    """After kill -9 or Ctrl-C there is no record; the next run takes up what was finished and ends
    in the rows of an unbroken run.
    """
    line = [
        sys.executable,
        "-c",
        KILLED,
        str(folders["recipient"]),
        str(folders["sft"]),
        str(tmp_path),
        how,
    ]
    died = forks.run(
        line,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        preexec_fn=forks.hears_interrupts,
    )
    assert (
        died.returncode == -signal.SIGKILL if how == "kill" else "KeyboardInterrupt" in died.stderr
    ), died.stderr
    store = RecordStore(tmp_path)
    assert list(store.scan()) == []
    assert len(store.journal(run.record.id).finished()) == done
    told: list[tuple[int, int, str]] = []
    here = Settings(output_dir=tmp_path, device="cpu", batch_size=2)
    resumed = run_job(spec, here, lambda *of: told.append(of))
    assert told[0][:2] == (done, 10)
    assert told[-1][:2] == (10, 10)
    assert resumed.record.id == run.record.id
    assert close(rows_of(settings, run), rows_of(here, resumed), 1e-4)
    assert not store.journal(run.record.id).folder.exists()


# -------------------------------------------------------------------------------------- what is run


def test_the_plain_forward_is_timed_on_one_of_several_groups(
    spec: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Groups of a template in between take the time per prompt of the last one that was timed."""
    from kgbench.runner import measure
    from kgbench.runner import run as running

    timed: list[tuple[str, int]] = []

    def plain_seconds(engine: object, prompts: Sequence[Prompt]) -> float:
        timed.append((prompts[0].name, len(prompts)))
        return 3.0 * len(prompts)

    monkeypatch.setattr(running, "GROUP", 1)
    monkeypatch.setattr(running, "PLAIN_EVERY", 3)
    monkeypatch.setattr(measure, "plain_seconds", plain_seconds)
    cost = run_job(spec, Settings(output_dir=tmp_path, device="cpu")).record.cost
    assert timed == [("headline", 1)] * 4 + [("qa", 1)] * 4  # two of five groups, twice each
    assert cost.plain_forward_ratio.value == pytest.approx(cost.seconds / (3.0 * 10), rel=1e-4)


def test_configurations_of_a_suite() -> None:
    """PRE, SFT and ALL always, each graft once in canonical form, and the complements that
    necessity needs.
    """
    suite = configurations(CONFIGURATIONS[3:])
    assert tuple(suite) == CONFIGURATIONS
    assert suite["FE+LT"] == "(FE+LT)^C"
    assert suite["(FE+LT)^C"] == "FE+LT"
    assert list(configurations(("FE ", "FE", "PRE", "FE=sft"))) == [
        "PRE",
        "SFT",
        "ALL",
        "FE",
        "FE^C",
    ]
    assert configurations(("LT:o",))["LT:o"] == "ALL; LT:o=recipient"
    assert list(configurations(("FE", "LT@1"), "0-1/2")) == [
        "PRE",
        "SFT",
        "ALL",
        "FE@0-1/2",
        "LT@1",
        "ALL; FE@0-1/2=recipient",
        "ALL; LT@1=recipient",
    ]
    with pytest.raises(InputError, match="lies outside the layers"):
        configurations(("FE:emb",), "0-1/2")
    assert "pathways@1" in suites()


def test_dry_run_forecasts_and_writes_nothing(
    run: Run, spec: Spec, settings: Settings, tmp_path: Path
) -> None:
    """The forecast counts what the run computes, knows a finished one, and leaves the folder as it
    was.
    """
    cost, known = dry_run(spec, replace(settings, output_dir=tmp_path)), dry_run(spec, settings)
    assert list(tmp_path.iterdir()) == []
    assert (cost.done, known.done, known.seconds) == (False, True, 0.0) and cost.seconds > 0
    counts = {"configurations": 9, "prompts": 10}
    counts |= {name: getattr(run.record.cost, name) for name in ("forwards", "token_rows")}
    assert counts.items() <= cost.counts.items()
    assert cost.memory["weights"] > 0


def test_wrong_input_is_found_before_anything_is_computed(
    spec: Spec, settings: Settings, tmp_path: Path
) -> None:
    """Grafts that do not fit the model, lacking facts, and places that cannot be written; names and
    options are refused as tests/golden has it.
    """
    cases = [
        (UnknownNameError, "'gate'", {"grafts": ("FE:gate",)}),
        (InputError, "names nothing in a model of 3 layers", {"grafts": ("FE@first_quarter",)}),
        (InputError, "which facts", {"dataset": None}),
    ]
    for error, said, change in cases:
        with pytest.raises(error, match=said):
            run_job(replace(spec, **change), replace(settings, output_dir=tmp_path / "new"))
    with pytest.raises(InputError, match="device 'gpu:9'"):
        run_job(spec, replace(settings, output_dir=tmp_path / "new", device="gpu:9"))
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        run_job(spec, replace(settings, output_dir=tmp_path / "file"))


def test_prompts_of_a_pair() -> None:
    """A pair's name stands for the facts that its donor learned."""
    assert load_prompts("tiny-gemma", ["headline"], limit=2) == facts_in(
        "tiny_movies", ["headline"], limit=2
    )
    assert load_prompts(load_dataset(DATASET), ["qa"], 1) == facts_in(DATASET, ["qa"], 1)


# ---------------------------------------------------------------------------- what users may expect


def test_layers_go_to_every_graft_but_the_ceiling() -> None:
    """`ALL` is always run in all layers as the ceiling; asked for with layers it is run in those
    too.
    """
    found = configurations(("ALL", "FE", "PRE"), "second_half")
    assert list(found)[:4] == ["PRE", "SFT", "ALL", "ALL@second_half"]
    assert found["FE@second_half"] == "ALL; FE@second_half=recipient"
    assert found["ALL; FE@second_half=recipient"] == "FE@second_half"


def test_the_only_donor_may_have_any_name(spec: Spec, run: Run, tmp_path: Path) -> None:
    """A pair whose only donor is not called `sft` gives the same figures."""
    other = run_job(
        replace(spec, donors={"tuned": spec.donors["sft"]}),
        Settings(output_dir=tmp_path, device="cpu"),
    )
    assert other.record.rows == run.record.rows


def test_prompts_keep_their_order(spec: Spec, tmp_path: Path) -> None:
    """Rows come in the order in which prompts were asked for."""
    found = run_job(
        replace(spec, prompts=("qa", "headline"), limit=2),
        Settings(output_dir=tmp_path, device="cpu"),
    )
    assert list(dict.fromkeys(row.prompt for row in found.record.rows)) == ["qa", "headline"]
