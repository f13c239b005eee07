"""Localizers of third parties as data: what a child process reports that they give.

A child gets questions: no answers but those that a method is to know. It returns treatments, or
scores of sites, as JSON and safetensors, and the parent measures: what a method does to its own
process changes no score. To verify a record it moreover gets the pair under another name, in which
answers are exchanged (`kgbench.models.renaming`): a method that looks answers up gives those of
others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product, starmap
from pathlib import Path
from secrets import randbits
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, NonNegativeFloat, PrivateAttr, ValidationError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine import Budget, Treatment
from kgbench.engine.edits import Add, Copy, Cut, Edit, Hook, SourceRun, Values, Write
from kgbench.engine.engine import choosing
from kgbench.engine.treatment import misfit
from kgbench.errors import InputError, NotApplicableError, first_fault
from kgbench.localizers import (
    AbstractLocalizer,
    InterventionLocalizer,
    ScoringLocalizer,
    Treatments,
    Unit,
    create,
)
from kgbench.localizers._base import asked
from kgbench.localizers._scan import PROMPTS, alike, measured_grafts
from kgbench.models.encoding import Encoded
from kgbench.models.pair import ModelPair
from kgbench.models.renaming import exchanged_answers, renamed_pair
from kgbench.progress import Progress
from kgbench.readouts import readout_named
from kgbench.records import ReadoutRef, Strict, write_whole
from kgbench.registry import told
from kgbench.runner.job import Job, Pairs
from kgbench.runner.measure import GROUP, Count, chunks, counted, drawn, now, score_sites, treated
from kgbench.runner.sources import Sources
from kgbench.runner.spec import Held, Settings
from kgbench.runner.third_party_process import DECLARED, Method, isolated
from kgbench.runner.third_party_watch import guarded
from kgbench.sites import Graft, Site, SiteScores, parse_graft

LIMIT = 1 << 31
"""Bytes of a file in which a stage is handed on."""


def key_of(prompt: Prompt) -> str:
    """What a prompt is known by on both sides."""
    return json.dumps((prompt.name, prompt.fact.id))


@dataclass(frozen=True)
class Stage:
    """Facts that a method is fitted on, and what it is asked about them."""

    facts: frozenset[str]
    grafts: tuple[str, ...] | None = None
    """Sets of sites that it treats; None where it ranks sites, by its scores or by a scan."""


@dataclass(frozen=True)
class Request:
    """All that a child gets."""

    localizer: str
    """Its name or file."""
    arguments: Mapping[str, str]
    seed: int
    sources: Sources
    """Where the models are."""
    dtype: str
    settings: Settings
    alias: str
    """Name of the pair."""
    exchange: Mapping[int, int]
    """Tokens that are exchanged in the heads."""
    prompts: tuple[tuple[Prompt, Encoded], ...]
    """Without the answers where these are withheld, and never with an answer's token."""
    stages: tuple[Stage, ...]
    readout: ReadoutRef | None = None
    """What is read of the output, for a method that ranks; None for the first token."""


def request_of(job: Job, method: Method, exchanged: bool = False) -> Request:
    """What a child is asked for a job.

    Args:
        job: The job, of the localizer as it declares itself.
        method: The declaration.
        exchanged: Whether the pair has another name and exchanged answers, drawn now.
    """
    alias, exchange, prompts = job.pair.name, dict[int, int](), job.all_prompts
    intervenes = method.kind == InterventionLocalizer.kind
    readout = None if intervenes else job.identity.readout
    if exchanged:
        alias = f"pair-{randbits(32):08x}"
        if job.readout is None:  # of others the answer is no single token
            exchange, prompts = exchanged_answers(job.pair, prompts, randbits(32))
    questions = []
    for prompt in prompts:
        tokens = job.pair.encoded(prompt).withheld()
        if intervenes and "answer" not in method.needs:
            prompt = replace(prompt, fact=job.pair.question(prompt).fact, target="", data={})
        questions.append((prompt, tokens))
    cases = {prompt.fact.id for prompt in prompts if prompt.group == "on"}  # as in a scan
    stages = [Stage(half & cases) for half in job.halves if job.ranks]
    if intervenes:
        facts = frozenset(prompt.fact.id for prompt in prompts)
        grafts = tuple(label for label, graft in job.grafts.items() if isinstance(graft, Graft))
        stages.insert(0, Stage(facts, grafts))
    return Request(
        job.localizer_name,
        method.arguments,
        job.seed,
        job.sources,
        str(job.pair.dtype).removeprefix("torch."),
        replace(job.settings, on_record=None),
        alias,
        exchange,
        tuple(questions),
        tuple(stages),
        readout,
    )


# ----------------------------------------------------------------------------- between the processes


class _Edit(NamedTuple):
    kind: Literal["Copy", "Write", "Add"]
    hook: Hook
    value: int
    """Number of the row of treatments that is copied from, or of the constant."""
    basis: int | None = None


class _Treatment(NamedTuple):
    weights: str
    edits: tuple[_Edit, ...]
    cuts: tuple[tuple[int, frozenset[int]], ...]
    scale: float
    heads: tuple[tuple[int, int, int], ...]


class _Spent(NamedTuple):
    forwards: NonNegativeFloat
    token_rows: NonNegativeFloat
    seconds: NonNegativeFloat


class Reply(Strict):
    """What a method gave in a stage, as JSON; constants are in a safetensors file, by number."""

    prompts: frozenset[str]
    draws: Annotated[int, Field(gt=0, lt=1 << 16)] = 1
    cells: Mapping[str, Mapping[str, tuple[int, ...] | str]] = {}
    """By graft and prompt the number of each draw's row, or why there is none."""
    units: Mapping[str, tuple[tuple[str, tuple[Site, ...], int | None], ...]] = {}
    """By prompt, of a scan."""
    scores: tuple[tuple[Site, float], ...] = ()
    reason: str | None = None
    """Why there are none of these."""
    spent: _Spent
    nodes: tuple[_Treatment | tuple[int, ...], ...]
    """Treatments, and rows of such by their numbers; each of those before it."""
    _rows: list[SourceRun] = PrivateAttr(default_factory=list)


def _written(folder: Path, number: int) -> Path:
    """The file that is there once a stage is."""
    return folder / f"stage-{number}.json"


# ------------------------------------------------------------------------------------- in the child


def give(request: Request, folder: Path, progress: Progress | None = None) -> bool:
    """Write what a localizer gives into a folder; runs in a process of its own.

    Stages that are there already are left as they are.

    Raises:
        InputError: A treatment cannot be described by data, or is too large; or the localizer
            fails, or changes the models.
    """
    method = create(request.localizer, request.arguments, request.seed)
    loaded = Pairs().load(request.sources, request.settings, request.dtype)
    pair = renamed_pair(loaded, request.alias, request.exchange)
    if (ref := request.readout) is None:
        _give(request, method, pair, folder, progress)
    else:
        with pair.answered_by(readout_named(ref.name, ref.parameters, request.seed).read):
            _give(request, method, pair, folder, progress)
    return True


def _give(
    request: Request,
    method: AbstractLocalizer,
    pair: ModelPair,
    folder: Path,
    progress: Progress | None,
) -> None:
    """The stages that are left, of a pair that reads prompts as the request says."""
    prompts = []
    for prompt, tokens in request.prompts:
        prompts.append(prompt if prompt.target else pair.question(prompt, tokens))
    budget = Budget.on(pair.device, pair.width, request.settings.batch_size)

    def report(count: Count) -> None:
        if progress is not None:
            progress(count.forwards, 0, f"part {number + 1} of {len(request.stages)}")

    for number, stage in enumerate(request.stages):
        if (path := _written(folder, number)).exists():
            continue
        part = [prompt for prompt in prompts if prompt.fact.id in stage.facts]
        writer = Writer(method.name)
        with (
            choosing(request.settings.executor, budget),
            guarded(method, request.localizer, pair, lambda: None),
            counted(pair, report) as count,
        ):
            started = now(pair)
            try:
                reply = reply_of(method, pair, part, stage, writer)
            except NotApplicableError as error:
                reply = {"reason": str(error)}
            spent = (count.forwards, count.token_rows, now(pair) - started)
        writer.write(path, {**reply, "prompts": list(map(key_of, part)), "spent": spent})


def reply_of(
    method: AbstractLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    stage: Stage,
    writer: Writer,
) -> dict[str, Any]:
    """What a method gives in a stage, as JSON but for the treatments.

    Raises:
        NotApplicableError: It gives nothing.
    """
    if not isinstance(method, InterventionLocalizer):
        return {"scores": list(score_sites(method, pair, prompts).items())}
    fitted = method.fitted(pair, asked(method, pair, prompts))
    draws = drawn(method, fitted)
    cells: dict[str, dict[str, Any]] = {}
    units: dict[str, Any] = {}
    size, groups = PROMPTS, alike(pair, prompts)
    if stage.grafts is not None:  # as they are measured
        by_template = groupby(prompts, lambda prompt: prompt.name)
        size, groups = GROUP, [list(group) for _, group in by_template]
    for group in groups:
        grafts = tuple(map(parse_graft, stage.grafts or ()))
        if stage.grafts is None:
            scanned = fitted.units(pair, asked(fitted, pair, group))
            listed = [(str(unit.graft), unit.sites, unit.minus) for unit in scanned]
            units |= dict.fromkeys(map(key_of, group), listed)
            grafts = measured_grafts(fitted, scanned)
        for graft, part in product(grafts, chunks(group, size)):
            keys = list(map(key_of, part))
            try:
                rows = [list(map(writer.row, treated(draw, pair, part, graft))) for draw in draws]
                entries: Any = zip(keys, zip(*rows, strict=True), strict=True)
            except NotApplicableError as error:
                entries = dict.fromkeys(keys, str(error))
            cells.setdefault(str(graft), {}).update(entries)
    return {"draws": len(draws), "cells": cells, "units": units}


class Writer:
    """Treatments as data: each distinct one is written once, after those that it refers to.

    Args:
        method: The method's name.
    """

    def __init__(self, method: str) -> None:
        self.method = method
        self.nodes: list[Any] = []
        self.tensors: dict[str, Tensor] = {}
        self._rows: dict[tuple[int, ...], int] = {}
        self._treatments: dict[Treatment, int] = {}
        self._values: dict[Values, int] = {}
        self._bytes = 0

    def row(self, treatments: Sequence[Treatment]) -> int:
        """The number of a row."""
        row = tuple(map(self._treatment, treatments))
        if row not in self._rows:
            self.nodes.append(row)
        return self._rows.setdefault(row, len(self._rows))

    def write(self, path: Path, reply: Mapping[str, Any]) -> None:
        """Write what was given in a stage; the file of JSON comes last, so that all is there with it.

        Args:
            path: Of that file.
            reply: All but the treatments that it refers to.
        """
        save_file(self.tensors, path.with_suffix(".safetensors"))
        content = {**reply, "nodes": self.nodes}
        write_whole(path, json.dumps(content, allow_nan=False, default=_plain).encode())

    def _treatment(self, treatment: Treatment) -> int:
        if treatment not in self._treatments:
            edits = tuple(map(self._edit, treatment.edits))
            cuts = [(cut.layer, cut.keys) for cut in treatment.cuts]
            content = (treatment.weights.hex(), edits, cuts, treatment.scale, treatment.heads)
            self.nodes.append(content)
        return self._treatments.setdefault(treatment, len(self._treatments))

    def _edit(self, edit: Edit) -> tuple[Any, ...]:
        """Of whichever class: the parent refuses what it does not know."""
        if isinstance(edit, Copy):
            number = self.row(edit.source.treatments)
            basis = None if edit.basis is None else self._value(edit.basis)
            return type(edit).__name__, edit.hook, number, basis
        return type(edit).__name__, edit.hook, self._value(edit.value), None

    def _value(self, value: Values) -> int:
        if value not in self._values:
            self.tensors[str(len(self._values))] = value.tensor.cpu().contiguous().clone()
            self._bytes += value.tensor.nbytes
            if self._bytes > LIMIT:
                raise InputError(
                    f"localizer {self.method!r}: its treatments hold more than {LIMIT >> 30} GiB "
                    "of tensors, and cannot be handed on as data: give fewer facts (--limit), or "
                    "in Python the class, which runs in the same process "
                    "(kgbench.evaluate(..., localizer=CLASS))"
                )
        return self._values.setdefault(value, len(self._values))


def _plain(value: Any) -> Any:
    """Tokens of a cut, or a number of numpy, as JSON has them."""
    return sorted(value) if isinstance(value, frozenset) else value.item()


# ------------------------------------------------------------------------------------ in the parent


def ask(
    request: Request,
    method: Method,
    folder: Path,
    progress: Progress | None = None,
    pairs: Pairs | None = None,
) -> tuple[Reply, ...]:
    """Have a localizer answer in a process of its own.

    Args:
        request: What it is asked.
        method: Its declaration.
        folder: Where its answers are written; those that are there are not asked for again.
        progress: Progress callback.
        pairs: Where models are loaded in this process; they make room.

    Raises:
        InputError: As of `give`; or what the process wrote is no answer.
    """
    isolated(request.localizer, give, request, folder, progress=progress, pairs=pairs)
    return replies_in(folder, method.name)


def answered(request: Request, folder: Path) -> bool:
    """Whether all that is asked is in a folder."""
    return all(_written(folder, number).exists() for number in range(len(request.stages)))


def replies_in(folder: Path, method: str) -> tuple[Reply, ...]:
    """What a child gave.

    Args:
        folder: Where it wrote that.
        method: The method's name.

    Raises:
        InputError: It is no answer to a request; its file is deleted, so that the same command
            asks again.
    """
    replies: list[Reply] = []
    while (path := _written(folder, len(replies))).exists():
        try:
            replies.append(_read(path))
        except Exception as error:  # of whatever a stranger wrote
            path.unlink()
            why = told(error)
            if isinstance(error, ValidationError):
                why = first_fault(error, "reply")
            raise _refusal(method, f"{path}: {why}") from error
    return tuple(replies)


def _refusal(method: str, why: str) -> InputError:
    return InputError(
        f"localizer {method!r}: its process gave what are no treatments or scores ({why})"
    )


def _read(path: Path) -> Reply:
    tensors = path.with_suffix(".safetensors")
    for file in (path, tensors):
        if file.stat().st_size > 2 * LIMIT:
            raise ValueError(f"{file.name} has more than {2 * LIMIT >> 30} GiB")
    reply = Reply.model_validate_json(path.read_bytes())
    values = {int(number): Values(tensor) for number, tensor in load_file(tensors).items()}
    treatments: list[Treatment] = []
    for node in reply.nodes:
        if not isinstance(node, _Treatment):
            reply._rows.append(SourceRun([treatments[number] for number in node]))
            continue
        edits = list[Edit]()
        for kind, hook, number, basis in node.edits:
            if kind == "Copy":
                rows = None if basis is None else values[basis]
                edits.append(Copy(hook, reply._rows[number], rows))
            else:
                edits.append((Write if kind == "Write" else Add)(hook, values[number]))
        cuts = tuple(starmap(Cut, node.cuts))
        weights = bytes.fromhex(node.weights)
        treatments.append(Treatment(weights, tuple(edits), cuts, node.scale, node.heads))
    return reply


@dataclass(frozen=True)
class Remote(AbstractLocalizer):
    """A localizer of a third party as it declares itself, without its code."""

    method: Method
    replies: tuple[Reply, ...] = field(default=(), repr=False)
    """The one that it is fitted on first, in an intervention; none before it was asked."""

    def __post_init__(self) -> None:
        """Declare by the instance what other localizers declare by their class."""
        vars(self).update({name: getattr(self.method, name) for name in DECLARED})

    def parameters(self) -> dict[str, Any]:
        """As it declares them."""
        return dict(self.method.parameters)

    def reply(self, prompts: Sequence[Prompt]) -> Reply:
        """What it gave when it was asked about some prompts.

        Raises:
            InputError: It was not.
            NotApplicableError: It gave nothing.
        """
        keys = frozenset(map(key_of, prompts))
        for reply in self.replies:
            if reply.prompts == keys and reply.reason is not None:
                raise NotApplicableError(reply.reason)
            if reply.prompts == keys:
                return reply
        raise _refusal(self.name, "none about these prompts")

    def spent(self, prompts: Sequence[Prompt]) -> Mapping[str, float]:
        """What it cost in its process to answer about some prompts."""
        return self.reply(prompts).spent._asdict()


class RemoteScorer(Remote, ScoringLocalizer):
    """One that ranks sites."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """As it gave them."""
        return dict(self.reply(prompts).scores)


@dataclass(frozen=True)
class RemoteIntervention(Remote, InterventionLocalizer):
    """One that intervenes."""

    draw: int = field(default=0, compare=False)
    fitting: set[SourceRun] = field(default_factory=set, compare=False, repr=False)
    """Rows that the models can run with."""

    def fitted(self, pair: ModelPair, prompts: Sequence[Prompt]) -> InterventionLocalizer:
        """As it was fitted on these prompts."""
        return replace(self, replies=(self.reply(prompts), *self.replies))

    def variants(self) -> Sequence[InterventionLocalizer]:
        """Its draws."""
        return [replace(self, draw=i) for i in range(self.replies[0].draws)]

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """Its measurements of a scan."""
        units = self.replies[0].units[key_of(prompts[0])]
        return [Unit(parse_graft(graft), sites, minus) for graft, sites, minus in units]

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """As it gave them.

        Raises:
            InputError: It gave none, or none that the models could run with.
            NotApplicableError: It cannot express these sites.
        """
        reply = self.replies[0]
        treatments = []
        for prompt in prompts:
            try:
                numbers = reply.cells[str(sites)][key_of(prompt)]
                if isinstance(numbers, str):
                    raise NotApplicableError(numbers)
                run = reply._rows[numbers[self.draw]]
            except LookupError as error:
                why = f"none of {sites} in fact {prompt.fact.id}"
                raise _refusal(self.name, why) from error
            row = run.treatments
            if run not in self.fitting:
                if wrong := next(filter(None, (misfit(pair, of, len(row)) for of in row)), None):
                    raise _refusal(self.name, f"{wrong} in fact {prompt.fact.id}")
                self.fitting.add(run)
            treatments.append(row)
        return treatments


def declared(method: Method, replies: tuple[Reply, ...] = ()) -> Held:
    """A localizer of a third party as a specification holds it, with what it gave."""
    of = RemoteIntervention if method.kind == InterventionLocalizer.kind else RemoteScorer
    return Held(localizer=of(method, replies), code=method.code)
