"""Whether tasks are what they look like: every file, every document, every span and every target, under several tokenizers.

lm-eval leaves out files that do not read, and takes digits for indices, without a word; its own `validate` looks at names only.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from kgbench.data import Fact, Prompt
from kgbench.harness import needs_lm_eval, tasks_path
from kgbench.harness.checks import (
    Fault,
    context_fault,
    gold_faults,
    has_spans,
    span_faults,
    target_fault,
)
from kgbench.harness.findings import Finding, Place
from kgbench.harness.folders import Folder, functions, known_name, manager, quiet, scan
from kgbench.harness.originals import Originals
from kgbench.harness.rendering import Request, half_made, render
from kgbench.harness.tokens import default_tokenizers, load_tokenizers, region_faults, target_faults
from kgbench.registry import told

__all__ = ["Checked", "Report", "validate"]


@dataclass(frozen=True)
class Checked:
    """A task that was looked at."""

    name: str
    file: Path
    documents: int
    """How many were rendered; 0 where the task does not load."""


@dataclass(frozen=True)
class Report:
    """What was looked at, and what is wrong."""

    tokenizers: tuple[str, ...]
    tasks: tuple[Checked, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class _Chosen:
    """A task to look at."""

    name: str
    file: Path
    group: str | None = None
    task: Any = None
    """As its group has loaded it, with the group's settings; None where it is loaded by its name."""


@dataclass(frozen=True)
class _Ledger:
    """What was found, and what tokenizers are still to read: each text once, with the places where it stands."""

    findings: list[Finding] = field(default_factory=list)
    pairs: dict[tuple[str, str], list[Place]] = field(default_factory=dict)
    prompts: dict[Prompt, list[Place]] = field(default_factory=dict)
    configs: dict[str, list[Any]] = field(default_factory=dict)
    """Per task the settings under which it was looked at."""
    originals: Originals = field(default_factory=Originals)


def validate(
    names: Sequence[str] = (),
    include_path: Path | None = None,
    tokenizers: Sequence[str] = (),
    progress: Callable[[int, int, str], None] | None = None,
) -> Report:
    """Load tasks by lm-eval's own loader, render every document, and check it.

    Args:
        names: Tasks, groups or tags; by default all tasks of the folder.
        include_path: A folder of tasks; by default the shipped one.
        tokenizers: Pairs of the catalog, directories of checkpoints or Hub ids; by default the tiny pairs.
        progress: Called with the steps done, the steps in all, and what is being done.

    Raises:
        InputError: lm-eval is not installed, there are no tasks, or a task or tokenizer is unknown.
    """
    needs_lm_eval()
    checked: list[Checked] = []
    loaded = load_tokenizers(tokenizers or default_tokenizers())
    with quiet():
        folder, tasks = scan(include_path or tasks_path()), manager(include_path)
        entries, ledger = (
            _entries(names or (*folder.tasks, *folder.groups), folder, tasks),
            _Ledger(),
        )
        broken = _broken(
            folder,
            {entry.yaml_path: name for name, entry in entries.items()} if names else folder.files,
            ledger,
        )
        chosen = [
            each
            for name, entry in entries.items()
            if entry.yaml_path not in broken
            for each in _expanded(name, entry, tasks, ledger)
        ]
        known = {*names, *entries, *(each.name for each in chosen)}
        ledger.findings.extend(
            found for found in folder.findings if not names or found.place.task in known
        )
        steps = [*(each.name for each in chosen), *loaded]
        for number, step in enumerate(steps):
            if progress:
                progress(number, len(steps), step)
            if number < len(chosen):
                checked += _check(chosen[number], tasks, ledger)
            else:
                _read(step, loaded[step], ledger)
    return Report(
        tuple(loaded),
        (*checked, *_unread(ledger.findings, checked)),
        tuple(sorted(_merged(ledger.findings), key=_order)),
    )


def _unread(findings: Sequence[Finding], checked: Sequence[Checked]) -> list[Checked]:
    """Tasks that lm-eval does not find, since their files do not read."""
    known = {task.name for task in checked}
    files = {
        found.place.task: found.place.file for found in findings if found.place.task not in known
    }
    return [Checked(task, file, 0) for task, file in files.items() if task and file]


def _order(finding: Finding) -> tuple[str, str, int]:
    place = finding.place
    return str(place.file or ""), place.task or "", -1 if place.document is None else place.document


def _entries(names: Sequence[str], folder: Folder, tasks: Any) -> dict[str, Any]:
    """What names stand for in lm-eval's index, by name, with the tasks of tags, and groups last; not those whose file does not read."""
    entries = {}
    for name in names:
        entry = tasks.task_index.get(name)
        if entry is None:
            known_name(
                name,
                [
                    *tasks.all_tasks,
                    *(found.place.task for found in folder.findings if found.place.task),
                ],
            )
        else:
            entries.update(
                {
                    task: tasks.task_index[task]
                    for task in (sorted(entry.tags) if entry.kind.name == "TAG" else [name])
                }
            )
    return dict(sorted(entries.items(), key=lambda item: _is_group(item[1])))


def _is_group(entry: Any) -> bool:
    return bool(entry.kind.name == "GROUP")


def _broken(folder: Folder, files: Mapping[Path, str | None], ledger: _Ledger) -> set[Path | None]:
    """Files that cannot be loaded, for reasons that are told."""
    ledger.findings.extend(found for path, name in files.items() for found in functions(path, name))
    return {found.place.file for found in (*folder.findings, *ledger.findings)}


def _expanded(name: str, entry: Any, tasks: Any, ledger: _Ledger) -> list[_Chosen]:
    """A task, or those of a group as it has them; none where it does not load."""
    file = Path(entry.yaml_path)
    if not _is_group(entry):
        return [_Chosen(name, file)]
    try:
        members = tasks.load([name])["tasks"]
    except Exception as error:  # whatever a task's data and functions raise
        ledger.findings.append(
            Finding(Place(file, name), f"the group does not load: {told(error)}")
        )
        return []
    files = {member: getattr(tasks.task_index.get(member), "yaml_path", None) for member in members}
    return [
        _Chosen(member, Path(files[member] or file), name, task) for member, task in members.items()
    ]


def _check(chosen: _Chosen, tasks: Any, ledger: _Ledger) -> Iterator[Checked]:
    """Look at one task, unless it was looked at with the same settings already."""
    task, error = (chosen.task, None) if chosen.group else _loaded(chosen.name, tasks)
    seen = ledger.configs.setdefault(chosen.name, [])
    if chosen.group and task.config in seen:
        return
    name, known, count = (
        f"{chosen.group}::{chosen.name}" if seen else chosen.name,
        len(ledger.findings),
        0,
    )
    seen.append(None if task is None else task.config)
    if task is not None:
        task.set_fewshot_seed(0)
        for doc in task.eval_docs:
            _check_document(task, doc, Place(chosen.file, name, count, _identifier(doc)), ledger)
            count += 1
    if error is not None and len(ledger.findings) == known:
        ledger.findings.append(Finding(Place(chosen.file, name), f"does not load: {told(error)}"))
    yield Checked(name, chosen.file, count)


def _loaded(name: str, tasks: Any) -> tuple[Any, Exception | None]:
    """A task, or as much as was made of it before an error."""
    try:
        return tasks.load([name])["tasks"][name], None
    except Exception as raised:  # whatever a task's data and functions raise
        return half_made(raised), raised


def _identifier(doc: Any) -> str | None:
    return str(doc["id"]) if isinstance(doc, Mapping) and "id" in doc else None


def _check_document(task: Any, doc: Any, place: Place, ledger: _Ledger) -> None:
    row = doc if isinstance(doc, Mapping) else {}
    faults = list(
        span_faults(
            row,
            ledger.originals.spans(row, task, place.file) if has_spans(row) and place.file else {},
        )
    )
    try:
        requests = render(task, doc, place.document or 0)
        faults += gold_faults(task, doc) if _has_gold(task) else ()
    except Exception as error:  # whatever templates and functions of a task raise
        faults.append((_culprit(task, doc), f"cannot be rendered: {told(error)}"))
        requests = []
    for context in dict.fromkeys(
        request.context for request in requests if isinstance(request.context, str)
    ):
        fault = context_fault(row, context)
        if fault:
            faults.append(fault)
        elif has_spans(row) and not faults:
            ledger.prompts.setdefault(_prompt(row, context, place), []).append(place.at("spans"))
    faults += _request_faults(requests, place, ledger)
    ledger.findings.extend(Finding(place.at(field), message) for field, message in faults)


def _has_gold(task: Any) -> bool:
    return task.OUTPUT_TYPE == "multiple_choice" and not task.multiple_input


def _culprit(task: Any, doc: Any) -> str:
    """Which key of the YAML makes a document impossible to render."""
    for key in ("doc_to_text", "doc_to_choice", "doc_to_target"):
        if key == "doc_to_choice" and task.config.doc_to_choice is None:
            continue
        try:
            getattr(task, key)(doc)
        except Exception:  # whatever templates and functions of a task raise
            return key
    return "doc_to_target"


def _request_faults(requests: Sequence[Request], place: Place, ledger: _Ledger) -> Iterator[Fault]:
    for request in requests:
        if not isinstance(request.context, str):
            yield (
                "doc_to_text",
                f"expected a text, found the {type(request.context).__name__} {request.context!r}",
            )
        elif request.target is not None:
            message = target_fault(request.context, request.target)
            if message:
                yield request.field, message
            else:
                ledger.pairs.setdefault((request.context, request.target), []).append(
                    place.at(request.field)
                )


def _prompt(row: Mapping[str, Any], context: str, place: Place) -> Prompt:
    """A row's query within its context, as `token_regions` takes it."""
    start = context.rfind(row["query"])
    spans = {
        region: (span[0] + start, span[1] + start)
        for region, span in row["spans"].items()
        if span is not None
    }
    fact = Fact(place.identifier or str(place.document), {})
    return Prompt(str(row.get("prompt") or place.task), fact, context, "", spans)


def _read(name: str, tokenizer: Any, ledger: _Ledger) -> None:
    """Look at all texts as the tokens of one tokenizer."""
    for pair, message in target_faults(tokenizer, ledger.pairs).items():
        ledger.findings.extend(Finding(place, message, (name,)) for place in ledger.pairs[pair])
    for prompt, message in region_faults(tokenizer, list(ledger.prompts)).items():
        ledger.findings.extend(Finding(place, message, (name,)) for place in ledger.prompts[prompt])


def _merged(findings: Sequence[Finding]) -> Iterator[Finding]:
    """What several tokenizers find alike, once."""
    finders: dict[Finding, tuple[str, ...]] = {}
    for finding in findings:
        bare = replace(finding, tokenizers=())
        finders[bare] = (*finders.get(bare, ()), *finding.tokenizers)
    return (replace(finding, tokenizers=names) for finding, names in finders.items())
