"""Plug-ins by name: built-in modules, files, and packages that are installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent

import packages
import pytest

from kgbench.errors import InputError, UnknownNameError
from kgbench.localizers import AbstractLocalizer
from kgbench.registry import Registry

PLUGIN = dedent('''
    from __future__ import annotations
    from dataclasses import dataclass
    from kgbench.engine.treatment import graft_treatments
    from kgbench.localizers import InterventionLocalizer

    @dataclass(frozen=True)
    class Mine(InterventionLocalizer):
        """Someone else's method."""

        name = "mine"
        about = "someone else's"
        strength: int = 3

        def treat(self, pair, prompts, sites):
            return graft_treatments(pair, prompts, sites)

    class Stranger:
        """No localizer."""
''')


@pytest.fixture
def registry() -> Registry:
    """A fresh one: a registry looks installed packages up once."""
    return Registry("localizer", "kgbench.localizers", "kgbench.localizers", AbstractLocalizer)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(PLUGIN)
    return path


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the path that holds a package with entry points, as pip would lay it out."""
    (tmp_path / "their_package.py").write_text(PLUGIN)
    (tmp_path / "broken_package.py").write_text("import nothing_of_this_name")
    (tmp_path / "crashing_package.py").write_text("raise RuntimeError('at import')")
    points = {name: f"their_package:{name.title()}" for name in ("mine", "stranger", "gone")}
    points |= {"none": "their_package:Mine", "broken": "broken_package:Mine"}
    packages.install_package(
        tmp_path, "kgbench.localizers", {**points, "crashing": "crashing_package:Mine"}
    )
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    for name in ("their_package", "broken_package", "crashing_package"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    return tmp_path


def test_built_in_ones(registry: Registry) -> None:
    """Every module of the package that has no leading underscore is a localizer of its own name."""
    assert {"dynamic_graft", "none", "all", "random"} <= set(registry.names())
    for name in registry.names():
        found = registry.load(name)
        assert issubclass(found, AbstractLocalizer)
        assert found.name == name  # type: ignore[attr-defined]


def test_a_class_in_a_file(registry: Registry, file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`path/to/file.py:Class`, by absolute or relative path; of a file with one localizer the class
    need not be named.
    """
    assert registry.load(f"{file}:Mine").name == "mine"  # type: ignore[attr-defined]
    monkeypatch.chdir(file.parent)
    assert registry.load("mine.py:Mine").name == "mine"  # type: ignore[attr-defined]
    assert registry.load("mine.py").name == "mine"  # type: ignore[attr-defined]
    assert registry.load("./mine.py:Mine")(strength=5).parameters() == {"strength": 5}


REFUSED = """
/two.py | two.py defines several localizers, Mine, Other: give one of them, such as FOLDER/two.py:Mine
/none.py | none.py defines no localizer: expected a class that derives from
/missing.py:Mine | does not load: ModuleNotFoundError: No module named 'no_such_package' (missing.py:2)
/mine.py: | expected path/to/file.py:Class
/mine.py:Mi ne | expected path/to/file.py:Class
/other.py:Mine | no file
:Mine | expected path/to/file.py:Class
/mine.py:Mien | Did you mean 'Mine'
/mine.py:Stranger | expected a class that derives from InterventionLocalizer or ScoringLocalizer, as by `from
/mine.py:dataclass | is no localizer
/syntax.py:Mine | does not load: SyntaxError
/crash.py:Mine | does not load: ZeroDivisionError: division by zero (crash.py:2)
/leaves.py:Mine | does not load: SystemExit: 3 (leaves.py:1)
"""
"""Places behind the folder's, and what is said of them."""


@pytest.mark.parametrize("case", REFUSED.strip().splitlines())
def test_files_that_do_not_do(registry: Registry, file: Path, case: str) -> None:
    """Each is refused in one line that says what was expected."""
    texts = {"syntax": "def", "crash": "\n1 / 0  # Mine", "none": "x = 3"}
    texts["leaves"] = "raise SystemExit(3)  # Mine"
    texts["missing"] = "import os\nfrom no_such_package.part import thing\nclass Mine: ..."
    texts["two"] = file.read_text() + "\nclass Other(Mine): ...\n"
    for name, text in texts.items():
        file.with_name(f"{name}.py").write_text(text)
    place, said = case.split(" | ")
    with pytest.raises(InputError) as caught:
        registry.load(f"{file.parent}{place}")
    assert said.replace("FOLDER", str(file.parent)) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_mistake_in_a_file_is_told_before_it_runs(registry: Registry, file: Path) -> None:
    """What does not parse, imports what is not installed or lacks the class is refused without any
    of it being run.
    """
    for code in ("def", "import no_such_package", "class Other: ..."):
        file.write_text(f"open({str(file.parent / 'ran')!r}, 'w')\n{code}")
        with pytest.raises(InputError):
            registry.check(f"{file}:Mine")
    assert not (file.parent / "ran").exists()
    registry.check("random")


def test_installed_packages(registry: Registry, installed: Path) -> None:
    """An entry point adds a name, after the built-in ones, which it cannot take; only what is asked
    for is imported.
    """
    names = registry.names()
    assert "mine" in names
    assert names.count("none") == 1
    assert names.index("mine") > names.index("random")
    assert "their_package" not in sys.modules
    assert registry.load("mine")().parameters() == {"strength": 3}
    assert registry.load("none").__module__ == "kgbench.localizers.none"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("broken", "nothing_of_this_name"),
        ("gone", "Gone"),
        ("stranger", "derives from"),
        ("crashing", "at import"),
    ],
)
def test_installed_packages_that_do_not_load(
    registry: Registry, installed: Path, name: str, said: str
) -> None:
    """A plug-in that cannot be imported, or is something else, is refused in one line."""
    with pytest.raises(InputError) as caught:
        registry.load(name)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unknown_names(registry: Registry) -> None:
    """With the nearest names, all that there are, and what else could be given."""
    with pytest.raises(
        UnknownNameError,
        match=(
            r"unknown localizer 'dynamic_grafts'\. Did you mean"
            r" 'dynamic_graft'.*path/to/file.py:Class"
        ),
    ):
        registry.load("dynamic_grafts")
    with pytest.raises(UnknownNameError):
        registry.load("_base")
