"""Assertions of the claims: bounds of estimates on a prompt, and the complement identity."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from kgbench.data import Prompt
from kgbench.engine import grafted_logits
from kgbench.engine.selftest import tolerance
from kgbench.engine.treatment import baseline_donor
from kgbench.estimate import Estimate
from kgbench.models.pair import ModelPair
from kgbench.numbers import figure_text, plain_text
from kgbench.paper.contrasts import between_configurations, between_prompts
from kgbench.records import Record
from kgbench.sites import complement
from kgbench.stats.scores import PromptColumns
from kgbench.testing.decisions import Decision, conclude


@dataclass(frozen=True)
class Claim:
    """A record on one prompt. Bounds are given by operator: `ge`, `gt`, `le` or `lt`."""

    prompt: str
    record: Record
    rows: Mapping[str, PromptColumns]
    """Per-fact rows of each prompt."""
    note: Callable[[str], None]
    """Callback for a line of the test's report."""

    def sufficiency(self, graft: str, **bounds: float) -> None:
        """The sufficiency of a configuration keeps bounds.

        Raises:
            AssertionError: The whole interval breaks one.
        """
        __tracebackhide__ = True
        self._keeps(self.noted(graft), f"{self.prompt}, {graft}: sufficiency", bounds)

    def noted(self, graft: str) -> Estimate:
        """Note the sufficiency of a configuration in the test's report, without a claim."""
        rows = {(row.prompt, row.graft): row for row in self.record.rows}
        found = rows[self.prompt, graft].sufficiency
        self.note(f"{graft} {figure_text(found)}")
        return found

    def difference(self, first: str, second: str, **bounds: float) -> None:
        """The sufficiency of one configuration less that of another, fact by fact, keeps bounds.

        Raises:
            AssertionError: The whole interval breaks one.
        """
        __tracebackhide__ = True
        found = between_configurations(self.rows[self.prompt], self.record.metric, first, second)
        self._difference(
            found,
            f"{first} − {second}",
            f"{self.prompt}, {first}: sufficiency less that of {second}",
            bounds,
        )

    def prompt_difference(self, other: str, graft: str, **bounds: float) -> None:
        """The sufficiency of a configuration less that on another prompt keeps bounds.

        Raises:
            AssertionError: The whole interval breaks one.
        """
        __tracebackhide__ = True
        found = between_prompts(self.rows[self.prompt], self.rows[other], self.record.metric, graft)
        self._difference(
            found,
            f"{graft}, {self.prompt} − {other}",
            f"{self.prompt}, {graft}: sufficiency less that on {other}",
            bounds,
        )

    def _difference(
        self, figure: Estimate, short: str, what: str, bounds: Mapping[str, float]
    ) -> None:
        __tracebackhide__ = True
        estimate = figure.rounded()
        self.note(f"{short} {figure_text(estimate)}")
        self._keeps(estimate, what, bounds)

    def _keeps(self, estimate: Estimate, what: str, bounds: Mapping[str, float]) -> None:
        """Undecided, with the reason, where a method cannot express a configuration."""
        __tracebackhide__ = True
        conclude([Decision(estimate, op, bound, what) for op, bound in bounds.items()])


SITES = ("FE", "LT", "FE+LT")
PROMPTS = 32
"""What holds of the method holds on any prompts; so many are tried."""


def exchanged(pair: ModelPair) -> ModelPair:
    """The same two models with their roles exchanged; nothing is loaded or copied."""
    donor = baseline_donor(pair)
    return ModelPair(
        pair.name,
        pair.donors[donor],
        {donor: pair.recipient},
        pair.tokenizer,
        pair.family,
        chat_template=pair.chat_template,
    )


def everything_else(positions: str) -> str:
    """Sites outside a graft of whole positions: other tokens, final norm and head."""
    return f"{complement(positions)}; ALL:ln_f+head"


def assert_complement_identity(pair: ModelPair, prompts: Sequence[Prompt]) -> float:
    """Grafting sites into the recipient answers as grafting everything else into the donor does.

    Args:
        pair: The models.
        prompts: Prompts; only the first of them are tried.

    Returns:
        The largest difference of two logits.

    Raises:
        AssertionError: Logits differ by more than rounding, or other tokens lead by more than that.
    """
    __tracebackhide__ = True
    some = prompts[:PROMPTS]
    one = grafted_logits(pair, some, SITES, "auto").double()
    rest = list(map(everything_else, SITES))
    other = grafted_logits(exchanged(pair), some, rest, "auto").double()
    differences = (one - other).abs().amax(dim=(0, 2)).tolist()
    for i, (sites, apart) in enumerate(zip(SITES, differences, strict=True)):
        rounding = tolerance(pair, one[:, i])
        what = (
            f"{sites} into the recipient and '{everything_else(sites)}' into the donor, "
            f"over {len(some)} prompts"
        )
        assert apart <= rounding, (
            f"{what}: logits differ by {plain_text(apart, 3)}, more than rounding's "
            f"{plain_text(rounding, 3)}"
        )
        changed = _leads(one[:, i], rounding) & (one[:, i].argmax(-1) != other[:, i].argmax(-1))
        assert not changed.any(), f"{what}: another token leads on {int(changed.sum())} of them"
    return float(max(differences))


def _leads(logits: torch.Tensor, rounding: float) -> torch.Tensor:
    """Where the first token is before the second by more than rounding."""
    first, second = logits.topk(2).values.unbind(-1)
    return first - second > rounding
