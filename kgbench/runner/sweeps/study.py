"""A study: options of `kgbench eval` with several values each, and the units that they make."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields, replace
from functools import cache, cached_property
from hashlib import sha256
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any

import pydantic

from kgbench.data import ImportOptions
from kgbench.data.templates import named_templates
from kgbench.errors import InputError, UnknownNameError, first_fault
from kgbench.localizers import check_name, fingerprint, is_foreign
from kgbench.models import catalog
from kgbench.records import Strict, canonical_json
from kgbench.runner.lookup import Workload, check
from kgbench.runner.sources import read_donors
from kgbench.runner.spec import (
    COMPUTING,
    PAIR,
    RESULTS,
    Settings,
    Spec,
    grafts_of,
    listed,
)
from kgbench.runner.yaml_files import by_option, check_plain, read_yaml

_UNSET = ("held", "imports", "output_dir", "on_record")
MOST_UNITS = 100_000
_CHECKED_FACTS = 8
"""Facts of which prompts are made to check a unit, since a plan may have thousands."""


@cache
def _options() -> Mapping[str, tuple[type, Field[Any]]]:
    """Class and field of each option of a unit, by the option's name without dashes in front."""
    options = {}
    for kind in (Spec, ImportOptions, Settings):
        for each in fields(kind):
            flag = str(each.metadata.get("flag", f"--{each.name.replace('_', '-')}"))
            name = flag.partition("/")[0].removeprefix("--")
            if each.name not in _UNSET and (kind is not Settings or each.name in COMPUTING):
                options[name] = (kind, each)
    return options


@dataclass(frozen=True)
class StudyUnit:
    """One evaluation of a study."""

    options: Mapping[str, Any]
    """JSON values by option, as `kgbench eval --config` has them."""

    def __reduce__(self) -> tuple[Any, ...]:
        """Sent to another machine without what was looked up on this one."""
        return StudyUnit, (dict(self.options),)

    @cached_property
    def spec(self) -> Spec:
        """The specification.

        Raises:
            InputError: A value does not read.
        """
        values = self._values(Spec)
        imports = self._values(ImportOptions)
        if imports:
            values["imports"] = ImportOptions(**imports)
        return Spec(**values)

    def settings(self, output_dir: Path) -> Settings:
        """How the unit is computed.

        Args:
            output_dir: Where its record goes.

        Raises:
            InputError: A value does not read.
        """
        return Settings(**self._values(Settings), output_dir=output_dir)

    def _values(self, kind: type) -> dict[str, Any]:
        values = {}
        for name, value in self.options.items():
            owner, option = _options()[name]
            if owner is kind:
                values[option.name] = _value(name, option, value)
        return values

    @cached_property
    def workload(self) -> Workload:
        """The names of the unit looked up, with prompts of its first facts.

        Raises:
            InputError: Something in the unit is wrong.
        """
        spec = self.spec
        check_name(spec.localizer)
        first = min(spec.limit or _CHECKED_FACTS, _CHECKED_FACTS)
        shared = replace(spec, localizer="none", localizer_args={}, seed=0, limit=first)
        named = canonical_json(asdict(shared))
        if named not in _WORKLOADS:
            _WORKLOADS[named] = check(shared)
        return _WORKLOADS[named]

    @cached_property
    def key(self) -> str:
        """SHA-256, in hexadecimal, of what is evaluated, as far as names and files show it."""
        spec = asdict(self.spec)
        del spec["held"]
        facts = self.workload.dataset.content_hash
        code = fingerprint(self.spec.localizer) if is_foreign(self.spec.localizer) else ""
        shipped = _shipped_hash(self.spec.model)
        return sha256(canonical_json([spec, facts, code, shipped]).encode()).hexdigest()

    @cached_property
    def pair(self) -> str:
        """What units have in common that can be computed with one loaded pair."""
        options = _options().items()
        loaded = [name for name, (_, option) in options if option.name in (*PAIR, *COMPUTING)]
        return canonical_json({name: self.options.get(name) for name in loaded})

    def label(self, names: Iterable[str]) -> str:
        """Values of some options."""
        texts = [
            f"{name} {option_text(self.options[name])}" for name in names if name in self.options
        ]
        return ", ".join(texts) or "the defaults"

    def __str__(self) -> str:
        """In words."""
        return self.label(self.options)


_WORKLOADS: dict[str, Workload] = {}
"""By specification, as units that differ in seed or method alone have the same."""


@cache
def _shipped_hash(model: str | None) -> str:
    """SHA-256, in hexadecimal, of the files of a shipped pair; empty for another."""
    published = None if model is None else catalog.published(model)
    if published is None:
        return ""
    digest = sha256()
    for source in (published.recipient, *published.donors.values()):
        folder = catalog.zoo_path(source)
        files = [] if folder is None else sorted(folder.glob("*.safetensors"))
        for file in files:
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _value(name: str, option: Field[Any], value: Any) -> Any:
    """A value of the study as the field has it.

    Raises:
        InputError: It is of another type.
    """
    kind = str(option.type)
    if name == "donor":
        texts = [f"{key}={place}" for key, place in value.items()] if _is_map(value) else value
        return read_donors("donor", [texts] if isinstance(texts, str) else list(texts))
    if name == "template" and not _is_map(value):
        return named_templates(_texts(name, value))
    if kind.startswith("Mapping"):
        if not _is_map(value):
            raise InputError(f"{name}: expected a mapping such as {{draws: 16}}, not {value!r}")
        return {str(key): str(inner) for key, inner in value.items()}
    if kind.startswith("tuple"):
        return _several(name, value)
    if kind.startswith("bool") and isinstance(value, bool):
        return value
    least = int(option.metadata.get("least", 1))
    if kind.startswith("int") and type(value) is int and least <= value < 1 << 63:
        return value
    if kind.startswith("str") and type(value) in (str, int, float):
        return str(value)
    expected = {"b": "true or false", "i": f"a whole number from {least}"}.get(kind[0], "a text")
    several = f"; several values stand under matrix: {{{name}: {value!r}}}"
    raise InputError(
        f"{name}: expected {expected}, not {value!r}{several if isinstance(value, list) else ''}"
    )


def _is_map(value: Any) -> bool:
    return isinstance(value, Mapping)


def _texts(name: str, value: Any) -> Sequence[str]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise InputError(f"{name}: expected a text or a list of texts, not {value!r}")
    return texts


def _several(name: str, value: Any) -> tuple[str, ...]:
    texts = _texts(name, value)
    return tuple(filter(None, grafts_of(texts) if name == "graft" else listed(texts)))


def option_text(value: Any) -> str:
    """A value of an option, for a table."""
    return value if isinstance(value, str) else json.dumps(value)


@dataclass(frozen=True)
class StudyFile:
    """Units, where their records go, and how they are computed."""

    units: tuple[StudyUnit, ...]
    output_dir: str = str(RESULTS)
    """A folder, or a URL as of fsspec."""
    engines: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of each engine."""
    axes: tuple[str, ...] = ()
    """Options with several values."""

    def check(self) -> None:
        """Check every unit.

        Raises:
            InputError: Something in a unit is wrong; the message names the unit.
        """
        for unit in self.units:
            try:
                unit.key  # noqa: B018 (looks all names up)
            except InputError as error:
                raise InputError(f"unit ({unit}): {error}") from error


_EXAMPLE = "keys such as matrix: {seed: [0, 1]}, exclude: [{seed: 1}], output_dir: results"


class _Parts(Strict):
    """Keys of a study that are no options of a unit."""

    matrix: Mapping[str, Annotated[list[Any], pydantic.Field(min_length=1)]] = {}
    include: list[Mapping[str, Any]] = pydantic.Field(default_factory=list)
    exclude: list[Mapping[str, Any]] = pydantic.Field(default_factory=list)
    output_dir: Annotated[str, pydantic.Field(min_length=1)] = str(RESULTS)
    engines: Mapping[str, Mapping[str, Any]] = {}


def read_study(path: Path) -> StudyFile:
    """Read a study from YAML.

    Raises:
        InputError: The file does not read, or is no study.
    """
    content = read_yaml(path)
    try:
        return study_of(content)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def study_of(content: Any) -> StudyFile:
    """A study of what its file holds.

    Args:
        content: `matrix`, lists of values by option, of which all combinations are units;
            `exclude`, mappings, and units that have all values of one are left out; `include`,
            mappings, each a further unit; `output_dir`; and `engines`, options by engine. Further
            keys are options of all units.

    Raises:
        UnknownNameError: A key is neither an option nor one of these.
        InputError: A part is of another shape, or there are no units.
    """
    if not _is_map(content):
        raise InputError("expected a mapping with 'matrix', such as {matrix: {seed: [0, 1]}}")
    check_plain(content)
    content = by_option(content)
    study = {key: content.pop(key.replace("_", "-"), None) for key in _Parts.model_fields}
    try:
        parts = _Parts(**{key: value for key, value in study.items() if value is not None})
    except pydantic.ValidationError as error:
        raise InputError(f"{first_fault(error, 'study')}; expected {_EXAMPLE}") from None
    shared, matrix = _named(content, ""), _named(parts.matrix, "matrix")
    exclude = [_named(row, "exclude") for row in parts.exclude]
    included = [_named(row, "include") for row in parts.include]
    n_units = prod(map(len, matrix.values())) + len(included)
    if n_units > MOST_UNITS:
        raise InputError(
            f"matrix: these are {n_units:,} units, expected at most {MOST_UNITS:,}; divide the study"
        )
    combined = []
    for values in product(*matrix.values()) if matrix or not included else ():
        row = dict(zip(matrix, values, strict=True))
        if not any(excluded.items() <= row.items() for excluded in exclude):
            combined.append(row)
    units: dict[str, StudyUnit] = {}
    for row in (*combined, *included):
        options = dict(sorted({**shared, **row}.items()))
        units.setdefault(canonical_json(options), StudyUnit(options))
    if not units:
        raise InputError("there are no units: 'exclude' leaves out all of the matrix")
    for unit in units.values():
        try:
            unit.spec, unit.settings(RESULTS)
        except InputError as error:
            raise InputError(f"unit ({unit}): {error}") from error
    axes = [name for name, values in matrix.items() if len(values) > 1]
    for row in included:
        axes += (name for name in row if name not in axes)
    return StudyFile(tuple(units.values()), parts.output_dir, parts.engines, tuple(axes))


def _named(given: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Options by name, the names as on the command line.

    Args:
        given: The options.
        key: The part of the study that they are of; empty for those of all units.

    Raises:
        UnknownNameError: A name is no option.
    """
    where = f"{key}: " if key else ""
    options = by_option(given)
    for option in options:
        if option not in _options():
            names = (*_options(), *(() if key else _Parts.model_fields))
            raise UnknownNameError(f"{where}option", option, names)
    return options
