"""Prompts as tokens."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, pre_tokenizers, processors
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

import kgbench
from kgbench.data import Fact, Prompt, load_prompts
from kgbench.errors import ModelError, RegionError
from kgbench.models.encoding import Encoder
from kgbench.testing import pico_tokenizer

PROMPTS = load_prompts(
    "fake_movies_fake_actors", ["headline", "qa", "movie_title", "new_film", "control"], limit=4
)

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<user>{{ m['content'] }}</user>{% endfor %}"
    "{% if add_generation_prompt %}<model>{% endif %}"
)


def framed() -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template that writes BOS itself."""
    inner = pico_tokenizer(bos=True)
    copy = PreTrainedTokenizerFast(
        tokenizer_object=inner.backend_tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
    )
    copy.chat_template = TEMPLATE
    return copy


@pytest.mark.parametrize("bos", [True, False])
@pytest.mark.parametrize("prompt", PROMPTS, ids=lambda p: f"{p.name}-{p.fact.id}")
def test_regions_are_the_words(prompt: Prompt, bos: bool) -> None:
    """The tokens of a region decode to its words with their blank, LT is the last token, and BOS is
    there where the tokenizer adds it.
    """
    tokenizer = pico_tokenizer(bos=bos)
    encoded = Encoder(tokenizer)(prompt)
    bare = encoded.without_blanks()
    assert list(bare.ids) == tokenizer(prompt.text)["input_ids"]
    assert tokenizer.decode(encoded.ids[len(bare.ids) :]).strip() == ""
    for name, (start, end) in prompt.spans.items():
        if name != "LT":
            decoded = tokenizer.decode([encoded.ids[t] for t in encoded.regions[name]])
            assert decoded.removeprefix(" ") == prompt.text[start:end]
    assert encoded.regions["LT"] == (len(encoded.ids) - 1,)
    assert encoded.regions.get("BOS") == ((0,) if bos else None)
    assert (encoded.ids[0] == tokenizer.bos_token_id) == bos


@pytest.mark.parametrize("bos", [True, False])
def test_the_target_is_what_the_object_adds(bos: bool) -> None:
    """The target is the first token that a blank and the object add to the prompt's own tokens and
    that holds more than blanks; those before it are the last tokens of the prompt.
    """
    tokenizer = pico_tokenizer(bos=bos)
    for prompt in PROMPTS:
        encoded = Encoder(tokenizer)(prompt)
        longer = tokenizer(f"{prompt.text} {prompt.target}")["input_ids"]
        assert tuple(longer[: len(encoded.ids)]) == encoded.ids
        assert encoded.target == longer[len(encoded.ids)]
        assert tokenizer.decode(encoded.target).strip()
        start = len(tokenizer(prompt.text)["input_ids"])
        assert encoded.blanks == len(encoded.ids) - start
        assert not tokenizer.decode(longer[start : len(encoded.ids)]).strip()


@given(
    st.text(alphabet="ab Zoë'O1.", max_size=12),
    st.text(alphabet="ab Zoë'O1.", min_size=1, max_size=12),
)
def test_the_target_continues_the_prompt_or_is_refused(text: str, target: str) -> None:
    """For any texts: the prompt's tokens and the target begin those of both together, or the prompt
    is refused by name.
    """
    fact = Fact("x/1", {"a": "b"})
    prompt = Prompt("mine", fact, f"Q {text}", target, {})
    tokenizer = pico_tokenizer(bos=True)
    try:
        encoded = Encoder(tokenizer)(prompt)
    except RegionError as error:
        assert "x/1" in str(error)
        assert "'mine'" in str(error)
    else:
        blank = "" if prompt.text[-1].isspace() else " "
        together = tokenizer(f"{prompt.text}{blank}{target}")["input_ids"]
        assert together[: len(encoded.ids) + 1] == [*encoded.ids, encoded.target]
        assert tokenizer.decode(encoded.target).strip()


YEARS = ("1066", "1415", "1815", "1805", "490", "1863", "1916", "1942", "1571", "732")


def cut_blanks(
    tokenizer: PreTrainedTokenizerFast, digits: str = "{1,3}"
) -> PreTrainedTokenizerFast:
    """A copy of a byte-level tokenizer that cuts as Llama 3 does, or with no number as Qwen 2."""
    pattern = rf"[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|\s+"
    copy = deepcopy(tokenizer)
    copy.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return copy


@pytest.mark.parametrize("digits", ["{1,3}", ""])
def test_numbers_after_a_blank_of_its_own(digits: str) -> None:
    """Llama 3, Qwen 2 and others cut the blank off a number. The model is given it, LT is that
    blank, and answers that begin otherwise have other targets; words are as before.
    """
    shipped = kgbench.load_pair("tiny-llama").tokenizer
    words, tokenizer = Encoder(shipped)(PROMPTS[0]), cut_blanks(shipped, digits)
    encoder, text = Encoder(tokenizer), "The battle was fought in"
    targets = set()
    for year in YEARS:
        encoded = encoder(Prompt("when", Fact("b/1", {}), text, year, {}))
        assert encoded.blanks == 1 and encoded.regions["LT"] == (len(encoded.ids) - 1,)
        assert tokenizer.decode(encoded.ids[-1]) == " "
        target = tokenizer.decode(encoded.target)
        assert target and year.startswith(target)
        targets.add(target)
        place = encoder(Prompt("when", Fact("b/1", {}), f"{text} ", year, {}))
        assert (place.ids, place.target) == (encoded.ids, encoded.target)
    assert len(targets) > 1
    assert encoder(PROMPTS[0]) == words and not words.blanks


def test_tokens_that_are_no_prefix() -> None:
    """Where the prompt's last token would join with the blank of the answer, there is no first
    target token.
    """
    prompt = replace(PROMPTS[0], text=f"{PROMPTS[0].text} ", target="Ann")
    tokenizer = pico_tokenizer(bos=False)
    alone, together = (
        tokenizer(prompt.text)["input_ids"],
        tokenizer(f"{prompt.text}Ann")["input_ids"],
    )
    assert together[: len(alone)] != alone, "the tokenizer joins the blank with the name"
    with pytest.raises(RegionError, match="not a prefix of the tokens of prompt and target 'Ann'"):
        Encoder(tokenizer)(prompt)


def test_tokenizers_that_do_not_do() -> None:
    """A slow tokenizer, one that adds a token at the end, and a missing chat template are refused
    when the pair is made.
    """
    with pytest.raises(ModelError, match="slow one"):
        Encoder(ByT5Tokenizer())
    ending = framed()
    ending.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 2)]
    )
    with pytest.raises(ModelError, match="adds tokens after the text"):
        Encoder(ending)
    with pytest.raises(ModelError, match="no chat template"):
        Encoder(pico_tokenizer(bos=True), chat_template=True)


def test_a_chat_template_frames_the_prompt() -> None:
    """With the template, one BOS stands first, regions are the same words, and the answer is read
    where the model's turn begins.
    """
    tokenizer = framed()
    bare, turned = Encoder(tokenizer), Encoder(tokenizer, chat_template=True)
    for prompt in PROMPTS:
        plain, chat = bare(prompt), turned(prompt)
        assert chat.ids.count(tokenizer.bos_token_id) == 1
        assert chat.regions["BOS"] == (0,)
        bare_turn = list(chat.without_blanks().ids)
        assert tokenizer.decode(bare_turn).endswith("</user><model>")
        assert chat.regions["LT"] == (len(chat.ids) - 1,)
        for name in prompt.spans:
            words = [
                tokenizer.decode([e.ids[t] for t in e.regions[name]]).strip() for e in (plain, chat)
            ]
            assert words[0] == words[1]


def test_a_chat_template_that_changes_the_words_is_refused() -> None:
    """Where the user's words do not come through as they are, nothing could be located in them."""
    tokenizer = framed()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content | upper }}{% endfor %}"
    with pytest.raises(ModelError, match="does not repeat"):
        Encoder(tokenizer, chat_template=True)


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{{ messages.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{% if %}", "TemplateSyntaxError"),
        ("{% include '/etc/passwd' %}", "loader"),
    ],
)
def test_chat_templates_that_fail(template: str, reason: str) -> None:
    """A chat template is a program from outside, which runs in the library's sandbox: where it
    fails, the error is one line.
    """
    tokenizer = pico_tokenizer(bos=True)
    tokenizer.chat_template = template
    with pytest.raises(
        ModelError, match=rf"chat template does not render: .*({reason}).*leave --chat-template off"
    ):
        Encoder(tokenizer, chat_template=True)
