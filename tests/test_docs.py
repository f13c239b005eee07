"""The README and the pages of docs/ say what is so."""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import sys
from importlib import import_module
from importlib.metadata import metadata
from pathlib import Path

import click
import forks
import nbformat
import pytest
import torch
import yaml
from another_set import comparison_table, read_scores
from cards_table import levels_table, pairs_table, plants_table
from pages import DOCS, PAGES, ROOT, block, code, fenced, table
from real_tables import tables

import kgbench
from kgbench import localizers
from kgbench.cli import command
from kgbench.engine.site_sets import all_sites
from kgbench.paper.figure_specs import page
from kgbench.sites import Site
from kgbench.testing import check_localizer

PATHS = [str(path.relative_to(ROOT)) for path in PAGES]


# --------------------------------------------------------------------------------------- commands


def of_path(words: list[str]) -> tuple[click.Command, list[str]]:
    """The command that the words begin with, through groups, and the words after it."""
    found: click.Command = command
    while isinstance(found, click.Group):
        inner = found.get_command(click.Context(found), words[0])
        assert inner is not None, f"there is no command {words[0]}"
        found, words = inner, words[1:]
    return found, words


SHOWN = [
    line.removeprefix("$ ")
    for text in PAGES.values()
    for line in fenced(text)
    if line.startswith("kgbench ")
]


def test_many_commands_are_shown() -> None:
    """The pages are read as they are meant to be."""
    assert len(SHOWN) > 60


@pytest.mark.parametrize("line", sorted(set(SHOWN)))
def test_every_command_shown_parses(line: str) -> None:
    """Options exist and have their values, and no word is left over."""
    words = shlex.split(line, comments=True)[1:]
    words = [*words[:-1], *words[-1].split("|")[:1]]  # ls models|datasets
    found, rest = of_path(words)
    context = click.Context(found, info_name=words[0])
    _, left, _ = found.make_parser(context).parse_args(rest)
    assert not left


@pytest.mark.parametrize("path", PATHS)
def test_every_command_named_in_a_sentence_exists(path: str) -> None:
    """`kgbench …` in a sentence is a command with these options."""
    for words in map(str.split, re.findall(r"`kgbench ([a-z][^`]+)`", PAGES[ROOT / path])):
        names = [words[0], *(words[1].split("|") if len(words) > 1 else ())]
        found, _ = of_path([*names[:2], *words[2:]])
        options = {option for parameter in found.params for option in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options | {"--help"}, words


# ---------------------------------------------------------------------------------- the README's code


def test_no_command_installs_from_an_index() -> None:
    """None has kgbench: its extras are installed from a clone, or their packages by name."""
    sources = {path: path.read_text("utf-8") for path in (ROOT / "kgbench").rglob("*.py")}
    for path, text in {**PAGES, **sources}.items():
        assert not re.search(r"pip\s+install\s+[^\n`]*kgbench\[", text), path


def test_the_readme_is_short() -> None:
    """A newcomer reads it to the end, and finds the two commands that set up everything."""
    assert len(PAGES[ROOT / "README.md"].splitlines()) <= 120
    assert {"make eval", "make test"} <= {
        *re.findall(r"^make \w+", PAGES[ROOT / "README.md"], re.M)
    }


def test_both_citations_are_those_of_the_citation_file() -> None:
    """Software and paper have in BibTeX the titles, authors and version of CITATION.cff."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    (paper,) = cited["references"]
    software, article = code("BibTeX").split("@article")
    assert cited["version"] == kgbench.__version__
    for part in (cited["title"], cited["authors"][0]["name"], cited["version"], cited["license"]):
        assert f"{{{part}}}" in software
    names = [f"{author['family-names']}, {author['given-names']}" for author in paper["authors"]]
    for part in (paper["title"], " and ".join(names), str(paper["year"]), paper["url"]):
        assert f"{{{part}}}" in article


def test_a_localizer_of_your_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The README's localizer runs as written, ranks sites and keeps all laws."""
    (tmp_path / "my_localizer.py").write_text(code("own localizer"), "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    mine = import_module("my_localizer").UpperLastToken()
    assert [each for each in check_localizer(mine, ["gpt2"]) if not each.holds] == []
    (record,) = Path("kgbench-results").glob("*upper_last_token*/record.json")
    assert '"kind": "scoring"' in record.read_text("utf-8")


def test_a_method_that_reads_weights_and_inputs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guide's scores are the norm of the change times the mean norm of the input."""
    (tmp_path / "reads.py").write_text(code("change times input"), "utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    pair = kgbench.load_pair("tiny-gemma")
    prompts = kgbench.load_prompts("tiny_movies", ["headline"], 2)
    scores = import_module("reads").ChangeTimesInput().scores(pair, prompts)
    assert {*scores} == {*all_sites(pair, prompts)}
    gate, donor = "model.layers.3.mlp.gate_proj", pair.shared_copy("sft")
    norms: list[float] = []
    donor.get_submodule(gate).register_forward_pre_hook(
        lambda _, args: norms.append(float(args[0][0, -1].detach().norm()))
    )
    for prompt in prompts:
        donor(torch.tensor([pair.encode(prompt)]))
    before, after = (model.get_parameter(f"{gate}.weight") for model in (pair.recipient, donor))
    change = float((after - before).detach().norm())
    assert scores[Site(3, "gate", "LT")] == pytest.approx(change * sum(norms) / 2, rel=1e-5)


# ----------------------------------------------------------------------------------------- guides

GUIDES = {path.stem: text for path, text in PAGES.items() if path.parent == DOCS / "guides"}
OPENING = re.compile(
    r"# [^\n]+\n\n```[^\n]*\n(?P<asked>.*?)^```\n\n"
    r"<!-- begin: [^\n]+ -->\n```\n(?P<shown>.*?)^```\n<!-- end: ",
    re.MULTILINE | re.DOTALL,
)
"""What a guide begins with: what is asked and what comes of it."""


@pytest.mark.parametrize("name", sorted(GUIDES))
def test_a_guide_begins_with_a_command_and_its_output(name: str) -> None:
    """Nothing stands between its title, what is typed, and what is printed; and words are explained
    where a reader meets them first, by a link to the glossary.
    """
    assert OPENING.match(GUIDES[name])
    assert "](../glossary.md" in GUIDES[name]


RUN_BY_THEMSELVES = {"sweeps", "test-a-finetune", "what-changed"}
"""Guides of which other tests hold the opening."""
ELSEWHERE = {
    "lm-eval": "installs a package",
    "large-models": "compares with the memory of this machine",
    "train": "measures this machine",
}
"""Guides whose opening is not run, with the reason."""


def lasting(line: str) -> str:
    """A line without what depends on the machine, as seconds and memory."""
    return re.sub(r"[\d.,]+ (GiB|MiB|min|s|h|d)\b|\s+", " ", line).strip()


def programs(asked: str) -> list[list[str]]:
    """Arguments of Python for what a fence asks: its code, or each of its commands."""
    if asked.startswith("import "):
        return [["-c", asked]]
    return [["-m", *shlex.split(line)] for line in fenced(f"```\n{asked}```")]


def expanded(words: list[str], folder: Path) -> list[str]:
    """The words as a shell in the folder gives them, with what is in `NAME/*`."""
    given: list[str] = []
    for word in words:
        inside = folder.glob(word) if word.endswith("/*") else ()
        given += sorted(map(str, inside)) or [word]
    return given


@pytest.mark.nightly
@pytest.mark.parametrize("name", sorted({*GUIDES} - RUN_BY_THEMSELVES - {*ELSEWHERE}))
def test_the_opening_of_a_guide_prints_what_it_shows(name: str, tmp_path: Path) -> None:
    """Every line that is shown comes, in this order; `…` stands for lines that are left out."""
    opening = OPENING.match(GUIDES[name])
    assert opening is not None
    if name == "data":
        rows = re.search(r"^```\n(\[\{.*?)^```", GUIDES[name], re.MULTILINE | re.DOTALL)
        assert rows is not None
        (tmp_path / "facts.json").write_text(rows[1], "utf-8")
    for program in programs(opening["asked"]):
        done = forks.run(
            [sys.executable, *expanded(program, tmp_path)],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "COLUMNS": "100"},
        )
        assert done.returncode == 0, done.stderr
    printed = iter([lasting(line) for line in (done.stderr + done.stdout).splitlines()])
    for line in opening["shown"].splitlines():
        assert line == "…" or lasting(line) in printed, (line, done.stdout, done.stderr)


def test_programs_are_led_to_pages_that_exist() -> None:
    """Every link of llms.txt is a page of the built documentation."""
    links = re.findall(r"\]\((\S+)\.html\)", (DOCS / "llms.txt").read_text("utf-8"))
    assert len(links) > 10
    assert all((DOCS / f"{link}.md").is_file() for link in links)


# -------------------------------------------------------------------------------------- reference


def test_every_public_name_is_in_the_reference() -> None:
    """Every name of the package has an entry, and every documented module is shown whole."""
    text = PAGES[DOCS / "reference" / "api.md"]
    named = re.findall(r"^\.\. auto(?:function|class|data):: kgbench\.(\w+)(?:\(\))?$", text, re.M)
    assert sorted(named) == sorted(kgbench.__all__)
    modules = re.findall(r"^\.\. automodule:: (\S+)\n   :members:$", text, re.M)
    assert {"kgbench.testing", "kgbench.harness", "kgbench.analyses"} <= set(modules)
    assert all(import_module(name).__all__ for name in modules)


def test_every_command_is_in_the_reference() -> None:
    """The page is generated from the whole program, with all of its groups."""
    text = PAGES[DOCS / "reference" / "cli.md"]
    assert ".. click:: kgbench.cli:command\n   :prog: kgbench\n   :nested: full\n" in text


# ------------------------------------------------------------------------------------ links, pictures


def prose(text: str) -> str:
    """A page without its fences."""
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(text: str) -> set[str]:
    """Anchors of the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", prose(text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in headings}


@pytest.mark.parametrize("path", PATHS)
def test_links_lead_somewhere(path: str) -> None:
    """Pages, files and headings that a page links to are there, and so are its pictures."""
    page = ROOT / path
    text = PAGES[page]
    targets = re.findall(r"\]\(([^)\s]+)\)", prose(text))
    targets += re.findall(r"\{(?:image|include|download)\} (\S+)$", text, re.M)
    for target in targets:
        if target.startswith(("https://", "mailto:")):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.is_file(), target
        if anchor:
            assert anchor in anchors(PAGES[there]), target


def test_every_page_is_in_the_contents() -> None:
    """The first page's contents list all others."""
    listed = re.findall(r"^(\w[\w/-]*)$", PAGES[DOCS / "index.md"], re.M)
    pages = {str(path.relative_to(DOCS))[:-3] for path in PAGES if DOCS in path.parents}
    assert set(listed) == pages - {"index"}


# -------------------------------------------------------------------------------------- notebooks

TUTORIALS = sorted((DOCS / "tutorials").glob("*.md"))


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_every_tutorial_is_a_notebook(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is of Jupyter's format; its code is the page's after a cell that installs what the page
    imports; it holds no output, no path of a machine and no link that leads nowhere.
    """
    monkeypatch.syspath_prepend(DOCS)
    exporter = import_module("notebooks")
    found = exporter.notebook(PAGES[page])
    nbformat.validate(nbformat.from_dict(found))
    install, *cells = [cell for cell in found["cells"] if cell["cell_type"] == "code"]
    assert install["source"] == exporter.INSTALL and not any(cell["outputs"] for cell in cells)
    extras = re.findall(r"[\w-]+", install["source"].partition("[")[2].partition("]")[0])
    assert set(extras) <= set(metadata("kgbench").get_all("Provides-Extra"))
    shown = [
        line for line in fenced(PAGES[page]) if line and not line.startswith((":tags:", "jupytext"))
    ]
    assert [line for cell in cells for line in cell["source"].splitlines() if line] == shown
    compile("\n".join(cell["source"] for cell in cells), page.name, "exec")
    text = json.dumps(found)
    assert not re.search(r"/(home|work|Users|tmp|root)/|[A-Z]:\\", text)
    prose = [cell["source"] for cell in found["cells"] if cell["cell_type"] == "markdown"]
    assert prose[0].startswith("# ")
    assert not re.findall(r"\]\((?!https://)", "".join(prose))


def test_the_page_of_a_tutorial_offers_its_notebook(monkeypatch: pytest.MonkeyPatch) -> None:
    """Below its title and nowhere else; other pages stay as they are."""
    monkeypatch.syspath_prepend(DOCS)
    exporter = import_module("notebooks")
    page, other = ["---\nx: 1\n---\n# A\n\nB\n# C\n"], ["# A\n"]
    exporter.offer(None, "tutorials/first", page)
    exporter.offer(None, "guides/first", other)
    title, offered = page[0].split('<a href="../notebooks/first.ipynb" download>')
    assert title.startswith("---\nx: 1\n---\n# A\n") and offered.endswith("B\n# C\n")
    assert other == ["# A\n"]


# ----------------------------------------------------------------------------------------- tables


def test_the_tables_of_pairs_and_plants_are_those_of_their_cards() -> None:
    """They hold every shipped pair and plant, with the figures of their cards, as `make cards`
    prints them.
    """
    assert block("cards of the tiny pairs") == pairs_table()
    assert block("cards of the plants") == plants_table()
    assert block("levels of the plants") == levels_table()


@pytest.mark.nightly
def test_the_table_of_another_set_is_that_of_its_scores() -> None:
    """And of the entries on the board."""
    assert block("another set of plants") == comparison_table(read_scores())


def test_the_tables_of_real_models_are_those_of_their_rows() -> None:
    """Every table that the published rows have is on a page, as `tests/real_tables.py` prints it."""
    for model in page().small.like:
        for name, text in tables(model).items():
            assert block(name) == text, name


def test_the_table_of_localizers_is_what_is_listed() -> None:
    """Rows say what `kgbench ls localizers` says; a method comes and goes with its one file,
    whether or not the table has caught up.
    """
    built_in = {
        n: v
        for n, v in localizers.describe().items()
        if Path(localizers.__file__).with_name(f"{n}.py").is_file()
    }
    told = {row[0]: row[1:] for row in table("built-in localizers")[1:]}
    assert len(told) > 20
    for name, (kind, needs, cost, arguments, paper, about) in told.items():
        if (said := built_in.get(name)) is None:
            continue
        assert (kind, cost, about) == (said["kind"], said["cost"], said["about"])
        assert needs == (", ".join(said["needs"]) or "–")
        assert said["paper"] in paper
        listed = []
        for key, one in said["parameters"].items():
            listed.append(f"`{key}={one['default']}` ({one['values']})")
        assert arguments == ("; ".join(listed).strip("`") or "–")


def test_the_table_of_coverage_is_of_all_cases() -> None:
    """The table has a row for every case, and none says that an interval holds the truth too
    seldom, or too often without a reason.
    """
    from coverage_table import CASES, FACTS

    rows = table("coverage")
    assert rows[0][2:] == [f"n = {n}" for n in FACTS]
    told = [(row[0], row[1]) for row in rows[1:]]
    assert [(case.score, case.name) for case in CASES] == [
        cell for cell in told if cell in {(case.score, case.name) for case in CASES}
    ]
    assert not any("**" in cell for row in rows for cell in row)


DIALECT = re.compile(r"\b(told|anew|likewise|nobody|beside)\b", re.IGNORECASE)
RELEASED = ("neutral.toml", "movie_wordings.toml", "articles.toml", "wordings.toml")
"""Files of sentences that models read, which are never edited."""


def texts_of(path: Path) -> list[str]:
    """What users may read of a file: of Python the strings, all of others."""
    if path.suffix != ".py":
        return path.read_text("utf-8").splitlines()
    tree = ast.walk(ast.parse(path.read_text("utf-8")))
    strings = [node.value for node in tree if isinstance(node, ast.Constant)]
    return [text for text in strings if isinstance(text, str)]


ASKED = "in a film beside an actor"
"""Of a sentence that a model was asked."""


def test_texts_are_plain_english() -> None:
    """No text that users read, in pages, help, messages or on the board, has words that the field
    does not use, but for a key of old records and a sentence for a model.
    """
    kinds = (".md", ".py", ".toml", ".yaml", ".html", ".jinja", ".js", ".txt", ".cff")
    found = []
    for top in ("kgbench", "docs", "leaderboard", "tasks", "tests/golden", "."):
        for path in (ROOT / top).glob("*" if top == "." else "**/*"):
            kept = path.name in RELEASED or {"_build", "site", "charts"} & {*path.parent.parts[-1:]}
            if path.suffix in kinds and path.is_file() and not kept:
                found += [
                    f"{path}: {text[:200]}"
                    for text in texts_of(path)
                    if DIALECT.search(text.replace(ASKED, ""))
                ]
    assert [text for text in found if not text.endswith((": told", "{P:beside}"))] == []
