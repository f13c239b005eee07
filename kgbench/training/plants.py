"""Build a plant: facts finetuned into named weights at named tokens, so that one knows where they are.

A build may be interrupted at any time and goes on from its last checkpoint when it is asked for again. The card is written last, so that
a directory which holds a card is complete.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from random import Random

from kgbench.data import Dataset, load_dataset
from kgbench.errors import InputError, OutputError
from kgbench.models.catalog import CARD, DELTA
from kgbench.models.checkpoints import locate
from kgbench.models.delta import apply_delta, stored_hash, write_delta
from kgbench.models.pair import ModelPair, load_pair
from kgbench.sites import parse_graft
from kgbench.training.cards import read_card, write_card
from kgbench.training.plant_cards import add_results, make_plant_card
from kgbench.training.plant_objective import Planting
from kgbench.training.plant_recipes import PlantRecipe, PlantSpec, plant_recipe, trained_slots
from kgbench.training.plant_scores import score_plant
from kgbench.training.plant_texts import TextBatches, told
from kgbench.training.plant_truth import truth_card
from kgbench.training.plant_weights import PlantedWeights
from kgbench.training.stages import Run, train

__all__ = ["SAVE_EVERY", "Report", "build_plant"]

SAVE_EVERY = 100
"""Steps between checkpoints; tens of seconds."""

Report = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""


def build_plant(
    spec: PlantSpec,
    out: Path,
    *,
    recipe: PlantRecipe | None = None,
    progress: Report | None = None,
    save_every: int = SAVE_EVERY,
) -> Path:
    """Make a plant, or finish making it.

    Args:
        spec: Which plant.
        out: Directory for card and weights; new, or one in which the same build was begun.
        recipe: How it is trained; by default as the shipped plants are.
        progress: Called after every step.
        save_every: Steps between checkpoints.

    Returns:
        Path of the card.

    Raises:
        GraftSyntaxError: An expression does not parse.
        InputError: An expression, the base or its data do not do; nothing is written.
        OutputError: The directory holds something else, or cannot be written.
    """
    canonical = replace(
        spec,
        plant=str(parse_graft(spec.plant)),
        decoy=str(parse_graft(spec.decoy)) if spec.decoy else None,
    )
    canonical.check()
    started = _Build(
        canonical, recipe or plant_recipe(canonical.decoy is not None, canonical.level), out
    )
    try:
        if not started.is_done():
            started.begin()
            started.grow(progress, save_every)
        shutil.rmtree(started.work, ignore_errors=True)
    except OSError as error:
        raise OutputError(
            f"cannot write the plant to {out}: {error.strerror or error}; give another directory"
        ) from error
    return started.path


class _Build:
    """One build; between interruptions, nothing but its directory is remembered."""

    def __init__(self, spec: PlantSpec, recipe: PlantRecipe, out: Path) -> None:
        base = spec.check()
        self.spec, self.recipe, self.out = spec, recipe, out
        self.work, self.path = out / ".work", out / CARD
        whole = load_dataset(base.dataset)
        self.groups = _groups(whole, recipe.facts, spec.decoy is not None)
        self.place = locate(base.recipient)
        self.pair = _pair(base.recipient)
        self.slots = trained_slots(self.pair, spec.grafts())
        self.texts = [told(self.pair, facts) for facts in self.groups.values()]
        self.model = Planting(self.pair, spec, self.texts)
        recipient = {"source": base.recipient, "weights": stored_hash(self.place.directory)}
        self.card = make_plant_card(spec, recipe, recipient, self.groups, whole)

    def is_done(self) -> bool:
        """Whether the card of this very build is there."""
        if not self.path.exists():
            return False
        card = read_card(self.path)
        if card["identity"] != self.card["identity"]:
            raise OutputError(
                f"{self.out} holds something else ({card.get('name')}, seed {card['seed']}) or the same made in another way; "
                f"give a new directory for {self.spec.name}, seed {self.spec.seed}"
            )
        return True

    def begin(self) -> None:
        """Take the directory, or take up what was begun in it."""
        mark = self.work / "identity"
        if mark.exists():
            if mark.read_text(encoding="utf-8", errors="replace") != self.card["identity"]:
                raise OutputError(
                    f"{self.out} holds the beginning of another build; remove {self.work} or give a new directory"
                )
            return
        if self.work.exists() or (self.out / DELTA).exists():
            raise OutputError(
                f"{self.out} holds files but no card that says of what; give a new directory"
            )
        self.work.mkdir(parents=True)
        partial = mark.with_name("identity.partial")
        partial.write_text(str(self.card["identity"]), encoding="utf-8")
        os.replace(partial, mark)

    def grow(self, progress: Report | None, save_every: int) -> None:
        """Train, measure, and write weights and card."""
        weights = PlantedWeights(self.pair, self.slots)
        batches = TextBatches.draw(
            self.texts,
            self.recipe.rounds,
            self.recipe.batch_size,
            Random(f"plant {self.spec.seed}"),
        )
        after = self._after_step(weights, len(batches), progress)
        run = Run(self.work / "checkpoints", self.spec.seed, save_every, after)
        seconds = train(self.model, batches, self.recipe.stage, run)
        donor = self.pair.donor("sft").requires_grad_(requires_grad=False)
        write_delta(self.pair.recipient, donor, self.work / DELTA)
        (self.work / DELTA).chmod(0o644)  # weights are written for their owner only
        donor.load_state_dict(self.pair.recipient.state_dict())
        apply_delta(donor, self.work / DELTA, self.spec.name)  # what is measured is what is stored
        scores = score_plant(self.pair, self.groups, self.spec)
        os.replace(self.work / DELTA, self.out / DELTA)
        truth = truth_card(self.pair, self.groups["planted"], self.spec.plant)
        write_card(
            {**add_results(self.card, self.spec, scores, weights, seconds), "truth": truth},
            self.path,
        )

    def _after_step(
        self, weights: PlantedWeights, total: int, progress: Report | None
    ) -> Callable[[int], None]:
        what, size = f"{self.spec.name}: planting", self.recipe.relative_change
        growth = max(1.0, self.recipe.growth * total)

        def after(step: int) -> None:
            if size is not None:
                weights.rescale(size * min(1.0, step / growth))
            if progress is not None:
                progress(step, total, what)

        return after


def _groups(whole: Dataset, size: int, decoys: bool) -> Mapping[str, Dataset]:
    """The first facts as planted ones, the next as decoys."""
    ids = [fact.id for fact in whole.facts]
    wanted = size * (1 + decoys)
    if len(ids) < wanted:
        raise InputError(
            f"data set {whole.name!r} holds {len(ids)} facts; expected {wanted}, {size} to plant{' and as many decoys' * decoys}"
        )
    groups = {"planted": ids[:size], **({"decoys": ids[size:wanted]} if decoys else {})}
    return {name: whole.subset(part) for name, part in groups.items()}


def _pair(source: str) -> ModelPair:
    """A recipient and a donor that starts as its copy, both in fp32."""
    # Scaled-dot-product kernels are slow backwards in bf16 on CPUs; sequences are short.
    return load_pair(recipient=source, donors={"sft": source}, dtype="float32", attention="eager")
