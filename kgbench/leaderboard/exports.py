"""The board in others' formats: flat Parquet, Every Eval Ever, and a static Space.

Equal entries give equal bytes under one version of kgbench and of pyarrow.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from hashlib import sha256
from typing import Any
from uuid import UUID

import pyarrow as pa
import pyarrow.parquet as pq

from kgbench.estimate import Estimate
from kgbench.leaderboard.board_tables import Leaderboard
from kgbench.leaderboard.entries import TRUSTED, Entry, versioned
from kgbench.leaderboard.site.pages import render_site
from kgbench.records import canonical_json
from kgbench.report.export import figures, run_columns
from kgbench.resources import read_toml
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


def dataset(leaderboard: Leaderboard) -> Files:
    """Boards, entries and facts, one Parquet file each, with a card that `datasets` reads."""
    yield "README.md", CARD.encode()
    yield "boards.parquet", _packed(pa.Table.from_pylist(list(_figures(leaderboard))))
    yield "entries.parquet", _packed(pa.Table.from_pylist(list(map(_run, leaderboard.entries))))
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


def _packed(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    return bytes(sink.getvalue())


def _figures(leaderboard: Leaderboard) -> Iterator[dict[str, Any]]:
    for board in leaderboard.boards:
        for table in board.tables:
            about: dict[str, Any] = {
                "board": board.versioned,
                "table": table.key,
                "title": table.title,
            }
            about |= {name: table.scope.get(name, "") for name in ("pair", "prompt")}
            for line in table.lines:
                first, last = (None, None) if line.unranked else line.ranks or (None, None)
                have, of = line.coverage
                for figure, estimate in line.figures.items():
                    yield {
                        **about,
                        "method": line.method,
                        "source": line.badge,
                        "baseline": line.baseline,
                        "first_rank": first,
                        "last_rank": last,
                        "unranked": line.unranked,
                        "cells": have,
                        "of_cells": of,
                        "figure": figure,
                        "ranks": figure == table.ranked_by,
                        **vars(estimate),
                    }


def _run(entry: Entry) -> dict[str, Any]:
    result, contract, submission = entry.result, entry.contract, entry.submission
    return {
        "id": result.id,
        "boards": list(map(versioned, entry.suites)),
        **run_columns(entry.record),
        "method": entry.method,
        "localizer": entry.localizer,
        "source": entry.badge,
        "code": submission.code if submission else "",
        "paper": (submission and submission.paper) or "",
        "laws": contract.about if contract else "",
        "dataset": result.identity.dataset.name,
        "dtype": result.identity.dtype,
        "seconds": result.cost.seconds,
        "device": result.provenance.device,
        "kgbench": result.provenance.kgbench,
    }


# ---------------------------------------------------------------------------------- Every Eval Ever


def every_eval_ever(leaderboard: Leaderboard) -> Files:
    """A file per entry, where its datastore has it; the format has no undefined figures."""
    for entry in leaderboard.entries:
        document = _evaluation(entry)
        id = UUID(bytes=bytes.fromhex(entry.result.id[:32]), version=4)
        place = f"data/kgbench/{document['model_info']['id']}/{id}.json"
        yield place, canonical_json(document).encode()


def _evaluation(entry: Entry) -> dict[str, Any]:
    form, name = read_toml(__package__, "every_eval_ever"), f"{entry.board}/{entry.folder.name}"
    result, what, time = entry.result, entry.result.identity, entry.result.provenance.time
    model, seconds = f"kgbench/{entry.pair}", int(datetime.fromisoformat(time).timestamp())
    arguments = canonical_json(what.localizer.parameters)
    about = {"method": entry.method, "localizer": what.localizer.name, "parameters": arguments}
    scores = []
    for named in figures(entry.record):
        metric = form["figures"][entry.suite].get(named.figure)
        if metric is None or named.estimate.value is None:
            continue
        metric = {"metric_id": f"kgbench.{named.figure}", "metric_name": named.where, **metric}
        scores.append(
            {
                "evaluation_result_id": f"{result.id}/{named.where}",
                "evaluation_name": name,
                "source_data": {"dataset_name": what.dataset.name, "source_type": "other"},
                "generation_config": {"additional_details": about},
                "metric_config": {**form["metric"], **metric},
                "score_details": _score(named.estimate),
            }
        )
    own = entry.badge in TRUSTED
    return {
        "schema_version": form["schema_version"],
        "evaluation_id": f"{name}/{model}/{seconds}",
        "evaluation_timestamp": time,
        "retrieved_timestamp": str(seconds),
        "source_metadata": {
            **form["source"],
            "evaluator_relationship": "first_party" if own else "third_party",
            "additional_details": {"source": entry.badge},
        },
        "eval_library": {"name": "kgbench", "version": result.provenance.kgbench},
        "model_info": {"name": entry.pair, "id": model, "additional_details": form["model"]},
        "evaluation_results": scores,
    }


def _score(estimate: Estimate) -> dict[str, Any]:
    uncertainty: dict[str, Any] = {"num_samples": estimate.n}
    if estimate.numbers is not None:
        ends = {"lower": estimate.low, "upper": estimate.high, "confidence_level": 0.95}
        uncertainty["confidence_interval"] = ends
    return {"score": estimate.value, "uncertainty": uncertainty}


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
