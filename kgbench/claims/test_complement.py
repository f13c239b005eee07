"""The complement identity: exact, a property of grafting itself, whatever was learned."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from kgbench.claims import cites

if TYPE_CHECKING:
    from kgbench.data import Prompt
    from kgbench.models.pair import ModelPair

    Note = Callable[[str], None]


@cites(
    "Gemma on headline: FE+LT, (FE+LT)^C",
)
def test_a_graft_is_all_else_grafted_the_other_way(
    model_pair: ModelPair, own_prompts: Sequence[Prompt], note: Note
) -> None:
    """Grafting FE, LT or both equals grafting the recipient's other tokens into the donor.

    Two names for one model: each site's weights come from the same side in both. All else is the
    other tokens and, since the default components leave them out, final norm and head everywhere.
    So a configuration of arXiv 2506.20746 can be read from both ends: (FE+LT)^C is what finetuning
    does without FE and LT, and what the finetuned model keeps when they are taken from it. Logits
    must agree to rounding, and the token that leads must be the same.
    """
    from kgbench.claims.claim import assert_complement_identity
    from kgbench.numbers import plain_text

    note(plain_text(assert_complement_identity(model_pair, own_prompts), 2))


@cites(
    "Gemma on headline: FE, FE^C",
)
def test_and_the_other_way_round(
    model_pair: ModelPair, own_prompts: Sequence[Prompt], note: Note
) -> None:
    """The recipient's FE, LT or both in the donor equal the donor's other tokens in the recipient.

    The identity of arXiv 2506.20746's configurations with the roles of the models exchanged; it
    holds for any two of one architecture.
    """
    from kgbench.claims.claim import assert_complement_identity, exchanged
    from kgbench.numbers import plain_text

    note(plain_text(assert_complement_identity(exchanged(model_pair), own_prompts), 2))
