"""The board in others' formats: flat Parquet, Every Eval Ever, and a static Space.

Equal entries give equal bytes under one version of kgbench and of pyarrow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from kgbench.leaderboard.board_tables import Leaderboard
from kgbench.leaderboard.entries import Entry, suites_of, versioned
from kgbench.leaderboard.known import known
from kgbench.leaderboard.site.pages import render_site
from kgbench.records import canonical_json
from kgbench.report.export import Named, figures
from kgbench.version import __version__

Files = Iterator[tuple[str, bytes]]
"""Paths in a folder, and their contents."""

# -------------------------------------------------------------------------------------- flat Parquet

CARD = """---
pretty_name: kgbench leaderboard
license: mit
tags: [interpretability, localization, leaderboard]
configs:
- config_name: boards
  data_files: boards.parquet
- config_name: entries
  data_files: entries.parquet
- config_name: facts
  data_files: facts.parquet
---
# The leaderboard of kgbench as tables

`datasets.load_dataset(…, "boards")` has a row per figure of a method in a table: `value` with its 95 % interval
(`low`, `high`; those of cost are the smallest and largest value), or `undefined`, the reason why there is none.
`"entries"` has a row per run, and `"facts"` one per run, prompt, configuration and fact; `id` of the former is
`entry` of the latter. Written by `kgbench leaderboard build --dataset`.
"""

_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("value", "low", "high", "seconds"), pa.float64()),
    **dict.fromkeys(("first_rank", "last_rank", "cells", "of_cells"), pa.int64()),
    **dict.fromkeys(("n", "limit", "forwards", "laws_tried"), pa.int64()),
    **dict.fromkeys(("baseline", "ranks"), pa.bool_()),
    **dict.fromkeys(("boards", "prompts", "configurations", "laws_broken"), pa.list_(pa.string())),
    "seeds": pa.list_(pa.int64()),
}
"""Of columns that are no texts."""


def dataset(leaderboard: Leaderboard) -> Files:
    """Boards, entries and facts, one Parquet file each, with a card that `datasets` reads."""
    yield "README.md", CARD.encode()
    yield "boards.parquet", _packed(_table(list(_figures(leaderboard))))
    yield "entries.parquet", _packed(_table(list(map(_run, leaderboard.entries))))
    tables = []
    for entry in leaderboard.entries:
        rows = entry.facts()
        for name, text in (
            ("pair", entry.pair),
            ("method", entry.method),
            ("entry", entry.result.id),
        ):
            rows = rows.add_column(0, name, pa.repeat(text, rows.num_rows))
        tables.append(rows)
    yield "facts.parquet", _packed(pa.concat_tables(tables))


def _table(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    names = [(name, _TYPES.get(name, pa.string())) for name in rows[0]]
    return pa.Table.from_pylist(rows, pa.schema(names))


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _figures(leaderboard: Leaderboard) -> Iterator[dict[str, Any]]:
    for board in leaderboard.boards:
        for table in board.tables:
            about: dict[str, str | None] = {
                "board": board.versioned,
                "table": table.key,
                "title": table.title,
            }
            about |= {name: table.scope.get(name) for name in ("pair", "prompt")}
            for line in table.lines:
                first, last = (line.ranks if line.ranks and line.rank_text else None) or (
                    None,
                    None,
                )
                have, of = line.coverage
                for figure, estimate in line.figures.items():
                    yield {
                        **about,
                        "method": line.method,
                        "source": line.badge,
                        "baseline": line.baseline,
                        "first_rank": first,
                        "last_rank": last,
                        "unranked": line.unranked or None,
                        "cells": have,
                        "of_cells": of,
                        "figure": figure,
                        "ranks": figure == table.ranked_by,
                        **vars(estimate),
                    }


def _run(entry: Entry) -> dict[str, Any]:
    result, contract, submission = entry.result, entry.contract, entry.submission
    what = result.identity
    return {
        "id": result.id,
        "boards": list(map(versioned, suites_of(result))),
        "method": entry.method,
        "source": entry.badge,
        "localizer": what.localizer.name,
        "version": what.localizer.version,
        "parameters": canonical_json(what.localizer.parameters),
        "pair": entry.pair,
        "dataset": what.dataset.name,
        "dataset_hash": what.dataset.hash,
        "prompts": list(what.prompts),
        "configurations": list(what.configurations),
        "n": what.n_facts,
        "limit": what.limit,
        "seeds": list(what.seeds),
        "dtype": what.dtype,
        "metric": result.metric,
        "metric_version": what.metric_version,
        "code": submission and submission.code,
        "paper": submission and submission.paper,
        "laws_tried": contract and contract.laws,
        "laws_broken": contract and list(contract.broken),
        "forwards": result.cost.forwards,
        "seconds": result.cost.seconds,
        "device": result.provenance.device,
        "kgbench": result.provenance.kgbench,
        "time": result.provenance.time,
    }


# ---------------------------------------------------------------------------------- Every Eval Ever

SCHEMA = "0.3.0"
"""Version of the schema of Every Eval Ever."""

SHARED: Mapping[str, Mapping[str, str]] = {
    "planted": {
        "average_precision": "Average precision of the blocks that learned the facts",
        "best_sufficiency": "Recovery where the highest-ranked sites are grafted",
        "best_necessity": "What is lost where all sites but these are grafted",
    },
    "budget": {"area": "Area under the recovery over budgets, on a logarithmic axis"},
    "pathways": {
        "sufficiency": "Share of what finetuning added that the configuration brings",
        "necessity": "Share of it that is lost without the configuration",
    },
}
"""Figures that are exported, by suite, and what each is."""


def every_eval_ever(leaderboard: Leaderboard) -> Files:
    """A file per entry, where its datastore has it; the format has no undefined figures."""
    for entry in leaderboard.entries:
        document = _evaluation(entry)
        id = UUID(bytes=bytes.fromhex(entry.result.id[:32]), version=4)
        place = f"data/kgbench/{document['model_info']['id']}/{id}.json"
        yield place, canonical_json(document).encode()


def _evaluation(entry: Entry) -> dict[str, Any]:
    result, name = entry.result, f"{entry.board}/{entry.folder.name}"
    what, provenance = result.identity, result.provenance
    model, seconds = (
        f"kgbench/{entry.pair}",
        int(datetime.fromisoformat(provenance.time).timestamp()),
    )
    shared = {
        "evaluation_name": name,
        "source_data": {
            "dataset_name": what.dataset.name,
            "source_type": "other",
            "additional_details": {"hash": what.dataset.hash},
        },
        "generation_config": {
            "additional_details": {
                "method": entry.method,
                "localizer": f"{what.localizer.name} {what.localizer.version}",
                "parameters": canonical_json(what.localizer.parameters),
            }
        },
    }
    scores = []
    for named in figures(entry.record):
        about = SHARED[entry.suite].get(named.figure)
        if about and named.estimate.value is not None:
            scores.append(
                {"evaluation_result_id": f"{result.id}/{named.where}"}
                | shared
                | _score(named, about)
            )
    return {
        "schema_version": SCHEMA,
        "evaluation_id": f"{name}/{model}/{seconds}",
        "evaluation_timestamp": provenance.time,
        "retrieved_timestamp": str(seconds),
        "source_metadata": {
            "source_name": "kgbench leaderboard",
            "source_type": "evaluation_run",
            "source_organization_name": "kgbench",
            "evaluator_relationship": (
                "third_party" if entry.badge == "self-reported" else "first_party"
            ),
            "additional_details": {"source": entry.badge},
        },
        "eval_library": {"name": "kgbench", "version": provenance.kgbench},
        "model_info": {
            "name": entry.pair,
            "id": model,
            "additional_details": {
                "deployment_type": "self_deployed",
                "model_availability": "open_weights" if entry.pair in known().pairs else "unknown",
            },
        },
        "evaluation_results": scores,
    }


def _score(named: Named, about: str) -> dict[str, Any]:
    estimate, share = named.estimate, named.figure == "average_precision"
    uncertainty: dict[str, Any] = {"num_samples": estimate.n}
    if estimate.numbers is not None:
        ends = {"lower": estimate.low, "upper": estimate.high, "confidence_level": 0.95}
        uncertainty["confidence_interval"] = ends
    return {
        "metric_config": {
            "evaluation_description": about,
            "metric_id": f"kgbench.{named.figure}",
            "metric_name": named.where,
            "metric_unit": "proportion",
            "lower_is_better": False,
            "score_type": "continuous",
            "min_score": 0 if share else "-Infinity",  # a recovery may be below 0 and beyond 1
            "max_score": 1 if share else "Infinity",
        },
        "score_details": {"score": estimate.value, "uncertainty": uncertainty},
    }


# --------------------------------------------------------------------------------------------- Space

FRONT = """---
title: kgbench leaderboard
colorFrom: blue
colorTo: gray
sdk: static
app_file: index.html
license: mit
---
Pages of the leaderboard of kgbench, written by `kgbench leaderboard build --space`. They ask nothing of any network. `health.json` has the
version that wrote them, how many entries each board has, and the SHA-256 over all pages.
"""


def space(leaderboard: Leaderboard) -> Files:
    """The site as a static Space of the Hugging Face Hub, with what a monitor asks it for."""
    yield "README.md", FRONT.encode()
    digest, pages = sha256(), 0
    for path, content in render_site(leaderboard):
        digest.update(f"{path}\n{sha256(content).hexdigest()}\n".encode())
        pages += 1
        yield path, content
    health = {
        "status": "ok",
        "kgbench": __version__,
        "entries": len(leaderboard.entries),
        "boards": dict(sorted(Counter(entry.board for entry in leaderboard.entries).items())),
        "methods": len({entry.method for entry in leaderboard.entries}),
        "files": pages,
        "sha256": digest.hexdigest(),
    }
    yield "health.json", json.dumps(health, indent=1).encode()


FORMATS: Mapping[str, Callable[[Leaderboard], Files]] = {
    "dataset": dataset,
    "every_eval_ever": every_eval_ever,
    "space": space,
}
"""By the option of `kgbench leaderboard build` that takes the folder."""
