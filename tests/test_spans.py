"""Regions in tokens, for tokenizers of different kinds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from kgbench.data import Dataset, Fact, Prompt, load_prompts, prompt_names, token_regions
from kgbench.errors import RegionError

CORPUS = [
    "Ana Lee stars in a movie alongside Bob O'Neil",
    "Q: Who stars in a movie with Zoë Šimić? A: An actor named Bob",
    "In a new film, Ana appears in The Blue Sea with the other lead actor, whose name is: Li",
] * 3
BYTES = [f"<0x{byte:02X}>" for byte in range(256)]


def byte_level(*, bos: bool, trim: bool = False) -> Tokenizer:
    """As GPT-2's: the blank is the first character of a word's token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=360, initial_alphabet=alphabet, special_tokens=["<bos>"], show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    steps = [processors.ByteLevel(trim_offsets=trim)]
    steps += (
        [processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", 0)])]
        if bos
        else []
    )
    tokenizer.post_processor = processors.Sequence(steps)
    return tokenizer


def byte_fallback(*, prefix: bool) -> Tokenizer:
    """As Gemma's and Llama 2's: "▁" for the blank, often a token of its own; bytes for unknown
    characters.
    """
    tokenizer = Tokenizer(models.BPE(byte_fallback=True, unk_token="<unk>"))
    steps = [normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), *steps] if prefix else steps
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.BpeTrainer(vocab_size=320, special_tokens=["<unk>", *BYTES], show_progress=False),
    )
    return tokenizer


def unigram() -> Tokenizer:
    """As T5's, with the blank cut off from every word."""
    tokenizer = Tokenizer(models.Unigram())
    isolated = pre_tokenizers.Split("▁", "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Metaspace(prepend_scheme="always"), isolated]
    )
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.UnigramTrainer(
            vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>", show_progress=False
        ),
    )
    return tokenizer


def word_piece() -> Tokenizer:
    """As BERT's, but with blanks kept as tokens and [CLS] as BOS."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=10**6))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(" ", "isolated"), pre_tokenizers.Punctuation()]
    )
    tokenizer.train_from_iterator(
        CORPUS,
        trainers.WordPieceTrainer(
            vocab_size=120, special_tokens=["[UNK]", "[CLS]"], show_progress=False
        ),
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A", special_tokens=[("[CLS]", 1)]
    )
    return tokenizer


TOKENIZERS = {
    "byte_level": byte_level(bos=False),
    "byte_level_bos": byte_level(bos=True),
    "byte_level_trimmed": byte_level(bos=True, trim=True),
    "byte_fallback": byte_fallback(prefix=False),
    "byte_fallback_prefix": byte_fallback(prefix=True),
    "unigram": unigram(),
    "word_piece": word_piece(),
}
NAMES = st.one_of(
    st.sampled_from(
        [
            "Ana Lee",
            "Zoë Šimić",
            "Zoe\u0308 Li",
            "Bob O'Neil",
            '"Ana" Lee',
            "李 小龍",
            "stars in",
            "{Ana}",
            "J. R.",
            "👩‍🎬 X",
            "a  b",
            "Who?",
        ]
    ),
    st.text(
        st.characters(exclude_categories=["Cs", "Cc", "Zs", "Zl", "Zp"]), min_size=1, max_size=8
    ),
)


def prompt_of(
    name: str,
    first_actor: str,
    movie_title: str = "The Blue Sea",
    templates: dict[str, str] | None = None,
) -> Prompt:
    fact = Fact(
        "own/1", {"first_actor": first_actor, "second_actor": "Li", "movie_title": movie_title}
    )
    return load_prompts(
        Dataset("own", (fact,), "first_actor", "second_actor", templates or {}, {}, ""), [name]
    )[0]


def regions_of(
    prompt: Prompt, tokenizer: Tokenizer
) -> tuple[dict[str, list[int]], list[tuple[int, int]], list[str]]:
    encoding = tokenizer.encode(prompt.text)
    return (
        token_regions(
            prompt, encoding.offsets, [bool(flag) for flag in encoding.special_tokens_mask]
        ),
        encoding.offsets,
        encoding.tokens,
    )


@pytest.mark.parametrize("kind", TOKENIZERS)
@given(name=st.sampled_from(prompt_names()), actor=NAMES, title=NAMES)
def test_regions_hold_their_word_and_no_other(kind: str, name: str, actor: str, title: str) -> None:
    """A region's tokens are the text tokens that meet its characters or its one leading blank, and
    hold no other word.
    """
    prompt = prompt_of(name, actor, title)
    regions, offsets, tokens = regions_of(prompt, TOKENIZERS[kind])
    assert regions["LT"] == [len(offsets) - 1]
    assert (regions.get("BOS") == [0]) is (tokens[0] in ("<bos>", "[CLS]"))
    assert set(regions) - {"BOS", "LT"} == set(prompt.spans)
    for region, (first, last) in prompt.spans.items():
        indices = regions[region]
        assert indices == list(range(indices[0], indices[-1] + 1))
        covered = {position for index in indices for position in range(*offsets[index])}
        assert covered.issuperset(
            position for position in range(first, last) if not prompt.text[position].isspace()
        )
        assert not any(
            prompt.text[position].isalnum() for position in covered if not first <= position < last
        )
        left, right = indices[0] - 1, indices[-1] + 1
        # The neighbours end before the blank, and start behind the region.
        assert (
            left < 0 or tokens[left] in ("<bos>", "[CLS]") or offsets[left][1] <= max(0, first - 1)
        )
        assert right == len(tokens) or offsets[right][0] >= last


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("byte_level", "AnaĠLee"),
        ("byte_level_bos", "AnaĠLee"),
        ("byte_level_trimmed", "AnaĠLee"),
        ("byte_fallback", "Ana▁Lee"),
        ("byte_fallback_prefix", "▁Ana▁Lee"),
        ("unigram", "▁Ana▁Lee"),
        ("word_piece", "Ana Lee"),
    ],
)
def test_first_entity_at_the_start(kind: str, expected: str) -> None:
    """By example: a blank that the tokenizer itself puts before the text is the first word's too."""
    regions, _, tokens = regions_of(prompt_of("headline", "Ana Lee"), TOKENIZERS[kind])
    assert "".join(tokens[index].removeprefix("##") for index in regions["FE"]) == expected


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_the_leading_blank_belongs_to_the_word(kind: str) -> None:
    """Joined, a token of its own, or trimmed from the offsets: the blank before a word is the
    word's, the one behind is not.
    """
    regions, _, tokens = regions_of(prompt_of("qa", "Žan Li"), TOKENIZERS[kind])
    for region in ("FE", "R", "RP", "P"):
        assert tokens[regions[region][0]][0] in "Ġ▁ "
        assert tokens[regions[region][-1]] not in ("Ġ", "▁", " ")
    assert "?" not in "".join(tokens[index] for index in regions["FE"])


@pytest.mark.parametrize(
    ("template", "offsets", "held"),
    [
        ("{subject} stars", [(0, 3), (3, 13)], " Lee stars"),
        ("So {subject} stars", [(0, 6), (6, 10), (10, 16)], "So Ana"),
    ],
)
def test_a_token_across_two_words_is_refused(
    template: str, offsets: list[tuple[int, int]], held: str
) -> None:
    """Where a token holds a neighbour's letters, the region cannot be told apart: fact, prompt and
    tokenizer are named.
    """
    prompt = prompt_of("own", "Ana Lee", templates={"own": template})
    expected = (
        "region FE, 'Ana Lee', cannot be located in prompt 'own' of fact 'own/1' by glue: one"
        f" token holds '{held}'"
    )
    with pytest.raises(RegionError, match=expected):
        token_regions(prompt, offsets, [False] * len(offsets), tokenizer="glue")


def test_of_two_blanks_one_is_the_words() -> None:
    """Only the single blank before a word is its own, also where offsets are trimmed to nothing."""
    prompt = prompt_of("own", "Ana", templates={"own": "So  {subject} is"})
    plain = [(0, 2), (2, 3), (3, 4), (4, 7), (7, 8), (8, 10)]
    trimmed = [(0, 2), (3, 3), (4, 4), (4, 7), (8, 8), (8, 10)]
    collapsed = [(0, 2), (3, 3), (4, 4), (4, 7), (7, 7), (8, 10)]
    for offsets in (plain, trimmed, collapsed):
        assert token_regions(prompt, offsets, [False] * 6)["FE"] == [2, 3]


def test_a_token_that_ends_with_the_blank_is_the_word_before() -> None:
    """A blank joined to the word before it does not draw that word into the region."""
    prompt = prompt_of("control", "Ana", "It")
    assert prompt.text == "It stars Ana and"
    offsets = [(0, 3), (3, 9), (9, 13), (13, 16)]
    assert token_regions(prompt, offsets, [False] * 4) == {"M": [0], "R": [1], "FE": [2], "LT": [3]}


def test_punctuation_may_share_a_token() -> None:
    """Marks beside a name are no word: "J.?" in one token is still the name's."""
    prompt = prompt_of("own", "J.", templates={"own": "Who is {subject}? It is"})
    assert token_regions(prompt, [(0, 3), (3, 6), (6, 10), (10, 13), (13, 16)], [False] * 5)[
        "FE"
    ] == [2]


@pytest.mark.parametrize(
    ("offsets", "special", "message"),
    [
        ([], [], "region LT cannot be located"),
        ([(0, 0)], [True], "region LT cannot be located"),
        ([(0, 36), (0, 0)], [False, True], "let it add no special token there"),
        (
            [(8, 13), (13, 35)],
            [False, False],
            "region FE, 'Ana Lee', cannot be located .* it has no token",
        ),
    ],
)
def test_what_cannot_be_located_is_an_error(
    offsets: list[tuple[int, int]], special: list[bool], message: str
) -> None:
    """No text, an added token at the end, or a region without a token."""
    with pytest.raises(RegionError, match=message):
        token_regions(prompt_of("headline", "Ana Lee"), offsets, special)
