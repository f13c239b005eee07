"""The factorial study: its design, its models, its effects, and that an interrupted run goes on."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from functools import cache
from itertools import combinations
from pathlib import Path

import forks
import numpy as np
import pytest
import torch

import kgbench
from kgbench import cli
from kgbench.data import load_prompts
from kgbench.engine import Engine
from kgbench.engine.selftest import packed_agrees, verify_pair
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import DataError, InputError, UnknownNameError
from kgbench.models.catalog import HOME
from kgbench.models.pair import ModelPair, prepare
from kgbench.paper.architectures import study_page
from kgbench.paper.architectures.design import DesignCell, Shape, Study, study_design
from kgbench.paper.architectures.factorial import (
    Findings,
    effects,
    factor_contrasts,
    findings,
    seed_deviation,
)
from kgbench.paper.architectures.run_rows import (
    KNOWN,
    PATHWAYS,
    RunAbout,
    RunFigures,
    RunRows,
    cut_from,
    cut_in,
    log_odds,
    read_rows,
    rows_path,
    table_of,
    write_rows,
)
from kgbench.paper.architectures.study_page import REPORT, write_study
from kgbench.paper.architectures.study_runs import cut_reading, finished, make_run, make_runs
from kgbench.paper.architectures.switched_model import SwitchedConfig, new_model, switched_family
from kgbench.testing import pico_tokenizer

CELLS = study_design().cells
SCALE = "recovery of LT − FE"
every_cell = pytest.mark.parametrize("cell", CELLS, ids=[cell.name for cell in CELLS])


def micro() -> Study:
    """The study with models, world and training of a few seconds; its criteria are any."""
    shape = Shape(width=16, inner={"gelu": 24, "gated": 16})
    training = study_design().training
    stage = training.pretraining.__class__
    short = training.model_copy(
        update={
            "vocabulary": 600,
            "tokenizer_movies": 20,
            "lasting_movies": 4,
            "passing_movies": 1,
            "finetunings": 2,
            "pretraining": stage(1, 8, 1e-3, 2, 0.0),
            "finetuning": stage(1, 8, 1e-3, 2, 0.0),
        }
    )
    update = {
        "dataset": "tiny_movies:first4",
        "known": 2,
        "training": short,
        "shapes": {"4": shape, "8": shape},
    }
    return study_design().model_copy(update=update)


@cache
def random_pair(cell: DesignCell) -> ModelPair:
    """A pair of the cell's architecture with random weights, in double precision."""
    tokenizer = pico_tokenizer(bos=False)
    small = {"hidden_size": 16, "intermediate_size": 24, "max_position_embeddings": 128}
    made = []
    for seed in (0, 1):
        config = SwitchedConfig(
            vocab_size=len(tokenizer), **{**study_design().config(cell), **small}
        )
        model = new_model(config, seed).double()
        generator = torch.Generator().manual_seed(seed)
        for weight in model.parameters():
            noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
            weight.data = 0.25 * noise + (weight.ndim == 1)
        made.append(prepare(model))
    return ModelPair(cell.name, made[0], {"sft": made[1]}, tokenizer, switched_family())


def test_the_whole_design_tells_all_effects_apart() -> None:
    """Sixteen cells under three seeds, the half first; fifteen orthogonal contrasts, none aliased."""
    design = study_design()
    signs = np.array([cell.signs for cell in design.cells])
    assert len({tuple(row) for row in signs}) == 16 and len(design.runs) == 48
    assert (signs[:8].prod(1) == 1).all()
    found = factor_contrasts([factor.name for factor in design.factors])
    columns = np.array([contrast.column(signs) for contrast in found])
    assert np.array_equal(columns @ columns.T, 16 * np.eye(15))


def test_weights_inside_layers_are_alike() -> None:
    """Cells differ by less than a hundredth in the weights that finetuning changes."""
    counts = [
        sum(
            weight.numel()
            for weight in new_model(
                SwitchedConfig(vocab_size=8, **study_design().config(cell)), 0
            ).layers.parameters()
        )
        for cell in CELLS
    ]
    assert max(counts) / min(counts) < 1.01


def test_cells_differ_in_their_switches_alone() -> None:
    """Each switch changes what is computed: models of the same seed give different logits in every
    two cells.
    """
    ids = torch.arange(12)[None]
    base = {"vocab_size": 50, "hidden_size": 16, "intermediate_size": 24}
    with torch.no_grad():
        logits = [
            new_model(
                SwitchedConfig(**base, num_hidden_layers=n, parallel=p, rotary=r, gated=g), 0
            )(ids).logits
            for n, p, r, g in np.array(np.meshgrid([2, 3], *[(0, 1)] * 3)).reshape(4, -1).T.tolist()
        ]
    assert all(not torch.allclose(one, other) for one, other in combinations(logits, 2))


@pytest.mark.sampled(5)
@every_cell
def test_family_map_holds(cell: DesignCell) -> None:
    """The engine's laws hold on every cell, and the packed executor agrees with that of rows."""
    pair = random_pair(cell)
    verify_pair(pair)
    assert packed_agrees(pair) is None
    assert ("pos" in pair.family.components) == (cell.levels["positions"] == "learned")
    assert ("gate" in pair.family.components) == (cell.levels["ffn"] == "gated")


@pytest.mark.sampled(2)
@every_cell
def test_cutting_is_masking(cell: DesignCell) -> None:
    """LT that does not attend to FE gives the logits of a model whose attention weights to FE are 0
    there, in all executors.
    """
    pair = random_pair(cell)
    prompts = load_prompts("tiny_movies", ["headline"], limit=2)
    both = graft_treatments(pair, prompts, parse_configuration("SFT"))
    cut = cut_reading(pair, prompts, both, [1])
    found = [
        e.logits(e.plan_treatments(prompts, [both, cut]))[:, :, 0]
        for e in (Engine(pair, name) for name in ("packed", "rows", "sequential"))
    ]
    assert max(float((found[0] - other).abs().max()) for other in found[1:]) < 1e-9
    for number, prompt in enumerate(prompts):
        encoded = pair.encoded(prompt)
        hidden = torch.full(
            (len(encoded.ids),) * 2, torch.finfo(torch.float64).min, dtype=torch.float64
        ).triu(1)
        masked = hidden.clone()
        masked[-1, list(encoded.regions["FE"])] = torch.finfo(torch.float64).min
        donor = pair.donors["sft"]
        attention = donor.layers[1].attention
        own = attention.forward
        attention.forward = lambda x, attention_mask, own=own, masked=masked, **more: own(
            x, attention_mask=masked[None, None], **more
        )
        with torch.no_grad():
            wanted = donor(torch.tensor([encoded.ids]), attention_mask=hidden[None, None]).logits[
                0, -1
            ]
        del attention.forward
        assert float((found[0][number, 1] - wanted).abs().max()) < 1e-9
        assert float((found[0][number, 0] - wanted).abs().max()) > 1e-6


def test_training_on_labels_is_next_token_prediction() -> None:
    """The loss is the mean negative log-probability of the next tokens, those labelled -100 left
    out.
    """
    model = new_model(SwitchedConfig(vocab_size=20, hidden_size=16, intermediate_size=24), 0)
    ids = torch.tensor([[3, 1, 4, 1, 5], [9, 2, 6, 0, 0]])
    labels = ids.masked_fill(ids == 0, -100)
    out = model(ids, labels=labels)
    logs = out.logits.log_softmax(-1)
    wanted = [
        -logs[row, at - 1, int(ids[row, at])]
        for row, last in ((0, 5), (1, 3))
        for at in range(1, last)
    ]
    assert torch.allclose(out.loss, torch.stack(wanted).mean())


def values_of(
    signs: np.ndarray, seeds: np.ndarray, rng: np.random.Generator, effect: float = 0.0
) -> np.ndarray:
    """Values with an effect of the first factor, a deviation of each seed and an error of standard
    deviation 1.
    """
    return effect * signs[:, 0] / 2 + 3 * rng.normal(size=9)[seeds] + rng.normal(size=len(seeds))


def crossed(seeds: int) -> tuple[np.ndarray, np.ndarray]:
    signs = np.array([cell.signs for cell in CELLS])
    return np.tile(signs, (seeds, 1)), np.repeat(np.arange(seeds), len(signs))


def test_effect_is_the_difference_of_means() -> None:
    """In a balanced design; its interval is Student's with the error that an analysis of variance
    leaves, free of the seeds.
    """
    signs, seeds = crossed(3)
    chosen = factor_contrasts("abcd")
    rng = np.random.default_rng(0)
    values = values_of(signs, seeds, rng)
    found = effects(values, signs, seeds, chosen)
    for contrast, figure in zip(chosen, found, strict=True):
        column = contrast.column(signs)
        assert figure.value == pytest.approx(values[column > 0].mean() - values[column < 0].mean())
        assert figure.n == 48
    shifted = effects(values + 100.0 * seeds, signs, seeds, chosen)
    assert [f.low for f in shifted] == pytest.approx([f.low for f in found]), (
        "a seed's deviation drops out"
    )
    free = values - np.array([values[seeds == seed].mean() for seed in seeds])
    cells = np.array([free.reshape(3, 16)[:, cell].mean() for cell in range(16)])
    error = ((free - np.tile(cells, 3)) ** 2).sum() / 30
    assert (found[0].high - found[0].low) / 2 == pytest.approx(
        2.042272 * np.sqrt(error / 12), rel=1e-5
    )


def test_interval_of_an_effect_holds_the_truth() -> None:
    """In 95 % of simulated studies, with deviations of seeds three times the error; also where some
    runs are missing.
    """
    rng = np.random.default_rng(1)
    signs, seeds = crossed(3)
    chosen = factor_contrasts("abcd")
    for kept in (np.arange(48), np.delete(np.arange(48), [5, 9, 20])):
        some = signs[kept], seeds[kept]
        held = 0
        for _ in range(600):
            figure = effects(values_of(*some, rng, effect=0.8), *some, chosen)[0]
            held += (
                figure.low is not None
                and figure.high is not None
                and figure.low <= 0.8 <= figure.high
            )
        assert 0.93 <= held / 600 <= 0.97


def test_effects_without_enough_runs_say_why() -> None:
    """One seed leaves a value without an interval, part of the cells nothing."""
    signs, seeds = crossed(1)
    chosen = factor_contrasts("abcd")
    alone = effects(np.arange(16.0), signs, seeds, chosen)[0]
    assert alone.value is not None
    assert alone.low is None
    assert "second seed" in (alone.undefined or "")
    for n in (0, 5):
        none = effects(np.arange(float(n)), signs[:n], seeds[:n], chosen)[0]
        assert none.value is None and f"{n} runs" in (none.undefined or "")
    assert seed_deviation(np.arange(16.0), signs, seeds, chosen) is None
    # One cell under two seeds: as many effects as runs.
    one = (np.arange(2.0), signs[[0, 0]], np.array([0, 1]), chosen)
    assert seed_deviation(*one) is None


def test_seed_deviation_is_that_of_mean_squares() -> None:
    """Close to the truth over many seeds."""
    signs, seeds = crossed(9)
    chosen = factor_contrasts("abcd")
    values = values_of(signs, seeds, np.random.default_rng(2))
    found = seed_deviation(values, signs, seeds, chosen)
    assert found is not None and found[1] == pytest.approx(1, abs=0.3)
    means = values.reshape(9, 16).mean(1)
    assert found[0] ** 2 + found[1] ** 2 / 16 == pytest.approx(means.var(ddof=1))


def test_log_odds() -> None:
    """Finite at both ends, odd about a half, and near the plain ones in between."""
    assert log_odds(0, 10) == pytest.approx(-log_odds(10, 10)) == pytest.approx(np.log(0.5 / 10.5))
    assert log_odds(300, 1000) == pytest.approx(np.log(0.3 / 0.7), abs=0.01)


def invented(run_number: int, lt: int, fe: int, design: Study | None = None) -> RunRows:
    """Rows of a run in which so many of 20 facts are answered by LT and by FE, and layer 2 alone is
    read.
    """
    design = design or study_design()
    run = design.runs[run_number]
    layers = int(run.cell.levels["layers"])

    def ranks(hits: int) -> np.ndarray:
        return np.where(np.arange(20) < hits, 1, 99)

    blocks = []
    for prompt in design.prompts:
        hits = dict(zip(PATHWAYS, (0, 20, fe, lt, 18, 0), strict=True))
        hits |= {cut_in(n): 6 if n == 2 else 18 for n in range(layers)}
        hits |= {cut_from(n): 4 if n <= 2 else 18 for n in range(layers)}
        blocks += [(prompt, name, ranks(count)) for name, count in hits.items()]
        blocks.append((prompt, KNOWN, np.ones(10, int)))
    from kgbench.data import load_dataset

    about = RunAbout(
        run=run.name,
        levels=run.cell.levels,
        seed=run.seed,
        identity=design.identity(run, load_dataset(design.dataset).content_hash),
        layers=layers,
        layer_weights=1,
        weights=2,
        finetunings=1,
        steps={"recipient": 5, "sft-1": 7},
        seconds={"recipient": 1.0, "sft-1": 2.0},
        kgbench="0",
        packages={},
        platform="",
    )
    return RunRows(about, table_of(blocks))


def test_figures_of_a_run() -> None:
    """Recoveries, log-odds in counts, shortfalls, and the layer whose cut costs most."""
    run = RunFigures(study_design(), invented(0, lt=15, fe=2))
    assert run.recovery("qa", "LT").value == 0.75 and run.recovery("qa", "FE").value == 0.1
    assert run.outcome("LT − FE") == pytest.approx(np.log(15.5 / 5.5) - np.log(2.5 / 18.5))
    assert run.outcome("recovery of LT − FE") == pytest.approx(0.75 - 0.1)
    assert run.outcome("recovery of FE") == pytest.approx(0.1)
    assert run.shortfalls == ()
    assert (run.read_layer.value, run.half_read.value) == (2, 2)
    assert run.losses.mean(1).tolist() == pytest.approx([0, 0, 0.6, 0])


def test_layer_is_undefined_where_nothing_is_lost() -> None:
    """A run whose cuts cost nothing has no layer, and no depth."""
    rows = invented(0, lt=1, fe=1)
    table = rows.table.to_pydict()
    cut = ["cut" in name for name in table["configuration"]]
    table["rank"] = [
        1 if at < 18 and c else r
        for at, c, r in zip(table["fact"], cut, table["rank"], strict=True)
    ]
    import pyarrow as pa

    run = RunFigures(study_design(), RunRows(rows.about, pa.table(table, schema=rows.table.schema)))
    assert run.read_layer.value is None
    assert run.half_read.value is None
    assert run.outcome("depth") is None


def test_what_is_missing_is_told() -> None:
    """Effects are of the runs that are in, and the page says how many that are."""
    design = study_design()
    rows = [invented(number, lt=5 + number % 7, fe=4) for number in range(len(design.runs))]
    most = findings(design, rows[:40])
    assert all(effect.numbers is not None for effect in most.effects("LT − FE"))
    assert "40 of 48 runs are in" in study_page._page(most)


def test_one_cell_moves_every_effect_alike() -> None:
    """The far cell's share is what each effect gains, with the cell's sign, over that of a study
    in which this cell is as the mean of the others.
    """
    design = study_design()
    far = design.cells[6]

    def study(hits: int) -> Findings:
        hits_of = [hits if run.cell == far else 6 for run in design.runs]
        return findings(design, [invented(n, lt=lt, fe=4) for n, lt in enumerate(hits_of)])

    plain, moved = study(6), study(15)
    found = moved.far_cell(SCALE)
    assert found is not None and found.name == far.name
    assert (found.mean, *found.others) == pytest.approx((0.55, 0.1, 0.1))
    assert found.share == pytest.approx(0.45 * 2 / len(design.cells))
    signs = np.array([far.signs])
    for contrast, before, after in zip(
        moved.contrasts, plain.effects(SCALE), moved.effects(SCALE), strict=True
    ):
        assert before.value is not None and after.value is not None
        sign = int(contrast.column(signs)[0])
        assert after.value - before.value == pytest.approx(sign * found.share)
    without = moved.main_effects(SCALE, far.name)
    assert list(without) == [factor.name for factor in design.factors]
    assert [effect.value for effect in without.values()] == pytest.approx([0] * 4, abs=1e-12)


@pytest.mark.nightly
def test_page_finds_a_planted_effect(tmp_path: Path) -> None:
    """Of rows in which gated cells alone recall; the page comes from the files alone, and equal
    rows give equal bytes.
    """
    design = study_design()
    for number, run in enumerate(design.runs):
        recalls = run.cell.levels["ffn"] == "gated"
        write_rows(
            invented(number, lt=(14 if recalls else 5) + (7 * number) % 3, fe=4),
            rows_path(tmp_path, run.name),
        )
    found = findings(design, finished(design, tmp_path))
    path = write_study(found, tmp_path)
    text = path.read_text(encoding="utf-8")
    assert "48 of 48 runs are in" in text
    lines = {line.split(":")[0]: line for line in text.splitlines() if line.startswith("- ")}
    assert "n = 48 runs: towards recall at LT; of recoveries" in lines["- ffn"]
    assert lines["- ffn"].endswith(": towards recall at LT.")
    assert all(
        "its interval holds 0" in lines[f"- {name}"] for name in ("blocks", "positions", "layers")
    )
    ranks = [read_rows(rows_path(tmp_path, run.name)) for run in design.runs]
    gated = [
        RunFigures(design, one).outcome("LT − FE")
        for one in ranks
        if one.about.levels["ffn"] == "gated"
    ]
    others = [
        RunFigures(design, one).outcome("LT − FE")
        for one in ranks
        if one.about.levels["ffn"] != "gated"
    ]
    names = [contrast.name for contrast in found.contrasts]
    effect = found.effects("LT − FE")[names.index("ffn")]
    assert effect.value == pytest.approx(np.mean(gated) - np.mean(others), rel=1e-5)
    before = {file.name: file.read_bytes() for file in tmp_path.glob("*.*")}
    write_study(findings(design, finished(design, tmp_path)), tmp_path)
    assert {file.name: file.read_bytes() for file in tmp_path.glob("*.*")} == before
    assert set(before) == {REPORT, "effects.webp", "runs.webp"}


def test_page_of_no_runs_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`--runs 0` writes the page of what is in, here nothing."""
    assert cli.main(["reproduce", "study", "--runs", "0", "--report", str(tmp_path)]) == 0
    assert "0 of 48 runs are in" in capsys.readouterr().out
    assert "undecided" in (tmp_path / REPORT).read_text(encoding="utf-8")


def test_rows_of_another_design_are_refused(tmp_path: Path) -> None:
    """They are neither taken for the study's nor overwritten; nor is a file that is none."""
    design = study_design()
    other = design.model_copy(update={"known": 7})
    run = design.runs[0]
    write_rows(invented(0, 1, 1, other), rows_path(tmp_path, run.name))
    with pytest.raises(DataError, match="another design"):
        make_runs(design, [run], tmp_path)
    rows_path(tmp_path, run.name).write_bytes(b"none")
    with pytest.raises(DataError, match="expected the rows"):
        finished(design, tmp_path)


@pytest.mark.nightly
def test_the_published_page_is_what_its_rows_give(tmp_path: Path) -> None:
    """All runs are in, and anyone gets the page from the ranks of single facts."""
    published = Path(__file__).parents[1] / "leaderboard" / "reproductions" / "study"
    shutil.copytree(published / "runs", tmp_path / "runs")
    found = kgbench.paper.study(runs=0, report=tmp_path, progress=False)
    assert len(found.findings.runs) == found.runs
    assert found.path.read_text("utf-8") == (published / REPORT).read_text("utf-8")


def test_chosen_runs() -> None:
    """By run, by cell and by seed; all cells of a seed come before the next seed's."""
    design = study_design()
    assert design.chosen([]) == design.runs
    assert [run.seed for run in design.runs] == [0] * 16 + [1] * 16 + [2] * 16
    cell = design.cells[3].name
    assert [run.seed for run in design.chosen([cell])] == [0, 1, 2]
    assert [run.name for run in design.chosen([cell], [1])] == [f"{cell}.seed1"]
    with pytest.raises(UnknownNameError):
        design.chosen(["x"])
    with pytest.raises(InputError):
        design.chosen([], [5])


SCRIPT = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_study import micro
from kgbench.paper.architectures.study_runs import cut_reading, make_run

def progress(done, total, what):
    if what.endswith(sys.argv[1]) and done == 4:
        os.kill(os.getpid(), signal.SIGKILL)

make_run(micro(), micro().runs[0], Path(sys.argv[2]), progress, save_every=2)
"""


@pytest.mark.nightly
@pytest.mark.posix
def test_killed_run_ends_as_an_unbroken_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed while it pretrains and again while it finetunes; the same rows, and what was done is
    not done again.
    """
    design, run = micro(), micro().runs[0]
    broken = tmp_path / "broken"
    for stage in ("recipient", "sft-1"):
        child = forks.run(
            [sys.executable, "-c", SCRIPT, stage, str(broken), str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        assert child.returncode == -signal.SIGKILL, child.stderr
    steps: list[tuple[int, str]] = []
    found = make_run(
        design, run, broken, lambda done, _, what: steps.append((done, what)), save_every=2
    )
    assert not any("recipient" in what for _, what in steps), "pretraining is not done again"
    first = [done for done, what in steps if what.endswith("sft-1") and done]
    assert first[0] > 1, "finetuning goes on from a checkpoint"
    assert any(what.endswith("sft-2") for _, what in steps), (
        "below its criterion the donor is finetuned once more"
    )
    monkeypatch.setenv(HOME, str(tmp_path / "home"))
    assert make_runs(design, [run], tmp_path / "study") == 1
    (unbroken,) = finished(design, tmp_path / "study")
    assert found.table.equals(unbroken.table) and found.about.steps == unbroken.about.steps
    assert make_runs(design, [run], tmp_path / "study") == 0, "a finished run is not made again"
    assert rows_path(tmp_path / "study", run.name).stat().st_size < 20_000
    figures = RunFigures(design, unbroken)
    assert figures.shortfalls == ("SFT", "known") and len(figures.hits("qa", "SFT")) == 4


@pytest.mark.nightly
def test_frozen_weights_stay(tmp_path: Path) -> None:
    """Finetuning changes weights inside the layers, and neither embeddings, positions, final norm
    nor head.
    """
    from safetensors.torch import load_file

    make_run(micro(), micro().runs[0], tmp_path)
    before, after = (load_file(tmp_path / f"{name}.safetensors") for name in ("recipient", "sft-2"))
    changed = {name for name in before if not torch.equal(before[name], after[name])}
    assert changed and all(name.startswith("layers.") for name in changed)
    assert {"embeddings.weight", "positions.weight", "ln_f.weight"} <= before.keys() - changed
