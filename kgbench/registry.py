"""Plug-ins by name: modules of a package, entry points, or a class in a file."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import linecache
import re
import sys
import textwrap
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from pkgutil import iter_modules

from kgbench.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Registry:
    """Classes of one kind, loaded when asked for.

    A module `some_method.py` of the package registers the class in it whose `name` is
    `some_method`; packages, and modules whose names begin with an underscore, register nothing.
    """

    kind: str
    """What the classes are, for messages."""
    package: str
    """Package whose modules hold the built-in classes."""
    group: str
    """Entry-point group of other packages."""
    base: type
    """What every class must derive from."""

    @cached_property
    def _builtin(self) -> tuple[str, ...]:
        folders = importlib.import_module(self.package).__path__
        modules = [m.name for m in iter_modules(folders) if not m.ispkg]
        return tuple(sorted(name for name in modules if not name.startswith("_")))

    @cached_property
    def _plugins(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> tuple[str, ...]:
        """All names: built-in ones, then those of installed packages."""
        return (
            *self._builtin,
            *(name for name in sorted(self._plugins) if name not in self._builtin),
        )

    def is_builtin(self, name: str) -> bool:
        """Whether a name is one of the package's own classes; nothing is loaded."""
        return name in self._builtin

    def origin(self, name: str) -> str:
        """The distribution that a registered name is from."""
        distribution = None if name in self._builtin else self._plugins[name].dist
        return distribution.name if distribution is not None else __package__

    def check(self, name: str) -> None:
        """Check that a name is registered, or that a file holds the class, without running it.

        Raises:
            UnknownNameError: Nothing is registered under the name, or the file does not hold the
                class.
            InputError: There is no such file, it does not parse, or it imports what is not
                installed.
        """
        if _is_file(name):
            _check_source(*self._place(name))
        elif name not in self.names():
            hint = "Or give a file: path/to/file.py:Class."
            candidates = self._candidates(name)
            raise UnknownNameError(self.kind, name, self.names(), hint, candidates=candidates)

    def _candidates(self, word: str) -> list[str]:
        """The package's own classes with a word in their names or first lines, which are read."""
        text = re.compile(rf"\b{re.escape(word.lower().replace('_', ' ') or '-')}")
        names = []
        for name in self._builtin:
            spec = importlib.util.find_spec(f"{self.package}.{name}")
            assert spec is not None and spec.origin is not None
            tree = ast.parse(Path(spec.origin).read_bytes())
            lines = [name.replace("_", " ")]
            for node in (tree, *tree.body):
                if isinstance(node, ast.Module | ast.ClassDef):
                    lines.append((ast.get_docstring(node) or "").partition("\n\n")[0])
            if text.search(" ".join(lines).lower()):
                names.append(name)
        return sorted(names, key=lambda name: word not in name)

    def load(self, name: str) -> type:
        """The class of this name, of `path.py:Class`, or the only one in `path.py`.

        Raises:
            UnknownNameError: Nothing is registered under the name.
            InputError: The file or plug-in does not load, or holds no such class.
        """
        self.check(name)
        if _is_file(name):
            return self.checked(self._from_file(name), name)
        if name in self._builtin:
            members = vars(importlib.import_module(f"{self.package}.{name}")).values()
            return self.checked(
                next((m for m in members if getattr(m, "name", None) == name), None), name
            )
        try:
            loaded = self._plugins[name].load()
        except (
            Exception,
            SystemExit,
            GeneratorExit,
        ) as error:  # whatever a package raises at import
            raise InputError(
                f"the {self.kind} {name!r} of an installed package does not load: {told(error)}"
            ) from error
        return self.checked(loaded, name)

    def fingerprint(self, name: str) -> str:
        """Class and hash of its file, which identify a plug-in; empty for built-in classes.

        Code that the file imports from elsewhere is not in the hash.
        """
        if name in self._builtin:
            return ""
        return source_fingerprint(self.load(name))

    def _from_file(self, name: str) -> object:
        path, attribute = self._place(name)
        spec = importlib.util.spec_from_file_location(f"kgbench_file_{path.stem}", path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their own module up
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit, GeneratorExit) as error:
            frames = frames_in(error, path)
            where = f" ({path.name}:{frames[-1].lineno})" if frames else ""
            raise InputError(f"{path} does not load: {told(error)}{where}") from error
        classes = []
        for v in vars(module).values():
            if isinstance(v, type) and v.__module__ == module.__name__:
                classes.append(v)
        if not attribute:
            return self._only(
                [subclass for subclass in classes if issubclass(subclass, self.base)], path
            )
        if not hasattr(module, attribute):
            raise UnknownNameError(
                f"class in {path}:", attribute, [subclass.__name__ for subclass in classes]
            )
        return getattr(module, attribute)

    def _place(self, name: str) -> tuple[Path, str]:
        """The file of `path.py:Class` or `path.py`, and the class, if one is named."""
        place, _, attribute = (name, "", "") if name.endswith(".py") else name.rpartition(":")
        if not place.endswith(".py") or not (attribute.isidentifier() or place == name):
            raise InputError(
                f"{name!r} does not name a {self.kind}: expected path/to/file.py:Class"
            )
        path = Path(place).expanduser()
        if not path.is_file():
            raise InputError(
                f"no file {str(path)!r} to take the {self.kind}{f' {attribute}' * bool(attribute)} "
                "from; give the path of one that is there, or a name"
            )
        return path, attribute

    def _only(self, classes: Sequence[type], path: Path) -> type:
        """The single class of this kind in a file; an abstract one only where there is no other."""
        concrete = [each for each in classes if not inspect.isabstract(each)] or list(classes)
        if not concrete:
            raise InputError(f"{path} defines no {self.kind}: {self._expected}")
        if len(concrete) > 1:
            names = ", ".join(each.__name__ for each in concrete)
            raise InputError(
                f"{path} defines several {self.kind}s, {names}: give one of them, such as "
                f"{path}:{concrete[0].__name__}"
            )
        return concrete[0]

    @property
    def _expected(self) -> str:
        """What a class should derive from: the base, or those that its own module makes of it."""
        bases: list[type] = self.base.__subclasses__()
        here = [base.__name__ for base in bases if base.__module__ == self.base.__module__]
        names = here or [self.base.__name__]
        return (
            f"expected a class that derives from {' or '.join(names)}, as by `from {self.package} "
            f"import {names[0]}`"
        )

    def checked(self, loaded: object, name: str = "") -> type:
        """A class that has what it needs.

        Args:
            loaded: A class.
            name: What it was asked for by; by default its own name.

        Raises:
            InputError: It is none of the kind, is abstract, or has no name or no description.
        """
        name = name or getattr(loaded, "__name__", repr(loaded))
        if not (isinstance(loaded, type) and issubclass(loaded, self.base)):
            raise InputError(f"{name!r} is no {self.kind}: {self._expected}")
        if inspect.isabstract(loaded):
            raise InputError(
                f"the {self.kind} {name!r} does not define "
                f"{', '.join(sorted(getattr(loaded, '__abstractmethods__', ())))}"
            )
        if missing := [
            a for a in ("name", "about") if not isinstance(getattr(loaded, a, None), str)
        ]:
            raise InputError(
                f'the {self.kind} {name!r} has no {missing[0]}: set {missing[0]} = "..." in the '
                "class"
            )
        return loaded


def named_files(kind: str, folder: Path, pattern: str, group: str) -> dict[str, Path]:
    """Files by name: kgbench's own, then those of installed packages, which replace none.

    Args:
        kind: What the files are, for messages.
        folder: Of kgbench's own.
        pattern: What files are called, such as `*.yaml`.
        group: Group of the entry points; each names a package whose folder holds such files.

    Raises:
        InputError: The package of an entry point does not load.
    """
    folders = [folder]
    for point in entry_points(group=group):
        try:
            folders.append(Path(str(files(point.value))))
        except Exception as error:  # whatever a package raises at import
            raise InputError(
                f"the {kind} {point.name!r} of an installed package do not load: {told(error)}"
            ) from error
    named: dict[str, Path] = {}
    for each in folders:
        for path in sorted(each.glob(pattern)):
            named.setdefault(path.stem, path)
    return named


def _check_source(path: Path, attribute: str) -> None:
    """Refuse a file whose code cannot run, or does not hold a class; nothing of it is run.

    Raises:
        UnknownNameError: The class's name is nowhere in it.
        InputError: It does not parse, or imports what is not installed.
    """
    try:
        source = path.read_bytes()
        tree = ast.parse(source, str(path))
    except SyntaxError as error:
        raise InputError(
            f"{path} does not load: {type(error).__name__}: {error.msg} "
            f"({path.name}:{error.lineno})"
        ) from error
    except (OSError, ValueError) as error:
        raise InputError(f"{path} does not load: {told(error)}") from error
    for statement in tree.body:  # those in a `try` or an `if` may be made for what is not there
        if missing := [name for name in _imported(statement) if not _is_installed(name)]:
            why = told(ModuleNotFoundError(f"No module named {missing[0]!r}"))
            raise InputError(f"{path} does not load: {why} ({path.name}:{statement.lineno})")
    if re.search(rf"\b{attribute}\b|import \*", source.decode("utf-8", "replace")) is None:
        classes = [statement.name for statement in tree.body if isinstance(statement, ast.ClassDef)]
        raise UnknownNameError(f"class in {path}:", attribute, classes)


def _imported(statement: ast.stmt) -> list[str]:
    """The packages that a statement imports."""
    if isinstance(statement, ast.Import):
        return [alias.name.partition(".")[0] for alias in statement.names]
    if isinstance(statement, ast.ImportFrom) and statement.module and not statement.level:
        return [statement.module.partition(".")[0]]
    return []


def _is_installed(package: str) -> bool:
    try:
        return package in sys.modules or importlib.util.find_spec(package) is not None
    except ValueError:  # a module that says nothing of where it is from
        return True


def source_fingerprint(cls: type) -> str:
    """Name of a class and hash of its file; of one made in a notebook, of the class's own text.

    Raises:
        InputError: Its source cannot be read.
    """
    file = code_file(cls)
    try:
        source = file.read_bytes()
    except OSError:  # a cell of a notebook, whose text Python keeps
        source = _class_text(cls, file).encode()
    return f"{cls.__qualname__} {hashlib.sha256(source).hexdigest()[:16]}"


def code_file(cls: type) -> Path:
    """Where a class was defined; for a cell of a notebook a name that is no file."""
    try:
        return Path(inspect.getfile(cls))
    except (TypeError, OSError):  # the module of a notebook has no file
        functions = filter(inspect.isfunction, vars(cls).values())
        files = [function.__code__.co_filename for function in functions]
        return Path(next((file for file in files if file != "<string>"), ""))


def _class_text(cls: type, cell: Path) -> str:
    text = "".join(linecache.getlines(str(cell)))
    for statement in ast.walk(ast.parse(text)):
        if isinstance(statement, ast.ClassDef) and statement.name == cls.__name__:
            return ast.get_source_segment(text, statement) or ""
    raise InputError(
        f"the source of {cls.__qualname__} cannot be read, and is part of what a record is of: "
        "define it in a file or in a cell of a notebook"
    )


def field_docs(dataclass: type) -> dict[str, str]:
    """Docstrings of the fields of a dataclass and its bases, by field name."""
    docs: dict[str, str] = {}
    for cls in reversed(dataclass.__mro__):
        docs |= _docs_of(cls)
    return docs


@cache
def _docs_of(cls: type) -> Mapping[str, str]:
    """Docstrings of the fields that a class itself declares."""
    if "__annotations__" not in vars(cls):
        return {}
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):
        return {}
    docs, body = {}, tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for line, below in pairwise(body):
        field = line.target if isinstance(line, ast.AnnAssign) else None
        text = below.value if isinstance(below, ast.Expr) else None
        if (
            isinstance(field, ast.Name)
            and isinstance(text, ast.Constant)
            and isinstance(text.value, str)
        ):
            docs[field.id] = inspect.cleandoc(text.value)
    return docs


def frames_in(error: BaseException, file: Path) -> list[traceback.FrameSummary]:
    """Frames of an error in a file or folder, from the outermost call to the innermost."""
    return [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if Path(frame.filename).resolve().is_relative_to(file.resolve())
    ]


def told(error: BaseException) -> str:
    """An error in a line: its type and message."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")


def _is_file(name: str) -> bool:
    return ":" in name or name.endswith(".py")
