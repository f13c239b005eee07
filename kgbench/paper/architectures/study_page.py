"""The study's page: design, runs, effects with intervals, and the layers where LT reads FE."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgbench.estimate import Estimate
from kgbench.numbers import figure_text, interval_text, number_text
from kgbench.paper.architectures.factorial import Findings
from kgbench.paper.architectures.run_rows import BOTH, OUTCOMES, RunFigures
from kgbench.paper.rendering import filled_page, small_picture
from kgbench.report.bars import FAINT, INK, panels
from kgbench.stats import LEVEL
from kgbench.zoo.worlds import training_templates

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = "REPORT.md"
_PICTURES = ("effects.webp", "runs.webp")
_MARKS = ("o", "s", "^", "D", "v", "P")
_TONES = ("#0072B2", "#D55E00")
_MAIN = "LT − FE"
_RECOVERY = f"recovery of {_MAIN}"
_RATES = ("KNOWN", "PRE", "SFT")
_RECOVERIES = ("FE", "LT", BOTH, "(FE+LT)^C")


def write_study(results: Findings, folder: Path) -> Path:
    """Write the page and its pictures; equal rows give equal bytes.

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
        (folder / _PICTURES[1]).write_bytes(small_picture(_runs_drawing, results))
    if _are_known(results):
        (folder / _PICTURES[0]).write_bytes(small_picture(_effects_drawing, results))
    path = folder / REPORT
    path.write_text(_page(results), encoding="utf-8")
    return path


def verdicts(results: Findings) -> Iterator[str]:
    """One sentence on each effect on the outcome, and what a single cell makes of all."""
    n, wanted, count = len(results.runs), len(results.study.runs), len(results.contrasts)
    if n < wanted:
        yield f"{n} of {wanted} runs are in, and what follows is of these; --dry-run lists them."
    shared = 1 - (1 - LEVEL) / count
    found = []
    for outcome in (_MAIN, _RECOVERY):
        found += [results.effects(outcome), results.effects(outcome, level=shared)]
    for contrast, odds, strict, recovery, strict_recovery in zip(
        results.contrasts, *found, strict=True
    ):
        if odds.numbers is None:
            yield f"{contrast.name}: undecided ({odds.undefined})."
            continue
        yield (
            f"{contrast.name}: {_text(odds)}, n = {odds.n} runs: {_verdict(odds, strict, count)}; "
            f"of recoveries {_text(recovery)}: {_verdict(recovery, strict_recovery, count)}."
        )
    far = results.far_cell(_MAIN)
    if far is not None:
        least, most = map(number_text, far.others)
        effects = results.main_effects(_MAIN, far.name).items()
        without = ", ".join(f"{name} {_text(effect)}" for name, effect in effects)
        yield (
            f"One cell lies farthest from the others: {far.name} has {number_text(far.mean)}, the "
            f"others {least} to {most}. It adds {number_text(far.share)}, with its sign, to every "
            f"one of the {count} effects. Without it, in a model of main effects alone: {without}."
        )


def _verdict(effect: Estimate, strict: Estimate, count: int) -> str:
    """What an interval says of an effect, and whether one of the shared error rate says it too."""
    if effect.numbers is None:
        return f"undecided ({effect.undefined})"
    if not effect.excludes_zero:
        return "its interval holds 0"
    side = "towards recall at LT" if effect.numbers[1] > 0 else "towards enrichment at FE"
    return side if strict.excludes_zero else f"{side}, though not at one error rate for all {count}"


def _page(results: Findings) -> str:
    """The page, from the template in this folder."""
    study, runs = results.study, results.runs
    by_outcome = {}
    for outcome in OUTCOMES:
        found = results.effects(outcome)
        by_outcome[f"{outcome} ({found[0].n} runs)"] = found
    cells: dict[str, dict[str, float]] = {}
    for outcome in (_MAIN, _RECOVERY, "recovery of FE", "recovery of LT"):
        for name, mean in results.cell_means(outcome).items():
            cells.setdefault(name, {})[outcome] = mean
    by_prompt = {prompt: results.effects(_MAIN, [prompt]) for prompt in study.prompts}
    if short := sum(bool(run.shortfalls) for run in runs):
        head = f"runs that reach both criteria ({len(runs) - short})"
        by_prompt[head] = results.effects(_MAIN, complete=True)
    return filled_page(
        __package__,
        study=study,
        runs=runs,
        verdicts=verdicts(results),
        cells=cells,
        relation="ABCDEFGH"[: len(study.factors)],
        wordings=len(training_templates().finetuning),
        estimates=_estimates,
        text=_text,
        layer=_layer,
        seconds=[sum(run.rows.about.seconds.values()) for run in runs],
        main=_MAIN,
        outcomes=OUTCOMES,
        contrasts=results.contrasts,
        by_outcome=by_outcome,
        reasons=_reasons(chain.from_iterable(by_outcome.values())),
        deviations=results.deviations(_MAIN),
        short=short,
        by_prompt=by_prompt,
        drawn=_are_known(results),
        reading_reasons=_reasons(
            chain.from_iterable((run.read_layer, run.half_read) for run in runs)
        ),
    )


def _are_known(results: Findings) -> bool:
    """Whether some effect on the outcome has a value."""
    return any(effect.value is not None for effect in results.effects(_MAIN))


def _estimates(run: RunFigures, prompt: str) -> dict[str, Estimate]:
    """Rates and recoveries of a run on a prompt, by configuration."""
    rates = {name: run.rate(prompt, name) for name in _RATES}
    return rates | {name: run.recovery(prompt, name) for name in _RECOVERIES}


def _reasons(estimates: Iterable[Estimate]) -> list[str]:
    """Why some have no interval, each reason once."""
    return sorted({estimate.undefined for estimate in estimates if estimate.undefined})


def _layer(estimate: Estimate) -> str:
    if estimate.numbers is None:
        return "undefined"
    return interval_text(estimate.numbers, "{:.0f}".format)


def _text(estimate: Estimate) -> str:
    return figure_text(estimate.rounded())


def _effects_drawing(results: Findings) -> Figure:
    """Effects on log-odds and on recoveries, with their intervals."""
    size = (9, 1.0 + 0.36 * len(results.contrasts))
    drawn, ((*axes,),) = panels(size, 1, 2, sharey=True)
    for axis, outcome, scale in zip(
        axes, (_MAIN, _RECOVERY), ("log-odds", "recoveries"), strict=True
    ):
        for y, effect in enumerate(results.effects(outcome)):
            if effect.value is None:
                continue
            axis.plot(effect.value, y, "o", color=_TONES[0], zorder=3)
            if effect.numbers is not None:
                axis.plot(effect.numbers[1:], [y, y], color=_TONES[0], lw=1.5, zorder=2)
        axis.axvline(0, color=INK, lw=0.8)
        axis.set_xlabel(
            f"effect on {_MAIN}, {scale}, {len(results.runs)} runs\n(right: towards recall)"
        )
        _plain(axis, "x")
    axes[0].set_yticks(range(len(results.contrasts)), [c.name for c in results.contrasts])
    axes[0].invert_yaxis()
    return drawn


def _runs_drawing(results: Findings) -> Figure:
    """Recovery of FE against LT: a panel per factor, levels in two tones, seeds by shape."""
    factors = results.study.factors
    size = (2.6 * len(factors), 3.2)
    drawn, ((*axes,),) = panels(size, 1, len(factors), sharex=True, sharey=True)
    for axis, factor in zip(axes, factors, strict=True):
        for run in results.runs:
            at = [run.outcome(f"recovery of {name}") for name in ("FE", "LT")]
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


def _plain(axis: Axes, which: Any) -> None:
    axis.grid(axis=which, color=FAINT, lw=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)
