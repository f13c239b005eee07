"""Plan of a study: its units, what is known, what is left in bundles, time, memory and GPUs.

No model is loaded, and no torch: sizes are read from the catalog and from files, times from the
units that are finished.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from math import ceil, floor
from pathlib import Path
from statistics import median
from typing import Any

from kgbench.models import catalog
from kgbench.numbers import duration_text
from kgbench.progress import Progress
from kgbench.report import Dash, Report, Table
from kgbench.runner.sweeps.engines import Launch, Pending, run_bundles
from kgbench.runner.sweeps.study import StudyFile, StudyUnit
from kgbench.runner.sweeps.work import Receipt, Receipts, Worker, work
from kgbench.sites.configurations import configurations

BUNDLE_S = 1800.0
"""Longest time of a bundle, so that little is lost with a node."""
SHARD_S = 3600.0
"""A unit that takes longer is shared by several processes."""
_GROUP = 64
"""`kgbench.runner.measure.GROUP`, whose module loads torch."""
_BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2}
_ROW_SHARE = 0.5
"""Token rows of a configuration, in those of its prompt, since prefixes are shared."""
_LETTERS = 4
"""Of a token."""
_LEAST_S, _START_S = 1.0, 5.0
"""Seconds of the smallest unit, and to start a bundle."""
_SPARE_GIB = 1.0
_MOST = 8
"""Bundles that share a GPU."""
_GIB = 2**30
_LEFT = ("left", "check", "running")
"""Words of units that are to be computed; one that runs is shared, or found when it is done."""
_TOLD = ("record", "error", "seconds", "host")
"""Fields of a receipt that JSON has of a unit."""


@dataclass(frozen=True)
class State:
    """A unit with what is known of it."""

    unit: StudyUnit
    receipt: Receipt | None
    worker: Worker | None
    """The one that computes it now."""

    @property
    def word(self) -> str:
        """`done`, `failed`, `running` or `left`; `check` where files or kgbench changed since."""
        if self.worker is not None:
            return "running"
        if self.receipt is None:
            return "left"
        if not self.receipt.holds(self.unit):
            return "check"
        return "done" if self.receipt.done else "failed"


@dataclass(frozen=True)
class StudyPlan:
    """A study with its receipts."""

    study: StudyFile
    root: Path
    """Folder of the records."""
    _forecasts: dict[str, float] = field(default_factory=dict, compare=False, repr=False)
    """Seconds by unit, as they are asked for."""

    @cached_property
    def states(self) -> tuple[State, ...]:
        """All units.

        Raises:
            InputError: Something in a unit is wrong; the message names the unit.
        """
        self.study.check()
        receipts = Receipts(self.root)
        known = receipts.read([unit.key for unit in self.study.units])
        busy = {worker.unit: worker for worker in receipts.workers()}
        units = self.study.units
        return tuple(State(unit, known.get(unit.key), busy.get(unit.key)) for unit in units)

    def left(self, retry_failed: bool = False) -> list[StudyUnit]:
        """Units to compute.

        Args:
            retry_failed: Whether failed ones are among them.
        """
        wanted = (*_LEFT, "failed") if retry_failed else _LEFT
        return [state.unit for state in self.states if state.word in wanted]

    def bundles(self, units: Sequence[StudyUnit], workers: int) -> list[list[StudyUnit]]:
        """Units of one pair together, in parts of half an hour at most and for all workers.

        Args:
            units: Some of the study's.
            workers: Bundles that run at once.
        """
        by_pair: dict[str, list[StudyUnit]] = {}
        for unit in units:
            by_pair.setdefault(unit.bundle, []).append(unit)
        total = sum(map(self.seconds, units))
        longest = min(BUNDLE_S, total / max(workers, 1))
        bundles: list[list[StudyUnit]] = []
        for own in by_pair.values():
            bundle: list[StudyUnit] = []
            spent = 0.0
            for unit in own:
                if (shards := self.shards(unit, workers)) > 1:
                    bundles += [[unit]] * shards
                    continue
                if bundle and spent + self.seconds(unit) > longest * (1 + 1e-9):
                    bundles.append(bundle)
                    bundle, spent = [], 0.0
                bundle.append(unit)
                spent += self.seconds(unit)
            if bundle:
                bundles.append(bundle)
        return bundles

    def shards(self, unit: StudyUnit, workers: int) -> int:
        """Processes that share a unit; no more than it has groups of prompts."""
        if not unit.evaluates:
            return 1
        wanted = self.study.shards or min(ceil(self.seconds(unit) / SHARD_S), workers)
        return max(1, min(wanted, ceil(_prompts(unit) / _GROUP)))

    def seconds(self, unit: StudyUnit) -> float:
        """Time of a unit: as its like took, else by its weights and tokens.

        A method that ranks sites takes longer than that, until one has run.
        """
        if unit.key not in self._forecasts:
            known = self._measured.get(_like(unit), 0.0) * _prompts(unit)
            computing = self._operations(unit) / catalog.FLOPS[self.kind]
            self._forecasts[unit.key] = known or max(_LEAST_S, computing)
        return self._forecasts[unit.key]

    @cached_property
    def _measured(self) -> Mapping[str, float]:
        """Seconds a prompt of finished units, the median by pair, method and suite."""
        seconds: dict[str, list[float]] = {}
        for state in self.states:
            receipt = state.receipt
            if receipt is not None and receipt.done and not receipt.content.get("reused"):
                each = receipt.seconds / _prompts(state.unit)
                seconds.setdefault(_like(state.unit), []).append(each)
        return {like: median(some) for like, some in seconds.items()}

    @property
    def kind(self) -> str:
        """Kind of device."""
        return "cpu" if self.study.gpu_memory is None else "cuda"

    def _operations(self, unit: StudyUnit) -> float:
        if (size := _size(unit)) is None:
            return 0.0
        work = unit.workload
        labels = _labels(unit.spec.grafts or work.suite.grafts, unit.spec.layers)
        rows = 1 + _ROW_SHARE * (labels + len(work.suite.budgets))
        letters = [len(some[0].text) for some in work.prompts.values()]
        tokens = sum(letters) / len(letters) / _LETTERS
        return 2 * size.parameters * tokens * rows * _prompts(unit)

    def memory(self, unit: StudyUnit) -> float | None:
        """Bytes of the weights of a unit's pair; None where its size is not known here."""
        if (size := _size(unit)) is None:
            return None
        stored = _BYTES["float32"] if self.kind == "cpu" else size.itemsize
        each = _BYTES.get(unit.spec.dtype or "", stored) * size.parameters
        return each * (1 + max(1, len(unit.spec.donors)))

    def gpus(self, unit: StudyUnit) -> float:
        """Share of a GPU that a unit needs, as a part such as .25; more than 1 where several."""
        if self.study.gpu_memory is None:
            return 0.0
        if (memory := self.memory(unit)) is None:
            return 1.0
        share = (1.2 * memory / _GIB + _SPARE_GIB) / self.study.gpu_memory
        return float(ceil(share)) if share > 1 else 1 / min(floor(1 / share), _MOST)

    def report(self, workers: int = 1) -> Report:
        """Units by pair, and what they take.

        Args:
            workers: Bundles that run at once.
        """
        by_pair: dict[str, list[State]] = {}
        for state in self.states:
            by_pair.setdefault(state.unit.bundle, []).append(state)
        open = self.left()
        parts = Counter(some[0].bundle for some in self.bundles(open, workers))
        rows: list[list[Any]] = []
        total = 0.0
        for pair, states in by_pair.items():
            first = states[0].unit
            left = [state.unit for state in states if state.word in _LEFT]
            spent = sum(map(self.seconds, left)) + _START_S * parts[pair]
            total, memory = total + spent, self.memory(first)
            words = Counter(state.word for state in states)
            pair_name = first.options.get("model", first.command)
            if first.evaluates:
                pair_name = first.spec.model or first.spec.recipient
            rows.append(
                [
                    str(pair_name),
                    len(states),
                    words["done"],
                    words["failed"],
                    len(left),
                    parts[pair],
                    duration_text(spent) if left else Dash(),
                    Dash("not on this machine") if memory is None else f"{memory / _GIB:.2g} GiB",
                    f"{self.gpus(first):.2g}" if self.study.gpu_memory else Dash(),
                ]
            )
        heads = ["pair", "units", "done", "failed", "left", "bundles", "time", "weights", "GPUs"]
        verdict = f"{len(self.states)} units, {len(open)} left: about {duration_text(total)}"
        if workers > 1 and open:
            at_once = min(workers, parts.total())
            verdict += f", {duration_text(total / at_once)} with {workers} workers"
        if not open:
            verdict = f"{len(self.states)} units, none left"
        of = f"{len(self._measured)} kinds of finished units, else of " if self._measured else ""
        speed = f"{catalog.FLOPS[self.kind] / 1e12:g} Tflop/s assumed on {self.kind}"
        notes = [
            f"Time: of {of}weights and tokens at {speed}; a method that ranks sites takes longer "
            "than weights and tokens tell, until one such unit has run."
        ]
        table = Table("", heads, rows)
        return Report(f"Study: {self.study.output_dir}", (table,), (), notes, verdict)

    def status(self, axes: Sequence[str] = ()) -> Report:
        """What is done, by axis, with the reasons of failures.

        Args:
            axes: Options; by default those with several values.
        """
        heads = ["units", "done", "running", "failed", "check", "left"]
        words = Counter(state.word for state in self.states)

        def row(label: str, words: Counter[str]) -> list[Any]:
            return [label, words.total(), *(words[word] for word in heads[1:])]

        tables = [Table("", ["", *heads], [row("all", words)])]
        for axis in axes or self.study.axes:
            by_value: dict[str, Counter[str]] = {}
            for state in self.states:
                value = state.unit.options.get(axis)
                text = value if isinstance(value, str) else json.dumps(value)
                by_value.setdefault(text, Counter()).update([state.word])
            rows = [row(value, own) for value, own in by_value.items()]
            tables.append(Table("", [axis, *heads], rows))
        failed = [state.receipt for state in self.states if state.word == "failed"]
        if failed:
            reasons = Counter(receipt.error for receipt in failed if receipt)
            tables.append(Table("", ["why units failed", "units"], list(reasons.most_common())))
        running = [(state.unit, state.worker) for state in self.states if state.worker is not None]
        if running:
            rows = [[str(unit), f"{on.host}, process {on.pid}"] for unit, on in running]
            tables.append(Table("", ["running", "on"], rows))
        verdict = f"{words['done']} of {words.total()} units are done"
        verdict += f", {words['failed']} failed" if words["failed"] else ""
        if words["done"] == words.total():
            verdict = f"all {words.total()} units are done"
        notes = []
        if words["check"]:
            notes.append(
                "check: done by another version of kgbench, or the weights' files changed since; "
                "a run finds the record again or computes it."
            )
        return Report(f"Study: {self.study.output_dir}", tables, (), notes, verdict)

    def to_json(self, workers: int = 1) -> dict[str, Any]:
        """The object that `kgbench sweep plan|status --json` prints.

        Args:
            workers: Bundles that run at once.
        """
        units = []
        for state in self.states:
            receipt = state.receipt.content if state.receipt else {}
            told = {name: receipt[name] for name in _TOLD if name in receipt}
            units.append(
                {
                    "options": dict(state.unit.options),
                    "key": state.unit.key,
                    "state": state.word,
                    "memory_bytes": self.memory(state.unit),
                    "gpus": self.gpus(state.unit),
                    "forecast_seconds": self.seconds(state.unit),
                    **told,
                }
            )
        left = self.left()
        return {
            "output_dir": self.study.output_dir,
            "counts": dict(Counter(state.word for state in self.states)),
            "bundles": len(self.bundles(left, workers)),
            "forecast_seconds": sum(map(self.seconds, left)),
            "units": units,
        }


def _like(unit: StudyUnit) -> str:
    """What units have in common that take about as long a prompt."""
    if not unit.evaluates:
        return unit.command
    return json.dumps([unit.bundle, unit.spec.localizer, unit.spec.suite, unit.spec.grafts])


def _prompts(unit: StudyUnit) -> int:
    """Number of prompts; of another command 1."""
    if not unit.evaluates:
        return 1
    facts = len(unit.workload.dataset.facts)
    return max(1, min(unit.spec.limit or facts, facts) * len(unit.workload.prompts))


@cache
def _labels(grafts: tuple[str, ...], layers: str | None) -> int:
    """Number of configurations."""
    return len(configurations(grafts, layers))


@dataclass(frozen=True)
class _Size:
    parameters: int
    itemsize: int
    """Bytes of a weight as stored."""


def _size(unit: StudyUnit) -> _Size | None:
    """Size of a unit's recipient; None where it is not known, and of another command."""
    return _pair_size(unit.spec.model, unit.spec.recipient) if unit.evaluates else None


@cache
def _pair_size(model: str | None, recipient: str | None) -> _Size | None:
    """Size of a pair's recipient, from the catalog or its files; None where neither has it."""
    entry = None if model is None else catalog.entry(model)
    if entry is not None and entry.parameters is not None and recipient is None:
        assert entry.stored is not None
        return _Size(entry.parameters, _BYTES[entry.stored])
    source = recipient or (None if entry is None else entry.recipient)
    if source is None:
        return None
    folder = catalog.zoo_path(source) or Path(source).expanduser()
    files = sorted(folder.glob("*.safetensors"))
    if not files:
        return None
    itemsize = _BYTES["float32"]
    config = folder / "config.json"
    if config.is_file():
        content = json.loads(config.read_text(encoding="utf-8"))
        itemsize = _BYTES.get(str(content.get("dtype") or content.get("torch_dtype")), itemsize)
    return _Size(sum(path.stat().st_size for path in files) // itemsize, itemsize)


def run_study(
    plan: StudyPlan,
    engine: str = "local",
    *,
    workers: int = 1,
    part: tuple[int, int] | None = None,
    retry_failed: bool = False,
    announce: Progress | None = None,
) -> list[Pending]:
    """Compute what is left of a study.

    Args:
        plan: The study with its receipts.
        engine: One of `kgbench.runner.sweeps.engines.ENGINES`.
        workers: Bundles that run at once.
        part: The k-th of n parts, from 1, of all units, whatever is finished, so that parts that
            are launched at different times fit together. It runs in this process.
        retry_failed: Whether to compute units that failed again.
        announce: Progress callback: of bundles, or in this process of each unit.

    Returns:
        What an engine goes on with; nothing where all bundles have ended.

    Raises:
        InputError: Something in the study or the engine is wrong.
    """
    if part is not None:
        plan.study.check()
        bundles = [_part(plan.study, *part)]
    else:
        bundles = plan.bundles(plan.left(retry_failed), workers)
    bundles = [_placed(plan, some) for some in bundles]
    if part is not None or (engine == "local" and workers == 1):
        for bundle in bundles:
            work(plan.root, bundle, retry_failed, announce)
        return []
    by_gpus: dict[float, list[list[StudyUnit]]] = {}
    for bundle in bundles:
        by_gpus.setdefault(plan.gpus(bundle[0]), []).append(bundle)
    submitted = []
    options = plan.study.engines.get(engine, {})
    for gpus, some in by_gpus.items():

        def ended(number: int, total: int = len(some)) -> None:
            if announce is not None:
                announce(number, total, "bundles")

        asked = Launch(plan.root, some, workers, retry_failed, gpus, options, ended)
        submitted.append(run_bundles(engine, asked))
    return [each for each in submitted if each is not None]


def _part(study: StudyFile, k: int, n: int) -> list[StudyUnit]:
    """The k-th of n parts, units of one pair together; a unit in shards is in several parts."""
    tasks: list[StudyUnit] = []
    for unit in sorted(study.units, key=lambda unit: unit.bundle):
        tasks += [unit] * (study.shards or 1)
    some = tasks[len(tasks) * (k - 1) // n : len(tasks) * k // n]
    return list({unit.key: unit for unit in some}.values())


def _placed(plan: StudyPlan, bundle: Iterable[StudyUnit]) -> list[StudyUnit]:
    """Units whose pair needs several GPUs spread their layers over them."""
    placed = []
    for unit in bundle:
        if plan.gpus(unit) > 1 and "device-map" not in unit.options:
            unit = replace(unit, options={**unit.options, "device-map": "balanced"})
        placed.append(unit)
    return placed
