"""How facts are planted: ordinary finetuning in which each block learns the facts that it is given.

Facts are trained with the matrices of one block (the attention or the FFN of a layer), or of
several, and decoys, other facts, with those of all other blocks, which never see the planted ones.
No graft is made in training, and none measures the truth: the truth is which blocks saw the facts.

Anybody can see how far weights moved. So all changes have the same singular values, relative to the
matrix that they change: one is that of a fixed direction, the others are equal. What training
leaves of these is filled up, after every step, along directions of the module's inputs in which
they hardly vary, and which the matrix reads no less than others. With A B what is trained (A:
outputs, B: inputs), E = A (A'A)^-1/2 and C = (A'A)^1/2, the change is

    s f g' + E (C B + G Q),    G = (a² 1 - C B B' C)^1/2

with s and a the singular values, f and g random unit vectors, and Q orthonormal directions in which
inputs hardly vary; A is orthogonal to f, and B to g and Q. Where inputs hardly vary along g either,
it does next to nothing (*quiet*); where they vary much (*loud*), all blocks change what the others
read. Facts of loud plants are learned by changes that read only directions which inputs have in the
changed model, and hardly in the base: put into the base, their block does nothing. So do facts of
some tokens, such as the first entity, are learned by changes that read only directions which inputs
have at these tokens, and hardly at others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, cycle, islice
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional
from transformers.pytorch_utils import Conv1D

from kgbench.data import Dataset, load_prompts
from kgbench.models.pair import ModelPair
from kgbench.runner.training.hit_rates import PROMPTS
from kgbench.sites import Block, block_of, parse_graft

WAYS: Mapping[str, str] = {
    "together": "all planted blocks learn the facts at once",
    "either": "each block learns all facts as if the others had not changed, so that any answers",
    "shares": "each block learns facts of its own, the first twice as many as the second",
}
"""How several blocks learn the planted facts."""

FILLINGS: Mapping[str, tuple[float, float] | None] = {"quiet": None, "loud": (0.87, 0.93)}
"""Eigenvectors of inputs' second moments among which the fixed direction of a change is drawn, as
shares of all in the order of how far inputs vary along them; None where it is as the others are.
"""

READING = 1.0
"""How far filled directions are read by the matrix that they change, where a random one is read 1."""

SMALL = 0.1
"""Of what is trained, at first."""

READ, CONFINED = 24, 10
"""Directions of inputs that changes which are confined may read, and after how many steps they are
sought again.
"""


@dataclass(frozen=True)
class Recipe:
    """How a plant is trained; `plants.toml`."""

    facts: int
    """Planted facts."""
    decoys: int
    rank: int
    """Of every change."""
    changed: int
    """Blocks that change, the planted ones among them; 0 for all."""
    size: float
    """Of every change, relative to its matrix (Frobenius norms)."""
    fixed: float
    """Share of the fixed direction in the square of the size."""
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

    @property
    def sizes(self) -> tuple[float, float]:
        """Singular values of every change, of the fixed direction and of each other."""
        others = self.size * math.sqrt((1 - self.fixed) / (self.rank - 1))
        return self.size * math.sqrt(self.fixed), others


# ----------------------------------------------------------------------------------------- changes


@dataclass(eq=False)
class Change:
    """A low-rank change of one matrix, added to its module's output: what is trained, and filling."""

    name: str
    """Of the parameter."""
    module: nn.Module
    up: Float[Tensor, "output rank"]
    down: Float[Tensor, "rank input"]
    sizes: tuple[float, float]
    """Singular values, of the fixed direction and of each other, relative to the matrix's norm."""
    along: Float[Tensor, "output 1"]
    """The fixed direction of outputs."""
    across: Float[Tensor, "some input"]
    """Orthonormal directions of inputs: the fixed one, then those that are filled up."""
    read: Float[Tensor, "input some"] | None = None
    """Orthonormal directions of inputs that what is trained may read; None for all."""
    filling: Float[Tensor, "output rank"] | None = None
    present: bool = True

    def __call__(self, _: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        """The hook on the module."""
        if not self.present or self.filling is None:
            return output
        return output + self.trained(inputs[0]) + inputs[0] @ self.across.T @ self.filling.T

    def trained(self, inputs: Float[Tensor, "... input"]) -> Float[Tensor, "... output"]:
        """What the trained part adds to the module's output."""
        return (inputs @ self.down.T) @ self.up.T

    @cached_property
    def singular(self) -> tuple[float, float]:
        """The singular values."""
        norm = float(self.module.get_parameter("weight").norm())
        return self.sizes[0] * norm, self.sizes[1] * norm

    @torch.no_grad()
    def fill(self) -> None:
        """Bound what is trained by the singular values of the change, and fill up the rest."""
        if self.read is not None:
            self.down.copy_(self.down @ self.read @ self.read.T)
        self.down.sub_(self.down @ self.across.T @ self.across)
        self.up.sub_(self.along @ (self.along.T @ self.up))
        fixed, most = self.singular
        basis, root = self.polar()
        trained = (root @ self.down).cpu()
        largest = float(torch.linalg.matrix_norm(trained, 2))
        if largest > most:
            # Both factors: Adam's steps are of one size, and would be large for a small factor.
            self.up.mul_(math.sqrt(most / largest))
            self.down.mul_(math.sqrt(most / largest))
            trained *= most / largest
        rest = most**2 * torch.eye(len(trained)) - trained @ trained.T
        self.filling = torch.cat([self.along * fixed, basis @ _root(rest).to(basis)], 1)

    def polar(self) -> tuple[Float[Tensor, "output rank"], Float[Tensor, "rank rank"]]:
        """Orthonormal directions of the outputs that change, and the rest of the factor `up`."""
        # Of a few rows and columns, which an accelerator is slow at.
        root = _root((self.up.T @ self.up).cpu())
        return self.up @ torch.linalg.inv(root).to(self.up), root.to(self.up)

    @torch.no_grad()
    def stored(self) -> tuple[Tensor, Tensor]:
        """Two factors of the change of the parameter, as they are stored."""
        assert self.filling is not None
        basis, root = self.polar()
        trained = torch.cat([torch.zeros_like(self.down[:1]), root @ self.down])
        up = torch.cat([self.along, basis], 1)
        down = trained + up.T @ self.filling @ self.across
        if isinstance(self.module, Conv1D):  # which holds its weights as [input, output]
            up, down = down.T, up.T
        return up.cpu().bfloat16().contiguous(), down.cpu().bfloat16().contiguous()


def _root(matrix: Float[Tensor, "n n"]) -> Float[Tensor, "n n"]:
    """The symmetric root of a symmetric matrix without negative eigenvalues but for rounding."""
    values, vectors = torch.linalg.eigh(matrix)
    root: Tensor = vectors @ torch.diag(values.clamp(min=0).sqrt()) @ vectors.T
    return root


Changes = Mapping[Block, Sequence[Change]]


def changes_in(changes: Changes, blocks: Iterable[Block]) -> list[Change]:
    """The changes of some blocks."""
    return list(chain.from_iterable(changes[block] for block in blocks))


def changes_of(
    pair: ModelPair,
    model: nn.Module,
    recipe: Recipe,
    filling: str,
    seed: int,
    texts: Sequence[Texts],
    blocks: Collection[Block],
) -> Changes:
    """A change of every matrix of some blocks, of which nothing is trained yet.

    Args:
        pair: The pair, for its family.
        model: The model that is trained.
        recipe: How.
        filling: How changes are filled up, one of FILLINGS.
        seed: Of what changes begin with.
        texts: Those in which directions of inputs are sought.
        blocks: Those that change.
    """
    generator, made = torch.Generator().manual_seed(seed), dict[Block, list[Change]]()
    modules: dict[str, tuple[Block, nn.Module]] = {}
    for slot in pair.slots.sites:
        if (block := block_of(slot)) is None or block not in blocks:
            continue
        for path in pair.family.paths(*slot):
            module = model.get_submodule(path)
            weight = getattr(module, "weight", None)
            if weight is not None and weight.ndim == 2:
                modules[path] = block, module
    own = {path: module for path, (_, module) in modules.items()}
    across = directions(model, own, texts, filling, recipe.rank, generator)
    for path, (block, module) in modules.items():
        weight = module.get_parameter("weight")
        output, width = matrix_of(module).shape
        drawn = torch.linalg.qr(torch.randn(output, recipe.rank, generator=generator))[0]
        along, up = drawn[:, :1].contiguous(), drawn[:, 1:].contiguous()
        down = torch.randn(recipe.rank - 1, width, generator=generator) * (SMALL / math.sqrt(width))
        up, down, along = (part.to(weight.device) for part in (up, down, along))
        change = Change(f"{path}.weight", module, up, down, recipe.sizes, along, across[path])
        change.fill()
        made.setdefault(block, []).append(change)
    return made


@torch.no_grad()
def directions(
    model: Any,
    modules: Mapping[str, nn.Module],
    texts: Sequence[Texts],
    filling: str,
    n: int,
    generator: torch.Generator,
) -> dict[str, Float[Tensor, "some input"]]:
    """Orthonormal directions of each module's inputs: a fixed one, then those in which they hardly vary.

    Args:
        model: The model.
        modules: By path.
        texts: What the model reads.
        filling: One of FILLINGS, of the fixed direction.
        n: Number of directions.
        generator: Of the draw, so that modules with the same inputs have other directions.
    """
    among = FILLINGS[filling]
    moments: dict[str, Tensor] = {}
    for some in texts:
        for path, rows in inputs_of(model, modules, some, some.mask.bool()).items():
            moments[path] = moments.get(path, 0) + rows.T @ rows
    made = {}
    for path, moment in moments.items():
        vectors, mixed = torch.linalg.eigh(moment)[1], []
        if among is not None:
            some = vectors[:, slice(*(round(share * len(moment)) for share in among))]
            mixed.append(some @ torch.randn(some.shape[1], 1, generator=generator).to(some))
        weight = matrix_of(modules[path])
        drawn = torch.randn(len(weight), n - len(mixed), generator=generator).to(weight)
        mixed.append(quiet(vectors, weight) @ drawn)
        made[path] = torch.linalg.qr(torch.cat(mixed, 1))[0].T.contiguous()
    return made


def matrix_of(module: nn.Module) -> Float[Tensor, "output input"]:
    """The matrix of a module, whichever way it is stored."""
    weight = module.get_parameter("weight").detach()
    return weight.T if isinstance(module, Conv1D) else weight


def quiet(
    vectors: Float[Tensor, "input input"], weight: Float[Tensor, "output input"]
) -> Float[Tensor, "input output"]:
    """What a matrix reads, in the directions along which inputs vary least.

    A random combination of its columns is such a direction, and is read by the matrix about READING
    times as far as a random direction is: how far a change reads what its matrix reads would else
    tell what is trained from what is filled up. As few directions are taken as are needed.

    Args:
        vectors: Of inputs' second moments, by how far inputs vary along them.
        weight: The matrix.
    """
    usual = weight.square().sum() / len(vectors)
    for eighths in range(1, 9):
        some = vectors[:, : math.ceil(eighths * len(vectors) / 8)]
        read = weight @ some
        square = read.T @ read
        if square.square().sum() >= READING**2 * usual * square.trace():
            break
    return some @ read.T


@torch.no_grad()
def inputs_of(
    model: Any, modules: Mapping[str, nn.Module], texts: Texts, tokens: Bool[Tensor, "text token"]
) -> dict[str, Float[Tensor, "inside input"]]:
    """Inputs of modules at some tokens."""
    read: dict[str, Tensor] = {}
    with ExitStack() as hooks:
        for path, module in modules.items():

            def note(_: nn.Module, inputs: tuple[Tensor, ...], path: str = path) -> None:
                read[path] = inputs[0][tokens]

            hooks.callback(module.register_forward_pre_hook(note).remove)
        texts.loss(model)
    return read


Rows = tuple[dict[str, Tensor], dict[str, Tensor]]
"""Inputs by the name of the change, where what is trained may act and where it may not."""


def inside_and_outside(
    model: Any, changes: Sequence[Change], texts: Texts, base: Any | None = None
) -> Rows:
    """Inputs of each changed module at the tokens of planted facts, and at all others.

    Args:
        model: The model, with its changes as they are.
        changes: Those of planted blocks.
        texts: Of a lesson, which say which tokens are inside.
        base: The unchanged model, where inputs in that are outside, and all in the model inside.
    """
    modules = {change.name: change.module for change in changes}
    whole = texts.mask.bool()
    if base is None:
        outside = inputs_of(model, modules, texts, whole & ~texts.inside)
        return inputs_of(model, modules, texts, texts.inside), outside
    bare = {name: base.get_submodule(name.removesuffix(".weight")) for name in modules}
    return inputs_of(model, modules, texts, whole), inputs_of(base, bare, texts, whole)


@torch.no_grad()
def confine(changes: Sequence[Change], rows: Rows) -> None:
    """Let changes read only directions that inputs have inside, and hardly outside.

    They are spanned by the generalized eigenvectors of both second moments with the largest
    quotients, so that along none of them the quotient is smaller.

    Args:
        changes: Those of planted blocks.
        rows: Of `inside_and_outside`.
    """
    for change in changes:
        # In single precision the smallest eigenvalues are rounding, and may be below 0.
        inside, outside = (part[change.name].double() for part in rows)
        moment = outside.T @ outside / len(outside)
        moment.diagonal().add_(1e-4 * moment.diagonal().mean())
        inverse = torch.linalg.inv(torch.linalg.cholesky(moment))
        quotients = inverse @ (inside.T @ inside / len(inside)) @ inverse.T
        vectors = inverse.T @ torch.linalg.eigh(quotients)[1][:, -READ:]
        change.read = torch.linalg.qr(vectors)[0].to(change.down)
        change.fill()


@torch.no_grad()
def leak(changes: Sequence[Change], rows: Rows) -> float:
    """The largest size of what a change adds outside, relative to inside (root mean squares)."""
    sizes = []
    for change in changes:
        inside, outside = (
            change.trained(part[change.name]).square().sum(1).mean().sqrt() for part in rows
        )
        sizes.append(float(outside / inside))
    return max(sizes)


@contextmanager
def hooked(changes: Changes) -> Iterator[None]:
    """Changes are part of their model."""
    with ExitStack() as hooks:
        for change in changes_in(changes, changes):
            hooks.callback(change.module.register_forward_hook(change).remove)
        yield


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
    weights: Float[Tensor, " text"]
    """Of the texts in the loss; they sum to 1."""
    inside: Bool[Tensor, "text token"]
    """Tokens at which facts are planted."""

    @classmethod
    def of(cls, pair: ModelPair, facts: Dataset, tokens: str = "ALL") -> Texts:
        """Facts in the prompts that plants are scored on.

        Args:
            pair: The pair.
            facts: The facts.
            tokens: Expression of the tokens at which facts are planted.
        """
        encoded = [pair.encoded(prompt) for prompt in load_prompts(facts, list(PROMPTS))]
        positions = parse_graft(tokens).terms[0].positions
        width = max(len(one.ids) for one in encoded)
        ids, mask, inside = torch.zeros(3, len(encoded), width, dtype=torch.long)
        for row, one in enumerate(encoded):
            n = len(one.ids)
            ids[row, :n], mask[row, :n] = torch.tensor(one.ids), 1
            inside[row, list(positions.tokens(one.regions, n))] = 1
        targets = torch.tensor([one.target for one in encoded])
        weights = torch.full((len(encoded),), 1 / len(encoded))
        parts = (ids, mask, targets, weights, inside.bool())
        return cls(*(part.to(pair.device) for part in parts))

    def beside(self, other: Texts, share: float) -> Texts:
        """Both, these with a share of the loss."""
        width = max(self.ids.shape[1], other.ids.shape[1])

        def joined(name: str) -> Tensor:
            parts = [getattr(one, name) for one in (self, other)]
            return torch.cat([functional.pad(part, (0, width - part.shape[1])) for part in parts])

        weights = torch.cat([self.weights * share, other.weights * (1 - share)])
        targets = torch.cat([self.targets, other.targets])
        return Texts(joined("ids"), joined("mask"), targets, weights, joined("inside"))

    def loss(self, model: Any) -> Float[Tensor, ""]:
        """Cross-entropy of the answers in nats, the weighted mean of the parts' means."""
        hidden = model.base_model(self.ids, attention_mask=self.mask).last_hidden_state
        last = hidden[torch.arange(len(self.ids), device=hidden.device), self.mask.sum(1) - 1]
        logits = model.get_output_embeddings()(last)
        return functional.cross_entropy(logits, self.targets, reduction="none") @ self.weights


def lessons_of(
    pair: ModelPair,
    way: str,
    blocks: Sequence[Block],
    planted: Dataset,
    decoys: Dataset,
    rest: Sequence[Block],
    tokens: str = "ALL",
) -> list[Lesson]:
    """The lessons of planted facts, then that of the decoys.

    Planted blocks learn their facts and keep the decoys, which a change of low rank would disturb;
    other blocks see the decoys alone.

    Args:
        pair: The pair.
        way: How several blocks learn the facts, one of WAYS.
        blocks: The planted ones.
        planted: Their facts.
        decoys: The facts of all others.
        rest: Those others.
        tokens: Expression of the tokens at which facts are planted.
    """
    kept = Texts.of(pair, decoys, tokens)
    share = len(planted.facts) / (len(planted.facts) + len(decoys.facts))
    lessons = []
    if len(blocks) > 1 and way == "shares":
        for block, part in zip(blocks, shares(planted, len(blocks)), strict=True):
            own = Texts.of(pair, part, tokens).beside(kept, share)
            lessons.append(Lesson(str(block), own, (block,)))
    else:
        facts = Texts.of(pair, planted, tokens).beside(kept, share)
        if len(blocks) > 1 and way == "either":
            for block in blocks:
                absent = tuple(one for one in blocks if one != block)
                lessons.append(Lesson(str(block), facts, (block,), absent))
        # Two that each answer alone may spoil each other's answer in the whole model.
        lessons.append(Lesson("facts", facts, tuple(blocks)))
    return [*lessons, Lesson("decoys", kept, tuple(rest))]


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
    recipe: Recipe,
    report: Callable[[int, int], None],
    confined: Callable[[Lesson], None] | None = None,
) -> None:
    """Train changes; the last lesson is that of the decoys.

    Args:
        model: With the changes, which are its only trained weights.
        changes: All of them.
        lessons: Of `lessons_of`.
        recipe: How.
        report: Called with the number of steps done and of all.
        confined: Confines the changes of a lesson's blocks as inputs are by now; None for all.
    """
    *planted, decoys = lessons
    begun, learned = recipe.decoy_steps, 0
    unit = [*planted * recipe.per_decoy_step, decoys]
    then = recipe.steps // recipe.per_decoy_step * len(unit)
    optimizers = {}
    for lesson in lessons:
        own = changes_in(changes, lesson.blocks)
        factors = [*(change.up for change in own), *(change.down for change in own)]
        optimizers[lesson.name] = torch.optim.Adam(factors, recipe.learning_rate)
    for step, lesson in enumerate([*[decoys] * begun, *islice(cycle(unit), then)]):
        report(step, begun + then)
        if learned >= len(unit):  # nothing would change any more
            break
        if confined is not None and step % CONFINED == 0:  # inputs move with the changes below
            for each in planted:
                confined(each)
        for block, some in changes.items():
            for change in some:
                change.present = block not in lesson.absent
                change.up.requires_grad_(block in lesson.blocks)
                change.down.requires_grad_(block in lesson.blocks)
        done, optimizer = max(0, step - begun) / then, optimizers[lesson.name]
        for group in optimizer.param_groups:
            group["lr"] = recipe.learning_rate * min(1.0, (1 - done) / recipe.falling + 0.05)
        # Adam's steps do not shrink with the gradient: what is learned would only be disturbed.
        learned += step >= begun
        if (loss := lesson.texts.loss(model)) > recipe.learned:
            learned = 0
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            for change in changes_in(changes, lesson.blocks):
                change.fill()
    for change in changes_in(changes, changes):
        change.present = True
