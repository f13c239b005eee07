"""Analyses as plug-ins: built-in ones, those of installed packages, and what `kgbench eval`
imports.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from textwrap import dedent
from typing import Any

import forks
import pytest
import stored_runs
from packages import install_package

from kgbench.analyses import Analysis, analyses
from kgbench.cli import SECTIONS

ROOT = Path(__file__).parents[1]

PLUGIN = dedent('''
    from __future__ import annotations
    from dataclasses import dataclass, field
    from kgbench.analyses import Analysis, Answer
    from kgbench.report import Column, Report, Table

    @dataclass(frozen=True)
    class Hits(Analysis):
        """Count the rows that are hits."""

        name = "hits"
        about = "Count hits."
        arguments = "RUN..."

        k: int = field(default=5, metadata={"metavar": "K"})
        """Largest rank that counts."""

        def answer(self, inputs):
            counts = {}
            for run in inputs.runs:
                ranks = run.facts()["rank"].to_pylist()
                counts[run.record.model] = sum(rank <= self.k for rank in ranks)
            table = Table("hits", [Column("model"), Column("hits")], list(counts.items()))
            return Answer(Report("", [table]), counts)
''')


def python(
    code: str, *arguments: object, path: Path | None = None, run: Any = subprocess.run
) -> str:
    """What a program prints; a fresh interpreter runs it, or a fork."""
    environment = dict(os.environ)
    if path is not None:
        environment["PYTHONPATH"] = os.pathsep.join([str(path), environment.get("PYTHONPATH", "")])
    command = [sys.executable, "-c", code, *map(str, arguments)]
    done = run(command, capture_output=True, text=True, cwd=ROOT, env=environment, check=True)
    return done.stdout


@pytest.fixture(scope="module")
def helps() -> Mapping[str, tuple[str, str]]:
    """The help of each analysis, and whether torch was loaded after it."""
    code = (
        "import sys\nfrom kgbench.cli import main\nfor name in sys.argv[1:]:\n"
        "    main([name, '--help'])\n    print('\\n=====', 'torch' in sys.modules)"
    )
    told = python(code, *analyses().names())
    parts = re.findall(r"(.*?)\n===== (True|False)\n", told, re.DOTALL)
    return dict(zip(analyses().names(), parts, strict=True))


@pytest.mark.parametrize("name", analyses().names())
def test_the_help_of_an_analysis_has_its_fields_and_loads_no_torch(
    name: str, helps: Mapping[str, tuple[str, str]]
) -> None:
    """A built-in analysis is named as its module and listed with its own line; its help shows all
    of its options without torch.
    """
    kind: type[Analysis] = analyses().load(name)
    assert kind.name == name and kind.__module__ == f"kgbench.analyses.{name}"
    assert kind.about in [lines.get(name) for lines in SECTIONS.values()]
    assert helps[name][1] == "False"
    assert "--json" in helps[name][0]
    assert {*kind.changes} <= {*kind.takes}


def test_an_analysis_of_an_installed_package_is_a_command(tmp_path: Path) -> None:
    """An entry point of the group `kgbench.analyses` is listed in the help and answers on recorded
    runs, with its fields as options.
    """
    (tmp_path / "their_package.py").write_text(PLUGIN)
    install_package(tmp_path, "kgbench.analyses", {"hits": "their_package:Hits"})
    runs = stored_runs.folder(tmp_path / "runs")
    code = "import sys; from kgbench.cli import main; sys.exit(main(sys.argv[1:]))"
    forked = partial(python, code, run=forks.run)
    assert "hits" in forked("--help", path=tmp_path)
    assert "hits" not in forked("--help")
    assert "Largest rank that counts." in forked("hits", "--help", path=tmp_path)
    record, rows = stored_runs.stored()
    expected = {k: sum(rank <= k for rank in rows["rank"].to_pylist()) for k in (1, 5)}
    for k in expected:
        answer = forked("hits", runs, "--k", k, "--json", path=tmp_path)
        assert json.loads(answer) == {record.model: expected[k]}
    assert str(expected[5]) in forked("hits", runs, path=tmp_path).splitlines()[-1]


def test_eval_imports_nothing_that_trains(tmp_path: Path) -> None:
    """A run imports neither `datasets` nor the trainer of transformers nor code that finetunes."""
    code = """
import sys
from kgbench.cli import main
arguments = ["eval", "--model", "tiny-gemma", "--localizer", "dynamic_graft", "--prompt"]
assert main([*arguments, "qa", "--limit", "2", "-q", "--output-dir", sys.argv[1]]) == 0
print(*sys.modules)
"""
    loaded = python(code, tmp_path).splitlines()[-1].split()
    assert not {"datasets", "transformers.trainer", "peft", "lm_eval"} & {*loaded}
    assert not [name for name in loaded if name.startswith("kgbench.runner.training")]
