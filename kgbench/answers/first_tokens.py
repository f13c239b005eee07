"""All tokens that a name can begin with: " R", " Rob" and " Robert" of " Robert De Niro"."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

__all__ = ["first_tokens", "token_texts"]


@lru_cache(maxsize=1)  # the tokens of a large vocabulary take seconds, and prompts come in groups
def token_texts(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tokens by the text that they add to a text before them.

    A token is decoded after another one, since some tokenizers drop a leading blank at the beginning. Left out are special tokens, those
    that add nothing or only blanks, with which every name begins, and those that are no text by themselves, such as a part of a character.

    Args:
        tokenizer: Of the pair; its own vocabulary may be smaller than the model's.
        vocabulary: Number of tokens that the model has logits of.
    """
    before = int(tokenizer("a", add_special_tokens=False)["input_ids"][-1])
    start = str(tokenizer.decode([before], clean_up_tokenization_spaces=False))
    special = {
        *tokenizer.all_special_ids,
        *(i for i, token in tokenizer.added_tokens_decoder.items() if token.special),
    }
    ids = [i for i in range(min(vocabulary, len(tokenizer))) if i not in special]
    found: dict[str, list[int]] = {}
    for i, text in zip(
        ids,
        tokenizer.batch_decode([[before, i] for i in ids], clean_up_tokenization_spaces=False),
        strict=True,
    ):
        if text.startswith(start) and text[len(start) :].strip():
            found.setdefault(text[len(start) :], []).append(i)
    return {text: tuple(tokens) for text, tokens in found.items()}


def first_tokens(texts: Mapping[str, tuple[int, ...]], answer: str, own: int) -> dict[int, str]:
    """The tokens whose text is a prefix of an answer's, the shortest first, and that text.

    Args:
        texts: Tokens by text, see `token_texts`.
        answer: The answer with the blank before it, if it has one.
        own: The token that the tokenizer does begin it with, which always counts: even where it is a blank, or a part of a character.
    """
    found = {
        token: answer[:end]
        for end in range(1, len(answer) + 1)
        for token in texts.get(answer[:end], ())
    }
    return found if own in found else {own: "", **found}
