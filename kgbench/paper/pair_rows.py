"""The rows behind a pair's figures, with their provenance: one file for all training seeds.

Every figure follows from the file without a model. A row is one fact under one configuration on one
prompt of one evaluation under one training seed; only rows that a figure shows are kept.
"""

from __future__ import annotations

import math
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pydantic import Field

from kgbench.errors import DataError, InputError
from kgbench.paper.figure_specs import Scale, page
from kgbench.records import Record, Strict
from kgbench.stats.scores import PromptColumns, by_prompt

ROWS = "rows.parquet"

_NAMES = ("evaluation", "prompt", "configuration", "fact")
SCHEMA = pa.schema(
    [
        pa.field("seed", pa.uint32(), nullable=False),
        *(pa.field(name, pa.string(), nullable=False) for name in _NAMES),
        pa.field("rank", pa.uint32(), nullable=False),
    ]
)
"""Sorted by all columns but the last. Log-probabilities, which no figure rests on, are in the
records; they would double the file.
"""

_SORTED = [
    (name, "ascending") for name in ("evaluation", "prompt", "configuration", "seed", "fact")
]

_LEVEL = 10
"""Of brotli: a twentieth smaller than zstd's best, in a second per half a million rows."""
_PAGE = 1 << 28
"""More than a file has bytes or rows."""
_ABOUT = b"kgbench_reproduction"

Provenance = TypeVar("Provenance", bound=Strict)


class Donor(Strict):
    """A donor, from its card."""

    data: str
    texts: int
    """Number of texts that were trained."""
    steps: int
    seconds: float
    weights: str
    recipe: dict[str, Any]
    precision: str | None
    """None for a pair's own donor, whose card does not have it."""

    @classmethod
    def of(cls, card: Mapping[str, Any]) -> Donor:
        """From a card."""
        return cls(
            data=card["data"]["name"],
            texts=card["texts"]["trained"],
            **{name: card[name] for name in ("steps", "seconds", "weights", "recipe", "precision")},
        )

    @classmethod
    def of_pair(cls, card: Mapping[str, Any], weights: str, texts: int) -> Donor:
        """The donor that a tiny pair comes with.

        Args:
            card: The pair's.
            weights: Hash of the donor's stored weights.
            texts: Number of texts in a round of its finetuning.
        """
        stage = dict(card["recipe"]["finetuning"])
        rounds = stage.pop("rounds")
        return cls(
            data=card["data"]["name"],
            texts=texts,
            steps=rounds * math.ceil(texts / stage["batch_size"]),
            seconds=card["seconds"]["sft"],
            weights=weights,
            recipe={
                "name": "frozen" if card["recipe"]["frozen"] else "aggressive",
                "epochs": rounds,
                **stage,
            },
            precision=None,
        )


class Evaluated(Strict):
    """An evaluation."""

    data: str
    record: str
    """Its record's id."""
    seconds: float
    identity: str
    """Hash of the ingredients, see `Ingredients.identity`."""
    kgbench: str
    torch: str
    device: str
    platform: str
    earlier: dict[str, Donor] = Field(default_factory=dict)
    """Donors of it that have been trained again under its seed since, with other weights, by
    training.
    """

    @classmethod
    def of(cls, record: Record, identity: str) -> Evaluated:
        """From its record."""
        origin = record.provenance
        return cls(
            data=record.identity.dataset.name,
            record=record.id,
            seconds=record.cost.seconds,
            identity=identity,
            kgbench=origin.kgbench,
            torch=origin.packages["torch"],
            device=origin.device,
            platform=origin.platform,
        )


class About(Strict):
    """Provenance of rows."""

    model: str
    tiny: bool
    donors: dict[int, dict[str, Donor]]
    """By training seed; those of its last training, see `Evaluated.earlier`."""
    evaluations: dict[int, dict[str, Evaluated]]
    """By training seed; a seed may lack some of them."""

    @property
    def scale(self) -> Scale:
        """What sort of pair it is."""
        return "tiny" if self.tiny else page().scale_of(self.model)

    @property
    def seeds(self) -> tuple[int, ...]:
        """The training seeds, ascending."""
        return tuple(sorted(self.evaluations))

    def seeds_of(self, evaluation: str) -> tuple[int, ...]:
        """The training seeds under which an evaluation is there, ascending."""
        return tuple(seed for seed in self.seeds if evaluation in self.evaluations[seed])

    def donors_of(self, evaluation: str, trainings: Sequence[str]) -> dict[tuple[int, str], Donor]:
        """Donors of an evaluation by training seed and training, where they are there."""
        donors = {}
        for seed in self.seeds_of(evaluation):
            own = self.donors[seed] | self.evaluations[seed][evaluation].earlier
            for name in trainings:
                if name in own:
                    donors[seed, name] = own[name]
        return donors

    def kept(self, seed: int, further: Mapping[str, Donor]) -> dict[str, Evaluated]:
        """Evaluations under a seed, which keep their donors where further ones have other weights.

        The same training may end elsewhere on another processor.

        Args:
            seed: The training seed.
            further: Donors of further evaluations under it, by training.
        """
        there, evaluations = self.donors.get(seed, {}), {}
        for name, evaluation in self.evaluations.get(seed, {}).items():
            own = {}
            for training in page().trainings_of([name], self.scale):
                before, after = there.get(training), further.get(training)
                if before is not None and after is not None and before.weights != after.weights:
                    own[training] = before
            earlier = {"earlier": own | evaluation.earlier}
            evaluations[name] = evaluation.model_copy(update=earlier)
        return evaluations


@dataclass(frozen=True)
class PairRows:
    """Rows of a pair and their provenance."""

    about: About
    table: pa.Table
    """Rows of SCHEMA."""


def kept_rows(seed: int, evaluation: str, facts: pa.Table) -> pa.Table:
    """Rows of an evaluation that some figure shows.

    Args:
        seed: The training seed.
        evaluation: Its name.
        facts: The per-fact rows.
    """
    shown: set[tuple[str, str]] = set()
    for figure in page().figures.values():
        if figure.evaluation == evaluation:
            grafts = ("PRE", "SFT", *page().rows[figure.rows].values())
            shown.update(product(figure.prompts, grafts))
    names = (facts[name].to_pylist() for name in ("prompt", "graft", "fact"))
    keys = list(zip(*names, strict=True))
    # Where a prompt was read at several positions, the last counts; rows are sorted by position
    # last.
    last = [key != after for key, after in zip(keys, [*keys[1:], None], strict=True)]
    kept = [key[:2] in shown and end for key, end in zip(keys, last, strict=True)]
    part = facts.filter(pa.array(kept))
    columns = {
        "seed": np.full(part.num_rows, seed),
        "evaluation": [evaluation] * part.num_rows,
        "prompt": part["prompt"],
        "configuration": part["graft"],
        "fact": part["fact"],
        "rank": part["rank"].cast(pa.uint32()),
    }
    return pa.table(columns, schema=SCHEMA)


def columns_of(measured: PairRows, evaluation: str) -> dict[str, tuple[PromptColumns, ...]]:
    """Each prompt's columns under each training seed that has this evaluation, by prompt.

    Raises:
        InputError: There are no rows of this evaluation.
    """
    seeds = measured.about.seeds_of(evaluation)
    if not seeds:
        raise InputError(
            f"these rows hold nothing of the evaluation {evaluation!r}; make its figures first"
        )
    columns: dict[str, list[PromptColumns]] = {}
    part = measured.table.filter(pc.equal(measured.table["evaluation"], evaluation))
    names = [{"configuration": "graft"}.get(name, name) for name in SCHEMA.names]
    part = part.rename_columns(names).drop_columns(["evaluation"])
    for seed in seeds:
        own = part.filter(pc.equal(part["seed"], seed)).drop_columns(["seed"])
        for prompt in by_prompt(own, ()):
            columns.setdefault(prompt.name, []).append(prompt)
    return {name: tuple(own) for name, own in columns.items()}


def joined(before: PairRows | None, further: PairRows) -> PairRows:
    """Rows of a pair with further ones, which replace those of the same seeds and evaluations.

    Args:
        before: Rows that are there.
        further: Such as one evaluation more, or the share of another training seed.

    Raises:
        InputError: The further rows are another pair's.
    """
    if before is None:
        return further
    about = further.about
    if before.about.model != about.model:
        raise InputError(
            f"the rows that are there are of {before.about.model}, not of {about.model}; give "
            "another folder with --report"
        )
    table = before.table
    donors, evaluations = dict(before.about.donors), dict(before.about.evaluations)
    for seed, own in about.evaluations.items():
        donors[seed] = {**donors.get(seed, {}), **about.donors[seed]}
        evaluations[seed] = before.about.kept(seed, about.donors[seed]) | own
        replaced = pc.and_(
            pc.equal(table["seed"], seed), pc.is_in(table["evaluation"], pa.array(own.keys()))
        )
        table = table.filter(pc.invert(replaced))
    whole = about.model_copy(update={"donors": donors, "evaluations": evaluations})
    return PairRows(whole, pa.concat_tables([table, further.table]))


def write_measured(measured: PairRows, path: Path) -> None:
    """Write the file atomically; equal rows give equal bytes under one version of pyarrow."""
    write_stored(measured.about, measured.table.sort_by(_SORTED), _ABOUT, path)


def read_measured(path: Path) -> PairRows:
    """Read the file.

    Raises:
        DataError: The file is not one of `write_measured`.
    """
    expected = f"the {ROWS} that `kgbench reproduce` writes next to a report"
    return PairRows(*read_stored(About, SCHEMA, _ABOUT, path, expected))


def write_stored(about: Strict, table: pa.Table, key: bytes, path: Path) -> None:
    """Write a table with its provenance as metadata, whole or not at all.

    The provenance is JSON, deflated, in base64: as it is, it would be a fourteenth of the file.

    Args:
        about: The provenance.
        table: The rows; `rank` is the column with many values, of which the high bytes are alike.
        key: Key of the provenance in the metadata.
        path: The file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with pq.ParquetWriter(
        partial,
        table.schema.remove_metadata(),
        compression="brotli",
        compression_level=_LEVEL,
        use_dictionary=[name for name in table.column_names if name != "rank"],
        use_byte_stream_split=["rank"],
        write_statistics=False,
        store_schema=False,  # it would hold the metadata once more
        # Equal rows of several evaluations, as those of PRE, are only found within a page.
        data_page_size=_PAGE,
        max_rows_per_page=_PAGE,
    ) as writer:
        writer.write_table(table)
        json = about.model_dump_json(exclude_defaults=True)
        writer.add_key_value_metadata({key: b64encode(zlib.compress(json.encode(), 9))})
    partial.replace(path)


def read_stored(
    kind: type[Provenance], schema: pa.Schema, key: bytes, path: Path, expected: str
) -> tuple[Provenance, pa.Table]:
    """Read a file of `write_stored`.

    Args:
        kind: Type of the provenance.
        schema: Columns of the table; others, such as earlier versions wrote, are left out.
        key: Key of the provenance in the metadata.
        path: The file.
        expected: A name of such files, for messages.

    Raises:
        DataError: The file is not one of them.
    """
    try:
        with pq.ParquetFile(path) as file:
            stored = (file.metadata.metadata or {})[key]
            if not stored.startswith(b"{"):  # earlier versions stored the JSON itself
                stored = zlib.decompress(b64decode(stored))
            about = kind.model_validate_json(stored)
            table = file.read()
    except (OSError, pa.ArrowException, KeyError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: expected {expected} ({type(error).__name__})") from error
    read = table.select([name for name in schema.names if name in table.column_names])
    if read.schema.remove_metadata() != schema:
        raise DataError(
            f"{path}: the columns are {table.column_names}, expected {schema.names} with their "
            "types"
        )
    return about, read.replace_schema_metadata(None)
