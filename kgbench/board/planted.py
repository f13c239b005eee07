"""Rankings against the truth, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from tabulate import tabulate

from kgbench.board.footnotes import Footnotes
from kgbench.board.wrap import wrapped
from kgbench.estimate import Estimate
from kgbench.numbers import number_text
from kgbench.records import Effect, Planted, Record

__all__ = ["PLANTS_LEGEND", "planted_block", "render_plants"]


NAME_WIDTH = 17
"""Longer names of plants are wrapped."""

PLANTS_LEGEND = wrapped(
    "Places are ranked among those n whose weights changed, k of them planted: of whole weights "
    "(layer, component), else (layer, component, region). Graded AP: average precision, the mean over "
    "thresholds of how far the facts use a place, the mean of what it adds to grafts of others; chance "
    "is what a random order gets, and knowing which weights changed. Decoy only: AUROC of the planted "
    "against the decoy's, .50 by chance. Of one plant there is no interval. Sufficiency and necessity are "
    "of as many best-ranked sites as were planted, over all prompts; by prompt, their estimates."
)
"""What the columns of `render_plants` are."""


def planted_block(planted: Planted, notes: Footnotes) -> str:
    """How one ranking compares with the truth, with what chance gives."""
    rows = [
        [
            "graded average precision",
            notes.cell(planted.graded_precision),
            _expected(planted.chance),
        ]
    ]
    if planted.auroc_decoy is not None:
        rows.append(["AUROC against the decoy's", notes.cell(planted.auroc_decoy), ".50"])
    found = {"all prompts": planted.effect, **planted.prompts}
    shares = [
        [prompt, notes.cell(effect.sufficiency), notes.cell(effect.necessity)]
        for prompt, effect in found.items()
    ]
    decoy = f", decoys at {planted.decoy}" if planted.decoy else ""
    head = f"planted at {planted.plant}{decoy}: {planted.n_true} of the {planted.n_units} {_units(planted)}"
    parts = [
        wrapped(head),
        _table(["ranking against the truth", "value", "chance"], rows),
        f"\nthe {planted.k} best-ranked sites",
        _table(["", "sufficiency", "necessity"], shares),
        *_pathways(planted, notes),
        *(wrapped(f"note: {note}", "  ") for note in planted.notes),
    ]
    return "\n".join(parts)


def render_plants(records: Sequence[Record]) -> str:
    """One method on several plants, a row each.

    Args:
        records: Its records, all of the suite `planted`, one per plant.

    Returns:
        Text of at most 100 columns.
    """
    notes = Footnotes()
    name = records[0].identity.localizer.name
    head = f"{name}: where facts were planted, and where this method looks for them; shares with 95 % intervals over facts"
    first, second = zip(*(_rows(record, notes) for record in records), strict=True)
    ranking = _table(["plant", "k of n", "graded AP", "chance", "decoy only"], first)
    grafts = _table(["plant", "sufficiency", "necessity", *_prompts(records), "facts"], second)
    paths = [line for record in records if record.planted for line in _found(record)]
    told = list(
        dict.fromkeys(note for record in records if record.planted for note in record.planted.notes)
    )
    below = [
        *paths,
        *(wrapped(f"note: {note}", "  ") for note in told),
        *(wrapped(line, "    ") for line in notes.lines()),
    ]
    return "\n\n".join([wrapped(head), ranking, grafts, *(["\n".join(below)] if below else [])])


def _rows(record: Record, notes: Footnotes) -> tuple[list[str], list[str]]:
    planted, name = _of(record), _name(record.model)
    against = notes.cell(planted.auroc_decoy) if planted.auroc_decoy is not None else "–"
    count = f"{planted.n_true} of {planted.n_units}"
    ranking = [
        name,
        count,
        notes.cell(planted.graded_precision),
        _expected(planted.chance),
        against,
    ]
    shares = [notes.cell(e) for e in (planted.effect.sufficiency, planted.effect.necessity)]
    single = [
        _short(planted.prompts[prompt]) if prompt in planted.prompts else "–"
        for prompt in _prompts([record])
    ]
    return ranking, [name, *shares, *single, str(max(row.n for row in record.rows))]


def _name(plant: str) -> str:
    """A name in lines, a long one broken at its points first."""
    parts = plant.replace(".", ".\n").split("\n") if len(plant) > NAME_WIDTH else [plant]
    return "\n".join(line for part in parts for line in wrap(part, NAME_WIDTH))


def _of(record: Record) -> Planted:
    assert record.planted is not None
    return record.planted


def _prompts(records: Sequence[Record]) -> list[str]:
    return list(dict.fromkeys(prompt for record in records for prompt in _of(record).prompts))


def _short(effect: Effect) -> str:
    """Sufficiency and necessity without their intervals."""
    return " / ".join(
        "–" if e.value is None else number_text(e.value)
        for e in (effect.sufficiency, effect.necessity)
    )


def _pathways(planted: Planted, notes: Footnotes) -> list[str]:
    if planted.pathways is None:
        return []
    body = [
        [
            p,
            f.planted,
            notes.cell(f.recovery_planted),
            f.other,
            notes.cell(f.recovery_other),
            f.told,
        ]
        for p, f in planted.pathways.items()
    ]
    heads = ["", "planted", "recovery ≥ .9", "other", "recovery ≤ .1", "by the intervals"]
    return ["\npathways", _table(heads, body)]


def _found(record: Record) -> list[str]:
    """Whether the planted pathway was found, a line per plant."""
    pathways = _of(record).pathways
    if pathways is None:
        return []
    texts = [
        f"{p.told} on {name}"
        if p.told == "not applicable"
        else f"{p.planted} {_value(p.recovery_planted)}, {p.other} {_value(p.recovery_other)} on {name} ({p.told})"
        for name, p in pathways.items()
    ]
    return [wrapped(f"pathways of {record.model}: {'; '.join(texts)}", "  ")]


def _value(estimate: Estimate) -> str:
    return "undefined" if estimate.value is None else number_text(estimate.value)


def _expected(value: float | None) -> str:
    return "–" if value is None else number_text(value)


def _units(planted: Planted) -> str:
    return (
        "sites whose weights changed"
        if planted.units == "site"
        else "(layer, component) that changed, each by the best of its regions"
    )


def _table(heads: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    return tabulate(body, heads, tablefmt="simple", disable_numparse=True)
