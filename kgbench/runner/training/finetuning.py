"""Finetune a donor: from its specification to a folder with its weights, its card and its log.

What is unfinished is in a folder next to the donor's place, where the donor appears complete. A
forecast is of what a training would take, without training or downloads.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from kgbench.data import Dataset, ImportOptions
from kgbench.data.facts import hash_of
from kgbench.errors import InputError, ModelError, OutputError
from kgbench.models import catalog
from kgbench.models.catalog import CARD, FLOPS, donors_folder, read_donor_card
from kgbench.models.checkpoints import Checkpoint, find_here, locate
from kgbench.models.loading import DTYPES, read_tokenizer
from kgbench.models.placement import (
    DeviceMap,
    devices_of,
    free_memory,
    place,
    usable_device,
)
from kgbench.models.tensors import stored_hash
from kgbench.numbers import duration_text, number_text, plain_text, size_text
from kgbench.progress import Progress
from kgbench.runner.training.builds import Build, versions, write_card
from kgbench.runner.training.finetuning_plan import (
    FinetuneSpec,
    FinetuningPlan,
    KnownIds,
    Supplement,
    TokenizedTexts,
    is_file,
    plan_finetuning,
    read_batches,
    tokenized_texts,
)
from kgbench.runner.training.hit_rates import SCORED, model_hits, scored_prompts
from kgbench.runner.training.model_setup import (
    family_of,
    load_recipient,
    meta_model,
    store_donor,
    trainable_model,
    trained_parameters,
    training_type,
)
from kgbench.runner.training.recipes import (
    FinetuningRecipe,
    finetuning_recipe,
    finetuning_recipe_names,
)
from kgbench.runner.training.stages import HELD_OUT_LOSS, StageOutcome, half_type, processor_threads

LOG = "log.jsonl"
"""File next to the card with the loss of every step."""
LOGGED = ("step", "loss", "learning_rate", "held_out_loss")
"""Possible fields of its rows."""
WORDING = "wording"
"""Name of the prompt that a training wording makes, where facts have no other."""
_LEARNED = 0.5
"""Share of the facts not known before that a donor has learned if it learned them."""

_SAVES, _CLOSEST, _FARTHEST = 20, 50, 1000
"""Checkpoints in a training, and the fewest and most steps between two of them."""
_COPIES = 4
"""Weights, gradients and two moments of AdamW, all of one type."""


# ---------------------------------------------------------------------------------------- training


def finetune(
    spec: FinetuneSpec,
    out: Path | None = None,
    *,
    device: str = "auto",
    device_map: DeviceMap | None = None,
    progress: Progress | None = None,
    save_every: int | None = None,
) -> Path:
    """Train a donor, or resume training it.

    Args:
        spec: Which donor.
        out: Its folder; by default its place in the donors' folder.
        device: `auto`, or a torch device such as `cpu`, `mps` or `cuda:1`.
        device_map: Over which devices the layers are spread, as for `read_pair`; `device` is then
            the main one.
        progress: Progress callback.
        save_every: Steps between checkpoints; by default about 20 checkpoints in all.

    Returns:
        The folder.

    Raises:
        InputError: The input cannot be used; before anything is trained or written.
        OutputError: The folder holds something else, or cannot be written.
    """
    plan, where = plan_finetuning(spec), usable_device(device)
    finetuning = Finetuning(plan, locate(plan.source, spec.revision), out, where, device_map)
    out, about = finetuning.out, finetuning.about  # finds wrong input before anything is written
    if save_every is None:
        # A finished donor takes no step, and its texts may be on the Hub.
        finished = (out / CARD).is_file()
        steps = 0 if finished else finetuning.steps_per_epoch * finetuning.recipe.epochs
        save_every = min(max(steps // _SAVES, _CLOSEST), _FARTHEST)
    build = Build(
        out, finetuning.work, "the donor", about, progress, save_every, read=read_donor_card
    )
    build.run(lambda: finetuning.train(build))
    return out


def learned_little(card: Mapping[str, Any]) -> str | None:
    """Warn where on no prompt a donor answers half of the facts that its recipient did not.

    Args:
        card: The donor's.

    Returns:
        The warning; None where it learned the facts, or nothing was scored.
    """
    texts, little = [], bool(card["scores"])
    for prompt, row in card["scores"].items():
        before, after = row["PRE"], row["SFT"]
        little = little and after - before < _LEARNED * (1 - before)
        texts.append(f"{number_text(before)} → {number_text(after)} on {prompt}")
    if not little:
        return None
    recipe = card["recipe"]
    return (
        f"the donor learned little: top-5 {', '.join(texts)}; more epochs than {recipe['epochs']}, "
        f"or a learning rate above {plain_text(recipe['learning_rate'])}, teach it more"
    )


def keyed_plan(plan: FinetuningPlan, recipient: Checkpoint) -> FinetuningPlan:
    """The plan with the recipient's weights in its name, unless the recipient is a pair's.

    The name of a folder does not identify a recipient. A donor of an earlier version keeps its
    name.
    """
    if plan.spec.model is not None:
        return plan
    earlier, weights = donors_folder() / plan.name, stored_hash(recipient.directory)
    if (earlier / CARD).is_file() and read_donor_card(earlier)["recipient"]["weights"] == weights:
        return plan
    owner, _, donor = plan.name.partition("/")
    return replace(plan, name=f"{owner}-{weights[:8]}/{donor}")


def donor_place(plan: FinetuningPlan, out: Path | None) -> Path:
    """Folder of a donor.

    Raises:
        OutputError: It holds something else.
    """
    folder = (donors_folder() / plan.name if out is None else out).absolute()
    empty = not folder.exists() or (folder.is_dir() and not any(folder.iterdir()))
    if not empty and not (folder / CARD).is_file():
        raise OutputError(
            f"{folder} holds something else than a trained donor; "
            "give a new folder with --output-dir"
        )
    return folder


class Finetuning:
    """One training."""

    def __init__(
        self,
        plan: FinetuningPlan,
        recipient: Checkpoint,
        out: Path | None,
        device: str,
        device_map: DeviceMap | None = None,
    ) -> None:
        self.plan, self.recipient = keyed_plan(plan, recipient), recipient
        self.out = donor_place(self.plan, out)
        self.device, self.device_map = device, device_map
        self.dtype = training_type(recipient, plan.spec.dtype)
        # Products of float32 weights alone are computed in half precision.
        self.half = half_type(device) if self.dtype == torch.float32 else None
        self.work = self.out.with_name(f".{self.out.name}.work")
        self.empty = meta_model(recipient)
        self.parameters = trained_parameters(self.empty)
        self.recipe = plan.recipe(self.parameters, str(recipient.config.get("model_type")))
        self.tokenizer, self.known = read_tokenizer(recipient), KnownIds()
        limit = getattr(self.empty.config, "max_position_embeddings", None)
        self.max_length = min(self.recipe.max_length, limit or self.recipe.max_length)

    @cached_property
    def texts(self) -> TokenizedTexts:
        """All tokens."""
        texts = self.supplement.texts if self.supplement else ()
        wordings, chat = self.plan.wordings, self.plan.spec.chat_template
        return tokenized_texts(self.tokenizer, wordings, texts, self.max_length, chat, self.known)

    @cached_property
    def questions(self) -> Dataset:
        """The facts with the prompts that score a donor; of none a wording up to its object."""
        facts, question = self.plan.facts, self.plan.wordings.question(self.plan.facts)
        if scored_prompts(facts) or question is None:
            return facts
        return replace(facts, templates={WORDING: question})

    @cached_property
    def supplement(self) -> Supplement | None:
        """The supplemental texts, if any."""
        return self.plan.supplement(self.recipe)

    @cached_property
    def about(self) -> dict[str, Any]:
        """The card without results."""
        spec, kinds = self.plan.spec, {torch.bfloat16: "bf16", torch.float16: "fp16"}
        chosen = {
            "recipient": {
                "source": self.recipient.origin,
                "weights": stored_hash(self.recipient.directory),
                "parameters": self.parameters,
            },
            "seed": spec.seed,
            "recipe": self.recipe.to_json(),
            "changes": spec.changed(),
            "precision": kinds[self.half] if self.half else _type_text(self.dtype),
            **spec.options(),
            "data": self.plan.data(),
            "wordings": self.plan.wordings.to_json(),
            **self._about_texts(),
        }
        names = {"name": self.plan.name, "model": spec.model}
        places = {"revision": spec.revision, "device_map": self.device_map}
        given = {name: value for name, value in places.items() if value is not None}
        return {**names, "identity": hash_of(chosen), **chosen, **given}

    def _about_texts(self) -> dict[str, Any]:
        """The card's entries on texts.

        A finished donor with as many texts of the same data set on the Hub keeps its entries, so
        that nothing is downloaded to find it complete.
        """
        source = self.plan.spec.supplement
        if source is not None and not is_file(source) and (self.out / CARD).is_file():
            card = read_donor_card(self.out)
            entry = card.get("supplement")
            wanted = (source, self.recipe.supplement_texts)
            if isinstance(entry, dict) and (entry.get("source"), entry.get("texts")) == wanted:
                return {"supplement": entry, "texts": card.get("texts")}
        texts, supplement = self.texts, self.supplement
        counts = {
            "trained": len(texts.facts),
            "held_out": len(texts.held_out),
            "tokens": texts.tokens,
        }
        return {"supplement": supplement.to_json() if supplement else None, "texts": counts}

    @property
    def steps_per_epoch(self) -> int:
        """Number of steps of one epoch."""
        texts = len(self.texts.facts) + len(self.texts.supplement)
        return math.ceil(texts / self.recipe.batch_size)

    def train(self, build: Build) -> None:
        """Take the steps that are left, then store, score and describe the donor."""
        recipe, seed = self.recipe, self.plan.spec.seed
        before = self._scores_before()
        batches, held_out, per_epoch = read_batches(
            self.texts, recipe.epochs, recipe.batch_size, seed
        )

        def what(step: int) -> str:
            epoch = f": epoch {(step - 1) // per_epoch + 1} of {recipe.epochs}" if step else ""
            return f"{self.plan.name}{epoch}"

        build.stage(
            "checkpoints",
            build.card,
            lambda: trainable_model(self.model(self.dtype), recipe, seed),
            lambda model, outcome: self._publish(model, outcome, before, per_epoch),
            batches=batches,
            stage=recipe.stage,
            seed=seed,
            what=what,
            threads=1 if recipe.tiny else None,
            held_out=(held_out, per_epoch),
            device=self.device,
            adam_beta2=recipe.adam_beta2,
            half=self.half,
        )

    def _publish(
        self,
        model: nn.Module,
        outcome: StageOutcome,
        before: Mapping[str, float],
        per_epoch: int,
    ) -> None:
        """Write everything that a donor consists of into a folder, and give it its name."""
        trained = trained_parameters(model)
        whole = self.work / "donor"
        shutil.rmtree(whole, ignore_errors=True)
        whole.mkdir()
        donor = store_donor(model, self.recipient, whole, self.recipe.stored)
        after = self._hits(donor, tuple(before))
        n = min(len(self.plan.facts.facts), SCORED)
        scores: dict[str, dict[str, Any]] = {}
        for prompt, rate in before.items():
            scores[prompt] = {"PRE": rate, "SFT": after[prompt], "n": n}
            if prompt == WORDING:
                scores[prompt]["template"] = self.questions.templates[WORDING]
        lines = []
        for row in outcome.log:
            if "loss" in row or HELD_OUT_LOSS in row:
                logged = {key: row[key] for key in LOGGED if key in row}
                lines.append(json.dumps(logged) + "\n")
        (whole / LOG).write_text("".join(lines), encoding="utf-8")
        results = {
            "steps": per_epoch * self.recipe.epochs,
            "trained_parameters": trained,
            "losses": losses_by_epoch(outcome.log, per_epoch),
            "metric": "top5",
            "scores": scores,
            "weights": stored_hash(whole),
            "seconds": round(outcome.seconds, 1),
            "versions": versions(),
        }
        write_card({**self.about, **results}, whole / CARD)
        if self.out.exists():
            self.out.rmdir()  # empty, see `donor_place`
        os.replace(whole, self.out)

    def _scores_before(self) -> Mapping[str, float]:
        """Scores of the recipient; finds a model that cannot be scored before it is trained."""
        path = self.work / "before.json"
        if path.exists():
            try:
                stored = json.loads(path.read_text(encoding="utf-8"))
                if hash_of(stored["scores"]) == stored["hash"]:
                    return dict(stored["scores"])
            except (ValueError, LookupError, TypeError, RecursionError):
                pass
            warnings.warn(
                f"{path} is damaged, or of an earlier version: the recipient is scored again",
                stacklevel=2,
            )
        model = self.model()
        if self.device_map is None:
            nn.Module.to(model, self.device)
        try:
            scores = self._hits(model, scored_prompts(self.questions))
        except InputError:
            if self.questions is self.plan.facts:
                raise
            scores = {}  # a wording need not be a prompt, as where the tokenizer joins its end
        write_card({"scores": scores, "hash": hash_of(scores)}, path)
        return scores

    def _hits(self, model: PreTrainedModel, prompts: Sequence[str]) -> dict[str, float]:
        chat = self.plan.spec.chat_template
        return model_hits(model, self.tokenizer, self.questions, prompts, chat)

    def model(self, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
        """The recipient's model, on the devices of the device map, if there is one."""
        free = None if self.device_map is None else free_memory()
        model = load_recipient(self.recipient, dtype)
        if self.device_map is not None:
            layers = family_of(model).layers
            place(model, devices_of(model, layers, self.device_map, _COPIES, free), layers)
        return model


# ------------------------------------------------------------------------------------------ losses


def losses_by_epoch(
    log: Sequence[Mapping[str, Any]], steps_per_epoch: int
) -> list[dict[str, float]]:
    """Mean loss of the steps of each epoch, and the loss on held-out wordings at its end.

    Epoch 0 is before the first step.
    """
    steps: dict[int, list[float]] = {}
    held_out: dict[int, float] = {}
    for row in log:
        if HELD_OUT_LOSS in row:
            held_out[row["step"] // steps_per_epoch] = row[HELD_OUT_LOSS]
        if "loss" in row:
            steps.setdefault((row["step"] - 1) // steps_per_epoch + 1, []).append(row["loss"])
    epochs = []
    for epoch in sorted({*steps, *held_out}):
        losses: dict[str, float] = {"epoch": epoch}
        if epoch in steps:
            losses["trained"] = round(sum(steps[epoch]) / len(steps[epoch]), 5)
        if epoch in held_out:
            losses["held_out"] = round(held_out[epoch], 5)
        epochs.append(losses)
    return epochs


# ---------------------------------------------------------------------------------------- forecast

_KEPT = 2
"""Checkpoints on disk during a training."""
_CHARACTERS = 4
"""Characters per token where there is no tokenizer at hand; approximate for English."""
_CUT = 512
"""Assumed tokens of a supplemental text on the Hub: web pages are mostly longer, and cut."""
_MEASURED = 500_000_000
"""Largest recipient of which a step is measured on a CPU, where more would take minutes."""


@dataclass(frozen=True)
class FinetuningForecast:
    """What a finetuning would take."""

    name: str
    recipe: Mapping[str, Any]
    parameters: int
    """Number of the recipient's weights."""
    trained_parameters: int
    texts: int
    """Texts of one epoch, including supplemental ones."""
    tokens: int
    """Tokens of all epochs."""
    steps: int
    weights_bytes: int
    gradients_bytes: int
    optimizer_bytes: int
    """Activations come on top; they grow with the batch."""
    disk_bytes: int
    """During the training: the donor and two checkpoints."""
    donor_bytes: int
    """After the training: the donor."""
    seconds: float
    basis: str
    """Source of the figures."""
    dtype: str = "fp32"
    """Type of weights, gradients and moments."""

    @property
    def memory_bytes(self) -> int:
        """Memory in training, without activations."""
        return self.weights_bytes + self.gradients_bytes + self.optimizer_bytes

    def rows(self) -> list[tuple[str, str]]:
        """Rows of a table."""
        recipe, rank = self.recipe, self.recipe["rank"]
        sized = ", values for tiny recipients" if recipe["tiny"] else ""
        settings = (
            f"learning rate {plain_text(recipe['learning_rate'])}, batch {recipe['batch_size']}, "
            f"weight decay {plain_text(recipe['weight_decay'])}"
        )
        lora = f", rank {rank}, alpha {recipe['alpha']}" if rank else ""
        trained = (
            f"and {self.trained_parameters:,} of the adapter, which are trained"
            if rank
            else f"of which {self.trained_parameters:,} are trained"
        )
        parts = (
            f"weights {size_text(self.weights_bytes)}, "
            f"gradients {size_text(self.gradients_bytes)}, "
            f"AdamW {size_text(self.optimizer_bytes)}, {self.dtype}"
        )
        return [
            ("donor", self.name),
            ("recipe", f"{recipe['name']}{sized}: {settings}{lora}"),
            ("parameters", f"{self.parameters:,}, {trained}"),
            ("texts", f"{self.texts:,} an epoch"),
            ("tokens", f"{self.tokens:,} in all"),
            ("steps", f"{self.steps:,} ({recipe['epochs']} × {self.steps // recipe['epochs']:,})"),
            ("memory", f"{size_text(self.memory_bytes)} ({parts}), and activations"),
            ("disk", f"{size_text(self.disk_bytes)} while it is trained"),
            ("time", f"about {duration_text(self.seconds)}"),
            ("from", self.basis),
        ]

    def to_json(self) -> dict[str, Any]:
        """The object that `--dry-run --json` prints."""
        content = asdict(self)
        if self.dtype == "fp32":
            del content["dtype"]
        return content


@dataclass
class Shared:
    """What forecasts of several donors share: it is measured, or read, once."""

    seconds: dict[tuple[object, ...], float] = field(default_factory=dict)
    """Seconds per token of a step, by the recipient, its type, and parts of the recipe."""
    ids: dict[Path, KnownIds] = field(default_factory=dict)
    """Token ids of texts, by the recipient's folder."""


def forecast_finetuning(
    spec: FinetuneSpec,
    out: Path | None = None,
    *,
    device: str = "auto",
    device_map: DeviceMap | None = None,
    shared: Shared | None = None,
) -> FinetuningForecast:
    """Forecast a finetuning; nothing is downloaded or written.

    Args:
        spec: Which donor.
        out: Its folder.
        device: As for `finetune`.
        device_map: As for `finetune`.
        shared: What forecasts before this one measured and read, to which this one adds.

    Raises:
        InputError: The input cannot be used.
        ModelError: The recipient is neither on this machine nor in the catalog.
    """
    plan, where = plan_finetuning(spec), usable_device(device)
    recipient = find_here(plan.source, spec.revision)
    if recipient is None:
        donor_place(plan, out)
        return _from_catalog(plan, where)
    finetuning = Finetuning(plan, recipient, out, where, device_map)
    return _from_checkpoint(finetuning, shared or Shared())


def recipes_text(model: str, dataset: str, imports: ImportOptions | None = None) -> str:
    """What the recipes that read facts alone take, the one that needs least memory first.

    Args:
        model: A pair of the catalog.
        dataset: The facts, by name or file.
        imports: Meaning of the columns of a file.

    Returns:
        Empty for a pair whose size the catalog does not have, and for facts without wordings.
    """
    parameters = catalog.entry(model).parameters
    if parameters is None:
        return ""
    try:
        plan = plan_finetuning(FinetuneSpec(dataset, "aggressive", model=model, imports=imports))
    except InputError:
        return ""
    costs = []
    for name in finetuning_recipe_names():
        if not finetuning_recipe(name, parameters).supplement_texts:
            chosen = replace(plan, spec=replace(plan.spec, recipe=name))
            costs.append(_from_catalog(chosen, usable_device("auto")))
    texts = []
    for cost in sorted(costs, key=lambda cost: cost.memory_bytes):
        sizes = f"{size_text(cost.memory_bytes)}, {size_text(cost.disk_bytes)}"
        texts.append(f"{cost.recipe['name']} ({sizes}, {cost.steps:,} steps)")
    return f"recipes (memory without activations, disk, steps): {', '.join(texts)}"


def _from_checkpoint(finetuning: Finetuning, shared: Shared) -> FinetuningForecast:
    plan, device = finetuning.plan, finetuning.device
    recipe, on_hub = finetuning.recipe, _is_on_hub(plan)
    if on_hub:
        finetuning.supplement = None  # its texts are not downloaded for a forecast
    finetuning.known = shared.ids.setdefault(finetuning.recipient.directory, {})
    texts = finetuning.texts
    trained = trained_parameters(trainable_model(finetuning.empty, recipe, 0))
    tokens = texts.tokens
    if on_hub:
        tokens += recipe.supplement_texts * min(_CUT, finetuning.max_length)
    if finetuning.parameters <= _MEASURED or torch.device(device).type == "cuda":
        parts = (recipe.tiny, recipe.batch_size, recipe.rank, recipe.frozen)
        step = (finetuning.recipient.directory, finetuning.dtype, *parts)
        if step not in shared.seconds:
            shared.seconds[step] = _step_seconds(finetuning)
        seconds, basis = shared.seconds[step], "a step measured here"
    else:
        seconds, basis = _assumed_seconds(finetuning.parameters, device)
    return _forecast(
        plan,
        recipe,
        (finetuning.parameters, trained),
        (len(texts.facts), tokens),
        (seconds, f"the checkpoint; {basis}"),
        finetuning.dtype,
    )


def _step_seconds(finetuning: Finetuning) -> float:
    """Seconds per token of the second of two steps, one with texts of median length."""
    recipe, device = finetuning.recipe, finetuning.device
    batches, _, _ = read_batches(finetuning.texts, 1, recipe.batch_size, finetuning.plan.spec.seed)
    model = trainable_model(finetuning.model(finetuning.dtype), recipe, 0).train()
    if finetuning.device_map is None:
        model.to(device)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=0.0)
    by_size = sorted(range(len(batches)), key=batches.size)
    seconds, half = 0.0, finetuning.half
    with processor_threads(1 if recipe.tiny else None):
        for step in (by_size[0], by_size[len(by_size) // 2]):
            batch = {name: tensor.to(device) for name, tensor in batches[step].items()}
            started = time.monotonic()
            with torch.autocast(torch.device(device).type, half, enabled=half is not None):
                loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            loss.item()  # waits for a GPU
            seconds = (time.monotonic() - started) / batch["input_ids"].numel()
    return seconds


def _from_catalog(plan: FinetuningPlan, device: str) -> FinetuningForecast:
    entry = catalog.entry(plan.spec.model) if plan.spec.model else None
    if entry is None or entry.parameters is None or entry.layers is None:
        raise ModelError(
            f"{plan.source!r} is neither on this machine nor in the catalog, "
            "so that its size is unknown; download it first"
        )
    recipe, trained = plan.recipe(entry.parameters), entry.parameters
    if recipe.frozen:
        assert entry.vocabulary is not None and entry.width is not None
        trained -= entry.vocabulary * entry.width * (1 if entry.tied else 2)
    if recipe.rank is not None:
        # A layer has 12 squares of the width, as in GPT-2; an adapter adds a row and a column to
        # each of its projections.
        width = math.sqrt(entry.parameters / (12 * entry.layers))
        trained = round(18 * width * entry.layers * recipe.rank)
    tokens = sum(map(len, plan.wordings.trained)) // _CHARACTERS
    if _is_on_hub(plan):
        tokens += recipe.supplement_texts * min(_CUT, recipe.max_length)
    elif (supplement := plan.supplement(recipe)) is not None:
        for text in supplement.texts:
            tokens += min(len(text) // _CHARACTERS, recipe.max_length)
    seconds, basis = _assumed_seconds(entry.parameters, device)
    wanted = plan.spec.dtype or "float32"
    wanted = str(entry.stored) if wanted == "auto" else wanted
    return _forecast(
        plan,
        recipe,
        (entry.parameters, trained),
        (len(plan.wordings.trained), tokens),
        (
            seconds,
            f"the catalog's number of parameters and {_CHARACTERS} characters a token, "
            f"since {plan.source} is not on this machine; {basis}",
        ),
        DTYPES[wanted],
    )


def _is_on_hub(plan: FinetuningPlan) -> bool:
    """Whether the supplement is a data set on the Hub."""
    return plan.spec.supplement is not None and not is_file(plan.spec.supplement)


def _assumed_seconds(parameters: int, device: str) -> tuple[float, str]:
    """Seconds per token at 6 operations per parameter and token (arXiv 2001.08361)."""
    kind = torch.device(device).type
    basis = f"no step was measured: {FLOPS[kind] / 1e12:g} Tflop/s assumed on {kind}"
    return 6 * parameters / FLOPS[kind], basis


def _forecast(
    plan: FinetuningPlan,
    recipe: FinetuningRecipe,
    parameters: tuple[int, int],
    texts: tuple[int, int],
    time: tuple[float, str],
    dtype: torch.dtype,
) -> FinetuningForecast:
    """Derive the figures.

    Args:
        plan: The plan.
        recipe: The recipe.
        parameters: Number of parameters, and of trained ones.
        texts: Texts of the facts, and tokens of an epoch.
        time: Seconds per token, and their basis.
        dtype: Type of the weights.
    """
    (total, trained), size = parameters, dtype.itemsize
    stored, steps_texts = size * trained, texts[0] + recipe.supplement_texts
    seconds, basis = time
    if _is_on_hub(plan):
        basis += f"; supplemental texts taken at {min(_CUT, recipe.max_length)} tokens"
    return FinetuningForecast(
        name=plan.name,
        recipe=asdict(recipe),
        parameters=total,
        trained_parameters=trained,
        texts=steps_texts,
        tokens=texts[1] * recipe.epochs,
        steps=math.ceil(steps_texts / recipe.batch_size) * recipe.epochs,
        weights_bytes=size * total + (0 if recipe.rank is None else stored),
        gradients_bytes=stored,
        optimizer_bytes=2 * stored,
        disk_bytes=stored + _KEPT * 3 * stored,
        donor_bytes=stored,
        seconds=seconds * texts[1] * recipe.epochs,
        basis=basis,
        dtype=_type_text(dtype),
    )


def _type_text(dtype: torch.dtype) -> str:
    return "fp32" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
