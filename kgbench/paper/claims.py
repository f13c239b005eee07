"""The paper's claims as tests: `pytest --pyargs kgbench.paper.claims --kgbench-model NAME`.

A finetuned fact is retrieved at the first entity (FE) and last token (LT), says arXiv 2506.20746.
Bounds lie between values that the paper's top-5 hit rates separate, not between those of any pair;
`kgbench reproduce` asks more of a pair of the catalog, with differences between configurations.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kgbench.testing import assert_localized, assert_not_at

if TYPE_CHECKING:
    from kgbench.records import Record


def test_fe_and_lt_suffice(evaluation: Record) -> None:
    """With the donor's weights at FE and LT alone, sufficiency is at least .9.

    The lowest share in the paper is .957, with every model on both of its prompts. On new_film the
    claim is expected not to hold: with the less finetuned Gemma, FE+LT brought a seventh of what
    the donor knows.
    """
    assert_localized(evaluation, "FE+LT", sufficiency__ge=0.9)


def test_without_fe_and_lt_nothing_is_left(evaluation: Record) -> None:
    """With the donor's weights at all tokens but FE and LT, sufficiency is at most .1.

    In the paper it stays within .02 of the recipient. A tenth is what FE+LT may lack to suffice.
    """
    assert_not_at(evaluation, "(FE+LT)^C", sufficiency__le=0.1)


def test_fe_alone_carries_a_part(evaluation: Record) -> None:
    """With the donor's weights at FE alone, sufficiency is above .02 and below .9.

    The paper calls this enriching: the entity's own tokens take up the fact, and unchanged later
    tokens can read it. How much differs between models; .02 is the noise of (FE+LT)^C.
    """
    assert_localized(evaluation, "FE", sufficiency__gt=0.02, sufficiency__lt=0.9)


def test_lt_alone_carries_a_part(evaluation: Record) -> None:
    """With the donor's weights at LT alone, sufficiency is above .02 and below .9.

    The paper calls this recalling: the last token finds the fact although no token before it was
    enriched.
    """
    assert_localized(evaluation, "LT", sufficiency__gt=0.02, sufficiency__lt=0.9)
