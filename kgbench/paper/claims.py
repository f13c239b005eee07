"""The paper's claims as tests: `pytest --pyargs kgbench.paper.claims --kgbench-model NAME`.

A finetuned fact is retrieved at the first entity (FE) and last token (LT). Each docstring cites
measurements of arXiv 2506.20746: the top-5 hit rates of its runs. A claim holds or fails by the
whole interval, and is undecided otherwise. Bounds lie between values that the paper's figures
separate, not between those of any pair, and nothing is adjusted where a claim is known not to hold.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, TypeVar

import pytest

from kgbench.paper.claim_session import check_applicable, running
from kgbench.testing.session import in_a_line

if TYPE_CHECKING:
    from kgbench.data import Prompt
    from kgbench.models.pair import ModelPair
    from kgbench.paper.claim import Claim
    from kgbench.records import Record
    from kgbench.stats.scores import PromptColumns

    Note = Callable[[str], None]

Test = TypeVar("Test", bound=Callable[..., None])


def cites(*lines: str) -> Callable[[Test], Test]:
    """Cite the paper's rates in a test's docstring.

    Args:
        lines: Such as `Gemma on qa: SFT, FE+LT`, see `kgbench.paper.published.cited`.
    """
    from kgbench.paper.published import cited

    def decorate(test: Test) -> Test:
        claim = inspect.cleandoc(test.__doc__ or "")
        test.__doc__ = "\n".join([claim, "", *map(cited, lines)])
        return test

    return decorate


@pytest.fixture(scope="session")
def model_pair(pytestconfig: pytest.Config) -> ModelPair:
    """The model pair that the options name."""
    with in_a_line():
        return running(pytestconfig).model_pair


@pytest.fixture(scope="session")
def prompts(pytestconfig: pytest.Config) -> list[Prompt]:
    """The facts in each prompt of the claims."""
    with in_a_line():
        return running(pytestconfig).prompts


@pytest.fixture
def own_prompts(prompt: str, prompts: Sequence[Prompt]) -> list[Prompt]:
    """The facts in one prompt."""
    return [each for each in prompts if each.name == prompt]


@pytest.fixture(scope="session")
def evaluation(pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory) -> Record:
    """The record of the localizer on all prompts of the claims."""
    with in_a_line():
        session = running(pytestconfig)
        check_applicable(session.spec)
        return session.evaluate(tmp_path_factory.mktemp("kgbench"))


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config, evaluation: Record) -> Mapping[str, PromptColumns]:
    """The per-fact rows behind the record, by prompt."""
    from kgbench.records.store import read_record
    from kgbench.stats.scores import by_prompt

    facts = read_record(running(pytestconfig).folders[evaluation.id]).facts()
    return {prompt.name: prompt for prompt in by_prompt(facts, ())}


@pytest.fixture
def note(request: pytest.FixtureRequest) -> Note:
    """Note a figure in the test's report, as a property in JUnit's XML, whatever the outcome."""
    return lambda figure: request.node.user_properties.append(("figure", figure))


@pytest.fixture
def claim(prompt: str, evaluation: Record, rows: Mapping[str, PromptColumns], note: Note) -> Claim:
    """The evaluation on one prompt."""
    from kgbench.paper.claim import Claim

    return Claim(prompt, evaluation, rows, note)


@cites(
    "Gemma on headline: SFT, FE+LT",
    "Llama on qa: SFT, FE+LT",
    "Pythia on movie_title: SFT, FE+LT",
    "Gemma, less finetuned on qa: SFT, FE+LT",
    "Gemma, less finetuned on new_film: SFT, FE+LT",
)
def test_fe_and_lt_suffice(claim: Claim) -> None:
    """With the donor's weights at FE and LT alone, sufficiency is at least .9.

    The paper finds FE+LT as good as the donor, with every model on both of its prompts. The lowest
    share there is .957, so that .9 leaves room for noise and for little else. On new_film the claim
    is expected not to hold: with the less finetuned Gemma, FE+LT brought a seventh of what the
    donor knows. Final norm and head stay the recipient's, so that FE+LT can hardly bring more than
    ALL does.
    """
    claim.noted("ALL")
    claim.sufficiency("FE+LT", ge=0.9)


@cites(
    "Gemma on headline: PRE, (FE+LT)^C",
    "GPT-2 XL on qa: PRE, (FE+LT)^C",
    "GPT-2 XL on movie_title: PRE, (FE+LT)^C",
    "Gemma, less finetuned on new_film: PRE, (FE+LT)^C",
)
def test_without_fe_and_lt_nothing_is_left(claim: Claim) -> None:
    """With the donor's weights at all tokens but FE and LT, sufficiency is at most .1.

    In the paper it stays within .02 of the recipient. A tenth is what FE+LT may lack to suffice, so
    the same is allowed here.
    """
    claim.sufficiency("(FE+LT)^C", le=0.1)


@cites(
    "Gemma on headline: PRE, FE, FE+LT",
    "GPT-2 XL on headline: PRE, FE, FE+LT",
    "Llama on qa: PRE, FE, FE+LT",
    "Pythia on movie_title: PRE, FE, FE+LT",
    "Gemma, less finetuned on new_film: PRE, FE, FE+LT",
)
def test_fe_alone_carries_a_part(claim: Claim) -> None:
    """With the donor's weights at FE alone, sufficiency is above .02 and below that of FE+LT.

    The paper calls this enriching: the entity's own tokens take up the fact, and unchanged later
    tokens can read it. How much differs between models, so nothing is asked but that it lies
    between. In the paper (FE+LT)^C stays within .02 of the recipient: a part is what exceeds that
    noise. Less than FE+LT is judged by the difference fact by fact. On new_film more than .02 is
    expected not to hold, and for Pythia on movie_title the paper's 999 facts do not decide. Where
    FE brings nothing at all, it takes some 190 facts for the claim to fail.
    """
    claim.sufficiency("FE", gt=0.02)
    claim.difference("FE", "FE+LT", lt=0.0)


@cites(
    "Gemma on headline: PRE, LT, FE+LT",
    "Pythia on headline: PRE, LT, FE+LT",
    "Llama on qa: PRE, LT, FE+LT",
    "Gemma on movie_title: PRE, LT, FE+LT",
    "Gemma, less finetuned on new_film: PRE, LT, FE+LT",
)
def test_lt_alone_carries_a_part(claim: Claim) -> None:
    """With the donor's weights at LT alone, sufficiency is above .02 and below that of FE+LT.

    The paper calls this recalling: the last token finds the fact although no token before it was
    enriched. As with FE, nothing is asked but that it lies between the noise and FE+LT. On new_film
    it is within the noise of the paper's 999 facts.
    """
    claim.sufficiency("LT", gt=0.02)
    claim.difference("LT", "FE+LT", lt=0.0)


@cites(
    "Llama on headline: LT, FE^C",
    "GPT-2 XL on headline: LT, FE^C",
    "Gemma on headline: LT, FE^C",
    "Llama on qa: LT, FE^C",
    "Pythia on movie_title: LT, FE^C",
    "Gemma, less finetuned on new_film: LT, FE^C",
)
def test_all_but_fe_does_what_lt_does(claim: Claim) -> None:
    """Tokens that are neither FE nor LT add nothing: FE^C, LT and these, is within .1 of LT.

    It would follow if FE and LT were all, but FE+LT can suffice without it, and the paper's runs
    are of two minds: it held for Llama on headline and for GPT-2 XL there, not for Gemma there, and
    for no model on movie_title, where the title's tokens are among the others.
    """
    claim.difference("FE^C", "LT", ge=-0.1, le=0.1)


@cites(
    "Llama on headline: FE, LT^C",
    "Gemma on headline: FE, LT^C",
    "GPT-2 XL on headline: FE, LT^C",
    "Pythia on qa: FE, LT^C",
    "Llama on movie_title: FE, LT^C",
    "Gemma, less finetuned on new_film: FE, LT^C",
)
def test_all_but_lt_does_what_fe_does(claim: Claim) -> None:
    """Tokens that are neither FE nor LT add nothing: LT^C, FE and these, is within .1 of FE.

    In the paper's runs it held for Llama and Pythia on both prompts, not for GPT-2 XL, and not for
    Gemma on headline.
    """
    claim.difference("LT^C", "FE", ge=-0.1, le=0.1)


@cites(
    "Llama on headline: SFT, FE+LT, (FE+LT)^C",
    "Llama on qa: SFT, FE+LT, (FE+LT)^C",
)
def test_it_is_the_position_not_the_preposition(claim: Claim) -> None:
    """FE+LT suffices on qa, which ends in a verb, as on headline, which ends in a preposition.

    Its bounds are those of the claims on headline, and FE+LT may come short of the donor by .1 more
    at most: the same tenth that it may lack. This difference is over the same facts in both
    prompts.
    """
    claim.prompt_difference("headline", "FE+LT", ge=-0.1)
    claim.sufficiency("(FE+LT)^C", le=0.1)
    claim.sufficiency("FE+LT", ge=0.9)


# ---- complement identity: exact, a property of grafting itself, whatever was learned


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
    from kgbench.numbers import plain_text
    from kgbench.paper.claim import assert_complement_identity

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
    from kgbench.numbers import plain_text
    from kgbench.paper.claim import assert_complement_identity, exchanged

    note(plain_text(assert_complement_identity(exchanged(model_pair), own_prompts), 2))
