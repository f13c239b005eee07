"""Options that hold several values, or pairs of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kgbench.cli.options import pairs
from kgbench.errors import InputError
from kgbench.runner.sources import read_donors
from kgbench.runner.spec import listed, own_arguments


@given(st.lists(st.lists(st.from_regex(r"[a-z_]{1,8}", fullmatch=True), max_size=3), max_size=4))
def test_commas_and_repetition_say_the_same(groups: list[list[str]]) -> None:
    """A list reads the same with commas, by repetition, or both; a name counts once."""
    flat = [name for group in groups for name in group]
    assert (
        listed([",".join(group) for group in groups])
        == listed(flat)
        == listed([", ".join(flat)])
        == tuple(dict.fromkeys(flat))
    )


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,8}", fullmatch=True),
        st.from_regex(r"[a-z=/{} ]{0,9}[a-z=/{}]", fullmatch=True),
    )
)
def test_pairs_read_back(values: dict[str, str]) -> None:
    """`KEY=VALUE` gives key and value back, also where the value holds an equals sign."""
    assert pairs("--column", [f"{key}={value}" for key, value in values.items()]) == {
        key: value.strip() for key, value in values.items()
    }


@pytest.mark.parametrize("text", ["sft", "=path", "sft=", "", " = "])
def test_half_a_pair_is_refused(text: str) -> None:
    """A pair without key, equals sign or value is refused with an example."""
    with pytest.raises(InputError, match="expected KEY=VALUE, such as first_actor=actor"):
        pairs("--column", [text])


def test_a_key_given_twice_is_refused() -> None:
    """Nobody's guess decides between two values."""
    with pytest.raises(InputError, match="'sft' is given twice"):
        pairs("--column", ["sft=a", "sft=b"])


@pytest.mark.parametrize(
    ("texts", "donors"),
    [
        (["after"], {"sft": "after"}),
        (["./lr=1/after"], {"sft": "./lr=1/after"}),
        (["task=a", " b "], {"task": "a", "sft": "b"}),
        (["sft=runs/lr=1"], {"sft": "runs/lr=1"}),
    ],
)
def test_a_bare_path_is_the_donor_sft(texts: list[str], donors: dict[str, str]) -> None:
    """A donor without a name is `sft`; a path may hold an equals sign after a slash."""
    assert read_donors("--donor", texts) == donors


@pytest.mark.parametrize(
    ("texts", "told"),
    [(["a", "b"], "'sft' is given twice"), (["sft="], "expected NAME=PATH"), ([" "], "or only")],
)
def test_donors_that_do_not_read(texts: list[str], told: str) -> None:
    """Half a donor, and two of one name, are refused."""
    with pytest.raises(InputError, match=told):
        read_donors("--donor", texts)


def test_arguments_for_all_and_for_one() -> None:
    """An argument goes to every localizer, or to the one that it names, over what all get; a file
    is named by its class.
    """
    run = ("random", "path/to/mine.py:Mine")
    given = {"seed": "1", "random.seed": "2", "Mine.rate": ".5"}
    assert own_arguments("random", run, given) == {"seed": "2"}
    assert own_arguments("path/to/mine.py:Mine", run, given) == {"seed": "1", "rate": ".5"}
    with pytest.raises(InputError, match="'all' is not run; --localizer has random, Mine"):
        own_arguments("random", run, {"all.x": "1"})
