"""Path patching between two models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Copy, Edit, Hook, Run
from kgbench.engine.treatment import Treatment
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._hooks import (
    EMBEDDINGS,
    Reading,
    donor_runs,
    hook_units,
    own_run,
    read,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, Site, parse_graft

__all__ = ["PathPatch"]

SENDERS = (EMBEDDINGS, "attn_out", "mlp_out")


@dataclass(frozen=True)
class PathPatch(InterventionLocalizer):
    """What some sites, the senders, tell a receiver directly, with all else frozen (arXiv 2211.00593, 2304.05969).

    A hidden run of the recipient has the donor's output of each sender and, everywhere else, the recipient's own output of attention and
    MLP as in its plain run; only the receiver computes from what it gets. Then the recipient runs with the receiver's output, at all
    tokens, from the hidden run. The receiver `logits` is the final residual stream at the last token: the hidden run is read out itself, so
    that only senders at that token can matter, and all senders at all tokens, with final norm and head, are the donor. A receiver inside
    the layers gets what senders before it add to the stream, at all tokens. Where an expression keeps senders but the receiver can hear
    none of them, it is not applicable; `NONE` keeps none, and is the recipient.

    `attn_out` is a sender where an expression names the components of attention and its norms, `mlp_out` those of the MLP and its norms,
    the input of layer 0 where it names the embeddings; expressions without components name all of them.

    A scan measures each sender at one region that the receiver can hear. What it cannot hear has no direct effect on it, so that all other
    sites score 0.
    """

    name = "path_patch"
    about = (
        "donor's outputs of some sites sent to one receiver, all else frozen to the recipient's run"
    )
    paper = "arXiv 2304.05969"

    receiver: str = "logits"
    """`logits`, or a hook such as `attn_out@3` or `mlp_out@3`."""

    def __post_init__(self) -> None:
        """Check the parameters.

        Raises:
            InputError: The receiver is none.
        """
        if not re.fullmatch(r"logits|(attn_out|mlp_out)@\d+", self.receiver):
            raise InputError(
                f"{self.name} has no receiver {self.receiver!r}: give logits, or a hook and its layer such as attn_out@3 or mlp_out@3"
            )

    @property
    def reaches_donor(self) -> bool:
        """Whether the answer is read where the senders send to."""
        return self.receiver == "logits"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """The hidden run itself, or the recipient's with the receiver's output from it.

        Raises:
            InputError: The receiver is in a layer that the model does not have.
            NotApplicableError: The receiver can hear none of the senders.
        """
        receiver = self._receiver(pair)

        def patched(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            if any(reading.kept) and not _hears(pair, reading, receiver):
                why = (
                    "only the last token sends to the logits directly"
                    if receiver is None
                    else "none comes before it in the computation"
                )
                raise NotApplicableError(
                    f"{self.name} sends to {self.receiver}, which can hear none of these senders: {why}"
                )
            hidden = self._hidden(pair, reading, receiver)
            if receiver is None:
                return hidden
            run = Run(hidden)
            return reading.edited(lambda token: (Copy(receiver, run),))

        return treat_each(prompts, read(self, pair, prompts, sites, SENDERS), patched)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One sender at one region each, as far as it is heard, and nothing for all other sites together."""
        receiver, units = self._receiver(pair), hook_units(pair, prompts, SENDERS)
        heard: list[Unit] = []
        others: list[Site] = []
        for unit in units:
            if _hears(pair, read(self, pair, prompts[:1], unit.graft, SENDERS)[0], receiver):
                heard.append(unit)
            else:
                others += unit.sites
        return [*heard, *([Unit(parse_graft("NONE"), tuple(others))] if others else [])]

    def _receiver(self, pair: ModelPair) -> Hook | None:
        if self.receiver == "logits":
            return None
        point, _, layer = self.receiver.partition("@")
        if int(layer) >= pair.n_layers:
            raise InputError(
                f"the receiver {self.receiver} does not exist: the model has layers 0-{pair.n_layers - 1}"
            )
        return Hook(int(layer), point)

    def _hidden(
        self, pair: ModelPair, reading: Reading, receiver: Hook | None
    ) -> tuple[Treatment, ...]:
        """The run in which senders are the donor's and nothing but the receiver computes, as far as it matters to the receiver."""
        last, donors = len(reading.base) - 1, donor_runs(pair, reading)
        plain, layers = (
            own_run(pair, len(reading.base), 0),
            range(pair.n_layers if receiver is None else receiver.layer + 1),
        )
        hooks = {Hook(layer, point) for layer in layers for point in SENDERS[1:]} - {receiver}
        frozen: dict[Hook, Edit] = {hook: Copy(hook, plain) for hook in sorted(hooks)}

        def edits(token: int) -> Iterable[Edit]:
            if receiver is None and token < last:
                return ()  # all that the last token could get from it is frozen
            senders = reading.kept[token].items()
            return {
                **frozen,
                **{hook: Copy(hook, donors[donor]) for hook, donor in senders if hook != receiver},
            }.values()

        return reading.edited(edits)


def _hears(pair: ModelPair, reading: Reading, receiver: Hook | None) -> bool:
    """Whether some sender that is kept adds to what the receiver computes from."""
    if receiver is None:
        return bool(reading.kept[-1])
    parallel = getattr(
        pair.recipient.config, "use_parallel_residual", False
    )  # attention and MLP of a layer have one input
    before = POINTS[: 1 if parallel else POINTS.index(receiver.point)]
    return any(
        h.layer < receiver.layer or (h.layer == receiver.layer and h.point in before)
        for kept in reading.kept
        for h in kept
    )
