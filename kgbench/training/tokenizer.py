"""Byte-level BPE tokenizers, trained on a world's texts."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

__all__ = ["load_tokenizer", "save_tokenizer", "train_tokenizer"]

_PAD, _BOS, _EOS = "<pad>", "<bos>", "<eos>"


def train_tokenizer(texts: Iterable[str], vocabulary: int, bos: bool) -> PreTrainedTokenizerFast:
    """Train a tokenizer.

    Args:
        texts: What it is to be good at.
        vocabulary: Number of tokens, special ones and the 256 bytes among them.
        bos: Whether it has a BOS token and puts it before every text; otherwise EOS goes by that name too, and nothing is added.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    special = [_PAD, _BOS, _EOS] if bos else [_PAD, _EOS]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=special,
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    if bos:
        first = (_BOS, tokenizer.token_to_id(_BOS))
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{_BOS} $A", pair=f"{_BOS} $A {_BOS} $B:1", special_tokens=[first]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=_PAD, bos_token=_BOS if bos else _EOS, eos_token=_EOS
    )


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, directory: Path) -> None:
    """Write a tokenizer, without the blanks that make up more than half of its file."""
    tokenizer.save_pretrained(directory)
    path = directory / "tokenizer.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(
        json.dumps(content, ensure_ascii=False, separators=(",", ":")), encoding="utf-8"
    )


def load_tokenizer(directory: Path) -> PreTrainedTokenizerFast:
    """A stored tokenizer."""
    tokenizer: PreTrainedTokenizerFast = PreTrainedTokenizerFast.from_pretrained(
        directory, local_files_only=True
    )
    return tokenizer
