"""Localizers of third parties as data: what a child process reports that they give.

A child gets questions: no answers but those that a method is to know. It returns treatments, or
scores of sites, as JSON and safetensors, and the parent measures: what a method does to its own
process changes no score. To verify a record it moreover gets the pair under another name, in which
answers are exchanged (`kgbench.models.renaming`): a method that looks answers up gives those of
others.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from secrets import randbits
from typing import Any, NoReturn, TypeVar, cast

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from kgbench.data import Fact, Prompt
from kgbench.engine import Budget, Treatment
from kgbench.engine.edits import (
    Add,
    Copy,
    Cut,
    Edit,
    Hook,
    SourceRun,
    Values,
    Write,
)
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
from kgbench.progress import Progress
from kgbench.records.journal import write_whole
from kgbench.runner.guard import guarded
from kgbench.runner.job import Job, Pairs
from kgbench.runner.measure import (
    GROUP,
    Count,
    chunks,
    counted,
    drawn,
    now,
    score_sites,
    treated,
)
from kgbench.runner.spec import PAIR, Held, Settings, Spec
from kgbench.runner.third_party import Method, isolated
from kgbench.sites import Graft, Site, SiteScores, parse_graft

TENSORS = 1 << 31
"""Bytes of all tensors in the treatments of a method."""
NODES = 5_000_000
"""Distinct treatments, and rows of them."""
JSON = 1 << 30
"""Bytes of all else."""
_JSON, _TENSORS = "stage-{}.json", "stage-{}.safetensors"
"""Names of a stage's files."""
KINDS = "expected Treatment with Copy, Write, Add and Cut"
FEWER = (
    "give fewer facts (--limit), or in Python the class, which runs in the same process "
    "(kgbench.evaluate(..., localizer=CLASS))"
)
"""What to do about treatments that cannot be handed on."""
SPENT = ("forwards", "token_rows", "seconds")
"""What a stage cost in the child."""

Key = tuple[str, str]
"""Names of a template and of a fact."""


def key_of(prompt: Prompt) -> Key:
    """What a prompt is known by on both sides."""
    return prompt.name, prompt.fact.id


# ------------------------------------------------------------------------------------ what is asked


@dataclass(frozen=True)
class Text:
    """A prompt as a child gets it."""

    name: str
    fact: str
    fields: Mapping[str, str]
    """Of the fact, without the answer where that is withheld."""
    text: str
    spans: Mapping[str, tuple[int, int]]
    target: str | None
    """None where it is withheld."""
    ids: tuple[int, ...]
    regions: Mapping[str, tuple[int, ...]]


@dataclass(frozen=True)
class Stage:
    """Prompts that a method is fitted on, and what it is asked about them."""

    prompts: tuple[int, ...]
    """Places in the request."""
    grafts: tuple[str, ...] = ()
    """Sets of sites that it treats."""
    measured: frozenset[str] = frozenset()
    """Ids of the facts that all draws of a random method are needed of."""
    scores: bool = False
    """Whether it scores sites, or treats each by itself where it intervenes."""


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
    prompts: tuple[Text, ...]
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
    knows = method.kind == ScoringLocalizer.kind or "answer" in method.needs
    texts = tuple(_text(job.pair, prompt, knows) for prompt in prompts)
    stages = []
    if method.kind == InterventionLocalizer.kind:
        grafts = [label for label, graft in job.grafts.items() if isinstance(graft, Graft)]
        facts = {text.fact for text in texts} if measured is None else measured
        stages.append(Stage(tuple(range(len(texts))), tuple(grafts), frozenset(facts)))
    for half in job.halves if job.ranks else ():
        places = [i for i, text in enumerate(texts) if text.fact in half]
        stages.append(Stage(tuple(places), scores=True))
    named = {name: getattr(job.spec, name) for name in (*PAIR, "dtype")}
    return Request(
        job.spec.localizer,
        method.arguments,
        job.spec.seed,
        Spec(**named),
        replace(job.settings, on_record=None),
        alias,
        exchange,
        texts,
        tuple(stages),
    )


def _text(pair: ModelPair, prompt: Prompt, knows: bool) -> Text:
    fact = prompt.fact if knows else pair.question(prompt).fact
    target = prompt.target if knows else None
    tokens = pair.encoded(prompt)
    content = (prompt.name, fact.id, fact.fields, prompt.text, prompt.spans, target)
    return Text(*content, tokens.ids, tokens.regions)


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
    prompts = [_prompt(pair, text) for text in request.prompts]
    settings = request.settings
    budget = Budget.on(pair.device, pair.width, settings.batch_size)
    made = list[int]()

    def discard() -> None:
        for number in made:
            _written(folder, number).unlink(missing_ok=True)

    with (
        choosing(settings.executor, budget),
        guarded(method, request.localizer, pair, discard),
    ):
        for number, stage in enumerate(request.stages):
            if _written(folder, number).exists():
                continue
            stage_prompts, pool = [prompts[place] for place in stage.prompts], _Pool(method.name)
            what = "scores" if stage.scores else "treatments"
            doing = f"{what}, part {number + 1} of {len(request.stages)}"
            pool.write(
                folder, number, _answer(method, pair, stage_prompts, stage, pool, progress, doing)
            )
            made.append(number)
    return True


def _written(folder: Path, number: int) -> Path:
    """The file that is there once a stage is."""
    return folder / _JSON.format(number)


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


def leave_out_damaged(folder: Path, stages: int) -> None:
    """Leave out answers of an earlier process that do not read, with a warning.

    Args:
        folder: Where they are.
        stages: How many are asked for; any of them may be missing.
    """
    for number in range(stages):
        if not (path := _written(folder, number)).exists():
            continue
        try:
            _read(folder, number)
        except _UNREADABLE as error:
            warnings.warn(
                f"part of an unfinished run is left out and computed anew: {path} is damaged "
                f"({type(error).__name__})",
                stacklevel=2,
            )
            path.unlink(missing_ok=True)


def _prompt(pair: ModelPair, text: Text) -> Prompt:
    fact = Fact(text.fact, text.fields)
    prompt = Prompt(text.name, fact, text.text, text.target or "", text.spans)
    # The id of the answer stays with the parent.
    tokens = Encoded(text.ids, text.regions, target=-1)
    return prompt if text.target else unanswered(pair, [prompt], [tokens])[0]


def _answer(
    method: AbstractLocalizer,
    pair: ModelPair,
    prompts: Sequence[Prompt],
    stage: Stage,
    pool: _Pool,
    progress: Progress | None = None,
    doing: str = "",
) -> dict[str, Any]:
    """What a method gives in a stage, and what it spent, as JSON."""

    def report(count: Count) -> None:
        if progress is not None:
            progress(count.forwards, 0, doing)

    with counted(pair, report) as count:
        started = now(pair)
        if isinstance(method, InterventionLocalizer):
            fitted = method.fitted(pair, asked(method, pair, prompts))
            listed = drawn(method, fitted)
            if not stage.scores:
                started = now(pair)  # as everywhere, fitting is no part of the cost
            try:
                answer = _treatments(fitted, listed, pair, prompts, stage, pool)
            except NotApplicableError as error:  # of a scan
                answer = {"reason": str(error)}
        else:
            answer = _scores(method, pair, prompts)
        spent = (count.forwards, count.token_rows, now(pair) - started)
    keys = list(map(key_of, prompts))
    return {"draws": 1, **answer, "prompts": keys, "spent": dict(zip(SPENT, spent, strict=True))}


def _scores(
    method: AbstractLocalizer, pair: ModelPair, prompts: Sequence[Prompt]
) -> dict[str, Any]:
    try:
        scores = score_sites(method, pair, prompts)
    except NotApplicableError as error:
        return {"reason": str(error)}
    return {"scores": [[*site, score] for site, score in scores.items()]}


def _treatments(
    fitted: InterventionLocalizer,
    draws: Sequence[InterventionLocalizer],
    pair: ModelPair,
    prompts: Sequence[Prompt],
    stage: Stage,
    pool: _Pool,
) -> dict[str, Any]:
    cells: dict[str, dict[str, Any]] = {}
    groups = []
    if not stage.scores:
        by_name: dict[str, list[Prompt]] = {}
        for prompt in prompts:
            by_name.setdefault(prompt.name, []).append(prompt)
        for text in stage.grafts:
            graft, cells[text] = parse_graft(text), {}
            for group_prompts in by_name.values():
                for part in chunks(group_prompts, GROUP):
                    pool.ask(draws, pair, part, graft, cells[text], stage.measured)
    else:
        for group in alike(pair, prompts):
            units = fitted.units(pair, asked(fitted, pair, group))
            groups.append([list(map(key_of, group)), [_unit_json(unit) for unit in units]])
            for graft in measured_grafts(fitted, units):
                for part in chunks(group, PROMPTS):
                    pool.ask(draws, pair, part, graft, cells.setdefault(str(graft), {}))
    return {"draws": len(draws), "cells": cells, "groups": groups}


def _unit_json(unit: Unit) -> list[Any]:
    return [str(unit.graft), list(map(list, unit.sites)), unit.minus]


class _Pool:
    """Treatments as JSON: each distinct one is written once, after those that it refers to."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.nodes: list[Any] = []
        self.tensors: dict[str, Tensor] = {}
        self._places: dict[object, int] = {}
        self._bytes = 0

    def ask(
        self,
        draws: Sequence[InterventionLocalizer],
        pair: ModelPair,
        prompts: Sequence[Prompt],
        graft: Graft,
        cells: dict[str, Any],
        measured: frozenset[str] | None = None,
    ) -> None:
        """Add what draws of a method give for a graft: places of rows, or a reason, by prompt."""
        for number, draw in enumerate(draws):
            measured_prompts = prompts
            if number and measured is not None:
                measured_prompts = [prompt for prompt in prompts if prompt.fact.id in measured]
            if not measured_prompts:
                continue
            try:
                rows = treated(draw, pair, measured_prompts, graft)
            except NotApplicableError as error:
                cells.update(dict.fromkeys(map(_joined, prompts), str(error)))
                return
            for prompt, row in zip(measured_prompts, rows, strict=True):
                cells.setdefault(_joined(prompt), []).append(self.row(row))

    def write(self, folder: Path, number: int, answer: Mapping[str, Any]) -> None:
        """Write what was given in a stage, with the treatments that it refers to."""
        save_file(self.tensors, folder / _TENSORS.format(number))
        text = json.dumps({**answer, "nodes": self.nodes}, allow_nan=False)
        write_whole(_written(folder, number), text.encode())  # it says that all is there

    def row(self, treatments: Sequence[Treatment]) -> int:
        """The place of a row."""
        places = tuple(map(self._treatment, treatments))
        return self._place(places, list(places))

    def _treatment(self, treatment: Treatment) -> int:
        if type(treatment) is not Treatment:
            self._refuse(f"a {type(treatment).__name__}")
        if (place := self._places.get(treatment)) is not None:
            return place
        edits = [self._edit(edit) for edit in treatment.edits]
        cuts = [[int(cut.layer), sorted(map(int, cut.keys))] for cut in treatment.cuts]
        heads = [list(map(int, head)) for head in treatment.heads]
        node = [treatment.weights.hex(), edits, cuts, float(treatment.scale), heads]
        return self._place(treatment, node)

    def _edit(self, edit: Edit) -> list[Any]:
        hook = int(edit.hook.layer), edit.hook.point
        if type(edit) is Copy and type(edit.source) is SourceRun:
            basis = None if edit.basis is None else self._tensor(edit.basis)
            return ["copy", *hook, self.row(edit.source.treatments), basis]
        if type(edit) is Write or type(edit) is Add:
            return [type(edit).__name__.lower(), *hook, self._tensor(edit.value), None]
        self._refuse(f"an edit of type {type(edit).__name__}")

    def _tensor(self, value: Values) -> int:
        if type(value) is not Values:
            self._refuse(f"a value of type {type(value).__name__}")
        if (place := self._places.get(value)) is None:
            tensor = value.tensor.detach().cpu().contiguous().clone()
            self._bytes += tensor.nbytes
            if self._bytes > TENSORS:
                self._refuse(f"more than {TENSORS >> 30} GiB of tensors", FEWER)
            place = self._place(value, None)
            self.tensors[str(place)] = tensor
        return place

    def _place(self, key: object, node: Any) -> int:
        if (place := self._places.get(key)) is None:
            place = self._places[key] = len(self.nodes)
            self.nodes.append(node)
            if place > NODES:
                self._refuse(f"more than {NODES:,} distinct treatments", FEWER)
        return place

    def _refuse(self, what: str, remedy: str = KINDS) -> NoReturn:
        raise InputError(
            f"localizer {self.name!r}: its treatments hold {what}, and cannot be handed on as data: "
            f"{remedy}"
        )


def _joined(prompt: Prompt) -> str:
    return json.dumps(key_of(prompt))


# ------------------------------------------------------------------------------------ in the parent


@dataclass(frozen=True)
class _Answer:
    """What a method gave in a stage."""

    prompts: frozenset[Key]
    draws: int
    cells: Mapping[str, Mapping[Key, Sequence[int] | str]]
    """By graft and prompt the row of each draw, or why there is none."""
    units: Mapping[Key, Sequence[Unit]]
    scores: SiteScores | str | None
    """Or why there are none."""
    spent: Mapping[str, float]
    """As its process says, by `SPENT`."""
    nodes: Sequence[Any]
    """Tensors, treatments and rows of such."""


class Given:
    """What a child gave.

    Args:
        folder: Where it wrote that.
        method: The method's name.

    Raises:
        InputError: It is no answer to a request.
    """

    def __init__(self, folder: Path, method: str) -> None:
        self.method = method
        self.stages: list[_Answer] = []
        self._fitting = set[tuple[int, int]]()
        try:
            while _written(folder, len(self.stages)).exists():
                self.stages.append(_read(folder, len(self.stages)))
        except _UNREADABLE as error:
            raise self._none(f"{type(error).__name__}: {error}") from error

    def stage(self, prompts: Sequence[Prompt]) -> int:
        """The stage of some prompts."""
        keys = frozenset(map(key_of, prompts))
        for number, stage in enumerate(self.stages):
            if stage.prompts == keys:
                return number
        raise self._none("it was not asked about these prompts")

    def rows(
        self, pair: ModelPair, stage: int, draw: int, prompts: Sequence[Prompt], graft: str
    ) -> Treatments:
        """Treatments of some prompts.

        Raises:
            InputError: There are none, or none that the models could run with.
            NotApplicableError: The method declined.
        """
        stage_rows, rows = self.stages[stage], []
        cells = stage_rows.cells.get(graft, {})
        for prompt in prompts:
            places = cells.get(key_of(prompt))
            if isinstance(places, str):
                raise NotApplicableError(places)
            if places is None or not draw < len(places):
                raise self._none(f"it has no treatments of {graft!r} in fact {prompt.fact.id}")
            row, place = stage_rows.nodes[places[draw]], (stage, places[draw])
            if place not in self._fitting:
                if wrong := next(filter(None, (misfit(pair, of, len(row)) for of in row)), None):
                    raise self._none(f"{wrong} in fact {prompt.fact.id}")
                self._fitting.add(place)
            rows.append(row)
        return cast("Treatments", rows)

    def _none(self, why: str) -> InputError:
        return InputError(
            f"localizer {self.method!r}: its process gave what are no treatments or scores ({why})"
        )


_UNREADABLE = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    OSError,
    SafetensorError,
    RecursionError,
)


def _read(folder: Path, number: int) -> _Answer:
    path, tensors = _written(folder, number), folder / _TENSORS.format(number)
    for file, most in ((path, JSON), (tensors, TENSORS + JSON)):
        if file.stat().st_size > most:
            raise ValueError(f"{file.name} has more than {most >> 20} MiB")
    content = json.loads(path.read_text(encoding="utf-8"))
    return _stage(content, _nodes(content["nodes"], load_file(tensors)))


def _nodes(rows: Sequence[Any], tensors: Mapping[str, Tensor]) -> list[Any]:
    """Tensors, treatments and rows of such, each made of those before it."""
    nodes: list[Any] = []
    for place, node in enumerate(rows):
        if node is None:
            nodes.append(Values(tensors[str(place)]))
        elif node and isinstance(node[0], str):
            nodes.append(_treatment(node, nodes))
        else:
            nodes.append(tuple(_earlier(nodes, each, Treatment) for each in node))
    return nodes


T = TypeVar("T")


def _earlier(nodes: Sequence[Any], place: int, kind: type[T]) -> T:
    node = nodes[place]
    if place < 0 or not isinstance(node, kind):
        raise TypeError(f"{place} is no {kind.__name__}")
    return node


_CONSTANT: Mapping[str, type[Write] | type[Add]] = {"write": Write, "add": Add}
"""Edits by a constant, by their name in JSON."""


def _treatment(node: Sequence[Any], nodes: Sequence[Any]) -> Treatment:
    weights, inputs, cut, scale, heads = node
    edits = list[Edit]()
    for kind, layer, point, at, basis in inputs:
        hook = Hook(int(layer), str(point))
        if kind == "copy":
            source = SourceRun(_earlier(nodes, at, tuple))
            rows = None if basis is None else _earlier(nodes, basis, Values)
            edits.append(Copy(hook, source, rows))
        else:
            edits.append(_CONSTANT[kind](hook, _earlier(nodes, at, Values)))
    if not math.isfinite(scale):
        raise ValueError(f"the scale {scale}")
    cuts = tuple(Cut(int(layer), frozenset(map(int, keys))) for layer, keys in cut)
    places = tuple((int(slot), int(head), int(of)) for slot, head, of in heads)
    return Treatment(bytes.fromhex(weights), tuple(edits), cuts, float(scale), places)


def _stage(content: Mapping[str, Any], nodes: Sequence[Any]) -> _Answer:
    cells: dict[str, dict[Key, Sequence[int] | str]] = {}
    for graft, by_prompt in content.get("cells", {}).items():
        cells[graft] = {_key(json.loads(text)): rows for text, rows in by_prompt.items()}
    units: dict[Key, Sequence[Unit]] = {}
    for keys, listed in content.get("groups", ()):
        scored_units = [
            Unit(parse_graft(graft), tuple(map(_site, s)), minus) for graft, s, minus in listed
        ]
        units.update(dict.fromkeys(map(_key, keys), scored_units))
    scores: SiteScores | str | None = content.get("reason")
    if "scores" in content:
        scores = {_site(row[:3]): float(row[3]) for row in content["scores"]}
    prompts = frozenset(map(_key, content["prompts"]))
    spent = {name: float(content["spent"][name]) for name in SPENT}
    if not all(0 <= value < math.inf for value in spent.values()):
        raise ValueError(f"the cost {spent}")
    return _Answer(prompts, int(content["draws"]), cells, units, scores, spent, nodes)


def _key(values: Sequence[str]) -> Key:
    name, fact = values
    return name, fact


def _site(values: Sequence[Any]) -> Site:
    layer, component, region = values
    return Site(layer, str(component), str(region))


@dataclass(frozen=True)
class Remote(AbstractLocalizer):
    """A localizer of a third party, without its code."""

    method: Method
    given: Given | None = None
    """None before it was asked."""

    @property
    def code(self) -> str:
        """Hash of its code."""
        return self.method.code

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


@dataclass(frozen=True)
class RemoteScorer(Remote, ScoringLocalizer):
    """One that ranks sites."""

    def scores(self, pair: ModelPair, prompts: Sequence[Prompt]) -> SiteScores:
        """As it gave them.

        Raises:
            NotApplicableError: It cannot score sites.
        """
        values = self.answers.stages[self.answers.stage(prompts)].scores
        if isinstance(values, str):
            raise NotApplicableError(values)
        return values or {}


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
        stage = self.answers.stages[self.stage]
        if isinstance(stage.scores, str):
            raise NotApplicableError(stage.scores)
        return stage.units[key_of(prompts[0])]

    def treat(self, pair: ModelPair, prompts: Sequence[Prompt], sites: Graft) -> Treatments:
        """As it gave them.

        Raises:
            NotApplicableError: It cannot express these sites.
        """
        return self.answers.rows(pair, self.stage, self.draw, prompts, str(sites))


def remote(method: Method, given: Given | None = None) -> Remote:
    """A localizer of a third party as it declares itself, with what it gave."""
    base: type[Remote] = RemoteScorer
    if method.kind == InterventionLocalizer.kind:
        base = RemoteIntervention
    about: dict[str, Any] = {
        "name": method.name,
        "version": method.version,
        "kind": method.kind,
        "floor": method.floor,
        "needs": frozenset(method.needs),
        "baseline": method.baseline,
        "scanned": method.scanned,
        "about": "",
    }
    return cast("type[Remote]", type(base.__name__, (base,), about))(method, given)


def declared(method: Method, given: Given | None = None) -> Held:
    """A localizer of a third party as it stands in a specification, without its code."""
    return Held(localizer=remote(method, given), code=method.code)
