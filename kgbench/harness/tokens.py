"""What can be wrong with a document under a tokenizer."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Prompt, token_regions
from kgbench.errors import ModelError, RegionError, UnknownNameError
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.encoding import Encoder
from kgbench.models.pair import read_tokenizer

__all__ = ["default_tokenizers", "load_tokenizers", "region_faults", "target_faults"]

_BATCH = 1024

Pair = tuple[str, str]
"""A context and the target that follows it."""


def default_tokenizers() -> tuple[str, ...]:
    """The pairs that are shipped, which have a tokenizer each."""
    pairs = [name for name in catalog.names() if name not in catalog.plants()]
    return tuple(name for name in pairs if catalog.zoo_path(catalog.entry(name).recipient))


def load_tokenizers(names: Iterable[str]) -> dict[str, PreTrainedTokenizerBase]:
    """Tokenizers by what they were called.

    Args:
        names: Pairs of the catalog, directories of checkpoints, or Hub ids.

    Raises:
        UnknownNameError: A name is nearly that of a pair.
        ModelError: One is not found, does not load, or cannot be used: it is slow, or adds a token at the end.
    """
    return {name: _load(name) for name in names}


def target_faults(tokenizer: PreTrainedTokenizerBase, pairs: Collection[Pair]) -> dict[Pair, str]:
    """Targets that add no token to their context, or change those of the context, read as lm-eval reads them."""
    bare = dict.fromkeys(context.rstrip() for context, _ in pairs)
    heads = dict(zip(bare, _ids(tokenizer, bare), strict=True))
    wholes = _ids(tokenizer, (context + target for context, target in pairs))
    faults = {}
    for (context, target), whole in zip(pairs, wholes, strict=True):
        head = heads[context.rstrip()]
        if whole[: len(head)] != head:
            faults[context, target] = (
                f"the tokens of context and target {target!r} do not begin with those of the context"
            )
        elif len(whole) == len(head):
            faults[context, target] = f"the target {target!r} has no token"
    return faults


def region_faults(
    tokenizer: PreTrainedTokenizerBase, prompts: Sequence[Prompt]
) -> dict[Prompt, str]:
    """Prompts of which a region cannot be located."""
    if not prompts:
        return {}
    texts = [prompt.text for prompt in prompts]
    encoded = tokenizer(
        texts, return_offsets_mapping=True, return_special_tokens_mask=True, verbose=False
    )
    faults = {}
    for prompt, offsets, special in zip(
        prompts, encoded["offset_mapping"], encoded["special_tokens_mask"], strict=True
    ):
        try:
            token_regions(prompt, offsets, [bool(flag) for flag in special])
        except RegionError as error:
            faults[prompt] = str(error)
    return faults


def _ids(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids alone, which are to be had much faster than all that a model would want: every candidate of every document is a text."""
    left = iter(texts)
    while batch := list(islice(left, _BATCH)):
        yield from (
            encoding.ids for encoding in tokenizer.backend_tokenizer.encode_batch_fast(batch)
        )


def _load(name: str) -> PreTrainedTokenizerBase:
    if (
        name not in catalog.names()
        and not Path(name).is_dir()
        and get_close_matches(name, catalog.names(), cutoff=0.8)
    ):
        raise UnknownNameError(
            "tokenizer",
            name,
            default_tokenizers(),
            "Or give a directory, or a Hub id such as owner/name.",
        )
    source = catalog.entry(name).recipient if name in catalog.names() else name
    tokenizer = read_tokenizer(locate(source))
    try:
        Encoder(tokenizer)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None
    return tokenizer
