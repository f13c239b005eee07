"""kgbench in the Language Model Evaluation Harness: tasks, and a model under a graft.

Nothing here loads lm-eval or torch until it is used; the extra `lm-eval` brings both.

The shipped tasks are every data set in every prompt that fits it, in two forms. What the tasks
share is written by hand in `tasks/_*.yaml`. The file of each task follows from its data set, prompt
and form, and is made when the folder is first needed.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain
from pathlib import Path
from types import MappingProxyType
from typing import Any

import platformdirs

from kgbench.data import (
    Dataset,
    dataset_names,
    fitting_prompts,
    load_dataset,
    load_prompts,
    prompt_names,
)
from kgbench.data.facts import write_dataset
from kgbench.data.prompts import find_giveaways, refuse_leaks
from kgbench.data.templates import parse_template
from kgbench.errors import InputError
from kgbench.extras import install_command
from kgbench.records import write_whole

__all__ = [
    "FORMS",
    "MODEL",
    "ShippedTask",
    "describe_tasks",
    "register",
    "shipped_tasks",
    "task_files",
    "tasks_of",
    "tasks_path",
    "write_tasks",
]

MODEL = "kgbench"
"""Name of the model, for lm-eval's `--model`."""

_CLASS = "kgbench.harness.model:KgbenchLM"


def register() -> None:
    """Register the model with lm-eval; call it once before `simple_evaluate(model="kgbench")`.

    Raises:
        InputError: lm-eval is not installed.
    """
    if find_spec("lm_eval") is None:
        raise InputError(
            f"this needs lm-eval, which is not installed: {install_command('lm-eval')}"
        )
    # This import fills lm-eval's registry. lm-eval does so by itself only while it is empty,
    # so that a model registered before would hide all built-in ones.
    import_module("lm_eval.models")
    from lm_eval.api.registry import model_registry

    if MODEL not in model_registry:
        model_registry.register(MODEL, target=_CLASS)


# ------------------------------------------------------------------------------------ shipped tasks

FORMS: Mapping[str, str] = MappingProxyType({"loglikelihood": "", "choices": "_choices"})
"""Forms of a task, with the ending of their names."""

_YAML = """\
include: ../_{form}.yaml
task: {name}
tag: [{tags}]
dataset_kwargs:
  kgbench_dataset: "{source}"
  kgbench_prompt: "{prompt}"
"""


@dataclass(frozen=True)
class ShippedTask:
    """A data set in one prompt and one form."""

    name: str
    dataset: str
    prompt: str
    form: str
    """A key of `FORMS`."""
    tags: tuple[str, ...]
    """Other names for `--tasks`: all tasks of the form, and those of the form and data set."""
    documents: int

    @property
    def file(self) -> str:
        """Path of the YAML file in the folder of tasks."""
        return f"{self.dataset}/{self.prompt}{FORMS[self.form]}.yaml"

    def yaml(self, source: str | None = None) -> str:
        """Text of the YAML file.

        Args:
            source: A file of facts in its folder; by default a shipped data set.
        """
        tags = ", ".join(self.tags)
        source = source or self.dataset
        return _YAML.format(
            form=self.form, name=self.name, tags=tags, source=source, prompt=self.prompt
        )


@cache
def shipped_tasks() -> tuple[ShippedTask, ...]:
    """All shipped tasks, by data set, prompt and form."""
    return tuple(chain.from_iterable(map(tasks_of, map(load_dataset, dataset_names()))))


def tasks_of(dataset: Dataset) -> Iterator[ShippedTask]:
    """The tasks of a data set, by prompt and form; a task asks one text, and so no messages."""
    fitting, own = fitting_prompts(dataset, prompt_names()), dataset.templates.items()
    texts = [name for name, text in own if not parse_template(name, text).is_chat]
    for prompt in (*fitting, *texts):
        for form, ending in FORMS.items():
            name = f"kgbench_{dataset.name}_{prompt}{ending}"
            tags = (f"kgbench{ending}", f"kgbench_{dataset.name}{ending}")
            yield ShippedTask(name, dataset.name, prompt, form, tags, len(dataset.facts))


def task_files() -> dict[str, str]:
    """Text of each file of the folder of tasks, by path: the common parts, then the tasks."""
    return {**_common(), **{task.file: task.yaml() for task in shipped_tasks()}}


def _common() -> dict[str, str]:
    """The hand-written files: in the package of a wheel, in the root of a checkout."""
    package = Path(__file__).parents[1]
    places = (package / "tasks", package.parent / "tasks")
    folder = next(path for path in places if path.is_dir())
    return {path.name: path.read_text("utf-8") for path in sorted(folder.glob("_*.yaml"))}


def write_tasks(dataset: Dataset, folder: Path, force: bool = False) -> list[ShippedTask]:
    """Write the tasks of a user's own facts, and the facts.

    Args:
        dataset: The facts, whose own templates are its prompts, or the built-in ones that fit.
        folder: For lm-eval's `--include_path`; the tasks go into a folder of their name in it.
        force: Replace those that are there.

    Raises:
        InputError: No prompt fits the facts, or their name is no part of a task's name.
        OutputError: The files cannot be written, or are there already.
    """
    from kgbench.harness.rows import rows

    if not (tasks := list(tasks_of(dataset))):
        raise InputError(
            f"no built-in prompt fits {dataset.name!r}, and it has no template: add --template, "
            "such as --template 'ask=The capital of {country} is'"
        )
    for task in tasks:
        if not re.fullmatch(r"[\w.-]+", task.name, re.ASCII):
            raise InputError(
                f"{task.name!r} cannot name a task of lm-eval: expected letters, digits, '_', '-' "
                "and '.' in the name of the file and of each template"
            )
        if task.form == "choices":
            rows(dataset, task.prompt)
    prompts = {task.prompt: load_prompts(dataset, [task.prompt]) for task in tasks}
    giveaways = {name: find_giveaways(dataset, texts) for name, texts in prompts.items()}
    refuse_leaks(dataset.name, giveaways, len(dataset.facts))
    facts = f"{dataset.name}.jsonl"
    write_dataset(dataset, folder / dataset.name / facts, force)
    for path, text in {**_common(), **{task.file: task.yaml(facts) for task in tasks}}.items():
        write_whole(folder / path, text.encode())
    return tasks


def describe_tasks() -> dict[str, dict[str, Any]]:
    """Description of each shipped task, by name."""
    rows = {}
    for row in map(asdict, shipped_tasks()):
        rows[row.pop("name")] = {**row, "tags": list(row["tags"])}
    return rows


@cache
def tasks_path() -> Path:
    """Folder of the tasks, for lm-eval's `--include_path`; made in the user's cache.

    Returns:
        A folder named by its content, so that versions of kgbench do not overwrite each other.

    Raises:
        InputError: The cache cannot be written.
    """
    files = task_files()
    digest = hashlib.sha256("\0".join(f"{path}\0{text}" for path, text in files.items()).encode())
    cache_folder = platformdirs.user_cache_path("kgbench", appauthor=False)
    folder = cache_folder / "tasks" / digest.hexdigest()[:16]
    try:
        for path, text in files.items():
            file = folder / path
            if not file.is_file() or file.read_text("utf-8") != text:
                file.parent.mkdir(parents=True, exist_ok=True)
                write_whole(file, text.encode())
    except OSError as error:
        raise InputError(
            f"the files of lm-eval tasks cannot be written to {folder}: {error.strerror}; "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from error
    return folder
