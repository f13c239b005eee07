"""From characters to tokens: which tokens of an encoded prompt are which region."""

from __future__ import annotations

from collections.abc import Sequence

from kgbench.data.prompts import Prompt
from kgbench.errors import RegionError

__all__ = ["token_regions"]


def token_regions(
    prompt: Prompt,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    *,
    tokenizer: str = "this tokenizer",
) -> dict[str, list[int]]:
    """Indices of the tokens of each region that a prompt has.

    The token, or tokens, of the single blank before a word belong to the word, whether the blank is joined to it or a
    token of its own; a line's end before it does not.

    Args:
        prompt: The prompt whose text was encoded.
        offsets: Per token its [start, end) characters in the text.
        special: Per token whether the tokenizer added it, as it does BOS.
        tokenizer: What to call the tokenizer in an error.

    Returns:
        FE, M, R, RP and P where the prompt has them, LT, and BOS where the first token is special.

    Raises:
        RegionError: A region has no token, or shares one with another word; or the last token is special.
    """
    tokens = [
        (index, start, end) for index, (start, end) in enumerate(offsets) if not special[index]
    ]
    where = f"prompt {prompt.name!r} of fact {prompt.fact.id!r} by {tokenizer}"
    if not tokens or special[len(offsets) - 1]:
        raise RegionError(
            f"region LT cannot be located in {where}: expected a text token at the end; let it add no special token there"
        )
    regions = {"BOS": [0]} if special[0] else {}
    for region, span in prompt.spans.items():
        indices = [
            index for index, start, end in tokens if _belongs(prompt.text, (start, end), span)
        ]
        shared = [index for index in indices if _outside(prompt.text, offsets[index], span)]
        if shared or not indices:
            what = (
                f"one token holds {prompt.text[slice(*offsets[shared[0]])]!r}"
                if shared
                else "it has no token"
            )
            text = prompt.text[slice(*span)]
            raise RegionError(
                f"region {region}, {text!r}, cannot be located in {where}: {what}; use another prompt or tokenizer"
            )
        regions[region] = indices
    return {**regions, "LT": [len(offsets) - 1]}


def _belongs(text: str, token: tuple[int, int], span: tuple[int, int]) -> bool:
    (start, end), (first, last) = token, span
    if start == end:  # a blank of its own, by a tokenizer that trims blanks from its offsets
        return first <= start < last
    if start < last and first < end:
        return True
    return start < first == end and text[start:end] == " "


def _outside(text: str, token: tuple[int, int], span: tuple[int, int]) -> bool:
    """Whether the token holds letters or digits beside the span."""
    (start, end), (first, last) = token, span
    return any(
        character.isalnum()
        for character in text[start : max(start, first)] + text[min(end, last) : end]
    )
