"""The report: every figure next to the paper's, claims one by one, differences, times, pictures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING

from kgbench.estimate import Estimate
from kgbench.models import catalog
from kgbench.models.fetching import fetched_model
from kgbench.numbers import (
    exact_text,
    figure_text,
    metric_name,
    number_text,
    plain_text,
)
from kgbench.paper.figure_claims import (
    LEAST,
    CheckedClaim,
    PaperFigure,
    claims_agreement,
    distinct,
    distinct_claims,
    family,
)
from kgbench.paper.figure_specs import MEDIAN_RANK, chosen, page
from kgbench.paper.pair_rows import ROWS, About, Donor, Evaluated
from kgbench.paper.positive_control import Result
from kgbench.paper.published import experiments, paper
from kgbench.paper.rendering import filled_page, small_picture
from kgbench.report import Cell, Lines, Report, Table, markdown_text
from kgbench.report.bars import FAINT, INK, panels
from kgbench.stats.scores import LOG_RANK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REPORT = "REPORT.md"
CLAIM_HEADS = ("claim", "that is", "difference", "here", "in the paper")

_FAR = 0.1
"""Least distance from our rate of a published one that is listed as different."""

_HYPERPARAMETERS = ("epochs", "batch_size", "learning_rate", "weight_decay", "warmup_steps")
_RECIPE = (
    "{epochs} epochs, batch size {batch_size}, rate {learning_rate}, weight decay {weight_decay}, "
    "{warmup_steps} steps of warm-up"
)

_WITH_HEAD = "FE+LT, head"

_NAME, _CLAIM, _MEANING, _OUTCOME = 18, 24, 17, 12
"""Columns of a row's name and of a claim's texts in a terminal."""

_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
_MARKS = {"holds": "", "fails": " (no)", "undecided": " (?)", "vacuous": " (vacuous)"}

_LEGEND = (
    "difference: of shares of what finetuning added, with its 95 % interval over facts (and "
    "training seeds, where there are several); in the paper, of top-5 rates: (no) where they do "
    "not keep the bound, (?) where so many facts do not tell; vacuous: the larger term recovers "
    f"less than {number_text(LEAST)}"
)
_BY_HEAD = (
    "With the donor's head FE+LT does what the donor does ({where}): what it lacks there is the "
    "head, which a graft of tokens leaves the recipient's."
)


def write_report(
    figures: Sequence[PaperFigure],
    folder: Path,
    left: Mapping[str, Sequence[int]] | None = None,
    control: Sequence[Result] = (),
) -> Path:
    """Write the report and its pictures; equal rows give equal bytes.

    Pictures of figures that are not there are removed.

    Args:
        figures: The figures, in order.
        folder: Where the report goes.
        left: Missing seeds by evaluation.
        control: Criteria of the positive control.

    Returns:
        Path of the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in page().figures:
        (folder / f"{name}.webp").unlink(missing_ok=True)
    for figure in distinct(figures).values():
        if figure.spec.picture:
            (folder / f"{figure.name}.webp").write_bytes(small_picture(draw, figure))
    path = folder / REPORT
    path.write_text(report_text(figures, left, control), encoding="utf-8")
    return path


def report_text(
    figures: Sequence[PaperFigure],
    left: Mapping[str, Sequence[int]] | None = None,
    control: Sequence[Result] = (),
) -> str:
    """The report as Markdown from the template in this folder, see `write_report`."""
    model, about = figures[0].model, figures[0].about
    cited: list[tuple[str, CheckedClaim]] = []
    added: list[tuple[str, CheckedClaim]] = []
    for name, claim in distinct_claims(figures):
        (cited if claim.paper else added).append((name, claim))
    like = family(model)
    held = [claim.spec for _, claim in cited if claim.outcome == "holds"]
    donors: dict[tuple[int, str, str], Donor] = {}
    trained: list[tuple[str, str]] = []
    facts: list[tuple[int, str]] = []
    for figure in figures:
        for (seed, name), donor in figure.donors.items():
            donors[seed, name, donor.weights] = donor
            values = {key: plain_text(donor.recipe[key]) for key in _HYPERPARAMETERS}
            trained.append((f"{donor.recipe['name']}, {_RECIPE.format_map(values)}", name))
        for name in figure.trainings:
            facts.append((page().training(name, about.scale).facts or 0, name))
    facts.sort(key=itemgetter(0), reverse=True)
    names = dict.fromkeys(figure.spec.evaluation for figure in figures)
    evaluations: list[tuple[int, str, Evaluated]] = []
    for seed, runs in sorted(about.evaluations.items()):
        evaluations += ((seed, name, runs[name]) for name in names if name in runs)
    return filled_page(
        __package__,
        model=model,
        base=fetched_model(catalog.entry(model).recipient),
        about=about,
        what=_share(figures, left or {}),
        rows=ROWS,
        left=left,
        control=control,
        least=LEAST,
        held=held,
        others=[spec for spec in held if like and spec.models and like not in spec.models],
        agreement=like and claims_agreement([claim for _, claim in cited], like),
        cited=cited,
        added=added,
        cells=_cells,
        heads=CLAIM_HEADS,
        departures=page().departures,
        trained=_by_name(trained, "; "),
        facts=_by_name(facts, ", "),
        passing=page().tiny.supplement,
        differences=_differences(figures),
        doubts=paper().doubts,
        donors=donors,
        evaluations=evaluations,
        earlier=_earlier(about),
        origins=dict.fromkeys(
            f"kgbench {run.kgbench}, torch {run.torch}, {run.device}, {run.platform}"
            for _, _, run in evaluations
        ),
        figures=figures,
        firsts=distinct(figures),
        figure_table=_figure_table,
        markdown=markdown_text,
        text=_text,
        experiments=experiments(),
    )


def _share(figures: Sequence[PaperFigure], left: Mapping[str, Sequence[int]]) -> str:
    """What `kgbench reproduce` is asked for to make these figures."""
    names = tuple(figure.name for figure in figures)
    if len(names) == 1 and not left:
        return names[0]
    scale = figures[0].about.scale
    return {chosen(share, scale): share for share in page().shares}.get(names, "all")


def _meaning(claim: CheckedClaim) -> str:
    """The claim as an inequality."""
    spec = claim.spec
    share = "" if spec.share == 1 else f"{number_text(spec.share)} × "
    bounds = [f"{_SIGNS[op]} {number_text(bound)}" for op, bound in spec.bounds.items()]
    logs = " (log ranks)" if claim.metric == LOG_RANK else ""
    return f"{spec.first} − {share}{spec.second} {' and '.join(bounds)}{logs}"


def _difference(claim: CheckedClaim) -> str:
    """With more decimals where two would not show on which side of the bound an end lies."""
    estimate = claim.difference
    if estimate.numbers is None:
        return figure_text(estimate)
    value, *ends = estimate.numbers
    texts = []
    for number in ends:
        text = number_text(number)
        hidden = [b for b in claim.spec.bounds.values() if b != number and number_text(b) == text]
        texts.append(plain_text(number, 4) if hidden else text)
    return f"{number_text(value)} [{', '.join(texts)}]"


def _cells(claim: CheckedClaim, separator: str) -> list[str]:
    """The claim and what comes of it, here and on each of the paper's models."""
    paper = []
    for model, outcome in claim.in_paper.items():
        paper.append(f"{model} {number_text(claim.paper[model].value)}{_MARKS[outcome]}")
    comes, larger = str(claim.outcome), claim.larger
    if comes == "vacuous" and larger is not None:
        comes = f"vacuous: {larger.name} recovers {number_text(larger.recovery)}"
    texts = [claim.spec.says, _meaning(claim), _difference(claim), comes]
    return [*texts, separator.join(paper) or "–"]


def _text(cell: Cell) -> str:
    return figure_text(cell) if isinstance(cell, Estimate) else str(cell)


def _figure_table(figure: PaperFigure, prompt: str) -> tuple[list[str], list[list[Cell]]]:
    """Heads and rows of ours and the paper's estimates on a prompt."""
    spec, rates = figure.spec, figure.rates(prompt)
    several = len(spec.shown) > 1
    heads = [prompt]
    for metric in spec.shown:
        name = f", {metric_name(metric)}" if several else ""
        heads.append(f"{figure.model}{name}, n = {figure.n(prompt)}")
    mean = f", {metric_name(spec.cited)}" if several else ""
    for model, known in rates.items():
        heads.append(f"{model} (paper{mean}, {next(iter(known.values())).prompt})")
    rows = []
    for name, graft in figure.rows.items():
        row: list[Cell] = [name]
        row += [figure.estimate(prompt, graft, metric) for metric in spec.shown]
        for known in rates.values():
            cited = number_text(getattr(known[name], spec.cited)) if name in known else "–"
            row.append(cited)
        rows.append(row)
    return heads, rows


def terminal_report(figures: Sequence[PaperFigure]) -> Report:
    """Figures and their claims for a terminal, a table per prompt."""
    parts: list[Table | Lines] = []
    for figure in figures:
        parts.append(Lines([f"{figure.name}: {figure.spec.title}"]))
        for prompt in figure.spec.prompts:
            heads, rows = _figure_table(figure, prompt)
            broken = [head.replace(" (", "\n(").replace(", ", ",\n") for head in heads]
            parts.append(Table("", broken, rows, _NAME))
        for prompt, claims in groupby(figure.claims, key=lambda claim: claim.prompt):
            rows = list(map(_terminal_row, claims))
            parts.append(Table(f"claims on {prompt}", CLAIM_HEADS, rows, _CLAIM))
    notes = [_LEGEND] if any(figure.claims for figure in figures) else []
    return Report("", parts, notes=notes)


def _terminal_row(claim: CheckedClaim) -> list[Cell]:
    says, meaning, difference, outcome, paper = _cells(claim, "\n")
    shown: Cell = difference if claim.difference.undefined is None else claim.difference
    return [says, fill(meaning, _MEANING), shown, fill(outcome, _OUTCOME), paper]


def _by_name(pairs: Iterable[tuple[object, str]], separator: str) -> str:
    """Texts, each once with all names that it is paired with, such as `400 (actors, names)`."""
    texts: dict[object, dict[str, None]] = {}
    for text, name in pairs:
        texts.setdefault(text, {})[name] = None
    return separator.join(f"{text} ({', '.join(names)})" for text, names in texts.items())


def _earlier(about: About) -> dict[tuple[int, str], list[str]]:
    """Evaluations that are of an earlier training of a donor than others, by seed and donor."""
    names: dict[tuple[int, str], list[str]] = {}
    for seed, evaluations in about.evaluations.items():
        for name, run in evaluations.items():
            for training in run.earlier:
                names.setdefault((seed, training), []).append(name)
    return names


def _differences(figures: Sequence[PaperFigure]) -> list[str]:
    """Claims and rates that differ from the paper's, or a line that none does."""
    like = family(figures[0].model)
    lines, with_head = [], []
    for name, claim in distinct_claims(figures):
        if (line := difference_text(name, claim, like)) is not None:
            lines.append(line)
        if (claim.spec.first, claim.spec.second, claim.outcome) == (_WITH_HEAD, "SFT", "holds"):
            with_head.append(f"{name}, {claim.prompt}")
    for figure in distinct(figures).values():
        lines += _far_rates(figure, like)
    if not lines:
        lines = ["Nowhere, as far as the paper gives figures."]
    if with_head:
        lines = [_BY_HEAD.format(where="; ".join(with_head)), *lines]
    return list(dict.fromkeys(lines))


def _far_rates(figure: PaperFigure, like: str | None) -> Iterator[str]:
    """Rates of a figure far from those of the paper's model of the same family, by prompt."""
    if figure.spec.metric != "top5":
        return
    for prompt in figure.spec.prompts:
        known, far = figure.rates(prompt).get(like or "", {}), []
        for name, graft in figure.rows.items():
            if name not in known:
                continue
            ours, rate = figure.estimate(prompt, graft), known[name].top5
            if ours.numbers is None:
                continue
            value, low, high = ours.numbers
            if not low <= rate <= high and abs(rate - value) >= _FAR:
                far.append(f"{name} {figure_text(ours)} ({number_text(rate)})")
        if far:
            what = f"top-5 rates far from those of {like}, in brackets"
            yield f"{figure.name}, {prompt}: {what}: {', '.join(far)}."


def difference_text(figure: str, claim: CheckedClaim, like: str | None = None) -> str | None:
    """How a claim differs from the paper; None where it does not, or where that is unknown.

    It is compared with the paper's model of the same family where that has figures, otherwise with
    most of its models that decide it.

    Args:
        figure: The figure's name.
        claim: The claim.
        like: The paper's model of the same family.
    """
    where = f"{figure}, {claim.prompt}"
    if claim.difference.undefined is not None:
        return f"{where}: nothing can be asked of it: {exact_text(claim.difference)}."
    difference = figure_text(claim.difference)
    about = f"{where}: “{claim.spec.says}” {claim.outcome} here, {difference}"
    outcomes = claim.in_paper
    if not outcomes:
        missing = "mean ranks but no mean log ranks" if claim.metric == LOG_RANK else "no figures"
        return f"{about}; the paper gives {missing}." if claim.outcome == "fails" else None
    if like is not None and like in outcomes:
        if {outcomes[like], claim.outcome} != {"holds", "fails"}:
            return None
        keeps = "keeps" if outcomes[like] == "holds" else "does not keep"
        return f"{about}; {like} {keeps} it ({number_text(claim.paper[like].value)})."
    counts = Counter(outcomes.values())
    yes, n = counts["holds"], len(outcomes) - counts["undecided"]
    if 2 * yes == n or claim.outcome != ("fails" if 2 * yes > n else "holds"):
        return None
    return f"{about}; {yes} of the paper's {n} models that decide it keep it."


# ---------------------------------------------------------------------------------- pictures

_TITLE, _LETTER, _MARGIN = 9.0, 0.68, 24.0
"""Title: font size in points, mean width of a bold letter relative to it, margin in points."""

_BAR = "#0072B2"
_SHAPES: Mapping[str, tuple[str, str]] = {
    "gemma-2b": ("o", "#D55E00"),
    "llama-3.2-1b": ("s", "#009E73"),
    "gpt2-xl": ("^", "#CC79A7"),
    "pythia-2.8b": ("D", "#E69F00"),
}
"""Shape and colour (Okabe and Ito) of each of the paper's models."""


def draw(figure: PaperFigure) -> Figure:
    """One panel per prompt; the paper's configurations from left to right."""
    prompts, names = figure.spec.prompts, list(figure.rows)
    size = (1.6 + 0.55 * len(names), 0.9 + 2.5 * len(prompts))
    drawn, grid = panels(size, len(prompts), 1)
    axes = list(grid[:, 0])
    for axis, prompt in zip(axes, prompts, strict=True):
        _panel(axis, figure, prompt)
        axis.set_xticks(range(len(names)), [])
    axes[-1].set_xticks(range(len(names)), names, rotation=35, ha="right")
    _legend(drawn, axes)
    room = 72 * drawn.get_figwidth() - _MARGIN
    title = fill(figure.spec.title, int(room / (_LETTER * _TITLE)))
    drawn.suptitle(title, color=INK, fontsize=_TITLE, fontweight="bold")
    return drawn


def _legend(drawn: Figure, axes: Sequence[Axes]) -> None:
    """One legend below all panels: that of the panel with most of the paper's models."""
    legends = [axis.get_legend_handles_labels() for axis in axes]
    handles, labels = max(legends, key=lambda legend: len(legend[0]))
    if handles:
        drawn.legend(
            handles,
            labels,
            fontsize=6,
            frameon=False,
            ncols=len(handles),
            loc="outside lower center",
        )


def _panel(axis: Axes, figure: PaperFigure, prompt: str) -> None:
    spec = figure.spec
    for x, graft in enumerate(figure.rows.values()):
        ours = figure.estimate(prompt, graft)
        if ours.value is None:
            continue
        axis.bar(x, ours.value, 0.7, color=_BAR, zorder=2)
        if ours.numbers is None:
            continue
        value, low, high = ours.numbers
        ends = [[value - low], [high - value]]
        axis.errorbar(x, value, ends, color=INK, capsize=3, lw=1, zorder=3)
    _marks(axis, figure, prompt)
    if spec.metric == MEDIAN_RANK:
        axis.set_yscale("log")
    else:
        axis.set_ylim(0, 1.05)
    seeds = f", {len(figure.seeds)} training seeds" if len(figure.seeds) > 1 else ""
    axis.set_ylabel(metric_name(spec.metric))
    title = f"{prompt}, {figure.model}, {figure.n(prompt)} facts{seeds}"
    axis.set_title(title, fontsize=8, loc="left", color=INK)
    axis.grid(axis="y", color=FAINT, lw=0.6, zorder=0)
    axis.spines[["top", "right"]].set_visible(False)


def _marks(axis: Axes, figure: PaperFigure, prompt: str) -> None:
    """The paper's rates, a mark per model."""
    spec, rates = figure.spec, figure.rates(prompt)
    mean = "" if spec.cited == spec.metric else f", {metric_name(spec.cited)}"
    for step, (model, known) in enumerate(rates.items()):
        shape, colour = _SHAPES[model]
        beside = 0.12 * (step - (len(rates) - 1) / 2)
        across, up = [], []
        for x, name in enumerate(figure.rows):
            if name in known:
                across.append(x + beside)
                up.append(getattr(known[name], spec.cited))
        axis.scatter(
            across,
            up,
            s=16,
            c=colour,
            marker=shape,
            label=f"{model} (paper{mean})",
            zorder=4,
            edgecolors="white",
            linewidths=0.4,
        )
