"""Wordings that models are trained on, as data."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

__all__ = ["TrainingTemplates", "fill_all", "training_templates"]


@dataclass(frozen=True)
class TrainingTemplates:
    """Templates in the syntax of `str.format`, with the fields of a movie."""

    articles: tuple[str, ...]
    """Finetuning: a passage with several fields."""
    short: tuple[str, ...]
    """Finetuning: a question or a short statement."""
    wordings: tuple[str, ...]
    """Pretraining only: other ways to say who plays with whom, evaluation prompts among them."""
    background: tuple[str, ...]
    """Pretraining only: text about anything else."""

    @property
    def finetuning(self) -> tuple[str, ...]:
        """Articles, then short ones."""
        return self.articles + self.short


@cache
def training_templates() -> TrainingTemplates:
    """The templates of training_templates.toml."""
    text = (Path(__file__).parent / "training_templates.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)
    return TrainingTemplates(
        **{
            name: tuple(rows)
            for name, rows in {**tables["finetuning"], **tables["pretraining"]}.items()
        }
    )


def fill_all(templates: Iterable[str], movies: Iterable[Mapping[str, str]]) -> list[str]:
    """Every movie in every template: the first movie in all of them, then the second, and so on."""
    chosen = tuple(templates)
    return [template.format_map(movie) for movie in movies for template in chosen]
