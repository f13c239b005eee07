"""Where facts were planted, as far as a job may know it."""

from __future__ import annotations

from collections.abc import Mapping

from kgbench.errors import InputError
from kgbench.localizers import needs
from kgbench.models import catalog
from kgbench.records import Truth
from kgbench.runner.spec import Spec
from kgbench.runner.suites import load_suite

__all__ = ["localizer_arguments", "planted_models", "truth_of"]


def truth_of(spec: Spec) -> Truth | None:
    """Where the facts of a specification's pair were planted; None where nobody knows.

    Other checkpoints in the place of the catalog's make it another pair, and of other facts nobody knows.
    """
    if spec.model is None or spec.recipient is not None or spec.donors or spec.dataset is not None:
        return None
    entry = catalog.entry(spec.model)
    return Truth(plant=entry.plant, decoy=entry.decoy) if entry.plant is not None else None


def check_truth(spec: Spec) -> None:
    """Refuse what only a pair with a plant can answer.

    Raises:
        InputError: The suite compares with the truth, and the pair has none.
    """
    if load_suite(spec.suite).truth and truth_of(spec) is None:
        if spec.dataset is not None:
            raise InputError(
                f"suite {spec.suite!r} is about the facts that were planted: leave out --dataset {spec.dataset}"
            )
        raise InputError(
            f"suite {spec.suite!r} needs a pair whose facts were planted at a known place, and {_name(spec)} is none; {_instead()}"
        )


def planted_models(base: str | None = None) -> tuple[str, ...]:
    """The shipped pairs with a plant.

    Args:
        base: Only those in this pair, whose names begin with its; there may be none.

    Raises:
        InputError: There are none at all.
    """
    if base is not None:
        return tuple(name for name in catalog.plants() if name.startswith(f"{base}."))
    if not (found := catalog.plants()):
        raise InputError(
            "no pair with planted facts is shipped here; give one: --model PATH, as `kgbench zoo build NAME --plant EXPR` makes"
        )
    return found


def localizer_arguments(spec: Spec) -> Mapping[str, str]:
    """The arguments of a specification's localizer, with the truth for one that must be told.

    Raises:
        InputError: It must be told, and the pair has no plant.
    """
    if "truth" not in needs(spec.localizer) or "truth" in spec.localizer_args:
        return spec.localizer_args
    if (truth := truth_of(spec)) is None:
        raise InputError(
            f"localizer {spec.localizer!r} must know where the facts were planted, and in {_name(spec)} none were; {_instead()}"
        )
    graded = catalog.entry(spec.model).truth if spec.model is not None else None
    return {
        **spec.localizer_args,
        "truth": truth.plant,
        **({"graded": graded.relevance_text} if graded is not None else {}),
    }


def _name(spec: Spec) -> str:
    return (
        f"model {spec.model!r}"
        if spec.model is not None and not spec.donors and spec.recipient is None
        else "a pair of checkpoints"
    )


def _instead() -> str:
    known = ", ".join(catalog.plants())
    shipped = f"give --model with one of {known}, or" if known else "give --model"
    return f"{shipped} the path of one that `kgbench zoo build NAME --plant EXPR` made"
