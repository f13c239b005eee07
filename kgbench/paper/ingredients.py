"""The ingredients of a pair's figures under one training seed: recipient, donors, facts, jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from huggingface_hub import HfApi

from kgbench.data import ImportOptions, load_dataset
from kgbench.data.facts import hash_of
from kgbench.errors import InputError
from kgbench.extras import install_command
from kgbench.hub import ANSWER_WITHIN, hub_errors
from kgbench.models import catalog
from kgbench.models.catalog import Entry, donors_folder
from kgbench.models.checkpoints import locate
from kgbench.models.fetching import fetched_model
from kgbench.models.tensors import stored_hash
from kgbench.paper.figure_specs import KNOWN, Page, Scale
from kgbench.records import write_whole
from kgbench.runner import Spec
from kgbench.runner.lookup import load_suite
from kgbench.runner.training.finetuning_plan import (
    FinetuneSpec,
    FinetuningPlan,
    Supplement,
    plan_finetuning,
)
from kgbench.runner.training.recipes import FinetuningRecipe
from kgbench.zoo.tiny_pairs import (
    Recipe,
    build_identity,
    known_movies,
    passing_texts,
    pretraining_movies,
    recipe,
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
    """Training seed; a tiny pair of another than the shipped seed is pretrained again."""
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
        if not self.page.training(name, self.scale).pair:
            return False
        return self.tiny or (self.seed == SHIPPED and bool(self.entry.donors))

    def own_facts(self) -> list[Mapping[str, str]]:
        """The facts that the pair's own donor learned."""
        return [fact.fields for fact in load_dataset(self.recipe.dataset).facts]

    def source(self, name: str) -> str:
        """The checkpoint of a donor."""
        if self.is_own(name):
            return str(self.pair / "sft") if self.builds else self.entry.donors["sft"]
        return str(self.place(name))

    def dataset(self, name: str) -> str:
        """The facts of a training, as `load_dataset` takes them."""
        training = self.page.training(name, self.scale)
        part = f":{training.part}" if training.part else ""
        dataset, most = training.dataset, training.facts
        if training.rearranged:
            return self._rearranged(dataset, most)
        if most is None or len(load_dataset(dataset + part).facts) <= most:
            return dataset + part
        return f"{dataset}:first{most * (2 if part else 1)}{part}"

    def training(self, name: str) -> FinetuneSpec:
        """The specification of a donor."""
        training = self.page.training(name, self.scale)
        return FinetuneSpec(
            dataset=self.dataset(name),
            recipe=training.recipe,
            model=None if self.builds else self.model,
            recipient=self.recipient if self.builds else None,
            direction=training.direction,
            seed=self.seed,
            supplement=self._supplement() if training.recipe == "less_aggressive" else None,
            changes=training.changes,
        )

    def _supplement(self) -> str:
        """Texts for the gentle recipe."""
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
        usual = Supplement(source, (_LONG,) * n)
        return replace(spec, supplement=hub_texts(source, n, spec.seed) if download else usual)

    def _rearranged(self, name: str, n: int | None) -> str:
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
        facts = [{"id": f"{name}/{number}", **row} for number, row in enumerate(rows, 1)]
        return self._kept(f"{name}.jsonl", data_file(name, facts))

    def _kept(self, name: str, text: str) -> str:
        """A file of this text in the folder of the donors."""
        path = self.made / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text.encode())
        return str(path)


# ---------------------------------------------------------------------------- texts of the Hub

_BUFFER = 10_000
"""Shuffle buffer of a Hub data set, which is read as a stream."""
_PATIENCE = 10
"""Rows read for each text wanted: some are empty, and without a column "text" all are."""
_LONG = " the" * 512
"""A text of 512 tokens, for a forecast: web pages are mostly longer, and cut."""


def is_on_hub(source: str | Supplement | None) -> bool:
    """Whether a source is a Hub id rather than a local file."""
    if not isinstance(source, str):
        return False
    path = Path(source).expanduser()
    return path.suffix.lower() not in (".txt", ".jsonl") and not path.exists()


def hub_texts(source: str, n: int, seed: int) -> Supplement:
    """A seeded sample of texts of a data set on the Hub with a column "text".

    Raises:
        InputError: There are fewer, or the Hub does not give the data set.
    """
    if find_spec("datasets") is None:
        raise InputError(
            f"the supplement {source!r} is no file here, and to read it from the Hub takes the "
            f"library datasets: {install_command('hub')}"
        )
    otherwise = "give a .txt file with one text per line, or a .jsonl file with a field 'text'"
    with hub_errors(source, None, otherwise):
        from datasets import load_dataset as read_stream

        # One quick question, before the client retries without end.
        revision = str(HfApi().dataset_info(source, timeout=ANSWER_WITHIN).sha)
        stream = read_stream(source, revision=revision, split="train", streaming=True)
        stream = stream.shuffle(seed=seed, buffer_size=_BUFFER)
        texts = (str(row.get("text") or "").strip() for row in islice(stream, _PATIENCE * n))
        sample = tuple(islice(filter(None, texts), n))
    if len(sample) < n:
        raise InputError(f"the supplement {source!r} gave {len(sample)} texts, expected {n}")
    return Supplement(source, sample, revision)
