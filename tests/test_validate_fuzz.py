"""Whatever bytes come, the validator answers with findings or with none: never anything else."""

from __future__ import annotations

import json
import lzma
import unicodedata
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from submissions import result, sent

from kgbench.errors import DataError
from kgbench.leaderboard.folders import ENTRIES, changed
from kgbench.leaderboard.limits import FACTS, RECORD, SUBMISSION, VERIFICATION
from kgbench.leaderboard.sandbox import SANDBOX
from kgbench.leaderboard.validate import check_entry
from kgbench.leaderboard.validate.board import Others
from kgbench.leaderboard.validate.files import CheckedEntry, entries_below
from kgbench.records import Identity
from kgbench.records.fact_rows import STORED, facts_bytes

quick = settings(
    max_examples=60, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large]
)
many = settings(quick, max_examples=150)


@cache
def honest() -> str:
    """The documents of an entry that is in order, as JSON."""
    return json.dumps(sent(result()).documents)


@cache
def rows() -> pa.Table:
    return sent(result()).rows


def checked(changes: dict[str, Any], table: pa.Table | None = None) -> None:
    """Check an entry, without the net that catches what a check raises."""
    documents = {**json.loads(honest()), **changes}
    entry = CheckedEntry("entry", documents, rows() if table is None else table)
    answered(check_entry(entry, Others(), strict=True))


def answered(entry: CheckedEntry) -> None:
    """Findings are whole, and can be printed anywhere."""
    for finding in entry.findings:
        assert finding.file and finding.field and finding.wrong
        kinds = set(map(unicodedata.category, str(finding)))
        assert not kinds & {"Cc", "Cf", "Cs"}, str(finding)


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=20)
    | st.sampled_from(
        [
            "PRE",
            "FE",
            "top k",
            "top 5%",
            "top nan%",
            "FE@9",
            "((",
            "tiny-llama",
            "/etc/passwd",
            "<b>",
            "zoo:x",
            "1e400",
            "",
        ]
    ),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.text(max_size=8) | st.sampled_from(["n", "undefined"]), inner, max_size=4
        )
    ),
    max_leaves=6,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every place of a JSON tree."""
    yield path
    for key, inner in (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    ):
        yield from places(inner, (*path, key))


@cache
def all_places(file: str) -> list[tuple[Any, ...]]:
    """Every place in a file, those near the root as often as the many within the rows."""
    found = list(places(json.loads(honest())[file]))
    near = [path for path in found if len(path) <= 3 and path[:1] not in (("rows",), ("curve",))]
    return near * max(1, len(found) // len(near)) + found


def altered(tree: Any, path: tuple[Any, ...], how: str, value: Any) -> Any:
    """The tree with one place replaced, removed, or doubled."""
    if not path:
        return value if how == "replace" else tree
    parent = tree
    for key in path[:-1]:
        parent = parent[key]
    last = path[-1]
    if how == "remove":
        del parent[last]
    elif how == "double" and isinstance(parent, list):
        parent.insert(last, parent[last])
    elif how == "rename" and isinstance(parent, dict):
        parent[value if isinstance(value, str) else "x"] = parent.pop(last)
    else:
        parent[last] = value
    return tree


def mutations(file: str) -> st.SearchStrategy[Any]:
    step = st.tuples(
        st.sampled_from(all_places(file)),
        st.sampled_from(["replace", "remove", "double", "rename"]),
        values,
    )

    def mutated(steps: list[Any]) -> Any:
        tree = json.loads(honest())[file]
        for path, how, value in steps:
            try:
                tree = altered(tree, path, how, value)
            except (KeyError, IndexError, TypeError, AttributeError):
                continue  # an earlier step took the place away
        return tree

    return st.lists(step, min_size=1, max_size=3).map(mutated)


def signed(tree: Any) -> Any:
    """The tree with the id of its identity, as far as it has one."""
    try:
        return {**tree, "id": Identity.model_validate(tree["identity"]).digest()}
    except Exception:
        return tree


@many
@given(data=st.data(), sign=st.booleans())
def test_mutated_records(data: st.DataObject, sign: bool) -> None:
    """A record with parts replaced, removed, doubled and renamed, signed anew or not."""
    tree = data.draw(mutations(RECORD))
    checked({RECORD: signed(tree) if sign else tree})


@quick
@given(data=st.data())
def test_mutated_submissions(data: st.DataObject) -> None:
    """The same with the document beside it."""
    checked({SUBMISSION: data.draw(mutations(SUBMISSION))})


@quick
@given(
    content=st.dictionaries(
        st.sampled_from(["record", "facts_hash", "kgbench", "n", "rows", "seed", "tolerance"]),
        values,
    )
)
def test_any_verification(content: dict[str, Any]) -> None:
    """And with the one that is not there."""
    checked({VERIFICATION: content})


def spliced(whole: bytes) -> st.SearchStrategy[bytes]:
    """Bytes with some replaced, taken out or put in."""

    def splice(edits: list[tuple[int, int, bytes]]) -> bytes:
        data = whole
        for at, gone, new in edits:
            place = at % (len(data) + 1)
            data = data[:place] + new + data[place + gone :]
        return data

    edit = st.tuples(st.integers(0, 10**9), st.integers(0, 20), st.binary(max_size=20))
    return st.lists(edit, min_size=1, max_size=4).map(splice)


@cache
def folder() -> dict[str, bytes]:
    """The files of a method folder."""
    with TemporaryDirectory() as place:
        path = Path(place) / "results" / "pathways" / "method"
        with changed(path) as (documents, tables):
            documents["entry"], tables["entry"] = json.loads(honest()), rows()
        return {file: (path / file).read_bytes() for file in (ENTRIES, FACTS)}


def sent_folder(changes: dict[str, bytes]) -> None:
    """Check a method folder of these files."""
    with TemporaryDirectory() as place:
        for file, content in {**folder(), **changes}.items():
            (Path(place) / file).write_bytes(content)
        for entry in entries_below(Path(place), strict=True):
            answered(check_entry(entry, Others(), strict=True))


@many
@given(data=st.data(), compress=st.booleans())
def test_spliced_lists(data: st.DataObject, compress: bool) -> None:
    """The list with bytes replaced, taken out and put in, before it is compressed or afterwards."""
    content = folder()[ENTRIES]
    if not compress:
        sent_folder({ENTRIES: data.draw(spliced(content))})
        return
    sent_folder({ENTRIES: lzma.compress(data.draw(spliced(lzma.decompress(content))))})


@quick
@given(file=st.sampled_from([ENTRIES, FACTS]), content=st.binary(max_size=200))
def test_any_bytes(file: str, content: bytes) -> None:
    """Any file of any bytes."""
    sent_folder({file: content})


@pytest.mark.nightly
@many
@given(data=st.data())
def test_spliced_parquet(data: st.DataObject) -> None:
    """Per-fact rows are a table of the schema, or refused; the footer is hit as often as the pages."""
    whole = facts_bytes(rows())
    footer = len(whole) - 8 - int.from_bytes(whole[-8:-4], "little")
    place = st.integers(0, len(whole) - 1) | st.integers(footer, len(whole) - 1)
    flips = data.draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=3))
    content = bytearray(whole)
    for at, value in flips:
        content[at] = value
    try:
        table = SANDBOX.read(bytes(content), STORED)
    except DataError:
        return
    assert table.column_names == STORED.names


@quick
@given(data=st.data())
def test_any_rows(data: st.DataObject) -> None:
    """Rows of the right columns and any values."""
    texts = {
        "prompt": st.sampled_from(["headline", "qa", ""]),
        "fact": st.sampled_from(["tiny_movies/0", "tiny_movies/1", "x" * 400]),
        "graft": st.sampled_from(["PRE", "SFT", "ALL", "FE", "\x00"]),
    }
    numbers = {
        "position": st.integers(-1, 9),
        "target": st.integers(-1, 9),
        "rank": st.integers(-1, 3),
    }
    numbers |= dict.fromkeys(("logprob", "logit_diff"), st.floats())
    made = data.draw(st.lists(st.fixed_dictionaries({**texts, **numbers}), min_size=1, max_size=8))
    checked({}, pa.Table.from_pylist(made, STORED))
