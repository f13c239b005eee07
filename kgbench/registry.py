"""Plug-ins by name: the modules of a package, entry points of installed packages, or a class in a file."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import sys
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules

from kgbench.errors import InputError, UnknownNameError

__all__ = ["Registry", "frames_in", "told"]


@dataclass(frozen=True)
class Registry:
    """Classes of one kind, loaded when asked for.

    A module `some_method.py` of the package registers the class in it whose `name` is `some_method`; modules whose names begin with an
    underscore register nothing.
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
        found = importlib.import_module(self.package).__path__
        return tuple(sorted(m.name for m in iter_modules(found) if not m.name.startswith("_")))

    @cached_property
    def _plugins(self) -> Mapping[str, EntryPoint]:
        return {point.name: point for point in entry_points(group=self.group)}

    def names(self) -> tuple[str, ...]:
        """All names: built-in ones, then those of installed packages."""
        return (*self._builtin, *(name for name in sorted(self._plugins) if name not in self._builtin))

    def is_builtin(self, name: str) -> bool:
        """Whether a name is one of the package's own classes; nothing is loaded."""
        return name in self._builtin

    def origin(self, name: str) -> str:
        """The distribution that a registered name is from."""
        found = None if name in self._builtin else self._plugins[name].dist
        return found.name if found is not None else __package__

    def check(self, name: str) -> None:
        """Refuse a name that nothing is registered under; a file is looked at when it is loaded.

        Raises:
            UnknownNameError: Nothing is registered under the name.
        """
        if not _is_file(name) and name not in self.names():
            raise UnknownNameError(self.kind, name, self.names(), "Or give a file: path/to/file.py:Class.")

    def load(self, name: str) -> type:
        """The class of this name, or of `path.py:Class`.

        Raises:
            UnknownNameError: Nothing is registered under the name.
            InputError: The file or plug-in does not load, or holds no such class.
        """
        self.check(name)
        if _is_file(name):
            return self._checked(self._from_file(name), name)
        if name in self._builtin:
            members = vars(importlib.import_module(f"{self.package}.{name}")).values()
            return self._checked(next((m for m in members if getattr(m, "name", None) == name), None), name)
        try:
            found = self._plugins[name].load()
        except (Exception, SystemExit, GeneratorExit) as error:  # whatever a package raises at import
            raise InputError(f"the {self.kind} {name!r} of an installed package does not load: {told(error)}") from error
        return self._checked(found, name)

    def fingerprint(self, name: str) -> str:
        """What tells two plug-ins, or two states of one, apart: class and hash of its file; empty for built-in classes.

        Code that the file imports from elsewhere is not in the hash.
        """
        if name in self._builtin:
            return ""
        found = self.load(name)
        return f"{found.__qualname__} {hashlib.sha256(Path(inspect.getfile(found)).read_bytes()).hexdigest()[:16]}"

    def _from_file(self, name: str) -> object:
        place, _, attribute = name.rpartition(":")
        path = Path(place or name).expanduser()
        if not place or not attribute.isidentifier() or path.suffix != ".py":
            raise InputError(f"{name!r} does not name a {self.kind}: expected path/to/file.py:Class")
        if not path.is_file():
            raise InputError(f"no file {str(path)!r} to take the {self.kind} {attribute} from")
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
        if not hasattr(module, attribute):
            classes = [n for n, v in vars(module).items() if isinstance(v, type) and v.__module__ == module.__name__]
            raise UnknownNameError(f"class in {path}:", attribute, classes)
        return getattr(module, attribute)

    def _checked(self, found: object, name: str) -> type:
        if not (isinstance(found, type) and issubclass(found, self.base)):
            base = f"{self.base.__module__}.{self.base.__name__}"
            raise InputError(f"{name!r} is not a {self.kind}: expected a class that derives from {base}")
        if inspect.isabstract(found):
            raise InputError(f"the {self.kind} {name!r} does not define {', '.join(sorted(getattr(found, '__abstractmethods__', ())))}")
        if missing := [a for a in ("name", "about") if not isinstance(getattr(found, a, None), str)]:
            raise InputError(f'the {self.kind} {name!r} has no {missing[0]}: set {missing[0]} = "..." in the class')
        return found


def frames_in(error: BaseException, file: Path) -> list[traceback.FrameSummary]:
    """Where an error passed through a file or a folder, from the outermost call to the innermost."""
    return [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).resolve().is_relative_to(file.resolve())]


def told(error: BaseException) -> str:
    """An error in a line: its type, and what it says."""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(":")


def _is_file(name: str) -> bool:
    return ":" in name or name.endswith(".py")
