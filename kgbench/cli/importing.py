"""What `kgbench data import` does and tells."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kgbench.cli.values import pairs
from kgbench.data import Dataset, ImportOptions, Prompt, load_dataset
from kgbench.data.exports import check_target, write_dataset
from kgbench.data.facts import AMBIGUOUS, DUPLICATE
from kgbench.data.fitting import builtin_fitting, leaks, own_prompts
from kgbench.data.imports import Table, read_table
from kgbench.errors import InputError, RegionError
from kgbench.testing.decisions import FEWEST

__all__ = ["Imported", "import_facts"]

SHOWN = 5
"""How many lines, facts or names are listed before the list is cut."""


@dataclass(frozen=True)
class Imported:
    """A data set that was written."""

    source: Path
    path: Path
    dataset: Dataset
    dropped: Mapping[str, Sequence[int]]
    """By reason, the lines of the file that were left out."""
    incomplete: Mapping[str, int]
    """Columns that were left out, and the first line where each is empty."""
    beyond: int
    """Facts that --limit left out."""
    prompts: Mapping[str, Sequence[Prompt]]
    """All facts in each template of its own, or else in each built-in prompt that they can fill."""
    builtin: Sequence[str]
    """Built-in prompts that the facts can fill."""
    leaking: Mapping[str, Sequence[Prompt]]
    """By template, prompts that hold their answer."""
    tokenizer: str | None
    faults: Mapping[str, Mapping[str, str]]
    """By template, why the tokenizer cannot read the prompt of a fact, by the fact's id."""

    def warnings(self) -> Iterator[str]:
        """What was written all the same, and may disappoint."""
        total = len(self.dataset.facts)
        for name, some in self.leaking.items():
            where = _these(prompt.fact.id for prompt in some)
            yield f"prompt {name!r} holds the answer already in {len(some)} of {total} facts ({where}), where a model only has to copy it"
        for name, faults in self.faults.items():
            why = next(iter(faults.values()))
            yield f"{self.tokenizer} cannot read prompt {name!r} of {len(faults)} of {total} facts ({_these(faults)}); the first: {why}"
        if total < FEWEST:
            yield f"{total} facts are few: tests call every claim undecided below {FEWEST}"

    def lines(self) -> Iterator[str]:
        """What was written, and what to do next."""
        roles = f"subject {self.dataset.subject}, object {self.dataset.object}"
        yield f"wrote {self.path}: {len(self.dataset.facts)} facts of {self.source}, {roles}"
        left_out = [f"{len(lines)} {reason} ({_lines(lines)})" for reason, lines in self.dropped.items()]
        left_out += [f"column {name} (empty at line {line})" for name, line in self.incomplete.items()]
        if self.beyond:
            left_out.append(f"{self.beyond} beyond --limit")
        if left_out:
            yield f"left out: {', '.join(left_out)}"
        yield ""
        yield "the first fact in each prompt:" if self.dataset.templates else "the first fact in each built-in prompt that has its fields:"
        width = max(map(len, self.prompts))
        yield from (f"    {name:{width}}  {_marked(some[0])}" for name, some in self.prompts.items())
        if self.dataset.templates and self.builtin:
            yield f"built-in prompts that fit too, by --prompt: {', '.join(self.builtin)}"
        if self.tokenizer is not None and not self.faults:
            yield f"{self.tokenizer} finds every region and target in its tokens"
        yield ""
        yield "next: where are these facts retrieved, and a test of it (README, Test a finetune)"
        yield from (f"    {line}" for line in self._next())

    def to_json(self) -> dict[str, Any]:
        """The same, and all of it, for programs."""
        first = {name: some[0] for name, some in self.prompts.items()}
        return {
            "path": str(self.path),
            "name": self.dataset.name,
            "content_hash": self.dataset.content_hash,
            "subject": self.dataset.subject,
            "object": self.dataset.object,
            "fields": list(self.dataset.fields),
            "facts": len(self.dataset.facts),
            "dropped": {reason: len(lines) for reason, lines in self.dropped.items()},
            "dropped_lines": {reason: list(lines) for reason, lines in self.dropped.items()},
            "incomplete_columns": dict(self.incomplete),
            "beyond_limit": self.beyond,
            "templates": dict(self.dataset.templates),
            "builtin_prompts": list(self.builtin),
            "first": {name: {"text": p.text, "target": p.target, "spans": dict(p.spans)} for name, p in first.items()},
            "leaking": {name: [prompt.fact.id for prompt in some] for name, some in self.leaking.items()},
            "tokenizer": self.tokenizer,
            "unreadable": {name: dict(faults) for name, faults in self.faults.items()},
            "next": list(self._next()),
        }

    def _next(self) -> Iterator[str]:
        file = shlex.quote(str(self.path))
        for program, prefix in (("kgbench eval", ""), ("python -m pytest", "kgbench-")):
            chosen = "" if self.dataset.templates or _suite_fits(self.builtin) else f" --{prefix}prompt {','.join(self.builtin)}"
            models = f"--{prefix}recipient path/to/before --{prefix}donor sft=path/to/after"
            yield f"{program} {models} --{prefix}dataset {file}{chosen}"


def import_facts(file: Path, options: Mapping[str, Any]) -> Imported:
    """Read, check and write.

    Args:
        file: The user's file.
        options: Those of the command, by name.

    Raises:
        InputError: Something is wrong; then nothing is written.
    """
    columns, templates = (pairs(f"--{name}", options[name]) for name in ("column", "template"))
    given = ImportOptions(options["subject"], options["object"], columns, templates)
    table = read_table(file, given)
    name = _name(table, options["name"])
    path = _target(file, name, options)
    whole = load_dataset(str(file), given)
    kept = whole.subset(fact.id for fact in whole.facts[: options["limit"]])
    dataset = replace(kept, name=name)
    builtin = builtin_fitting(dataset)
    prompts = _usable(file, dataset, builtin)
    leaking = _leaking(file, prompts)
    faults = _faults(prompts, options["tokenizer"])
    write_dataset(dataset, path, options["force"])
    dropped, beyond = _dropped(table, whole), len(whole.facts) - len(kept.facts)
    return Imported(file, path, dataset, dropped, table.incomplete, beyond, prompts, tuple(builtin), leaking, options["tokenizer"], faults)


def _name(table: Table, given: str | None) -> str:
    if given is not None and not given.strip():
        raise InputError("--name: expected a name that is not empty")
    return table.name if given is None else given.strip()


def _target(file: Path, name: str, options: Mapping[str, Any]) -> Path:
    """Where to write, having checked that it may be written."""
    path: Path = options["output"] or Path(f"{name}.jsonl")
    if options["output"] is None and path.name != f"{name}.jsonl":
        raise InputError(f"the name {name!r} cannot be that of a file here; say by -o OUT.jsonl where the facts go")
    if path.exists() and path.samefile(file):
        raise InputError(f"{path} is the file that is read; give another one to write to by -o, or another --name")
    check_target(path, options["force"])
    return path


def _usable(file: Path, dataset: Dataset, builtin: Mapping[str, Sequence[Prompt]]) -> Mapping[str, Sequence[Prompt]]:
    """The prompts that an evaluation of these facts would ask."""
    found = own_prompts(dataset) or builtin
    if not found:
        subject = dataset.subject if dataset.subject.isidentifier() else "subject"
        example = shlex.quote(f"ask=Q: What is the {_doubled(dataset.object)} {{P:of}} {{{subject}}}? A:")
        raise InputError(
            f"{file}: no built-in prompt can be filled from the fields {', '.join(dataset.fields)}; give a template of your own, such as "
            f"--template {example}, or rename columns by --column FIELD=COLUMN to the fields of a prompt in `kgbench ls prompts`"
        )
    return found


def _leaking(file: Path, prompts: Mapping[str, Sequence[Prompt]]) -> Mapping[str, Sequence[Prompt]]:
    """By template the prompts that hold their answer, where those are not most of them."""
    leaking = {name: found for name, some in prompts.items() if (found := leaks(some))}
    for name, found in leaking.items():
        if 2 * len(found) > len(prompts[name]):
            raise InputError(
                f"{file}: prompt {name!r} holds the answer already in {len(found)} of {len(prompts[name])} facts, such as "
                f"{found[0].target!r} in {found[0].text!r}, so that a model only has to copy it; leave out the field that gives it away"
            )
    return leaking


def _suite_fits(builtin: Sequence[str]) -> bool:
    """Whether the facts can fill the prompts that are asked where none is named and the data set has none of its own."""
    from kgbench.runner import Spec
    from kgbench.runner.suites import load_suite

    return set(load_suite(Spec.suite).prompts) <= set(builtin)


def _faults(prompts: Mapping[str, Sequence[Prompt]], tokenizer: str | None) -> Mapping[str, Mapping[str, str]]:
    """By template and fact, why a tokenizer cannot read the prompt, where it cannot."""
    if tokenizer is None:
        return {}
    from kgbench.harness.tokens import load_tokenizers
    from kgbench.models.encoding import Encoder

    encoder = Encoder(load_tokenizers([tokenizer])[tokenizer])
    found: dict[str, dict[str, str]] = {}
    for prompt in (prompt for some in prompts.values() for prompt in some):
        try:
            encoder(prompt)
        except RegionError as error:
            found.setdefault(prompt.name, {})[prompt.fact.id] = str(error)
    return found


def _dropped(table: Table, dataset: Dataset) -> Mapping[str, Sequence[int]]:
    """By reason, the lines that the data set left out of a file."""
    subjects = {fact.fields[dataset.subject] for fact in dataset.facts}
    seen: set[tuple[str, ...]] = set()
    lines: dict[str, list[int]] = {DUPLICATE: [], AMBIGUOUS: []}
    for row in table.rows:
        values = tuple(row.fields.values())
        if values in seen:
            lines[DUPLICATE].append(row.line)
        elif row.fields[table.subject] not in subjects:
            lines[AMBIGUOUS].append(row.line)
        seen.add(values)
    return {reason: found for reason, found in lines.items() if found}


def _lines(numbers: Sequence[int]) -> str:
    return f"line{'s' if len(numbers) > 1 else ''} {_these(map(str, numbers))}"


def _these(names: Iterable[str]) -> str:
    """A list that is cut where it is long."""
    listed = list(names)
    return ", ".join(listed[:SHOWN]) + (", …" if len(listed) > SHOWN else "")


def _marked(prompt: Prompt) -> str:
    """A prompt with the words of each region in brackets, and its target behind."""
    regions: dict[tuple[int, int], list[str]] = {}
    for region, span in prompt.spans.items():
        regions.setdefault(span, []).append(region)
    text, done = "", 0
    for (start, end), names in sorted(regions.items()):
        text += f"{prompt.text[done:start]}[{'+'.join(names)}: {prompt.text[start:end]}]"
        done = end
    return _visible(f"{text}{prompt.text[done:]} → {prompt.target}")


def _visible(text: str) -> str:
    """A text in one line: what does not print, as Python writes it."""
    return "".join(mark if mark.isprintable() else repr(mark)[1:-1] for mark in text)


def _doubled(text: str) -> str:
    return text.replace("{", "{{").replace("}", "}}")
