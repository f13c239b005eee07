"""kgbench in the Language Model Evaluation Harness: tasks, and a model under a graft.

Nothing here loads lm-eval or torch until it is used; the extra `lm-eval` brings both.

The shipped tasks are every data set in every prompt that fits it, in two forms. What the tasks
share is written by hand in `tasks/_*.yaml`. The file of each task follows from its data set, prompt
and form, and is made when the folder is first needed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

import platformdirs

from kgbench.data import dataset_names, fitting_prompts, load_dataset, prompt_names
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
    "tasks_path",
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
  kgbench_dataset: {dataset}
  kgbench_prompt: {prompt}
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

    def yaml(self) -> str:
        """Text of the YAML file."""
        tags = ", ".join(self.tags)
        return _YAML.format(
            form=self.form, name=self.name, tags=tags, dataset=self.dataset, prompt=self.prompt
        )


@cache
def shipped_tasks() -> tuple[ShippedTask, ...]:
    """All shipped tasks, by data set, prompt and form."""
    tasks = []
    for dataset in map(load_dataset, dataset_names()):
        fitting = fitting_prompts(dataset, prompt_names())
        for prompt in (*fitting, *dataset.templates):
            for form, ending in FORMS.items():
                name = f"kgbench_{dataset.name}_{prompt}{ending}"
                tags = (f"kgbench{ending}", f"kgbench_{dataset.name}{ending}")
                size = len(dataset.facts)
                tasks.append(ShippedTask(name, dataset.name, prompt, form, tags, size))
    return tuple(tasks)


def task_files() -> dict[str, str]:
    """Text of each file of the folder of tasks, by path: the common parts, then the tasks."""
    files = {path.name: path.read_text("utf-8") for path in sorted(_common().glob("_*.yaml"))}
    for task in shipped_tasks():
        files[task.file] = task.yaml()
    return files


def _common() -> Path:
    """Folder of the hand-written files: in the package of a wheel, in the root of a checkout."""
    package = Path(__file__).parents[1]
    return next(path for path in (package / "tasks", package.parent / "tasks") if path.is_dir())


def describe_tasks() -> dict[str, dict[str, Any]]:
    """Description of each shipped task, by name."""
    rows = {task.name: asdict(task) for task in shipped_tasks()}
    for row in rows.values():
        del row["name"]
        row["tags"] = list(row["tags"])
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
