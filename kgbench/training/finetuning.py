"""Finetune a donor: from a plan to a folder with its weights, its card and the log of its training.

A training may be interrupted at any time, and the same call goes on from its last checkpoint. What is unfinished lies in a folder of its
own beside the place of the donor, which appears there whole.
"""

from __future__ import annotations

import json
import os
import shutil
import warnings
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from safetensors import SafetensorError
from torch import nn

from kgbench.errors import InputError, OutputError
from kgbench.models.catalog import CARD
from kgbench.models.checkpoints import Checkpoint, locate
from kgbench.models.delta import stored_hash
from kgbench.models.pair import read_tokenizer
from kgbench.models.trained import donors_folder, read_donor_card
from kgbench.training import finetuning_models as models
from kgbench.training.cards import hash_of, versions, write_card
from kgbench.training.finetuning_plan import FinetuneSpec, Plan, make_plan
from kgbench.training.finetuning_supplement import Supplement, is_file
from kgbench.training.finetuning_texts import Reading, read_batches, tokenized
from kgbench.training.finetuning_validation import HeldOut, losses_by_epoch
from kgbench.training.stages import Outcome, Run, arguments, run_steps

__all__ = ["LOG", "Finetuning", "Report", "donor_place", "finetune", "keyed"]

LOG = "log.jsonl"
"""The loss of every step, beside the card."""
LOGGED = ("step", "loss", "learning_rate", "held_out_loss")
"""What its rows have, as far as it was logged."""

Report = Callable[[int, int, str], None]
"""Called with the steps done, the steps in all, and what is being done."""

_SAVES, _CLOSEST, _FARTHEST = 20, 50, 1000
"""Checkpoints in a training, and the fewest and most steps between two of them."""


def finetune(
    spec: FinetuneSpec,
    out: Path | None = None,
    *,
    device: str = "auto",
    progress: Report | None = None,
    save_every: int | None = None,
) -> Path:
    """Make a donor, or finish making it.

    Args:
        spec: Which donor.
        out: Its folder; new, or one for which the same was begun. By default its place in the donors' folder.
        device: auto, cpu, cuda or mps.
        progress: Called after every step.
        save_every: Steps between checkpoints; by default some twenty in all.

    Returns:
        The folder.

    Raises:
        InputError: Something is wrong with what was given, told before anything is trained.
        OutputError: The folder holds something else, or cannot be written.
    """
    plan, where = make_plan(spec), models.usable_device(device)
    recipient = locate(plan.source)
    plan = keyed(plan, recipient)
    place = donor_place(plan, out)
    begun = Finetuning(plan, recipient, place, where)
    try:
        _ = begun.about  # wrong input is told before anything is written
        place.parent.mkdir(parents=True, exist_ok=True)
        lock = begun.work.with_suffix(".lock")
        with FileLock(lock, timeout=0):
            if not begun.is_done():
                begun.begin()
                begun.train(progress, save_every)
            shutil.rmtree(begun.work, ignore_errors=True)
        lock.unlink(missing_ok=True)
    except Timeout as error:
        raise OutputError(
            f"{place} is being trained by another process; wait for it, or give another --output-dir"
        ) from error
    except torch.OutOfMemoryError as error:
        raise InputError(
            f"the memory of {begun.device} is too small for this: give a smaller --batch-size or --recipe lora"
        ) from error
    except SafetensorError as error:  # as on a full disk
        raise OutputError(
            f"cannot write the donor to {place}: {error}; make room, or give another --output-dir"
        ) from error
    except OSError as error:
        raise OutputError(
            f"cannot write the donor to {place}: {error.strerror or error}; give another --output-dir"
        ) from error
    return place


def keyed(plan: Plan, recipient: Checkpoint) -> Plan:
    """The plan with the name under which its donor is kept, which is an earlier version's where that has made it."""
    before = donors_folder() / plan.name
    if plan.spec.model is not None:
        return plan
    weights = stored_hash(recipient.directory)
    if (before / CARD).is_file() and read_donor_card(before)["recipient"]["weights"] == weights:
        return plan
    return plan.keyed(weights)


def donor_place(plan: Plan, out: Path | None) -> Path:
    """Where a donor goes.

    Raises:
        OutputError: Something else is there.
    """
    place = (donors_folder() / plan.name if out is None else out).absolute()
    if (
        place.exists()
        and not (place / CARD).is_file()
        and (not place.is_dir() or any(place.iterdir()))
    ):
        raise OutputError(
            f"{place} holds something else than a trained donor; give a new folder with --output-dir"
        )
    return place


class Finetuning:
    """One training; between interruptions, nothing but its work folder is remembered."""

    def __init__(self, plan: Plan, recipient: Checkpoint, out: Path, device: str) -> None:
        self.plan, self.recipient, self.out, self.device = plan, recipient, out, device
        self.work = out.with_name(f".{out.name}.work")
        self.machine = models.machine(device)
        empty = models.empty_model(recipient)
        self.parameters = models.trainable(empty)
        self.recipe = plan.recipe(self.parameters, str(recipient.config.get("model_type")))
        self.tokenizer = read_tokenizer(recipient)
        self.most = min(
            self.recipe.max_length, models.reads_at_most(empty) or self.recipe.max_length
        )

    @cached_property
    def reading(self) -> Reading:
        """All tokens."""
        texts = self.supplement.texts if self.supplement else ()
        return tokenized(self.tokenizer, self.plan.wordings, texts, self.most)

    @cached_property
    def supplement(self) -> Supplement | None:
        """The supplemental texts, where there are any."""
        return self.plan.supplement(self.recipe)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The card without what comes out: all that is chosen."""
        chosen = {
            "recipient": {
                "source": self.recipient.origin,
                "weights": stored_hash(self.recipient.directory),
                "parameters": self.parameters,
            },
            "seed": self.plan.spec.seed,
            "recipe": self.recipe.to_json(),
            "changes": self.plan.spec.changed(),
            "precision": next(
                (kind for kind in ("bf16", "fp16") if self.machine.get(kind)), "fp32"
            ),
            "data": self.plan.data(),
            "wordings": self.plan.wordings.to_json(),
            **self._texts(),
        }
        return {
            "name": self.plan.name,
            "model": self.plan.spec.model,
            "identity": hash_of(chosen),
            **chosen,
        }

    def _texts(self) -> dict[str, Any]:
        """What a card says of the texts; that of a finished donor with this many texts of this data set on the Hub tells what they were."""
        source = self.plan.spec.supplement
        if source is not None and not is_file(source) and (self.out / CARD).is_file():
            card = read_donor_card(self.out)
            said = card.get("supplement")
            if isinstance(said, dict) and (said.get("source"), said.get("texts")) == (
                source,
                self.recipe.supplement_texts,
            ):
                return {"supplement": said, "texts": card.get("texts")}
        reading, supplement = self.reading, self.supplement
        counted = {
            "trained": len(reading.facts),
            "held_out": len(reading.held_out),
            "tokens": reading.tokens,
        }
        return {"supplement": supplement.to_json() if supplement else None, "texts": counted}

    def is_done(self) -> bool:
        """Whether this very donor is there."""
        if not (self.out / CARD).exists():
            return False
        card = read_donor_card(self.out)
        if card["identity"] != self.about["identity"]:
            raise OutputError(
                f"{self.out} holds {card.get('name')}, trained in another way (other: {_differing(card, self.about)}); remove it, "
                "or give a new folder with --output-dir"
            )
        if stored_hash(self.out) != card["weights"]:
            raise OutputError(
                f"the weights in {self.out} are not those of its card: changed, or cut off; remove the folder"
            )
        return True

    def begin(self) -> None:
        """Take the work folder, or take up what was begun in it."""
        mark, identity = self.work / "identity", str(self.about["identity"])
        if self.work.exists():
            if not mark.is_file() or mark.read_text(encoding="utf-8", errors="replace") != identity:
                raise OutputError(
                    f"{self.work} holds the beginning of another training; remove it, or give a new folder with --output-dir"
                )
            return
        partial = self.work.with_name(f"{self.work.name}.partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        (partial / mark.name).write_text(identity, encoding="utf-8")
        os.replace(partial, self.work)

    def train(self, progress: Report | None, save_every: int | None) -> None:
        """Take the steps that are left, then store, score and describe the donor."""
        before = self._scores_before()
        batches, held_out, per_epoch = read_batches(
            self.reading, self.recipe.epochs, self.recipe.batch_size, self.plan.spec.seed
        )
        model = models.adapted(
            models.load_recipient(self.recipient), self.recipe, self.plan.spec.seed
        )
        run = Run(
            self.work / "checkpoints",
            self.plan.spec.seed,
            save_every or min(max(len(batches) // _SAVES, _CLOSEST), _FARTHEST),
            self._on_step(progress, len(batches), per_epoch),
            threads=1 if self.recipe.tiny else None,
            callbacks=(HeldOut(held_out, per_epoch),),
        )
        how = arguments(
            self.recipe.stage, run, **self.machine, adam_beta2=self.recipe.adam_beta2,
            logging_strategy="steps", logging_steps=1, logging_nan_inf_filter=False,
        )  # fmt: skip
        trained = models.trainable(model)
        outcome = run_steps(model, batches, how, run)
        self._publish(
            model, outcome, {"before": before, "per_epoch": per_epoch, "trained": trained}
        )

    def _publish(self, model: nn.Module, outcome: Outcome, found: Mapping[str, Any]) -> None:
        """Write all that a donor is into a folder, and give it its name."""
        whole = self.work / "donor"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        donor = models.store(model, self.recipient, whole)
        prompts = tuple(found["before"])
        after = models.score(donor, self.tokenizer, self.plan.facts, prompts)
        n = min(len(self.plan.facts.facts), models.SCORED)
        rows = [
            {key: row[key] for key in LOGGED if key in row}
            for row in outcome.log
            if "loss" in row or "held_out_loss" in row
        ]
        (whole / LOG).write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        results = {
            "steps": found["per_epoch"] * self.recipe.epochs,
            "trained_parameters": found["trained"],
            "losses": losses_by_epoch(outcome.log, found["per_epoch"]),
            "metric": "top5",
            "scores": {
                prompt: {"PRE": found["before"][prompt], "SFT": after[prompt], "n": n}
                for prompt in prompts
            },
            "weights": stored_hash(whole),
            "seconds": round(outcome.seconds, 1),
            "versions": versions(),
        }
        write_card({**self.about, **results}, whole / CARD)
        if self.out.exists():
            self.out.rmdir()  # empty, see `donor_place`
        os.replace(whole, self.out)

    def _scores_before(self) -> Mapping[str, float]:
        """Scores of the recipient; a model that cannot be scored is found here, before it is trained."""
        path = self.work / "before.json"
        known = _guarded(path)
        if known is None:
            prompts, model = (
                models.scored_prompts(self.plan.facts),
                models.load_recipient(self.recipient),
            )
            known = dict(
                models.score(
                    nn.Module.to(model, self.device), self.tokenizer, self.plan.facts, prompts
                )
            )
            write_card({"scores": known, "hash": hash_of(known)}, path)
        return known

    def _on_step(
        self, progress: Report | None, total: int, per_epoch: int
    ) -> Callable[[int], None] | None:
        if progress is None:
            return None
        progress(0, total, self.plan.name)
        return lambda step: progress(
            step,
            total,
            f"{self.plan.name}: epoch {(step - 1) // per_epoch + 1} of {self.recipe.epochs}",
        )


def _guarded(path: Path) -> dict[str, Any] | None:
    """Scores that were kept with their hash; None where there are none, or they are damaged."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        if hash_of(found["scores"]) == found["hash"]:
            return dict(found["scores"])
    except (ValueError, LookupError, TypeError, RecursionError):
        pass
    warnings.warn(
        f"{path} is damaged, or of an earlier version: the recipient is scored again", stacklevel=2
    )
    return None


def _differing(card: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    """Names of what was chosen in another way."""
    recipes = [
        f"recipe's {key}"
        for key, value in ours["recipe"].items()
        if card["recipe"].get(key) != value
    ]
    rest = [
        key
        for key, value in ours.items()
        if key not in ("identity", "name", "recipe", "changes") and card.get(key) != value
    ]
    return ", ".join(recipes + rest)
