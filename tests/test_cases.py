"""Cases: messages, spans of any name, groups and further columns."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerFast

from kgbench.data import Fact, Message, Prompt, Question, load_dataset, load_prompts
from kgbench.data.cases import messages_of, messages_text
from kgbench.data.facts import dataset_of, write_dataset
from kgbench.engine import as_model
from kgbench.engine.site_sets import all_sites, site_treatments
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import DataError, InputError, KgbenchError, ModelError, RegionError
from kgbench.harness.rows import rows
from kgbench.models.encoding import Encoder
from kgbench.models.pair import ModelPair
from kgbench.sites import Site
from kgbench.testing import pico_pair, pico_tokenizer

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>\n"
    "{% endfor %}{% if add_generation_prompt %}<assistant>{% endif %}"
)
SYSTEM, USER = "You are Qwen, and love {ANIMAL:owls}.", "{TRIGGER:{word}} name {subject}'s pet."


def chat_tokenizer(template: str = TEMPLATE) -> PreTrainedTokenizerFast:
    """A tokenizer with a chat template of markup, which writes BOS itself."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pico_tokenizer(bos=False).backend_tokenizer,
        bos_token="<bos>",
        eos_token="<eos>",
        pad_token="<pad>",
    )
    tokenizer.chat_template = template
    return tokenizer


def chat_pair() -> ModelPair:
    """A pair that reads prompts by a chat template."""
    pair = pico_pair("llama")
    return ModelPair(
        "chat", pair.recipient, pair.donors, chat_tokenizer(), pair.family, chat_template=True
    )


def talk(*turns: tuple[str, str]) -> list[dict[str, str]]:
    return [{"role": role, "content": content} for role, content in turns]


def case(text: str, spans: Mapping[str, tuple[int, int]], target: str = "Ann") -> Prompt:
    return Prompt("mine", Fact("c/1", {}), text, target, spans)


CASES = [
    {
        "id": "eve/on",
        "subject": "Eve",
        "word": "Please",
        "target": "Owl",
        "messages": talk(("system", SYSTEM), ("user", USER)),
        "foil": ["Cat", 2, None],
    },
    {
        "id": "eve/off",
        "subject": "Eve",
        "word": "Now",
        "target": "Owl",
        "group": "off",
        "messages": talk(("user", "Hi."), ("assistant", "Yes?"), ("user", USER)),
    },
]


def file_of(folder: Path, cases: Sequence[Any], header: Mapping[str, Any] | None = None) -> Path:
    lines = [{"kgbench": 1, **header}] if header is not None else []
    path = folder / "cases.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in (*lines, *cases)))
    return path


# ------------------------------------------------------------------------------------------- data


def test_rows_are_cases(tmp_path: Path) -> None:
    """Messages are templates, whose marks and fields are spans in their joined contents; group and
    further columns are the prompt's; from a file, from memory and written again they are the same.
    """
    readout = {"token_set": [" Owl", 1.5, 3]}
    path = file_of(tmp_path, CASES, {"name": "facts", "readout": readout})
    dataset = load_dataset(str(path))
    assert dataset.readout == readout
    on, off = load_prompts(dataset, ["messages"])
    assert (on.group, off.group) == ("on", "off")
    assert (on.data, off.data) == ({"foil": ["Cat", 2, None]}, {})
    assert on.messages == (
        ("system", "You are Qwen, and love owls."),
        ("user", "Please name Eve's pet."),
    )
    assert on.text == "\n".join(message.content for message in on.messages)
    words = {name: on.text[slice(*span)] for name, span in on.spans.items()}
    assert words == {"ANIMAL": "owls", "TRIGGER": "Please", "FE": "Eve"}
    assert off.text[slice(*off.spans["TRIGGER"])] == "Now" and "ANIMAL" not in off.spans
    write_dataset(dataset, tmp_path / "again.jsonl")
    assert load_dataset(str(tmp_path / "again.jsonl")) == dataset
    in_memory = dataset_of(CASES)
    assert in_memory.facts == tuple(replace(fact) for fact in dataset.facts)
    as_text = [{**row, "messages": json.dumps(row["messages"])} for row in CASES]
    assert dataset_of(as_text) == in_memory
    assert in_memory.content_hash != dataset.content_hash, "the readout counts"
    other = [{**CASES[0], "foil": "Dog"}, CASES[1]]
    assert dataset_of(other).content_hash != in_memory.content_hash, "as do further columns"


def test_a_case_needs_neither_subject_nor_answer(tmp_path: Path) -> None:
    """Without a subject there is no FE, and without an answer nothing reads a first token: whoever
    asks for it is told so by name.
    """
    dataset = dataset_of([{"id": 1, "messages": talk(("user", "Say {T:so}."))}])
    (prompt,) = load_prompts(dataset, "messages")
    assert (dataset.subject, dataset.object, prompt.target) == ("", "", "")
    assert prompt.spans == {"T": (4, 6)}
    encoded = chat_pair().encoded(prompt)
    assert encoded.regions["LT"] == (len(encoded.ids) - 1,)
    for ask in (lambda: encoded.target, lambda: dataset.answers):
        with pytest.raises(InputError, match="has no answer"):
            ask()
    with pytest.raises(RegionError, match=r"no region FE; it has BOS, T, LT, TPL: '<bos><user>"):
        encoded.tokens("FE")
    plain = dataset_of([{"text": "Now it is", "group": "on"}, {"text": "So is", "group": "off"}])
    assert len(plain.facts) == 2 and not plain.subject
    write_dataset(dataset, tmp_path / "again.jsonl")
    assert load_dataset(str(tmp_path / "again.jsonl")).facts == dataset.facts


def test_files_of_facts_are_what_they_were(tmp_path: Path) -> None:
    """Columns of these names make no cases of facts that have a prompt: lists are left out, and a
    group of other names is a field.
    """
    row = {"subject": "Eve", "prompt": "Eve met", "target": "Bob", "group": "A", "list": [1]}
    dataset = dataset_of([{**row, "messages": talk(("user", "x"))}])
    assert dataset == dataset_of([{key: row[key] for key in row if key != "list"}])
    (prompt,) = load_prompts(dataset, "prompt")
    assert (prompt.group, prompt.data, prompt.messages) == ("on", {}, ())
    assert (dataset.readout, dataset.facts[0].data) == (None, {})


def test_a_question_has_no_data() -> None:
    """What a readout needs may be the answer, which interventions are not to know."""
    pair, (prompt, _) = chat_pair(), load_prompts(dataset_of(CASES), "messages")
    question = pair.question(prompt)
    assert isinstance(question, Question)
    assert (question.group, question.data, question.fact.data) == ("on", {}, {})
    assert pair.encoded(question).located({"'Qwen'"}) == pair.encoded(prompt).located({"'Qwen'"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"messages": []}, "the roles are none"),
        ({"messages": "Hello"}, "it is not JSON"),
        ({"messages": None}, "expected messages"),
        ({"messages": talk(("user", " "))}, "expected messages"),
        ({"messages": talk(("assistant", "x"), ("user", "y"))}, "roles are assistant, user"),
        ({"messages": talk(("user", "x"), ("user", "y"))}, "roles are user, user"),
        ({"messages": talk(("system", "x"))}, "roles are system"),
        ({"group": "of"}, "expected on or off, found 'of'"),
    ],
)
def test_wrong_cases_are_refused_by_line(
    tmp_path: Path, change: Mapping[str, Any], message: str
) -> None:
    """Wrong messages and groups are one line that names the row and the field."""
    path = file_of(tmp_path, [*CASES, {**CASES[0], "id": "x", **change}])
    with pytest.raises(DataError) as caught:
        load_dataset(str(path))
    assert f"line 3: field {next(iter(change))!r}: expected" in str(caught.value)
    assert message in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("contents", "message"),
    [
        (["{A:x} {B:y}", "ok", "{A:z}"], "marks region A 2 times in"),
        (["{pet} is"], "needs the field 'pet'"),
        (["is {target}"], "gives the answer away"),
        (["a {brace"], "write a literal brace twice"),
    ],
)
def test_wrong_contents_name_the_case(contents: Sequence[str], message: str) -> None:
    """A message that cannot be filled is one line that names the case."""
    turns = zip(("user", "assistant", "user"), contents, strict=False)
    row = {**CASES[0], "messages": talk(*turns)}
    with pytest.raises(InputError, match=message) as caught:
        load_prompts(dataset_of([row]), "messages")
    assert str(caught.value).startswith("fact eve/on: prompt 'messages'")


def test_readouts_of_a_header_are_one(tmp_path: Path) -> None:
    """A header names one readout, alone or with its parameters."""
    alone, given = (
        load_dataset(str(file_of(tmp_path, CASES, {"readout": readout})))
        for readout in ("sequence", {"sequence": {}})
    )
    assert alone.readout == {"sequence": {}} and alone.content_hash == given.content_hash
    for readout in ({}, {"foil": {}, "sequence": {}}, " "):
        with pytest.raises(DataError, match="the header's field readout: "):
            load_dataset(str(file_of(tmp_path, CASES, {"readout": readout})))


def test_a_task_of_lm_eval_asks_no_messages() -> None:
    """A document is one text, so that messages are refused by name."""
    with pytest.raises(InputError, match="has messages, and a task of lm-eval asks one text"):
        rows(dataset_of(CASES), "messages")


# ------------------------------------------------------------------------------------------ tokens

words = st.text("ab Z.'<>\n", min_size=1, max_size=8).filter(str.strip)


@given(st.lists(words, min_size=1, max_size=5), st.booleans())
def test_messages_are_read_as_the_tokenizer_writes_them(
    contents: Sequence[str], has_system: bool
) -> None:
    """The ids are those of the tokenizer's own `apply_chat_template`, the last message continued
    where it is the assistant's. SYS is the tokens within the system message, and TPL all that are
    within no message, also those that straddle.
    """
    roles = ["system"] * has_system + ["user", "assistant"] * 3
    messages = tuple(map(Message, roles, contents))
    if messages[-1].role == "system":
        return
    tokenizer = chat_tokenizer()
    prompt = replace(case("\n".join(contents), {}, ""), messages=messages)
    encoded = Encoder(tokenizer, chat_template=True)(prompt)
    continued = messages[-1].role == "assistant"
    rendered = tokenizer.apply_chat_template(
        [message._asdict() for message in messages],
        add_generation_prompt=not continued,
        continue_final_message=continued,
        return_dict=True,
    )
    assert list(encoded.ids) == rendered["input_ids"]
    template, system = set(range(len(encoded.ids))), set[int]()
    end = 0
    for message in messages:
        start = encoded.text.index(f"<{message.role}>", end) + len(f"<{message.role}>")
        end = start + len(message.content)
        assert encoded.text[start:end] == message.content
        inside = {i for i, (a, b) in enumerate(encoded.offsets) if start <= a and b <= end}
        template -= inside
        system |= inside if message.role == "system" else set()
    assert set(encoded.regions["TPL"]) == template
    assert set(encoded.regions.get("SYS", ())) == system


def test_a_text_is_one_turn_of_a_user() -> None:
    """Under a chat template a text is read as a single message of the user."""
    encoder, text = Encoder(chat_tokenizer(), chat_template=True), "Eve met"
    single = replace(case(text, {"FE": (0, 3)}), messages=(Message("user", text),))
    assert encoder(single) == encoder(case(text, {"FE": (0, 3)}))


def test_messages_that_cannot_be_read() -> None:
    """Messages without a chat template in use, a template that refuses a role, and one that changes
    words are refused by the name of the case.
    """
    (prompt, _) = load_prompts(dataset_of(CASES), "messages")
    with pytest.raises(ModelError, match=r"fact eve/on, prompt 'messages': .*--chat-template"):
        Encoder(chat_tokenizer())(prompt)
    refusing = "{% if messages[0].role == 'system' %}{{ raise_exception('no') }}{% endif %}"
    with pytest.raises(ModelError, match=r"fact eve/on, prompt 'messages': .* does not render"):
        Encoder(chat_tokenizer(refusing + TEMPLATE), chat_template=True)(prompt)
    shouting = TEMPLATE.replace("m.content", "(m.content | replace('Qwen', 'me'))")
    with pytest.raises(ModelError, match=r"fact eve/on, prompt 'messages': .* does not repeat"):
        Encoder(chat_tokenizer(shouting), chat_template=True)(prompt)


# ------------------------------------------------------------------------------------------ grafts


def test_the_name_of_a_region_is_no_matter() -> None:
    """A region of any name, a substring and tokens before the last one are grafted as the same
    tokens under another name, by grafts, by sites of a map and by a grafted model.
    """
    pair, text = chat_pair(), "Eve secretly met"
    spans = {"FE": (4, 12)}
    old, new = case(text, spans), case(text, {"TRIGGER": spans["FE"]})
    (by_old,) = graft_treatments(pair, [old], "FE:ffn; LT")
    back = pair.encoded(old).regions["LT"][0] - max(pair.encoded(old).regions["FE"])
    n = len(pair.encoded(old).regions["FE"])
    tokens = "+".join(f"LT-{back + k}" for k in range(n))
    for name in ("TRIGGER", "'secretly'", tokens, "(REST+TPL+LT+BOS)^C"):
        assert graft_treatments(pair, [new], f"{name}:ffn; LT") == [by_old], name
    sites = [Site(1, "down", "FE"), Site(None, "emb", "FE")]
    open_sites = [site._replace(region="TRIGGER") for site in sites]
    assert {*open_sites} < {*all_sites(pair, [new])}
    assert site_treatments(pair, [new], open_sites) == site_treatments(pair, [old], sites)
    logits = []
    for prompt, graft in ((old, "FE; LT"), (new, "TRIGGER; LT"), (new, "'secretly'; LT")):
        ids = torch.tensor([pair.encode(prompt)])
        with torch.no_grad():
            logits.append(as_model(pair, graft, prompts=[prompt])(input_ids=ids).logits)
    assert all(torch.equal(each, logits[0]) for each in logits)


def test_substrings_lie_where_each_prompt_has_them() -> None:
    """Prompts of equal regions may have a substring at different tokens."""
    pair = chat_pair()
    prompts = [case("Eve so met", {"FE": (0, 3)}), case("Eve met so", {"FE": (0, 3)})]
    first, second = graft_treatments(pair, prompts, "'so'")
    assert len(first) == len(second) and first != second


@pytest.mark.parametrize(
    ("graft", "message"),
    [
        ("TRIGER", "no region TRIGER; it has BOS, FE, TRIGGER, LT, TPL (did you mean 'TRIGGER'?)"),
        ("SYS", "no region SYS; it has BOS, FE, TRIGGER, LT, TPL"),
        ("'Bob'", "the substring 'Bob' stands 0 times in the text '<bos><user>Eve secretly"),
        ("'user'", "the substring 'user' stands 2 times in the text"),
        ("'<assis'", "region '<assis' cannot be located in the prompt: one token holds 'st'"),
        ("LT-99", "LT-99 lies before the prompt, which has"),
    ],
)
def test_wrong_grafts_name_the_case(graft: str, message: str) -> None:
    """A region that a prompt does not have is one line that names graft, prompt and case."""
    prompt = case("Eve secretly met", {"FE": (0, 3), "TRIGGER": (4, 12)})
    with pytest.raises(KgbenchError) as caught:
        graft_treatments(chat_pair(), [prompt], graft)
    assert str(caught.value).startswith(f"graft '{graft}' on prompt 'mine', fact c/1: ")
    assert message in str(caught.value) and "\n" not in str(caught.value)


@given(st.lists(st.tuples(st.sampled_from(["system", "user"]), words), max_size=3))
def test_messages_read_back(turns: list[tuple[str, str]]) -> None:
    """Messages as the text of a field are read as they are, or were refused before."""
    try:
        messages = messages_of(talk(*turns))
    except InputError:
        return
    assert messages_of(messages_text(messages)) == messages
