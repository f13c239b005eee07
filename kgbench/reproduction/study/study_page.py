"""The study's page: design, runs, effects with intervals, and the layers where LT reads FE."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgbench.data.training_texts import training_templates
from kgbench.estimate import Estimate
from kgbench.numbers import duration_text, figure_text, number_text
from kgbench.report import pipe_table
from kgbench.report.bars import FAINT, INK, small_png, styled
from kgbench.reproduction.study.factorial import BOTH, OUTCOMES, Findings, RunFigures
from kgbench.stats import LEVEL

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure as Drawing

__all__ = ["REPORT", "verdicts", "write_study"]

REPORT, FIGURES = "REPORT.md", "report.json"
_PICTURES = ("effects.png", "runs.png")
_MARKS = ("o", "s", "^", "D", "v", "P")
_TONES = ("#0072B2", "#D55E00")
_MAIN = "LT − FE"
_RATES = ("KNOWN", "PRE", "SFT")
_RECOVERIES = ("FE", "LT", BOTH, "(FE+LT)^C")
_RUN_HEADS = (
    *("run", "prompt", "known", "PRE", "SFT", "FE", "LT", "FE+LT", "neither"),
    *("log-odds LT − FE", "n", "steps", "short of"),
)
_READING_HEADS = (
    *("run", "cut costs most in", "half is read by", "layers left", "n"),
    "cost of each layer's cut, hits",
)

_QUESTION = (
    "In some architectures the tokens of the first entity carry a finetuned fact (enrichment, "
    "FE), in others the last token recalls it (LT). In the paper (arXiv 2506.20746) Gemma and "
    "Llama recall, GPT-2 and Pythia much less so. Which feature of the architecture decides? This "
    "is the first stage of a study of that question on small models of one code base whose "
    "features are switches."
)
_COMMAND = (
    "`kgbench reproduce study --report DIR` makes those that are missing and goes on where it was "
    "interrupted; with `--runs 0` it writes this page from the rows in `runs/`."
)
_EFFECTS = (
    "Each effect with its 95 % interval. LT, FE and FE+LT by themselves say on which side an "
    "effect arises."
)
_DESIGN = (
    "A half fraction of a two-level factorial in four factors with the defining relation I = "
    "{relation}: {cells} cells, resolution IV. A main effect is aliased with an interaction of "
    "three factors alone; interactions of two are aliased in pairs. Each cell is trained under "
    "{seeds} seeds ({names}) of initial weights, world and order of texts: {runs} runs. With this "
    "relation the paper's three kinds of architecture, Gemma's and Llama's (sequential, rotary, "
    "gated), GPT-2's (sequential, learned, gelu) and Pythia's (parallel, rotary, gelu), are all "
    "among the cells of eight layers."
)
_LEFT_OUT = (
    "Embeddings, positions, final norm and head are frozen in finetuning in every cell: no fact "
    "can be written into them, and FE is enrichment by layers. Tied against untied embeddings is "
    "left to a second stage, since input embeddings of their own had their effect by that way, "
    "and since three of the paper's four models are tied, GPT-2 among them, so that tying does "
    "not separate those that recall. All cells are tied."
)
_ALIKE = (
    "Alike in all cells: no projection has a bias; {heads} heads with keys and values of their "
    "own; rotary positions, where there are any, over the whole head; weights that begin normal "
    "with standard deviation .02. Weights inside the layers: {least:,} to {most:,}. Depth changes "
    "with width therefore: the effect of layers is one of 8 narrow against 4 wide ones."
)
_RECIPE = (
    "Pretraining in a world of actors ({lasting} movies in every round, {passing} in one round "
    "each, biographies, articles; {rounds} rounds, rate {rate:g}), then finetuning of {facts} in "
    "both directions and {wordings} wordings, none of which is an evaluation prompt ({ft_rounds} "
    "rounds, rate {ft_rate:g}). Another finetuning follows, {most} at most, while the donor is "
    "below its criterion. All cells have the same recipe. It was chosen by one pilot at a seed "
    "that is none of these, by the criteria and FE+LT alone, before any run was measured."
)
_CRITERIA = (
    "Criteria, stated beforehand: the donor answers {sft} of the facts on every prompt (top-5), "
    "the recipient {known} of the movies of pretraining on {prompt}. A run that falls short is "
    "marked and stays in; effects over the runs that do not are given too."
)
_OUTCOME = (
    "Outcome: log-odds of LT's recovery less those of FE's, in counts of the facts that the donor "
    "answers and the recipient does not, half a count added on either side, the mean over "
    "{prompts}. Above 0 a model recalls, below it enriches. An effect is the mean at + less that "
    "at −. The model has a random deviation of each seed, shared by all cells, and independent "
    "error; the design being balanced, Student's interval of an effect is exact. Intervals of "
    "effects are over training seeds, for these facts, this recipe and these sizes."
)
_RUNS = (
    "Shares of hits: known (movies of pretraining, asked of the recipient), PRE (the recipient) "
    "and SFT (the donor). Recoveries, the shares of what finetuning added: FE, LT, FE+LT and all "
    "other tokens. 95 % intervals are over the n facts. Steps: of pretraining + of finetuning.\n"
)
_READING = (
    "FE+LT again, with the attention from LT to FE's tokens cut in one layer: the layer (the "
    "first is 0) whose cut costs most, with its interval over facts (percentiles of the resampled "
    "layer). Then cut in all layers from one on: the last from which on that costs half of what "
    "cutting all costs is where half has been read. Layers left are those after it."
)


def write_study(results: Findings, folder: Path) -> Path:
    """Write the page, its pictures and its figures as JSON; equal rows give equal bytes.

    Args:
        results: Figures of the runs that are in.
        folder: Where the page goes.

    Returns:
        Path of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PICTURES:
        (folder / name).unlink(missing_ok=True)
    if results.runs:
        (folder / _PICTURES[1]).write_bytes(small_png(_runs_drawing, results))
    if any(effect.value is not None for effect in results.effects(_MAIN)):
        (folder / _PICTURES[0]).write_bytes(small_png(_effects_drawing, results))
    figures = json.dumps(_figures(results), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / FIGURES).write_text(f"{figures}\n", encoding="utf-8")
    path = folder / REPORT
    path.write_text("\n".join(_lines(results)) + "\n", encoding="utf-8")
    return path


def verdicts(results: Findings) -> Iterator[str]:
    """One sentence on each effect on the outcome."""
    n, wanted, count = len(results.runs), len(results.study.runs), len(results.contrasts)
    if n < wanted:
        yield f"{n} of {wanted} runs are in; what follows is of these."
    shared = 1 - (1 - LEVEL) / count
    both = results.effects(_MAIN), results.effects(_MAIN, level=shared)
    for contrast, effect, strict in zip(results.contrasts, *both, strict=True):
        if effect.low is None or effect.high is None:
            yield f"{contrast.name}: undecided ({effect.undefined})."
            continue
        verdict = "towards recall at LT" if effect.low > 0 else "towards enrichment at FE"
        if effect.low * effect.high <= 0:
            verdict = "its interval holds 0"
        elif strict.low is None or strict.high is None or strict.low * strict.high <= 0:
            verdict += f", though not at one error rate for all {count}"
        yield f"{contrast.name}: {_text(effect)}, n = {effect.n} runs: {verdict}."


def _lines(results: Findings) -> Iterator[str]:
    yield "# Why do some architectures enrich and others recall?\n"
    yield f"{_QUESTION}\n"
    yield f"{len(results.runs)} of {len(results.study.runs)} runs are in. {_COMMAND}\n"
    yield "## What was found\n"
    for line in verdicts(results):
        yield f"- {line}"
    yield "\n## Design\n"
    yield from _design(results)
    yield "\n## Runs\n"
    yield from _runs(results)
    yield "\n## Effects\n"
    yield from _effects(results)
    yield "\n## Where LT reads FE\n"
    yield from _reading(results)


def _design(results: Findings) -> Iterator[str]:
    study, training, criteria = results.study, results.study.training, results.study.criteria
    letters = "ABCDEFGH"[: len(study.factors)]
    yield _DESIGN.format(
        relation=letters,
        cells=len(study.cells),
        seeds=len(study.seeds),
        names=", ".join(map(str, study.seeds)),
        runs=len(study.runs),
    )
    yield ""
    rows = []
    for letter, factor in zip(letters, study.factors, strict=True):
        rows.append([letter, factor.name, factor.levels[1], factor.levels[0], factor.title])
    yield pipe_table(["letter", "factor", "+", "−", "that is"], rows)
    yield f"\n{_LEFT_OUT}\n"
    if results.runs:
        weights = [run.rows.about.layer_weights for run in results.runs]
        yield _ALIKE.format(heads=study.model.heads, least=min(weights), most=max(weights)) + "\n"
    recipe = _RECIPE.format(
        lasting=training.lasting_movies,
        passing=training.passing_movies,
        rounds=training.pretraining.rounds,
        rate=training.pretraining.learning_rate,
        facts=study.dataset,
        wordings=len(training_templates().finetuning),
        ft_rounds=training.finetuning.rounds,
        ft_rate=training.finetuning.learning_rate,
        most=training.finetunings,
    )
    yield f"{recipe}\n"
    sft, known = number_text(criteria.sft), number_text(criteria.known)
    yield _CRITERIA.format(sft=sft, known=known, prompt=study.prompts[0]) + "\n"
    yield _OUTCOME.format(prompts=" and ".join(study.prompts))


def _runs(results: Findings) -> Iterator[str]:
    yield _RUNS
    rows, seconds = [], []
    for run in results.runs:
        about = run.rows.about
        pretraining = about.steps["recipient"]
        finetuning = sum(about.steps.values()) - pretraining
        seconds.append(sum(about.seconds.values()))
        for prompt in run.prompts:
            estimates = [run.rate(prompt, name) for name in _RATES]
            estimates += [run.recovery(prompt, name) for name in _RECOVERIES]
            odds = run.outcome(_MAIN, [prompt])
            row = [about.run, prompt, *map(_text, estimates)]
            row.append("undefined" if odds is None else number_text(odds))
            row.append(str(len(run.hits(prompt, "SFT"))))
            row += [f"{pretraining} + {finetuning}", ", ".join(run.shortfalls) or "–"]
            rows.append(row)
    yield pipe_table(_RUN_HEADS, rows)
    if seconds:
        median, whole = float(np.median(seconds)), duration_text(sum(seconds))
        yield f"\nA run took {duration_text(median)} in the median, {whole} in all.\n"
        yield "![Recoveries of all runs](runs.png)"


def _effects(results: Findings) -> Iterator[str]:
    yield f"{_EFFECTS}\n"
    columns, heads = [], ["effect"]
    for name in OUTCOMES:
        effects = results.effects(name)
        columns.append(effects)
        heads.append(f"{name} ({effects[0].n} runs)")
    yield _effects_table(results, heads, columns)
    meanings = [f"{name}: {meaning}" for name, meaning in OUTCOMES.items()]
    yield f"\n{'; '.join(meanings)}.\n"
    for reason in _reasons(chain.from_iterable(columns)):
        yield f"Without an interval: {reason}.\n"
    if (deviations := results.deviations(_MAIN)) is not None:
        seeds, error = map(number_text, deviations)
        yield (
            f"Of {_MAIN}, the standard deviation between seeds is {seeds}, that of the error "
            f"{error}.\n"
        )
    parts = [results.effects(_MAIN, [prompt]) for prompt in results.study.prompts]
    heads, title = ["effect", *results.study.prompts], f"{_MAIN} on each prompt"
    if short := sum(bool(run.shortfalls) for run in results.runs):
        parts.append(results.effects(_MAIN, complete=True))
        heads.append(f"runs that reach both criteria ({len(results.runs) - short})")
        title += ", and over the runs that reach both criteria"
    yield f"{title}:\n"
    yield _effects_table(results, heads, parts)
    if any(effect.value is not None for effect in columns[0]):
        yield "\n![Effects on log-odds of LT − FE](effects.png)"


def _effects_table(
    results: Findings, heads: Sequence[str], columns: Sequence[Sequence[Estimate]]
) -> str:
    """A row per contrast."""
    rows = []
    for contrast, *effects in zip(results.contrasts, *columns, strict=True):
        rows.append([contrast.name, *map(_text, effects)])
    return pipe_table(heads, rows)


def _reasons(estimates: Iterable[Estimate]) -> list[str]:
    """Why some have no interval, each reason once."""
    return sorted({estimate.undefined for estimate in estimates if estimate.undefined})


def _reading(results: Findings) -> Iterator[str]:
    yield f"{_READING}\n"
    rows, estimates = [], []
    for run in results.runs:
        half = run.half_read
        estimates += [run.read_layer, half]
        left = "–" if half.value is None else str(run.layers - 1 - int(half.value))
        losses = " ".join(number_text(float(loss)) for loss in run.losses.mean(1))
        layers = [_layer(run.read_layer), _layer(half), left]
        rows.append([run.rows.about.run, *layers, str(half.n), losses])
    yield pipe_table(_READING_HEADS, rows)
    for reason in _reasons(estimates):
        yield f"\nUndefined: {reason}."


def _layer(estimate: Estimate) -> str:
    if estimate.value is None:
        return "undefined"
    assert estimate.low is not None and estimate.high is not None
    return f"{estimate.value:.0f} [{estimate.low:.0f}, {estimate.high:.0f}]"


def _text(estimate: Estimate) -> str:
    return figure_text(estimate.rounded())


def _figures(results: Findings) -> dict[str, Any]:
    """The page's figures for programs."""
    effects = {}
    for name in OUTCOMES:
        pairs = zip(results.contrasts, results.effects(name), strict=True)
        effects[name] = {contrast.name: _stored(effect) for contrast, effect in pairs}
    return {
        "design": results.study.model_dump(mode="json"),
        "runs_in": len(results.runs),
        "runs_wanted": len(results.study.runs),
        "runs": list(map(_run_figures, results.runs)),
        "effects": effects,
    }


def _run_figures(run: RunFigures) -> dict[str, Any]:
    prompts = {}
    for prompt in run.prompts:
        rates = {name: _stored(run.rate(prompt, name)) for name in _RATES}
        shares = {name: _stored(run.recovery(prompt, name)) for name in _RECOVERIES}
        prompts[prompt] = rates | shares
    return {
        **run.rows.about.model_dump(mode="json"),
        "short_of": list(run.shortfalls),
        "outcomes": {name: run.outcome(name) for name in OUTCOMES},
        "read_layer": _stored(run.read_layer),
        "half_read": _stored(run.half_read),
        "prompts": prompts,
    }


def _stored(estimate: Estimate) -> Any:
    return estimate.rounded().stored()


@styled
def _effects_drawing(results: Findings) -> Drawing:
    """Effects on the outcome with their intervals."""
    from matplotlib.figure import Figure as Drawing

    drawn = Drawing(figsize=(7, 0.9 + 0.36 * len(results.contrasts)), layout="constrained")
    axis = drawn.subplots()
    for y, effect in enumerate(results.effects(_MAIN)):
        if effect.value is None:
            continue
        axis.plot(effect.value, y, "o", color=_TONES[0], zorder=3)
        if effect.low is not None and effect.high is not None:
            axis.plot([effect.low, effect.high], [y, y], color=_TONES[0], lw=1.5, zorder=2)
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_yticks(range(len(results.contrasts)), [c.name for c in results.contrasts])
    axis.invert_yaxis()
    axis.set_xlabel(
        f"effect on log-odds of LT − FE, {len(results.runs)} runs (right: towards recall)"
    )
    _plain(axis, "x")
    return drawn


@styled
def _runs_drawing(results: Findings) -> Drawing:
    """Recovery of FE against LT: a panel per factor, levels in two tones, seeds by shape."""
    from matplotlib.figure import Figure as Drawing

    factors = results.study.factors
    drawn = Drawing(figsize=(2.6 * len(factors), 3.2), layout="constrained")
    axes = drawn.subplots(1, len(factors), squeeze=False, sharex=True, sharey=True)[0]
    for axis, factor in zip(axes, factors, strict=True):
        for run in results.runs:
            at = [_mean_recovery(run, name) for name in ("FE", "LT")]
            if None in at:
                continue
            level, seed = run.rows.about.levels[factor.name], run.rows.about.seed
            tone, mark = _TONES[factor.levels.index(level)], _MARKS[seed % len(_MARKS)]
            axis.scatter(
                *at, c=tone, marker=mark, s=22, edgecolors="white", linewidths=0.4, zorder=3
            )
        for tone, level in zip(_TONES, factor.levels, strict=True):
            axis.scatter([], [], c=tone, label=level)
        axis.legend(fontsize=7, frameon=False, title=factor.name, title_fontsize=7)
        axis.set_xlabel("recovery of FE")
        _plain(axis, "both")
    axes[0].set_ylabel("recovery of LT")
    return drawn


def _mean_recovery(run: RunFigures, name: str) -> float | None:
    """The mean over prompts; None where one is undefined."""
    values = []
    for prompt in run.prompts:
        value = run.recovery(prompt, name).value
        if value is None:
            return None
        values.append(value)
    return float(np.mean(values))


def _plain(axis: Axes, which: Any) -> None:
    axis.grid(axis=which, color=FAINT, lw=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
