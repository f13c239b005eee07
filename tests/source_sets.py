"""Sets by others in small: their schemas, files in them, a Hub that serves folders, and `kgbench
data import` on all that.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow
import pytest
from commands import Answer, Call, caller
from huggingface_hub import DatasetCardData, HfApi
from pyarrow import parquet

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TONGUE = (
    "The mother tongue of {} is",
    "{} is a native speaker of",
    "{}, a native",
    "{}, a native speaker of",
)
PEOPLE = [
    ("Ada Roy", "French"),
    ("Bo {Li}", "Dutch"),
    ("Cy Orr", "Danish"),
    ("Di Ash", "French"),
    ("Ed Oak", "Welsh"),
    ("Flo Elm", "Irish"),
]


def tracing() -> list[dict[str, str]]:
    """Rows in the schema of counterfact-tracing: blanks before subject and target, the prompt
    filled in.
    """
    wordings = [TONGUE[0], TONGUE[1], TONGUE[0], TONGUE[2], TONGUE[0], TONGUE[1]]
    rows = [
        (who, wording, "P103", language)
        for (who, language), wording in zip(PEOPLE, wordings, strict=True)
    ]
    rows += [
        ("Lyon", "{} is located in", "P17", "France"),
        ("Lima", "{} is located in", "P17", "Peru"),
    ]
    return [
        {
            "relation": wording,
            "relation_prefix": wording.partition("{}")[0].rstrip(),
            "relation_suffix": wording.partition("{}")[2],
            "prompt": wording.replace("{}", subject),
            "relation_id": relation,
            "target_false_id": "Q1",
            "target_true_id": "Q2",
            "target_true": f" {target}",
            "target_false": " Klingon",
            "subject": f" {subject}",
        }
        for subject, wording, relation, target in rows
    ]


def rome() -> list[dict[str, Any]]:
    """The same facts in the schema of ROME's counterfact.json."""
    return [
        {
            "case_id": number,
            "pararel_idx": 7,
            "requested_rewrite": {
                "prompt": row["relation"],
                "relation_id": row["relation_id"],
                "target_new": {"str": row["target_false"].strip(), "id": "Q1"},
                "target_true": {"str": row["target_true"].strip(), "id": "Q2"},
                "subject": row["subject"].strip(),
            },
            "paraphrase_prompts": ["He slept. " + row["prompt"]],
            "neighborhood_prompts": ["Another is"],
        }
        for number, row in enumerate(tracing())
    ]


def popqa() -> list[dict[str, str]]:
    """Rows in the schema of PopQA."""
    jobs = [
        ("Ann Lee", "politician"),
        ("Bob Fox", "painter"),
        ("What", "singer"),
        ("Cem Kaya", "poet"),
    ]
    rows = [(who, "occupation", job, f"What is {who}'s occupation?") for who, job in jobs]
    rows += [
        ("Dee Poe", "occupation", "actor", "What does she do?"),
        ("Peru", "capital", "Lima", "What is the capital of Peru?"),
    ]
    return [
        {
            "id": str(4000 + number),
            "subj": subject,
            "prop": prop,
            "obj": answer,
            "prop_id": "22",
            "s_aliases": '["A, ""B"""]',
            "s_pop": str(10 * number),
            "o_pop": "7",
            "question": question,
            "possible_answers": json.dumps([answer, answer.title()]),
        }
        for number, (subject, prop, answer, question) in enumerate(rows)
    ]


def write_json(name: str, value: Any) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(json.dumps(value), encoding="utf-8")
    return name


def write_table(name: str, rows: Sequence[Mapping[str, str]]) -> str:
    with Path(name).open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(
            file, list(rows[0]), delimiter="\t" if name.endswith(".tsv") else ","
        )
        writer.writeheader()
        writer.writerows(rows)
    return name


def write_parquet(name: str, rows: Sequence[Mapping[str, Any]]) -> str:
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), name)
    return name


@pytest.fixture
def run(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Call:
    """`kgbench data import` in an empty folder, with a cache of its own for tables."""
    import datasets

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")

    return caller(capsys, "data", "import")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A Hub whose data sets are folders here: what it was asked, and by id the licence on the card.
    All behind the network is real.
    """
    import datasets

    told: dict[str, Any] = {"licences": {}, "asked": []}
    load = datasets.load_dataset

    def info(api: HfApi, name: str, *, revision: str | None, timeout: float) -> Any:
        told["asked"].append(("card", name, revision))
        return SimpleNamespace(
            sha=revision or COMMIT, card_data=DatasetCardData(license=told["licences"].get(name))
        )

    def loaded(name: str, config: str | None, *, revision: str | None, **options: Any) -> Any:
        told["asked"].append(("rows", name, revision))
        return load(name.partition("/")[2], config, **options)

    monkeypatch.setattr(HfApi, "dataset_info", info)
    monkeypatch.setattr(datasets, "load_dataset", loaded)
    return told


def refused(answer: Answer) -> str:
    """The last line of a refusal; we say before it at most where the rows would have come from, and
    no file is there.
    """
    *before, last = (line for line in answer.err.splitlines() if line.startswith("kgbench: "))
    assert answer.status == 2 and answer.out == "" and last.startswith("kgbench: error: "), (
        answer.err
    )
    assert answer.err.endswith(f"{last}\n")
    assert all(line.startswith(("kgbench: from ", "kgbench: licence: ")) for line in before)
    assert not list(Path().glob("*.jsonl"))
    return last


def write(source: str) -> str:
    """A file in the schema of a source."""
    writers = {
        "counterfact": lambda: write_parquet("facts.parquet", tracing()),
        "counterfact-rome": lambda: write_json("facts.json", rome()),
        "popqa": lambda: write_table("facts.tsv", popqa()),
    }
    return writers[source]()


RELATIONS = {"counterfact": "P103", "counterfact-rome": "P103", "popqa": "occupation"}
