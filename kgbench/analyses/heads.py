"""Effects of single attention heads, grafted one at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from kgbench.analyses import Analysis, Answer, Inputs
from kgbench.errors import InputError
from kgbench.numbers import count_text
from kgbench.records import Record
from kgbench.report import Cell, Report, Table
from kgbench.sites import HEADED, parse_graft
from kgbench.sites.configurations import canonical

FIGURES = {"sufficiency": "alone", "necessity": "lost without"}
"""Figures of a head, and what their tables are called."""


@dataclass(frozen=True)
class Heads(Analysis):
    """Graft attention heads one at a time.

    For each layer and head, the share of what finetuning added that the donor's
    weights bring in this head alone, and the share that is lost where everything
    but this head is grafted. Of q, k and v a head is a slice of the outputs, of o
    of the inputs. Intervals are over facts.

    \b
    kgbench heads kgbench-results/RUN
    kgbench heads RUN --component v --positions FE --limit 50
    """  # noqa: D301 (click reads the character, not its escape)

    name = "heads"
    about = "Graft attention heads one at a time."
    arguments = "RUN"
    of = "pair"
    takes = ("layers", "limit", "device")
    changes: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "layers": {"help": "Layers of the heads, such as second_half or 8-17.  [default: all]"},
        "limit": {"help": "Only the first N facts.  [default: the run's]"},
    }

    component: str = field(default="o", metadata={"metavar": "NAME"})
    """Component of the heads: q, k, v or o."""
    positions: str = field(default="LT", metadata={"metavar": "POSITIONS"})
    """Tokens at which they are grafted, such as LT or FE+LT."""

    def answer(self, inputs: Inputs) -> Answer:
        """Run the grafts as one evaluation, and arrange its figures by layer and head."""
        from kgbench.engine.treatment import n_heads
        from kgbench.runner import Pairs, run_job
        from kgbench.runner.job import prepare_job

        if self.component not in HEADED:
            raise InputError(
                f"component {self.component!r} has no heads: expected {', '.join(HEADED)}"
            )
        (spec,) = inputs.specs
        pairs = Pairs()
        all_heads = f"{self.positions}:{self.component}@{spec.layers or 'all'}"
        all_layers = replace(spec, grafts=(all_heads,), layers=None)
        pair = prepare_job(all_layers, inputs.settings, pairs).pair
        (term,) = parse_graft(all_heads).terms
        grafts: dict[tuple[int, int], str] = {}
        for layer, component in term.sites(pair.n_layers):
            assert layer is not None
            for head in range(n_heads(pair, component)):
                graft = parse_graft(f"{self.positions}:{component}.h{head}@{layer}")
                grafts[layer, head] = str(canonical(graft))  # as the record names it
        of_heads = replace(all_layers, grafts=tuple(grafts.values()))
        record = run_job(of_heads, inputs.settings, inputs.progress, pairs).record
        title = (
            f"heads of {record.model}, {record.identity.dataset.name}, {record.identity.dtype}: "
            f"shares of what finetuning added on {record.metric}, with 95 % intervals over facts"
        )
        report = Report(title, _tables(record, self.component, grafts))
        rows = []
        for (layer, head), label in grafts.items():
            for prompt, by_graft in record.by_prompt.items():
                figures = {name: getattr(by_graft[label], name).answer() for name in FIGURES}
                rows.append({"prompt": prompt, "layer": layer, "head": head, **figures})
        return Answer(report, {"id": record.id, "rows": rows})


def _tables(record: Record, component: str, grafts: dict[tuple[int, int], str]) -> Sequence[Table]:
    """For each prompt and figure, a row per layer and a column per head."""
    heads = sorted({head for _, head in grafts})
    tables = []
    for prompt, by_graft in record.by_prompt.items():
        for figure, title in FIGURES.items():
            rows: list[list[Cell]] = []
            for layer in sorted({layer for layer, _ in grafts}):
                estimates = [getattr(by_graft[grafts[layer, head]], figure) for head in heads]
                rows.append([f"layer {layer}", *estimates])
            columns = ["", *(f"{component}.h{head}" for head in heads)]
            n = count_text(by_graft["SFT"].n, "fact")
            tables.append(Table(f"{prompt}: {title}, {n}", columns, rows))
    return tables
