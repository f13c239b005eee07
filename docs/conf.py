"""Sphinx configuration: `make docs` builds these pages without network, with warnings as errors."""

from __future__ import annotations

import sys
from collections.abc import Iterator, MutableSequence
from importlib import import_module
from pathlib import Path
from typing import Any

import click
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.ext.napoleon import Config, GoogleDocstring
from sphinx.util.logging import getLogger

from kgbench import __version__
from kgbench.cli import command

logger = getLogger(__name__)
sys.path.insert(0, str(Path(__file__).parent))  # for the extension that is here

MODULES = (
    "kgbench",
    "kgbench.analyses",
    "kgbench.localizers",
    "kgbench.testing",
    "kgbench.harness",
    "kgbench.paper",
    "kgbench.zoo",
)
"""Modules whose public names are in the reference."""

project = "kgbench"
author = copyright = "kgbench authors"
release = version = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx_click",
    "notebooks",
]
exclude_patterns = ["_build", "_templates"]

html_theme = "furo"
html_title = f"kgbench {release}"
html_show_sourcelink = False
html_static_path = ["_static"]
html_extra_path = ["llms.txt"]
html_css_files = ["wide.css"]
html_js_files = ["access.js"]
templates_path = ["_templates"]

highlight_language = "text"
# Options begin with two hyphens.
smartquotes = False
# Docstrings mark code by single backticks.
default_role = "code"

myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

# Notebooks run whenever the pages are built, in a folder that is thrown away.
nb_execution_mode = "force"
nb_execution_in_temp = True
nb_execution_raise_on_error = True
nb_execution_timeout = 120
# Progress bars and warnings of libraries.
nb_output_stderr = "remove"
# Bars are widgets too, and would load a script from the network.
nb_ipywidgets_js = {}

# Links within the repository are checked by its tests; these are examples of addresses.
linkcheck_ignore = [r"https?://127\.0\.0\.1", r"https://github\.com/(me|you)/"]
linkcheck_retries = 2
linkcheck_timeout = 30

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented_params"

# Types of other packages, and those that a module imports for type checkers alone, lead nowhere.
# A field may have the name of a type, such as `object`.
suppress_warnings = ["ref.python"]
nitpick_ignore_regex = [("py:.*", r"(?!kgbench\.).*")]


def read_sections(
    app: Sphinx, what: str, name: str, thing: object, options: Any, lines: MutableSequence[str]
) -> None:
    """Turn the sections of Google docstrings into fields.

    Napoleon itself takes the words before a colon in an attribute's docstring for its type. A
    constant of another module has no docstring of its own, but that of its type.
    """
    if what in ("attribute", "data"):
        if thing.__doc__ == type(thing).__doc__ and what == "data":
            lines.clear()
        return
    kind = "method" if what == "property" else what
    lines[:] = GoogleDocstring(lines, Config(), app, kind, name, thing, options).lines()


def missing_names(app: Sphinx, env: BuildEnvironment) -> None:
    """Warn of public names and of commands that the reference lacks."""
    documented = env.domains.python_domain.objects
    for module in MODULES:
        for name in import_module(module).__all__:
            if f"{module}.{name}" not in documented:
                logger.warning("%s.%s is not in the reference", module, name)
    shown = {program for program, _ in env.domains.standard_domain.progoptions}
    for program in programs(command, "kgbench"):
        if program.replace(" ", "-") not in shown:
            logger.warning("the command %s is not in the reference", program)


def programs(found: click.Command, path: str) -> Iterator[str]:
    """Commands that have options, by their whole names."""
    if isinstance(found, click.Group):
        for name in found.list_commands(click.Context(found)):
            inner = found.get_command(click.Context(found), name)
            assert inner is not None
            yield from programs(inner, f"{path} {name}")
    elif any(isinstance(parameter, click.Option) for parameter in found.params):
        yield path


def setup(app: Sphinx) -> None:
    """Register what Sphinx calls."""
    app.connect("env-check-consistency", missing_names)
    app.connect("autodoc-process-docstring", read_sections)
