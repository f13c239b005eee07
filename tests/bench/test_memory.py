"""What a pair takes in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers.utils import logging

import kgbench
from kgbench.models.catalog import zoo_path
from kgbench.models.pair import ModelPair


@pytest.mark.parametrize("stored", [torch.float32, torch.float16], ids=["float32", "float16"])
def test_weights(
    stored: torch.dtype, large: ModelPair, tmp_path: Path, claim: Callable[..., None]
) -> None:
    """A pair takes two copies of the weights, also while it loads and runs, whatever type they are
    stored in.
    """
    logging.disable_progress_bar()
    for part, model in {"recipient": large.recipient, "sft": large.donors["sft"]}.items():
        state = {name: tensor.to(stored) for name, tensor in model.state_dict().items()}
        model.save_pretrained(tmp_path / part, state_dict=state)
        large.tokenizer.save_pretrained(tmp_path / part)
    script, root = (
        Path(__file__).with_name("load_and_weigh.py"),
        Path(kgbench.__file__).parent.parent,
    )
    where = [tmp_path / "recipient", tmp_path / "sft", zoo_path("zoo:tiny-gemma")]
    answer = subprocess.run(
        [sys.executable, str(script), *map(str, where)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    what = f"large, stored as {stored}".replace("torch.", "")
    copies, peak, private = (found[name] / found["one"] for name in ("all", "peak", "private"))
    claim(f"{what}: weights held ÷ one copy", f"{copies:.2f}", "≤ 2.1", copies <= 2.1)
    claim(
        f"{what}: peak growth of private memory ÷ one copy",
        f"{private:.2f}",
        "≤ 2.1",
        private <= 2.1,
    )
    # The pages of the file that is read are mapped beside the weights that come of them.
    mapped = stored.itemsize / torch.float32.itemsize
    claim(
        f"{what}: peak growth of resident memory ÷ one copy",
        f"{peak:.2f}",
        f"≤ {2.1 + mapped:.1f}",
        peak <= 2.1 + mapped,
    )
