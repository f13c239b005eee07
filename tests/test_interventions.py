"""Localizers that intervene, against plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import plain
import pytest
import torch
from interventions import KINDS, TINY, created, grafts, kinds, logits, pico, tiny
from laws import FAMILIES, alone, distance

from kgbench.data import Prompt
from kgbench.errors import NotApplicableError
from kgbench.localizers import InterventionLocalizer
from kgbench.models.pair import ModelPair
from kgbench.sites import parse_graft

pytestmark = pytest.mark.usefixtures("exact")


def plainly(pair: ModelPair, made: InterventionLocalizer, prompts: Sequence[Prompt], prompt: Prompt, text: str) -> torch.Tensor:
    """The same answer by hooks."""
    case = plain.Case(pair.recipient, pair.donors, pair.encode(prompt), pair.regions(prompt), text)
    seen = [plain.Seen(p.name, p.fact.id, pair.encode(p), pair.regions(p)) for p in prompts]
    own, has = seen[list(prompts).index(prompt)], made.parameters()
    donor = pair.donors["sft"]

    def directional() -> torch.Tensor:
        k = has["k"] if has["directions"] == "pca" else None
        found = plain.directions(pair.recipient, donor, plain.other_half(seen, own, has["seed"]), has["point"], k)
        return plain.directional_patch(case, has["point"], found)

    def ablated() -> torch.Tensor:
        points = has["point"].split("+")
        if has["method"] == "zero":
            return plain.ablation(case, points, lambda token, place: torch.zeros(()))
        if has["method"] == "resample":
            taken = [plain.resampled(donor, seen, own, token, has["seed"]) for token in case.tokens]
            return plain.ablation(case, points, lambda token, place: taken[token](place))
        means = plain.means(donor, [p for p in seen if p.template == own.template and p.fact != own.fact], points)
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


def distance_from_plain(pair: ModelPair, prompts: Sequence[Prompt], name: str, arguments: Sequence[tuple[str, str]]) -> float:
    made = created(name, arguments).fitted(pair, prompts)
    made = made.variants()[min(1, len(made.variants()) - 1)]  # the second draw, where there are several
    expressions = [text if "pos" in pair.family.components else text.replace("+pos", "") for text in grafts(made)]
    some = [prompts[0], prompts[-1]]  # one of each template
    expected = torch.stack([torch.stack([plainly(pair, made, prompts, prompt, text) for text in expressions]) for prompt in some])
    return distance(logits(pair, made, some, expressions), expected)


@kinds
@pytest.mark.parametrize("family", FAMILIES)
def test_as_in_plain_pytorch(family: str, name: str, arguments: tuple[tuple[str, str], ...]) -> None:
    """Every method does what its paper says, on random models of every family, but for rounding."""
    assert distance_from_plain(*pico(family), name, arguments) < 1e-9


@pytest.mark.parametrize("arguments", [{"method": "resample"}, {"directions": "pca", "k": "2"}, {"receiver": "mlp_out@1"}, {}], ids=str)
@pytest.mark.parametrize("model", TINY)
def test_as_in_plain_pytorch_on_trained_models(model: str, arguments: dict[str, str]) -> None:
    """The same on the shipped pairs, in single precision."""
    of = {"method": "ablation", "directions": "directional_patch", "receiver": "path_patch"}
    for name in [of[next(iter(arguments))]] if arguments else dict(KINDS):
        assert distance_from_plain(*tiny(model), name, tuple(arguments.items())) < 1e-4, name


def test_several_donors() -> None:
    """What is copied into the recipient may come from several donors; a run that begins with a donor has one, and that may be any."""
    pair, prompts = pico("gpt2")
    text = "FE=task; LT@1; LT:ln_f+head=task"
    got = logits(pair, created("activation_patch"), prompts[:1], [text])[0, 0]
    case = plain.Case(pair.recipient, pair.donors, pair.encode(prompts[0]), pair.regions(prompts[0]), text)
    assert distance(got, plain.activation_patch(case, "resid_post")) < 1e-9
    for name in ("ablation", "causal_trace", "attention_knockout"):
        made = created(name).fitted(pair, prompts)
        with pytest.raises(NotApplicableError, match="one donor, and this expression names task and sft"):
            made.treat(pair, prompts, parse_graft(text))
        assert distance(logits(pair, made, prompts, ["ALL:all+ln_f+head=task"])[:, 0], alone(pair.donors["task"], pair, prompts)) < 1e-9
