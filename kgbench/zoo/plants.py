"""Plants: pairs whose donor learned facts in known blocks; drawn, trained, measured and stored."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from safetensors.torch import save_file
from torch import Tensor

from kgbench.api import Trained
from kgbench.data import Dataset, load_dataset
from kgbench.data.facts import hash_of
from kgbench.errors import InputError, UnknownNameError, check_choice, python_names
from kgbench.models import catalog
from kgbench.models.catalog import DELTA, read_pair_card
from kgbench.models.checkpoints import locate
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair, model_hash
from kgbench.models.placement import usable_device
from kgbench.models.tensors import DOWN, UP, apply_delta, stored_hash
from kgbench.progress import Progress, with_progress
from kgbench.resources import read_toml
from kgbench.runner.training.hit_rates import PROMPTS, configuration_hits
from kgbench.runner.training.model_setup import ATTENTION
from kgbench.runner.training.resumable_build import Build, versions, write_card
from kgbench.runner.training.stages import processor_threads
from kgbench.sites import BLOCKS, Block, parse_graft
from kgbench.zoo.planting import (
    FILLINGS,
    WAYS,
    Change,
    Changes,
    Lesson,
    Recipe,
    Rows,
    all_blocks,
    changes_in,
    changes_of,
    confine,
    hooked,
    inside_and_outside,
    leak,
    lessons_of,
    train,
)

_BLOCK = re.compile(rf"({'|'.join(BLOCKS)})@(\d{{1,6}})")

TOKENS = ("ALL", "FE", "LT")
"""Tokens at which facts can be planted."""

_LEARNED = 0.75
"""Smallest hit rate of the finetuned model on planted facts and on decoys, on each prompt."""

_LEAK = 0.25
"""Largest size of what a confined change adds to its module's output at other tokens, or in the base,
relative to where it may act (root mean squares).
"""


@cache
def _tables() -> Mapping[str, Any]:
    return read_toml(__package__, "plants")


def recipe_of(base: str, filling: str = "quiet", way: str = "together", **changes: Any) -> Recipe:
    """The recipe of plants in a pair by filling and way, perhaps with other values."""
    tables, values = _tables(), dict[str, Any]()
    for name in ("recipe", filling, way, base):
        values |= tables.get(name, {})
    return Recipe(**{**values, **changes})


def levels() -> Mapping[str, Mapping[str, Any]]:
    """The levels of the benchmark: what each is about, kinds of blocks, way and filling."""
    tables: Mapping[str, Mapping[str, Any]] = _tables()["levels"]
    return tables


@dataclass(frozen=True)
class PlantSpec:
    """Which plant."""

    base: str
    """A pair of the catalog, in whose recipient the facts are planted."""
    blocks: tuple[str, ...] = ()
    """Blocks such as `ffn@5` and `attn@3`; drawn where a level is given."""
    way: str = "together"
    """How several blocks learn the facts, one of WAYS."""
    filling: str = "quiet"
    """How changes are filled up, one of FILLINGS."""
    tokens: str = "ALL"
    """At which tokens facts are planted: all, the first entity (FE) or the last token (LT)."""
    seed: int = 0
    """Seed of the choice of facts, of the blocks of a level and of all that is drawn."""
    level: str | None = None

    @classmethod
    def of_level(cls, base: str, level: str, seed: int = 0) -> PlantSpec:
        """A plant of a level of the benchmark.

        Raises:
            UnknownNameError: There is no such level.
        """
        check_choice("level", level, levels())
        table = levels()[level]
        ways = {name: table[name] for name in ("way", "filling", "tokens") if name in table}
        return cls(base, **ways, seed=seed, level=level)

    @property
    def name(self) -> str:
        """Such as `tiny-gemma.one-loud-3`, or of own blocks `tiny-gemma.ffn5-attn3-either-seed1`."""
        if self.level is not None:
            return f"{self.base}.{self.level}-{self.seed}"
        words = [block.replace("@", "") for block in self.blocks]
        words += [self.way] * (len(self.blocks) > 1) + ["loud"] * (self.filling == "loud")
        words += [self.tokens.lower()] * (self.tokens != "ALL")
        words += [f"seed{self.seed}"] * (self.seed > 0)
        return f"{self.base}.{'-'.join(words)}"

    @property
    def random(self) -> Random:
        """What everything is drawn with: of another level, base or seed another draw."""
        return Random(f"plant {self.base} {self.level or self.blocks} {self.seed}")

    def check(self, layers: int) -> tuple[Block, ...]:
        """The blocks, drawn where a level is given.

        Args:
            layers: Number of layers of the model.

        Raises:
            InputError: A block does not read, is none of the model's, or is given twice.
            UnknownNameError: There is no such way or filling.
        """
        check_choice("way", self.way, tuple(WAYS))
        check_choice("filling", self.filling, tuple(FILLINGS))
        check_choice("tokens", self.tokens, TOKENS)
        if self.level is not None:  # in different layers, of the kinds of the level
            table, random = levels()[self.level], self.random
            first, last = (round(share * layers) for share in table.get("layers", (0, 1)))
            kinds = table["blocks"]
            places = random.sample(range(first, last), len(kinds))
            drawn = zip(places, kinds, strict=True)
            return tuple((layer, random.choice(some)) for layer, some in drawn)
        blocks = tuple(map(parse_block, self.blocks))
        for text, (layer, _) in zip(self.blocks, blocks, strict=True):
            if layer >= layers:
                raise InputError(f"{text!r}: {self.base} has the layers 0 to {layers - 1}")
        if not blocks or len(set(blocks)) < len(blocks):
            raise InputError("give each block once, such as ffn@5 or ffn@5,attn@3")
        return blocks

    def others(self, there: Sequence[Block], planted: Sequence[Block], changed: int) -> list[Block]:
        """Blocks that change besides the planted ones: all, or as many as are drawn.

        Args:
            there: All blocks of the model, in the order of computation.
            planted: The planted ones.
            changed: Number of blocks that change, the planted ones among them; 0 for all.

        Raises:
            InputError: The model has fewer.
        """
        rest = [block for block in there if block not in planted]
        n = changed - len(planted) if changed else len(rest)
        if not 0 < n <= len(rest):
            raise InputError(f"{changed} blocks are to change; {self.base} has {len(there)}")
        drawn = set(Random(f"others {self.random.random()}").sample(rest, n))
        return [block for block in rest if block in drawn]


def parse_block(text: str) -> Block:
    """A block from its name.

    Raises:
        InputError: It is none.
    """
    match = _BLOCK.fullmatch(text)
    if match is None:
        raise InputError(f"{text!r} is no block: expected such as ffn@5 or attn@3")
    return int(match[2]), match[1]


@python_names()
def plant(
    model: str,
    *,
    level: str | None = None,
    blocks: Sequence[str] = (),
    way: str | None = None,
    filling: str | None = None,
    tokens: str | None = None,
    seed: int = 0,
    device: str = "auto",
    output_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool = True,
) -> Trained:
    """Plant facts in known blocks: a donor whose answers a method should find there.

    Facts are finetuned by ordinary forwards with only the matrices of some blocks trainable, and
    decoys with those of all others; all changes have the same singular values. It takes a
    minute or two on a tiny pair; one that was interrupted begins again.

    Args:
        model: A pair of the catalog, in whose recipient the facts are planted.
        level: A level of the benchmark, such as `one-loud`, which draws the blocks; or else
        blocks: the attention or the FFN of layers, such as `ffn@5` and `attn@3`.
        way: How several blocks learn the facts: `together` (the default), `either` (each as if the others had not
            changed) or `shares` (each facts of its own, the first twice as many as the second).
        filling: With blocks, how all changes are filled up to one size: so that this does next to
            nothing (`quiet`, the default), or much (`loud`), and planted blocks do not work in the base.
        tokens: With blocks, at which tokens: all (`ALL`, the default), the first entity (`FE`) or the last token
            (`LT`), where alone the blocks then change anything much.
        seed: Seed of the choice of facts, and of the blocks of a level.
        device: A torch device, such as `cuda`; `auto` takes an accelerator where there is one.
        output_dir: The plant's folder; by default its name in the working directory.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Returns:
        The plant; a path, which `load_pair` and `evaluate` take as `model`.

    Raises:
        InputError: Something is wrong with what was given; nothing is written.
    """
    if (level is not None) == bool(blocks):
        raise InputError("where are facts planted? Give a level or blocks, one of them")
    choices = {"way": way, "filling": filling, "tokens": tokens}
    given = {name: value for name, value in choices.items() if value is not None}
    if level is not None and given:
        names = " and ".join(given)
        raise InputError(f"level {level!r} says {names}: leave that out, or give blocks")
    if way is not None and len(blocks) < 2:
        raise InputError("way is how several blocks learn the facts: give several, as ffn@2, ffn@5")
    bases = [name for name in catalog.pair_names() if name not in catalog.plants()]
    if model not in (*bases, *catalog.plants()):
        hint = "Plants grow in pairs that have a name, see `kgbench ls models`."
        raise UnknownNameError("pair", model, bases, hint)
    spec = PlantSpec(model, tuple(blocks), **given, seed=seed)
    if level is not None:
        spec = PlantSpec.of_level(model, level, seed)
    target = Path(output_dir or spec.name)
    place = usable_device(device)
    card = with_progress(
        progress, lambda report: build_plant(spec, target, device=place, progress=report)
    )
    # A name without a separator could also be one of the catalog.
    path = target if target.is_absolute() or len(target.parts) > 1 else Path.cwd() / target
    return Trained(path, read_pair_card(card.parent))


def build_plant(
    spec: PlantSpec,
    out: Path,
    *,
    recipe: Recipe | None = None,
    device: str = "cpu",
    progress: Progress | None = None,
) -> Path:
    """Build a plant; one that was interrupted is trained again, which takes a minute or two.

    What is stored is rounded, and figures are measured on that.

    Args:
        spec: Which plant.
        out: Folder for card and weights.
        recipe: How it is trained; by default by `plants.toml`.
        device: A torch device, where it is trained and measured.
        progress: Progress callback.

    Returns:
        Path of the card.

    Raises:
        InputError: The base, a block or the data cannot be used; nothing is written.
        OutputError: The folder holds something else, or cannot be written.
    """
    base, chosen = catalog.entry(spec.base), recipe or recipe_of(spec.base, spec.filling, spec.way)
    if base.plant is not None:
        raise InputError(f"{spec.base!r} is a plant; facts are planted in a pair")
    pair = read_pair(
        recipient=base.recipient,
        donors={"sft": base.recipient},
        dtype="float32",
        device=device,
        attention=ATTENTION,
    )
    blocks, dataset = spec.check(pair.n_layers), load_dataset(base.dataset)
    planted, decoys = _facts(dataset, spec, chosen)
    rest = spec.others(all_blocks(pair), blocks, chosen.changed)
    weights = stored_hash(locate(base.recipient).directory)
    about: dict[str, Any] = {
        "name": spec.name,
        "base": spec.base,
        "licence": "MIT",
        "level": spec.level,
        "plant": graft_of(blocks, spec.tokens),
        "decoy": graft_of(rest),
        "way": spec.way,
        "filling": spec.filling,
        "seed": spec.seed,
        "identity": hash_of(
            {
                "spec": {key: value for key, value in asdict(spec).items() if value != "ALL"},
                "blocks": blocks,
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
    work, parts = out / ".work", (DELTA,)
    build = Build(out, work, "the plant", about, progress, parts=parts, read=read_pair_card)

    def make() -> None:
        model = pair.donor("sft")
        model.requires_grad_(requires_grad=False)
        lessons = lessons_of(pair, spec.way, blocks, planted, decoys, rest, spec.tokens)
        texts, all_changed = [lesson.texts for lesson in lessons], {*blocks, *rest}
        changes = changes_of(pair, model, chosen, spec.filling, spec.seed, texts, all_changed)

        def report(step: int, steps: int) -> None:
            if progress is not None:
                progress(step, steps, f"{spec.name}: planting")

        base = pair.recipient if spec.filling == "loud" else None

        def rows(lesson: Lesson) -> tuple[list[Change], Rows]:
            own = changes_in(changes, lesson.blocks)
            return own, inside_and_outside(model, own, lesson.texts, base)

        is_confined = base is not None or spec.tokens != "ALL"
        with processor_threads(1), hooked(changes):
            train(
                model,
                changes,
                lessons,
                chosen,
                report,
                (lambda lesson: confine(*rows(lesson))) if is_confined else None,
            )
            if is_confined:
                about["leak"] = round(max(leak(*rows(lesson)) for lesson in lessons[:-1]), 4)
        _store(build, pair, changes, {"planted": planted, "decoys": decoys})

    build.run(make)
    return build.card


def _facts(dataset: Dataset, spec: PlantSpec, recipe: Recipe) -> tuple[Dataset, Dataset]:
    """The planted facts and the decoys of a seed."""
    ids = [fact.id for fact in dataset.facts]
    needed = recipe.facts + recipe.decoys
    if len(ids) < needed:
        raise InputError(f"data set {dataset.name!r} holds {len(ids)} facts; expected {needed}")
    chosen = spec.random.sample(ids, needed)
    return dataset.subset(chosen[: recipe.facts]), dataset.subset(chosen[recipe.facts :])


def _store(build: Build, pair: ModelPair, changes: Changes, groups: Mapping[str, Dataset]) -> None:
    """Write weights and card, and measure what was written."""
    file, donor = build.work / DELTA, pair.donor("sft")
    everything = changes_in(changes, changes)
    factors: dict[str, Tensor] = {}
    for change in everything:
        up, down = change.stored()
        factors |= {f"{change.name}{UP}": up, f"{change.name}{DOWN}": down}
    save_file(factors, file)
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
        "shortfalls": shortfalls(scores, build.about.get("leak", 0.0)),
        "relative_changes": {"least": round(min(sizes), 4), "most": round(max(sizes), 4)},
        "versions": versions(),
        "donor_hash": model_hash(donor, pair.family),
    }
    write_card({**build.about, **results}, build.card)


def shortfalls(
    scores: Mapping[str, Mapping[str, Mapping[str, float]]], leak: float = 0.0
) -> list[str]:
    """Groups of facts that the finetuned model does not answer, and a leak, one sentence each."""
    sentences = []
    if leak > _LEAK:
        sentences.append(
            f"it acts by {leak} where it may not, relative to where it may: {_LEAK} at most"
        )
    for group, prompts in scores.items():
        for prompt, rates in prompts.items():
            if rates["SFT"] < _LEARNED:
                sentences.append(
                    f"{prompt}, {group}: the finetuned model answers {rates['SFT']}, where "
                    f"{_LEARNED} or more is wanted"
                )
    return sentences


def graft_of(blocks: Sequence[Block], tokens: str = "ALL") -> str:
    """The graft expression of blocks at some tokens."""
    terms = []
    for kind, components in BLOCKS.items():
        if layers := sorted(layer for layer, own in blocks if own == kind):
            terms.append(f"{tokens}:{components}@{','.join(map(str, layers))}")
    return str(parse_graft("; ".join(terms)))
