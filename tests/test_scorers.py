"""Scoring localizers: against exact grafts, against plain autograd, and what all of them keep to."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cache

import numpy as np
import pytest
import torch
from laws import families, pair_of, pool
from scipy.stats import spearmanr

from kgbench.data import Prompt
from kgbench.engine import grafted_logits
from kgbench.engine.site_sets import all_sites, graft_sites, site_graft, site_treatments
from kgbench.engine.weights import tensors
from kgbench.errors import NotApplicableError, UnknownNameError
from kgbench.localizers import ScoringLocalizer, create
from kgbench.localizers._measure import logprobs, site_logprobs
from kgbench.localizers.mask_graft import SHIFT, drawn_gates
from kgbench.models.pair import ModelPair
from kgbench.sites import Site, parse_graft

pytestmark = pytest.mark.usefixtures("exact")

PARAMETERS: dict[str, dict[str, str]] = {
    "oracle": {"truth": "FE:ffn"},
    "greedy_graft": {"steps": "1"},
    "mask_graft": {"steps": "4", "sample": "2"},
}


def scorer(name: str, **parameters: object) -> ScoringLocalizer:
    given = {key: str(value) for key, value in parameters.items()}
    made = create(name, {**PARAMETERS.get(name, {}), **given}, seed=0)
    assert isinstance(made, ScoringLocalizer)
    return made


def scores(
    name: str, pair: ModelPair, prompts: Sequence[Prompt], **parameters: object
) -> dict[Site, float]:
    return dict(scorer(name, **parameters).scores(pair, prompts))


@cache
def some() -> tuple[Prompt, ...]:
    """Two of different lengths and regions."""
    return tuple(
        min((p for p in pool() if p.name == name), key=lambda p: len(p.text))
        for name in ("headline", "control")
    )


def mean(pair: ModelPair, prompts: Sequence[Prompt], graft: str) -> float:
    """Mean log-probability of the targets under a graft."""
    targets = torch.tensor([pair.encoded(p).target for p in prompts])
    logits = grafted_logits(pair, prompts, [graft])[:, 0]
    return float(logits.log_softmax(-1)[torch.arange(len(prompts)), targets].mean())


@cache
def near(family: str, e: float) -> ModelPair:
    """The recipient, and a donor at W + e (W' - W)."""
    pair = pair_of(family)
    donor = copy.deepcopy(pair.recipient)
    with torch.no_grad():
        for ours, theirs in zip(donor.parameters(), pair.donors["sft"].parameters(), strict=True):
            ours.add_(e * (theirs - ours))
    return ModelPair("near", pair.recipient, {"sft": donor}, pair.tokenizer, pair.family)


def planted(family: str, graft: str) -> ModelPair:
    """A donor that differs from the recipient in the weights of a graft only, by a little."""
    pair, donor = near(family, 0.3), copy.deepcopy(pair_of(family).recipient)
    slots = pair.slots
    for layer, component in {site[:2] for site in graft_sites(pair, some(), parse_graft(graft))}:
        for ours, theirs in zip(
            *(tensors(pair, m, slots.index[layer, component]) for m in (donor, pair.donors["sft"])),
            strict=True,
        ):
            ours.data.copy_(theirs)
    return ModelPair("planted", pair.recipient, {"sft": donor}, pair.tokenizer, pair.family)


# --------------------------------------------------------------------------------- what all keep to


def test_a_forward_that_breaks_off() -> None:
    """It is an error that names the shapes, and the models are left as they were."""
    models = [copy.deepcopy(pair_of("llama").recipient) for _ in range(2)]
    for model in models:
        broken = torch.zeros(32, 47, dtype=torch.float64)
        model.get_submodule("model.layers.1.mlp.down_proj").weight.data = broken
    recipient, donor = models
    pair = ModelPair(
        "broken", recipient, {"sft": donor}, near("llama", 0.5).tokenizer, pair_of("llama").family
    )
    with pytest.raises(RuntimeError, match="shape"):
        scores("mask_graft", pair, some())
    assert not any("forward" in vars(module) for model in models for module in model.modules())
    assert not any(weight.requires_grad for model in models for weight in model.parameters())


# ------------------------------------------------------------------------------------- exact grafts


@pytest.mark.sampled(1)
@families
def test_scan_and_drop_are_grafts(family: str) -> None:
    """The scores are differences of the mean log-probability under the sites' graft expressions."""
    pair, prompts = pair_of(family), pool("headline")[:2]
    scan, drop = scores("graft_scan", pair, prompts), scores("graft_drop", pair, prompts)
    none, full = mean(pair, prompts, "NONE"), mean(pair, prompts, "ALL")
    for site in list(scan)[::19]:
        graft = str(site_graft(pair, prompts, site))
        assert scan[site] == pytest.approx(mean(pair, prompts, graft) - none, abs=1e-9)
        assert drop[site] == pytest.approx(
            full - mean(pair, prompts, f"ALL; {graft}=recipient"), abs=1e-9
        )


def test_measuring_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prompts described a few at a time give the same; equal weights make no difference at all."""
    pair = planted("gemma", "ALL:ffn@1")
    sets = [(), *((site,) for site in all_sites(pair, some())[::7])]
    together = site_logprobs(pair, some(), sets)
    assert together == pytest.approx(
        logprobs(pair, some(), [site_treatments(pair, some(), s) for s in sets]), abs=1e-9
    )
    moved = [
        any(s.layer == 1 and s.component in ("gate", "up", "down") for s in each) for each in sets
    ]
    assert [bool((row != together[0]).any()) for row in together] == moved
    monkeypatch.setattr("kgbench.localizers._measure.DESCRIBED", 1)
    assert site_logprobs(pair, some(), sets) == pytest.approx(together, abs=1e-9)


@pytest.mark.sampled(1)
@families
def test_greedy(family: str) -> None:
    """Each choice adds to the last, the first is the best single site, and the graft is never worse
    than the first choice.
    """
    pair, prompts = near(family, 0.5), some()
    found, scan = (
        scores("greedy_graft", pair, prompts, steps=3),
        scores("graft_scan", pair, prompts),
    )
    ranking = sorted(found, key=lambda site: -found[site])
    assert ranking[0] == max(scan, key=scan.__getitem__)
    values = site_logprobs(pair, prompts, [ranking[:k] for k in range(4)]).mean(axis=1)
    assert values[1] - values[0] == pytest.approx(scan[ranking[0]], abs=1e-9)
    assert all(np.diff(values) > 0)
    assert values[3] >= values[1]
    assert [found[site] for site in ranking[:3]] == pytest.approx(
        [values[3] - values[k] for k in range(3)], abs=1e-9
    )
    assert found[ranking[3]] <= found[ranking[2]]
    one = scores("greedy_graft", pair, prompts, steps=1)
    assert list(one.values()) == pytest.approx(list(scan.values()), abs=1e-9)


def test_greedy_stops_where_nothing_helps() -> None:
    """Where no site adds anything none is chosen, and all score what they take away; with sites to
    spare it ends by itself.
    """
    pair = planted("gpt2", "ALL:up@0")
    helpful = {s: v for s, v in scores("graft_scan", pair, some()).items() if v > 0}
    found = scores("greedy_graft", pair, some(), steps=50)
    ranking = sorted(found, key=lambda site: -found[site])
    chosen = [site for site in ranking if found[site] > 0]
    assert set(chosen) & set(helpful)
    assert all(site.component == "up" and site.layer == 0 for site in chosen)
    final = site_logprobs(
        pair, some(), [chosen, *([*chosen, s] for s in found if s not in chosen)]
    ).mean(axis=1)
    assert (final[1:] <= final[0] + 1e-12).all()


# ---------------------------------------------------------------------------------------- gradients


@pytest.mark.sampled(1)
@families
def test_attribution_is_the_limit_of_the_scan(family: str) -> None:
    """On W + e (W' - W) with small e, the first-order map ranks as the exact scan does and has its
    values.
    """
    e = 1e-3
    first, exact = (
        scores(name, near(family, e), some()) for name in ("graft_attribution", "graft_scan")
    )
    ours, theirs = np.array(list(first.values())) / e, np.array(list(exact.values())) / e
    assert spearmanr(ours, theirs).statistic >= 0.99
    assert np.abs(ours - theirs).max() < 0.02 * np.abs(theirs).max()
    full = np.array(list(scores("graft_attribution", pair_of(family), some()).values()))
    assert ours == pytest.approx(full, rel=1e-6, abs=1e-9)
    dropped = np.array(list(scores("graft_drop", near(family, e), some()).values())) / e
    at_donor = (
        np.array(list(scores("graft_attribution", near(family, e), some(), at=1.0).values())) / e
    )
    assert spearmanr(at_donor, dropped).statistic >= 0.99


@pytest.mark.sampled(1)
@families
def test_integrated_attribution_is_complete(family: str) -> None:
    """Along the whole path the scores add up to what the full graft adds, the more exactly the more
    points.
    """
    pair = near(family, 0.25)
    wanted = mean(pair, some(), "ALL") - mean(pair, some(), "NONE")
    errors = [
        abs(sum(scores("graft_attribution", pair, some(), steps=steps).values()) - wanted)
        for steps in (1, 4, 48)
    ]
    assert errors[2] < 1e-3 * errors[0] + 1e-6
    assert errors[2] <= errors[1] <= errors[0]


@pytest.mark.sampled(1)
@families
def test_attribution_patch(family: str) -> None:
    """All components behind one activation score alike; on a near donor, activations of the
    embeddings are the embeddings' graft.
    """
    e = 1e-4
    found = scores("attribution_patch", near(family, e), some())
    for site, score in found.items():
        groups = (("ln_1", "q", "k", "v", "o"), ("ln_2", "gate", "up", "down"), ("emb", "pos"))
        (group,) = (g for g in groups if site.component in g)
        assert all(
            found[site._replace(component=c)] == score
            for c in group
            if site._replace(component=c) in found
        )
    grafted = scores("graft_attribution", near(family, e), some())
    for site in (s for s in found if s.component == "emb"):
        together = grafted[site] + grafted.get(site._replace(component="pos"), 0.0)
        assert found[site] == pytest.approx(together, rel=1e-6, abs=1e-12)


@pytest.mark.crossed
@families
@pytest.mark.parametrize("at", ["recipient", "sft"])
def test_snip_and_fisher_are_plain_autograd(family: str, at: str) -> None:
    """Both equal what autograd gives on a copy of the model, one prompt at a time."""
    pair = pair_of(family)
    plain = copy.deepcopy(pair.donor(at)).requires_grad_()
    gradients = []
    for prompt in some():
        logits = plain(input_ids=torch.tensor([pair.encode(prompt)])).logits[0, -1]
        value = logits.log_softmax(-1)[pair.encoded(prompt).target]
        gradients.append(
            dict(
                zip(
                    (n for n, _ in plain.named_parameters()),
                    torch.autograd.grad(value, list(plain.parameters())),
                    strict=True,
                )
            )
        )
    snip, fisher = scores("snip", pair, some(), at=at), scores("fisher", pair, some(), at=at)
    per_weight = scores("fisher", pair, some(), at=at, per_weight=True)
    path = {
        "o": pair.family.path(1, "o"),
        "down": pair.family.path(1, "down"),
        "ln_1": pair.family.path(1, "ln_1"),
    }
    for component, module in path.items():
        names = [n for n, _ in plain.named_parameters() if n.startswith(f"{module}.")]
        ours, theirs = (dict(m.named_parameters()) for m in (pair.recipient, pair.donors["sft"]))
        mean_gradient = {n: sum(g[n] for g in gradients) / len(gradients) for n in names}
        products = sum(float((mean_gradient[n] * (theirs[n] - ours[n])).abs().sum()) for n in names)
        squares = sum(float(g[n].square().sum()) for g in gradients for n in names) / len(gradients)
        size = sum(ours[n].numel() for n in names)
        for region in {s.region for s in snip}:
            assert snip[Site(1, component, region)] == pytest.approx(products, rel=1e-9)
            assert fisher[Site(1, component, region)] == pytest.approx(squares, rel=1e-9)
            assert per_weight[Site(1, component, region)] == pytest.approx(squares / size, rel=1e-9)


def test_snip_of_an_element_is_its_effect() -> None:
    """Where one element of the weights changed a little, snip is the size of what that does to the
    mean log-probability.
    """
    pair = pair_of("gpt2")
    donor = copy.deepcopy(pair.recipient)
    donor.get_parameter("transformer.h.1.attn.c_attn.weight").data[3, 40] += 1e-4
    one = ModelPair("one", pair.recipient, {"sft": donor}, pair.tokenizer, pair.family)
    found = scores("snip", one, some())
    assert {s[:2] for s, v in found.items() if v} == {(1, "k")}
    effect = mean(one, some(), "ALL") - mean(one, some(), "NONE")
    assert found[Site(1, "k", "LT")] == pytest.approx(abs(effect), rel=1e-3)


def test_the_last_bit_of_a_draw_moves_no_gradient() -> None:
    """Gates are those of the hard-concrete distribution, exactly 0 and 1 beyond its limits; between
    them their gradient is its own, and at a limit it does not jump.
    """
    noise = torch.linspace(0.001, 0.999, 999, dtype=torch.float64).reshape(-1, 1, 1)
    logits = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True)
    gates = drawn_gates(logits, noise)
    assert gates.min() == 0 and gates.max() == 1 and bool((gates.diff(dim=0) >= 0).all())
    limits = torch.tensor([SHIFT, -SHIFT], dtype=torch.float64).sigmoid()
    assert float((gates == 0).double().mean()) == pytest.approx(float(limits[0]), abs=0.002)
    for draw in (noise[499:500], *limits.reshape(2, 1, 1, 1)):
        slopes = []
        for nudge in (-1e-9, 1e-9):
            (slope,) = torch.autograd.grad(drawn_gates(logits + nudge, draw).sum(), logits)
            slopes.append(float(slope))
        assert slopes[0] > 0.1
        assert slopes[0] == pytest.approx(slopes[1], rel=1e-6)


# -------------------------------------------------------------------------------- without a forward


@families
def test_weight_delta(family: str) -> None:
    """The norm of the change over the norm of the weights; nothing where nothing changed, 1 where
    there were none.
    """
    pair = planted(family, "ALL:ffn")
    found = scores("weight_delta", pair, some())
    slots = pair.slots
    for site in found:
        ours, theirs = (
            torch.cat([t.flatten() for t in tensors(pair, m, slots.index[site[:2]])])
            for m in (pair.recipient, pair.donors["sft"])
        )
        assert found[site] == pytest.approx(float((theirs - ours).norm() / ours.norm()), rel=1e-9)
        assert (found[site] > 0) == (site.component in ("gate", "up", "down"))
    blank = copy.deepcopy(pair.recipient)
    for tensor in tensors(pair, blank, slots.index[0, "up"]):
        tensor.data.zero_()
    for tensor in tensors(pair, blank, slots.index[0, "o"]):
        tensor.data.zero_()
    for tensor in tensors(pair, pair.donors["sft"], slots.index[0, "o"]):
        tensor.data.zero_()
    found = scores(
        "weight_delta", ModelPair("blank", blank, pair.donors, pair.tokenizer, pair.family), some()
    )
    assert found[Site(0, "up", "LT")] == 1
    assert found[Site(0, "o", "LT")] == 0


def test_oracle() -> None:
    """1 at the plant and 0 elsewhere; without a plant it says what is missing."""
    pair = pair_of("llama")
    found = scores("oracle", pair, some(), truth="FE:o+ffn@second_half")
    assert {site for site, score in found.items() if score == 1} == graft_sites(
        pair, some(), parse_graft("FE:o+ffn@second_half")
    )
    assert set(found.values()) == {0, 1}
    with pytest.raises(NotApplicableError, match="nothing was planted in pico-llama") as caught:
        scores("oracle", pair, some(), truth="")
    assert "\n" not in str(caught.value)
    with pytest.raises(UnknownNameError):
        scores("oracle", pair, some(), truth="ALL:pos")
