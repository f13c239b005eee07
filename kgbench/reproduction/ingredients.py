"""Ingredients of figures: specifications of the donors to train and of the jobs to run."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kgbench.data import is_shipped, load_dataset
from kgbench.data.builders import FIELDS, with_other_costars
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.catalog import CARD, Entry, donors_folder
from kgbench.models.checkpoints import locate
from kgbench.models.tensors import stored_hash
from kgbench.progress import Progress
from kgbench.reproduction.page import KNOWN, Page, Training
from kgbench.runner import Spec
from kgbench.runner.workload import load_suite
from kgbench.training.builds import hash_of, read_card
from kgbench.training.finetuning_plan import FinetuneSpec, plan_finetuning
from kgbench.training.recipes import Recipe, recipe
from kgbench.training.tiny_pairs import (
    build_identity,
    build_recipe,
    known_movies,
    passing_texts,
    pretraining_movies,
)

__all__ = ["SHIPPED", "Ingredients"]

SHIPPED = 0
"""The training seed of the shipped pairs."""

_ZOO = "zoo:"
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
    def tiny(self) -> bool:
        """Whether the pair is one of the shipped ones."""
        return self.entry.recipient.startswith(_ZOO)

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
        return str(self._pair / "recipient") if self.builds else self.entry.recipient

    @property
    def ready(self) -> bool:
        """Whether the recipient is there."""
        return not self.builds or (self._pair / "recipient").is_dir()

    @property
    def recipe(self) -> Recipe:
        """Recipe of the tiny pair."""
        return self.built or recipe(self.model)

    @property
    def _pair(self) -> Path:
        return self.made / "pair"

    def build(self, donor: bool, progress: Progress | None = None) -> None:
        """Pretrain the recipient of this seed, or finish that.

        Args:
            donor: Whether the pair's own donor is finetuned too.
            progress: Progress callback.

        Raises:
            OutputError: Its folder holds something else, or cannot be written.
        """
        build_recipe(self.recipe, self._pair, seed=self.seed, progress=progress, donor=donor)

    def is_own(self, name: str) -> bool:
        """Whether a donor is the pair's own, which comes with its recipient."""
        return self.tiny and self.page.trainings[name].tiny.pair

    def own_donor(self) -> tuple[Mapping[str, Any], str]:
        """The card of the pair, and the hash of its donor's stored weights."""
        if self.builds:
            return read_card(self._pair / CARD), stored_hash(self._pair / "sft")
        place = catalog.zoo_path(self.entry.donors["sft"])
        assert place is not None
        return read_card(place.parent / CARD), stored_hash(place)

    def own_facts(self) -> list[Mapping[str, str]]:
        """The facts that the pair's own donor learned."""
        return [fact.fields for fact in load_dataset(self.recipe.dataset).facts]

    @property
    def has_own_donor(self) -> bool:
        """Whether the pair's own donor is there."""
        return not self.builds or (self._pair / CARD).is_file()

    def source(self, name: str) -> str:
        """The checkpoint of a donor."""
        if self.is_own(name):
            return str(self._pair / "sft") if self.builds else self.entry.donors["sft"]
        return str(self.place(name))

    def dataset(self, name: str) -> str:
        """The facts of a training, as `load_dataset` takes them."""
        training = self.page.trainings[name]
        part = f":{training.part}" if training.part else ""
        if not self.tiny:
            assert is_shipped(training.dataset)
            return training.dataset + part
        tiny = training.tiny
        if tiny.rearranged:
            return self._rearranged(tiny.dataset, tiny.facts)
        few = len(load_dataset(tiny.dataset + part).facts) > tiny.facts
        return tiny.dataset + (f":first{tiny.facts * (2 if part else 1)}" if few else "") + part

    def training(self, name: str) -> FinetuneSpec:
        """The specification of a donor."""
        training = self.page.trainings[name]
        return FinetuneSpec(
            dataset=self.dataset(name),
            recipe=training.tiny.recipe if self.tiny else training.recipe,
            model=None if self.builds else self.model,
            recipient=self.recipient if self.builds else None,
            direction=training.direction,
            seed=self.seed,
            supplement=self._supplement(training),
            changes=training.tiny.changes if self.tiny else {},
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
        for donor, training in evaluation.donors_of(self.tiny).items():
            donors[donor] = self.source(training)
        return Spec(
            model=self.model,
            # Named, so that the donors of the catalog are not among those of the job.
            recipient=self.source(evaluation.recipient) if evaluation.recipient else self.recipient,
            donors=donors,
            dataset=self._known() if known else self.dataset(evaluation.learned(self.tiny)),
            prompts=evaluation.prompts,
            suite=evaluation.suite,
        )

    def identity(self, name: str) -> str:
        """SHA-256, in hexadecimal, of all ingredients of an evaluation.

        Recipient, trainings and their facts, suite and prompts: rows of the same identity need not
        be computed again. Of a pair that is built here it is the identity of its build, of the
        shipped one that of its weights.
        """
        evaluation = self.page.evaluations[name]
        job, trainings = self.job(name), evaluation.trainings(self.tiny)
        return hash_of(
            {
                "recipient": self._recipient_identity(),
                "seed": self.seed,
                "donors": dict(evaluation.donors_of(self.tiny)),
                "on": evaluation.recipient,
                "trainings": {name: self._training_identity(name) for name in trainings},
                "facts": load_dataset(str(job.dataset)).content_hash,
                "suite": asdict(load_suite(evaluation.suite)),
                "prompts": list(evaluation.prompts),
            }
        )

    def _recipient_identity(self) -> str:
        if self.builds:
            return build_identity(self.recipe, self.seed, load_dataset(self.recipe.dataset))
        return stored_hash(locate(self.recipient).directory) if self.tiny else self.recipient

    def _training_identity(self, name: str) -> Any:
        if self.is_own(name):
            return "the pair's own"
        plan = plan_finetuning(self.training(name))
        followed = plan.recipe(
            1 if self.tiny else _SIZE, self.recipe.model_type if self.tiny else ""
        )
        other = self.page.tiny.supplement if self.tiny else plan.spec.supplement
        return [
            followed.to_json(),
            plan.data(),
            plan.wordings.to_json(),
            other if plan.spec.supplement else None,
        ]

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
        header = {"kgbench": 1, "name": name, "subject": "first_actor", "object": "second_actor"}
        text = json.dumps(header) + "\n"
        for number, row in enumerate(rows, 1):
            fact = {"id": f"{name}/{number}", **row}
            text += json.dumps(fact, ensure_ascii=False) + "\n"
        return self._kept(f"{name}.jsonl", text)

    def _kept(self, name: str, text: str) -> str:
        """A file of this text in the folder of the donors."""
        path = self.made / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        return str(path)
