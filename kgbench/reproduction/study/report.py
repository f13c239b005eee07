"""The study's page: design, runs, effects with intervals, and where attention at LT reads FE."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from kgbench.board.files import FAINT, INK, styled
from kgbench.data.training_texts import training_templates
from kgbench.estimate import Estimate
from kgbench.numbers import duration_text, figure_text, number_text
from kgbench.report import pipe_table
from kgbench.reproduction.drawing import small_png
from kgbench.reproduction.study.figures import OUTCOMES, Findings, RunFigures
from kgbench.reproduction.study.rows import BOTH
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

_QUESTION = (
    "In some architectures the tokens of the first entity carry a finetuned fact (enrichment, FE), "
    "in "
    "others the last token recalls it (LT). In the paper (arXiv 2506.20746) Gemma and Llama "
    "recall, "
    "GPT-2 and Pythia much less so. Which feature of the architecture decides? This is the first "
    "stage "
    "of a study of that question on small models of one code base whose features are switches."
)
_DESIGN = (
    "A half fraction of a two-level factorial in four factors with the defining relation "
    "I = {relation}: {cells} cells, resolution IV. A main effect is aliased with an interaction of "
    "three factors alone; interactions of two are aliased in pairs. Each cell is trained under "
    "{seeds} seeds ({names}) of initial weights, world and order of texts: {runs} runs. With this "
    "relation the paper's three kinds of architecture, Gemma's and Llama's (sequential, rotary, "
    "gated), GPT-2's (sequential, learned, gelu) and Pythia's (parallel, rotary, gelu), are all "
    "among the cells of eight layers."
)
_LEFT_OUT = (
    "Embeddings, positions, final norm and head are frozen in finetuning in every cell: no fact "
    "can be "
    "written into them, and FE is enrichment by layers. Tied against untied embeddings is left to "
    "a "
    "second stage, since input embeddings of their own had their effect by that way, and since "
    "three "
    "of the paper's four models are tied, GPT-2 among them, so that tying does not separate those "
    "that "
    "recall. All cells are tied."
)
_ALIKE = (
    "Alike in all cells: no projection has a bias; {heads} heads with keys and values of their "
    "own; "
    "rotary positions, where there are any, over the whole head; weights that begin normal with "
    "standard "
    "deviation .02. Weights inside the layers: {least:,} to {most:,}. Depth changes with width "
    "therefore: the effect of layers is one of 8 narrow against 4 wide ones."
)
_RECIPE = (
    "Pretraining in a world of actors ({lasting} movies in every round, {passing} in one round "
    "each, biographies, articles; {rounds} rounds, rate {rate:g}), then finetuning of {facts} in "
    "both "
    "directions and {wordings} wordings, none of which is an evaluation prompt ({ft_rounds} "
    "rounds, "
    "rate {ft_rate:g}). Another finetuning follows, {most} at most, while the donor is below its "
    "criterion. All cells have the same recipe. It was chosen by one pilot at a seed that is none "
    "of "
    "these, by the criteria and FE+LT alone, before any run was measured."
)
_CRITERIA = (
    "Criteria, stated beforehand: the donor answers {sft} of the facts on every prompt (top-5), "
    "the "
    "recipient {known} of the movies of pretraining on {prompt}. A run that falls short is marked "
    "and stays in; effects over the runs that do not are given too."
)
_OUTCOME = (
    "Outcome: log-odds of LT's recovery less those of FE's, in counts of the facts that the donor "
    "answers and the recipient does not, half a count added on either side, the mean over "
    "{prompts}. "
    "Above 0 a model recalls, below it enriches. An effect is the mean at + less that at −. The "
    "model "
    "has a random deviation of each seed, shared by all cells, and independent error; the design "
    "being balanced, Student's interval of an effect is exact. Intervals of effects are over "
    "training "
    "seeds, for these facts, this recipe and these sizes."
)
_RUNS = (
    "Shares of hits: known (movies of pretraining, asked of the recipient), PRE (the recipient) "
    "and "
    "SFT (the donor). Recoveries, the shares of what finetuning added: FE, LT, FE+LT and all other "
    "tokens. 95 % intervals are over the n facts. Steps: of pretraining + of finetuning.\n"
)
_READING = (
    "FE+LT again, with the attention from LT to FE's tokens cut in one layer: the layer (the first "
    "is "
    "0) whose cut costs most, with its interval over facts (percentiles of the resampled layer). "
    "Then "
    "cut in all layers from one on: the last from which on that costs half of what cutting all "
    "costs is "
    "where half has been read. Layers left are those after it."
)


def write_study(found: Findings, folder: Path) -> Path:
    """Write the page, its pictures and its figures as JSON; equal rows give equal bytes.

    Args:
        found: Figures of the runs that are in.
        folder: Where the page goes.

    Returns:
        Path of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in _PICTURES:
        (folder / name).unlink(missing_ok=True)
    if found.runs:
        (folder / _PICTURES[1]).write_bytes(small_png(_runs_drawing, found))
    if any(figure.value is not None for figure in found.effects(_MAIN)):
        (folder / _PICTURES[0]).write_bytes(small_png(_effects_drawing, found))
    figures = json.dumps(_figures(found), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / FIGURES).write_text(f"{figures}\n", encoding="utf-8")
    path = folder / REPORT
    path.write_text("\n".join(_lines(found)) + "\n", encoding="utf-8")
    return path


def verdicts(found: Findings) -> Iterator[str]:
    """What the effects on the outcome say, one sentence each."""
    n, wanted = len(found.runs), len(found.study.runs)
    if n < wanted:
        yield f"{n} of {wanted} runs are in; what follows is of these."
    shared = 1 - (1 - LEVEL) / len(found.contrasts)
    both = found.effects(_MAIN), found.effects(_MAIN, level=shared)
    for contrast, figure, strict in zip(found.contrasts, *both, strict=True):
        if figure.low is None or figure.high is None:
            yield f"{contrast.name}: undecided ({figure.undefined})."
            continue
        sure = strict.low is not None and strict.high is not None and strict.low * strict.high > 0
        if figure.low * figure.high <= 0:
            said = "its interval holds 0"
        else:
            toward = "towards recall at LT" if figure.low > 0 else "towards enrichment at FE"
            said = (
                toward if sure else f"{toward}, though not at one error rate for all {len(both[0])}"
            )
        yield f"{contrast.name}: {_text(figure)}, n = {figure.n} runs: {said}."


def _lines(found: Findings) -> Iterator[str]:
    study = found.study
    yield "# Why do some architectures enrich and others recall?\n"
    yield f"{_QUESTION}\n"
    yield (
        f"{len(found.runs)} of {len(study.runs)} runs are in. `kgbench reproduce study --report "
        "DIR` "
        "makes those that are missing and goes on where it was interrupted; with `--runs 0` it "
        "writes "
        "this page from the rows in `runs/`.\n"
    )
    yield "## What was found\n"
    yield from (f"- {line}" for line in verdicts(found))
    yield "\n## Design\n"
    yield from _design(found)
    yield "\n## Runs\n"
    yield from _runs(found)
    yield "\n## Effects\n"
    yield from _effects(found)
    yield "\n## Where LT reads FE\n"
    yield from _reading(found)


def _design(found: Findings) -> Iterator[str]:
    study, training = found.study, found.study.training
    letters = "ABCDEFGH"[: len(study.factors)]
    yield _DESIGN.format(
        relation=letters,
        cells=len(study.cells),
        seeds=len(study.seeds),
        names=", ".join(map(str, study.seeds)),
        runs=len(study.runs),
    )
    yield ""
    rows = [
        [a, f.name, f.levels[1], f.levels[0], f.title]
        for a, f in zip(letters, study.factors, strict=True)
    ]
    yield pipe_table(["", "factor", "+", "−", "that is"], rows)
    yield f"\n{_LEFT_OUT}\n"
    if found.runs:
        weights = [run.rows.about.layer_weights for run in found.runs]
        yield _ALIKE.format(heads=study.model.heads, least=min(weights), most=max(weights)) + "\n"
    yield (
        _RECIPE.format(
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
        + "\n"
    )
    criteria = study.criteria
    yield (
        _CRITERIA.format(
            sft=number_text(criteria.sft),
            known=number_text(criteria.known),
            prompt=study.prompts[0],
        )
        + "\n"
    )
    yield _OUTCOME.format(prompts=" and ".join(study.prompts))


def _runs(found: Findings) -> Iterator[str]:
    yield _RUNS
    heads = [
        "run",
        "prompt",
        "known",
        "PRE",
        "SFT",
        "FE",
        "LT",
        "FE+LT",
        "neither",
        "log-odds LT − FE",
        "n",
        "steps",
        "short of",
    ]
    rows = []
    for run in found.runs:
        about = run.rows.about
        for prompt in run.prompts:
            rates = [_text(run.rate(prompt, name)) for name in ("KNOWN", "PRE", "SFT")]
            recovered = [
                _text(run.recovery(prompt, name)) for name in ("FE", "LT", BOTH, "(FE+LT)^C")
            ]
            odds = run.outcome(_MAIN, [prompt])
            steps = about.steps["recipient"], sum(about.steps.values()) - about.steps["recipient"]
            rows.append(
                [
                    about.run,
                    prompt,
                    *rates,
                    *recovered,
                    "undefined" if odds is None else number_text(odds),
                    str(len(run.hits(prompt, "SFT"))),
                    f"{steps[0]} + {steps[1]}",
                    ", ".join(run.shortfalls) or "–",
                ]
            )
    yield pipe_table(heads, rows)
    if found.runs:
        seconds = [sum(run.rows.about.seconds.values()) for run in found.runs]
        yield f"\nA run took {duration_text(float(np.median(seconds)))} in the median, {duration_text(sum(seconds))} in all.\n"
        yield "![Recoveries of all runs](runs.png)"


def _effects(found: Findings) -> Iterator[str]:
    names = list(OUTCOMES)
    short = sum(bool(run.shortfalls) for run in found.runs)
    yield "Each effect with its 95 % interval. LT, FE and FE+LT by themselves say on which side an effect arises.\n"
    columns = [found.effects(name) for name in names]
    yield pipe_table(
        [
            "effect",
            *(f"{name} ({_n(column)} runs)" for name, column in zip(names, columns, strict=True)),
        ],
        [
            [c.name, *(_text(column[i]) for column in columns)]
            for i, c in enumerate(found.contrasts)
        ],
    )
    yield "\n" + "; ".join(f"{name}: {meaning}" for name, meaning in OUTCOMES.items()) + ".\n"
    undefined = sorted({f.undefined for column in columns for f in column if f.undefined})
    yield from (f"Without an interval: {reason}.\n" for reason in undefined)
    if (spread := found.deviations(_MAIN)) is not None:
        yield (
            f"Of {_MAIN}, the standard deviation between seeds is {number_text(spread[0])}, that "
            f"of the error {number_text(spread[1])}.\n"
        )
    parts = [found.effects(_MAIN, [prompt]) for prompt in found.study.prompts]
    heads = ["effect", *found.study.prompts]
    if short:
        parts.append(found.effects(_MAIN, complete=True))
        heads.append(f"runs that reach both criteria ({len(found.runs) - short})")
    yield f"{_MAIN} on each prompt{', and over the runs that reach both criteria' if short else ''}:\n"
    yield pipe_table(
        heads,
        [[c.name, *(_text(part[i]) for part in parts)] for i, c in enumerate(found.contrasts)],
    )
    if any(figure.value is not None for figure in columns[0]):
        yield "\n![Effects on log-odds of LT − FE](effects.png)"


def _n(column: Sequence[Estimate]) -> int:
    return column[0].n


def _reading(found: Findings) -> Iterator[str]:
    yield f"{_READING}\n"
    rows = []
    for run in found.runs:
        half = run.half_read
        left = "–" if half.value is None else str(run.layers - 1 - int(half.value))
        losses = " ".join(number_text(float(loss)) for loss in run.losses.mean(1))
        rows.append(
            [run.rows.about.run, _layer(run.read_layer), _layer(half), left, str(half.n), losses]
        )
    yield pipe_table(
        [
            "run",
            "cut costs most in",
            "half is read by",
            "layers left",
            "n",
            "cost of each layer's cut, hits",
        ],
        rows,
    )
    reasons = sorted(
        {f.undefined for run in found.runs for f in (run.read_layer, run.half_read) if f.undefined}
    )
    yield from (f"\nUndefined: {reason}." for reason in reasons)


def _layer(figure: Estimate) -> str:
    if figure.value is None:
        return "undefined"
    assert figure.low is not None and figure.high is not None
    return f"{figure.value:.0f} [{figure.low:.0f}, {figure.high:.0f}]"


def _text(figure: Estimate) -> str:
    return figure_text(figure.rounded())


def _figures(found: Findings) -> dict[str, Any]:
    """The page's figures for programs."""
    return {
        "design": found.study.model_dump(mode="json"),
        "runs_in": len(found.runs),
        "runs_wanted": len(found.study.runs),
        "runs": [_run_figures(run) for run in found.runs],
        "effects": {
            name: {
                c.name: _stored(f)
                for c, f in zip(found.contrasts, found.effects(name), strict=True)
            }
            for name in OUTCOMES
        },
    }


def _run_figures(run: RunFigures) -> dict[str, Any]:
    about = run.rows.about
    return {
        **about.model_dump(mode="json"),
        "short_of": list(run.shortfalls),
        "outcomes": {name: run.outcome(name) for name in OUTCOMES},
        "read_layer": _stored(run.read_layer),
        "half_read": _stored(run.half_read),
        "prompts": {prompt: _prompt_figures(run, prompt) for prompt in run.prompts},
    }


def _prompt_figures(run: RunFigures, prompt: str) -> dict[str, Any]:
    rates = {name: _stored(run.rate(prompt, name)) for name in ("KNOWN", "PRE", "SFT")}
    recovered = ("FE", "LT", BOTH, "(FE+LT)^C")
    return rates | {name: _stored(run.recovery(prompt, name)) for name in recovered}


def _stored(figure: Estimate) -> Any:
    return figure.rounded().stored()


@styled
def _effects_drawing(found: Findings) -> Drawing:
    """Effects on the outcome with their intervals."""
    from matplotlib.figure import Figure as Drawing

    drawn = Drawing(figsize=(7, 0.9 + 0.36 * len(found.contrasts)), layout="constrained")
    axis = drawn.subplots()
    for y, figure in enumerate(found.effects(_MAIN)):
        if figure.value is None:
            continue
        axis.plot(figure.value, y, "o", color=_TONES[0], zorder=3)
        if figure.low is not None and figure.high is not None:
            axis.plot([figure.low, figure.high], [y, y], color=_TONES[0], lw=1.5, zorder=2)
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_yticks(range(len(found.contrasts)), [c.name for c in found.contrasts])
    axis.invert_yaxis()
    axis.set_xlabel(
        f"effect on log-odds of LT − FE, {len(found.runs)} runs (right: towards recall)"
    )
    _plain(axis, "x")
    return drawn


@styled
def _runs_drawing(found: Findings) -> Drawing:
    """Recovery of FE against LT: a panel per factor, levels in two tones, seeds by shape."""
    from matplotlib.figure import Figure as Drawing

    factors = found.study.factors
    drawn = Drawing(figsize=(2.6 * len(factors), 3.2), layout="constrained")
    axes = drawn.subplots(1, len(factors), squeeze=False, sharex=True, sharey=True)[0]
    for axis, factor in zip(axes, factors, strict=True):
        for run in found.runs:
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
    values: Mapping[str, float | None] = {p: run.recovery(p, name).value for p in run.prompts}
    known = [value for value in values.values() if value is not None]
    return float(np.mean(known)) if len(known) == len(values) else None


def _plain(axis: Axes, which: Any) -> None:
    axis.grid(axis=which, color=FAINT, lw=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
