"""A method of another package, `tests/example_localizer`, installed as its users would: kgbench
finds and runs it; that it keeps the contract is among the cases of test_check.
"""

from __future__ import annotations

import json
from importlib.metadata import Distribution, PackageNotFoundError, distribution
from pathlib import Path

import pytest

from kgbench.cli import main
from kgbench.localizers import names
from kgbench.records import read_record

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "tests" / "example_localizer"


@pytest.fixture(autouse=True)
def installed() -> Distribution:
    """The package; where it is not installed, every test fails and says what to do."""
    try:
        return distribution("kgbench-direct-logit")
    except PackageNotFoundError:
        how = (
            f"make test does it, or: python -m pip install --no-deps -e {EXAMPLE.relative_to(ROOT)}"
        )
        pytest.fail(
            f"the example of a localizer of one's own is not installed; {how}", pytrace=False
        )


def test_it_is_found(capsys: pytest.CaptureFixture[str]) -> None:
    """`kgbench ls localizers` lists it with what it says of itself, after the built-in ones;
    nothing in kgbench names it.
    """
    assert main(["ls", "localizers", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)["direct_logit"]
    assert (told["kind"], told["needs"], told["cost"]) == ("scoring", ["donor"], "forward")
    assert told["from"] == "kgbench-direct-logit"
    assert names().index("direct_logit") > names().index("weight_delta")
    assert not [
        path
        for path in (ROOT / "kgbench").rglob("*.*")
        if path.suffix in (".py", ".toml", ".txt") and "direct_logit" in path.read_text()
    ]


def test_it_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`kgbench eval` takes it by name and by file, and its parameters; the record says which state
    of its code it was.
    """

    def evaluated(*arguments: str) -> dict[str, object]:
        where = "--model tiny-gpt2 --limit 8 --prompt headline --json -q --output-dir"
        assert main(["eval", *arguments, *where.split(), str(tmp_path)]) == 0
        answer: dict[str, object] = json.loads(capsys.readouterr().out)
        return answer

    by_name = evaluated("--localizer", "direct_logit")
    by_file = evaluated("--localizer", f"{EXAMPLE / 'direct_logit.py'}:DirectLogit")
    clipped = evaluated("--localizer", "direct_logit", "--localizer-arg", "positive=true")
    assert by_name["localizer"] == by_file["localizer"] == "direct_logit"
    assert by_name["id"] == by_file["id"] != clipped["id"]
    record = read_record(Path(str(by_name["path"]))).record
    assert record.identity.localizer.version.startswith("1 DirectLogit ")
    assert {(site.region == "LT") for site in record.scores or () if site.score != 0} == {True}


def test_one_line_registers_it(installed: Distribution) -> None:
    """The package is one module and one entry point, and depends on kgbench alone."""
    assert [(point.group, point.name, point.value) for point in installed.entry_points] == [
        ("kgbench.localizers", "direct_logit", "direct_logit:DirectLogit")
    ]
    assert installed.requires == ["kgbench"]
    assert [path.name for path in EXAMPLE.glob("*.py")] == ["direct_logit.py"]
