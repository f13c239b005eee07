"""Top-5 hit rates of trained models: the scores on their cards.

A hit rate is the share of facts whose target's first token is among the five most likely next
tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from kgbench.data import Dataset, fitting_prompts, load_prompts
from kgbench.engine import grafted_logits
from kgbench.metrics import worst_rank
from kgbench.models.pair import ModelPair, prepare
from kgbench.runner.training.model_setup import family_of
from kgbench.sites import CONFIGURATIONS

PROMPTS = ("headline", "qa")
SCORED = 200
"""Maximum number of facts that the scores of a donor rest on."""
TOP = 5


def configuration_hits(
    pair: ModelPair, dataset: Dataset, prompt: str, configurations: Sequence[str] = CONFIGURATIONS
) -> dict[str, float]:
    """Hit rate of one prompt by configuration."""
    prompts = load_prompts(dataset, [prompt])
    logits = grafted_logits(pair, prompts, configurations)
    targets = logits.new_tensor([pair.encoded(prompt).target for prompt in prompts]).long()
    reached = logits.gather(2, targets[:, None, None].expand(-1, len(configurations), 1))
    shares = (worst_rank(logits, reached) <= TOP).double().mean(0)
    rates = {}
    for configuration, share in zip(configurations, shares, strict=True):
        rates[str(configuration)] = round(float(share), 4)
    return rates


def scored_prompts(dataset: Dataset) -> tuple[str, ...]:
    """The prompts that donors are scored on.

    These are headline and qa, where the data set has their fields, and the data set's own.
    """
    return (*fitting_prompts(dataset, PROMPTS), *dataset.templates)


def model_hits(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    dataset: Dataset,
    prompts: Sequence[str],
    chat_template: bool = False,
) -> dict[str, float]:
    """Hit rate of a single model by prompt, over the first `SCORED` facts.

    Args:
        model: The model; in eval mode afterwards.
        tokenizer: Its tokenizer.
        dataset: The facts.
        prompts: Prompts by name.
        chat_template: Whether they are put into the tokenizer's chat template.
    """
    first = dataset.subset([fact.id for fact in dataset.facts[:SCORED]])
    pair = ModelPair(
        "alone", prepare(model), {}, tokenizer, family_of(model), chat_template=chat_template
    )
    rates = {}
    for prompt in prompts:
        rates[prompt] = configuration_hits(pair, first, prompt, ["PRE"])["PRE"]
    return rates
