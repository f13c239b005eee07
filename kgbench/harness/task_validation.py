"""Validation of lm-eval tasks: each loads, and every document renders with spans and targets.

`lm_eval validate` looks at names only. Here each task is loaded by lm-eval, every document is
rendered, and its spans and targets are checked, also as the tokens of several tokenizers.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from kgbench.data import Fact, Prompt, token_regions
from kgbench.errors import InputError, ModelError, RegionError, UnknownNameError
from kgbench.harness import needs_lm_eval, tasks_path
from kgbench.harness.passages import moved_spans
from kgbench.harness.rows import is_loaded
from kgbench.harness.span_checks import (
    Fault,
    context_fault,
    has_spans,
    span_faults,
    target_fault,
)
from kgbench.models import catalog
from kgbench.models.checkpoints import locate
from kgbench.models.encoding import Encoder
from kgbench.models.loading import read_tokenizer
from kgbench.progress import Progress
from kgbench.registry import told

_BATCH = 1024
"""Texts that are tokenized together."""


@dataclass(frozen=True)
class TaskFinding:
    """A fault of a task, and where in a folder of tasks; what does not apply is None."""

    file: str
    task: str | None = None
    document: int | None = None
    """Its number, from 0."""
    id: str | None = None
    """The document's id, where the row has one."""
    field: str | None = None
    """A key of the YAML or a column of the row, such as `doc_to_target` or `spans.FE`."""
    tokenizers: tuple[str, ...] = ()
    """Tokenizers with which it is a fault; none where the text itself is at fault."""
    message: str = ""

    def __str__(self) -> str:
        parts = [] if self.task is None else [f"task {self.task}"]
        if self.document is not None:
            parts.append(f"document {self.document}{'' if self.id is None else f' ({self.id})'}")
        if self.field is not None:
            parts.append(f"field {self.field}")
        where = f"{self.file}: {', '.join(parts)}" if parts else self.file
        under = f" (tokenizer {', '.join(self.tokenizers)})" if self.tokenizers else ""
        return f"{where}: {self.message}{under}"


@dataclass(frozen=True)
class ValidatedTask:
    """A task that was validated."""

    name: str
    file: str
    documents: int
    """How many were rendered; 0 where the task does not load."""


@dataclass(frozen=True)
class Validation:
    """What was validated, and the findings."""

    tokenizers: tuple[str, ...]
    tasks: tuple[ValidatedTask, ...]
    findings: tuple[TaskFinding, ...]


def validate_tasks(
    names: Sequence[str] = (),
    include_path: Path | None = None,
    tokenizers: Sequence[str] = (),
    progress: Progress | None = None,
) -> Validation:
    """Load tasks with lm-eval's loader, render every document, and check it.

    Args:
        names: Tasks, groups or tags; by default all tasks and groups of the folder.
        include_path: A folder of tasks; by default the shipped one.
        tokenizers: Pairs of the catalog, directories of checkpoints or Hub ids; by default the
            tiny pairs.
        progress: Progress callback.

    Raises:
        InputError: lm-eval is not installed, there are no tasks, or a task or tokenizer is unknown.
    """
    needs_lm_eval()
    loaded = load_tokenizers(tokenizers or catalog.shipped())
    with _quiet_lm_eval():
        manager = _task_manager(include_path)
        checks = _Checks(manager)
        root = include_path or tasks_path()
        if not names:
            checks.check_files(root)
        selected = _selected(names, root, manager)
        if not selected and not checks.findings:
            raise InputError(
                f"{include_path}: no tasks; expected files that end with .yaml, with a key 'task'"
            )
        steps = [*((name, None) for name in selected), *loaded.items()]
        for number, (step, tokenizer) in enumerate(steps):
            if progress:
                progress(number, len(steps), step)
            if tokenizer is None:
                checks.check_task(step)
            else:
                checks.check_tokens(step, tokenizer)
    findings = [replace(f, tokenizers=tuple(under)) for f, under in checks.findings.items()]
    findings.sort(key=lambda f: (f.file, f.task or "", -1 if f.document is None else f.document))
    return Validation(tuple(loaded), tuple(checks.tasks), tuple(findings))


def preview(name: str, number: int = 0, include_path: Path | None = None) -> dict[str, Any]:
    """Render one document of a task as a model reads it.

    Args:
        name: A task.
        number: The document's number, from 0.
        include_path: A folder of tasks, in addition to the shipped one.

    Returns:
        `task`, `file`, `document`, `documents` (how many there are), `id`, `context`, `targets`,
        `gold` (number of the right one among several), `spans` (text of each), `metrics`. What does
        not apply is None.

    Raises:
        UnknownNameError: There is no such task.
        InputError: lm-eval is not installed, or the task does not load or has fewer documents.
    """
    needs_lm_eval()
    with _quiet_lm_eval():
        manager = _task_manager(include_path)
        _check_name(name, manager.all_subtasks)
        file = manager.task_index[name].yaml_path
        try:
            task = manager.load([name])["tasks"][name]
            task.set_fewshot_seed(0)
            docs = task.eval_docs
            if number >= len(docs):
                raise InputError(
                    f"task {name!r} has {len(docs)} documents, with numbers from 0 to "
                    f"{len(docs) - 1}; there is no {number}"
                )
            doc = docs[number]
            requests = _requests(task, doc, number)
            chosen = task.OUTPUT_TYPE == "multiple_choice"
            spans = None
            if has_spans(doc):
                placed = moved_spans(doc["spans"], 0)
                spans = {region: doc["query"][slice(*span)] for region, span in placed.items()}
            return {
                "task": name,
                "file": str(file),
                "document": number,
                "documents": len(docs),
                "id": doc.get("id"),
                "context": requests[0][0],
                "targets": [target for _, target, _ in requests if target is not None],
                "gold": task.doc_to_target(doc) if chosen else None,
                "spans": spans,
                "metrics": list(task.aggregation()),
            }
        except InputError:
            raise
        except Exception as error:  # whatever a task's data and functions raise
            raise InputError(
                f"{file}: task {name!r} does not load: {told(error)}; see 'kgbench tasks validate'"
            ) from error


# ------------------------------------------------------------------------------------ lm-eval


@contextmanager
def _quiet_lm_eval() -> Iterator[None]:
    """Silence lm-eval's warnings, which come with every task that has its own data."""
    logger = logging.getLogger("lm_eval")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def _task_manager(include_path: Path | None) -> Any:
    """lm-eval's loader of tasks, over the shipped folder and another one."""
    from lm_eval.tasks import TaskManager

    folders = [tasks_path(), *([include_path] if include_path else [])]
    return TaskManager(include_path=folders, include_defaults=False)


def _check_name(name: str, known: Sequence[str]) -> None:
    if name not in known:
        close = get_close_matches(name, known)
        hint = "'kgbench tasks ls' lists those of kgbench."
        raise UnknownNameError("task", name, close, hint)


def _selected(names: Sequence[str], root: Path, manager: Any) -> list[str]:
    """Tasks, then groups: those that names refer to, or all of a folder."""
    index, here = manager.task_index, root.resolve()
    selected: list[str] = []
    for name in names:
        _check_name(name, manager.all_tasks)
        entry = index[name]
        selected += sorted(entry.tags) if entry.kind.name == "TAG" else [name]
    for name, entry in index.items() if not names else ():
        if entry.yaml_path and Path(entry.yaml_path).resolve().is_relative_to(here):
            selected.append(name)
    return sorted(dict.fromkeys(selected), key=lambda name: index[name].kind.name == "GROUP")


_Request = tuple[Any, Any, str]
"""Text before the target, the target, and where it comes from, such as `doc_to_choice[3]`.

Anything but a text before it is a fault of the task; the target is None where the model generates.
"""


def _requests(task: Any, doc: Mapping[str, Any], number: int) -> list[_Request]:
    """Requests of a document, each once, with the task's own number of few-shot examples."""
    shots = task.config.num_fewshot or 0
    context = task.fewshot_context(doc, num_fewshot=shots, gen_prefix=task.doc_to_prefix(doc))
    metadata = (task.config.task, number, task.config.repeats)
    instances = task.construct_requests(doc=doc, ctx=context, metadata=metadata)
    chosen = task.OUTPUT_TYPE == "multiple_choice" and not task.multiple_input
    requests: list[_Request] = []
    for instance in instances if isinstance(instances, list) else [instances]:
        field = f"doc_to_choice[{instance.idx}]" if chosen else "doc_to_target"
        if len(instance.args) == 1:  # a whole text, which is scored from its beginning
            context, target = "", instance.args[0]
        else:
            context, target = instance.args[:2]
        request = context, None if isinstance(target, Mapping) else target, field
        if request not in requests:
            requests.append(request)
    return requests


# ------------------------------------------------------------------------------------ checks


@dataclass
class _Checks:
    """Findings so far, and the texts that tokenizers read after all tasks are rendered."""

    manager: Any
    tasks: list[ValidatedTask] = field(default_factory=list)
    findings: dict[TaskFinding, list[str]] = field(default_factory=dict)
    """Findings without tokenizers, each with those that find so."""
    pairs: dict[tuple[str, str], list[TaskFinding]] = field(default_factory=dict)
    """Places of each context with its target."""
    prompts: dict[Prompt, list[TaskFinding]] = field(default_factory=dict)
    """Places of each context with spans."""
    configs: dict[str, list[Any]] = field(default_factory=dict)
    """Settings under which each task was checked; a group may change those of a member."""

    def add(self, place: TaskFinding, message: str, tokenizer: str | None = None) -> None:
        """Add a finding.

        Args:
            place: Where it is.
            message: What is wrong.
            tokenizer: The tokenizer that finds so.
        """
        names = self.findings.setdefault(replace(place, message=message), [])
        names += [tokenizer] if tokenizer is not None else []

    def check_files(self, root: Path) -> None:
        """Find YAML files that lm-eval cannot read; it leaves them out silently."""
        from lm_eval.tasks._yaml_loader import load_yaml

        for path in sorted(root.rglob("*.yaml")):
            try:
                load_yaml(path, resolve_func=False)
            except Exception as error:  # whatever YAML, or an included file that is missing, raises
                message = f"does not read, so that lm-eval leaves it out: {told(error)}"
                self.add(TaskFinding(str(path)), message)

    def check_task(self, name: str) -> None:
        """Check a task, or the members of a group under the settings that it gives them."""
        index = self.manager.task_index
        file = str(Path(index[name].yaml_path))
        try:
            members = self.manager.load([name])["tasks"]
        except Exception as error:  # whatever a task's data and functions raise
            self.add(TaskFinding(file, name), f"does not load: {told(error)}")
            self.tasks.append(ValidatedTask(name, file, 0))
            return
        for member, task in members.items():
            checked = self.configs.setdefault(member, [])
            if task.config in checked:
                continue
            label = f"{name}::{member}" if checked else member
            checked.append(task.config)
            home = str(Path(index[member].yaml_path)) if member in index else file
            task.set_fewshot_seed(0)
            for number, doc in enumerate(task.eval_docs):
                identifier = str(doc["id"]) if isinstance(doc, Mapping) and "id" in doc else None
                self._check_document(task, doc, TaskFinding(home, label, number, identifier))
            self.tasks.append(ValidatedTask(label, home, len(task.eval_docs)))

    def check_tokens(self, name: str, tokenizer: PreTrainedTokenizerBase) -> None:
        """Check all texts as the tokens of one tokenizer."""
        for places, message in self._token_faults(tokenizer):
            for place in places:
                self.add(place, message, name)

    def _token_faults(
        self, tokenizer: PreTrainedTokenizerBase
    ) -> Iterator[tuple[list[TaskFinding], str]]:
        """Targets that add no token to their context or change its tokens, as lm-eval reads them.

        Then prompts of which a region cannot be located.
        """
        bare = dict.fromkeys(context.rstrip() for context, _ in self.pairs)
        heads = dict(zip(bare, _token_ids(tokenizer, bare), strict=True))
        wholes = _token_ids(tokenizer, (context + target for context, target in self.pairs))
        for ((context, target), places), whole in zip(self.pairs.items(), wholes, strict=True):
            head = heads[context.rstrip()]
            if whole[: len(head)] != head:
                yield (
                    places,
                    f"the tokens of context and target {target!r} do not begin with the context's",
                )
            elif len(whole) == len(head):
                yield places, f"the target {target!r} has no token"
        if not self.prompts:
            return
        encoded = tokenizer(
            [prompt.text for prompt in self.prompts],
            return_offsets_mapping=True,
            return_special_tokens_mask=True,
            verbose=False,
        )
        columns = encoded["offset_mapping"], encoded["special_tokens_mask"]
        for (prompt, places), offsets, special in zip(self.prompts.items(), *columns, strict=True):
            try:
                token_regions(prompt, offsets, list(map(bool, special)))
            except RegionError as error:
                yield places, str(error)

    def _check_document(self, task: Any, doc: Any, place: TaskFinding) -> None:
        row = doc if isinstance(doc, Mapping) else {}
        # Spans of rows that kgbench made are those that the prompt marks, whatever they hold.
        faults: list[Fault] = [] if is_loaded(row) else list(span_faults(row))
        try:
            requests = _requests(task, doc, place.document or 0)
        except Exception as error:  # whatever templates and functions of a task raise
            self.add(place, f"cannot be rendered: {told(error)}")
            requests = []
        for context in dict.fromkeys(str(context) for context, _, _ in requests):
            if fault := context_fault(row, context):
                faults.append(fault)
            elif has_spans(row) and not faults:
                prompt = _span_prompt(row, context, place)
                self.prompts.setdefault(prompt, []).append(replace(place, field="spans"))
        for context, target, column in requests:
            if message := target_fault(context, target):
                faults.append((column, message))
            elif target is not None:  # it is kept for the tokenizers
                self.pairs.setdefault((context, target), []).append(replace(place, field=column))
        for column, message in faults:
            self.add(replace(place, field=column), message)


def _span_prompt(row: Mapping[str, Any], context: str, place: TaskFinding) -> Prompt:
    """A row's query within its context, as `token_regions` takes it."""
    spans = moved_spans(row["spans"], context.rfind(row["query"]))
    fact = Fact(place.id or str(place.document), {})
    return Prompt(str(row.get("prompt") or place.task), fact, context, "", spans)


# ------------------------------------------------------------------------------------ tokenizers


def load_tokenizers(names: Iterable[str]) -> dict[str, PreTrainedTokenizerBase]:
    """Tokenizers by the names given.

    Args:
        names: Pairs of the catalog, directories of checkpoints, or Hub ids.

    Raises:
        UnknownNameError: A name is nearly that of a pair.
        ModelError: A tokenizer is not found, does not load, or cannot be used: it is slow, or adds
            a token at the end.
    """
    loaded, known = {}, catalog.pair_names()
    for name in names:
        source = catalog.entry(name).recipient if name in known else name
        near = get_close_matches(name, known, cutoff=0.8)
        if name not in known and not Path(name).is_dir() and near:
            hint = "Or give a directory, or a Hub id such as owner/name."
            raise UnknownNameError("tokenizer", name, catalog.shipped(), hint)
        loaded[name] = read_tokenizer(locate(source))
        try:
            Encoder(loaded[name])
        except ModelError as error:
            raise ModelError(f"{name}: {error}") from None
    return loaded


def _token_ids(tokenizer: Any, texts: Iterable[str]) -> Iterator[list[int]]:
    """Token ids alone: every candidate of every document is a text, and this is the fastest way."""
    remaining = iter(texts)
    while batch := list(islice(remaining, _BATCH)):
        for encoding in tokenizer.backend_tokenizer.encode_batch_fast(batch):
            yield encoding.ids
