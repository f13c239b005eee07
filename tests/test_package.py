"""The package as a whole: what it exports, what importing it costs, what it ships."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from importlib import import_module
from importlib.resources import files
from pathlib import Path

import pytest
import yaml
from stored_runs import folder, stored

import kgbench

ROOT = Path(__file__).parent.parent
HEAVY = (
    *("torch", "transformers", "numpy", "scipy", "pydantic", "pyarrow", "matplotlib"),
    *("tqdm", "yaml", "faker", "tabulate"),
)


RUN = """
import sys, kgbench
for line in sys.argv[1:]:
    if line:
        from kgbench.cli import main
        assert main(line.split()) == 0, line
    print("loaded:", *sys.modules, file=sys.stderr)
"""


def loaded_by(*commands: str) -> list[set[str]]:
    """The heavy packages that a fresh interpreter has loaded after each command, run one after
    another as `kgbench ARGUMENT…`; an empty one only imports kgbench.
    """
    line = [sys.executable, "-c", RUN, *commands]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    told = [line.split() for line in done.stderr.splitlines() if line.startswith("loaded: ")]
    assert len(told) == len(commands)
    return [set(HEAVY) & set(names) for names in told]


def test_nothing_heavy_is_loaded_by_import_and_help() -> None:
    """Importing the package and asking for help load neither torch nor any other large library."""
    commands = ["", "--help", "--version", "eval --help", "zoo build --help", "family infer --help"]
    commands.append("--completion fish")
    assert loaded_by(*commands) == [set()] * len(commands)


def test_what_lists_and_reads_runs_loads_no_torch(tmp_path: Path) -> None:
    """Listing what there is, and so completing a name in the shell, and whatever only looks at
    results waits for no deep learning library.
    """
    one, other = (folder(tmp_path, *stored(seed=seed, seeds=(seed,))) for seed in (0, 1))
    commands = ["ls models", "ls datasets", "ls prompts", "ls tasks", f"show {one}"]
    commands += [f"compare {one} {other}", f"show {one} --format csv", f"audit {one} {other}"]
    commands.append(f"show {one} --metric mrr")
    commands.append(f"show {one} {other} -o {tmp_path / 'picture.png'}")
    for command, loaded in zip(commands, loaded_by(*commands), strict=True):
        assert not {"torch", "transformers"} & loaded, command
    assert (tmp_path / "picture.png").is_file()


def test_what_reads_and_draws_results_loads_no_torch() -> None:
    """Results can be read, checked and drawn where torch is not installed; data needs no library
    of the Hub at import.
    """
    modules = [
        *("errors", "registry", "sites", "stats", "records", "data", "data.sources"),
        *("report", "report.bars", "report.export", "report.site_maps", "report.run_report"),
    ]
    code = "import sys\nfrom importlib import import_module\n" + "".join(
        f"import_module('kgbench.{module}')\n"
        f"print('{module}', *{{'torch', 'transformers', 'datasets'}} & {{*sys.modules}})\n"
        for module in modules
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.split("\n") == [*modules, ""]


def test_intervals_do_without_the_distributions_of_scipy() -> None:
    """Figures of a run load no scipy.stats, whose import takes longer than they do."""
    code = (
        "import sys, kgbench.stats, kgbench.leaderboard.ranks; print('scipy.stats' in sys.modules)"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "False\n"


def test_the_public_names_are_the_documented_ones() -> None:
    """The package exports what the reference names, and nothing else."""
    assert kgbench.__all__ == [
        "Evaluation",
        "Evaluations",
        "GraftCallback",
        "__version__",
        "as_model",
        "compare",
        "evaluate",
        "explore",
        "grafted_logits",
        "load_pair",
        "load_prompts",
        "ls",
        "open_run",
        "parse_graft",
        "submit",
        "sweep",
        "train",
    ]
    assert set(kgbench.__all__) <= set(dir(kgbench))
    for name in kgbench.__all__:
        assert getattr(kgbench, name) is getattr(kgbench, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """The lazy package answers for a missing name as any module does."""
    with pytest.raises(AttributeError, match="no attribute 'evalute'"):
        _ = kgbench.evalute


def test_every_module_exports_what_it_has() -> None:
    """Each name in a module's `__all__` exists."""
    for path in sorted((ROOT / "kgbench").rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        if "__main__" in parts:
            continue
        module = import_module(".".join(part for part in parts if part != "__init__"))
        missing = [name for name in getattr(module, "__all__", ()) if not hasattr(module, name)]
        assert not missing, f"{path}: {missing}"


def test_types_and_data_are_shipped() -> None:
    """The files that the package needs beside its code lie inside it."""
    package = files("kgbench")
    for name in (
        "py.typed",
        "data/prompts.toml",
        "data/files/tiny_movies.jsonl",
        "models/catalog.toml",
        "models/families/gemma.json",
    ):
        assert package.joinpath(*name.split("/")).is_file(), name


def test_comprehensions_have_one_loop_and_hold_no_other() -> None:
    """Nested comprehensions read inside out; the package writes loops in their place."""
    kinds = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    nested = []
    for path in sorted((ROOT / "kgbench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, kinds):
                held = sum(isinstance(each, kinds) for each in ast.walk(node))
                if held > 1 or len(node.generators) > 1:
                    nested.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert nested == []


def test_version_and_citation_agree() -> None:
    """The version stands in one place; the citation repeats it, and names the paper."""
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == kgbench.__version__
    assert "2506.20746" in citation["references"][0]["url"]
    assert f"## {kgbench.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("target", ["eval", "test"])
def test_set_up_is_quick_the_second_time(target: str, tmp_path: Path) -> None:
    """With an environment newer than pyproject.toml and constraints.txt, make installs nothing."""
    (tmp_path / "bin").mkdir()
    for name in ("bin/python", ".installed", ".installed-dev"):
        (tmp_path / name).touch()
    plan = ["make", "--dry-run", target, f"VENV={tmp_path}"]
    environment = {
        key: value
        for key, value in os.environ.items()
        if key not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")
    }
    done = subprocess.run(
        plan, capture_output=True, text=True, check=True, cwd=ROOT, env=environment
    )
    assert "pip install" not in done.stdout
    assert len([line for line in done.stdout.splitlines() if not line.startswith("echo ")]) == 1


def test_every_mutant_breaks_the_package_as_it_is() -> None:
    """What a mutant replaces stands in its file exactly once, so that `make mutants` breaks what it
    says.
    """
    from mutants import MUTANTS, PACKAGE, patched

    for mutant in MUTANTS:
        for patch in mutant.patches:
            assert patched((PACKAGE / patch.file).read_text("utf-8"), patch), mutant.name
