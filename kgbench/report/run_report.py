"""The report of a run: a table per prompt, its ranking, the truth, its cost; and of its repetition."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kgbench.estimate import Estimate, plain
from kgbench.numbers import (
    count_text,
    duration_text,
    figure_text,
    number_text,
    plain_text,
    signed_text,
    significant_text,
    value_text,
)
from kgbench.records import Planted, Record, Row
from kgbench.report import (
    Cell,
    Dash,
    Line,
    Lines,
    Report,
    Table,
    number_cell,
    table_width,
    text_width,
)
from kgbench.report.export import necessity_cell
from kgbench.stats import verdict_of
from kgbench.stats.answer_frequency import priors_of
from kgbench.stats.intervals import standard_errors
from kgbench.stats.rerun_comparison import Repeated
from kgbench.stats.scores import ONLY_SHARES

GRAFT_WIDTH = 30

FEW_FACTS = 50
"""Below so many facts the output states what they can show."""

TOP = 10
"""Sites of a ranking that are shown; the record holds all."""

COLUMNS = ("top1", "top5", "mrr", "prob", "median_rank")
"""Metrics in addition to that of the ratios, as many as fit."""

BASELINES = {"name_prior": "name prior (always the five most frequent first tokens), top5"}

PLAIN = "one plain forward"


def record_report(record: Record, width: float | None = None) -> Report:
    """The verdict on a run and a table per prompt, configurations in the paper's order.

    Metrics that do not fit the width, by default the terminal's, are left out, with a note.
    """
    what = record.identity
    limit = f", the first {what.limit}" if what.limit is not None else ""
    title = (
        f"{what.localizer.name} on {record.model}, {what.dataset.name}{limit}, {what.dtype}, "
        f"seed {', '.join(map(str, what.seeds))}: means over facts with 95 % intervals; "
        f"sufficiency and necessity on {record.metric}"
    )
    if what.readout is not None:
        texts = (f"{name}={value}" for name, value in what.readout.parameters.items() if value)
        title += f"; read out: {' '.join([what.readout.name, *texts])}"
    metrics = [record.metric]
    for name in COLUMNS:
        if all(row.estimate(name).undefined != ONLY_SHARES for row in record.rows):
            metrics += [name] * (name != record.metric)
    count = len(metrics)
    tables = _tables(record, metrics)
    while count > 1 and max(map(table_width, tables)) > (width or text_width()):
        count -= 1
        tables = _tables(record, metrics[:count])
    parts: list[Table | Lines] = [*tables, *_contrasts(record), *_ranking(record)]
    if record.planted is not None:
        parts += planted_parts(record.planted)
    notes = _run_notes(record)
    if count < len(metrics):
        notes.append(
            f"hidden to fit the terminal: {', '.join(metrics[count:])}; a wider one or "
            f"`kgbench show {record.id[:12]} --format csv` has them"
        )
    return Report(title, parts, _remarks(record), notes, verdict_of(record))


def _remarks(record: Record) -> list[str]:
    """What is to be known before the tables."""
    lines = priors_of(record).remarks(record.metric)
    if record.identity.after_blanks:
        lines.append(
            "The tokenizer keeps the blank before an answer apart: the model is given it, LT is "
            "that blank, and the answer is read after it."
        )
    for prompt, rows in record.by_prompt.items():
        if rows["SFT"].difference is not None:
            gain, why = rows["SFT"].gain, "is too uncertain for a ratio"
            if rows["SFT"].sufficiency.value is not None:
                why = f"is {number_text(standard_errors(gain))} standard errors, and intervals of "
                why += "ratios ignore that a significant one was selected"
            lines.append(
                f"On {prompt} the gain from finetuning ({value_text(gain)}, n = {gain.n}) {why}: "
                "compare the differences from PRE."
            )
    n = max((row.n for row in record.rows), default=FEW_FACTS)
    if n < FEW_FACTS:
        few = f"{count_text(n, 'fact')} {'is' if n == 1 else 'are'} few"
        lines.append(f"{few}. Give {FEW_FACTS} or more for figures to argue with.")
    return lines


def _tables(record: Record, metrics: Sequence[str]) -> list[Table]:
    prompts = record.by_prompt.values()
    return [_prompt_table(list(rows.values()), metrics) for rows in prompts]


def _contrasts(record: Record) -> list[Table]:
    """What cases have beyond their controls, by prompt."""
    tables = []
    for prompt, rows in (record.contrast or {}).items():
        body: list[list[Cell]] = [[row.graft, row.difference, row.recovery] for row in rows]
        heads = ["graft", f"{record.metric}, on − off", "recovery of that"]
        title = f"{prompt}: cases minus controls, with Welch's and Fieller's intervals"
        tables.append(Table(title, heads, body, GRAFT_WIDTH))
    return tables


def _prompt_table(rows: Sequence[Row], metrics: Sequence[str]) -> Table:
    """The rows of one prompt; numbers of facts are columns where rows differ in them."""
    dropped = f", {rows[0].dropped} dropped" if len({row.dropped for row in rows}) == 1 else ""
    title = f"{rows[0].prompt}: {count_text(rows[0].n, 'fact')}{dropped}"
    is_weak = any(row.difference is not None for row in rows)
    uneven = len({(row.n, row.dropped) for row in rows if row.applicable}) > 1
    body: list[list[Cell]] = []
    for row in rows:
        means: list[Cell] = list(map(row.estimate, metrics))
        counts = [row.n, row.dropped] if uneven else []
        if is_weak:
            means.insert(1, Dash() if row.graft == "PRE" else row.difference or Dash())
        body.append([row.graft, *means, row.sufficiency, necessity_cell(row), *counts])
    if is_weak:
        metrics = [metrics[0], "− PRE", *metrics[1:]]
    heads = ["graft", *metrics, "sufficiency", "necessity", *["n", "dropped"] * uneven]
    return Table(title, heads, body, GRAFT_WIDTH)


def _ranking(record: Record) -> list[Table]:
    """The sites that a scoring localizer holds most responsible."""
    if not record.scores:
        return []
    rows: list[list[Cell]] = []
    for site in sorted(record.scores, key=lambda site: -site.score)[:TOP]:
        layer: Cell = Dash() if site.layer is None else site.layer
        rows.append([layer, site.component, site.region, significant_text(site.score, 3)])
    title = f"highest scores of {len(record.scores)} sites, mean over the halves"
    return [Table(title, ["layer", "component", "region", "score"], rows)]


def _run_notes(record: Record) -> list[Line]:
    """Figures over configurations, dropped facts, and the cost."""
    lines: list[Line] = []
    if record.curve is None and record.planted is None:
        lines.append(["synergy of FE and LT: ", *_by_prompt(record.synergy)])
    if record.curve is not None:
        areas = {prompt: curve.area for prompt, curve in record.curve.items()}
        head = "area under the recovery curve, over log10(budget) from .1 to 100 %: "
        lines.append([head, *_by_prompt(areas)])
    if (ranking := record.ranking) is not None:
        first, second = ranking.facts
        sites = f"over {ranking.agreement.n} sites: "
        head = f"Spearman's correlation of the maps by the halves of {first} and {second} facts, "
        lines.append([head + sites, ranking.agreement])
    if record.answers:
        shares = []
        for prompt, counts in record.answers.items():
            shares.append(f"{len(counts)} for {count_text(sum(counts), 'fact')} on {prompt}")
        lines.append(f"distinct first tokens: {', '.join(shares)}")
    for name, estimates in record.baselines.items():
        lines.append([f"{BASELINES.get(name, name)}: ", *_by_prompt(estimates)])
    if record.dropped:
        reasons = [f"{count} × {reason}" for reason, count in record.dropped.items()]
        lines.append(f"dropped: {'; '.join(reasons)}")
    fitted = record.notes.get("fitted")
    lines += map(str, fitted) if isinstance(fitted, list) else ()
    cost = record.cost
    rows = count_text(cost.token_rows, "token row")
    spent = f"{count_text(cost.forwards, 'forward')}, {rows}, {duration_text(cost.seconds)}"
    ratio = cost.plain_forward_ratio
    times = _times(ratio)
    if ratio.value is None:
        times = [f"ratio to {PLAIN} ", ratio]
    lines.append([f"cost: {spent}; ", *times, f" ({cost.measured_on})"])
    if (scoring := cost.scoring) is not None:
        spent = f"{count_text(scoring.forwards, 'forward')}, {duration_text(scoring.seconds)}"
        lines.append(
            [f"of that to rank the sites: {spent}; ", *_times(scoring.plain_forward_ratio)]
        )
    return lines


def _times(ratio: Estimate) -> list[str | Estimate]:
    return [ratio] if ratio.value is None else [f"{number_text(ratio.value)} × {PLAIN}"]


def _by_prompt(estimates: Mapping[str, Estimate]) -> list[str | Estimate]:
    line: list[str | Estimate] = []
    for prompt, estimate in estimates.items():
        line += [", " if line else "", estimate, f" on {prompt}"]
    return line


def planted_parts(planted: Planted) -> list[Table | Lines]:
    """One ranking against the truth, with what chance gives."""
    rows: list[list[Cell]] = [
        ["average precision", planted.average_precision, number_cell(planted.chance)]
    ]
    shares: list[list[Cell]] = []
    for prompt, effect in {"all prompts": planted.effect, **planted.prompts}.items():
        shares.append([prompt, effect.sufficiency, effect.necessity])
    decoy = f", decoys at {planted.decoy}" if planted.decoy else ""
    of_region = " and regions" * (planted.units != "block")
    changed = f"{planted.n_true} of the {planted.n_units} blocks{of_region} whose weights changed"
    title = f"planted at {planted.plant}{decoy}: {changed}"
    parts: list[Table | Lines] = [
        Table(title, ["ranking against the truth", "value", "chance"], rows),
        Table(f"the {planted.k} best-ranked sites", ["", "sufficiency", "necessity"], shares),
    ]
    if planted.pathways is not None:
        body: list[list[Cell]] = []
        for prompt, pathway in planted.pathways.items():
            mine: list[Cell] = [pathway.planted, pathway.recovery_planted]
            body.append([prompt, *mine, pathway.other, pathway.recovery_other, pathway.outcome])
        heads = ["", "planted", "recovery ≥ .9", "other", "recovery ≤ .1", "by the intervals"]
        parts.append(Table("pathways", heads, body))
    if planted.notes:
        parts.append(Lines([f"note: {note}" for note in planted.notes], "  "))
    return parts


LISTED = 10
"""Rows of a kind that are listed."""


def repeat_report(repeated: Repeated, what: str) -> Report:
    """Per prompt and configuration: stored, now, and the difference; and the rows that differ.

    Args:
        repeated: The comparison.
        what: The facts that were run again, such as `20 of 150 facts`.
    """
    tables: dict[str, list[list[Cell]]] = {}
    for repeat in repeated.repeats:
        row: list[Cell] = [repeat.graft, repeat.n]
        row += [plain_text(repeat.stored, 4), plain_text(repeat.now, 4)]
        row += [signed_text(repeat.now - repeat.stored), repeat.flipped]
        row += [plain_text(repeat.largest, 2), len(repeat.others)]
        tables.setdefault(repeat.prompt, []).append(row)
    heads = ["graft", "facts", f"{repeated.metric} stored", "now", "difference", "flipped"]
    heads += ["largest |Δ log p|", "beyond"]
    parts: list[Table | Lines] = []
    for prompt, rows in tables.items():
        parts.append(Table(prompt, heads, rows, GRAFT_WIDTH))
    if (again := repeated.map) is not None:
        missing = f"; {again.missing} sites are in one of the maps only" if again.missing else ""
        line = (
            f"map of scores, stored and now: Spearman's correlation {figure_text(again.spearman)}, "
            f"largest difference of a score {plain_text(again.largest, 2)}, of at most "
            f"{plain_text(again.allowed, 2)}{missing}"
        )
        parts.append(Lines([line], "  "))
    if lines := list(_differing_rows(repeated)):
        head = "rows that differ by more than rounding:"
        parts.append(Lines([head, *lines], "    "))
    return Report("", parts, verdict=repeated_sentence(repeated, what))


def _differing_rows(repeated: Repeated) -> Iterator[str]:
    for row in repeated.others[:LISTED]:
        yield (
            f"  {row.prompt}, {row.graft}, {row.fact}: rank {row.stored.rank} stored, "
            f"{row.now.rank} now; log-probability {plain_text(row.stored.logprob)} stored, "
            f"{plain_text(row.now.logprob)} now"
        )
    for key in repeated.missing[:LISTED]:
        yield f"  {', '.join(key[:3])}: measured now, and not in the record"
    for key in repeated.extra[:LISTED]:
        yield f"  {', '.join(key[:3])}: in the record, and not measured now"
    kinds = (repeated.others, repeated.missing, repeated.extra)
    if more := sum(max(0, len(rows) - LISTED) for rows in kinds):
        yield f"  and {more} more"


def repeated_sentence(repeated: Repeated, what: str) -> str:
    """What came of it, in a sentence, and what could not be compared."""
    nats, flips = f"{plain_text(repeated.tolerance)} nats", count_text(repeated.flipped, "hit")
    rank = " by one rank"
    if repeated.hits == "prob":
        nats, flips, rank = "rounding", count_text(repeated.flipped, "share"), ""
    note = f" Note: {repeated.note}." if repeated.note else ""
    if repeated.agrees:
        ties = f", where {flips} flipped{rank}, as ties do" if repeated.flipped else ""
        return (
            f"It agrees: {what} run again, all {repeated.rows} rows within {nats}, the largest "
            f"difference {plain_text(repeated.largest, 2)}{ties}.{note}"
        )
    apart = f"{len(repeated.others)} of {repeated.rows} rows differ by more than {nats}"
    map_differs = repeated.map is not None and not repeated.map.agrees
    reasons = {
        f"{apart} or in their ranks": repeated.others,
        f"{count_text(len(repeated.missing), 'row')} of the run not in the record": repeated.missing,
        f"{count_text(len(repeated.extra), 'row')} of the record not of the run": repeated.extra,
        f"{flips} flipped": repeated.flipped,
        "the map of scores differs": map_differs,
        "there is no row to compare": not repeated.rows,
    }
    named = "; ".join(reason for reason, holds in reasons.items() if holds)
    return f"It differs: {what} run again, {named}.{note}"


def repeated_answer(repeated: Repeated, what: str) -> dict[str, Any]:
    """The object that `--json` prints."""
    scores = None
    if repeated.map is not None:
        scores = {**plain(repeated.map), "agrees": repeated.map.agrees}
    return {
        "agrees": repeated.agrees,
        "metric": repeated.metric,
        "hits": repeated.hits,
        "tolerance": repeated.tolerance,
        "rows_compared": repeated.rows,
        "largest": repeated.largest,
        "flipped": repeated.flipped,
        "rows": [repeat.answer() for repeat in repeated.repeats],
        "missing": _row_keys(repeated.missing),
        "extra": _row_keys(repeated.extra),
        "scores": scores,
        "note": repeated.note or None,
        "verdict": repeated_sentence(repeated, what),
    }


def _row_keys(keys: Sequence[tuple[str, str, str, int]]) -> list[dict[str, Any]]:
    return [dict(zip(("prompt", "graft", "fact", "position"), key, strict=True)) for key in keys]
