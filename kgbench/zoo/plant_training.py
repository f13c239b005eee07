"""Plants: facts finetuned into named weights at named tokens, so that their location is known.

The objective states what a donor is to answer when only a part of it is active. Planted facts are
taught (cross-entropy of the target's tokens) while the plant's graft is active, and again with the
whole donor, because weights that were made for some tokens run at all tokens there and may spoil
the answer. What is taught to the whole donor can be learned anywhere, so something is kept too:
away from the plant, the recipient's answer (Kullback-Leibler divergence). Of a single group of
facts, that is the donor with the plant taken out. Several groups, such as planted facts and decoys,
are taught in the same way, each through places of its own, and no graft is to answer for the facts
of another group.

Where there is a decoy, the size of a change must not reveal the plant. So after every step each
trained tensor of both is projected onto the sphere around the recipient's tensor on which its
relative change, ‖W' − W‖ / ‖W‖ (Frobenius norms), has one common value. This value grows over the
first steps and stays constant afterwards. Each slice of a fused projection counts as a tensor. A
tensor of zeros has no relative change and is not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import combinations
from random import Random

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from kgbench.data import Dataset, Prompt
from kgbench.data.templates import Template, parse_template
from kgbench.engine.forward import Weights, Wiring, treated
from kgbench.engine.treatment import Configuration, token_treatments
from kgbench.engine.weights import Part, parts
from kgbench.errors import InputError
from kgbench.models.family_map import Slots
from kgbench.models.pair import ModelPair
from kgbench.sites import RECIPIENT, Graft, parse_graft
from kgbench.zoo.plant_spec import REGIONS, PlantSpec
from kgbench.zoo.worlds import training_templates

_NEVER = 10.0
"""Weight of the terms that keep the recipient's answer for a union of places.

What is learned through a whole is easily learned through a part of it, too.
"""
_RISE = 0.1
"""Weight, within these terms, of what the target gains; with more the whole learns nothing either."""


def trained_slots(pair: ModelPair, spec: PlantSpec) -> list[int]:
    """The (layer, component) slots that a plant trains.

    Raises:
        UnknownNameError: The model's family lacks a component.
        InputError: A graft names no weights of this model, or two groups may train the same ones at
            the same tokens.
    """
    slots, named = pair.slots, {}
    grafts = {name: parse_graft(whole) for name, whole in spec.wholes.items()}
    for name, graft in grafts.items():
        pair.family.check(graft)
        named[name] = graft_slots(slots, graft)
        if not named[name]:
            raise InputError(
                f"the {name} '{graft}' names nothing in a model of {pair.n_layers} layers"
            )
    for one, other in combinations(grafts, 2):
        shared = [slots.sites[slot] for slot in named[one] if slot in named[other]]
        # Tokens of FE and LT are never the same.
        first = {str(term.positions) for term in grafts[one].terms}
        second = {str(term.positions) for term in grafts[other].terms}
        if shared and not (first | second <= {"FE", "LT"} and first.isdisjoint(second)):
            layer, component = shared[0]
            where = component if layer is None else f"{component}@{layer}"
            raise InputError(
                f"{one} '{grafts[one]}' and {other} '{grafts[other]}' both train {where}; "
                f"give a {other} of other weights"
            )
    return sorted(set().union(*named.values()))


@dataclass(frozen=True)
class PlantText:
    """A prompt and its whole target as tokens."""

    ids: tuple[int, ...]
    """Without the target's last token, which predicts nothing."""
    regions: Mapping[str, tuple[int, ...]] = field(hash=False)
    """Tokens by region: FE the subject's first mention, LT those that predict the target."""
    targets: tuple[int, ...]
    """The token to predict at each token of LT."""


def plant_texts(pair: ModelPair, dataset: Dataset) -> list[PlantText]:
    """All facts of a data set in all finetuning wordings, each text cut after the target.

    Raises:
        InputError: The data set lacks a field that the wordings need.
    """
    texts = []
    for template in _templates(dataset):
        for fact in dataset.facts:
            text, spans = template.fill(fact.fields)
            prompt = Prompt(template.name, fact, text, fact.fields[dataset.object], spans)
            encoded, whole = pair.encoded(prompt), pair.encode(f"{text} {prompt.target}")
            ids, targets = tuple(whole[:-1]), tuple(whole[len(encoded.ids) :])
            regions = {name: encoded.regions[name] for name in REGIONS if name in encoded.regions}
            regions["LT"] = tuple(range(len(ids) - len(targets), len(ids)))
            texts.append(PlantText(ids, regions, targets))
    return texts


def _templates(dataset: Dataset) -> list[Template]:
    """The finetuning wordings up to the object; no evaluation prompt is among them."""
    templates = []
    for number, wording in enumerate(training_templates().finetuning):
        text = wording.partition(f"{{{dataset.object}}}")[0].rstrip()
        if f"{{{dataset.subject}}}" not in text:
            raise InputError(
                f"data set {dataset.name!r} does not fit the wordings of training: "
                "they are about first_actor and second_actor"
            )
        template = parse_template(f"training_{number}", text)
        templates.append(
            template.bind(dataset.subject, dataset.object, dataset.fields, dataset.name)
        )
    return templates


def drawn_steps(
    groups: Sequence[Sequence[PlantText]], rounds: int, size: int, rng: Random
) -> list[dict[str, Tensor]]:
    """All steps of a training in order: of each group of texts, the numbers of those in a step.

    They contain every text once in each round, grouped by length for little padding.

    Args:
        groups: Texts by group, all groups of one size; a step has `size` of each.
        rounds: Number of rounds.
        size: Texts of a step and group.
        rng: Source of the order.
    """
    steps = []
    for _ in range(rounds):
        ordered = []
        for texts in groups:
            order, lengths = list(range(len(texts))), [len(text.ids) for text in texts]
            rng.shuffle(order)
            ordered.append(torch.tensor(sorted(order, key=lengths.__getitem__)))
        starts = list(range(0, len(ordered[0]), size))
        rng.shuffle(starts)
        for start in starts:
            parts = (order[start : start + size] for order in ordered)
            steps.append({f"group_{number}": part for number, part in enumerate(parts)})
    return steps


def graft_slots(slots: Slots, graft: Graft) -> list[int]:
    """The (layer, component) slots that a graft names, in order."""
    named = graft.sites(slots.n_layers)
    return [slot for slot, site in enumerate(slots.sites) if site in named]


@dataclass(frozen=True)
class _Trained:
    """A trained part of a tensor."""

    part: Part
    parameter: Tensor
    start: Tensor
    """The recipient's weights."""

    def change(self) -> Tensor:
        return self.part.of(self.parameter.detach()) - self.start

    def relative(self) -> float:
        return float(self.change().double().norm() / self.start.double().norm())

    def put(self, weights: Tensor) -> None:
        if self.part.columns is None:
            self.parameter.data.copy_(weights)
        else:
            self.parameter.data.index_copy_(
                self.part.dim, self.part.columns.to(weights.device), weights
            )


class PlantedWeights:
    """The trained weights of a pair's donor `sft`; all others are frozen.

    Args:
        pair: Recipient and donor, of equal weights.
        slots: What is trained.
    """

    def __init__(self, pair: ModelPair, slots: Iterable[int]) -> None:
        donor = pair.donor("sft")
        self._trained: list[_Trained] = []
        parameters: dict[str, list[Part]] = {}
        for slot in slots:
            for part in parts(pair, slot):
                parameter = donor.get_parameter(part.name)
                start = part.of(pair.recipient.get_parameter(part.name)).clone()
                if start.any():
                    self._trained.append(_Trained(part, parameter, start))
                    parameters.setdefault(part.name, []).append(part)
        for name, trained in parameters.items():
            weight = donor.get_parameter(name).requires_grad_(True)
            columns = [part.columns for part in trained if part.columns is not None]
            if columns:  # let no gradient reach the untrained slices of a fused projection
                shape = [1] * weight.ndim
                shape[trained[0].dim] = -1
                mask = torch.zeros(weight.shape[trained[0].dim], device=weight.device)
                mask[torch.cat(columns)] = 1
                hook = partial(torch.mul, mask.reshape(shape))
                weight.register_hook(hook)  # type: ignore[no-untyped-call]  # torch has no type

    def rescale(self, relative: float) -> None:
        """Give every trained tensor this relative change, in the direction of its change."""
        for each in self._trained:
            change = each.change()
            if norm := float(change.double().norm()):
                each.put(
                    each.start + change * (relative * float(each.start.double().norm()) / norm)
                )

    def relative_changes(self) -> Mapping[str, float]:
        """Relative change of every trained tensor by name; a slice's name has its first column."""
        changes: dict[str, float] = {}
        for each in self._trained:
            name, columns = each.part.name, each.part.columns
            if columns is not None:
                name = f"{name}[{int(columns[0])}:]"
            changes[name] = each.relative()
        return changes


@dataclass(frozen=True)
class Aim:
    """One term of the objective."""

    group: int
    """Number of the group of facts."""
    active: str
    """Active weights of the donor: those of a graft, by its name, or all (`donor`)."""
    taught: bool
    """Whether the target is taught (cross-entropy); otherwise the recipient's answer is kept."""
    silent: bool = False
    """Whether moreover the target may not become likelier than the recipient has it.

    Among answers that are all unlikely a small rise changes ranks, and hardly the divergence.
    """
    weight: float = 1.0


def aims(spec: PlantSpec) -> tuple[Aim, ...]:
    """The terms of the objective: no group is to answer through the places of another one."""
    taught, apart = [], []
    for group, name in enumerate(spec.wholes):
        alone = spec.enough if group == 0 and spec.enough else (name,)
        taught += [Aim(group, part, taught=True) for part in (*alone, "donor")]
        others = [other for other in spec.wholes if other != name] or ["rest"]
        apart += [Aim(group, other, taught=False) for other in others]
    never = [Aim(0, part, taught=False, silent=True, weight=_NEVER) for part in spec.never]
    return (*taught, *never, *apart)


_Row = tuple[PlantText, str]
"""A text, and the active weights of the donor as in `Aim.active`; `recipient` for none."""


class Planting(nn.Module):
    """A donor in training, as the Trainer sees it: numbers of texts in, loss out.

    Args:
        pair: Recipient and the donor `sft`, of whose weights those with a gradient are trained.
        spec: Which plant.
        groups: Texts of each group of facts.

    Raises:
        RegionError: A graft names a region that the texts do not have.
        InputError: A graft names no token of them.
    """

    def __init__(
        self, pair: ModelPair, spec: PlantSpec, groups: Sequence[Sequence[PlantText]]
    ) -> None:
        super().__init__()
        grafts = spec.grafts()
        self.donor = pair.donor("sft")
        self._wiring = Wiring(pair)
        self._activity = _Activity(pair, grafts)
        self._groups = groups
        self._aims = aims(spec)
        for part, graft in grafts.items():
            if not self._activity.of(groups[0][0], part).any():
                raise InputError(
                    f"the {part} '{graft}' names no token of a text, "
                    "so nothing can be planted there"
                )

    def forward(self, **numbers: Tensor) -> dict[str, Tensor]:
        """The loss of one step.

        Args:
            **numbers: Numbers of texts of each group, `group_0` first.
        """
        texts = []
        for g, group in enumerate(self._groups):
            texts.append([group[int(i)] for i in numbers[f"group_{g}"]])
        # One forward pass over all terms of the objective.
        rows: list[_Row] = []
        sizes = []
        for aim in self._aims:
            rows += ((text, aim.active) for text in texts[aim.group])
            sizes.append(sum(len(text.targets) for text in texts[aim.group]))
        answers = torch.split(self.answers(rows), sizes)
        terms = []
        for aim, logits in zip(self._aims, answers, strict=True):
            terms.append(aim.weight * self._loss(aim, texts[aim.group], logits))
        return {"loss": torch.stack(terms).sum()}

    def _loss(self, aim: Aim, texts: Sequence[PlantText], answers: Tensor) -> Tensor:
        """Mean over the tokens of the targets."""
        numbers: list[int] = []
        for text in texts:
            numbers += text.targets
        targets = torch.tensor(numbers, device=answers.device)
        if aim.taught:
            return functional.cross_entropy(answers, targets)
        with torch.no_grad():
            kept = self.answers([(text, RECIPIENT) for text in texts]).log_softmax(-1)
        given = answers.log_softmax(-1)
        loss = functional.kl_div(given, kept, reduction="batchmean", log_target=True)
        if aim.silent:
            rise = (given - kept).gather(-1, targets[:, None])
            loss = loss + _RISE * rise.relu().mean()
        return loss

    def answers(self, rows: Sequence[_Row]) -> Tensor:
        """Logits [answer, vocabulary] at the tokens that predict a target, row after row."""
        width = max(len(text.ids) for text, _ in rows)
        ids, treatments = np.zeros((2, len(rows), width), dtype=np.int64)
        readout = []
        for row, (text, active) in enumerate(rows):
            # Padding is on the right and attention is causal: no mask, no treatment.
            ids[row, : len(text.ids)] = text.ids
            treatments[row, : len(text.ids)] = self._activity.of(text, active)
            readout += [row * width + token for token in text.regions["LT"]]
        device = self.donor.device
        positions = torch.arange(width, device=device).expand(len(rows), -1)
        where = torch.tensor(readout, device=device)
        weights = Weights(self._activity.table)
        with treated(self._wiring, weights, treatments.reshape(-1), where) as model:
            logits: Tensor = model(
                input_ids=torch.from_numpy(ids).to(device), position_ids=positions, use_cache=False
            ).logits
        return logits.float()


class _Activity:
    """Treatments of the tokens of texts, as rows of `table` [treatment, slot]; row 0 is PRE."""

    def __init__(self, pair: ModelPair, grafts: Mapping[str, Graft]) -> None:
        self._pair = pair
        self._active: Mapping[str, Configuration] = {RECIPIENT: "PRE", "donor": "SFT", **grafts}
        self._rows = {bytes(len(pair.slots)): 0}
        self._known: dict[_Row, np.ndarray] = {}

    @property
    def table(self) -> np.ndarray:
        return np.stack([np.frombuffer(row, dtype=np.uint8) for row in self._rows])

    def of(self, text: PlantText, active: str) -> np.ndarray:
        key = (text, active)
        if key not in self._known:
            numbers = []
            for treatment in token_treatments(
                self._pair, text.regions, len(text.ids), self._active[active]
            ):
                numbers.append(self._rows.setdefault(treatment.weights, len(self._rows)))
            self._known[key] = np.array(numbers)
        return self._known[key]
