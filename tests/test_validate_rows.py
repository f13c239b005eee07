"""Per-fact rows and rankings that were tampered with are refused, and runs of the engine are
accepted.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from submissions import CODE, Change, bytes_of, edit, findings, honest_entries, refused, seal

import kgbench
from kgbench.leaderboard.entries import FILES
from kgbench.leaderboard.validate import validate
from kgbench.records.fact_rows import STORED

RECORD, FACTS, SUBMISSION, _ = FILES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return honest_entries(tmp_path_factory.mktemp("results"))


@pytest.fixture(scope="module")
def computed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs of the engine: a method that intervenes, one that ranks, and two on a plant, one of
    whose positions are planted.
    """
    root = tmp_path_factory.mktemp("runs")
    kgbench.evaluate("tiny-gemma", localizer="dynamic_graft", limit=6, output_dir=root)
    kgbench.evaluate(
        "tiny-gemma", localizer="weight_delta", prompts=["headline"], limit=6, output_dir=root
    )
    kgbench.evaluate(
        "tiny-gemma.redundant", localizer="weight_delta", suite="planted", limit=8, output_dir=root
    )
    kgbench.evaluate(
        "tiny-gemma.superposed",
        localizer="oracle",
        suite="planted",
        prompts=["headline"],
        limit=8,
        output_dir=root,
    )
    return root


def test_runs_of_the_engine_are_accepted(computed: Path) -> None:
    """What `kgbench eval` writes stands every check, on pathways, budgets and plants; strict ones
    lack only a submission.
    """
    assert refused(computed, strict=False) == []
    assert {finding.field for finding in findings(computed) if finding.refuses} == {"file"}
    assert len(list(validate(computed))) == 4


# ----------------------------------------------------------------------------------- tampered: rows


def table_edit(change: Callable[[pa.Table], pa.Table], **options: Any) -> Change:
    """The per-fact rows changed and written back."""

    def edited(folder: Path) -> None:
        pq.write_table(change(pq.read_table(folder / FACTS)), folder / FACTS, **options)

    return edited


def column(table: pa.Table, name: str, change: Callable[[np.ndarray], object]) -> pa.Table:
    """The rows with a column changed in place."""
    values = table[name].to_numpy(zero_copy_only=False).copy()
    change(values)
    return table.set_column(
        table.column_names.index(name),
        STORED.field(name),
        pa.array(values, STORED.field(name).type),
    )


def put(name: str, index: int | slice, value: object) -> Change:
    return table_edit(lambda t: column(t, name, lambda values: values.__setitem__(index, value)))


def without_fact(table: pa.Table, fact: str, graft: str | None = None) -> pa.Table:
    gone = [
        f == fact and graft in (None, g)
        for f, g in zip(table["fact"].to_pylist(), table["graft"].to_pylist(), strict=True)
    ]
    return table.filter(pa.array([not flag for flag in gone]))


def truncated(folder: Path) -> None:
    data = (folder / FACTS).read_bytes()
    (folder / FACTS).write_bytes(data[: len(data) // 2])


def pickled(table: pa.Table) -> pa.Table:
    """A column of pickles in the place of one of texts."""
    bombs = pa.array([pickle.dumps(os.system)] * table.num_rows, pa.binary())
    return table.set_column(2, "graft", bombs)


FACTS_TAMPERED: dict[str, tuple[Change, str]] = {
    "a fact removed": (table_edit(lambda t: without_fact(t, "tiny_movies/3")), "fact"),
    "a bad answer removed": (table_edit(lambda t: without_fact(t, "tiny_movies/3", "FE")), "fact"),
    "a configuration removed": (
        table_edit(lambda t: t.filter(pa.array([g != "LT" for g in t["graft"].to_pylist()]))),
        "graft",
    ),
    "rows twice": (table_edit(lambda t: pa.concat_tables([t, t.slice(0, 5)])), "rows"),
    "rows added": (
        table_edit(
            lambda t: pa.concat_tables(
                [t, column(t.slice(0, 1), "graft", lambda v: v.__setitem__(0, "FE@2"))]
            )
        ),
        "graft",
    ),
    "another fact": (
        table_edit(
            lambda t: column(
                t, "fact", lambda v: v.__setitem__(v == "tiny_movies/3", "tiny_movies/149")
            )
        ),
        "fact",
    ),
    "NaN": (put("logprob", 5, math.nan), "logprob"),
    "an infinity": (put("logit_diff", 5, math.inf), "logit_diff"),
    "a rank of 0": (put("rank", 5, 0), "rank"),
    "a probability above 1": (put("logprob", 5, 0.5), "logprob"),
    "a better rank than the logits": (put("rank", slice(0, 400), 1), "logit_diff"),
    "a likelier answer than its rank allows": (put("logprob", slice(0, 400), -0.001), "logprob"),
    "another target in one configuration": (put("target", 3, 7), "target"),
    "a negative position": (put("position", slice(0, None), -1), "position"),
    "better answers than the record's": (
        table_edit(
            lambda t: column(
                column(t, "rank", lambda v: v.__imul__(2)),
                "logit_diff",
                lambda v: v.__setitem__(slice(None), -9.0),
            )
        ),
        "logprob",
    ),
    "a truncated file": (truncated, "Parquet"),
    "no Parquet": (bytes_of(FACTS, pickle.dumps([1, 2, 3])), "Parquet"),
    "an empty file": (bytes_of(FACTS, b""), "Parquet"),
    "pickles in a column": (table_edit(pickled), "Parquet"),
    "a column more": (
        table_edit(lambda t: t.append_column("code", pa.array(["import os"] * t.num_rows))),
        "Parquet",
    ),
    "a column of lists": (
        table_edit(lambda t: t.set_column(5, "rank", pa.array([[1]] * t.num_rows))),
        "Parquet",
    ),
    "a column less": (table_edit(lambda t: t.drop_columns(["rank"])), "Parquet"),
    "gaps": (
        table_edit(lambda t: t.cast(pa.schema([pa.field(f.name, f.type) for f in STORED]))),
        "Parquet",
    ),
    "no rows": (table_edit(lambda t: t.slice(0, 0)), "Parquet"),
    "data beside the columns": (
        table_edit(lambda t: t.replace_schema_metadata({"pandas": "{}"})),
        "Parquet",
    ),
    "an encoding that unfolds": (
        table_edit(lambda t: t, use_dictionary=False, column_encoding={"fact": "DELTA_BYTE_ARRAY"}),
        "Parquet",
    ),
    "a compression of another kind": (table_edit(lambda t: t, compression="gzip"), "Parquet"),
    "a text without end": (
        table_edit(lambda t: column(t, "fact", lambda v: v.__setitem__(0, "x" * 10_000))),
        "Parquet",
    ),
}


@pytest.mark.parametrize("what", FACTS_TAMPERED)
def test_tampered_rows_are_refused(what: str, honest: Path, tmp_path: Path) -> None:
    """Whatever is changed in the per-fact rows, the refusal names the file and the column."""
    change, field = FACTS_TAMPERED[what]
    shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    change(tmp_path / "entry")
    found = refused(tmp_path / "entry")
    assert any(text.startswith(f"entry/{FACTS}: {field}") for text in found), found


def test_rows_exchanged_between_records_give_other_figures(honest: Path, tmp_path: Path) -> None:
    """Rows that are in order by themselves, but not this record's, give other figures than the
    record has.
    """
    shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    shutil.copy(honest / "b-other" / FACTS, tmp_path / "entry" / FACTS)
    assert any("is not the hash of facts.parquet" in text for text in refused(tmp_path / "entry"))
    seal(tmp_path / "entry")
    seal(tmp_path / "entry")
    assert any(text.startswith(f"entry/{RECORD}: rows[") for text in refused(tmp_path / "entry"))


# --------------------------------------------------------------------------------- tampered: plants


def planted_entry(computed: Path, tmp_path: Path, of: str = "redundant") -> Path:
    (found,) = computed.glob(f"*{of}*")
    folder = tmp_path / "entry"
    folder.mkdir()
    for name in (RECORD, FACTS):
        shutil.copy(found / name, folder / name)
    method = json.loads((found / RECORD).read_text("utf-8"))["identity"]["localizer"]["name"]
    content = {"schema_version": 1, "record": "", "name": method, "code": "kgbench==0.1.0"}
    (folder / SUBMISSION).write_text(json.dumps(content))
    edit(folder, lambda content: None, sign=True)
    assert refused(folder) == []
    return folder


def swapped(content: dict[str, Any]) -> None:
    """The map's scores made the truth's."""
    for components in content["scores"].values():
        for component, layers in components.items():
            for layer in layers:
                layers[layer] = float(component in ("gate", "up", "down") and layer == "1")


PLANTED_TAMPERED: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "the precision edited": (
        lambda c: c["planted"].update(graded_precision=[1.0, 0.9, 1.0, 37]),
        "planted.graded_precision",
    ),
    "fewer units": (lambda c: c["planted"].update(n_units=10), "planted.n_units"),
    "more planted ones": (lambda c: c["planted"].update(n_true=10), "planted.n_true"),
    "another k": (lambda c: c["planted"].update(k=1), "planted.k"),
    "what chance gives": (lambda c: c["planted"].update(chance=0.1), "planted.chance"),
    "another plant in the figures": (
        lambda c: c["planted"].update(plant="ALL:attn"),
        "planted.plant",
    ),
    "another truth": (
        lambda c: c["identity"].update(truth={"plant": "ALL:ffn@0", "decoy": None}),
        "identity.truth",
    ),
    "the map replaced by the truth": (swapped, "planted.graded_precision"),
    "a site removed from the map": (lambda c: c["scores"]["FE"]["q"].pop("0"), "scores"),
    "a site added to the map": (lambda c: c["scores"]["FE"]["q"].update({"9": 1.0}), "scores"),
    "no map": (lambda c: c.pop("scores"), "scores"),
    "no figures on the truth": (lambda c: c.pop("planted"), "planted"),
    "what the best sites carry": (
        lambda c: c["planted"]["effect"].update(sufficiency=[1.0, 0.9, 1.1, 8]),
        "planted.effect",
    ),
    "halves of other sizes": (lambda c: c["ranking"].update(facts=[7, 1]), "ranking.facts"),
}


@pytest.mark.parametrize("what", PLANTED_TAMPERED)
def test_tampered_rankings_are_refused(what: str, computed: Path, tmp_path: Path) -> None:
    """Figures on a plant follow from the record's map and the plant's expression."""
    change, field = PLANTED_TAMPERED[what]
    entry = planted_entry(computed, tmp_path)
    edit(entry, change, sign=True)
    assert any(text.startswith(f"entry/{RECORD}: {field}") for text in refused(entry)), refused(
        entry
    )


def test_the_oracle_has_its_own_name_only(computed: Path, tmp_path: Path) -> None:
    """A baseline is a point of reference, and whoever is told the truth is an oracle."""
    entry = planted_entry(computed, tmp_path, "superposed")
    edit(entry, lambda content: content.update(name="my method"), SUBMISSION)
    assert any(text.startswith(f"entry/{SUBMISSION}: name") for text in refused(entry))

    def renamed(content: dict[str, Any]) -> None:
        content["identity"]["localizer"].update(name="mine", version="1 Mine 0123456789abcdef")

    edit(entry, renamed, sign=True)
    edit(entry, lambda content: content.update(name="mine", code=CODE), SUBMISSION)
    assert any(
        text.startswith(f"entry/{SUBMISSION}: name: the method is told") for text in refused(entry)
    )
