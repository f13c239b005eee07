"""What a figure needs: which donors are trained how, and which jobs are run on them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kgbench.data import is_shipped, load_dataset
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.catalog import CARD, Entry
from kgbench.models.trained import donors_folder
from kgbench.reproduction.page import KNOWN, Page, Training
from kgbench.runner import Settings, Spec
from kgbench.training.corpus import known_movies, passing_texts
from kgbench.training.finetuning_plan import FinetuneSpec
from kgbench.training.recipes import Recipe, recipe
from kgbench.training.zoo import build_recipe

__all__ = ["SHIPPED", "Ingredients"]

SHIPPED = 0
"""The training seed of the shipped pairs."""

_ZOO = "zoo:"


@dataclass(frozen=True)
class Ingredients:
    """Everything that figures of one pair are made of."""

    page: Page
    model: str
    supplement: str | None = None
    """Texts that the gentle recipe mixes in, for a pair that is not tiny; by default the page's."""
    seed: int = SHIPPED
    """Of all trainings. A tiny pair of another than the shipped seed is pretrained anew; other pairs have one recipient."""
    built: Recipe | None = None
    """How a tiny pair of another seed is made; by default as the shipped one."""

    @property
    def entry(self) -> Entry:
        """The pair in the catalog."""
        found = catalog.entry(self.model)
        if found.plant is not None:
            raise InputError(f"{self.model!r} is a plant; figures are made of pairs, see `kgbench ls models`")
        return found

    @property
    def tiny(self) -> bool:
        """Whether the pair is one of the shipped ones."""
        return self.entry.recipient.startswith(_ZOO)

    @property
    def made(self) -> Path:
        """Where donors and files that are made go: of each training seed a folder."""
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
        return not self.builds or (self._pair / CARD).is_file()

    @property
    def _pair(self) -> Path:
        return self.made / "pair"

    def build(self, progress: Callable[[int, int, str], None] | None = None) -> None:
        """Pretrain the recipient of this seed, or finish that.

        Args:
            progress: Called after every step.

        Raises:
            OutputError: Its folder holds something else, or cannot be written.
        """
        build_recipe(self.built or recipe(self.model), self._pair, seed=self.seed, progress=progress)

    def dataset(self, name: str) -> str:
        """The facts of a training, as `load_dataset` takes them."""
        training = self.page.trainings[name]
        found, part = training.dataset, f":{training.part}" if training.part else ""
        assert is_shipped(found)
        if self.tiny and len(load_dataset(found + part).facts) > self.page.tiny.facts:
            found += f":first{self.page.tiny.facts * (2 if part else 1)}"
        return found + part

    def training(self, name: str) -> FinetuneSpec:
        """The specification of a donor."""
        training = self.page.trainings[name]
        return FinetuneSpec(
            dataset=self.dataset(name),
            recipe=training.recipe,
            model=None if self.builds else self.model,
            recipient=self.recipient if self.builds else None,
            direction=training.direction,
            seed=self.seed,
            templates=training.tiny_wordings if self.tiny else (),
            supplement=self._supplement(training),
            changes=training.tiny_changes if self.tiny else {},
        )

    def _supplement(self, training: Training) -> str | None:
        if training.recipe != "less_aggressive":
            return None
        if not self.tiny:
            return self.supplement or self.page.hub.supplement
        return self._kept("supplement.txt", "".join(f"{text}\n" for text in passing_texts(self.page.tiny.supplement)))

    def place(self, name: str) -> Path:
        """The folder of a donor: apart from those of `kgbench train`, which may be trained otherwise under the same name."""
        return self.made / "donors" / name

    def job(self, name: str) -> Spec:
        """The specification of an evaluation."""
        evaluation = self.page.evaluations[name]
        return Spec(
            model=self.model,
            # Named, so that the donors of the catalog are not among those of the job.
            recipient=str(self.place(evaluation.recipient)) if evaluation.recipient else self.recipient,
            donors={donor: str(self.place(training)) for donor, training in evaluation.donors.items()},
            dataset=self._known() if evaluation.facts == KNOWN else self.dataset(evaluation.learned),
            prompts=evaluation.prompts,
            suite=evaluation.suite,
        )

    def _known(self) -> str:
        """Facts that the recipient may know: of a tiny pair those it was pretrained on, otherwise real movies."""
        if not self.tiny:
            return "real_movies_real_actors"
        made = self.built or recipe(self.model)
        rows = known_movies(made, self.page.tiny.known)
        header = {"kgbench": 1, "name": "known", "subject": "first_actor", "object": "second_actor"}
        lines = [header, *({"id": f"known/{number}", **row} for number, row in enumerate(rows, 1))]
        return self._kept("known.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))

    def _kept(self, name: str, text: str) -> str:
        """A file of this text among what is made, beside the donors."""
        path = self.made / name
        if not path.is_file() or path.read_text(encoding="utf-8") != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text(text, encoding="utf-8")
            partial.replace(path)
        return str(path)

    def settings(self, output_dir: Path, device: str) -> Settings:
        """How jobs are run."""
        return Settings(device=device, output_dir=output_dir)
