"""The pytest plug-in: a model pair and its evaluation as fixtures, and undecided claims.

Every pytest session loads it where kgbench is installed, so that importing it loads nothing heavy.
"""

from __future__ import annotations

from kgbench.pytest_plugin.fixtures import evaluation, facts, localizer, model_pair, prompts
from kgbench.pytest_plugin.pytest_session import pytest_addoption
from kgbench.pytest_plugin.terminal_summary import (
    pytest_sessionfinish,
    pytest_terminal_summary,
    pytest_testnodedown,
)
from kgbench.pytest_plugin.undecided_tests import (
    pytest_fixture_setup,
    pytest_report_teststatus,
    pytest_runtest_call,
    pytest_runtest_makereport,
    pytest_runtest_protocol,
    pytest_runtest_teardown,
)

__all__ = [
    "evaluation",
    "facts",
    "localizer",
    "model_pair",
    "prompts",
    "pytest_addoption",
    "pytest_fixture_setup",
    "pytest_report_teststatus",
    "pytest_runtest_call",
    "pytest_runtest_makereport",
    "pytest_runtest_protocol",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_terminal_summary",
    "pytest_testnodedown",
]
