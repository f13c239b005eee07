"""The whole answer: how specific grafts are, on all kinds of texts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from kgbench.errors import InputError
from kgbench.localizers import InterventionLocalizer, ScoringLocalizer, create, is_foreign
from kgbench.runner.job import prepare_job
from kgbench.runner.ranking import Progress
from kgbench.runner.spec import Settings, Spec
from kgbench.runner.third_party import blamed, isolated
from kgbench.runner.workload import check, localizer_arguments
from kgbench.sites import parse_graft
from kgbench.specificity.figures import Row, rows_of
from kgbench.specificity.measured import Measured, measure
from kgbench.specificity.sentences import sentence
from kgbench.specificity.texts import KINDS, Asked, check_named, texts_of

__all__ = ["GRAFTS", "Specificity", "specificity"]

GRAFTS = ("FE", "LT", "FE+LT", "ALL")
"""What is asked about where nobody says."""


@dataclass(frozen=True)
class Specificity:
    """What some grafts move, of what they are meant for and of what they are not."""

    model: str
    dataset: str
    localizer: str
    dtype: str
    seed: int
    labels: tuple[str, ...]
    """Configurations, the whole donor first."""
    measured: tuple[Measured, ...]
    """By kind of texts, the target facts first."""
    rows: tuple[Row, ...]
    origins: Mapping[str, str]
    """Where the models of the pair are from, by name."""

    def row(self, label: str, kind: str) -> Row:
        """The figures of a configuration on a kind of texts."""
        return next(row for row in self.rows if (row.graft, row.kind) == (label, kind))

    @property
    def verdict(self) -> str:
        """One plain sentence on the graft that moves the target facts most, `ALL` left out where there is another."""
        grafts = [label for label in self.labels if label != "SFT"]
        moved = {
            label: kl for label in grafts if (kl := self.row(label, "target").kl.value) is not None
        }
        label = max(
            (label for label in moved if label != "ALL"),
            key=lambda label: moved[label],
            default="ALL",
        )
        if label not in moved:
            return "Of no graft is it known how far it moves the target facts, so that nothing can be said of how specific it is."
        return sentence([self.row(label, kind) for kind in KINDS], self.row("SFT", "neutral"))

    def to_json(self) -> dict[str, Any]:
        """The object that `kgbench specificity --json` prints."""
        kinds = [_kind(one) for one in self.measured]
        told = {
            name: getattr(self, name) for name in ("model", "dataset", "localizer", "dtype", "seed")
        }
        return {
            **told,
            "origins": dict(self.origins),
            "unit": "nats",
            "kinds": kinds,
            "rows": [row.to_json() for row in self.rows],
            "verdict": self.verdict,
        }


def _kind(measured: Measured) -> dict[str, Any]:
    prompts = measured.texts.prompts
    return {
        "kind": measured.texts.kind,
        "about": measured.texts.about,
        "facts": len({prompt.fact.id for prompt in prompts}),
        "prompts": len(prompts),
        "unread": dict(measured.unread),
        "absent": {label: dict(reasons) for label, reasons in measured.absent.items()},
    }


def specificity(
    spec: Spec, settings: Settings, asked: Asked | None = None, progress: Progress | None = None
) -> Specificity:
    """Compare the next token under grafts with that of the recipient, on texts of all kinds.

    Args:
        spec: Pair, facts, prompts, grafts and an intervention; its seed chooses the facts and resamples them.
        settings: How it is computed.
        asked: Which texts.
        progress: Called with the prompts done and all of a kind.

    Raises:
        InputError: Something in the specification is wrong, or the method is none that intervenes once and for all.
    """
    asked = asked or Asked()
    spec = replace(spec, grafts=spec.grafts or GRAFTS)
    labels = tuple(dict.fromkeys(["SFT", *(label for label in spec.grafts if label != "PRE")]))
    for label in labels[1:]:
        parse_graft(label)
    check(spec)
    if is_foreign(spec.localizer):
        return isolated(
            spec.localizer, _specificity, spec, settings, asked, labels, progress=progress
        )
    return _specificity(spec, settings, asked, labels, progress)


def _specificity(
    spec: Spec,
    settings: Settings,
    asked: Asked,
    labels: tuple[str, ...],
    progress: Progress | None = None,
) -> Specificity:
    _check_method(spec)
    check_named(spec, asked)
    job = prepare_job(spec, settings)
    assert isinstance(job.localizer, InterventionLocalizer)
    texts = texts_of(job, asked)
    assert [one.kind for one in texts] == list(KINDS)
    with blamed(job):
        measured = tuple(measure(job, one, labels, progress) for one in texts)
    rows = tuple(rows_of(measured, labels, spec.seed))
    dtype = str(job.pair.dtype).removeprefix("torch.")
    return Specificity(
        job.pair.name,
        job.dataset.name,
        job.localizer.name,
        dtype,
        spec.seed,
        labels,
        measured,
        rows,
        job.pair.origins,
    )


def _check_method(spec: Spec) -> None:
    method = create(spec.localizer, localizer_arguments(spec), spec.seed)
    if isinstance(method, ScoringLocalizer):
        raise InputError(
            f"{method.name!r} ranks sites; specificity is of a method that intervenes, such as dynamic_graft"
        )
    if isinstance(method, InterventionLocalizer) and len(method.variants()) > 1:
        raise InputError(
            f"{method.name!r} averages {len(method.variants())} random draws; specificity is of a method without draws"
        )
