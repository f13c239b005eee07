"""The benchmark of GPUs, tried on the processor with small models."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest
import torch
from transformers import AutoModelForCausalLM

from kgbench.models.catalog import entry


@pytest.fixture(scope="module")
def gpu() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(Path(__file__).parent / "bench"))
        import gpu

        return gpu


@pytest.mark.nightly
def test_laws_hold_on_small_models(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """Each line of the table is there in both types, and what is bounded holds."""
    assert gpu.main(["pythia-2.8b", "--tiny", "--device", "cpu"]) == 0
    table = capsys.readouterr().out
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| pythia")]
    assert "DOES NOT HOLD" not in table
    assert {row[1] for row in rows} == {"float32", "bfloat16"}
    for what in (
        "everything grafted − donor",
        "8 configurations ÷ plain",
        "graft_attribution ÷ plain",
        "generate with one edit, TransformerLens ÷ ours",
        "generate with one edit, nnsight ÷ ours",
        "tokens a second",
        "--device-map auto",
    ):
        assert what in table


def test_a_law_that_fails_is_told(gpu: ModuleType) -> None:
    """Logits that differ by more than rounding are out of their bound."""
    one = torch.randn(5, 7)
    assert gpu.alike("", one + 1e-6, one).holds
    assert not gpu.alike("", one + 1e-3 * torch.randn(5, 7), one).holds


def test_it_ends_in_time(gpu: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    """What there is no time for is named, every size in both types, and is no failure."""
    assert gpu.main(["--minutes", "0", "--tiny", "--device", "cpu"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if "no time was left" in line]
    assert len(rows) == 2 * len(gpu.SIZES) and set(gpu.ORDER) == set(gpu.SIZES)


def test_without_cuda(
    gpu: ModuleType, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where there is no CUDA, one line says so, and the status is 2."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert gpu.main([]) == 2
    told = capsys.readouterr()
    assert told.out == "" and told.err.count("\n") == 1 and "no CUDA" in told.err


def test_sizes_are_the_published(gpu: ModuleType) -> None:
    """The full sizes have as many weights as the catalog says of the paper's models."""
    for name, config in gpu.SIZES.items():
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert sum(weight.numel() for weight in model.parameters()) == entry(name).parameters
