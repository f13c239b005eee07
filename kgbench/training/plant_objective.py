"""The objective of a plant: what a donor is to answer when only a part of it is active.

Planted facts are told (cross-entropy of the target's tokens) while the plant's graft is active, and again with the donor as a whole:
weights that were made for some tokens run at all tokens there, and may spoil the answer. What is told to the whole donor can be learned
at any place, so there is also something to keep: away from the plant, the recipient's answer (its Kullback-Leibler divergence). Without a
decoy, that is the donor with the plant taken out. With one, the decoy facts are told through the decoy in the same way, and neither graft
is to answer for the other's facts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kgbench.engine.forward import Wiring, treated
from kgbench.engine.treatment import Slots
from kgbench.errors import InputError
from kgbench.models.pair import ModelPair
from kgbench.sites import RECIPIENT, Graft
from kgbench.training.plant_recipes import PlantSpec
from kgbench.training.plant_texts import Told

__all__ = ["Aim", "Planting", "aims"]


@dataclass(frozen=True)
class Aim:
    """One term of the objective."""

    group: int
    """Whose texts: 0 for the planted facts, 1 for the decoys."""
    active: str
    """Which weights of the donor are: those of a graft of the plant, by its name, or all (`donor`)."""
    told: bool
    """Whether the target is trained (cross-entropy), or the recipient's answer is kept (its Kullback-Leibler divergence)."""
    weight: float = 1.0


_NEVER = 10.0


def aims(spec: PlantSpec) -> tuple[Aim, ...]:
    """The terms of the objective.

    What is learned through a whole is easily learned through a part of it, too; so unions that are not to answer have more weight.
    """
    told = [Aim(0, part, told=True) for part in (*spec.alone, "donor")]
    kept = [Aim(0, part, told=False, weight=_NEVER) for part in spec.never]
    if spec.decoy is None:
        return (*told, *kept, Aim(0, "rest", told=False))
    told += [Aim(1, part, told=True) for part in ("decoy", "donor")]
    return (*told, *kept, Aim(0, "decoy", told=False), Aim(1, "plant", told=False))


Row = tuple[Told, str]
"""A text and which weights of the donor are active."""


class Planting(nn.Module):
    """A donor in training, as the Trainer sees it: numbers of texts in, loss out; its weights are the donor's.

    Args:
        pair: Recipient and the donor `sft`; only the donor's weights that require a gradient are trained.
        spec: Which plant.
        groups: Texts of the planted facts and, with a decoy, of the decoys.

    Raises:
        RegionError: A graft names a region that the texts do not have.
        InputError: A graft names no token of them.
    """

    def __init__(self, pair: ModelPair, spec: PlantSpec, groups: Sequence[Sequence[Told]]) -> None:
        super().__init__()
        grafts = spec.grafts()
        self.donor = pair.donor("sft")
        self._wiring = Wiring(pair)
        self._activity = _Activity(Slots(pair.family, pair.n_layers), grafts)
        self._groups = groups
        self._aims = aims(spec)
        for part, graft in grafts.items():
            if not self._activity.of(groups[0][0], part).any():
                raise InputError(
                    f"the {part} '{graft}' names no token of a text, so that nothing can be planted there"
                )

    def forward(self, **numbers: Tensor) -> dict[str, Tensor]:
        """The loss of one step.

        Args:
            **numbers: `group_0` and, with a decoy, `group_1`: which texts of each group.
        """
        texts = [
            [group[int(i)] for i in numbers[f"group_{g}"]] for g, group in enumerate(self._groups)
        ]
        rows = [[(text, aim.active) for text in texts[aim.group]] for aim in self._aims]
        answers = torch.split(
            self.answers([row for part in rows for row in part]), [_asked(part) for part in rows]
        )
        terms = [
            aim.weight * self._loss(aim, some, logits)
            for aim, some, logits in zip(self._aims, rows, answers, strict=True)
        ]
        return {"loss": torch.stack(terms).sum()}

    def _loss(self, aim: Aim, rows: Sequence[Row], answers: Tensor) -> Tensor:
        """Mean over the tokens that are asked for."""
        if aim.told:
            targets = torch.tensor(
                [target for text, _ in rows for target in text.targets], device=answers.device
            )
            return functional.cross_entropy(answers, targets)
        with torch.no_grad():
            kept = self.answers([(text, RECIPIENT) for text, _ in rows])
        return functional.kl_div(
            answers.log_softmax(-1), kept.log_softmax(-1), reduction="batchmean", log_target=True
        )

    def answers(self, rows: Sequence[Row]) -> Tensor:
        """Logits [answer, vocabulary] at the tokens that predict a target's, row after row; `recipient` is a row's activity too."""
        width = max(len(text.ids) for text, _ in rows)
        ids, treatments = np.zeros((2, len(rows), width), dtype=np.int64)
        readout = []
        for row, (text, active) in enumerate(rows):
            # Padding comes last and no token looks ahead, so it needs neither a mask nor a treatment.
            ids[row, : len(text.ids)], treatments[row, : len(text.ids)] = (
                text.ids,
                self._activity.of(text, active),
            )
            readout += [row * width + token for token in text.regions["LT"]]
        device = self.donor.device
        positions = torch.arange(width, device=device).expand(len(rows), -1)
        where = torch.tensor(readout, device=device)
        with treated(self._wiring, self._activity.table, treatments.reshape(-1), where) as model:
            logits: Tensor = model(
                input_ids=torch.from_numpy(ids).to(device), position_ids=positions, use_cache=False
            ).logits
        return logits.float()


def _asked(rows: Sequence[Row]) -> int:
    return sum(len(text.targets) for text, _ in rows)


class _Activity:
    """For each token of a text the number of its treatment, a row of `table` [treatment, slot]; 0 is the recipient's."""

    def __init__(self, slots: Slots, grafts: Mapping[str, Graft]) -> None:
        self._slots, self._grafts = slots, grafts
        self._rows = {bytes(len(slots)): 0}
        self._known: dict[tuple[Told, str], np.ndarray] = {}

    @property
    def table(self) -> np.ndarray:
        return np.stack([np.frombuffer(row, dtype=np.uint8) for row in self._rows])

    def of(self, text: Told, active: str) -> np.ndarray:
        key = (text, active)
        if key not in self._known:
            sets = self._sets(text, active)
            self._known[key] = np.array(
                [self._rows.setdefault(row.tobytes(), len(self._rows)) for row in sets]
            )
        return self._known[key]

    def _sets(self, text: Told, active: str) -> np.ndarray:
        """Weight sets [token, slot]: 0 the recipient's, 1 the donor's."""
        n = len(text.ids)
        sets = np.full((n, len(self._slots)), active == "donor", dtype=np.uint8)
        for term in self._grafts[active].terms if active in self._grafts else ():
            columns = [
                self._slots.index[site]
                for site in term.sites(self._slots.n_layers)
                if site in self._slots.index
            ]
            sets[np.ix_(sorted(term.positions.tokens(text.regions, n)), columns)] = (
                term.donor != RECIPIENT
            )
        return sets
