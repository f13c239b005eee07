"""Write what results are held against: `known.json.xz`, from the loaded pairs, and the published
JSON Schemas.

Run with `python tests/write_known.py` after a change of the zoo, the localizers, the suites, the
records, or of the versions of transformers and tokenizers in constraints.txt, on which the hashes
depend.
"""

from __future__ import annotations

import json
import lzma
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from kgbench import evaluate
from kgbench.data import builtin_prompts, load_prompts
from kgbench.engine import load_pair
from kgbench.engine.site_sets import all_sites
from kgbench.engine.weights import changed
from kgbench.errors import KgbenchError
from kgbench.leaderboard.boards.organisms import NULL
from kgbench.leaderboard.cells import PROMPTS
from kgbench.leaderboard.entries import BOARDS, Submission, Verification
from kgbench.leaderboard.hits import TOP
from kgbench.leaderboard.known import own_facts
from kgbench.localizers import AbstractLocalizer, InterventionLocalizer, create, describe, names
from kgbench.localizers._base import FLOORS
from kgbench.metrics import METRIC_VERSION
from kgbench.models import DTYPE_NAMES, catalog
from kgbench.models.pair import ModelPair
from kgbench.records import RecordStore, Result
from kgbench.runner.job import RANKING_VERSION
from kgbench.runner.lookup import load_suite
from kgbench.sites import BASELINES
from kgbench.sites.configurations import BEST, REST, budget_labels, configurations

PACKAGE = Path(__file__).parent.parent / "kgbench" / "leaderboard"
KNOWN = PACKAGE / "known.json.xz"
SCHEMAS = PACKAGE / "schemas"

REFERENCES = ("none", "all", "random", "prior", "oracle")


def known(pairs: Sequence[str]) -> dict[str, Any]:
    """What `known.json.xz` is to hold."""
    return {
        "metric_version": METRIC_VERSION,
        "ranking_version": RANKING_VERSION,
        "made_with": {name: metadata.version(name) for name in ("tokenizers", "transformers")},
        "pairs": of_each(pair_facts, [*pairs, NULL]),
        "localizers": {
            name: localizer_facts(name) for name in names() if describe()[name]["from"] == "kgbench"
        },
        "suites": {name: suite_configurations(name) for name in sorted(BOARDS)},
        "answers": of_each(answers, pairs),
    }


def of_each(what: Callable[[str], Any], pairs: Sequence[str]) -> dict[str, Any]:
    """Something of each pair, two at a time."""
    with ProcessPoolExecutor(2) as pool:
        return dict(zip(pairs, pool.map(what, pairs), strict=True))


def pair_facts(name: str) -> dict[str, Any]:
    """Hashes and places of a shipped pair."""
    pair = load_pair(name, chat_template=name == NULL)
    prompts = _prompts(name, "messages" if name == NULL else "headline")
    places = list(dict.fromkeys((site.layer, site.component) for site in all_sites(pair, prompts)))
    slots, moved = pair.slots, changed(pair)
    return {
        "weights": {dtype: weight_hashes(name, dtype) for dtype in DTYPE_NAMES},
        "tokenizer": pair.tokenizer_hash,
        "places": places,
        "regions": _regions(pair, name),
        "changed": [i for i, place in enumerate(places) if slots.index[place] in moved],
    }


def answers(name: str) -> dict[str, dict[str, list[float]]]:
    """What recipient and donor of a shipped pair answer in single precision, by prompt.

    In the order of the pair's facts: position and token of the target, and its log-probability in
    nats under PRE and SFT, and whether it is a top-5 hit.
    """
    facts = own_facts(name)
    assert facts is not None
    with TemporaryDirectory() as folder:
        made = evaluate(localizer="none", model=name, prompts=list(PROMPTS), output_dir=folder)
        rows = RecordStore(Path(folder)).load(made.record.id).facts().to_pylist()
    by_key = {(row["prompt"], row["graft"], row["fact"]): row for row in rows}
    found = {}
    for prompt in PROMPTS:
        pre, sft = ([by_key[prompt, graft, fact.id] for fact in facts.facts] for graft in BASELINES)
        found[prompt] = {
            "position": [row["position"] for row in pre],
            "target": [row["target"] for row in pre],
            "PRE": [round(row["logprob"], 3) for row in pre],
            "SFT": [round(row["logprob"], 3) for row in sft],
            "PRE hits": [int(row["rank"] <= TOP) for row in pre],
            "SFT hits": [int(row["rank"] <= TOP) for row in sft],
        }
    return found


def read() -> dict[str, Any]:
    """`known.json.xz` as it was written."""
    content: dict[str, Any] = json.loads(lzma.decompress(KNOWN.read_bytes()))
    return content


def write(content: Mapping[str, Any]) -> None:
    """Write `known.json.xz`; equal content gives equal bytes."""
    KNOWN.write_bytes(lzma.compress(text(content).encode(), preset=9 | lzma.PRESET_EXTREME))


def weight_hashes(name: str, dtype: str) -> dict[str, str]:
    """Hashes of a pair's models where their weights are of this type."""
    return dict(load_pair(name, dtype=dtype).weight_hashes)


def _prompts(name: str, prompt: str) -> list[Any]:
    facts = own_facts(name)
    assert facts is not None
    return load_prompts(facts, [prompt])


def _regions(pair: ModelPair, name: str) -> dict[str, list[str]]:
    found = {}
    for prompt in builtin_prompts():
        try:
            found[prompt] = list(
                dict.fromkeys(site.region for site in all_sites(pair, _prompts(name, prompt)))
            )
        except KgbenchError:  # a prompt that needs a field which these facts do not have
            continue
    return found


def localizer_facts(name: str) -> dict[str, Any]:
    """What a built-in localizer says of itself."""
    needed = {"truth": "FE"} if "truth" in describe()[name]["needs"] else {}
    made: AbstractLocalizer = create(name, needed, 0)
    about = {
        "version": made.version,
        "kind": made.kind,
        "floor": made.floor,
        "needs": sorted(made.needs),
    }
    described = {key: describe()[name][key] for key in ("about", "paper")}
    return {
        **about,
        "baseline": name in REFERENCES,
        "parameters": sorted(made.parameters()),
        "scan_of": made.scan_of,
        **described,
    }


def suite_configurations(name: str) -> dict[str, list[str]]:
    """By kind of method, the configurations of a suite."""
    kinds = {
        "scoring": ("scoring", "recipient"),
        **{f"intervention {floor}": ("intervention", floor) for floor in FLOORS},
    }
    return {label: list(_configurations(name, *kind)) for label, kind in kinds.items()}


def _configurations(name: str, kind: str, floor: str) -> dict[str, str | None]:
    suite = load_suite(name)
    found = configurations(suite.grafts if kind == InterventionLocalizer.kind else ())
    if floor == "destroyed_donor":
        found |= {"ALL": "NONE", "NONE": "ALL"}
    if kind == "scoring" or suite.scan:
        found |= dict.fromkeys(budget_labels(suite.budgets))
        found |= {BEST: REST, REST: BEST} if suite.truth else {}
    return found


def text(content: Mapping[str, Any]) -> str:
    """The text of `known.json.xz`: a pair, a method or a suite a line."""
    compact = partial(json.dumps, separators=(",", ":"))
    lines = []
    for key, value in content.items():
        if key in ("pairs", "localizers", "suites", "answers"):
            inner = ",\n".join(f"  {compact(name)}: {compact(own)}" for name, own in value.items())
            lines.append(f"{compact(key)}: {{\n{inner}\n }}")
        else:
            lines.append(f"{compact(key)}: {compact(value)}")
    return "{\n " + ",\n ".join(lines) + "\n}\n"


def schemas() -> dict[str, str]:
    """The text of each JSON Schema by the name of its file, without the ending."""
    texts = {}
    for name, model in (
        ("record", Result),
        ("submission", Submission),
        ("verification", Verification),
    ):
        dialect = "https://json-schema.org/draft/2020-12/schema"
        schema = {"$schema": dialect, **model.model_json_schema()}
        texts[name] = json.dumps(schema, indent=1, ensure_ascii=False)
    return texts


def main() -> None:
    """Write all files."""
    pairs = [*catalog.shipped(), *catalog.with_fetched_base(), *catalog.plants()]
    write(known(pairs))
    SCHEMAS.mkdir(exist_ok=True)
    for name, content in schemas().items():
        (SCHEMAS / f"{name}.schema.json").write_text(f"{content}\n", encoding="utf-8")
    print(f"{KNOWN} and {SCHEMAS}")


if __name__ == "__main__":
    main()
