"""Pairs and prompts of the benchmarks, and the table of all ratios at their end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
import torch
from transformers import AutoModelForCausalLM, GemmaConfig

if TYPE_CHECKING:
    from kgbench.data import Prompt
    from kgbench.models.pair import ModelPair

N_PROMPTS = 32

Claim = Callable[..., None]

_claims = pytest.StashKey[list[tuple[str, str, str, str, bool]]]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_claims] = []
    # The other tests check types and shapes at every call, which would be measured too; nothing has
    # imported the package yet.
    sys.meta_path[:] = [
        finder for finder in sys.meta_path if not type(finder).__module__.startswith("jaxtyping")
    ]
    torch.set_num_threads(1)


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    rows = [
        ("claim", "measured", "rows", "bound", ""),
        *((*c[:4], _verdict(*c[3:])) for c in config.stash[_claims]),
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    terminalreporter.section(
        "kgbench: median ratios of rounds in turns, processor time of one thread"
    )
    for row in rows:
        terminalreporter.write_line(
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        )


def _verdict(bound: str, holds: bool) -> str:
    return ("holds" if holds else "DOES NOT HOLD") if bound else ""


@pytest.fixture
def claim(request: pytest.FixtureRequest) -> Iterator[Claim]:
    """Note a figure for the table and pytest-benchmark's record; a test with one out of its bound
    fails at its end, with all of its figures in the table.
    """
    missed = []

    def note(
        what: str, measured: object, bound: str, holds: bool, rows: float | None = None
    ) -> None:
        entry = (what, str(measured), "" if rows is None else f"{rows:.2f}", bound, holds)
        request.config.stash[_claims].append(entry)
        if "benchmark" in request.fixturenames:
            benchmark = request.getfixturevalue("benchmark")
            benchmark.extra_info[what] = {
                "ratio": getattr(measured, "value", measured),
                "row_ratio": rows,
                "bound": bound,
            }
        if not holds:
            missed.append(f"{what}: {measured}, expected {bound}")

    yield note
    if missed:
        pytest.fail("; ".join(missed), pytrace=False)


@pytest.fixture(scope="session")
def tiny() -> ModelPair:
    from kgbench.engine import load_pair

    return load_pair("tiny-gemma")


@pytest.fixture(scope="session")
def large(tiny: ModelPair) -> ModelPair:
    """Random weights: what a forward takes does not depend on them."""
    from kgbench.models.pair import ModelPair, prepare

    config = GemmaConfig(
        hidden_size=768,
        num_hidden_layers=12,
        num_attention_heads=12,
        num_key_value_heads=1,
        head_dim=64,
        intermediate_size=3072,
        vocab_size=4096,
    )
    recipient, donor = (prepare(AutoModelForCausalLM.from_config(config)) for _ in range(2))
    for weight in donor.parameters():
        weight.data += 0.01  # norms begin equal, and equal weights share their rows
    return ModelPair("large", recipient, {"sft": donor}, tiny.tokenizer, tiny.family)


@pytest.fixture(scope="session")
def real(tiny: ModelPair) -> ModelPair:
    """The tiny pair's tokens, and weights of the shape of SmolLM2-135M."""
    from transformers import LlamaConfig

    from kgbench.models.family_map import load_family
    from kgbench.models.pair import ModelPair, prepare

    config = LlamaConfig(
        hidden_size=576,
        num_hidden_layers=30,
        num_attention_heads=9,
        num_key_value_heads=3,
        intermediate_size=1536,
        vocab_size=49152,
        tie_word_embeddings=True,
    )
    recipient, donor = (prepare(AutoModelForCausalLM.from_config(config)) for _ in range(2))
    for weight in donor.parameters():
        weight.data += 0.01
    return ModelPair("real", recipient, {"sft": donor}, tiny.tokenizer, load_family("llama"))


@pytest.fixture(scope="session")
def prompts() -> list[Prompt]:
    from kgbench.data import load_prompts

    found = load_prompts("tiny_movies", ["headline"], limit=N_PROMPTS)
    assert len(found) == N_PROMPTS
    return found
