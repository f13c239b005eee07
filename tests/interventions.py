"""What the tests of interventions are run on: every method with its parameters, expressions that it
can express, and prompts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import pytest
import torch
from laws import pair_of

from kgbench.data import Prompt, load_prompts
from kgbench.engine import Engine, Treatment
from kgbench.engine.edits import Add, Hook, Values, Write
from kgbench.engine.treatment import graft_treatments
from kgbench.localizers import InterventionLocalizer, Treatments, create
from kgbench.models.loading import read_pair
from kgbench.models.pair import ModelPair
from kgbench.sites import Graft, parse_graft

EVERYTHING = "ALL:all+ln_f+head"
TINY = ("tiny-gpt2", "tiny-pythia", "tiny-llama", "tiny-gemma")
KINDS = tuple(
    (name, tuple(arguments.items()))
    for name, arguments in (
        ("activation_patch", {}),
        ("activation_patch", {"point": "resid_pre"}),
        ("activation_patch", {"point": "attn_out"}),
        ("activation_patch", {"point": "mlp_out"}),
        ("directional_patch", {}),
        ("directional_patch", {"directions": "pca", "k": "2", "point": "mlp_out", "seed": "3"}),
        ("directional_patch", {"directions": "fact"}),
        ("ablation", {"method": "zero"}),
        ("ablation", {"method": "mean"}),
        ("ablation", {"method": "resample", "seed": "3"}),
        ("ablation", {"method": "zero", "point": "mlp_out"}),
        ("causal_trace", {}),
        ("causal_trace", {"point": "resid_pre", "noise": "1.5", "seed": "3"}),
        ("causal_trace", {"point": "attn_out"}),
        ("causal_trace", {"point": "attn_out+mlp_out", "window": "2"}),
        ("attention_knockout", {}),
        ("static_graft", {}),
        ("static_graft", {"alpha": "0.5"}),
        ("path_patch", {}),
        ("path_patch", {"receiver": "attn_out@1"}),
        ("path_patch", {"receiver": "mlp_out@2"}),
    )
)
GRAFTS = {
    "static_graft": (EVERYTHING, "ALL:o+ffn@second_half", "ALL:emb+q"),
    "attention_knockout": ("FE^C", "ALL; FE+LT@1-2=recipient", "FE+LT@0", "NONE"),
    "path_patch": ("FE+LT", "FE+LT@0-2; LT@0=recipient", "FE^C:all+ln_f", "NONE"),
    "other": ("FE", "FE+LT@1-2; LT@1=recipient", "(FE+LT)^C:all+ln_f", "NONE"),
}
"""Expressions that each method can express."""
PARTS = {
    "attn_out": "LT:attn+o+ln_1@0,2",
    "mlp_out": "LT+FE:ffn+ln_2@first_half",
    "emb": "FE+LT:emb+pos",
}

kinds = pytest.mark.parametrize(
    ("name", "arguments"), KINDS, ids=[" ".join((n, *(f"{k}={v}" for k, v in a))) for n, a in KINDS]
)


def grafts(made: InterventionLocalizer) -> tuple[str, ...]:
    """Expressions that a method can express, the hooks' own components among them."""
    points = {
        "path_patch": "emb attn_out mlp_out",
        "causal_trace": f"emb {made.parameters().get('point')}",
    }.get(made.name, made.parameters().get("point", ""))
    return (
        *GRAFTS.get(made.name, GRAFTS["other"]),
        *(text for point, text in PARTS.items() if point in points),
    )


@cache
def pico(family: str, facts: int = 3) -> tuple[ModelPair, tuple[Prompt, ...]]:
    return pair_of(family), tuple(
        load_prompts("fake_movies_fake_actors", ["headline", "qa"], limit=facts)
    )


@cache
def tiny(name: str) -> tuple[ModelPair, tuple[Prompt, ...]]:
    return read_pair(name), tuple(load_prompts("tiny_movies", ["headline", "qa"], limit=3))


@dataclass(frozen=True)
class Zero(InterventionLocalizer):
    """Under FE+LT, nothing but zeros in the last layer's output at the last token; else the grafts."""

    name = "zero_write"
    about = "zeros in the last layer's output at the last token, under FE+LT"

    value: float = 0.0
    """What is written, and then added."""

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        found = graft_treatments(pair, prompts, sites)
        if str(sites) != "FE+LT":
            return found
        zeros = Values(
            torch.full(
                (pair.recipient.config.hidden_size,),
                self.value,
                dtype=pair.dtype,
                device=pair.device,
            )
        )
        hook = Hook(pair.n_layers - 1, "resid_post")
        edits = (Write(hook, zeros), Add(hook, zeros))
        return [(*row[:-1], Treatment(row[-1].weights, edits=edits)) for row in found]


def created(
    name: str, arguments: Sequence[tuple[str, str]] = (), seed: int = 7
) -> InterventionLocalizer:
    made = create(name, dict(arguments), seed)
    assert isinstance(made, InterventionLocalizer)
    return made


def logits(
    pair: ModelPair,
    made: InterventionLocalizer,
    prompts: Sequence[Prompt],
    expressions: Sequence[str],
    executor: str = "packed",
) -> torch.Tensor:
    """Next-token logits [prompt, expression, vocabulary]."""
    engine = Engine(pair, executor)
    treatments = [made.treat(pair, prompts, parse_graft(text)) for text in expressions]
    return engine.logits(engine.plan_treatments(prompts, treatments))[:, :, 0]
