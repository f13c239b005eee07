"""`kgbench diff`: where the weights of two checkpoints differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kgbench.cli.options import File, cli_command
from kgbench.cli.output import Output, picture_kind, write_picture
from kgbench.errors import InputError, UnknownNameError
from kgbench.progress import Progress

if TYPE_CHECKING:
    from kgbench.models.difference import Change, Difference
    from kgbench.report import Cell, Report, Table


@cli_command("revision", "output", "as_json")
def diff_command(
    base: str,
    finetuned: str | None,
    *,
    revision: str | None,
    output: File | None,
    progress: Progress | None,
) -> Output:
    """Show which layers and components finetuning changed, from the files alone.

    Nothing is run, and no facts are needed. It shows where weights changed, not
    that something is stored there: a graft shows what a change does (kgbench eval).

    \b
    kgbench diff path/to/base path/to/finetuned
    kgbench diff tiny-gemma -o change.svg          # a pair of kgbench ls models

    Args:
        base (BASE): The model before finetuning, a folder or a Hub id; of a named pair its base.
        finetuned (FINETUNED): The model after it, or an adapter; of a named pair its finetuned
            model.  [default: that of the pair BASE]
        revision: Of Hub checkpoints.
        output (FILE): Draw layers and components into a .png, .svg or .pdf.
        progress: Progress callback.
    """  # noqa: D301 (click reads the character, not its escape)
    from kgbench.models.catalog import entry, is_name, pair_names
    from kgbench.models.checkpoints import locate
    from kgbench.models.difference import difference
    from kgbench.models.loading import pair_sources

    if output is not None:
        picture_kind(output)  # before tensors are read
    if finetuned is None and not is_name(base):
        hint = "Of two checkpoints give both: kgbench diff BASE FINETUNED."
        raise UnknownNameError("pair", base, pair_names(), hint)

    def is_pair(name: str) -> bool:
        # Some finetuned models on the Hub are known by their id, which is a checkpoint's too.
        is_checkpoint = Path(name).exists() or name in entry(name).donors.values()
        return finetuned is None or not is_checkpoint

    after = finetuned or base
    if is_name(base) and is_pair(base):
        base = entry(base).recipient
    if is_name(after) and is_pair(after):
        _, *donors = pair_sources(after, None, None)[1].values()
        after = str(donors[0])
    first = locate(base, revision)
    apart = difference(first, locate(after, revision, first), progress)
    parts: list[str | Report] = [_report(apart)]
    if output is not None:
        _draw(apart, output)
        parts.append(f"picture  {output}")
    return Output(parts, asdict(apart))


def _draw(apart: Difference, path: Path) -> None:
    """Draw the changes within the layers.

    Raises:
        InputError: There are none, or the file's name is no picture's.
    """
    from kgbench.report.site_maps import draw_weights

    norms, ranks = dict[tuple[int, str], float](), dict[tuple[int, str], float]()
    for change in apart.changes:
        if change.layer is not None:
            norms[change.layer, change.component] = 100 * change.norm
            if change.rank is not None:
                ranks[change.layer, change.component] = change.rank
    if not any(norms.values()):
        raise InputError(f"--output {str(path)!r}: no layer has a change to draw")
    grids = {"norm of the change, %": norms, "effective rank": ranks}
    name = f"from {Path(apart.base).name} to {Path(apart.finetuned).name}"
    write_picture(path, partial(draw_weights, name=name), grids)


def _report(apart: Difference) -> Report:
    from kgbench.report import Report

    changed = [change for change in apart.changes if change.norm]
    inside = [change for change in apart.changes if change.layer is not None]
    outside = [change for change in apart.changes if change.layer is None]
    parts = []
    if any(change.norm for change in inside):
        parts.append(_layers(inside, "relative norm of the change, in per cent", _percent))
        parts.append(_layers(inside, "effective rank of the change", _rank))
    if outside:
        parts.append(_others(outside))
    notes = [
        "norm: ‖W' − W‖ / ‖W‖ over all weights of a component; effective rank: (Σs²)² / Σs⁴ of the "
        "singular values s of the change, 1 for a change in one direction",
        "a change of weights says where to look, not that something is stored there",
    ]
    about = [f"base {apart.base}, finetuned {apart.finetuned}", *_texts(apart), *apart.notes]
    verdict = f"All {apart.tensors} tensors are equal."
    if changed:
        # Weights of norms are few, and some models store their distance from 1.
        most = max(changed, key=lambda change: (change.rank is not None, change.norm))
        rank = "" if most.rank is None else f", effective rank {_rank(most)} of {most.full}"
        verdict = (
            f"{apart.tensors - apart.equal} of {apart.tensors} tensors differ; most of all "
            f"{_place(most)}, by {_percent(most)} % of its norm{rank}."
        )
    return Report("Weights before and after finetuning", parts, about, notes, verdict)


def _texts(apart: Difference) -> Iterable[str]:
    """Lines on what else differs, or that nothing does."""
    for name, (before, after) in apart.settings.items():
        yield f"configuration: {name} is {before} before, {after} after"
    yield f"tokenizer: {apart.tokenizer or 'the same'}"
    yield f"chat template: {apart.chat_template or 'the same'}"


def _place(change: Change) -> str:
    return (
        change.component if change.layer is None else f"{change.component} of layer {change.layer}"
    )


def _percent(change: Change) -> str:
    from kgbench.numbers import significant_text

    return significant_text(100 * change.norm)


def _rank(change: Change) -> str:
    from kgbench.numbers import significant_text

    return "" if change.rank is None else significant_text(change.rank)


def _layers(changes: list[Change], title: str, text: Callable[[Change], str]) -> Table:
    """Layers × components; layers without a change are left out."""
    from kgbench.report import Table

    components = list(dict.fromkeys(change.component for change in changes))
    by_layer: dict[int | None, dict[str, str]] = {}
    for change in changes:
        by_layer.setdefault(change.layer, {})[change.component] = text(change)
    altered = {change.layer for change in changes if change.norm}
    rows: list[list[Cell]] = []
    for layer, cells in by_layer.items():
        if layer in altered:
            rows.append([str(layer), *(cells.get(component, "") for component in components)])
    same = len(by_layer) - len(rows)
    left_out = f" ({same} layers without a change are left out)" if same else ""
    return Table(f"{title}{left_out}", ["layer", *components], rows)


def _others(changes: Iterable[Change]) -> Table:
    from kgbench.report import Table

    rows: list[list[Cell]] = []
    for change in changes:
        rows.append([change.component, _percent(change), _rank(change)])
    return Table("", ["outside the layers", "norm, %", "effective rank"], rows)
