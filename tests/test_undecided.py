"""Claims that the facts do not decide, in sessions of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from xml.etree import ElementTree

import pytest
from sessions import SPREAD, counts, session, write

from kgbench.testing.undecided import CollectedClaims, collecting, report_undecided

CONFTEST = """
import fake_runs, pytest

@pytest.fixture(scope="session")
def record():
    return fake_runs.record(fake_runs.rows(150))
"""

CLAIMS = """
import pytest, unittest
from kgbench.testing import assert_localized

def undecided(record):
    assert_localized(record, "LT", prompt="qa", sufficiency__ge=.31)

def test_passes(record): assert_localized(record)
def test_plain(): pass
def test_undecided(record): undecided(record)

def test_goes_on(record, tmp_path):
    undecided(record)
    assert_localized(record, "LT", prompt="headline", sufficiency__ge=.31)

def test_fails(record):
    undecided(record)
    assert_localized(record, "FE", prompt="qa")

@pytest.mark.xfail(strict=True)
def test_expected_to_fail(record): undecided(record)

@pytest.fixture
def early(record): undecided(record)
def test_early(early): pass

def test_subtests(record, subtests):
    with subtests.test(): undecided(record)
    with subtests.test(): assert 0

def test_mistake(record): assert_localized(record, "FE+LTX")

def test_skips(record):
    undecided(record)
    pytest.skip("for another reason")

class TestOfUnittest(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def take(self, record): self.record = record
    def test_old_style(self): undecided(self.record)
"""

MESSAGE = (
    r"qa, LT: sufficiency \.29 \[\.\d\d, \.\d\d\] over 150 facts does not decide the bound \.31"
    r" \(ge\); "
    r"at most about \d+ facts would decide it"
)


COUNTS = {"failed": 4, "passed": 2, "subtests": 1, "undecided": 4, "skipped": 1, "error": 1}
DECIDED = "not fails and not early and not subtests and not mistake"


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("claims"), conftest=CONFTEST, test_claims=CLAIMS)


def test_undecided(claims: Path) -> None:
    """A category of its own, counted in the last line and listed with its message; a definite
    failure wins, also of a subtest, and shows both; in a fixture the claim is an error, and a
    mistake is one line.
    """
    done = session(claims, "--junitxml", "out.xml", "-v")
    assert counts(done) == COUNTS, done.stdout
    assert "test_claims.py::test_undecided UNDECIDED" in done.stdout
    listed = re.findall(
        rf"^UNDECIDED test_claims\.py::(?:TestOfUnittest::)?(\w+) - {MESSAGE}$", done.stdout, re.M
    )
    assert listed == ["test_undecided", "test_goes_on", "test_expected_to_fail", "test_old_style"]
    assert "UNDECIDED test_claims.py::test_goes_on - headline, LT" in done.stdout
    assert re.search(rf"undecided as well -+\n{MESSAGE}\n", done.stdout)
    assert done.stdout.count("dynamic_graft on tiny-gemma") == 1
    properties = {
        case.get("name"): [p.get("value") for p in case.iter("property")]
        for case in ElementTree.parse(claims / "out.xml").getroot().iter("testcase")
    }
    assert "UndecidedError: qa, LT: sufficiency" in done.stdout
    assert "contains 1 failed subtest" in done.stdout
    assert "assertions.py" not in done.stdout and "grammar.py" not in done.stdout
    assert all(re.fullmatch(MESSAGE, str(properties[name][0])) for name in (*listed, "test_fails"))
    assert properties["test_passes"] == properties["test_plain"] == []


def test_undecided_in_several_processes(claims: Path) -> None:
    """With pytest-xdist it is the same; undecided tests leave the exit status at 0, and the table
    is printed once.
    """
    done = session(claims, "-n", "2", "-k", DECIDED, plugins=SPREAD)
    assert counts(done) == {"passed": 2, "undecided": 4, "skipped": 1}, done.stdout
    assert done.returncode == 0
    listed = re.findall(rf"^UNDECIDED test_claims\.py::[\w:]+ - {MESSAGE}$", done.stdout, re.M)
    assert len(listed) == 4
    assert done.stdout.count("dynamic_graft on tiny-gemma") == 1


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("options", "variables"),
    [
        (("-o", "kgbench_undecided=fail"), {}),
        (("--kgbench-undecided", "fail"), {"CI": "false"}),
        ((), {"CI": "true"}),
    ],
)
def test_undecided_fails(
    claims: Path, options: tuple[str, ...], variables: Mapping[str, str]
) -> None:
    """Asked for on the command line or in the ini file, and by default in CI, what is undecided
    fails with the same message; a failure that is expected is one.
    """
    done = session(claims, "-k", DECIDED, *options, variables=variables)
    assert counts(done) == {
        "failed": 3,
        "passed": 2,
        "skipped": 1,
        "xfailed": 1,
        "deselected": 4,
    }, done.stdout
    assert done.returncode == 1
    assert len(re.findall(rf"^{MESSAGE}$", done.stdout, re.M)) >= 3
    assert "UNDECIDED" not in done.stdout


def test_undecided_passes_or_is_counted_where_asked(claims: Path) -> None:
    """Also in CI: `pass` counts such tests as passed and lists none, `warn` counts them apart; another
    word is refused before any test runs.
    """
    chosen = ("-k", f"{DECIDED} and not expected")
    for word, expected in (("pass", {"passed": 5}), ("warn", {"passed": 2, "undecided": 3})):
        done = session(claims, "-o", f"kgbench_undecided={word}", *chosen, variables={"CI": "1"})
        assert counts(done) == {**expected, "skipped": 1, "deselected": 5}, done.stdout
        assert done.returncode == 0 and ("UNDECIDED" in done.stdout) == (word == "warn")
    done = session(claims, "-o", "kgbench_undecided=failed")
    assert done.returncode == 4 and "'failed': expected pass, warn or fail" in done.stderr


def test_the_innermost_ends_first() -> None:
    """Collecting ends for the one that began it, though others have found the same."""
    with collecting() as outer:
        with collecting():
            pass
        report_undecided(["one"])
    assert outer.undecided == ["one"] and CollectedClaims() != CollectedClaims()
