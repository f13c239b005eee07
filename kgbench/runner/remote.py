"""Localizers of third parties as data: what a child process reports that they give.

A child gets questions: no answers but those that a method is to know. It returns treatments, or
scores of sites, as JSON and safetensors, and the parent measures: what a method does to its own
process changes no score. To verify a record it moreover gets the pair under another name, in which
answers are exchanged (`kgbench.models.renaming`): a method that looks answers up gives those of
others.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product, starmap
from pathlib import Path
from secrets import randbits
from typing import Annotated, Any, Literal, NamedTuple, NoReturn

from pydantic import Field, NonNegativeFloat
from safetensors.torch import load_file, save_file
from torch import Tensor

from kgbench.data import Prompt
from kgbench.engine import Budget, Treatment
from kgbench.engine.edits import Add, Copy, Cut, Edit, Hook, SourceRun, Values, Write
from kgbench.engine.engine import choosing
from kgbench.engine.treatment import misfit
from kgbench.errors import InputError, NotApplicableError
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
from kgbench.models.renaming import exchanged_answers, renamed_pair, unanswered
from kgbench.progress import Progress, numbered
from kgbench.records import Strict, write_whole
from kgbench.runner.guard import guarded
from kgbench.runner.job import Job, Pairs
from kgbench.runner.measure import GROUP, Count, chunks, counted, drawn, now, score_sites, treated
from kgbench.runner.spec import PAIR, Held, Settings, Spec
from kgbench.runner.third_party import Method, isolated
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
    measured: frozenset[str] | None = None
    """Facts that all draws of a random method are needed of, and not the first alone; or all."""


@dataclass(frozen=True)
class Request:
    """All that a child gets."""

    localizer: str
    arguments: Mapping[str, str]
    seed: int
    pair: Spec
    """Names the models alone."""
    settings: Settings
    alias: str
    """Name of the pair."""
    exchange: Mapping[int, int]
    """Tokens that are exchanged in the heads."""
    prompts: tuple[tuple[Prompt, Encoded], ...]
    """Without the answers where these are withheld, and never with an answer's token."""
    stages: tuple[Stage, ...]


def request_of(
    job: Job, method: Method, exchanged: bool = False, measured: Iterable[str] | None = None
) -> Request:
    """What a child is asked for a job.

    Args:
        job: The job, of the localizer as it declares itself.
        method: The declaration.
        exchanged: Whether the pair has another name and exchanged answers, drawn now.
        measured: Ids of the facts that are measured; by default all.
    """
    alias, exchange, prompts = job.pair.name, dict[int, int](), job.all_prompts
    if exchanged:
        alias = f"pair-{randbits(32):08x}"
        exchange, prompts = exchanged_answers(job.pair, prompts, randbits(32))
    intervenes = method.kind == InterventionLocalizer.kind
    questions = []
    for prompt in prompts:
        tokens = replace(job.pair.encoded(prompt), target=-1)
        if intervenes and "answer" not in method.needs:
            prompt = replace(prompt, fact=job.pair.question(prompt).fact, target="")
        questions.append((prompt, tokens))
    stages = list(map(Stage, job.halves if job.ranks else ()))
    if intervenes:
        facts = frozenset(prompt.fact.id for prompt in prompts)
        grafts = tuple(label for label, graft in job.grafts.items() if isinstance(graft, Graft))
        stages.insert(0, Stage(facts, grafts, facts if measured is None else frozenset(measured)))
    return Request(
        job.spec.localizer,
        method.arguments,
        job.spec.seed,
        Spec(**{name: getattr(job.spec, name) for name in (*PAIR, "dtype")}),
        replace(job.settings, on_record=None),
        alias,
        exchange,
        tuple(questions),
        tuple(stages),
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


class _Answer(Strict):
    """What a method gave in a stage, as JSON; constants are in a safetensors file, by number."""

    prompts: frozenset[str]
    draws: Annotated[int, Field(gt=0, lt=1 << 16)] = 1
    cells: Mapping[str, Mapping[str, tuple[int, ...] | str]] = {}
    """By graft and prompt the number of each draw's row, or why there is none."""
    units: Mapping[str, tuple[tuple[str, tuple[Site, ...], int | None], ...]] = {}
    """By prompt, of a scan."""
    scores: tuple[tuple[Site, float], ...] = ()
    reason: str | None = None
    """Why sites are not ranked."""
    spent: Mapping[Literal["forwards", "token_rows", "seconds"], NonNegativeFloat]
    nodes: tuple[_Treatment | tuple[int, ...], ...]
    """Treatments, and rows of such by their numbers; each of those before it."""


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
    loaded = Pairs().load(request.pair, request.settings)
    pair = renamed_pair(loaded, request.alias, request.exchange)
    prompts = []
    for prompt, tokens in request.prompts:
        prompts.append(prompt if prompt.target else unanswered(pair, [prompt], [tokens])[0])
    budget = Budget.on(pair.device, pair.width, request.settings.batch_size)
    for number, stage in enumerate(request.stages):
        if (path := _written(folder, number)).exists():
            continue
        part = [prompt for prompt in prompts if prompt.fact.id in stage.facts]
        report = numbered(progress, number + 1, len(request.stages))
        writer = Writer(method.name)
        with (
            choosing(request.settings.executor, budget),
            guarded(method, request.localizer, pair, lambda: None),
        ):
            answer = answer_of(method, pair, part, stage, writer, report)
        writer.write(path, answer)
    return True


def answer_of(
    method: AbstractLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    stage: Stage,
    writer: Writer,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """What a method gives in a stage, and what it spent; as JSON but for the treatments."""

    def report(count: Count) -> None:
        if progress is not None:
            progress(count.forwards, 0, "scores" if stage.grafts is None else "treatments")

    answer: dict[str, Any] = {"prompts": list(map(key_of, prompts))}
    started = now(pair)
    with counted(pair, report) as count:
        if isinstance(method, InterventionLocalizer):
            fitted = method.fitted(pair, asked(method, pair, prompts))
            draws = drawn(method, fitted)
            answer |= {"draws": len(draws), "cells": {}, "units": {}}
        try:
            if isinstance(method, InterventionLocalizer):
                _treat(fitted, draws, pair, prompts, stage, writer, answer)
            else:
                answer["scores"] = list(score_sites(method, pair, prompts).items())
        except NotApplicableError as error:
            answer["reason"] = str(error)
        answer["spent"] = {**vars(count), "seconds": now(pair) - started}
    return answer


def _treat(
    fitted: InterventionLocalizer,
    draws: Sequence[InterventionLocalizer],
    pair: ModelPair,
    prompts: Sequence[Prompt],
    stage: Stage,
    writer: Writer,
    answer: Mapping[str, Any],
) -> None:
    """Add the treatments of a stage to its answer, and the units of a scan."""
    size, groups = PROMPTS, alike(pair, prompts)
    if stage.grafts is not None:  # as they are measured
        by_template = groupby(prompts, lambda prompt: prompt.name)
        size, groups = GROUP, [list(group) for _, group in by_template]
    for group in groups:
        grafts = tuple(map(parse_graft, stage.grafts or ()))
        if stage.grafts is None:
            units = fitted.units(pair, asked(fitted, pair, group))
            grafts = measured_grafts(fitted, units)
            listed = [(str(unit.graft), unit.sites, unit.minus) for unit in units]
            answer["units"].update(dict.fromkeys(map(key_of, group), listed))
        for graft, part in product(grafts, chunks(group, size)):
            cells = _cells(draws, pair, part, graft, stage.measured, writer)
            answer["cells"].setdefault(str(graft), {}).update(cells)


def _cells(
    draws: Sequence[InterventionLocalizer],
    pair: ModelPair,
    prompts: Sequence[Prompt],
    graft: Graft,
    measured: frozenset[str] | None,
    writer: Writer,
) -> dict[str, Any]:
    """By prompt the row of each draw for a graft, or why there is none."""
    cells: dict[str, Any] = {key_of(prompt): [] for prompt in prompts}
    part = prompts
    for draw in draws:
        try:
            rows = treated(draw, pair, part, graft) if part else ()
        except NotApplicableError as error:
            return dict.fromkeys(cells, str(error))
        for prompt, row in zip(part, rows, strict=True):
            cells[key_of(prompt)].append(writer.row(row))
        part = [prompt for prompt in prompts if measured is None or prompt.fact.id in measured]
    return cells


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
            self._rows[row] = len(self._rows)
            self.nodes.append(row)
        return self._rows[row]

    def write(self, path: Path, answer: Mapping[str, Any]) -> None:
        """Write what was given in a stage; the file of JSON comes last, and says that all is there.

        Args:
            path: Of that file.
            answer: All but the treatments that it refers to.
        """
        content = {**answer, "nodes": self.nodes}
        text = json.dumps(content, allow_nan=False, default=_plain).encode()
        self._check_size(len(text))
        save_file(self.tensors, path.with_suffix(".safetensors"))
        write_whole(path, text)

    def _treatment(self, treatment: Treatment) -> int:
        if treatment not in self._treatments:
            node = _Treatment(
                treatment.weights.hex(),
                tuple(map(self._edit, treatment.edits)),
                tuple((cut.layer, cut.keys) for cut in treatment.cuts),
                treatment.scale,
                treatment.heads,
            )
            self._treatments[treatment] = len(self._treatments)
            self.nodes.append(node)
        return self._treatments[treatment]

    def _edit(self, edit: Edit) -> _Edit:
        if type(edit) is Copy:
            basis = None if edit.basis is None else self._value(edit.basis)
            return _Edit("Copy", edit.hook, self.row(edit.source.treatments), basis)
        if type(edit) is Write:
            return _Edit("Write", edit.hook, self._value(edit.value))
        if type(edit) is Add:
            return _Edit("Add", edit.hook, self._value(edit.value))
        self._refuse(
            f"an edit of type {type(edit).__name__}",
            "expected Treatment with Copy, Write, Add and Cut",
        )

    def _value(self, value: Values) -> int:
        if value not in self._values:
            number = self._values[value] = len(self._values)
            tensor = value.tensor.detach().cpu().contiguous().clone()
            self._bytes += tensor.nbytes
            self._check_size(self._bytes)
            self.tensors[str(number)] = tensor
        return self._values[value]

    def _check_size(self, size: int) -> None:
        if size > LIMIT:
            self._refuse(
                f"more than {LIMIT >> 30} GiB",
                "give fewer facts (--limit), or in Python the class, which runs in the same "
                "process (kgbench.evaluate(..., localizer=CLASS))",
            )

    def _refuse(self, what: str, remedy: str) -> NoReturn:
        raise InputError(
            f"localizer {self.method!r}: its treatments hold {what}, and cannot be handed on as "
            f"data: {remedy}"
        )


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
) -> Given:
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
    if not answered(request, folder):
        isolated(request.localizer, give, request, folder, progress=progress, pairs=pairs)
    return Given(folder, method.name)


def answered(request: Request, folder: Path) -> bool:
    """Whether all that is asked is in a folder."""
    return all(_written(folder, number).exists() for number in range(len(request.stages)))


class Given:
    """What a child gave.

    Args:
        folder: Where it wrote that.
        method: The method's name.

    Raises:
        InputError: It is no answer to a request; the file is deleted, so that the next run asks
            again.
    """

    def __init__(self, folder: Path, method: str) -> None:
        self.method = method
        self.stages: list[_Answer] = []
        self._rows: list[Sequence[SourceRun]] = []
        self._fitting = set[SourceRun]()
        while (path := _written(folder, len(self.stages))).exists():
            try:
                answer, rows = _read(path)
            except Exception as error:  # of whatever a stranger wrote
                path.unlink()
                raise self._refusal(f"{path}: {type(error).__name__}: {error}") from error
            self.stages.append(answer)
            self._rows.append(rows)

    def stage(self, prompts: Sequence[Prompt]) -> int:
        """The stage of some prompts."""
        keys = frozenset(map(key_of, prompts))
        for number, stage in enumerate(self.stages):
            if stage.prompts == keys:
                return number
        raise self._refusal("it was not asked about these prompts")

    def treatments(
        self, pair: ModelPair, stage: int, draw: int, prompts: Sequence[Prompt], graft: str
    ) -> Treatments:
        """Treatments of some prompts.

        Raises:
            InputError: There are none, or none that the models could run with.
            NotApplicableError: The method declined.
        """
        treatments = []
        for prompt in prompts:
            try:
                numbers = self.stages[stage].cells[graft][key_of(prompt)]
                if isinstance(numbers, str):
                    raise NotApplicableError(numbers)
                run = self._rows[stage][numbers[draw]]
            except LookupError as error:
                why = f"no treatments of {graft!r} in fact {prompt.fact.id}"
                raise self._refusal(why) from error
            row = run.treatments
            if run not in self._fitting:
                if wrong := next(filter(None, (misfit(pair, of, len(row)) for of in row)), None):
                    raise self._refusal(f"{wrong} in fact {prompt.fact.id}")
                self._fitting.add(run)
            treatments.append(row)
        return treatments

    def _refusal(self, why: str) -> InputError:
        return InputError(
            f"localizer {self.method!r}: its process gave what are no treatments or scores ({why})"
        )


def _read(path: Path) -> tuple[_Answer, list[SourceRun]]:
    """A stage, and its rows by number."""
    tensors = path.with_suffix(".safetensors")
    for file in (path, tensors):
        if file.stat().st_size > 2 * LIMIT:
            raise ValueError(f"{file.name} has more than {2 * LIMIT >> 30} GiB")
    answer = _Answer.model_validate_json(path.read_bytes())
    values = {int(number): Values(tensor) for number, tensor in load_file(tensors).items()}
    treatments: list[Treatment] = []
    rows: list[SourceRun] = []
    for node in answer.nodes:
        if not isinstance(node, _Treatment):
            rows.append(SourceRun([treatments[number] for number in node]))
            continue
        edits = list[Edit]()
        for kind, hook, number, basis in node.edits:
            if kind == "Copy":
                edits.append(Copy(hook, rows[number], None if basis is None else values[basis]))
            else:
                edits.append((Write if kind == "Write" else Add)(hook, values[number]))
        cuts = tuple(starmap(Cut, node.cuts))
        weights = bytes.fromhex(node.weights)
        treatments.append(Treatment(weights, tuple(edits), cuts, node.scale, node.heads))
    return answer, rows


@dataclass(frozen=True)
class Remote(AbstractLocalizer):
    """A localizer of a third party as it declares itself, without its code."""

    method: Method
    given: Given | None = None
    """None before it was asked."""

    def __post_init__(self) -> None:
        """Declare by the instance what other localizers declare by their class."""
        for name in ("name", "version", "kind", "floor", "needs", "baseline", "scanned"):
            vars(self)[name] = getattr(self.method, name)

    def parameters(self) -> dict[str, Any]:
        """As it declares them."""
        return dict(self.method.parameters)

    @property
    def answers(self) -> Given:
        """What it gave."""
        assert self.given is not None
        return self.given

    def spent(self, prompts: Sequence[Prompt]) -> Mapping[str, float]:
        """What it cost in its process to answer about some prompts."""
        return self.answers.stages[self.answers.stage(prompts)].spent


class RemoteScorer(Remote, ScoringLocalizer):
    """One that ranks sites."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """As it gave them.

        Raises:
            NotApplicableError: It cannot score sites.
        """
        answer = self.answers.stages[self.answers.stage(prompts)]
        if answer.reason is not None:
            raise NotApplicableError(answer.reason)
        return dict(answer.scores)


@dataclass(frozen=True)
class RemoteIntervention(Remote, InterventionLocalizer):
    """One that intervenes."""

    stage: int = field(default=0, compare=False)
    draw: int = field(default=0, compare=False)

    def fitted(self, pair: ModelPair, prompts: Sequence[Prompt]) -> InterventionLocalizer:
        """As it was fitted on these prompts."""
        return replace(self, stage=self.answers.stage(prompts))

    def variants(self) -> Sequence[InterventionLocalizer]:
        """Its draws."""
        return [replace(self, draw=i) for i in range(self.answers.stages[self.stage].draws)]

    def units(self, pair: ModelPair, prompts: Sequence[Prompt]) -> Sequence[Unit]:
        """Its measurements of a scan.

        Raises:
            NotApplicableError: It has none.
        """
        answer = self.answers.stages[self.stage]
        if answer.reason is not None:
            raise NotApplicableError(answer.reason)
        units = answer.units[key_of(prompts[0])]
        return [Unit(parse_graft(graft), sites, minus) for graft, sites, minus in units]

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """As it gave them.

        Raises:
            NotApplicableError: It cannot express these sites.
        """
        return self.answers.treatments(pair, self.stage, self.draw, prompts, str(sites))


def declared(method: Method, given: Given | None = None) -> Held:
    """A localizer of a third party as it stands in a specification, with what it gave."""
    of = RemoteIntervention if method.kind == InterventionLocalizer.kind else RemoteScorer
    return Held(localizer=of(method, given), code=method.code)
