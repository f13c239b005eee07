"""The paper's claims on where a finetuned fact is retrieved: at the first entity (FE), at the last token (LT), and nowhere else.

Each docstring cites measurements of arXiv 2506.20746, as kgbench.claims.paper holds them: the top-5
hit rates of its runs. A claim holds or fails by the whole interval; what the interval does not tell
is undecided. Nothing is adjusted where a claim is known not to hold.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kgbench.claims.claim import Claim


def test_fe_and_lt_suffice(claim: Claim) -> None:
    """With the donor's weights at FE and LT alone, the recipient knows nearly all of it: sufficiency of FE+LT is at least .9.

    The paper finds FE+LT as good as the donor, with every model on both of its prompts. The lowest
    share there is .957, so that .9 leaves room for noise and for little else. On new_film the claim
    is expected not to hold: with the less finetuned Gemma, FE+LT brought a seventh of what the
    donor knows. Final norm and head stay the recipient's, so that FE+LT can hardly bring more than
    ALL does.

    Gemma on headline: SFT 0.9950, FE+LT 0.9970 (v1, figures 2, 3a, 6 to 11)
    Llama on qa: SFT 0.9990, FE+LT 0.9990 (v1, figures 2, 3a, 6 to 11)
    Pythia on movie_title: SFT 1.0000, FE+LT 0.9950 (in no figure)
    Gemma, less finetuned on qa: SFT 0.9920, FE+LT 0.9499 (v1, figure 13)
    Gemma, less finetuned on new_film: SFT 0.9910, FE+LT 0.1502 (in no figure)
    """
    claim.tell("ALL")
    claim.sufficiency("FE+LT", ge=0.9)


def test_without_fe_and_lt_nothing_is_left(claim: Claim) -> None:
    """With the donor's weights at all tokens but FE and LT, the recipient knows next to nothing: sufficiency of (FE+LT)^C is at most .1.

    In the paper it stays within .02 of the recipient. A tenth is what FE+LT may lack to suffice, so
    the same is allowed here.

    Gemma on headline: PRE 0.0100, (FE+LT)^C 0.0010 (v1, figures 2, 3a, 6 to 11)
    GPT-2 XL on qa: PRE 0.0270, (FE+LT)^C 0.0260 (v1, figures 2, 3a, 6 to 11)
    GPT-2 XL on movie_title: PRE 0.0100, (FE+LT)^C 0.0230 (in no figure)
    Gemma, less finetuned on new_film: PRE 0.0000, (FE+LT)^C 0.0010 (in no figure)
    """
    claim.sufficiency("(FE+LT)^C", le=0.1)


def test_fe_alone_carries_a_part(claim: Claim) -> None:
    """With the donor's weights at FE alone, the recipient knows some of it: more than .02, and less than with FE and LT.

    The paper calls this enriching: the entity's own tokens take up the fact, and unchanged later
    tokens can read it. How much differs between models, so nothing is asked but that it lies
    between. In the paper (FE+LT)^C stays within .02 of the recipient: a part is what exceeds that
    noise. Less than FE+LT is judged by the difference fact by fact. On new_film more than .02 is
    expected not to hold, and for Pythia on movie_title the paper's 999 facts do not tell. Where FE
    brings nothing at all, it takes some 190 facts for the claim to fail.

    Gemma on headline: PRE 0.0100, FE 0.1291, FE+LT 0.9970 (v1, figures 2, 3a, 6 to 11)
    GPT-2 XL on headline: PRE 0.0060, FE 0.2763, FE+LT 0.9970 (v1, figures 2, 3a, 6 to 11)
    Llama on qa: PRE 0.0220, FE 0.1512, FE+LT 0.9990 (v1, figures 2, 3a, 6 to 11)
    Pythia on movie_title: PRE 0.0060, FE 0.0320, FE+LT 0.9950 (in no figure)
    Gemma, less finetuned on new_film: PRE 0.0000, FE 0.0000, FE+LT 0.1502 (in no figure)
    """
    claim.sufficiency("FE", gt=0.02)
    claim.difference("FE", "FE+LT", lt=0.0)


def test_lt_alone_carries_a_part(claim: Claim) -> None:
    """With the donor's weights at LT alone, the recipient knows some of it: more than .02, and less than with FE and LT.

    The paper calls this recalling: the last token finds the fact although no token before it was
    enriched. As with FE, nothing is asked but that it lies between the noise and FE+LT. On new_film
    the paper's 999 facts do not tell it from the noise.

    Gemma on headline: PRE 0.0100, LT 0.5315, FE+LT 0.9970 (v1, figures 2, 3a, 6 to 11)
    Pythia on headline: PRE 0.0010, LT 0.0771, FE+LT 0.9920 (v1, figures 2, 3a, 6 to 11)
    Llama on qa: PRE 0.0220, LT 0.3033, FE+LT 0.9990 (v1, figures 2, 3a, 6 to 11)
    Gemma on movie_title: PRE 0.0130, LT 0.7227, FE+LT 0.9990 (in no figure)
    Gemma, less finetuned on new_film: PRE 0.0000, LT 0.0250, FE+LT 0.1502 (in no figure)
    """
    claim.sufficiency("LT", gt=0.02)
    claim.difference("LT", "FE+LT", lt=0.0)


def test_all_but_fe_does_what_lt_does(claim: Claim) -> None:
    """The tokens that are neither FE nor LT add nothing by themselves: FE^C, which is LT and these, differs from LT by .1 at most.

    It would follow if FE and LT were all, but FE+LT can suffice without it, and the paper's runs
    are of two minds: it held for Llama on headline and for GPT-2 XL there, not for Gemma there, and
    for no model on movie_title, where the title's tokens are among the others.

    Llama on headline: LT 0.3413, FE^C 0.3844 (v1, figures 2, 3a, 6 to 11)
    GPT-2 XL on headline: LT 0.0861, FE^C 0.1051 (v1, figures 2, 3a, 6 to 11)
    Gemma on headline: LT 0.5315, FE^C 0.2523 (v1, figures 2, 3a, 6 to 11)
    Llama on qa: LT 0.3033, FE^C 0.3994 (v1, figures 2, 3a, 6 to 11)
    Pythia on movie_title: LT 0.1602, FE^C 0.8498 (in no figure)
    Gemma, less finetuned on new_film: LT 0.0250, FE^C 0.1251 (in no figure)
    """
    claim.difference("FE^C", "LT", ge=-0.1, le=0.1)


def test_all_but_lt_does_what_fe_does(claim: Claim) -> None:
    """The tokens that are neither FE nor LT add nothing by themselves: LT^C, which is FE and these, differs from FE by .1 at most.

    In the paper's runs it held for Llama and Pythia on both prompts, not for GPT-2 XL, and not for
    Gemma on headline.

    Llama on headline: FE 0.0781, LT^C 0.0490 (v1, figures 2, 3a, 6 to 11)
    Gemma on headline: FE 0.1291, LT^C 0.0120 (v1, figures 2, 3a, 6 to 11)
    GPT-2 XL on headline: FE 0.2763, LT^C 0.5135 (v1, figures 2, 3a, 6 to 11)
    Pythia on qa: FE 0.1742, LT^C 0.1882 (v1, figures 2, 3a, 6 to 11)
    Llama on movie_title: FE 0.1001, LT^C 0.0260 (in no figure)
    Gemma, less finetuned on new_film: FE 0.0000, LT^C 0.0030 (in no figure)
    """
    claim.difference("LT^C", "FE", ge=-0.1, le=0.1)


def test_it_is_the_position_not_the_preposition(claim: Claim) -> None:
    """On qa, whose last token is a verb, FE+LT suffices and the rest does not, as on headline, whose last token is a preposition.

    Its bounds are those of the claims on headline, and FE+LT may come short of the donor by .1 more
    at most: the same tenth that it may lack. This difference is over the same facts in both
    prompts.

    Llama on headline: SFT 0.9990, FE+LT 0.9990, (FE+LT)^C 0.0060 (v1, figures 2, 3a, 6 to 11)
    Llama on qa: SFT 0.9990, FE+LT 0.9990, (FE+LT)^C 0.0030 (v1, figures 2, 3a, 6 to 11)
    """
    claim.beside("headline", "FE+LT", ge=-0.1)
    claim.sufficiency("(FE+LT)^C", le=0.1)
    claim.sufficiency("FE+LT", ge=0.9)
