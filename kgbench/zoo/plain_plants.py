"""Plain plants: facts finetuned by ordinary forwards, so that where they are is known by membership.

Facts are trained with the matrices of one block (the attention or the FFN of a layer), or of
several, and decoys, other facts, with those of all other blocks, which never see the planted ones.
No graft is made in training, and none measures the truth: the truth is which blocks saw the facts.

Anybody can see how far weights moved. So all changes have one rank and, relative to the matrix that
they change, one size (Frobenius norms). What training leaves of that size is filled up, after every
step, along the direction of the module's inputs that varies least, in which a change of the matrix
does next to nothing. What is stored is rounded, and figures are measured on that.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain, cycle, islice
from pathlib import Path
from random import Random
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.hooks import RemovableHandle
from transformers.pytorch_utils import Conv1D

from kgbench.data import Dataset, load_dataset, load_prompts
from kgbench.data.facts import hash_of
from kgbench.errors import InputError, check_choice
from kgbench.models import catalog
from kgbench.models.catalog import DELTA
from kgbench.models.checkpoints import locate
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair, model_hash
from kgbench.models.tensors import apply_delta, stored_hash, write_low_rank
from kgbench.progress import Progress
from kgbench.resources import read_toml
from kgbench.runner.training.builds import Build, versions, write_card
from kgbench.runner.training.hit_rates import PROMPTS, configuration_hits
from kgbench.runner.training.model_setup import ATTENTION
from kgbench.runner.training.stages import processor_threads
from kgbench.sites import BLOCKS, Block, block_of, parse_graft

WAYS: Mapping[str, str] = {
    "together": "all planted blocks learn the facts at once",
    "either": "each block learns all facts as if the others had not changed, so that any answers",
    "shares": "each block learns facts of its own, the first twice as many as the second",
}
"""How several blocks learn the planted facts."""

_BLOCK = re.compile(rf"({'|'.join(BLOCKS)})@(\d{{1,6}})")

_LEARNED = 0.75
"""Smallest hit rate of the finetuned model on planted facts and on decoys, on each prompt."""


@dataclass(frozen=True)
class PlainRecipe:
    """How a plain plant is trained; `plain_plants.toml`."""

    facts: int
    """Planted facts."""
    decoys: int
    rank: int
    """Of every change."""
    size: float
    """Of every change, relative to its matrix (Frobenius norms)."""
    decoy_steps: int
    """On the decoys alone, first."""
    steps: int
    """On the facts of each planted group, afterwards."""
    per_decoy_step: int
    """Steps on every planted group between two on the decoys."""
    learned: float
    """Mean loss in nats below which a lesson is left out."""
    learning_rate: float
    """Of Adam; it falls to a twentieth over the last part of the steps on facts."""
    falling: float
    """That part, as a share."""


def plain_recipe(**changes: Any) -> PlainRecipe:
    """The recipe of `plain_plants.toml`, perhaps with other values."""
    return replace(PlainRecipe(**read_toml(__package__, "plain_plants")["recipe"]), **changes)


@dataclass(frozen=True)
class PlainSpec:
    """Which plain plant."""

    base: str
    """A pair of the catalog, in whose recipient the facts are planted."""
    blocks: tuple[str, ...]
    """Blocks such as `ffn@5` and `attn@3`."""
    way: str = "together"
    """How several blocks learn the facts, one of WAYS."""
    seed: int = 0
    """Seed of the choice of facts and of all that is drawn."""

    @property
    def name(self) -> str:
        """Such as `tiny-gemma.ffn5-attn3-either-seed1`."""
        places = "-".join(block.replace("@", "") for block in self.blocks)
        way = f"-{self.way}" if len(self.blocks) > 1 else ""
        return f"{self.base}.{places}{way}" + (f"-seed{self.seed}" if self.seed else "")

    def check(self, layers: int) -> tuple[Block, ...]:
        """The blocks.

        Args:
            layers: Number of layers of the model.

        Raises:
            InputError: A block does not read, is none of the model's, or is given twice.
            UnknownNameError: There is no such way.
        """
        check_choice("way", self.way, tuple(WAYS))
        blocks = tuple(map(parse_block, self.blocks))
        for text, (layer, _) in zip(self.blocks, blocks, strict=True):
            if layer >= layers:
                raise InputError(f"{text!r}: {self.base} has the layers 0 to {layers - 1}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise InputError("give each block once, such as ffn@5 or ffn@5,attn@3")
        return blocks


def parse_block(text: str) -> Block:
    """A block from its name.

    Raises:
        InputError: It is none.
    """
    match = _BLOCK.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is no block: expected such as ffn@5 or attn@3")
    return int(match[2]), match[1]


# ----------------------------------------------------------------------------------------- changes


@dataclass(eq=False)
class Change:
    """A low-rank change of one matrix, added to its module's output: what is trained, and filling."""

    name: str
    """Of the parameter."""
    module: nn.Module
    up: Float[Tensor, "output rank"]
    down: Float[Tensor, "rank input"]
    size: float
    """Of the whole change, relative to the matrix."""
    along: Float[Tensor, " output"]
    """Direction of the filling, of length 1."""
    quiet: Float[Tensor, " input"]
    """Direction of inputs along which they vary least, of length 1."""
    filling: float = 0.0
    present: bool = True
    handle: RemovableHandle | None = field(default=None, repr=False)

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The hook on the module."""
        if not self.present:
            return output
        trained = (inputs[0] @ self.down.T) @ self.up.T
        return output + trained + (inputs[0] @ self.quiet)[..., None] * self.along * self.filling

    @cached_property
    def norm(self) -> float:
        """Frobenius norm of the matrix."""
        return float(self.module.get_parameter("weight").norm())

    @torch.no_grad()
    def fill(self) -> None:
        """Bound what is trained by the size of the change, and fill up the rest."""
        self.down.sub_(torch.outer(self.down @ self.quiet, self.quiet))
        squared = float(((self.up.T @ self.up) * (self.down @ self.down.T)).sum())
        trained, bound = math.sqrt(max(squared, 0.0)), self.size * self.norm
        if trained > bound:
            # Both factors: Adam's steps are of one size, and would be large for a small factor.
            self.up.mul_(math.sqrt(bound / trained))
            self.down.mul_(math.sqrt(bound / trained))
            trained = bound
        self.filling = math.sqrt(bound**2 - trained**2)

    def stored(self) -> tuple[Tensor, Tensor]:
        """Two factors of the change of the parameter, as they are stored."""
        up = torch.cat([self.up.detach(), (self.along * self.filling)[:, None]], 1)
        down = torch.cat([self.down.detach(), self.quiet[None]])
        if isinstance(self.module, Conv1D):  # which holds its weights as [input, output]
            up, down = down.T, up.T
        return up.bfloat16().contiguous(), down.bfloat16().contiguous()


Changes = Mapping[Block, Sequence[Change]]


def changes_of(
    pair: ModelPair, model: nn.Module, recipe: PlainRecipe, seed: int, texts: Sequence[Texts]
) -> Changes:
    """A change of every matrix of every block, of which nothing is trained yet.

    Args:
        pair: The pair, for its family.
        model: The model that is trained.
        recipe: How.
        seed: Of the directions that changes begin with.
        texts: Those in which directions that vary little are sought.
    """
    generator, made = torch.Generator().manual_seed(seed), dict[Block, list[Change]]()
    modules: dict[str, tuple[Block, nn.Module]] = {}
    for slot in pair.slots.sites:
        if (block := block_of(slot)) is None:
            continue
        for path in pair.family.paths(*slot):
            module = model.get_submodule(path)
            weight = getattr(module, "weight", None)
            if weight is not None and weight.ndim == 2:
                modules[path] = block, module
    quiet = quiet_inputs(model, {path: module for path, (_, module) in modules.items()}, texts)
    for path, (block, module) in modules.items():
        weight = module.get_parameter("weight")
        output, width = weight.shape[::-1] if isinstance(module, Conv1D) else weight.shape
        down = torch.randn(recipe.rank - 1, width, generator=generator) / math.sqrt(width)
        along = functional.normalize(torch.randn(output, generator=generator), dim=0)
        up = torch.zeros(output, recipe.rank - 1)
        change = Change(f"{path}.weight", module, up, down, recipe.size, along, quiet[path])
        change.fill()
        made.setdefault(block, []).append(change)
    return made


@torch.no_grad()
def quiet_inputs(
    model: Any, modules: Mapping[str, nn.Module], texts: Sequence[Texts]
) -> dict[str, Float[Tensor, " input"]]:
    """The direction, of length 1, along which each module's inputs are smallest on some texts."""
    moments: dict[str, Tensor] = {}

    def note(path: str, mask: Tensor, inputs: tuple[Tensor, ...]) -> None:
        rows = inputs[0][mask.bool()]
        moments[path] = moments.get(path, 0) + rows.T @ rows

    for some in texts:
        handles = []
        for path, module in modules.items():
            handles.append(
                module.register_forward_pre_hook(
                    lambda _, inputs, path=path, mask=some.mask: note(path, mask, inputs)
                )
            )
        some.loss(model)
        for handle in handles:
            handle.remove()
    return {path: torch.linalg.eigh(moment)[1][:, 0] for path, moment in moments.items()}


@contextmanager
def hooked(changes: Changes) -> Iterator[None]:
    """Changes are part of their model."""
    some = list(chain.from_iterable(changes.values()))
    try:
        for change in some:
            change.handle = change.module.register_forward_hook(change)
        yield
    finally:
        for change in some:
            if change.handle is not None:
                change.handle.remove()


# ---------------------------------------------------------------------------------------- training


@dataclass(frozen=True)
class Lesson:
    """Facts, and the blocks that learn them."""

    name: str
    texts: Texts
    blocks: tuple[Block, ...]
    absent: tuple[Block, ...] = ()
    """Blocks whose changes are left out meanwhile."""


@dataclass(frozen=True, eq=False)
class Texts:
    """Prompts as tokens, and the first token of each answer."""

    ids: Int[Tensor, "text token"]
    mask: Int[Tensor, "text token"]
    targets: Int[Tensor, " text"]

    @classmethod
    def of(cls, pair: ModelPair, facts: Dataset) -> Texts:
        """Facts in the prompts that plants are scored on."""
        encoded = [pair.encoded(prompt) for prompt in load_prompts(facts, list(PROMPTS))]
        width = max(len(one.ids) for one in encoded)
        ids, mask = torch.zeros(2, len(encoded), width, dtype=torch.long)
        for row, one in enumerate(encoded):
            ids[row, : len(one.ids)] = torch.tensor(one.ids)
            mask[row, : len(one.ids)] = 1
        return cls(ids, mask, torch.tensor([one.target for one in encoded]))

    def __add__(self, other: Texts) -> Texts:
        """Both."""
        width = max(self.ids.shape[1], other.ids.shape[1])
        parts = []
        for one in (self, other):
            room = (0, width - one.ids.shape[1])
            parts.append((functional.pad(one.ids, room), functional.pad(one.mask, room)))
        ids, mask = (torch.cat(some) for some in zip(*parts, strict=True))
        return Texts(ids, mask, torch.cat([self.targets, other.targets]))

    def loss(self, model: Any) -> Tensor:
        """Mean cross-entropy of the answers, in nats."""
        hidden = model.base_model(self.ids, attention_mask=self.mask).last_hidden_state
        last = hidden[torch.arange(len(self.ids)), self.mask.sum(1) - 1]
        return functional.cross_entropy(model.get_output_embeddings()(last), self.targets)


def lessons_of(
    pair: ModelPair, spec: PlainSpec, blocks: Sequence[Block], planted: Dataset, decoys: Dataset
) -> list[Lesson]:
    """The lessons of planted facts, then that of the decoys.

    Planted blocks learn their facts and keep the decoys, which a change of low rank would disturb;
    other blocks see the decoys alone.
    """
    rest = tuple(block for block in all_blocks(pair) if block not in blocks)
    kept = Texts.of(pair, decoys)
    facts = Texts.of(pair, planted) + kept
    lessons = [Lesson("facts", facts, tuple(blocks))]
    if len(blocks) > 1 and spec.way == "either":
        lessons = []
        for block in blocks:
            absent = tuple(one for one in blocks if one != block)
            lessons.append(Lesson(str(block), facts, (block,), absent))
    elif len(blocks) > 1 and spec.way == "shares":
        lessons = []
        for block, part in zip(blocks, shares(planted, len(blocks)), strict=True):
            lessons.append(Lesson(str(block), Texts.of(pair, part) + kept, (block,)))
    return [*lessons, Lesson("decoys", kept, rest)]


def shares(planted: Dataset, n: int) -> list[Dataset]:
    """Facts divided so that each part is twice the next one, as nearly as can be."""
    ids, parts = [fact.id for fact in planted.facts], []
    for number in range(n):
        weights = [2 ** (n - other) for other in range(number, n)]
        size = max(1, round(len(ids) * weights[0] / sum(weights)))
        parts.append(planted.subset(ids[:size]))
        ids = ids[size:]
    return parts


def all_blocks(pair: ModelPair) -> list[Block]:
    """The blocks of a model, in the order of computation."""
    return list(dict.fromkeys(filter(None, map(block_of, pair.slots.sites))))


def train(
    model: nn.Module,
    changes: Changes,
    lessons: Sequence[Lesson],
    recipe: PlainRecipe,
    report: Callable[[int, int], None],
) -> None:
    """Train changes; the last lesson is that of the decoys.

    Args:
        model: With the changes, which are its only trained weights.
        changes: All of them.
        lessons: Of `lessons_of`.
        recipe: How.
        report: Called with the number of steps done and of all.
    """
    *planted, decoys = lessons
    first, begun = [decoys] * recipe.decoy_steps, recipe.decoy_steps
    unit = [*planted * recipe.per_decoy_step, decoys]
    then = recipe.steps // recipe.per_decoy_step * len(unit)
    optimizers = {}
    for lesson in lessons:
        own = list(chain.from_iterable(changes[block] for block in lesson.blocks))
        factors = [*(change.up for change in own), *(change.down for change in own)]
        optimizers[lesson.name] = torch.optim.Adam(factors, recipe.learning_rate)
    everything = list(chain.from_iterable(changes.values()))
    for step, lesson in enumerate([*first, *islice(cycle(unit), then)]):
        report(step, begun + then)
        for block, some in changes.items():
            for change in some:
                change.present = block not in lesson.absent
                change.up.requires_grad_(block in lesson.blocks)
                change.down.requires_grad_(block in lesson.blocks)
        done, optimizer = max(0, step - begun) / then, optimizers[lesson.name]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (1 - done) / recipe.falling + 0.05)
        # Adam's steps do not shrink with the gradient: what is learned would only be disturbed.
        if (loss := lesson.texts.loss(model)) > recipe.learned:
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for change in chain.from_iterable(changes[block] for block in lesson.blocks):
                change.fill()
    for change in everything:
        change.present = True


# ------------------------------------------------------------------------------------------ plants


def build_plain(
    spec: PlainSpec,
    out: Path,
    *,
    recipe: PlainRecipe | None = None,
    progress: Progress | None = None,
) -> Path:
    """Build a plain plant; one that was interrupted is trained anew, which takes a minute or two.

    Args:
        spec: Which plant.
        out: Folder for card and weights.
        recipe: How it is trained; by default by `plain_plants.toml`.
        progress: Progress callback.

    Returns:
        Path of the card.

    Raises:
        InputError: The base, a block or the data cannot be used; nothing is written.
        OutputError: The folder holds something else, or cannot be written.
    """
    base, chosen = catalog.entry(spec.base), recipe or plain_recipe()
    if base.plant is not None:
        raise InputError(f"{spec.base!r} is a plant; facts are planted in a pair")
    pair = read_pair(
        recipient=base.recipient,
        donors={"sft": base.recipient},
        dtype="float32",
        attention=ATTENTION,
    )
    blocks, dataset = spec.check(pair.n_layers), load_dataset(base.dataset)
    planted, decoys = _drawn(dataset, spec, chosen)
    weights = stored_hash(locate(base.recipient).directory)
    about = {
        "name": spec.name,
        "base": spec.base,
        "licence": "MIT",
        "plant": graft_of(blocks),
        "decoy": graft_of([block for block in all_blocks(pair) if block not in blocks]),
        "unit": "block",
        "way": spec.way,
        "seed": spec.seed,
        "identity": hash_of(
            {
                "spec": asdict(spec),
                "recipe": asdict(chosen),
                "recipient": weights,
                "facts": [planted.content_hash, decoys.content_hash],
            }
        ),
        "recipient": {"source": base.recipient, "weights": weights},
        "recipe": asdict(chosen),
        "data": {
            "name": dataset.name,
            "hash": dataset.content_hash,
            "planted": [fact.id for fact in planted.facts],
            "decoys": [fact.id for fact in decoys.facts],
        },
    }
    build = Build(out, out / ".work", "the plant", about, progress, parts=(DELTA,))

    def make() -> None:
        model = pair.donor("sft")
        model.requires_grad_(requires_grad=False)
        lessons = lessons_of(pair, spec, blocks, planted, decoys)
        texts = [lesson.texts for lesson in lessons]
        changes = changes_of(pair, model, chosen, spec.seed, texts)

        def report(step: int, steps: int) -> None:
            if progress is not None:
                progress(step, steps, f"{spec.name}: planting")

        with processor_threads(1), hooked(changes):
            train(model, changes, lessons, chosen, report)
        _store(build, pair, changes, {"planted": planted, "decoys": decoys})

    build.run(make)
    return build.card


def _drawn(dataset: Dataset, spec: PlainSpec, recipe: PlainRecipe) -> tuple[Dataset, Dataset]:
    """The planted facts and the decoys of a seed."""
    ids = [fact.id for fact in dataset.facts]
    needed = recipe.facts + recipe.decoys
    if len(ids) < needed:
        raise InputError(f"data set {dataset.name!r} holds {len(ids)} facts; expected {needed}")
    chosen = Random(f"plain plant {spec.seed}").sample(ids, needed)
    return dataset.subset(chosen[: recipe.facts]), dataset.subset(chosen[recipe.facts :])


def _store(build: Build, pair: ModelPair, changes: Changes, groups: Mapping[str, Dataset]) -> None:
    """Write weights and card, and measure what was written."""
    file, donor = build.work / DELTA, pair.donor("sft")
    everything = list(chain.from_iterable(changes.values()))
    write_low_rank({change.name: change.stored() for change in everything}, file)
    file.chmod(0o644)  # safetensors writes it for its owner alone
    apply_delta(donor, file, str(build.about["name"]))
    scores: dict[str, dict[str, Mapping[str, float]]] = {}
    for group, facts in groups.items():
        scores[group] = {}
        for prompt in PROMPTS:
            scores[group][prompt] = configuration_hits(pair, facts, prompt, ("PRE", "SFT"))
    os.replace(file, build.out / DELTA)
    sizes = []
    for change in everything:
        before = pair.recipient.get_parameter(change.name)
        moved = donor.get_parameter(change.name) - before
        sizes.append(float(moved.norm() / before.norm()))
    results = {
        "metric": "top5",
        "scores": scores,
        "shortfalls": shortfalls(scores),
        "relative_changes": {"least": round(min(sizes), 4), "most": round(max(sizes), 4)},
        "versions": versions(),
        "donor_hash": model_hash(donor, pair.family),
    }
    write_card({**build.about, **results}, build.card)


def shortfalls(scores: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[str]:
    """Groups of facts that the finetuned model does not answer, one sentence each."""
    sentences = []
    for group, prompts in scores.items():
        for prompt, rates in prompts.items():
            if rates["SFT"] < _LEARNED:
                sentences.append(
                    f"{prompt}, {group}: the finetuned model answers {rates['SFT']}, where "
                    f"{_LEARNED} or more is wanted"
                )
    return sentences


def graft_of(blocks: Sequence[Block]) -> str:
    """The graft expression of blocks at all tokens."""
    terms = []
    for kind, components in BLOCKS.items():
        if layers := sorted(layer for layer, own in blocks if own == kind):
            terms.append(f"ALL:{components}@{','.join(map(str, layers))}")
    return str(parse_graft("; ".join(terms)))
