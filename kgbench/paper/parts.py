"""What figures are made of, seed by seed: pairs, donors and evaluations; made, or forecast."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import torch

from kgbench.data import ImportOptions, is_shipped, load_dataset
from kgbench.data.facts import hash_of
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.catalog import CARD, Entry, donors_folder, read_donor_card
from kgbench.models.checkpoints import Checkpoint, locate
from kgbench.models.fetching import fetched_model
from kgbench.models.loading import adapted_donor
from kgbench.models.lora import ADAPTER_CONFIG
from kgbench.models.tensors import stored_hash
from kgbench.paper.hub_texts import assumed_texts, hub_texts, is_on_hub
from kgbench.paper.measurements import (
    About,
    Donor,
    Evaluated,
    PairRows,
    joined,
    kept_rows,
)
from kgbench.paper.page import KNOWN, Page, Scale, SmallTraining, TinyTraining, Training
from kgbench.progress import Progress, numbered
from kgbench.records import RecordStore, write_whole
from kgbench.runner import Pairs, Run, Settings, Spec, dry_run, run_job
from kgbench.runner.costs import Cost, room
from kgbench.runner.job import main_device_of
from kgbench.runner.training.finetuning import finetune
from kgbench.runner.training.finetuning_cost import StepSeconds, finetuning_cost
from kgbench.runner.training.finetuning_plan import FinetuneSpec, FinetuningPlan, plan_finetuning
from kgbench.runner.training.model_setup import load_recipient, store_donor
from kgbench.runner.training.recipes import FinetuningRecipe
from kgbench.runner.workload import load_suite
from kgbench.zoo.cards import read_card
from kgbench.zoo.recipes import Recipe, recipe
from kgbench.zoo.tiny_pairs import (
    build_identity,
    build_recipe,
    finetuning_rounds,
    known_movies,
    passing_texts,
    pretraining_movies,
)
from kgbench.zoo.worlds import FIELDS, data_file, with_other_costars

SHIPPED = 0
"""The training seed of the shipped pairs."""

_SIZE = 10**9
"""Parameters of a recipient of unknown size; the recipe does not depend on it."""


@dataclass(frozen=True)
class Ingredients:
    """Ingredients of the figures of one pair under one training seed."""

    page: Page
    model: str
    supplement: str | None = None
    """Texts that the gentle recipe mixes in, for a pair that is not tiny; by default the page's."""
    seed: int = SHIPPED
    """Training seed; a tiny pair of another than the shipped seed is pretrained anew."""
    built: Recipe | None = None
    """Recipe of a tiny pair of another seed; by default that of the shipped one."""

    @property
    def entry(self) -> Entry:
        """The pair in the catalog."""
        found = catalog.entry(self.model)
        if found.plant is not None:
            raise InputError(
                f"{self.model!r} is a plant; figures are made of pairs, see `kgbench ls models`"
            )
        return found

    @property
    def scale(self) -> Scale:
        """What sort of pair it is."""
        return self.page.scale_of(self.model)

    @property
    def tiny(self) -> bool:
        """Whether the pair is one of the shipped ones."""
        return self.scale == "tiny"

    @property
    def made(self) -> Path:
        """Folder of donors and files of this training seed."""
        folder = donors_folder().parent / "reproduction" / self.model
        return folder if self.seed == SHIPPED else folder / f"seed{self.seed}"

    @property
    def builds(self) -> bool:
        """Whether the recipient is pretrained here."""
        return self.tiny and self.seed != SHIPPED

    @property
    def recipient(self) -> str:
        """The checkpoint before finetuning."""
        return str(self.pair / "recipient") if self.builds else self.entry.recipient

    @property
    def ready(self) -> bool:
        """Whether the recipient is there."""
        return not self.builds or (self.pair / "recipient").is_dir()

    @property
    def recipe(self) -> Recipe:
        """Recipe of the tiny pair."""
        return self.built or recipe(self.model)

    @property
    def pair(self) -> Path:
        """Folder of a tiny pair with its card."""
        if self.builds:
            return self.made / "pair"
        return locate(self.entry.recipient).directory.parent

    def is_own(self, name: str) -> bool:
        """Whether a donor is the pair's own, which comes with its recipient."""
        if self.tiny:
            return self._tiny(name).pair
        ships = self.scale == "small" and self.seed == SHIPPED and bool(self.entry.donors)
        return ships and name == self.page.small.shipped

    def _tiny(self, name: str) -> TinyTraining:
        tiny = self.page.trainings[name].tiny
        assert tiny is not None, f"{name} is of other pairs"
        return tiny

    def own_donor(self) -> tuple[Mapping[str, Any], str]:
        """The card of the pair, and the hash of its donor's stored weights."""
        return read_card(self.pair), stored_hash(self.pair / "sft")

    def own_facts(self) -> list[Mapping[str, str]]:
        """The facts that the pair's own donor learned."""
        return [fact.fields for fact in load_dataset(self.recipe.dataset).facts]

    @property
    def has_own_donor(self) -> bool:
        """Whether the pair's own donor is there."""
        return (self.pair / CARD).is_file()

    def source(self, name: str) -> str:
        """The checkpoint of a donor."""
        if self.is_own(name):
            return str(self.pair / "sft") if self.builds else self.entry.donors["sft"]
        return str(self.place(name))

    def dataset(self, name: str) -> str:
        """The facts of a training, as `load_dataset` takes them."""
        training = self.page.trainings[name]
        part = f":{training.part}" if training.part else ""
        dataset, most = training.dataset, self.page.small.facts
        if self.scale == "paper":
            assert is_shipped(dataset)
            return dataset + part
        if self.tiny:
            tiny = self._tiny(name)
            dataset, most = tiny.dataset, tiny.facts
            if tiny.rearranged:
                return self._rearranged(dataset, most)
        few = len(load_dataset(dataset + part).facts) > most
        return dataset + (f":first{most * (2 if part else 1)}" if few else "") + part

    def training(self, name: str) -> FinetuneSpec:
        """The specification of a donor."""
        training = self.page.trainings[name]
        direction, recipe, changes = self._choices(name)
        return FinetuneSpec(
            dataset=self.dataset(name),
            recipe=recipe,
            model=None if self.builds else self.model,
            recipient=self.recipient if self.builds else None,
            direction=direction,
            seed=self.seed,
            supplement=self._supplement(training),
            changes=changes,
        )

    def _choices(self, name: str) -> tuple[str, str, Mapping[str, int]]:
        """A donor's direction and recipe, and what replaces the recipe's values."""
        training, small = self.page.trainings[name], self.page.small
        if self.tiny:
            tiny = self._tiny(name)
            return training.direction, tiny.recipe, tiny.changes
        if self.scale == "paper":
            return training.direction, training.recipe, {}
        other = training.small or SmallTraining()
        return (
            other.direction or small.direction,
            other.recipe or small.recipe,
            other.changes,
        )

    def _supplement(self, training: Training) -> str | None:
        if training.recipe != "less_aggressive":
            return None
        if not self.tiny:
            return self.supplement or self.page.hub.supplement
        texts = passing_texts(self.page.tiny.supplement)
        return self._kept("supplement.txt", "".join(f"{text}\n" for text in texts))

    def place(self, name: str) -> Path:
        """Folder of a donor, apart from donors of `kgbench train` with the same name."""
        return self.made / "donors" / name

    def job(self, name: str) -> Spec:
        """The specification of an evaluation."""
        evaluation = self.page.evaluations[name]
        known, donors = evaluation.facts == KNOWN, dict[str, str]()
        for donor, training in evaluation.donors_of(self.scale).items():
            donors[donor] = self.source(training)
        return Spec(
            model=self.model,
            # Named, so that the donors of the catalog are not among those of the job.
            recipient=self.source(evaluation.recipient) if evaluation.recipient else self.recipient,
            donors=donors,
            dataset=self._known() if known else self.dataset(evaluation.learned(self.scale)),
            prompts=evaluation.prompts,
            imports=ImportOptions(templates=evaluation.templates) if evaluation.templates else None,
            suite=evaluation.suite or Spec.suite,
            grafts=self.page.grafts_of(name),
            localizer=evaluation.localizer,
        )

    def identity(self, name: str) -> str:
        """SHA-256, in hexadecimal, of all ingredients of an evaluation.

        Recipient, trainings and their facts, suite and prompts: rows of the same identity need not
        be computed again. Of a pair that is built here it is the identity of its build, of the
        shipped one that of its weights.
        """
        evaluation = self.page.evaluations[name]
        job, trainings = self.job(name), evaluation.trainings(self.scale)
        return hash_of(
            {
                "recipient": self._recipient_identity(),
                "seed": self.seed,
                "donors": dict(evaluation.donors_of(self.scale)),
                "on": evaluation.recipient,
                "trainings": {name: self._training_identity(name) for name in trainings},
                "facts": load_dataset(str(job.dataset)).content_hash,
                "suite": self.page.grafts_of(name) or asdict(load_suite(job.suite)),
                "prompts": list(evaluation.prompts),
                **({"templates": evaluation.templates} if evaluation.templates else {}),
                **({"localizer": job.localizer} if job.localizer != Spec.localizer else {}),
            }
        )

    def _recipient_identity(self) -> str:
        if self.builds:
            return build_identity(self.recipe, self.seed, load_dataset(self.recipe.dataset))
        if self.tiny:
            return stored_hash(locate(self.recipient).directory)
        model = fetched_model(self.recipient)
        return self.recipient if model is None else model.weights

    def _training_identity(self, name: str) -> Any:
        if self.is_own(name):
            shipped = catalog.zoo_path(self.source(name))
            return "the pair's own" if self.tiny or shipped is None else stored_hash(shipped)
        plan = plan_finetuning(self.training(name))
        followed = self._followed(plan)
        other = self.page.tiny.supplement if self.tiny else plan.spec.supplement
        return [
            followed.to_json(),
            plan.data(),
            plan.wordings.to_json(),
            other if plan.spec.supplement else None,
        ]

    def _followed(self, plan: FinetuningPlan) -> FinetuningRecipe:
        """The recipe of a donor, with its values for the recipient's size."""
        size = {"tiny": 1, "small": self.entry.parameters, "paper": _SIZE}[self.scale]
        return plan.recipe(size or _SIZE, self.recipe.model_type if self.tiny else "")

    def with_texts(self, spec: FinetuneSpec, download: bool = True) -> FinetuneSpec:
        """A training with its supplemental texts from the Hub, where they are there.

        Args:
            spec: The training.
            download: Whether to download them; else texts of the usual length stand for them.
        """
        source = str(spec.supplement)
        if not is_on_hub(spec.supplement):
            return spec
        n = self._followed(plan_finetuning(spec)).supplement_texts
        texts = hub_texts(source, n, spec.seed) if download else assumed_texts(source, n)
        return replace(spec, supplement=texts)

    def _rearranged(self, name: str, n: int) -> str:
        """The first movies of pretraining, with each other's co-stars."""
        movies = pretraining_movies()[:n]
        rows = []
        for movie, costar in zip(movies, with_other_costars(movies), strict=True):
            fields = {field: movie[field] for field in FIELDS}
            rows.append({**fields, "second_actor": costar})
        return self._facts(f"{name}_shuffled", rows)

    def _known(self) -> str:
        """Facts that the recipient may know: a tiny pair's pretraining, else real movies."""
        if not self.tiny:
            return "real_movies_real_actors"
        return self._facts("known", known_movies(self.recipe, self.page.tiny.known))

    def _facts(self, name: str, rows: Sequence[Mapping[str, str]]) -> str:
        """A file of movies."""
        facts = []
        for number, row in enumerate(rows, 1):
            facts.append({"id": f"{name}/{number}", **row})
        return self._kept(f"{name}.jsonl", data_file(name, facts))

    def _kept(self, name: str, text: str) -> str:
        """A file of this text in the folder of the donors."""
        path = self.made / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        return str(path)


@dataclass(frozen=True)
class FigurePart:
    """A recipient, a donor or an evaluation."""

    kind: Literal["pair", "donor", "evaluation"]
    what: Ingredients
    name: str = ""
    """Of a pair `donor` where its own donor is made too."""


def parts_of(
    figures: Sequence[str], seeds: Sequence[Ingredients], known: PairRows | None = None
) -> list[FigurePart]:
    """Missing parts of figures, seed by seed; each evaluation follows the donors that it needs.

    Args:
        figures: Their names.
        seeds: Ingredients under each training seed.
        known: Rows that are there; evaluations of the same identity are left out.
    """
    page, parts = seeds[0].page, []
    for what in seeds:
        left = [e for e in page.evaluations_of(figures) if not _is_there(e, what, known)]
        trainings = page.trainings_of(left, what.scale)
        if what.builds and left:
            own = any(map(what.is_own, trainings))
            parts.append(FigurePart("pair", what, "donor" if own else ""))
        made: set[str] = set()
        for evaluation in left:
            for name in page.trainings_of([evaluation], what.scale):
                if name not in made and not what.is_own(name):
                    parts.append(FigurePart("donor", what, name))
                    made.add(name)
            parts.append(FigurePart("evaluation", what, evaluation))
    return parts


def _is_there(evaluation: str, what: Ingredients, known: PairRows | None) -> bool:
    """Whether rows hold this evaluation, made of the same ingredients."""
    if known is None or known.about.model != what.model:
        return False
    there = known.about.evaluations.get(what.seed, {}).get(evaluation)
    return there is not None and there.identity == what.identity(evaluation)


def make(
    figures: Sequence[str],
    seeds: Sequence[Ingredients],
    output_dir: Path,
    device: str,
    progress: Progress | None = None,
    known: PairRows | None = None,
    keep: Callable[[PairRows], None] | None = None,
    on_record: Callable[[Run], None] | None = None,
) -> PairRows:
    """Measure what figures rest on: pairs that are missing, then donors and evaluations.

    An interrupted training goes on from its last checkpoint, an evaluation from its journal.

    Args:
        figures: Their names.
        seeds: Ingredients under each training seed.
        output_dir: Where records go.
        device: Where it is computed.
        progress: Progress callback.
        known: Rows that are there, which are not made again.
        keep: Called with all rows after each evaluation.
        on_record: Called with each run when its record is there.

    Raises:
        InputError: Something cannot be had; found before the part that needs it is begun.
    """
    parts, measured = parts_of(figures, seeds, known), known
    loaded: tuple[int | None, Pairs] = (None, Pairs())
    for number, part in enumerate(parts, 1):
        what, report = part.what, numbered(progress, number, len(parts))
        if part.kind == "pair":
            donor = bool(part.name)
            build_recipe(what.recipe, what.pair, seed=what.seed, progress=report, donor=donor)
        elif part.kind == "donor":
            spec, place = what.training(part.name), what.place(part.name)
            # Texts on the Hub are not downloaded again to find a donor complete.
            if not (is_on_hub(spec.supplement) and _stored(spec, place).done):
                finetune(what.with_texts(spec), place, device=device, progress=report)
        else:
            if loaded[0] != what.seed:
                loaded = (what.seed, Pairs())
            settings = Settings(device=device, output_dir=output_dir, on_record=on_record)
            rows = _evaluated(part, settings, report, loaded[1])
            measured = joined(measured, rows)
            if keep is not None:
                keep(measured)
        gc.collect()  # a trainer and its model refer to each other; of large models two do not fit
    assert measured is not None
    return measured


def _evaluated(
    part: FigurePart, settings: Settings, progress: Progress | None, loaded: Pairs
) -> PairRows:
    """The rows of one evaluation."""
    what, name = part.what, part.name
    with merged_adapters(what, name) as spec:
        record = run_job(spec, settings, progress, loaded).record
    facts = RecordStore(settings.output_dir).load(record.id).facts()
    trainings = what.page.trainings_of([name], what.scale)
    about = About(
        model=what.model,
        tiny=what.tiny,
        donors={what.seed: {training: _donor(what, training) for training in trainings}},
        evaluations={what.seed: {name: Evaluated.of(record, what.identity(name))}},
    )
    return PairRows(about, kept_rows(what.seed, name, what.page, facts))


@contextmanager
def merged_adapters(what: Ingredients, evaluation: str) -> Iterator[Spec]:
    """The specification of an evaluation; adapters are merged if the recipient is finetuned too.

    An adapter is a donor of the model that it was trained on, and of no other. The merged
    checkpoints are removed when the block ends.

    Args:
        what: The pair and its donors.
        evaluation: The evaluation.
    """
    spec = what.job(evaluation)
    if what.page.evaluations[evaluation].recipient is None:
        yield spec
        return
    with TemporaryDirectory(prefix="kgbench-") as folder:

        def checkpoint(name: str, source: str) -> str:
            adapter = catalog.zoo_path(source) or Path(source)
            if not (adapter / ADAPTER_CONFIG).is_file():
                return source
            place = Path(folder, name)
            store_merged(locate(what.recipient), adapter, place)
            return str(place)

        donors = {name: checkpoint(name, source) for name, source in spec.donors.items()}
        yield replace(spec, recipient=checkpoint("recipient", str(spec.recipient)), donors=donors)


def store_merged(recipient: Checkpoint, adapter: Path, folder: Path) -> None:
    """Write the model in float32 that an adapter makes of the checkpoint it was trained from.

    Unlike the adapter it can be a recipient, or the donor of another one.
    """
    model = load_recipient(recipient)
    peft_model: Any = adapted_donor(model, adapter, str(adapter), recipient.origin)[1]
    folder.mkdir()
    store_donor(peft_model.merge_and_unload(), recipient, folder)


def _donor(what: Ingredients, name: str) -> Donor:
    shipped = catalog.zoo_path(what.source(name))
    if not what.is_own(name) or not what.tiny:
        return Donor.of(read_donor_card(shipped or what.place(name)))
    texts = len(set(finetuning_rounds(what.recipe, what.own_facts())[0]))
    return Donor.of_pair(*what.own_donor(), texts)


def costs(
    figures: Sequence[str],
    seeds: Sequence[Ingredients],
    settings: Settings,
    progress: Progress | None = None,
    known: PairRows | None = None,
) -> list[Cost]:
    """Costs of all missing parts, then of all together, without training or downloads.

    Args:
        figures: Their names.
        seeds: Ingredients under each training seed.
        settings: How it would be computed, and where records would go.
        progress: Progress callback, called before each part is measured.
        known: Rows that are there, which would not be made again.

    Raises:
        InputError: Something is wrong that can be found beforehand.
    """
    parts, pairs, steps = parts_of(figures, seeds, known), Pairs(), StepSeconds()
    runs: dict[str, Cost] = {}
    made: list[Cost] = []
    for done, part in enumerate(parts):
        of = f", seed {part.what.seed}" if len(seeds) > 1 else ""
        title = f"pair{of}" if part.kind == "pair" else f"{part.kind} {part.name}{of}"
        if progress is not None:
            progress(done, len(parts), title)
        if part.kind == "pair":
            cost = _pair_cost(part, settings)
        elif part.kind == "donor":
            cost = _donor_cost(part, settings, steps)
        else:
            # With the recipient as its own donor everything takes as long as with missing donors.
            recipient = part.what.entry.recipient
            spec = part.what.job(part.name)
            spec = replace(spec, recipient=recipient, donors=dict.fromkeys(spec.donors, recipient))
            if repr(spec) not in runs:
                runs[repr(spec)] = dry_run(spec, settings, pairs)
            cost = runs[repr(spec)]
        made.append(replace(cost, what=title))
    return [*made, sum(made, Cost("in all", done=True))]


def _pair_cost(part: FigurePart, settings: Settings) -> Cost:
    """Pretraining of a recipient and finetuning of its donor, from those of the shipped pair."""
    what = part.what
    shipped = locate(what.entry.recipient).directory
    seconds = read_card(shipped.parent / CARD)["seconds"]
    stages = [] if what.ready else ["recipient"]
    if part.name and not what.has_own_donor:
        stages.append("sft")
    if not stages:
        return Cost("", done=True)
    size = sum(file.stat().st_size for file in shipped.iterdir())
    return Cost(
        "",
        sum(seconds[stage] for stage in stages),
        "the training of the shipped pair",
        memory={"weights": size, "gradients": size, "AdamW": 2 * size},
        disk=2 * size,
        **room(main_device_of(settings), None, torch.float32),
    )


def _donor_cost(part: FigurePart, settings: Settings, steps: StepSeconds) -> Cost:
    what, name = part.what, part.name
    place = what.place(name)
    if (place / CARD).is_file():
        return _stored(what.training(name), place)
    # A recipient that is not there yet is as large as the shipped one.
    spec = what.training(name) if what.ready else replace(what, seed=SHIPPED).training(name)
    spec = what.with_texts(spec, download=False)
    return finetuning_cost(spec, place, device=settings.device, measured=steps)


def _stored(spec: FinetuneSpec, place: Path) -> Cost:
    """Whether a folder holds the donor that is asked for, by its card; no weights are read."""
    if not (place / CARD).is_file():
        return Cost("")
    card = read_donor_card(place)
    recipe = card["recipe"]["name"]
    stored = {**{key: card[key] for key in ("model", "seed", "changes", "data")}, "recipe": recipe}
    wanted = {"model": spec.model, "seed": spec.seed, "changes": spec.changed()}
    wanted |= {"data": plan_finetuning(spec).data(), "recipe": spec.recipe}
    other = [key for key, value in wanted.items() if stored[key] != value]
    basis = f"trained in another way (other: {', '.join(other)}): move it" if other else ""
    return Cost("", basis=basis, done=not other)
