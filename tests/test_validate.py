"""JSON files that were tampered with are refused, each with a reason that names file and field;
honest entries are accepted.
"""

from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from submissions import (
    Change,
    bytes_of,
    edit,
    findings,
    honest_entries,
    refused,
    result,
    write_entry,
)

from kgbench.cli import main
from kgbench.leaderboard.entries import FILES

RECORD, FACTS, SUBMISSION, VERIFICATION = FILES


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return honest_entries(tmp_path_factory.mktemp("results"))


# ----------------------------------------------------------------------------------------- accepted


def test_honest_entries_are_accepted(honest: Path) -> None:
    """Nothing is refused in entries whose figures follow from their rows and whose data and models
    are shipped; only the limit is noted.
    """
    assert findings(honest, strict=False) == []
    assert {(finding.field, finding.refuses) for finding in findings(honest)} == {
        ("identity.limit", False)
    }
    assert main(["validate", "--strict", str(honest)]) == 0


def test_a_record_alone_names_its_folder(honest: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record.json stands for its folder; `--json` prints one object."""
    assert main(["validate", str(honest / "a-built-in" / "record.json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": str(honest / "a-built-in" / "record.json"),
        "strict": False,
        "entries": 1,
        "accepted": 1,
        "findings": [],
    }


def test_unknown_data_and_models_are_remarked_upon(tmp_path: Path) -> None:
    """A run on one's own data and models is in order by itself, with a note; on the board it is
    refused.
    """

    def own(content: dict[str, Any]) -> None:
        content["model"] = "mine"
        content["identity"]["dataset"].update(name="mine", hash="0" * 64)
        content["identity"]["weights"]["recipient"] = "1" * 64

    edit(write_entry(tmp_path / "mine", result()), own, sign=True)
    assert refused(tmp_path / "mine", strict=False) == []
    assert {finding.field for finding in findings(tmp_path / "mine", strict=False)} == {
        "identity.dataset.name",
        "model",
    }
    assert len(refused(tmp_path / "mine")) == 2
    assert main(["validate", str(tmp_path / "mine")]) == 0
    assert main(["validate", "--strict", str(tmp_path / "mine")]) == 1


def test_forwards_that_rank_sites_have_rows_of_their_own(honest: Path, tmp_path: Path) -> None:
    """A ranking may take more forwards than all configurations have token rows."""

    def ranked(content: dict[str, Any]) -> None:
        cost = content["cost"]
        rows = 100 * cost["token_rows"]
        scoring = {"forwards": rows // 10, "token_rows": rows, "seconds": 99 * cost["seconds"]}
        ratio = [100 * value for value in cost["plain_forward_ratio"][:3]]
        cost["scoring"] = scoring | {"plain_forward_ratio": [*ratio, 1]}
        cost["seconds"] *= 100
        cost["forwards"] += scoring["forwards"]
        cost["plain_forward_ratio"][:3] = ratio

    shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    edit(tmp_path / "entry", ranked)
    assert refused(tmp_path / "entry") == []


def test_no_model_is_needed(honest: Path) -> None:
    """Neither torch nor what loads models is imported, whatever is checked."""
    code = (
        "import sys; from kgbench.cli import main; assert main(['validate', '--strict',"
        f" {str(honest)!r}]) == 0; "
    )
    code += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_wrong_input_is_told_apart_from_a_refusal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """No path, no results in it, nothing to check: status 2, and what would do."""
    (tmp_path / "empty").mkdir()
    for arguments, words in (
        ([], "which results"),
        ([str(tmp_path / "no")], "no folder"),
        ([str(tmp_path / "empty")], "holds no entry"),
    ):
        assert main(["validate", *arguments]) == 2
        assert words in capsys.readouterr().err


# ----------------------------------------------------------------------------------- tampered: JSON


def record_edit(change: Callable[[dict[str, Any]], object], sign: bool = False) -> Change:
    return lambda folder: edit(folder, change, sign=sign)


def submission_edit(**fields: object) -> Change:
    return lambda folder: edit(folder, lambda content: content.update(fields), "submission.json")


def identity_edit(**fields: object) -> Change:
    """A change of the identity by one who signs it anew."""
    return record_edit(lambda content: content["identity"].update(fields), sign=True)


def text_edit(old: str, new: str) -> Change:
    def change(folder: Path) -> None:
        text = (folder / "record.json").read_text("utf-8")
        assert old in text
        (folder / "record.json").write_text(text.replace(old, new, 1), encoding="utf-8")

    return change


def row(content: dict[str, Any], graft: str = "FE+LT") -> dict[str, Any]:
    found: dict[str, Any] = next(own for own in content["rows"] if own["graft"] == graft)
    return found


def without(content: dict[str, Any], graft: str) -> None:
    """A configuration taken out of the record's tables."""
    content["rows"] = [own for own in content["rows"] if own["graft"] != graft]


JSON_TAMPERED: dict[str, tuple[Change, str, str]] = {
    "an aggregate edited": (
        record_edit(lambda c: row(c).update(top5=[1.0, 0.9, 1.0, 30])),
        RECORD,
        "rows[",
    ),
    "an interval narrowed": (
        record_edit(lambda c: row(c)["top1"].__setitem__(1, row(c)["top1"][0])),
        RECORD,
        "rows[",
    ),
    "sufficiency edited": (
        record_edit(lambda c: row(c, "FE").update(sufficiency=[0.9, 0.8, 1.0, 30])),
        RECORD,
        "rows[",
    ),
    "the number of facts edited": (record_edit(lambda c: row(c).update(n=3000)), RECORD, "rows["),
    "synergy edited": (
        record_edit(lambda c: c["synergy"].update(headline=[0.5, 0.4, 0.6, 30])),
        RECORD,
        "synergy",
    ),
    "the verdict reworded": (
        record_edit(lambda c: c.update(verdict="The best method of all (top5).")),
        RECORD,
        "verdict",
    ),
    "another metric": (
        record_edit(lambda c: c.update(metric="top50")),
        RECORD,
        "metric: ratios are of",
    ),
    "an unknown metric": (
        record_edit(lambda c: c.update(metric="best")),
        RECORD,
        "metric: ratios are of",
    ),
    "NaN": (text_edit('"seconds":7.84', '"seconds":NaN'), RECORD, "JSON"),
    "an infinity in digits": (text_edit('"seconds":7.84', '"seconds":1e999'), RECORD, "JSON"),
    "a key twice": (text_edit('"metric":', '"metric": "top1",\n"metric":'), RECORD, "JSON"),
    "no JSON": (bytes_of(RECORD, b"\x80\x04\x95 pickle"), RECORD, "JSON"),
    "a pickle as a record": (bytes_of(RECORD, pickle.dumps({"id": "x"})), RECORD, "JSON"),
    "JSON of a list": (bytes_of(RECORD, b"[1]"), RECORD, "JSON"),
    "brackets without end": (
        bytes_of(RECORD, b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
        RECORD,
        "JSON",
    ),
    "an unknown schema version": (
        record_edit(lambda c: c.update(schema_version=99)),
        RECORD,
        "schema_version",
    ),
    "an unknown field": (record_edit(lambda c: c.update(trust="me")), RECORD, "trust"),
    "a field missing": (record_edit(lambda c: c.pop("cost")), RECORD, "cost"),
    "another id": (record_edit(lambda c: c.update(id="0" * 64)), RECORD, "id"),
    "the identity edited": (record_edit(lambda c: c["identity"].update(seeds=[7])), RECORD, "id"),
    "a wrong data hash": (
        identity_edit(dataset={"name": "tiny_movies", "hash": "0" * 64, "n": 150}),
        RECORD,
        "identity.dataset.hash",
    ),
    "fewer facts than the data set has": (
        record_edit(lambda c: c["identity"]["dataset"].update(n=30), sign=True),
        RECORD,
        "identity.dataset.n",
    ),
    "another wording": (
        record_edit(lambda c: c["identity"]["prompts"].update(qa="0" * 64), sign=True),
        RECORD,
        "identity.prompts.qa",
    ),
    "other weights": (
        record_edit(lambda c: c["identity"]["weights"]["donors"].update(sft="0" * 64), sign=True),
        RECORD,
        "identity.weights",
    ),
    "another tokenizer": (identity_edit(tokenizer="0" * 64), RECORD, "identity.tokenizer"),
    "another pair's name": (
        record_edit(lambda c: c.update(model="tiny-llama")),
        RECORD,
        "identity.weights",
    ),
    "an unknown dtype": (identity_edit(dtype="float8"), RECORD, "identity.dtype"),
    "a metric version of the future": (
        identity_edit(metric_version="3"),
        RECORD,
        "identity.metric_version",
    ),
    "two seeds": (identity_edit(seeds=[0, 1]), RECORD, "identity.seeds"),
    "a truth where nothing is planted": (
        identity_edit(truth={"plant": "FE", "decoy": None}),
        RECORD,
        "identity.truth",
    ),
    "a configuration left out of all": (
        record_edit(
            lambda c: (without(c, "LT^C"), c["identity"]["configurations"].remove("LT^C")),
            sign=True,
        ),
        FACTS,
        "graft",
    ),
    "a row of the record removed": (record_edit(lambda c: without(c, "LT^C")), RECORD, "rows"),
    "a row of the record twice": (
        record_edit(lambda c: c["rows"].append(c["rows"][0])),
        RECORD,
        "rows",
    ),
    "a configuration called not applicable": (
        record_edit(lambda c: c["not_applicable"].update({"FE": "it did badly"})),
        RECORD,
        "not_applicable",
    ),
    "a configuration that is none": (
        record_edit(lambda c: c["identity"]["configurations"].append("top secret%"), sign=True),
        RECORD,
        "identity.configurations",
    ),
    "script in the method's name": (
        record_edit(
            lambda c: c["identity"]["localizer"].update(name="<script>alert(1)</script>"), sign=True
        ),
        RECORD,
        "identity.localizer.name",
    ),
    "markup in a note": (
        record_edit(lambda c: c["notes"].update(more="<img src=x onerror=alert(1)>")),
        RECORD,
        "notes.more",
    ),
    "a control character": (
        record_edit(lambda c: c["provenance"].update(device="cpu\x1b[2J")),
        RECORD,
        "provenance.device",
    ),
    "a direction mark": (
        record_edit(lambda c: c.update(verdict="\u202e" + c["verdict"])),
        RECORD,
        "verdict",
    ),
    "a lone surrogate": (
        text_edit('"device":"a processor"', '"device":"\\ud800"'),
        RECORD,
        "provenance.device",
    ),
    "an absolute path": (
        record_edit(lambda c: c["notes"].update(where="/home/me/models")),
        RECORD,
        "notes.where",
    ),
    "a credential": (
        record_edit(lambda c: c["notes"].update(token="hf_" + "a" * 30)),
        RECORD,
        "notes.token",
    ),
    "no seconds": (record_edit(lambda c: c["cost"].update(seconds=0)), RECORD, "cost.seconds"),
    "no forwards": (record_edit(lambda c: c["cost"].update(forwards=0)), RECORD, "cost.forwards"),
    "fewer tokens than there are": (
        record_edit(lambda c: c["cost"].update(token_rows=100)),
        RECORD,
        "cost.token_rows",
    ),
    "faster than a forward": (
        record_edit(lambda c: c["cost"].update(plain_forward_ratio=[0.1, 0.1, 0.1, 1])),
        RECORD,
        "cost.plain_forward_ratio",
    ),
    "facts dropped in silence": (
        record_edit(lambda c: c.update(dropped={"too hard": 20})),
        RECORD,
        "dropped",
    ),
    "a version of its own for a built-in": (
        record_edit(lambda c: c["identity"]["localizer"].update(version="2"), sign=True),
        RECORD,
        "identity.localizer.version",
    ),
    "parameters that the method has not": (
        record_edit(
            lambda c: c["identity"]["localizer"].update(parameters={"boost": 9}), sign=True
        ),
        RECORD,
        "identity.localizer.parameters",
    ),
    "another floor": (record_edit(lambda c: c.update(floor="destroyed_donor")), RECORD, "floor"),
    "a ranking out of nowhere": (
        record_edit(lambda c: c.update(scores={"FE": {"q": {"0": 1.0}}})),
        RECORD,
        "scores",
    ),
    "no time": (
        record_edit(lambda c: c["provenance"].update(time="yesterday")),
        RECORD,
        "provenance.time",
    ),
    "a submission of another record": (submission_edit(record="0" * 64), SUBMISSION, "record"),
    "a submission without code": (submission_edit(code="ask me"), SUBMISSION, "code"),
    "code in a submission": (
        submission_edit(code="https://example.org/x@main; rm -rf ."),
        SUBMISSION,
        "code",
    ),
    "code elsewhere for a built-in": (
        submission_edit(code="https://example.org/me/it@0123456"),
        SUBMISSION,
        "code",
    ),
    "a script as a name": (submission_edit(name="<script>alert(1)</script>"), SUBMISSION, "name"),
    "a paper that is a script": (submission_edit(paper="javascript:alert(1)"), SUBMISSION, "paper"),
    "a built-in method's name": (submission_edit(name="fisher"), SUBMISSION, "name"),
    "nearly a built-in method's name": (submission_edit(name="Graft Scan"), SUBMISSION, "name"),
    "another version than the one that ran": (
        submission_edit(code="kgbench==9.9"),
        SUBMISSION,
        "code",
    ),
    "a submission that is no JSON": (bytes_of(SUBMISSION, b"{"), SUBMISSION, "JSON"),
    "seconds as text": (
        record_edit(lambda c: c["cost"].update(seconds="7.84")),
        RECORD,
        "cost.seconds",
    ),
    "a truth value as a number": (
        record_edit(lambda c: c["cost"].update(forwards=True)),
        RECORD,
        "cost.forwards",
    ),
    "seconds without end": (
        record_edit(lambda c: c["cost"].update(seconds=1e308)),
        RECORD,
        "cost.seconds",
    ),
    "token rows without end": (
        record_edit(lambda c: c["cost"].update(token_rows=2**52)),
        RECORD,
        "cost.token_rows",
    ),
    "more forwards than token rows": (
        record_edit(lambda c: c["cost"].update(forwards=18232)),
        RECORD,
        "cost.forwards",
    ),
    "a ratio below that of the token rows": (
        record_edit(lambda c: c["cost"].update(plain_forward_ratio=[1.0, 1.0, 1.0, 5])),
        RECORD,
        "cost.plain_forward_ratio",
    ),
    "a cost of something else": (
        record_edit(lambda c: c["cost"].update(measured_on="the fastest machine there is")),
        RECORD,
        "cost.measured_on",
    ),
    "a time to come": (
        record_edit(lambda c: c["provenance"].update(time="2999-01-01T00:00:00+00:00")),
        RECORD,
        "provenance.time",
    ),
    "a kgbench to come": (
        record_edit(lambda c: c["provenance"].update(kgbench="99.0.0")),
        RECORD,
        "provenance.kgbench",
    ),
    "a seed chosen apart from the run's": (
        record_edit(lambda c: c["identity"]["localizer"].update(parameters={"seed": 9}), sign=True),
        RECORD,
        "identity.localizer.parameters.seed",
    ),
    "a donor that hides the recipient": (
        record_edit(lambda c: c["identity"]["weights"]["donors"].update(recipient="0" * 64)),
        RECORD,
        "identity.weights: a donor is named 'recipient'",
    ),
    "no submission": (lambda folder: (folder / SUBMISSION).unlink(), SUBMISSION, "file"),
}


@pytest.mark.parametrize("what", JSON_TAMPERED)
def test_tampered_json_is_refused(what: str, honest: Path, tmp_path: Path) -> None:
    """Whatever is changed in a JSON file, the refusal names the file and the field."""
    change, file, field = JSON_TAMPERED[what]
    shutil.copytree(honest / "a-built-in", tmp_path / "entry")
    change(tmp_path / "entry")
    found = refused(tmp_path / "entry")
    assert any(text.startswith(f"entry/{file}: {field}") for text in found), found
