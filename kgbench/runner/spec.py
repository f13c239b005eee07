"""What is to be evaluated, apart from how."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kgbench.data import ImportOptions

__all__ = ["Settings", "Spec"]


@dataclass(frozen=True)
class Spec:
    """What is evaluated; together with the weights and the facts it makes the identity of the record."""

    localizer: str = "dynamic_graft"
    """A registered name, or `path/to/file.py:Class`."""
    model: str | None = None
    """A pair of the catalog; otherwise `recipient` and `donors` are given."""
    recipient: str | None = None
    donors: Mapping[str, str] = field(default_factory=dict)
    revision: str | None = None
    chat_template: bool = False
    dataset: str | None = None
    """A shipped data set or a file; by default the pair's own."""
    imports: ImportOptions | None = None
    prompts: tuple[str, ...] = ()
    """By default the suite's, or the data set's own templates."""
    localizer_args: Mapping[str, str] = field(default_factory=dict)
    grafts: tuple[str, ...] = ()
    """By default the suite's."""
    suite: str = "pathways"
    layers: str | None = None
    """Put on every term of a graft that names none."""
    limit: int | None = None
    dtype: str | None = None
    seed: int = 0
    metric: str = "top5"


@dataclass(frozen=True)
class Settings:
    """How it is computed; no part of the identity."""

    batch_size: int | None = None
    """Most prompts in one forward."""
    device: str = "auto"
    executor: str = "auto"
    output_dir: Path = Path("kgbench-results")
    attention: str = "auto"
    device_map: str | None = None
    """In the place of `device`: `auto`, `balanced`, `sequential`, or a JSON object from paths of modules to their devices."""
    stream_donors: bool = False
    """Whether donors are left on disk and read layer by layer."""
