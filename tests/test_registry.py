"""Plug-ins by name: built-in modules, files, and packages that are installed."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from textwrap import dedent

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
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-package\nVersion: 1.0\n")
    points = {
        "mine": "their_package:Mine",
        "stranger": "their_package:Stranger",
        "gone": "their_package:Gone",
        "none": "their_package:Mine",
    }
    points |= {"broken": "broken_package:Mine", "crashing": "crashing_package:Mine"}
    (info / "entry_points.txt").write_text(
        "[kgbench.localizers]\n" + "".join(f"{name} = {place}\n" for name, place in points.items())
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


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "{folder}/two.py",
            (
                "defines several localizers, Mine, Other: give one of them, such as"
                " {folder}/two.py:Mine"
            ),
        ),
        ("{folder}/none.py", "none.py defines no localizer: expected a class that derives from"),
        (
            "{folder}/missing.py:Mine",
            "does not load: ModuleNotFoundError: No module named 'no_such_package' (missing.py:2)",
        ),
        ("{file}:", "expected path/to/file.py:Class"),
        ("{file}:Mi ne", "expected path/to/file.py:Class"),
        ("{folder}/other.py:Mine", "no file"),
        ("{folder}:Mine", "expected path/to/file.py:Class"),
        ("{file}:Mien", "Did you mean 'Mine'"),
        (
            "{file}:Stranger",
            "expected a class that derives from InterventionLocalizer or ScoringLocalizer, as by "
            "`from kgbench.localizers import InterventionLocalizer`",
        ),
        ("{file}:dataclass", "is no localizer"),
        ("{folder}/syntax.py:Mine", "does not load: SyntaxError"),
        (
            "{folder}/crash.py:Mine",
            "does not load: ZeroDivisionError: division by zero (crash.py:2)",
        ),
        ("{folder}/leaves.py:Mine", "does not load: SystemExit: 3 (leaves.py:1)"),
    ],
)
def test_files_that_do_not_do(registry: Registry, file: Path, name: str, said: str) -> None:
    """Each is refused in one line that says what was expected."""
    (file.parent / "syntax.py").write_text("def")
    (file.parent / "crash.py").write_text("\n1 / 0  # Mine")
    (file.parent / "leaves.py").write_text("raise SystemExit(3)  # Mine")
    (file.parent / "none.py").write_text("x = 3")
    (file.parent / "missing.py").write_text(
        "import os\nfrom no_such_package.part import thing\nclass Mine: ..."
    )
    (file.parent / "two.py").write_text(file.read_text() + "\nclass Other(Mine): ...\n")
    with pytest.raises(InputError) as caught:
        registry.load(name.format(file=file, folder=file.parent))
    assert said.format(folder=file.parent) in str(caught.value)
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
