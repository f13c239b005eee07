"""The vocabulary of places, and the grammar of graft expressions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import oracle
import pytest
from grafts import grafts, layers, positions
from hypothesis import given, settings
from hypothesis import strategies as st

from kgbench.data import load_prompts
from kgbench.engine.treatment import graft_treatments
from kgbench.errors import GraftSyntaxError, InputError, RegionError
from kgbench.sites import (
    COMPONENTS,
    CONFIGURATIONS,
    GROUPS,
    LAYER_GROUPS,
    OUTSIDE,
    PER_LAYER,
    REGIONS,
    SCORED_REGIONS,
    SYNONYMS,
    Graft,
    Layers,
    complement,
    complement_graft,
    parse_graft,
    partition,
    scored_positions,
    split_grafts,
)
from kgbench.sites.configurations import canonical
from kgbench.testing import pico_pair

DONORS = ("sft", "task", "recipient", "v1.2-b", "0.5*sft", "-2*task[0-3]", "sft[7]", "0.000001*sft")
NAMED = (*REGIONS, "TRIGGER", "T_1")
"""Regions of facts, and names of a template's own."""
OPEN = (*NAMED, "LT-1", "LT-20", "TPL", "SYS", "REST", "'Qwen'", '"it\'s"', "'a@1, LT+(b); c^C'")


@st.composite
def laid_out(draw: st.DrawFn) -> tuple[dict[str, list[int]], int]:
    """Regions of a prompt of some tokens; they may overlap and need not cover it."""
    n = draw(st.integers(1, 8))
    tokens = st.lists(st.integers(0, n - 1), min_size=1, max_size=n, unique=True)
    return {region: draw(tokens) for region in NAMED}, n


# ------------------------------------------------------------------------------ reading and writing


@given(grafts(OPEN, donors=DONORS, n=12))
def test_format_and_parse_round_trip(text: str) -> None:
    """What is written reads back as the same graft, and writing is stable."""
    graft = parse_graft(text)
    assert parse_graft(str(graft)) == graft
    assert str(parse_graft(str(graft))) == str(graft)
    assert canonical(parse_graft(str(canonical(graft)))) == canonical(graft)


@given(grafts(donors=DONORS, n=12), st.randoms(use_true_random=False))
def test_blanks_do_not_matter(text: str, rng: object) -> None:
    """Blanks between the signs change nothing."""
    signs = [" " if c == " " else f" {c} " if c in "+:@=;()," else c for c in text]
    assert parse_graft("".join(signs)) == parse_graft(text)
    assert parse_graft(f"\t{text}\n") == parse_graft(text)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("FE+LT", "FE+LT"),
        ("LT : o + ffn @ second_half", "LT:o+ffn@second_half"),
        ("ALL;LT:o=recipient", "ALL; LT:o=recipient"),
        ("FE=sft", "FE"),
        ("FE@08-10", "FE@8-10"),
        ("FE@8 - 17", "FE@8-17"),
        ("FE@2/4-1", "FE@1/2-1"),
        ("FE@0-1/2", "FE@0-1/2"),
        ("FE@0/3-3/3", "FE@0/1-1/1"),
        ("FE@all,3", "FE@all,3"),
        ("((FE))^C", "((FE))^C"),
        ('"a \'b\'"+"Qwen"^C', "\"a 'b'\"+'Qwen'^C"),
        ("LT-2+TRIGGER@3", "LT-2+TRIGGER@3"),
        (
            "FE:attn=task; LT:attn@1/2-1=task; LT:o+ffn@1/2-1=relation",
            "FE:attn=task; LT:attn@1/2-1=task; LT:o+ffn@1/2-1=relation",
        ),
        *((c, c) for c in CONFIGURATIONS if c not in ("PRE", "SFT")),
    ],
)
def test_canonical_form(text: str, canonical: str) -> None:
    """The one way that records write a graft."""
    assert str(parse_graft(text)) == canonical


# ------------------------------------------------------------------------------------ what it means


@given(positions(NAMED), laid_out())
def test_positions_are_sets(text: str, layout: tuple[dict[str, list[int]], int]) -> None:
    """`+` is the union, `^C` the complement among all tokens, BOS included, and binds tighter."""
    regions, n = layout
    (term,) = parse_graft(text).terms
    assert term.positions.tokens(regions, n) == oracle.token_set(text, regions, n)
    assert term.positions.regions() == {
        r
        for r in NAMED
        if r in text.replace("(", "+").replace(")", "+").replace("^", "+").split("+")
    }


@given(laid_out(), st.integers(1, 4))
def test_regions_that_follow_from_others(layout: tuple[dict[str, list[int]], int], k: int) -> None:
    """REST is the complement of all regions of the prompt, substrings and tokens before LT not
    among them; LT-k is the k-th token before LT, and is refused where the prompt begins later.
    """
    regions, n = layout

    def tokens(of: str) -> frozenset[int]:
        return parse_graft(of).terms[0].positions.tokens({**regions, "'a'": [0]}, n)

    assert tokens("REST") == tokens(f"({'+'.join(regions)})^C")
    if k <= min(regions["LT"]):
        assert tokens(f"LT-{k}") == {min(regions["LT"]) - k}
    else:
        with pytest.raises(RegionError, match=f"LT-{k} lies before the prompt"):
            tokens(f"LT-{k}")


@given(positions(NAMED), laid_out())
def test_complement_is_the_other_tokens(
    text: str, layout: tuple[dict[str, list[int]], int]
) -> None:
    """`complement` gives an expression of the other tokens; twice it gives the same tokens."""
    regions, n = layout

    def tokens(of: str) -> frozenset[int]:
        return parse_graft(of).terms[0].positions.tokens(regions, n)

    assert tokens(complement(text)) == set(range(n)) - tokens(text)
    assert tokens(complement(complement(text))) == tokens(text)


@pytest.mark.parametrize(
    ("text", "other"),
    [
        ("FE", "FE^C"),
        ("FE+LT", "(FE+LT)^C"),
        ("(FE+LT)^C", "FE+LT"),
        ("FE^C", "FE"),
        ("ALL", "ALL^C"),
    ],
)
def test_complement_is_written_as_the_paper_does(text: str, other: str) -> None:
    """Complements of the pathway configurations are the pathway configurations."""
    assert complement(text) == other


def test_names_of_hugging_face_are_read_as_ours() -> None:
    """A component under its name in Hugging Face's models is the same graft, written with our name."""
    assert str(parse_graft("LT:mlp+o_proj")) == "LT:ffn+o"
    assert {name: str(parse_graft(f"LT:{name}")) for name in SYNONYMS} == {
        name: f"LT:{ours}" for name, ours in SYNONYMS.items()
    }
    assert not {*SYNONYMS} & {*GROUPS, *COMPONENTS}


@given(st.lists(grafts(OPEN), min_size=1, max_size=4))
def test_commas_separate_grafts_but_not_layers(some: list[str]) -> None:
    """Grafts joined by commas are split where one ends, also behind a list of layers."""
    assert [str(parse_graft(text)) for text in split_grafts(", ".join(some))] == [
        str(parse_graft(text)) for text in some
    ]


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("FE,LT", ("FE", "LT")),
        ("LT@0,2,FE", ("LT@0,2", "FE")),
        ("LT@0, second_half , (FE+LT)^C", ("LT@0, second_half", "(FE+LT)^C")),
        ("FE@1,PRE,SFT", ("FE@1", "PRE", "SFT")),
        ("FE@1; LT:o,ALL@all,2", ("FE@1; LT:o", "ALL@all,2")),
        ("FE,lt", ("FE", "lt")),
        ("'a, B@1'@2,'c',3,\"d\"", ("'a, B@1'@2", "'c'", "3", '"d"')),
    ],
)
def test_where_one_graft_ends(text: str, parts: tuple[str, ...]) -> None:
    """Behind layers, a graft begins with a capital letter or a bracket; elsewhere every comma
    separates.
    """
    assert split_grafts(text) == parts


def test_unknown_regions_of_a_prompt() -> None:
    """A region that the prompt does not have is an error that says which ones it has."""
    for name, told in (
        ("M", r"it has FE, TRIGGER; .* \{M:words\}$"),
        ("TRIGER", r"it has FE, TRIGGER \(did you mean 'TRIGGER'\?\); .* \{TRIGER:words\}$"),
        ("TPL", "it has FE, TRIGGER$"),
    ):
        with pytest.raises(RegionError, match=f"no region {name}; {told}"):
            parse_graft(f"FE+{name}").terms[0].positions.tokens({"FE": [0], "TRIGGER": [1]}, 2)


@given(st.integers(1, 200))
def test_layer_groups_partition_the_layers(n: int) -> None:
    """For every depth: halves, and quarters, hold each layer once, in order."""
    for names in (
        ("first_half", "second_half"),
        ("first_quarter", "second_quarter", "third_quarter", "fourth_quarter"),
    ):
        held = [layer for name in names for layer in sorted(Layers((name,)).resolve(n))]
        assert held == list(range(n))
    assert set(LAYER_GROUPS) == set(oracle.SHARES)


@given(
    st.integers(1, 100),
    st.integers(0, 12),
    st.integers(1, 12),
    st.integers(0, 12),
    st.integers(1, 12),
)
def test_fractions_are_floors(n: int, p: int, q: int, r: int, s: int) -> None:
    """p/q-r/s are the layers from floor(pn/q) to floor(rn/s), end left out."""
    if not Fraction(p, q) < Fraction(r, s) <= 1:
        return
    (term,) = parse_graft(f"ALL@{p}/{q}-{r}/{s}").terms
    assert term.layers is not None
    assert sorted(term.layers.resolve(n)) == list(range(p * n // q, r * n // s))


@given(layers(9), st.integers(9, 30))
def test_layers_are_what_they_say(text: str, n: int) -> None:
    """Any list of parts is the union of its parts, in a model of any depth."""
    (term,) = parse_graft(f"ALL@{text}").terms
    assert term.layers is not None
    assert term.layers.resolve(n) == oracle.layer_set(text, n)


def test_a_layer_that_is_not_there() -> None:
    """An integer beyond the last layer is an error that says how many there are."""
    for text in ("3", "0-3", "7"):
        with pytest.raises(
            InputError,
            match=rf"layer {text[-1]} in '@{text}' does not exist: the model has 3 layers, 0-2",
        ):
            Layers((text,)).resolve(3)


def test_groups_of_components() -> None:
    """`all` is everything but final norm and head; with layers and no components, a term has the
    per-layer ones only.
    """
    assert set(GROUPS["all"]) == set(COMPONENTS) - {"ln_f", "head"}
    assert set(COMPONENTS) == {*PER_LAYER, *OUTSIDE}
    assert parse_graft("FE").terms[0].component_names() == GROUPS["all"]
    assert parse_graft("FE@1").terms[0].component_names() == PER_LAYER
    assert list(parse_graft("FE:emb+q").terms[0].sites(2)) == [(None, "emb"), (0, "q"), (1, "q")]
    assert list(parse_graft("FE:o@1").terms[0].sites(2)) == [(1, "o")]


# ---------------------------------------------------------------------------- complements of grafts


@pytest.mark.parametrize("family", ["gpt2", "gemma"])
def test_a_graft_and_its_complement_partition_the_default_sites(family: str) -> None:
    """At each default site, one of the two takes the donor's weights, the other the recipient's;
    the complement touches no other.
    """
    pair = pico_pair(family)
    prompts = load_prompts("fake_movies_fake_actors", ["headline", "qa"], limit=1)
    sites = pair.slots.sites
    default = np.array([component in GROUPS["all"] for _, component in sites])

    @settings(max_examples=40)
    @given(grafts(("FE", "LT", "R"), pair.family.components))
    def law(text: str) -> None:
        graft = parse_graft(text)
        other = complement_graft(graft)
        if other is None:
            assert graft.donors() == ()
            return
        for one, rest in zip(_table(graft), _table(other), strict=True):
            assert (one[:, default] + rest[:, default] == 1).all(), other
            assert not rest[:, ~default].any(), other

    def _table(graft: Graft) -> list[np.ndarray]:
        rows = graft_treatments(pair, prompts, graft)
        return [np.array([list(t.weights) for t in tokens]) for tokens in rows]

    law()


def test_complements_of_grafts_are_readable() -> None:
    """Whole positions give the other positions, all-but-one-site gives the site, and two donors
    have no complement.
    """
    wanted = {
        "FE+LT": "(FE+LT)^C",
        "LT^C": "LT",
        "FE=task": "FE^C=task",
        "LT:o": "ALL; LT:o=recipient",
        "ALL; LT:o=recipient": "LT:o",
        "ALL; LT:ln_f+q=recipient": "LT:q",
        "ALL; LT:head=recipient": "NONE",
        "FE; LT=task": None,
        "ALL=recipient": None,
    }
    for text, other in wanted.items():
        found = complement_graft(parse_graft(text))
        assert (None if found is None else str(found)) == other, text


@given(laid_out())
def test_partition_takes_the_first_region_that_applies(
    layout: tuple[dict[str, list[int]], int],
) -> None:
    """Every token has exactly one scored region: the first of LT, FE, M, RP, R, P, those of other
    names, and BOS that holds it, or REST; its expression names these tokens.
    """
    regions, n = layout
    place = SCORED_REGIONS.index("SYS")
    order = (*SCORED_REGIONS[:place], "TRIGGER", "T_1", *SCORED_REGIONS[place:])
    wanted = [next((r for r in order if t in regions.get(r, ())), "REST") for t in range(n)]
    assert partition(regions, n) == wanted
    assert partition({}, n) == ["REST"] * n
    for region in {*wanted}:
        (term,) = parse_graft(scored_positions(region, [regions])).terms
        held = {t for t in range(n) if wanted[t] == region}
        assert term.positions.tokens(regions, n) == held


# ------------------------------------------------------------------------------------------- errors


@pytest.mark.parametrize(
    ("text", "offset", "expected"),
    [
        ("", 0, "a region"),
        ("SFT", 0, "a region"),
        ("LT-0", 2, "'^C'"),
        ("'FE", 0, "a quoted text"),
        ("'a\tb'", 0, "a quoted text of one line"),
        ("fe", 0, "did you mean 'FE'"),
        ("FE + xyz", 5, "a region (FE, LT, M"),
        ("(FE+LT", 6, "')'"),
        ("FE)", 2, "'^C'"),
        ("FE^C^C", 4, "';' or the end"),
        ("FE:", 3, "a component"),
        ("FE@9-7", 3, "first layer is not after its last"),
        ("FE@1/2", 3, "two fractions"),
        ("FE@1/2-1/3", 3, "smaller first"),
        ("FE@1/2-3/2", 3, "between 0 and 1"),
        ("FE@1,,2", 5, "layers"),
        ("FE@7-", 4, "'=' donor"),
        ("FE:emb@1", 3, "give emb a term of its own"),
        ("FE=", 3, "a donor's name"),
        ("FE=sft@1", 6, "';' or the end"),
        ("FE@1:q", 4, "'=' donor"),
        ("FE;", 3, "a region"),
        ("FE LT", 3, "'+'"),
        ("FE; LT:o@second_halff", 9, "did you mean 'second_half'"),
    ],
)
def test_errors_point_at_the_place(text: str, offset: int, expected: str) -> None:
    """The caret stands under the first character that does not fit, and the message says what could
    stand there.
    """
    with pytest.raises(GraftSyntaxError) as caught:
        parse_graft(text)
    assert caught.value.offset == offset
    assert expected in str(caught.value)
    _, shown, caret = str(caught.value).splitlines()
    assert shown[4:] == text
    assert caret == "    " + " " * offset + "^"


@given(st.text(alphabet="FELTMRPBOSANC+^():;@=,/-0123 qkvoalhd_'\"", max_size=30))
def test_any_text_parses_or_is_refused_with_a_place(text: str) -> None:
    """No text makes the parser fail in another way; what parses, round-trips."""
    try:
        graft = parse_graft(text)
    except GraftSyntaxError as error:
        assert 0 <= error.offset <= len(text)
    else:
        assert parse_graft(str(graft)) == graft


def test_regions_named() -> None:
    """A graft knows which regions it needs and which donors."""
    graft = parse_graft("(FE+M)^C:q+attn; LT:o@1=task; ALL=recipient")
    assert graft.regions() == {"FE", "M", "LT"}
    assert graft.donors() == ("sft", "task")
