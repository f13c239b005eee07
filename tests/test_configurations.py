"""Names of configurations: one spelling each, and labels of the best-ranked sites."""

from __future__ import annotations

import pytest

from kgbench.runner.lookup import load_suite
from kgbench.sites import parse_graft
from kgbench.sites.configurations import Top, budget_labels, canonical, configurations, parse_top

BUDGETS = budget_labels(load_suite("budget").budgets)


def test_labels_read_back() -> None:
    """The name of a budget says which; grafts and baselines are none."""
    assert list(BUDGETS)[:4] == ["top 0%", "top 0.1%", "top 0.2%", "top 0.5%"]
    assert all(parse_top(label) == Top(budget) for label, budget in BUDGETS.items())
    assert parse_top("(top k)^C") == Top(None, True) and parse_top("top k") == Top(None)
    assert parse_top("FE") is parse_top("PRE") is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("FE+LT", "LT + FE"),
        ("(FE+LT)^C", "((LT+FE))^C"),
        ("FE", "((FE)^C)^C"),
        ("LT:o+ffn@second_half", "LT:ffn+o@second_half"),
        ("LT", "LT:all"),
        ("FE@1,2", "FE:all@2,1,1"),
        ("FE+LT", "(FE+LT)+FE"),
    ],
)
def test_equal_grafts_are_run_once(one: str, other: str) -> None:
    """However a graft is written, it is one configuration of one name, which reads back as itself."""
    assert configurations((one, other)) == configurations((other,)) == configurations((one,))
    assert str(canonical(parse_graft(other))) == one
    assert canonical(parse_graft(one)) == parse_graft(one)
