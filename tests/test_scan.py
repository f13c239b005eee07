"""Single-site scans of localizers that intervene."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plain
import pytest
import torch
from interventions import KINDS, created, logits, pico

from kgbench.data import Prompt
from kgbench.engine.site_sets import all_sites, site_treatments
from kgbench.errors import NotApplicableError
from kgbench.localizers import InterventionLocalizer, Treatments
from kgbench.localizers._measure import logprobs
from kgbench.localizers._scan import scan
from kgbench.models.pair import ModelPair
from kgbench.sites import GROUPS, Graft, Site, parse_graft

pytestmark = pytest.mark.usefixtures("exact")

SCANNED = (
    "activation_patch",
    "directional_patch",
    "ablation",
    "causal_trace",
    "attention_knockout",
    "static_graft",
    "path_patch",
)


def mean_logprob(
    pair: ModelPair, made: InterventionLocalizer, prompts: Sequence[Prompt], text: str
) -> float:
    """The targets' mean log-probability under one expression, probabilities averaged over draws."""
    targets = torch.tensor([pair.encoded(prompt).target for prompt in prompts])
    drawn = [
        logits(pair, variant, prompts, [text], "rows")[:, 0].softmax(-1)
        for variant in made.variants()
    ]
    return float(torch.stack(drawn).mean(0)[range(len(prompts)), targets].log().mean())


@pytest.mark.sampled(3)
@pytest.mark.parametrize("family", ["gpt2", "llama"])
@pytest.mark.parametrize("name", SCANNED)
def test_every_site_has_a_score(family: str, name: str) -> None:
    """By default every method gives every site of every region a finite score, not all the same, in
    whatever order the prompts come.
    """
    pair, prompts = pico(family, facts=2)
    arguments = (("draws", "2"),) if name == "causal_trace" else ()
    scores = scan(created(name, arguments), pair, prompts)
    assert list(scores) == list(all_sites(pair, prompts))
    assert all(math.isfinite(score) for score in scores.values())
    assert len({round(score, 9) for score in scores.values()}) > 5
    turned = scan(created(name, arguments), pair, prompts[::-1])
    assert max(abs(turned[site] - score) for site, score in scores.items()) < 1e-9


@pytest.mark.parametrize(
    ("name", "arguments"), [kind for kind in KINDS if ("directions", "fact") not in kind[1]]
)
def test_a_scan_credits_a_site_once(name: str, arguments: tuple[tuple[str, str], ...]) -> None:
    """No site is credited with two units, whatever the parameters."""
    pair, prompts = pico("gpt2", facts=2)
    credited = [
        site
        for unit in created(name, arguments).fitted(pair, prompts).units(pair, prompts[:2])
        for site in unit.sites
    ]
    assert len(credited) == len(set(credited))


@pytest.mark.nightly
def test_scanning_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Described a few at a time, grafts and prompts have the same values."""
    pair, prompts = pico("llama", facts=2)
    for name in ("activation_patch", "ablation"):
        together = scan(created(name), pair, prompts)
        with monkeypatch.context() as few:
            few.setattr("kgbench.localizers._scan.DESCRIBED", 1)
            few.setattr("kgbench.localizers._scan.PROMPTS", 1)
            assert scan(created(name), pair, prompts) == pytest.approx(together, abs=1e-9)


@pytest.mark.parametrize("receiver", ["logits", "attn_out@1", "mlp_out@1"])
def test_what_is_not_heard(receiver: str) -> None:
    """What a receiver cannot hear has no direct effect on it: exactly 0. What it can hear is
    measured alone.
    """
    pair, prompts = pico("gpt2", facts=2)
    made, headline = created("path_patch", (("receiver", receiver),)), prompts[:2]
    scores = scan(made, pair, headline)
    layers = {"logits": 3, "attn_out@1": 1, "mlp_out@1": 1}[receiver]
    for site, score in scores.items():
        attention = site.component in ("ln_1", "q", "k", "v", "o")
        before = (
            site.layer is None
            or site.layer < layers
            or (receiver == "mlp_out@1" and site.layer == 1 and attention)
        )
        assert (score != 0) == (before and (receiver != "logits" or site.region == "LT"))
    nothing, alone = (
        mean_logprob(pair, made, headline, text) for text in ("NONE", "LT:ffn+ln_2@0")
    )
    assert scores[Site(0, "down", "LT")] == pytest.approx(alone - nothing, abs=1e-9)


def test_against_single_patches() -> None:
    """A scan of patches equals patching each layer and region by itself, in plain PyTorch, and
    subtracting the layer before.
    """
    pair, prompts = pico("gpt2", facts=2)
    headline = prompts[:2]
    scores = scan(created("activation_patch"), pair, headline)

    def mean(text: str) -> float:
        cases = [
            plain.Case(pair.recipient, pair.donors, pair.encode(p), pair.regions(p), text)
            for p in headline
        ]
        answers = [plain.activation_patch(case, "resid_post").log_softmax(-1) for case in cases]
        return float(
            np.mean(
                [
                    answer[pair.encoded(p).target]
                    for answer, p in zip(answers, headline, strict=True)
                ]
            )
        )

    values = [mean("NONE"), mean("FE@0"), mean("FE@1"), mean("FE@2")]
    for layer in range(3):
        for component in ("q", "down"):
            assert scores[Site(layer, component, "FE")] == pytest.approx(
                values[layer + 1] - values[layer], abs=1e-9
            )
    assert (
        scores[Site(None, "emb", "FE")]
        == scores[Site(None, "pos", "FE")]
        == scores[Site(0, "q", "FE")]
    )


def test_inputs_of_layers() -> None:
    """Patched at a layer's input, the embeddings have a value of their own and the last layer has
    none.
    """
    pair, prompts = pico("gpt2", facts=2)
    with pytest.raises(
        NotApplicableError,
        match=r"activation_patch gives no value to \d+ of \d+ sites, such as LT:ln_1@2",
    ):
        scan(created("activation_patch", (("point", "resid_pre"),)), pair, prompts)
    units = created("activation_patch", (("point", "resid_pre"),)).units(pair, prompts[:2])
    embeddings = next(unit for unit in units if Site(None, "emb", "FE") in unit.sites)
    assert str(embeddings.graft) == "FE@0"
    assert embeddings.sites == (Site(None, "emb", "FE"), Site(None, "pos", "FE"))
    first = next(unit for unit in units if Site(0, "q", "FE") in unit.sites)
    assert str(first.graft) == "FE@1"
    assert first.minus is not None
    assert units[first.minus] is embeddings
    units = created("causal_trace", (("point", "resid_pre"),)).units(pair, prompts[:2])
    embeddings, first = (
        next(unit for unit in units if site in unit.sites)
        for site in (Site(None, "emb", "FE"), Site(0, "q", "FE"))
    )
    assert (str(embeddings.graft), str(first.graft)) == ("FE:emb+pos", "FE@1")
    assert first.minus is not None
    assert units[first.minus] is embeddings


@pytest.mark.parametrize("point", ["attn_out", "mlp_out"])
def test_a_hook_that_sees_half(point: str) -> None:
    """Sites that no hook stands for have no value, and a scan says which rather than make one up."""
    pair, prompts = pico("gpt2", facts=2)
    missing = "ln_2" if point == "attn_out" else "ln_1"
    with pytest.raises(NotApplicableError, match=f"gives no value to .* such as LT:{missing}@0"):
        scan(created("ablation", (("point", point),)), pair, prompts)


def test_left_out() -> None:
    """Methods that destroy are scanned by what is lost without a site; attention's components share
    it, the MLP has its own.
    """
    pair, prompts = pico("llama", facts=2)
    headline = prompts[:2]
    made = created("ablation").fitted(pair, headline)
    scores = scan(created("ablation"), pair, headline)
    everything = mean_logprob(pair, made, headline, "ALL")
    for components, site in (("ln_1+q+k+v+o", "v"), ("ln_2+gate+up+down", "gate")):
        without = mean_logprob(pair, made, headline, f"ALL; FE:{components}@1=recipient")
        assert scores[Site(1, site, "FE")] == pytest.approx(everything - without, abs=1e-9)
    assert scores[Site(None, "emb", "FE")] == scores[Site(0, "q", "FE")]


def test_windows() -> None:
    """A wider window treats the layers around the one that is credited, as far as there are any."""
    pair, prompts = pico("gpt2", facts=2)
    headline = prompts[:2]
    for window, layers in (("1", "0 1 2"), ("2", "0 0-1 1-2"), ("3", "0-1 0-2 1-2")):
        units = created("attention_knockout", (("window", window),)).units(pair, headline)
        assert [str(unit.graft) for unit in units if unit.sites[-1].region == "FE"] == [
            f"FE@{some}" for some in layers.split()
        ]
    scores = scan(created("attention_knockout", (("window", "3"),)), pair, headline)
    made = created("attention_knockout")
    lost = mean_logprob(pair, made, headline, "ALL") - mean_logprob(
        pair, made, headline, "ALL; FE@0-1=recipient"
    )
    assert scores[Site(0, "up", "FE")] == pytest.approx(lost, abs=1e-9)
    assert scores[Site(0, "up", "LT")] == 0  # nothing comes after the last token


def test_probabilities_are_averaged_over_draws() -> None:
    """A method that draws is scored by the mean of probabilities, not of their logarithms."""
    pair, prompts = pico("gpt2", facts=2)
    headline = prompts[:2]
    made = created("causal_trace", (("draws", "3"), ("point", "mlp_out"))).fitted(pair, headline)
    drawn = logprobs(
        pair,
        headline,
        [variant.treat(pair, headline, parse_graft("NONE")) for variant in made.variants()],
    )
    assert mean_logprob(pair, made, headline, "NONE") == pytest.approx(
        np.log(np.exp(drawn).mean(0)).mean(), abs=1e-9
    )
    scores = scan(created("causal_trace", (("draws", "3"),)), pair, headline)
    patched = created("causal_trace", (("draws", "3"),)).fitted(pair, headline)
    nothing, embeddings, first = (
        mean_logprob(pair, patched, headline, text) for text in ("NONE", "FE:emb+pos", "FE@0")
    )
    assert scores[Site(None, "emb", "FE")] == pytest.approx(embeddings - nothing, abs=1e-9)
    assert scores[Site(0, "o", "FE")] == pytest.approx(first - embeddings, abs=1e-9)


def test_a_window_is_credited_to_its_middle() -> None:
    """With windows, a layer's attention is scored by restoring attention in the layers around it,
    as far as there are any.
    """
    pair, prompts = pico("gpt2", facts=2)
    headline = prompts[:2]
    arguments = (("draws", "2"), ("point", "attn_out+mlp_out"), ("window", "3"))
    made = created("causal_trace", arguments).fitted(pair, headline)
    scores = scan(created("causal_trace", arguments), pair, headline)
    nothing = mean_logprob(pair, made, headline, "NONE")
    for layer, window in ((0, "0-1"), (1, "0-2"), (2, "1-2")):
        restored = mean_logprob(pair, made, headline, f"LT:ln_1+q+k+v+o@{window}")
        assert scores[Site(layer, "o", "LT")] == pytest.approx(restored - nothing, abs=1e-9)


def test_weights_have_no_regions() -> None:
    """A static graft gives a component one value in all regions."""
    pair, prompts = pico("gpt2", facts=2)
    scores = scan(created("static_graft"), pair, prompts)
    for place in {(site.layer, site.component) for site in scores}:
        assert (
            len({score for site, score in scores.items() if (site.layer, site.component) == place})
            == 1
        )


def test_templates_of_other_regions() -> None:
    """A prompt that lacks a region adds nothing to its sites; scores are the mean over all prompts."""
    pair, prompts = pico("gpt2", facts=2)
    together, apart = (
        scan(created("dynamic_graft"), pair, prompts),
        [scan(created("dynamic_graft"), pair, p) for p in (prompts[:2], prompts[2:])],
    )
    for site, score in together.items():
        assert score == pytest.approx(sum(each.get(site, 0.0) for each in apart) / 2, abs=1e-9)


def test_dynamic_grafts_one_by_one() -> None:
    """Scanned, dynamic grafting grafts each site alone."""
    pair, prompts = pico("gemma", facts=2)
    scores = scan(created("dynamic_graft"), pair, prompts)
    some = [Site(None, "emb", "FE"), Site(2, "o", "LT"), Site(1, "up", "REST")]
    found = logprobs(
        pair,
        prompts,
        [site_treatments(pair, prompts, sites) for sites in ([], *([site] for site in some))],
    ).mean(axis=1)
    for site, value in zip(some, found[1:], strict=True):
        assert scores[site] == pytest.approx(value - found[0], abs=1e-9)


@dataclass(frozen=True)
class NoMlp(InterventionLocalizer):
    """Dynamic grafting that will not touch an MLP."""

    name = "no_mlp"
    about = "for a test"

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """The graft, where it may be."""
        if any(set(term.component_names()) < set(GROUPS["ffn"]) for term in sites.terms):
            raise NotApplicableError("it will not touch an MLP")
        return created("dynamic_graft").treat(pair, prompts, sites)


def test_the_reason_is_passed_on() -> None:
    """Where a method declines a site, the scan says so in the method's words."""
    pair, prompts = pico("gpt2", facts=2)
    with pytest.raises(
        NotApplicableError,
        match=(
            r"a scan of no_mlp gives no value to .* sites, such as LT:up@0; it will not touch"
            r" an MLP"
        ),
    ):
        scan(NoMlp(), pair, prompts)
