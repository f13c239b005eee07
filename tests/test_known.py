"""What results are held against is what the loaded pairs say, and the published schemas are the
records' own.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import write_known
from submissions import result, sent

from kgbench.cli import main
from kgbench.data import builtin_prompts
from kgbench.engine import load_pair
from kgbench.engine.site_sets import all_sites, graft_sites
from kgbench.leaderboard.boards.organisms import NULL
from kgbench.leaderboard.entries import BOARDS
from kgbench.leaderboard.known import known, own_facts, planted_sites, shipped_sites
from kgbench.models import DTYPE_NAMES, catalog
from kgbench.runner import load_prompts
from kgbench.sites import parse_graft

SHIPPED = write_known.read()
PAIRS = [*catalog.shipped(), *catalog.with_fetched_base(), *catalog.plants()]


def as_json(value: Any) -> Any:
    return json.loads(json.dumps(value))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [*catalog.shipped(), *catalog.plants_in_shipped_pairs()])
def test_hashes_are_those_of_the_loaded_pair(name: str) -> None:
    """Weights in single precision, tokenizer, places, regions and changed weights; after a change,
    run tests/write_known.py.
    """
    pair = load_pair(name)
    told = SHIPPED["pairs"][name]
    assert told["weights"]["float32"] == dict(pair.weight_hashes)
    assert told["tokenizer"] == pair.tokenizer_hash
    assert list(told["weights"]) == list(DTYPE_NAMES)


def test_all_of_one_pair_is_as_written() -> None:
    """The whole of a plant's facts, and the file as the script writes it."""
    name = "tiny-gemma.one-0"
    assert as_json(write_known.pair_facts(name)) == SHIPPED["pairs"][name]
    assert list(SHIPPED["pairs"]) == [*PAIRS, NULL]
    text = lzma.decompress(write_known.KNOWN.read_bytes()).decode()
    assert text == write_known.text(SHIPPED)


def test_answers_are_those_of_the_models() -> None:
    """What recipient and donor of a plant answer, by a run of it; log-probabilities to three
    digits.
    """
    name = "tiny-gemma.one-0"
    made = write_known.answers(name)
    shipped = SHIPPED["answers"]
    for prompt, told in shipped[name].items():
        for key, values in told.items():
            assert made[prompt][key] == pytest.approx(values, abs=0.002)
    assert list(shipped) == PAIRS


def test_methods_suites_and_versions_are_as_written() -> None:
    """Everything but the pairs, which take a while."""
    from kgbench.localizers import describe, names

    builtin = [name for name in names() if describe()[name]["from"] == "kgbench"]
    assert {name: write_known.localizer_facts(name) for name in builtin} == SHIPPED["localizers"]
    assert {name: write_known.suite_configurations(name) for name in BOARDS} == SHIPPED["suites"]
    assert (SHIPPED["metric_version"], SHIPPED["ranking_version"]) == (
        write_known.METRIC_VERSION,
        write_known.RANKING_VERSION,
    )


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", catalog.plants_in_shipped_pairs())
def test_planted_sites_are_the_engine_s(name: str) -> None:
    """The truth of every shipped plant, without a model: the sites that the engine grafts, for the
    plant and for its decoy.
    """
    pair, entry = load_pair(name), catalog.entry(name)
    prompts = load_prompts(name, ["headline", "qa"], limit=6)
    sites = shipped_sites(known().pairs[name], ("headline", "qa"))
    assert sites == all_sites(pair, prompts)
    assert sites is not None
    for expression in filter(None, (entry.plant, entry.decoy)):
        graft = parse_graft(expression)
        assert planted_sites(sites, graft) == graft_sites(pair, prompts, graft)


EXPRESSIONS = (
    "LT",
    "FE+LT:o",
    "FE^C",
    "(FE+LT)^C:ffn@1",
    "P",
    "ALL:emb",
    "ALL; LT:o=recipient",
    "NONE",
    "FE:attn; ALL:ln@first_half",
)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize("name", ["tiny-gemma", "tiny-gpt2"])
def test_sites_of_other_grafts_are_the_engine_s(name: str, expression: str) -> None:
    """Nor only of plants: unions, complements, terms that win over others."""
    pair = load_pair(name)
    prompts = load_prompts(name, ["qa"], limit=3)
    sites = shipped_sites(known().pairs[name], ("qa",))
    assert sites is not None
    graft = parse_graft(expression)
    assert planted_sites(sites, graft) == graft_sites(pair, prompts, graft)


def test_only_names_of_the_catalog_are_looked_up(tmp_path: Path) -> None:
    """A pair's name in a submission is never taken for a path."""
    for name in ("../x", str(tmp_path), ".", "zoo:tiny-gemma", ""):
        assert own_facts(name) is None
    assert set(known().pairs) == {*PAIRS, NULL}
    assert all(set(pair.regions) <= set(builtin_prompts()) for pair in known().pairs.values())


# ------------------------------------------------------------------------------------- JSON Schemas


def validators() -> Iterator[tuple[str, Any]]:
    for name in write_known.schemas():
        schema = json.loads((write_known.SCHEMAS / f"{name}.schema.json").read_text("utf-8"))
        jsonschema.Draft202012Validator.check_schema(schema)
        yield name, jsonschema.Draft202012Validator(schema)


def test_the_published_schemas_are_current() -> None:
    """After a change of a record's fields, run tests/write_known.py."""
    for name, text in write_known.schemas().items():
        assert (write_known.SCHEMAS / f"{name}.schema.json").read_text("utf-8") == f"{text}\n"


def test_the_command_prints_them(capsys: pytest.CaptureFixture[str]) -> None:
    """`kgbench validate --schema NAME` gives the published text, and nothing else."""
    for name in write_known.schemas():
        assert main(["validate", "--schema", name]) == 0
        assert capsys.readouterr().out == (write_known.SCHEMAS / f"{name}.schema.json").read_text(
            "utf-8"
        )
    assert main(["validate", "--schema", "recrod"]) == 2


def test_entries_are_of_the_published_schemas() -> None:
    """What is written validates against what is published, and what is changed does not."""
    entry, found = sent(result()), dict(validators())
    entry.verify()
    for name in ("record", "submission", "verification"):
        content = entry.documents[f"{name}.json"]
        found[name].validate(content)
        for key in list(content):
            if key in found[name].schema["required"]:
                assert not found[name].is_valid({k: v for k, v in content.items() if k != key})
        assert not found[name].is_valid({**content, "more": 1})
