"""Several donors of one base: each as if it alone were given, in one table and one picture."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

import kgbench
from kgbench.cli import command
from kgbench.errors import ModelError
from kgbench.models.catalog import entry, zoo_path


def test_donors_that_no_graft_names_are_an_axis(tmp_path: Path) -> None:
    """Runs are those of each donor alone, in the order given, the pair's own last; a graft that
    names one keeps all in one run.
    """
    path = zoo_path(entry("tiny-gemma").donors["sft"])
    line = [
        "eval",
        *["--model", "tiny-gemma", "--graft", "LT", "--prompt", "headline", "--limit", "4"],
    ]
    line += ["--output-dir", str(tmp_path)]
    alone = CliRunner().invoke(command, [*line, "--json", "-q"])
    several = CliRunner().invoke(command, [*line, "--donor", f"late={path}", "--json", "-q"])
    runs = json.loads(several.stdout)["runs"]
    assert [run["donor"] for run in runs] == ["late", "sft"]
    assert runs[1]["id"] == json.loads(alone.stdout)["id"]
    shown = CliRunner().invoke(command, [*line, "--donor", f"late={path}"])
    assert "2 donors of tiny-gemma" in shown.output and list(tmp_path.glob("donors-*.png"))
    dry = CliRunner().invoke(command, [*line, "--donor", f"late={path}", "--dry-run"])
    assert re.findall(r"^donor +(\w+)$", dry.output, re.MULTILINE) == ["late", "sft"]
    given = {"model": "tiny-gemma", "grafts": "LT", "prompts": "headline", "limit": 4}
    with pytest.raises(ModelError, match="donor 'gone': there is no '/nowhere'"):
        kgbench.evaluate(**given, donors={"late": path, "gone": "/nowhere"}, output_dir=tmp_path)
    told = kgbench.evaluate(**given, donors={"late": path}, output_dir=tmp_path, progress=False)
    assert [run.record.id for run in told] == [run["id"] for run in runs]
    assert all(run.reused for run in told) and "2 donors of tiny-gemma" in repr(told)
    mixed = [*line, "--graft", "FE=late", "--donor", f"late={path}", "--json", "-q"]
    assert "runs" not in json.loads(CliRunner().invoke(command, mixed).stdout)
