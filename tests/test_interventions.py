"""Localizers that intervene, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import plain
import pytest
import torch
from interventions import TINY, Zero, created, grafts, kinds, logits, pico, tiny
from laws import FAMILIES, alone, distance

from kgbench.data import Prompt, load_prompts
from kgbench.errors import InputError, NotApplicableError
from kgbench.localizers import InterventionLocalizer
from kgbench.metrics import score_logits
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair
from kgbench.runner import Settings, Spec, run_job
from kgbench.runner.job import prepare_job
from kgbench.runner.measure import Measurement, run_group
from kgbench.sites import parse_graft

pytestmark = pytest.mark.usefixtures("exact")


def plainly(
    pair: ModelPair,
    made: InterventionLocalizer,
    prompts: Sequence[Prompt],
    prompt: Prompt,
    text: str,
) -> torch.Tensor:
    """The same answer by hooks."""
    case = plain.Case(pair.recipient, pair.donors, pair.encode(prompt), pair.regions(prompt), text)
    seen = [plain.Seen(p.name, p.fact.id, pair.encode(p), pair.regions(p)) for p in prompts]
    own, has = seen[list(prompts).index(prompt)], made.parameters()
    donor = pair.donors["sft"]

    def directional() -> torch.Tensor:
        k = has["k"] if has["directions"] == "pca" else None
        if has["directions"] == "fact":
            fitted_on = [p for p in seen if p.fact == own.fact and p.template != own.template]
        else:
            fitted_on = plain.other_half(seen, own, has["seed"])
        found = plain.directions(pair.recipient, donor, fitted_on, has["point"], k)
        return plain.directional_patch(case, has["point"], found)

    def ablated() -> torch.Tensor:
        points = has["point"].split("+")
        if has["method"] == "zero":
            return plain.ablation(case, points, lambda token, place: torch.zeros(()))
        if has["method"] == "resample":
            taken = [plain.resampled(donor, seen, own, token, has["seed"]) for token in case.tokens]
            return plain.ablation(case, points, lambda token, place: taken[token](place))
        means = plain.means(
            donor, [p for p in seen if p.template == own.template and p.fact != own.fact], points
        )
        return plain.ablation(case, points, lambda token, place: means[case.cells()[token], place])

    def traced() -> torch.Tensor:
        noise = plain.noise(donor, seen, own, has["noise"], 1, has["seed"])
        return plain.causal_trace(case, has["point"].split("+"), noise)

    methods: dict[str, Callable[[], torch.Tensor]] = {
        "activation_patch": lambda: plain.activation_patch(case, has["point"]),
        "directional_patch": directional,
        "ablation": ablated,
        "causal_trace": traced,
        "attention_knockout": lambda: plain.attention_knockout(case),
        "static_graft": lambda: plain.static_graft(case, has["alpha"]),
        "path_patch": lambda: plain.path_patch(case, has["receiver"]),
    }
    return methods[made.name]()


def distance_from_plain(
    pair: ModelPair, prompts: Sequence[Prompt], name: str, arguments: Sequence[tuple[str, str]]
) -> float:
    made = created(name, arguments).fitted(pair, prompts)
    made = made.variants()[
        min(1, len(made.variants()) - 1)
    ]  # the second draw, where there are several
    expressions = [
        text if "pos" in pair.family.components else text.replace("+pos", "")
        for text in grafts(made)
    ]
    some = [prompts[0], prompts[-1]]  # one of each template
    expected = torch.stack(
        [
            torch.stack([plainly(pair, made, prompts, prompt, text) for text in expressions])
            for prompt in some
        ]
    )
    return distance(logits(pair, made, some, expressions), expected)


@pytest.mark.sampled(14)
@kinds
@pytest.mark.parametrize("family", FAMILIES)
def test_as_in_plain_pytorch(
    family: str, name: str, arguments: tuple[tuple[str, str], ...]
) -> None:
    """Every method does what its paper says, on random models of every family, but for rounding."""
    assert distance_from_plain(*pico(family), name, arguments) < 1e-9


def test_several_donors() -> None:
    """What is copied into the recipient may come from several donors; a run that begins with a
    donor has one, and that may be any.
    """
    pair, prompts = pico("gpt2")
    text = "FE=task; LT@1; LT:ln_f+head=task"
    got = logits(pair, created("activation_patch"), prompts[:1], [text])[0, 0]
    case = plain.Case(
        pair.recipient, pair.donors, pair.encode(prompts[0]), pair.regions(prompts[0]), text
    )
    assert distance(got, plain.activation_patch(case, "resid_post")) < 1e-9
    for name in ("ablation", "causal_trace", "attention_knockout"):
        made = created(name).fitted(pair, prompts)
        with pytest.raises(
            NotApplicableError, match="one donor, and this expression names task and sft"
        ):
            made.treat(pair, prompts, parse_graft(text))
        assert (
            distance(
                logits(pair, made, prompts, ["ALL:all+ln_f+head=task"])[:, 0],
                alone(pair.donors["task"], pair, prompts),
            )
            < 1e-9
        )


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", TINY)
def test_an_edit_that_erases_the_stream_scores_nothing(name: str) -> None:
    """Zeros in the place of the last token's stream know no fact, so that no fact is a hit,
    whatever norm and head make of zeros.
    """
    pair, _ = tiny(name)
    prompts = load_prompts("tiny_movies", ["headline"], limit=40)
    targets = torch.tensor([pair.encoded(prompt).target for prompt in prompts])
    found = logits(pair, Zero(), prompts, ["FE+LT", "LT"])
    ranks = [score_logits(found[:, number], targets)["rank"] for number in range(2)]
    assert (ranks[0] > 5).all()
    assert (ranks[1] <= 5).any()  # what is not erased is answered


def test_a_head_of_zeros_scores_nothing(tmp_path: Path) -> None:
    """A donor whose head is all zeros finds every token as likely as any other, and so has no hit."""
    pair, donor = read_pair("tiny-gpt2"), tmp_path / "donor"
    pair.donors["sft"].get_output_embeddings().weight.zero_()
    for part in (pair.donors["sft"], pair.tokenizer):
        part.save_pretrained(donor)
    spec = Spec(
        model="tiny-gpt2",
        donors={"sft": str(donor)},
        prompts=("headline",),
        grafts=("FE+LT",),
        limit=20,
    )
    record = run_job(spec, Settings(device="cpu", output_dir=tmp_path / "results")).record
    (sft,) = [row for row in record.rows if row.graft == "SFT"]
    assert (sft.top1.value, sft.top5.value) == (0.0, 0.0)


def test_logits_of_no_number_name_configuration_and_fact(tmp_path: Path) -> None:
    """A method that makes logits NaN has no record: the error says where, in one line; numbers that
    are none are refused before.
    """
    spec = Spec(model="tiny-gemma", prompts=("headline",), grafts=("FE+LT",), limit=3)
    job = prepare_job(spec, Settings(device="cpu", output_dir=tmp_path))
    with pytest.raises(
        InputError,
        match=(
            r"the logits of configuration FE\+LT, fact tiny_movies/\d+, prompt 'headline'.*"
            r" hold NaN"
        ),
    ):
        run_group(Measurement(job, Zero(value=3e38)), job.all_prompts, None)
    with pytest.raises(InputError, match="an edit has numbers that are not finite"):
        run_group(Measurement(job, Zero(value=float("nan"))), job.all_prompts, None)


def test_a_question_holds_no_answer() -> None:
    """Target, target token and the field asked for are withheld, and reading one is an error that
    says what to do.
    """
    pair, prompts = tiny("tiny-gemma")
    question = pair.question(prompts[0])
    assert pair.question(question) is question and question == pair.question(prompts[0])
    assert prompts[0].target not in question.fact.fields.values()
    assert prompts[0].target not in repr(question)
    assert pair.encode(question) == pair.encode(prompts[0])
    assert pair.regions(question) == pair.regions(prompts[0])
    for read in (lambda: question.target, lambda: pair.encoded(question).target):
        with pytest.raises(InputError, match=r"without their answer.*needs = frozenset"):
            read()
