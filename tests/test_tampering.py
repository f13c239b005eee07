"""What somebody may do to an entry before it is sent, and whether it is refused, and where.

One table: each row is one change of an entry that is in order, or of the folder that it is in. Who
changes record or rows is a careful forger, who renews the hashes that the submission has of them,
and signs an identity anew.
"""

from __future__ import annotations

import json
import lzma
import math
import os
import pickle
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from submissions import CODE, Sent, edited, honest_entries, put, refused

from kgbench.leaderboard import limits
from kgbench.leaderboard.folders import ENTRIES, read_folder
from kgbench.leaderboard.limits import FACTS

RECORD, SUBMISSION, VERIFICATION = "record.json", "submission.json", "verification.json"
SHIPPED = Path(__file__).parents[1] / "leaderboard" / "results"


@dataclass
class Case:
    """The results of a board with a built-in method's entry, to be changed, and another entry."""

    results: Path
    entry: Sent
    other: Sent

    def write(self) -> None:
        """Write the entry, unless it is there."""
        if not (self.results / self.entry.place).exists():
            put(self.results, self.entry)

    @property
    def folder(self) -> Path:
        """The method folder of the built-in method."""
        self.write()
        return self.results / self.entry.place


Change = Callable[[Case], object]
Content = dict[str, Any]


@cache
def made() -> tuple[Sent, Sent]:
    return honest_entries()


def copy_of(entry: Sent) -> Sent:
    return Sent(entry.place, entry.name, json.loads(json.dumps(entry.documents)), entry.rows)


@pytest.fixture
def case(tmp_path: Path) -> Case:
    return Case(tmp_path / "board" / "results", *map(copy_of, made()))


# ----------------------------------------------------------------------------------------- changes


def record(change: Callable[[Content], object], sign: bool = False) -> Change:
    """A change of the record."""

    def apply(case: Case) -> None:
        change(case.entry.record)
        case.entry.seal(sign)

    return apply


def submission(field: str, new: object) -> Change:
    return lambda case: case.entry.submission.update({field: new})


def verification(field: str, new: object) -> Change:
    return lambda case: case.entry.verify(**{field: new})


def rows(change: Callable[[pa.Table], pa.Table]) -> Change:
    """A change of the per-fact rows."""

    def apply(case: Case) -> None:
        case.entry.rows = change(case.entry.rows)
        case.entry.seal()

    return apply


def column(name: str, change: Callable[[Any], object]) -> Change:
    """A change in place of a column of the rows."""
    return rows(lambda table: edited(table, name, change))


def value(name: str, index: int | slice, new: object) -> Change:
    return column(name, lambda values: values.__setitem__(index, new))


def kept(keep: Callable[[str, str], bool]) -> Change:
    """Only some rows, by fact and configuration."""

    def change(table: pa.Table) -> pa.Table:
        names = zip(table["fact"].to_pylist(), table["graft"].to_pylist(), strict=True)
        return table.filter(pa.array([keep(*each) for each in names]))

    return rows(change)


def added(table: pa.Table) -> pa.Table:
    """A row of a configuration that nobody asked for."""
    row = edited(table.slice(0, 1), "graft", lambda values: values.__setitem__(0, "FE@2"))
    return pa.concat_tables([table, row])


def of_donor_off(table: pa.Table) -> pa.Table:
    before = np.array(table["graft"].to_pylist()) == "PRE"
    return edited(table, "logprob", lambda values: values.__isub__(0.02 * before))


def hits_of_recipient(table: pa.Table) -> pa.Table:
    before = np.array(table["graft"].to_pylist()) == "PRE"
    return edited(table, "rank", lambda values: values.__setitem__(before & (values > 5), 5))


def tied(table: pa.Table) -> pa.Table:
    first = table["rank"].to_numpy() == 1
    return edited(table, "logit_diff", lambda values: values.__setitem__(first, 0.0))


def swapped(values: Any) -> None:
    values[values == "tiny_movies/3"] = "tiny_movies/149"


def line(change: Callable[[bytes], bytes]) -> Change:
    """A change of the bytes of the entry's line."""

    def apply(case: Case) -> None:
        path = case.folder / ENTRIES
        path.write_bytes(lzma.compress(change(lzma.decompress(path.read_bytes()))))

    return apply


def replaced(old: bytes, new: bytes) -> Change:
    return line(lambda content: content.replace(old, new, 1))


def whole(change: Callable[[bytes], bytes], file: str = ENTRIES) -> Change:
    """A change of the bytes of one of the method's files."""

    def apply(case: Case) -> None:
        path = case.folder / file
        path.write_bytes(change(path.read_bytes()))

    return apply


def parquet(change: Callable[[pa.Table], pa.Table], **options: Any) -> Change:
    """The Parquet file written anew with other columns or by other means."""

    def apply(case: Case) -> None:
        path = case.folder / FACTS
        pq.write_table(change(pq.read_table(path)), path, **options)

    return apply


def pickled(table: pa.Table) -> pa.Table:
    """A column of pickles in the place of one of texts."""
    bombs = pa.array([pickle.dumps(os.system)] * table.num_rows, pa.binary())
    return table.set_column(table.column_names.index("graft"), "graft", bombs)


def nullable(table: pa.Table) -> pa.Table:
    return table.cast(pa.schema([pa.field(f.name, f.type) for f in table.schema]))


def linked(file: str, hard: bool = False) -> Change:
    def apply(case: Case) -> None:
        path, elsewhere = case.folder / file, case.results.parent / "elsewhere"
        if hard:
            os.link(path, elsewhere)
        else:
            path.rename(elsewhere)
            path.symlink_to(elsewhere)

    return apply


def pipe(case: Case) -> None:
    (case.folder / FACTS).unlink()
    os.mkfifo(case.folder / FACTS)


def grown(file: str, most: int) -> Change:
    def apply(case: Case) -> None:
        with open(case.folder / file, "ab") as stream:
            stream.truncate(most + 1)

    return apply


def beside(name: str, content: bytes = b"") -> Change:
    return lambda case: (case.folder / name).write_bytes(content)


def moved(place: str) -> Change:
    def apply(case: Case) -> None:
        target = case.results / place
        target.parent.mkdir(parents=True, exist_ok=True)
        case.folder.rename(target)

    return apply


def renamed(name: str) -> Change:
    return lambda case: setattr(case.entry, "name", name)


def doubled(case: Case) -> None:
    """The other entry under the name of this one, too."""
    put(case.results, case.entry)
    case.write()
    lines = lzma.decompress((case.folder / ENTRIES).read_bytes())
    (case.folder / ENTRIES).write_bytes(lzma.compress(lines * 2))


def copied(case: Case) -> None:
    put(case.results, case.entry, Sent(**{**vars(copy_of(case.entry)), "name": "copy"}))


def unlisted(case: Case) -> None:
    extra = Sent(**{**vars(copy_of(case.entry)), "name": "extra"})
    put(case.results, case.entry, extra)
    path = case.folder / ENTRIES
    first = lzma.decompress(path.read_bytes()).split(b"\n")[0]
    path.write_bytes(lzma.compress(first + b"\n"))


def flipped(file: str, share: float) -> Change:
    def apply(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[int(share * len(content))] ^= 1
        return bytes(changed)

    return whole(apply, file)


# ------------------------------------------------------------------------------------------- table

Z = "0" * 64
BEST = "The best of all (top5)."

FIELDS: tuple[tuple[str, object], ...] = (
    # Figures follow from the rows, and none is stored.
    ("verdict", BEST),
    ("metric", "top50"),
    ("metric", "best"),
    ("dropped", {"too hard": 20}),
    ("floor", "destroyed_donor"),
    ("scores", {"FE": {"q": {"0": 1.0}}}),
    ("not_applicable", {"PRE": "it did badly"}),
    ("not_applicable", {"FE@2": "it did badly"}),
    # A record is of its schema, and its id the hash of its identity.
    ("schema_version", 99),
    ("trust", "me"),
    ("cost", None),
    ("id", Z),
    # Data, models, method and suite are known ones.
    ("identity.dataset.n", 30),
    ("identity.prompts.qa", Z),
    ("identity.tokenizer", Z),
    ("identity.metric_version", "3"),
    ("identity.seeds", [0, 1]),
    ("identity.truth", {"plant": "FE"}),
    ("identity.readout", {"name": "foil", "version": "1", "parameters": {"text": "x"}}),
    ("identity.localizer.version", "2"),
    ("identity.localizer.parameters", {"boost": 9}),
    ("identity.localizer.parameters.seed", 9),
    # Texts are harmless.
    ("identity.localizer.name", "<script>alert(1)</script>"),
    ("notes.more", "<img src=x onerror=alert(1)>"),
    ("provenance.device", "cpu\x1b[2J"),
    ("verdict", f"\u202e{BEST}"),
    ("notes.where", "/home/me/models"),
    ("notes.token", "hf_" + "a" * 30),
    # The cost is plausible, and the time has been.
    ("cost.seconds", 0),
    ("cost.seconds", 1e308),
    ("cost.forwards", 0),
    ("cost.forwards", 18232),
    ("cost.token_rows", 100),
    ("cost.token_rows", 2**52),
    ("cost.plain_forward_ratio", [0.1, 0.1, 0.1, 1]),
    ("cost.plain_forward_ratio", [1.0, 1.0, 1.0, 5]),
    ("cost.measured_on", "the fastest machine there is"),
    ("provenance.time", "yesterday"),
    ("provenance.time", "2999-01-01T00:00:00+00:00"),
    ("provenance.kgbench", "99.0.0"),
)
"""A place in the record, and what somebody puts there; the finding names the place."""

SUBMITTED: tuple[tuple[str, object], ...] = (
    ("record", Z),
    ("code", "ask me"),
    ("code", "https://example.org/x@main; rm -rf ."),
    ("code", "https://github.com/ada/it@0123456"),
    ("code", "kgbench==9.9"),
    ("name", "<script>alert(1)</script>"),
    ("name", "fisher"),
    ("name", "Graft Scan"),
    ("paper", "javascript:alert(1)"),
    ("contract", {"kgbench": "0.1.0", "laws": 0}),
)
"""Likewise of the submission of a built-in method."""

VERIFIED: tuple[tuple[str, object], ...] = (
    ("record", Z),
    ("record_hash", Z),
    ("facts_hash", Z),
    ("largest_difference", 0.5),
    ("tolerance", 1000),
    ("n", 31),
    ("rows", 0),
    ("rows", 30),
    ("changed_hits", 100),
    ("platform", "<b>"),
)
"""Likewise of the verification."""


def put_at(content: Any, place: str, new: object) -> None:
    """Put a value at a place, which need not be there."""
    *path, last = re.findall(r"[^.\[\]]+", place)
    for key in path:
        content = content[int(key) if isinstance(content, list) else key]
    content[last] = new


def at(place: str, new: object) -> Change:
    """A value at a place of the record; a careful forger signs another identity."""
    sign = place.startswith("identity.")
    return record(lambda content: put_at(content, place, new), sign)


TAMPERED: dict[str, tuple[Change, str | None]] = {
    "nothing": (lambda case: None, None),
    # Of a record, beside single values of it.
    "a configuration left out of all": (
        record(lambda c: c["identity"]["configurations"].remove("LT^C"), sign=True),
        f"{FACTS}: graft",
    ),
    "a configuration that is said to be none": (
        at("not_applicable", {"FE": "it did badly"}),
        f"{FACTS}: graft: 'FE' has rows",
    ),
    "a configuration that is none": (
        record(lambda c: c["identity"]["configurations"].append("top secret%"), sign=True),
        f"{RECORD}: identity.configurations",
    ),
    "a record that is a list": (lambda c: c.entry.documents.update({RECORD: []}), f"{RECORD}: "),
    "an identity that is not signed": (
        record(lambda c: c["identity"].update(seeds=[7])),
        f"{RECORD}: id",
    ),
    "a donor that hides the recipient": (
        record(lambda c: c["identity"]["weights"]["donors"].update(recipient=Z)),
        f"{RECORD}: identity.weights: ",
    ),
    "other facts": (at("identity.dataset.hash", Z), f"{RECORD}: identity.dataset.name"),
    "another type": (at("identity.dtype", "float8"), f"{RECORD}: identity.weights"),
    "other weights": (at("identity.weights.donors.sft", Z), f"{RECORD}: identity.weights"),
    "another pair's name": (at("model", "tiny-llama"), f"{RECORD}: identity.weights"),
    "a lone surrogate": (
        replaced(b'"device":"a processor"', b'"device":"\\ud800"'),
        f"{RECORD}: provenance.device",
    ),
    # Rows are all facts under all configurations, and possible.
    "a fact removed": (kept(lambda fact, _: fact != "tiny_movies/3"), f"{FACTS}: fact"),
    "a bad answer removed": (
        kept(lambda fact, graft: (fact, graft) != ("tiny_movies/3", "FE")),
        f"{FACTS}: fact",
    ),
    "a configuration removed": (kept(lambda _, graft: graft != "LT"), f"{FACTS}: graft"),
    "rows twice": (rows(lambda t: pa.concat_tables([t, t.slice(0, 5)])), f"{FACTS}: rows"),
    "rows added": (rows(added), f"{FACTS}: graft"),
    "another fact": (column("fact", swapped), f"{FACTS}: fact"),
    "NaN": (value("logprob", 5, math.nan), f"{FACTS}: logprob"),
    "an infinity": (value("logit_diff", 5, math.inf), f"{FACTS}: logit_diff"),
    "a rank of 0": (value("rank", 5, 0), f"{FACTS}: rank"),
    "a probability above 1": (value("logprob", 5, 0.5), f"{FACTS}: logprob"),
    "a better rank than the logits": (value("rank", slice(0, 400), 1), f"{FACTS}: logit_diff"),
    "a likelier answer than its rank": (
        value("logprob", slice(0, 400), -0.001),
        f"{FACTS}: logprob",
    ),
    "a tie at rank 1": (rows(tied), f"{FACTS}: logit_diff: "),
    "another target in one configuration": (value("target", 3, 7), f"{FACTS}: target"),
    "a negative position": (value("position", slice(0, None), -1), f"{FACTS}: position"),
    "another position": (
        column("position", lambda v: v.__iadd__(1)),
        f"{FACTS}: position: PRE on headline: ",
    ),
    "other targets": (
        column("target", lambda v: v.__iadd__(1)),
        f"{FACTS}: target: PRE on headline: ",
    ),
    "other answers of a known model": (
        rows(of_donor_off),
        f"{FACTS}: logprob: PRE on headline: ",
    ),
    "other hits of a known model": (
        rows(hits_of_recipient),
        f"{FACTS}: rank: PRE on headline: ",
    ),
    "rows in another order": (rows(lambda t: t.take(list(range(t.num_rows))[::-1])), None),
    # The Parquet file holds the columns and nothing else; see test_untrusted_files.py for more.
    "no Parquet": (whole(lambda b: pickle.dumps([1, 2, 3]), FACTS), f"!{FACTS}: Parquet"),
    "pickles in a column": (parquet(pickled), f"!{FACTS}: Parquet"),
    "a column more": (
        parquet(lambda t: t.append_column("code", pa.array(["import os"] * t.num_rows))),
        f"!{FACTS}: Parquet",
    ),
    "a column less": (parquet(lambda t: t.drop_columns(["rank"])), f"!{FACTS}: Parquet"),
    "gaps": (parquet(nullable), f"!{FACTS}: Parquet"),
    "no rows": (parquet(lambda t: t.slice(0, 0)), f"!{FACTS}: Parquet"),
    "data beside the columns": (
        parquet(lambda t: t.replace_schema_metadata({"pandas": "{}"})),
        f"!{FACTS}: Parquet",
    ),
    "an encoding that unfolds": (
        parquet(lambda t: t, use_dictionary=False, column_encoding={"fact": "DELTA_BYTE_ARRAY"}),
        f"!{FACTS}: Parquet",
    ),
    "a compression of another kind": (
        parquet(lambda t: t, compression="gzip"),
        f"!{FACTS}: Parquet",
    ),
    "a known compression and encoding": (parquet(lambda t: t, compression="snappy"), None),
    "rows of nobody": (unlisted, f"!{FACTS}: entry: 540 of its rows are of no entry"),
    "rows of another": (
        parquet(lambda t: t.set_column(0, t.schema.field(0), pa.array(["x"] * t.num_rows))),
        f"{FACTS}: rows: there are none",
    ),
    # A submission is of this record and method, and as kgbench writes it.
    "no submission": (
        lambda case: case.entry.documents.pop(SUBMISSION),
        f"{SUBMISSION}: file: it is missing",
    ),
    "a record changed afterwards": (
        lambda case: case.entry.record["cost"].update(seconds=7.85),
        f"{SUBMISSION}: record_hash",
    ),
    "rows changed afterwards": (
        lambda case: setattr(
            case.entry, "rows", edited(case.entry.rows, "logprob", lambda v: v.__isub__(1e-9))
        ),
        f"{SUBMISSION}: facts_hash",
    ),
    "a number as a text": (at("cost.seconds", "7.84"), f"{RECORD}: content"),
    "a submission without a hash": (
        lambda case: case.entry.submission.pop("facts_hash"),
        f"{SUBMISSION}: facts_hash",
    ),
    "a field that says nothing": (submission("paper", None), f"{SUBMISSION}: content"),
    "another order of keys": (
        lambda c: c.entry.documents.update({RECORD: dict(reversed(c.entry.record.items()))}),
        None,
    ),
    "a verification": (lambda case: case.entry.verify(), None),
    # A line is one entry, in strict JSON, as kgbench writes it; see test_untrusted_files.py too.
    "a key twice": (replaced(b'"metric":', b'"metric":"top1","metric":'), ": content"),
    "no JSON": (line(lambda b: pickle.dumps({"id": "x"}).replace(b"\n", b"") + b"\n"), "?: JSON"),
    "blanks between": (replaced(b'"metric":', b'"metric": '), ": content"),
    "a document more": (
        lambda case: case.entry.documents.update({"code.json": "import os"}),
        ": content: it holds ['code.json'",
    ),
    "no record": (lambda case: case.entry.documents.pop(RECORD), f"{RECORD}: file: it is missing"),
    "a name that leads up": (replaced(b'{"entry":"', b'{"entry":"../'), "?: entry: it is '../"),
    "no name": (line(lambda b: b"{" + b.partition(b",")[2]), "?: entry: it is None"),
    "an empty line": (line(lambda b: b"\n" + b), "?: JSON"),
    "a long line": (
        line(lambda b: b[:-1] + b" " * limits.LINE + b"\n"),
        "?: JSON: it is too large",
    ),
    # The list is one xz file of lines.
    "no xz": (whole(lambda b: b"no xz" * 9), f"!{ENTRIES}: list: it does not unpack"),
    "a cut list": (whole(lambda b: b[:-9]), f"!{ENTRIES}: list: it is cut short"),
    "bytes after the list": (whole(lambda b: b + b"x"), f"!{ENTRIES}: list: it is cut short"),
    "a second list": (whole(lambda b: b + b), f"!{ENTRIES}: list: it is cut short"),
    "a last line without end": (line(lambda b: b[:-1]), f"!{ENTRIES}: list: it is cut short"),
    "a list that unfolds": (line(lambda b: b"\n" * (limits.ENTRIES + 1)), f"!{ENTRIES}: list: it "),
    # Only the two regular files of a method are read.
    "no list": (lambda case: (case.folder / ENTRIES).unlink(), f"!{RECORD}: JSON: it cannot"),
    "no Parquet file": (lambda c: (c.folder / FACTS).unlink(), f"!{FACTS}: Parquet: it cannot be"),
    "a symbolic link": (linked(FACTS), f"!{FACTS}: Parquet: it is a symbolic link"),
    "a hard link": (linked(ENTRIES, hard=True), f"!{ENTRIES}: list: it is a hard link"),
    "a pipe": (pipe, f"!{FACTS}: Parquet: it is no regular file"),
    "a large list": (
        grown(ENTRIES, limits.ENTRIES_OF_METHOD),
        f"!{ENTRIES}: list: it is too large",
    ),
    "large rows": (grown(FACTS, limits.FACTS_OF_METHOD), f"!{FACTS}: Parquet: it is too large"),
    "code": (beside("method.py", b"import os"), "!method.py: file: it is none"),
    "a hidden file": (beside(".hook"), "!.hook: file: it is none"),
    "a run's own file": (beside(RECORD, b"{}"), f"!{RECORD}: file: it is none"),
    "a folder within": (lambda case: (case.folder / "more").mkdir(), "!more: file: it is none"),
    # Each entry is in its place, once.
    "another method's folder": (
        moved("pathways/other"),
        ": folder: it is 'pathways/other'; expected pathways/dynamic_graft",
    ),
    "another board's folder": (
        moved("planted/dynamic_graft"),
        ": folder: it is 'planted/dynamic_graft'; expected",
    ),
    "no board's folder": (moved("dynamic_graft"), "; expected pathways/dynamic_graft"),
    "another name": (renamed("x"), "/x: name: it is 'x'; expected"),
    "an entry twice": (doubled, ": name: another entry has this name"),
    "a copy": (copied, "/copy: name: it is 'copy'; expected"),
    "a file among the methods": (
        lambda case: (case.folder.parent / "x.py").write_text(""),
        "/x.py: kind: it is no such folder",
    ),
    "a link among the methods": (
        lambda case: (case.folder.parent / "x").symlink_to(case.folder),
        "/x: kind: it is no such folder",
    ),
    "an empty folder among the methods": (
        lambda case: (case.folder.parent / "x").mkdir(),
        "/x: kind: it is no such folder",
    ),
    "a folder of an odd name": (
        lambda case: (case.folder.parent / "-rf; x").mkdir(),
        "/'-rf; x': kind: it is no such folder",
    ),
    "a name that writes on the terminal": (
        lambda case: (case.folder.parent / "a\x1b[2Jb").mkdir(),
        r"/'a\x1b[2Jb': kind: it is no such folder",
    ),
    "a file beside the boards": (
        lambda case: (case.folder.parents[1] / "setup.py").write_text(""),
        "/setup.py: kind: it is no such folder",
    ),
    "a run beside the boards": (
        lambda case: (case.folder.parents[1] / "run").mkdir(),
        "/run: kind: it is no such folder",
    ),
}
for _place, _new in FIELDS:
    TAMPERED[f"{_place} = {str(_new)[:20]!a}"] = (at(_place, _new), f"{RECORD}: {_place}")
for _place, _new in SUBMITTED:
    TAMPERED[f"submission.{_place} = {_new}"] = (
        submission(_place, _new),
        f"{SUBMISSION}: {_place}",
    )
for _place, _new in VERIFIED:
    TAMPERED[f"verification.{_place} = {_new}"] = (
        verification(_place, _new),
        f"{VERIFICATION}: {_place}",
    )
for _file in (ENTRIES, FACTS):
    for _share in (0.0, 0.3, 0.6, 0.999):
        TAMPERED[f"a flipped bit of {_file} at {_share}"] = (flipped(_file, _share), "/")
# No reader of Parquet looks at its first bytes, and the rows are the same.
TAMPERED[f"a flipped bit of {FACTS} at 0.0"] = (flipped(FACTS, 0.0), None)

POSIX = ("a pipe", "a name that writes on the terminal")
"""Changes that Windows cannot make."""


def is_at(text: str, where: str, entry: Sent) -> bool:
    """Whether a finding is where it is expected.

    In the table `!` begins a file of the method's folder, `?` stands for a line, `/` for anything
    else, and otherwise it is a document of the entry.
    """
    method = entry.place.rpartition("/")[2]
    if where[0] == "!":
        return text.startswith(f"{method}/{where[1:]}")
    if where[0] == "?":
        return text.startswith(f"'{method}:1'{where[1:]}") or f"{method}:1{where[1:]}" in text
    if where[0] in "/;":
        return where.removeprefix("/") in text
    return text.startswith(f"{entry.name}{where}" if where[0] == ":" else f"{entry.name}/{where}")


@pytest.mark.parametrize(
    "what",
    [pytest.param(what, marks=[pytest.mark.posix][: what in POSIX]) for what in TAMPERED],
)
def test_what_is_changed_is_refused_or_changes_nothing(what: str, case: Case) -> None:
    """Whatever is changed, the refusal names the place and the field; what says the same in other
    words is accepted.
    """
    change, where = TAMPERED[what]
    change(case)
    case.write()
    found = refused(case.results)
    if where is None:
        assert found == []
    else:
        assert any(is_at(text, where, case.entry) for text in found), found


# ------------------------------------------------------------------------------------------- plants


def shipped(method: str, level: str) -> Sent:
    """The project's own entry of a method on a plant."""
    folder = read_folder(SHIPPED / "planted" / method)
    name = next(name for name in folder.documents if f"-tiny-gemma.{level}-headline" in name)
    documents = json.loads(json.dumps(folder.documents[name]))
    return Sent(f"planted/{method}", name, documents, folder.rows(name))


PLANTED: dict[str, tuple[Callable[[Content], object], str | None]] = {
    "nothing": (lambda c: None, None),
    "its figures": (lambda c: c.update(planted={"n_units": 10}), "planted"),
    "no truth": (lambda c: c["identity"].update(truth=None), "identity.truth"),
    "another truth": (
        lambda c: c["identity"].update(truth={"plant": "ALL:ffn@0", "decoy": None}),
        "identity.truth",
    ),
    "a site removed from the map": (lambda c: c["scores"]["FE"]["q"].pop("0"), "scores"),
    "a site added to the map": (lambda c: c["scores"]["FE"]["q"].update({"9": 1.0}), "scores"),
    "no map": (lambda c: c.pop("scores"), "scores"),
    "halves of other sizes": (lambda c: c["ranking"].update(facts=[99, 1]), "ranking.facts"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_changed_of_a_plant_is_refused(what: str, tmp_path: Path) -> None:
    """Likewise of a ranking on a plant."""
    change, field = PLANTED[what]
    entry = shipped("weight_delta", "one-0")
    change(entry.record)
    entry.seal(sign=True)
    found = refused(put(tmp_path / "results", entry) / entry.place)
    if field is None:
        assert found == []
    else:
        assert any(text.startswith(f"{entry.name}/{RECORD}: {field}") for text in found), found


def test_the_oracle_has_its_own_name_only(tmp_path: Path) -> None:
    """A baseline is a point of reference, and whoever is told the truth is an oracle."""
    entry = shipped("oracle", "one-0")
    assert refused(put(tmp_path / "honest", entry) / entry.place) == []
    entry.submission.update(name="my method")
    found = refused(put(tmp_path / "renamed", entry) / entry.place)
    assert any(text.startswith(f"{entry.name}/{SUBMISSION}: name") for text in found)
    entry.record["identity"]["localizer"].update(name="mine", version="1 Mine 0123456789abcdef")
    entry.submission.update(name="mine", code=CODE)
    entry.seal(sign=True)
    found = refused(put(tmp_path / "disguised", entry) / entry.place)
    assert any(f"{SUBMISSION}: name: the method is given" in text for text in found), found
