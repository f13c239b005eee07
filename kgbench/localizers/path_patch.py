"""Path patching between two models."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

from kgbench.data import Prompt
from kgbench.engine.edits import POINTS, Copy, Edit, Hook, SourceRun, Treatment
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers._base import InterventionLocalizer, Treatments, Unit
from kgbench.localizers._hooks import (
    EMBEDDINGS,
    Reading,
    donor_runs,
    hook_units,
    own_run,
    read_sites,
    treat_each,
)
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, Site, parse_graft

SENDERS = (EMBEDDINGS, "attn_out", "mlp_out")


@dataclass(frozen=True)
class PathPatch(InterventionLocalizer):
    """Direct effect of some sites, the senders, on a receiver (arXiv 2211.00593, 2304.05969).

    A hidden run of the recipient has the donor's output at each sender, and its own outputs of
    attention and MLP from its plain run everywhere else; only the receiver is recomputed. The
    recipient then runs with the receiver's output from the hidden run, at all tokens.

    The receiver `logits` is the final residual stream at the last token: the hidden run itself is
    read out, so that only senders at the last token can have an effect, and all senders at all
    tokens, with final norm and head, are the donor. A receiver inside the layers gets the output of
    the senders upstream of it, at all tokens. An expression whose senders are all out of the
    receiver's reach is not applicable; `NONE` has no senders and is the recipient.

    `attn_out` is a sender where an expression names the components of attention and its norms,
    `mlp_out` where it names those of the MLP and its norms, and the input of layer 0 where it names
    the embeddings; expressions without components name all of them.

    A scan measures each sender within the receiver's reach, at one region at a time. All other
    sites have no direct effect and score 0.
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
            InputError: There is no such receiver.
        """
        if not re.fullmatch(r"logits|(attn_out|mlp_out)@\d+", self.receiver):
            raise InputError(
                f"{self.name} has no receiver {self.receiver!r}: "
                "give logits, or a hook and its layer such as attn_out@3 or mlp_out@3"
            )

    @property
    def reaches_donor(self) -> bool:
        """Whether the receiver is the residual stream that is read out."""
        return self.receiver == "logits"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """The hidden run itself, or the recipient's run with the receiver's output from it.

        Raises:
            InputError: The receiver's layer does not exist.
            NotApplicableError: No sender has a direct path to the receiver.
        """
        receiver = self._receiver(pair)

        def patch(prompt: Prompt, reading: Reading) -> tuple[Treatment, ...]:
            if any(reading.kept) and not _reachable(pair, reading, receiver):
                why = (
                    "only the last token sends to the logits directly"
                    if receiver is None
                    else "none comes before it in the computation"
                )
                raise NotApplicableError(
                    f"{self.name} sends to {self.receiver}, "
                    f"which can hear none of these senders: {why}"
                )
            hidden = self._hidden(pair, reading, receiver)
            if receiver is None:
                return hidden
            run = SourceRun(hidden)
            return reading.edited(lambda token: (Copy(receiver, run),))

        return treat_each(prompts, read_sites(self, pair, prompts, sites, SENDERS), patch)

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """One measurement per reachable sender and region, and `NONE` for all other sites."""
        receiver = self._receiver(pair)
        units: list[Unit] = []
        others: list[Site] = []
        for unit in hook_units(pair, prompts, SENDERS):
            reading = read_sites(self, pair, prompts[:1], unit.graft, SENDERS)[0]
            if _reachable(pair, reading, receiver):
                units.append(unit)
            else:
                others += unit.sites
        if others:
            units.append(Unit(parse_graft("NONE"), tuple(others)))
        return units

    def _receiver(self, pair: ModelPair) -> Hook | None:
        if self.receiver == "logits":
            return None
        point, _, layer = self.receiver.partition("@")
        if int(layer) >= pair.n_layers:
            raise InputError(
                f"the receiver {self.receiver} does not exist: "
                f"the model has layers 0-{pair.n_layers - 1}"
            )
        return Hook(int(layer), point)

    def _hidden(
        self, pair: ModelPair, reading: Reading, receiver: Hook | None
    ) -> tuple[Treatment, ...]:
        """The hidden run, up to the receiver: senders are the donor's, all else is frozen.

        Up to the layer of the first sender it is the recipient's run, which needs no freezing.
        """
        last, donors = len(reading.base) - 1, donor_runs(pair, reading)
        plain = own_run(pair, len(reading.base), 0)
        stop = pair.n_layers if receiver is None else receiver.layer + 1
        senders = reading.kept[last:] if receiver is None else reading.kept
        first = min((hook.layer for hook in chain.from_iterable(senders)), default=stop)
        frozen: dict[Hook, Edit] = {}
        for layer in range(first, stop):
            for point in sorted(SENDERS[1:]):
                if (hook := Hook(layer, point)) != receiver:
                    frozen[hook] = Copy(hook, plain)

        def edits(token: int) -> Iterable[Edit]:
            if receiver is None and token < last:
                # Attention's output is frozen at the last token: earlier ones cannot reach it.
                return ()
            by_hook = dict(frozen)
            for hook, donor in reading.kept[token].items():
                if hook != receiver:
                    by_hook[hook] = Copy(hook, donors[donor])
            return by_hook.values()

        return reading.edited(edits)


def _reachable(pair: ModelPair, reading: Reading, receiver: Hook | None) -> bool:
    """Whether some sender adds to the input of the receiver."""
    if receiver is None:
        return bool(reading.kept[-1])
    # With parallel residuals, attention and MLP of a layer have the same input.
    parallel = getattr(pair.recipient.config, "use_parallel_residual", False)
    upstream = POINTS[: 1 if parallel else POINTS.index(receiver.point)]
    for hooks in reading.kept:
        for hook in hooks:
            if hook.layer < receiver.layer:
                return True
            if hook.layer == receiver.layer and hook.point in upstream:
                return True
    return False
