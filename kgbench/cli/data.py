"""`kgbench data import`: convert facts of your own, or of a public set, into one file."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import click

from kgbench.cli.options import cli_command, completer, imports_of
from kgbench.cli.output import Output, terminal_text
from kgbench.data import Dataset, ImportOptions, Prompt, load_dataset, load_prompts
from kgbench.data.facts import check_target, left_out, write_dataset
from kgbench.data.imports import FactTable, read_fact_table
from kgbench.data.prompts import (
    Giveaways,
    find_giveaways,
    prompts_of_builtins,
    refuse_leaks,
    subject_mentions,
)
from kgbench.data.rows import row_unit
from kgbench.data.sources import (
    PREFIX,
    Relation,
    choose_fields,
    choose_relation,
    escaped,
    fetch_rows,
    load_source,
    locate_source,
    named_relation,
    read_relations,
    source_names,
)
from kgbench.errors import InputError, ModelError, RegionError, UnknownNameError
from kgbench.runner.choices import CATALOGUES
from kgbench.testing.decisions import FEWEST

if TYPE_CHECKING:
    from kgbench.models.encoding import Encoder


@click.group()
def data_command() -> None:
    """Facts of your own or by others: import them."""


@cli_command(
    *("source", "relation", "split", "subject", "object", "templates", "columns"),
    *("name", "limit", "tokenizer", "output", "force", "as_json"),
    group=data_command,
    epilog=(
        "Exit status: 0 done; 1 written, but --tokenizer cannot read every prompt; 2 wrong input,"
        " nothing written."
    ),
    file={"type": click.Path()},
    source={"shell_complete": completer(source_names)},
    subject={"help": "What a fact is about.  [default: first_actor or subject]"},
    object={"help": "What is asked for.  [default: second_actor or object]"},
    templates={"help": "Evaluation template with {columns} to fill; may be repeated."},
    columns={"help": "Rename a column, so that a template or built-in prompt finds it."},
    tokenizer={"shell_complete": completer(CATALOGUES["models"])},
    output={"type": click.Path(path_type=Path)},
    as_json={"help": "One JSON object on stdout, all else on stderr."},
)
def import_command(
    file: str | None,
    *,
    source: str | None,
    relation: str | None,
    split: str | None,
    name: str | None,
    tokenizer: str | None,
    output: Path | None,
    force: bool,
    **_others: Any,
) -> Output:
    """Bring FILE, a table of facts, into one file with all that an evaluation needs.

    A table is a .csv, .tsv, .jsonl, .json or .parquet. Rows of a prompt, a
    subject and a target need no options.

    With --source, FILE is that of a set by others, and may be left out
    where the Hugging Face Hub has it; hub:OWNER/NAME[:CONFIG][@REVISION]
    is any data set there, read with extra hub. Origin and licence are
    printed before anything is fetched. A --template is then asked in place of the
    set's own wordings, which are for training.

    The file then holds subject, object and templates too, so that `kgbench
    eval --dataset OUT.jsonl` and pytest need nothing else. In a template,
    {country} is filled from that column, and {P:of} marks the words of a
    region: R relation word, RP its preposition, P the preposition before the
    answer, M a title. The first mention of the subject is the first entity.

    \b
    kgbench data import towns.csv --subject country --object capital --template "ask=The capital {P:of} {country} is"
    kgbench data import cast.csv --column first_actor=actor --column second_actor=costar --column movie_title=film
    kgbench data import --source counterfact --relation P103
    kgbench data import hub:OWNER/NAME --subject country --object capital --template "ask=The capital {P:of} {country} is"

    Args:
        file: A file of your own, or of the source.
        source (NAME): A set by others: counterfact, counterfact-rome, popqa.
        relation (NAME): One relation of it, where it has several. With hub:, COLUMN=VALUE.
        split (NAME): Which part of it.  [default: that of the source; with hub:, train]
        name (NAME): What to call the data set.  [default: as FILE]
        tokenizer (PATH|PAIR): Also try whether the words of each prompt can be found in its tokens,
            and whether the answer's first token is among them.
        output (OUT.jsonl): Where it goes.  [default: ./NAME.jsonl]
        force: Replace OUT.jsonl.
    """  # noqa: D301 (click reads the character, not its escape)
    options = click.get_current_context().params
    if source or (file or "").startswith(PREFIX):
        imported = import_source(
            file, options, lambda line: click.echo(terminal_text(f"kgbench: {line}"), err=True)
        )
    elif file is None or relation or split:
        raise InputError(
            f"give a FILE of your own, or a set by others: --source NAME or {PREFIX}OWNER/NAME;"
            " --relation and --split are of one"
        )
    else:
        imported = import_facts(Path(file), options)
    for line in imported.warnings():
        click.echo(terminal_text(f"kgbench: warning: {line}"), err=True)
    return Output(list(imported.lines()), imported.to_json(), int(bool(imported.faults)))


SHOWN = 5
"""How many lines, facts or names are listed before the list is cut."""

MANY = 0.1
"""Share of facts with the first token in the prompt that is reported: copying could add as much
to top1."""


@dataclass(frozen=True)
class Imported:
    """A data set that was written."""

    source: str
    path: Path
    dataset: Dataset
    dropped: Mapping[str, Sequence[int]]
    """By reason, the lines of the file, or rows of the source, that were left out."""
    incomplete: Mapping[str, int]
    """Columns that were left out, and the first line where each is empty."""
    beyond: int
    """Facts that --limit left out."""
    prompts: Mapping[str, Sequence[Prompt]]
    """All facts in each template of its own, or else in each built-in prompt that they can fill."""
    builtin: Sequence[str]
    """Built-in prompts that the facts can fill."""
    giveaways: Mapping[str, Giveaways]
    """By template, prompts that hold their answer."""
    mentions: Mapping[str, int]
    """By template, how often it mentions the subject."""
    tokenizer: str | None
    faults: Mapping[str, Mapping[str, str]]
    """By template, why the tokenizer cannot read the prompt of a fact, by the fact's id."""
    tokens: Mapping[str, Sequence[Prompt]]
    """By template, prompts with the answer's first token in other words."""
    answers: Mapping[str, Sequence[int]]
    """By template, how often each first token is the answer; empty without a tokenizer."""
    origin: Sequence[str] = ()
    """Where a source was read from, and under which licence; empty for a file of one's own."""

    def warnings(self) -> Iterator[str]:
        """What was written all the same, and may disappoint."""
        for name, found in self.giveaways.items():
            if found.by_field:
                yield (
                    f"prompt {name!r} holds the answer already in {self._share(found.by_field)},"
                    " where a model only has to copy it"
                )
            if found.first_word:
                where = self._share(found.first_word)
                yield (
                    f"prompt {name!r} holds the first word of the answer in {where}; top1, top5 and"
                    " mrr ask for the first token only"
                )
        for name, some in self.tokens.items():
            if len(some) >= MANY * len(self.dataset.facts):
                where = f"{self._share(some)} under {self.tokenizer}"
                yield (
                    f"prompt {name!r} holds the first token of the answer in {where}, where a model"
                    " could copy it"
                )
        yield from self._few_answers()
        for name, number in self.mentions.items():
            if number > 1:
                yield (
                    f"prompt {name!r} mentions the subject {number} times; only the first is FE,"
                    " and the others count as other tokens"
                )
        for name, faults in self.faults.items():
            unread = [prompt for prompt in self.prompts[name] if prompt.fact.id in faults]
            why = next(iter(faults.values()))
            yield (
                f"{self.tokenizer} cannot read prompt {name!r} of {self._share(unread)}; the first:"
                f" {why}"
            )
        if (total := len(self.dataset.facts)) < FEWEST:
            yield (
                f"{_facts(total)} {'is' if total == 1 else 'are'} too few: tests call every claim"
                f" undecided below {FEWEST}"
            )

    def lines(self) -> Iterator[str]:
        """What was written, and what to do next."""
        roles = f"subject {self.dataset.subject}, object {self.dataset.object}"
        yield f"wrote {self.path}: {_facts(len(self.dataset.facts))} of {self.source}, {roles}"
        yield from self.origin
        unit = "row" if self.origin else row_unit(Path(self.source))
        left_out = []
        for reason, lines in self.dropped.items():
            left_out.append(f"{len(lines)} {reason} ({_numbers(unit, lines)})")
        for name, line in self.incomplete.items():
            left_out.append(f"column {name} (empty at {unit} {line})")
        if self.beyond:
            left_out.append(f"{self.beyond} beyond --limit")
        if left_out:
            yield f"left out: {', '.join(left_out)}"
        yield ""
        yield (
            "the first fact in each prompt:"
            if self.dataset.templates
            else "the first fact in each built-in prompt that has its fields:"
        )
        width = max(map(len, self.prompts))
        for name, some in self.prompts.items():
            yield f"    {name:{width}}  {_marked(some[0])}"
        for name, found in self.giveaways.items():
            if found.in_wording:
                yield (
                    f"the answer is among the words of prompt {name!r} itself in"
                    f" {self._share(found.in_wording)}, as choices are"
                )
        if self.dataset.templates and self.builtin:
            yield f"built-in prompts that fit too, by --prompt: {', '.join(self.builtin)}"
        if self.origin:
            yield (
                "wordings to train in:"
                f" {len(self.dataset.training) or 'none, so give some by kgbench train --template'}"
            )
        if self.tokenizer is not None and not self.faults:
            yield f"{self.tokenizer} finds every region and target in its tokens"
            for name, counts in self.answers.items():
                yield f"{name}: {len(counts)} distinct first tokens for {_facts(sum(counts))}"
        yield ""
        yield "next: where are these facts retrieved, and a test of it (docs, Test a finetune)"
        yield from (f"    {line}" for line in self._next())

    def to_json(self) -> dict[str, Any]:
        """The same, and all of it, for programs."""
        first = {}
        for name, (prompt, *_) in self.prompts.items():
            shown = {"text": prompt.text, "target": prompt.target, "spans": dict(prompt.spans)}
            first[name] = shown
        groups = {}
        for group in ("by_field", "first_word", "in_wording"):
            groups[group] = _ids({n: getattr(found, group) for n, found in self.giveaways.items()})
        return {
            "path": str(self.path),
            "origin": list(self.origin),
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
            "training": list(self.dataset.training),
            "builtin_prompts": list(self.builtin),
            "first": first,
            "leaking": groups["by_field"],
            "first_word": groups["first_word"],
            "in_wording": groups["in_wording"],
            "first_token": _ids(self.tokens),
            "first_tokens": {name: list(counts) for name, counts in self.answers.items()},
            "mentions": dict(self.mentions),
            "tokenizer": self.tokenizer,
            "unreadable": {name: dict(faults) for name, faults in self.faults.items()},
            "next": list(self._next()),
        }

    def _few_answers(self) -> Iterator[str]:
        """Where a donor without a fact that knows how often each answer is given would score."""
        from kgbench.stats.prior import SHARE, guess_text, prior_score
        from kgbench.stats.scores import DEFAULT_METRIC

        for name, counts in self.answers.items():
            if prior_score(counts, DEFAULT_METRIC) >= SHARE:
                guess = guess_text(counts, DEFAULT_METRIC)
                yield f"prompt {name!r} has {guess}; kgbench eval takes another metric"

    def _share(self, some: Sequence[Prompt]) -> str:
        return (
            f"{len(some)} of {_facts(len(self.dataset.facts))} "
            f"({_these(prompt.fact.id for prompt in some)})"
        )

    def _next(self) -> Iterator[str]:
        file = shlex.quote(str(self.path))
        for program, prefix in (("kgbench eval", ""), ("python -m pytest", "kgbench-")):
            chosen = (
                ""
                if self.dataset.templates or _suite_fits(self.builtin)
                else f" --{prefix}prompt {','.join(self.builtin)}"
            )
            models = f"--{prefix}recipient path/to/before --{prefix}donor sft=path/to/after"
            yield f"{program} {models} --{prefix}dataset {file}{chosen}"


def import_source(
    place: str | None, options: Mapping[str, Any], tell: Callable[[str], None]
) -> Imported:
    """Import one relation of a public set.

    Args:
        place: A file, a folder or an id on the Hub; None for the source's own.
        options: Those of the command, by name.
        tell: What is to be known of its origin and licence goes here before anything is fetched.

    Raises:
        InputError: Something is wrong; then nothing is written.
    """
    origin = locate_source(
        load_source(options["source"]) if options["source"] else None, place, options["split"]
    )
    source, wanted = named_relation(origin.source, options["relation"])
    given = imports_of(options) or ImportOptions()
    fields, needed = choose_fields(source, given)
    told = tuple(origin.lines())
    for line in told:
        tell(line)
    rows = fetch_rows(origin)
    if options["source"] is None and source.relation is None and given == ImportOptions():
        # Its columns are known by name or not at all, as those of a file of one's own.
        lines = "".join(json.dumps(row, default=str) + "\n" for row in rows)
        imported = _from_lines(
            lines, source.name, {**options, "name": options["name"] or source.name}
        )
        return replace(imported, source=source.name, origin=told)
    relations = read_relations(source, rows, fields, needed)
    imported = _imported(
        choose_relation(source, relations, wanted),
        {**options, "subject": needed[0], "object": needed[1], "column": ()},
        given.templates,
    )
    return replace(imported, origin=told)


def _imported(
    relation: Relation, options: Mapping[str, Any], templates: Mapping[str, str]
) -> Imported:
    """A relation, brought in by the way that a file of one's own takes."""
    imported = _from_lines(relation.to_jsonl(templates), relation.name, options)
    rows = list(relation.facts)  # below the header: that of line 2 comes first
    dropped = {}
    for reason, lines in imported.dropped.items():
        dropped[reason] = [rows[line - 2] for line in lines]
    incomplete = {name: rows[line - 2] for name, line in imported.incomplete.items()}
    return replace(
        imported,
        source=relation.name,
        dropped={**relation.dropped, **dropped},
        incomplete=incomplete,
    )


def _from_lines(lines: str, name: str, options: Mapping[str, Any]) -> Imported:
    """Facts of JSONL that is no file; errors call it by its name."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "facts.jsonl"
        file.write_text(lines, encoding="utf-8")
        try:
            return import_facts(file, options)
        except InputError as error:
            raise InputError(str(error).replace(str(file), name)) from None


def import_facts(file: Path, options: Mapping[str, Any]) -> Imported:
    """Read, check and write.

    Args:
        file: The user's file.
        options: Those of the command, by name.

    Raises:
        InputError: Something is wrong; then nothing is written.
    """
    given = imports_of(options) or ImportOptions()
    table = read_fact_table(file, given)
    name = _name(table, options["name"])
    path = _target(file, name, options)
    whole = load_dataset(str(file), given)
    kept = whole.subset(fact.id for fact in whole.facts[: options["limit"]])
    dataset = replace(kept, name=name)
    builtin = prompts_of_builtins(dataset)
    prompts = _usable(file, dataset, builtin)
    given_away = {name: find_giveaways(dataset, some) for name, some in prompts.items()}
    refuse_leaks(str(file), given_away, len(dataset.facts))
    faults, tokens, answers = _tokenized(prompts, options["tokenizer"])
    write_dataset(dataset, path, options["force"])
    return Imported(
        source=str(file),
        path=path,
        dataset=dataset,
        dropped=left_out(table),
        incomplete=table.incomplete,
        beyond=len(whole.facts) - len(kept.facts),
        prompts=prompts,
        builtin=tuple(builtin),
        giveaways=given_away,
        mentions={name: subject_mentions(dataset, name) for name in prompts},
        tokenizer=options["tokenizer"],
        faults=faults,
        tokens={name: _unreported(some, given_away[name]) for name, some in tokens.items()},
        answers=answers,
    )


def _name(table: FactTable, given: str | None) -> str:
    if given is not None and not given.strip():
        raise InputError("--name: expected a name that is not empty")
    return table.name if given is None else given.strip()


def _target(file: Path, name: str, options: Mapping[str, Any]) -> Path:
    """Where to write, having checked that it may be written."""
    path: Path = options["output"] or Path(f"{name}.jsonl")
    if options["output"] is None and path.name != f"{name}.jsonl":
        raise InputError(
            f"the name {name!r} cannot be that of a file here; say by -o OUT.jsonl where the facts "
            "go"
        )
    if path.exists() and path.samefile(file):
        raise InputError(
            f"{path} is the file that is read; give another one to write to by -o, or another "
            "--name"
        )
    check_target(path, options["force"])
    return path


def _usable(
    file: Path, dataset: Dataset, builtin: Mapping[str, Sequence[Prompt]]
) -> Mapping[str, Sequence[Prompt]]:
    """The prompts that an evaluation of these facts would ask."""
    own = {name: load_prompts(dataset, [name]) for name in dataset.templates}
    found = own or builtin
    if not found:
        subject = dataset.subject if dataset.subject.isidentifier() else "subject"
        example = shlex.quote(
            f"ask=Q: What is the {escaped(dataset.object)} {{P:of}} {{{subject}}}? A:"
        )
        raise InputError(
            f"{file}: no built-in prompt can be filled from the fields "
            f"{', '.join(dataset.fields)}; give a template of your own, such as "
            f"--template {example}, or rename columns by --column FIELD=COLUMN to the fields of a "
            "prompt in `kgbench ls prompts`"
        )
    return found


def _suite_fits(builtin: Sequence[str]) -> bool:
    """Whether the facts can fill the default prompts, asked of a data set without its own."""
    from kgbench.runner import Spec
    from kgbench.runner.workload import load_suite

    return set(load_suite(Spec.suite).prompts) <= set(builtin)


def _encoder(name: str) -> Encoder:
    """The encoder of a pair's tokenizer, or of a checkpoint's.

    Raises:
        UnknownNameError: The name is nearly that of a pair.
        ModelError: The tokenizer is not found, does not load, or cannot be used.
    """
    from kgbench.models import catalog
    from kgbench.models.checkpoints import locate
    from kgbench.models.encoding import Encoder
    from kgbench.models.loading import read_tokenizer

    pairs = catalog.pair_names()
    if name not in pairs and not Path(name).is_dir() and get_close_matches(name, pairs, cutoff=0.8):
        hint = "Or give a directory, or a Hub id such as owner/name."
        raise UnknownNameError("tokenizer", name, catalog.shipped(), hint)
    tokenizer = read_tokenizer(locate(catalog.entry(name).recipient if name in pairs else name))
    try:
        return Encoder(tokenizer)
    except ModelError as error:
        raise ModelError(f"{name}: {error}") from None


def _tokenized(
    prompts: Mapping[str, Sequence[Prompt]], tokenizer: str | None
) -> tuple[
    Mapping[str, Mapping[str, str]], Mapping[str, Sequence[Prompt]], Mapping[str, Sequence[int]]
]:
    """By template, what the tokenizer makes of its prompts.

    Returns:
        Unreadable ones with the reason, those that hold the answer's token, and how often each
        first token is the answer.
    """
    if tokenizer is None:
        return {}, {}, {}
    from kgbench.stats.prior import answer_counts

    encoder = _encoder(tokenizer)
    faults: dict[str, dict[str, str]] = {}
    found: dict[str, list[Prompt]] = {}
    targets: dict[str, list[int]] = {}
    for prompt in chain.from_iterable(prompts.values()):
        try:
            encoded = encoder(prompt)
        except RegionError as error:
            faults.setdefault(prompt.name, {})[prompt.fact.id] = str(error)
        else:
            targets.setdefault(prompt.name, []).append(encoded.target)
            if encoded.target in encoded.ids:
                found.setdefault(prompt.name, []).append(prompt)
    return faults, found, {name: answer_counts(ids) for name, ids in targets.items()}


def _unreported(some: Sequence[Prompt], given_away: Giveaways) -> Sequence[Prompt]:
    """Those that are in no group yet."""
    reported = set()
    for group in (given_away.by_field, given_away.in_wording, given_away.first_word):
        reported |= {prompt.fact.id for prompt in group}
    return [prompt for prompt in some if prompt.fact.id not in reported]


def _numbers(unit: str, numbers: Sequence[int]) -> str:
    return f"{unit}{'s' if len(numbers) > 1 else ''} {_these(map(str, numbers))}"


def _facts(number: int) -> str:
    return f"{number} fact{'' if number == 1 else 's'}"


def _ids(found: Mapping[str, Sequence[Prompt]]) -> dict[str, list[str]]:
    ids = {}
    for name, some in found.items():
        if some:
            ids[name] = [prompt.fact.id for prompt in some]
    return ids


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
