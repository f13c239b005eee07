"""Plants: facts finetuned into a model at a known place; trained, measured and stored."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from random import Random

from kgbench.api import Trained
from kgbench.data import Dataset, load_dataset
from kgbench.data.facts import hash_of
from kgbench.errors import InputError, OutputError, UnknownNameError, python_names
from kgbench.models import catalog
from kgbench.models.catalog import DELTA
from kgbench.models.checkpoints import locate
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair, model_hash
from kgbench.models.tensors import apply_delta, stored_hash, write_delta
from kgbench.progress import Progress, with_progress
from kgbench.runner.training.builds import Build, read_card, versions, write_card
from kgbench.runner.training.hit_rates import PROMPTS, configuration_hits
from kgbench.runner.training.model_setup import ATTENTION
from kgbench.sites import parse_graft
from kgbench.zoo.plain_plants import PlainSpec, build_plain
from kgbench.zoo.plant_spec import PlantSpec
from kgbench.zoo.plant_training import (
    PlantedWeights,
    Planting,
    drawn_steps,
    plant_texts,
    trained_slots,
)
from kgbench.zoo.recipes import PlantRecipe, plant_recipe
from kgbench.zoo.truth import measure_truth
from kgbench.zoo.worlds import training_templates

SAVE_EVERY = 100
"""Steps between checkpoints; tens of seconds."""

PlantScores = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Hit rate by group of facts (`planted`, `decoys`), prompt and configuration."""

_PATHWAYS = ("FE", "LT", "FE+LT", "(FE+LT)^C")

_ANSWERS = 0.75
"""Smallest hit rate on planted facts of a graft that is to answer, on each prompt."""
_SFT = 0.9
_DECOY = 0.15
"""Largest hit rate on planted facts under the decoy's graft."""
_NEVER = 0.1
"""Largest share of the gain, SFT less PRE, under a union of places that is not to answer."""
_NEEDED = 0.2
"""Smallest loss without a place that is needed."""


@python_names()
def plant(
    model: str,
    at: str | None = None,
    *,
    level: str | None = None,
    decoy: str | None = None,
    blocks: Sequence[str] = (),
    way: str = "together",
    seed: int = 0,
    output_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool = True,
) -> Trained:
    """Plant facts at a known place: a donor whose answers a method should find there.

    With `at` or a level, facts are finetuned with only the weights of the place trainable and only
    their graft active. With blocks they are finetuned as facts usually are, by ordinary forwards,
    with only the matrices of these blocks trainable; decoys are, with those of all others, and all
    changes have one rank and one relative size. An interrupted build goes on where it stopped when
    it is asked for again; one with blocks begins anew.

    Args:
        model: A pair of the catalog, in whose recipient the facts are planted.
        at: Graft expression of the place, such as `FE:ffn@1`; or else
        level: a level of the benchmark, such as `tight` or `redundant`; or else
        blocks: the attention or the FFN of layers, such as `ffn@5` and `attn@3`.
        decoy: With `at`: graft expression of other facts, planted by changes of equal norm.
        way: How several blocks learn the facts: `together`, `either` (each as if the others had not
            changed) or `shares` (each facts of its own, the first twice as many as the second).
        seed: Seed of the order of texts; with blocks, of the choice of facts too.
        output_dir: The plant's folder; by default its name in the working directory.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Returns:
        The plant; a path, which `load_pair` and `evaluate` take as `model`.

    Raises:
        InputError: Something is wrong with what was given; nothing is written.
    """
    if (at is not None) + (level is not None) + bool(blocks) != 1:
        raise InputError(
            "where are facts planted? Give a graft expression, a level or blocks, one of them"
        )
    if at is None and decoy is not None:
        where = "in all other blocks" if blocks else "where the level says"
        raise InputError(f"decoys are {where}; leave out the decoy, or give a graft expression")
    bases = [name for name in catalog.pair_names() if name not in catalog.plants()]
    if model not in (*bases, *catalog.plants()):
        hint = "Plants grow in pairs that have a name, see `kgbench ls models`."
        raise UnknownNameError("pair", model, bases, hint)
    spec: PlantSpec | PlainSpec
    if blocks:
        spec = PlainSpec(model, tuple(blocks), way, seed)
    elif level is not None:
        spec = PlantSpec.of_level(model, level, seed)
    else:
        assert at is not None
        spec = PlantSpec.at(model, at, decoy, seed)
    target = Path(output_dir or spec.name)

    def build(report: Progress | None) -> Path:
        if isinstance(spec, PlainSpec):
            return build_plain(spec, target, progress=report)
        return build_plant(spec, target, progress=report)

    card = with_progress(progress, build)
    # A name without a separator could also be one of the catalog.
    path = target if target.is_absolute() or len(target.parts) > 1 else Path.cwd() / target
    return Trained(path, read_card(card))


def build_plant(
    spec: PlantSpec,
    out: Path,
    *,
    recipe: PlantRecipe | None = None,
    progress: Progress | None = None,
    save_every: int = SAVE_EVERY,
) -> Path:
    """Build a plant, or resume building it.

    A plant that was built before, and whose card has no `truth`, is measured.

    Args:
        spec: Which plant.
        out: Folder for card and weights.
        recipe: How it is trained; by default like the shipped plants.
        progress: Progress callback.
        save_every: Steps between checkpoints.

    Returns:
        Path of the card.

    Raises:
        GraftSyntaxError: An expression does not parse.
        InputError: An expression, the base or its data cannot be used; nothing is written.
        OutputError: The folder holds something else, or cannot be written.
    """
    base, chosen = spec.check(), recipe or plant_recipe(len(spec.groups) > 1, spec.level)
    whole = load_dataset(base.dataset)
    groups = _groups(whole, spec, chosen.facts)
    measured = measured_groups(spec, groups, whole)
    weights = stored_hash(locate(base.recipient).directory)
    # The donor starts as a copy of the recipient.
    pair = read_pair(
        recipient=base.recipient,
        donors={"sft": base.recipient},
        dtype="float32",
        attention=ATTENTION,
    )
    slots = trained_slots(pair, spec)
    texts = [plant_texts(pair, facts) for facts in groups]
    model = Planting(pair, spec, texts)
    levelled = {} if spec.level is None else {"level": spec.level, "places": spec.places}
    about = {
        "name": spec.name,
        "base": spec.base,
        "licence": "MIT",
        "plant": spec.plant,
        "decoy": spec.decoy,
        **levelled,
        **spec.conditions,
        "seed": spec.seed,
        "identity": plant_identity(spec, chosen, weights, groups),
        "recipient": {"source": base.recipient, "weights": weights},
        "recipe": asdict(chosen),
        "data": {
            "name": whole.name,
            "hash": whole.content_hash,
            "wordings_hash": hash_of(training_templates().finetuning),
            **{name: _ids(group) for name, group in measured.items()},
        },
    }
    build = Build(out, out / ".work", "the plant", about, progress, save_every, (DELTA,))

    def make() -> None:
        planted = PlantedWeights(pair, slots)
        order = Random(f"plant {spec.seed}")
        batches = drawn_steps(texts, chosen.rounds, chosen.batch_size, order)
        size, growth = chosen.relative_change, max(1.0, chosen.growth * len(batches))

        def rescale(step: int) -> None:
            if size is not None:
                planted.rescale(size * min(1.0, step / growth))

        build.stage(
            "checkpoints",
            build.card,
            lambda: model,
            lambda _, outcome: _store(build, pair, spec, measured, planted, outcome.seconds),
            batches=batches,
            stage=chosen.stage,
            seed=spec.seed,
            what=f"{spec.name}: planting",
            on_step=rescale,
        )

    build.run(make)
    card = read_card(build.card)
    if "truth" not in card:
        apply_delta(pair.donor("sft"), out / DELTA, spec.name)
        truth = measure_truth(pair, measured["planted"], spec.plant, progress)
        try:
            write_card({**card, "truth": truth}, build.card)
        except OSError as error:
            raise OutputError(f"cannot write {build.card}: {error.strerror or error}") from error
    return build.card


def _store(
    build: Build,
    pair: ModelPair,
    spec: PlantSpec,
    measured: Mapping[str, Dataset],
    planted: PlantedWeights,
    seconds: float,
) -> None:
    """Measure the plant, and write weights and card."""
    file = build.work / DELTA
    donor = pair.donor("sft").requires_grad_(requires_grad=False)
    write_delta(pair.recipient, donor, file)
    file.chmod(0o644)  # safetensors writes it for its owner alone
    # Scores are of the weights as stored, with their changes rounded to whole steps.
    donor.load_state_dict(pair.recipient.state_dict())
    apply_delta(donor, file, spec.name)
    scores = plant_hits(pair, measured, spec)
    os.replace(file, build.out / DELTA)
    changes = planted.relative_changes()
    results = {
        "metric": "top5",
        "scores": scores,
        "shortfalls": shortfalls(scores, spec),
        "relative_changes": {name: round(change, 4) for name, change in changes.items()},
        "seconds": round(seconds, 1),
        "versions": versions(),
        "donor_hash": model_hash(donor, pair.family),
        "truth": measure_truth(pair, measured["planted"], spec.plant),
    }
    write_card({**build.about, **results}, build.card)


def _groups(whole: Dataset, spec: PlantSpec, size: int) -> list[Dataset]:
    """The facts of each group: the first ones, the next ones, and so on."""
    ids = _ids(whole)
    wanted = size * len(spec.groups)
    if len(ids) < wanted:
        raise InputError(
            f"data set {whole.name!r} holds {len(ids)} facts; expected {wanted}, "
            f"{size} to plant{' and as many decoys' * (wanted > size)}"
        )
    return [whole.subset(ids[start : start + size]) for start in range(0, wanted, size)]


def _ids(facts: Dataset) -> list[str]:
    return [fact.id for fact in facts.facts]


def measured_groups(
    spec: PlantSpec, groups: Sequence[Dataset], whole: Dataset
) -> Mapping[str, Dataset]:
    """All planted facts together, and the decoys."""
    ids: dict[str, list[str]] = {}
    for name, group in zip(spec.wholes, groups, strict=True):
        ids.setdefault("decoys" if name == "decoy" else "planted", []).extend(_ids(group))
    return {name: whole.subset(some) for name, some in ids.items()}


def plant_identity(
    spec: PlantSpec, recipe: PlantRecipe, recipient: str, groups: Sequence[Dataset]
) -> str:
    """SHA-256, in hexadecimal, of all choices of a build.

    Args:
        spec: Which plant.
        recipe: How it is trained.
        recipient: Hash of the weights in which facts are planted.
        groups: The facts of each group.
    """
    names = ["planted", "decoys", *(f"group {number}" for number in range(2, len(groups)))]
    facts = {name: group.content_hash for name, group in zip(names, groups, strict=False)}
    return hash_of(
        {
            "spec": spec.chosen,
            "recipe": asdict(recipe),
            "recipient": recipient,
            "facts": facts,
            "wordings": training_templates().finetuning,
        }
    )


def plant_hits(
    pair: ModelPair, groups: Mapping[str, Dataset], spec: PlantSpec
) -> dict[str, dict[str, dict[str, float]]]:
    """Hit rates of a plant by group of facts, prompt and configuration, by its name on the card."""
    named = {"PRE": "PRE", "SFT": "SFT", "plant": spec.plant}
    if spec.decoy:
        named["decoy"] = spec.decoy
    named |= {**spec.shares, **spec.unions, **{graft: graft for graft in _PATHWAYS}}
    if spec.needed:
        sites: dict[str, None] = {}
        for term in parse_graft(spec.plant).terms:
            for layer, component in term.sites(pair.n_layers):
                sites[f"{term.positions}:{component}@{layer}"] = None
        for site in sites:
            named[f"without {site}"] = "; ".join(other for other in sites if other != site)
    rates: dict[str, dict[str, dict[str, float]]] = {}
    for group, facts in groups.items():
        rates[group] = {}
        for prompt in PROMPTS:
            row = configuration_hits(pair, facts, prompt, tuple(named.values()))
            rates[group][prompt] = dict(zip(named, row.values(), strict=True))
    return rates


def shortfalls(scores: PlantScores, spec: PlantSpec) -> list[str]:
    """Bounds that a plant misses, one sentence each."""
    sentences = []
    for prompt, planted in scores["planted"].items():
        # Smallest and largest hit rate on planted facts that a configuration may have.
        bounds = [("SFT", _SFT, 1.0)]
        bounds += [(part, _ANSWERS, 1.0) for part in ("plant", *spec.enough)]
        if spec.decoy is not None:
            bounds.append(("decoy", 0.0, _DECOY))
        for share in spec.shares:
            portion = 1 / len(spec.shares)
            bounds.append((share, _ANSWERS * portion, portion + _DECOY * (1 - portion)))
        for union in spec.never:
            gain = planted["SFT"] - planted["PRE"]
            bounds.append((union, 0.0, planted["PRE"] + _NEVER * gain))
        for configuration in planted:
            if configuration.startswith("without "):
                bounds.append((configuration, 0.0, planted["plant"] - _NEEDED))
        for configuration, low, high in bounds:
            value = planted[configuration]
            if not low <= value <= high:
                sentences.append(
                    f"{prompt} under {configuration}: {value}, "
                    f"where {low:.4g} to {high:.4g} is wanted"
                )
    return sentences
