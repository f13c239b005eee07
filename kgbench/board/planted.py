"""Rankings against the truth, as tables."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from kgbench.estimate import Estimate
from kgbench.numbers import number_text
from kgbench.records import Effect, Planted, Record
from kgbench.report import Cell, Column, Dash, Lines, Report, Table, wrapped

__all__ = ["PLANTS_LEGEND", "planted_parts", "plants_report"]


NAME_WIDTH = 17
"""Longer names of plants are wrapped."""

PLANTS_LEGEND = wrapped(
    "Places are ranked among those n whose weights changed, k of them planted: of whole weights "
    "(layer, component), else (layer, component, region). Graded AP: average precision, the mean "
    "over "
    "thresholds of how far the facts use a place, the mean of what it adds to grafts of others; "
    "chance "
    "is what a random order gets, and knowing which weights changed. Decoy only: AUROC of the "
    "planted "
    "against the decoy's, .50 by chance. Of one plant there is no interval. Sufficiency and "
    "necessity are "
    "of as many best-ranked sites as were planted, over all prompts; by prompt, their estimates."
)
"""The columns of `plants_report`."""


def planted_parts(planted: Planted) -> list[Table | Lines]:
    """One ranking against the truth, with what chance gives."""
    rows: list[list[Cell]] = [
        ["graded average precision", planted.graded_precision, _expected(planted.chance)]
    ]
    if planted.auroc_decoy is not None:
        rows.append(["AUROC against the decoy's", planted.auroc_decoy, ".50"])
    shares: list[list[Cell]] = []
    for prompt, effect in {"all prompts": planted.effect, **planted.prompts}.items():
        shares.append([prompt, effect.sufficiency, effect.necessity])
    decoy = f", decoys at {planted.decoy}" if planted.decoy else ""
    changed = f"{planted.n_true} of the {planted.n_units} {_units(planted)}"
    title = f"planted at {planted.plant}{decoy}: {changed}"
    parts: list[Table | Lines] = [
        _table(title, ["ranking against the truth", "value", "chance"], rows),
        _table(f"the {planted.k} best-ranked sites", ["", "sufficiency", "necessity"], shares),
    ]
    if planted.pathways is not None:
        body: list[list[Cell]] = []
        for prompt, one in planted.pathways.items():
            recoveries: list[Cell] = [
                one.planted,
                one.recovery_planted,
                one.other,
                one.recovery_other,
            ]
            body.append([prompt, *recoveries, one.told])
        heads = ["", "planted", "recovery ≥ .9", "other", "recovery ≤ .1", "by the intervals"]
        parts.append(_table("pathways", heads, body))
    if planted.notes:
        parts.append(Lines([f"note: {note}" for note in planted.notes], "  "))
    return parts


def plants_report(records: Sequence[Record]) -> Report:
    """One method on several plants, a row each.

    Args:
        records: Its records, all of the suite `planted`, one per plant.
    """
    prompts = list(dict.fromkeys(p for record in records for p in _of(record).prompts))
    rankings, grafts = [], []
    notes: list[str] = []
    remarks: list[str] = []
    for record in records:
        planted, name = _of(record), _name(record.model)
        count = f"{planted.n_true} of {planted.n_units}"
        decoy: Cell = Dash() if planted.auroc_decoy is None else planted.auroc_decoy
        ranking: list[Cell] = [name, count, planted.graded_precision, _expected(planted.chance)]
        rankings.append([*ranking, decoy])
        single = [_short(planted.prompts.get(prompt)) for prompt in prompts]
        shares: list[Cell] = [name, planted.effect.sufficiency, planted.effect.necessity]
        grafts.append([*shares, *single, max(row.n for row in record.rows)])
        notes += _pathways(record)
        remarks += [f"note: {note}" for note in planted.notes]
    title = (
        f"{records[0].identity.localizer.name}: where facts were planted, "
        "and where this method looks for them; shares with 95 % intervals over facts"
    )
    tables = [
        _table("", ["plant", "k of n", "graded AP", "chance", "decoy only"], rankings),
        _table("", ["plant", "sufficiency", "necessity", *prompts, "facts"], grafts),
    ]
    return Report(title, tables, notes=[*notes, *dict.fromkeys(remarks)])


def _name(plant: str) -> str:
    """A name in lines, a long one broken at its points first."""
    parts = plant.replace(".", ".\n").split("\n") if len(plant) > NAME_WIDTH else [plant]
    return "\n".join(line for part in parts for line in wrap(part, NAME_WIDTH))


def _of(record: Record) -> Planted:
    assert record.planted is not None
    return record.planted


def _short(effect: Effect | None) -> Cell:
    """Sufficiency and necessity without their intervals."""
    if effect is None:
        return Dash()
    values = [effect.sufficiency.value, effect.necessity.value]
    return " / ".join("–" if value is None else number_text(value) for value in values)


def _pathways(record: Record) -> list[str]:
    """Whether the planted pathway was found, in a line."""
    texts = []
    for prompt, one in (_of(record).pathways or {}).items():
        if one.told == "not applicable":
            texts.append(f"{one.told} on {prompt}")
            continue
        planted = f"{one.planted} {_value(one.recovery_planted)}"
        other = f"{one.other} {_value(one.recovery_other)}"
        texts.append(f"{planted}, {other} on {prompt} ({one.told})")
    return [f"pathways of {record.model}: {'; '.join(texts)}"] if texts else []


def _value(estimate: Estimate) -> str:
    return "undefined" if estimate.value is None else number_text(estimate.value)


def _expected(value: float | None) -> Cell:
    return Dash() if value is None else number_text(value)


def _units(planted: Planted) -> str:
    return (
        "sites whose weights changed"
        if planted.units == "site"
        else "(layer, component) that changed, each by the best of its regions"
    )


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(title, [Column(head) for head in heads], rows)
