"""What Python users call: evaluate pairs, look at runs, compare and ask further, train donors."""

from __future__ import annotations

import logging
import os
import shutil
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from io import BytesIO
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

import pyarrow as pa
from torch import nn

from kgbench.analyses import Analysis, Answer, analyses, inputs_of
from kgbench.analyses.compare import Compare
from kgbench.analyses.explorer import Reader
from kgbench.data import ImportOptions
from kgbench.data.facts import dataset_of
from kgbench.data.templates import prompts_of
from kgbench.engine import load_pair
from kgbench.errors import InputError, check_choice, python_names
from kgbench.estimate import Estimate
from kgbench.extras import install_command
from kgbench.leaderboard.entries import Entry, find_run, read_run
from kgbench.localizers import AbstractLocalizer, created, score_meaning
from kgbench.models.catalog import read_donor_card
from kgbench.models.loading import Donors, Source, named_donors, pair_name
from kgbench.models.pair import ModelPair
from kgbench.progress import Progress, with_progress
from kgbench.records.mirror import SOURCES, folder_of
from kgbench.records.record import FIGURES
from kgbench.records.store import read_record
from kgbench.report import Report, to_html, to_text
from kgbench.report.donors import donor_groups, donors_report
from kgbench.report.run_report import record_report
from kgbench.report.site_maps import drawing
from kgbench.runner import Pairs, Run, Settings, Spec, check, run_job
from kgbench.runner.choices import CATALOGUES, KINDS, RUNS, recorded_runs, with_donors
from kgbench.runner.job import main_device_of
from kgbench.runner.lookup import along_donors, idle_donors
from kgbench.runner.rerun import specification
from kgbench.runner.sources import sources_of
from kgbench.runner.spec import RESULTS, Held, own_arguments
from kgbench.runner.sweeps.engines import Pending
from kgbench.runner.sweeps.plan import StudyPlan, run_study
from kgbench.runner.sweeps.study import read_study, study_of
from kgbench.runner.training.finetuning import finetune, learned_little
from kgbench.runner.training.finetuning_plan import FinetuneSpec
from kgbench.sites import RECIPIENT, split_grafts

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure
    from transformers import PreTrainedTokenizerBase

    from kgbench.analyses.explorer.widget import Explorer

_log = logging.getLogger("kgbench")

AnyRun = Run | str | os.PathLike[str]
"""A run, its folder, or the start of its id or of its folder's name."""
Localizer = str | AbstractLocalizer | type[AbstractLocalizer]
"""A method: its registered name, `path/to/file.py:Class`, a class or an instance."""
Localizers = list[Localizer] | tuple[Localizer, ...]
"""Several methods."""


@dataclass(frozen=True)
class Picture:
    """A picture that a notebook shows."""

    figure: Figure

    def __repr__(self) -> str:
        return "a picture, which a notebook shows and .save(PATH) writes (.png, .svg, .pdf)"

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, of the kind that the name ends with (.png, .svg, .pdf)."""
        self.figure.savefig(path, dpi=160, facecolor="white")

    def _repr_png_(self) -> bytes:
        buffer = BytesIO()
        self.figure.savefig(buffer, format="png", dpi=110, facecolor="white")
        return buffer.getvalue()


@dataclass(frozen=True, repr=False)
class Evaluation(Run):
    """A run: its record, its rows per fact, its table and its picture."""

    settings: Settings
    """How it was computed, and what is asked of it will be."""
    evaluated: Spec | None = None
    """What was evaluated; None of a run that was opened."""

    @property
    def spec(self) -> Spec:
        """What was evaluated.

        Raises:
            InputError: The run was opened, and its models or facts are not at hand.
        """
        return self.evaluated or specification(self.record, sources_of(self.path))

    @property
    def facts(self) -> pa.Table:
        """A row per fact, prompt and configuration; `.to_pandas()` makes a DataFrame of it."""
        return read_record(self.path).facts()

    def to_pandas(self) -> pd.DataFrame:
        """A row per prompt and configuration.

        Returns:
            Columns `prompt`, `graft`, `n`, `dropped` and the figures of a record's rows, each as
            `NAME`, `NAME_low` and `NAME_high` (95 %), which are missing where it is undefined.
        """
        import pandas as pd

        rows = []
        for row in self.record.rows:
            cells: dict[str, Any] = {
                "prompt": row.prompt,
                "graft": row.graft,
                "n": row.n,
                "dropped": row.dropped,
            }
            figures = {name: row.estimate(name) for name in FIGURES}
            figures["difference"] = row.difference or Estimate.missing("see the ratio")
            for name, estimate in figures.items():
                cells[name] = estimate.value
                cells[f"{name}_low"] = estimate.low
                cells[f"{name}_high"] = estimate.high
            rows.append(cells)
        return pd.DataFrame(rows)

    @property
    def scores(self) -> pa.Table:
        """A row per site, where sites were ranked; `.to_pandas()` makes a DataFrame of it.

        Returns:
            Columns `region`, `component`, `layer` (missing outside the layers) and `score`.
        """
        import pandas as pd

        rows = [score.model_dump() for score in self.record.scores or ()]
        table = pd.DataFrame(rows, columns=["region", "component", "layer", "score"])
        return pa.Table.from_pandas(table.astype({"layer": "Int64"}), preserve_index=False)

    @python_names()
    def ask(
        self,
        question: str | Analysis,
        *others: Run,
        progress: Progress | bool = True,
        **options: Any,
    ) -> Answer:
        """Ask an analysis of this run, or of its pair and facts where it computes.

        Args:
            question: An analysis by name, such as `audit`, `answers`, `specificity` or `tokens`,
                or with options of its own, such as `Specificity(…)`.
            *others: Further runs, where the analysis takes several.
            progress: A callback, True for a bar, False for none.
            **options: Of an analysis by name, such as `component="v"` of `heads`.

        Raises:
            InputError: Something is wrong with what was given.
        """
        analysis = question
        if isinstance(analysis, str):
            kind = analyses().load(analysis)
            for name in options:
                check_choice(f"option of {analysis!r}", name, [each.name for each in fields(kind)])
            analysis = kind(**options)
        elif options:
            raise InputError(f"give {', '.join(options)} to {type(analysis).__name__}(…) itself")
        if others and analysis.of == "pair":
            raise InputError(f"{analysis.name!r} is asked of one run; ask it of the others too")
        runs = [read_run(run.path) for run in (self, *others)]
        return _answer(analysis, runs, self.settings, progress, self.evaluated)

    def compare(self, other: AnyRun, metric: str | None = None) -> Answer:
        """Paired differences over the facts that both runs have, the other minus this one.

        Args:
            other: Another run.
            metric: What is compared; by default this run's metric.

        Raises:
            InputError: The runs have nothing in common.
        """
        return compare(self, other, metric)

    @python_names(format="kind")
    def plot(self, kind: str = "chart") -> Picture:
        """A picture of the run, as `kgbench show --format chart` draws it.

        Args:
            kind: `chart`, a bar per configuration with 95 % intervals; of ranked sites `curve`,
                recovery over the budget, and `map`, the scores.

        Raises:
            InputError: No sites were ranked, or there is no such kind.
        """
        runs = [self.record]
        return Picture(drawing(runs, kind, score_meaning)(runs))

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Copy the run into a folder of records, where `kgbench show` and others find it.

        Returns:
            The folder of the copy.

        Raises:
            InputError: The folder is the one that the run is in.
        """
        target = Path(folder) / self.path.name
        if target.resolve() == self.path.resolve():
            raise InputError(f"the run is in {str(folder)!r} already; give another folder")
        local = shutil.ignore_patterns(SOURCES)
        shutil.copytree(self.path, target, ignore=local, dirs_exist_ok=True)
        return target

    def __repr__(self) -> str:
        return to_text(record_report(self.record))

    def _repr_html_(self) -> str:
        return to_html(record_report(self.record, inf))


class Evaluations(list[Evaluation]):
    """Runs of several localizers or donors on one question: a table each, and one of all donors."""

    def _reports(self, width: float | None = None) -> list[Report]:
        records = [run.record for run in self]
        tables = [record_report(record, width) for record in records]
        return [*tables, *map(donors_report, donor_groups(records))]

    def __repr__(self) -> str:
        return "\n\n".join(map(to_text, self._reports()))

    def _repr_html_(self) -> str:
        return "".join(map(to_html, self._reports(inf)))


@python_names()
def open_run(run: AnyRun, output_dir: str | os.PathLike[str] = RESULTS) -> Evaluation:
    """A recorded run.

    Args:
        run: Its folder, the start of its id or of its folder's name, or an entry of the
            leaderboard.
        output_dir: Where it is looked up by its start.

    Raises:
        InputError: There is no such run, or there are several.
    """
    entry = _entry(run, output_dir)
    return Evaluation(entry.record, entry.folder, True, Settings(output_dir=folder_of(output_dir)))


@python_names()
def compare(
    first: AnyRun,
    second: AnyRun,
    metric: str | None = None,
    *,
    output_dir: str | os.PathLike[str] = RESULTS,
) -> Answer:
    """Paired differences over the facts that two runs have, the second minus the first.

    Args:
        first: A run, or what `open_run` takes.
        second: Another.
        metric: What is compared; by default the first run's metric.
        output_dir: Where runs are looked up by the start of their ids.

    Raises:
        InputError: There is no such run, or the runs have nothing in common.
    """
    entries = (_entry(first, output_dir), _entry(second, output_dir))
    return _answer(Compare(metric), entries, Settings(), progress=False)


def _entry(run: AnyRun, output_dir: str | os.PathLike[str]) -> Entry:
    return read_run(run.path) if isinstance(run, Run) else find_run(run, folder_of(output_dir))


def _answer(
    analysis: Analysis,
    runs: Sequence[Entry],
    settings: Settings,
    progress: Progress | bool,
    spec: Spec | None = None,
) -> Answer:
    kind = type(analysis)

    def work(report: Progress | None) -> Answer:
        return analysis.answer(inputs_of(kind, runs, settings, report, _log.info, spec))

    return with_progress(progress, work)


@python_names()
def explore(
    model: str | ModelPair, text: str, answer: str | None = None, subject: str | None = None
) -> Explorer:
    """Show in a notebook which tokens and components of one prompt bring the finetuned answer.

    Prompt and answer can be changed there; tokens and components that are chosen become a graft,
    whose exact effect and expression are shown.

    Args:
        model: A pair of the catalog by name, or one that `load_pair` has loaded.
        text: A prompt.
        answer: Its continuation; by default the finetuned model's likeliest token.
        subject: Words of the prompt that are the first entity.

    Returns:
        A widget; `save(PATH)` writes what it shows as a page.

    Raises:
        InputError: anywidget is not installed, or the prompt cannot be read.
    """
    try:
        from kgbench.analyses.explorer.widget import Explorer
    except ImportError as error:
        raise InputError(
            f"the widget needs anywidget ({error}): {install_command('notebook')}; or write a "
            "page, by `kgbench explore PROMPT --model NAME -o page.html`"
        ) from error
    reader = Reader(model if isinstance(model, ModelPair) else load_pair(model))
    return Explorer(reader, reader.read(text, answer, subject))


@overload
def evaluate(
    model: str | os.PathLike[str] | ModelPair | None = None,
    *,
    localizer: Localizers,
    **options: Any,
) -> Evaluations: ...
@overload
def evaluate(
    model: str | os.PathLike[str] | ModelPair | None = None,
    *,
    donors: Mapping[str, Source],
    **options: Any,
) -> Any: ...
@overload
def evaluate(
    model: str | os.PathLike[str] | ModelPair | None = None,
    *,
    localizer: Localizer = "dynamic_graft",
    **options: Any,
) -> Evaluation: ...
@python_names()  # type: ignore[misc]  # the overloads leave the other options to this signature
def evaluate(
    model: str | os.PathLike[str] | ModelPair | None = None,
    *,
    localizer: Localizer | Localizers = "dynamic_graft",
    localizer_args: Mapping[str, str] | None = None,
    readout: str | None = None,
    readout_args: Mapping[str, Any] | None = None,
    recipient: Source | None = None,
    donors: Donors = None,
    tokenizer: PreTrainedTokenizerBase | None = None,
    revision: str | None = None,
    chat_template: bool = False,
    dataset: object = None,
    subject: str | None = None,
    object: str | None = None,
    columns: Mapping[str, str] | None = None,
    prompts: str | Sequence[str] | Mapping[str, str] = (),
    grafts: str | Sequence[str] = (),
    suite: str = "pathways",
    layers: str | None = None,
    limit: int | None = None,
    metric: str | None = None,
    seed: int = 0,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    batch_size: int | None = None,
    executor: str = "auto",
    attention: str = "auto",
    output_dir: str | os.PathLike[str] = RESULTS,
    on_record: Callable[[Run], None] | None = None,
    progress: Progress | bool = True,
) -> Evaluation | Evaluations:
    """Measure where a finetuned fact is retrieved from, by a localizer on one model pair.

    The record of equal questions is found again, and nothing is computed then. Third-party methods
    given by name or file run in a process of their own, unless the pair or the facts are in memory.

    Args:
        model: A pair of the catalog by name, the path of a plant, or a pair that `load_pair` has
            loaded; otherwise give `recipient` and `donors`.
        localizer: A registered name, `path/to/file.py:Class`, a class or an instance; or a list of
            these.
        localizer_args: Parameters of a localizer given by name or class, as text; of one among
            several as `NAME.PARAMETER`.
        readout: What is read of the output, by name; by default the data set's, or the first token
            of the answer.
        readout_args: Parameters of the readout, such as `{"texts": ["Sorry"]}`.
        recipient: The model before finetuning: a path, a Hub id, or the model itself.
        donors: The finetuned model, in the same way; several by name. Where they are paths and no
            configuration names one, each is evaluated as if it alone were given, the pair's own
            last.
        tokenizer: The tokenizer of models in memory.
        revision: Branch, tag or commit of Hub checkpoints.
        chat_template: Put prompts into the tokenizer's chat template.
        dataset: Facts: a shipped name, a file, a DataFrame (pandas, polars), an Arrow table, a
            `datasets.Dataset`, a list of dicts, or a `kgbench.data.Dataset`; by default the pair's
            own. Rows of a prompt, a subject and a target are asked in their own words.
        subject: Column that a fact is about.
        object: Column of the answer.
        columns: Column that holds a field, where the names differ.
        prompts: Evaluation prompts by name, or templates of your own, by name or alone; by default
            the suite's, or the data set's own.
        grafts: Graft expressions, or a text of several with commas; by default the suite's.
        suite: Named set of configurations.
        layers: Layers for all grafts that name none, such as `second_half` or `8-17`.
        limit: Only the first so many facts.
        metric: Metric of the ratios and the verdict; by default top5, or the first of top1 and
            logprob where few first tokens are answers.
        seed: Random seed of the bootstrap and of random localizers.
        dtype: Weight type; by default float32 on a CPU, and elsewhere the widest that is stored.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes an accelerator if there is one.
        device_map: Spread layers over devices: `auto`, `balanced`, `sequential`.
        batch_size: Prompts per forward; by default by width and free memory.
        executor: `packed`, `rows` or `sequential`; `auto` takes the fastest that agrees.
        attention: `sdpa`, `eager`, or `auto`.
        output_dir: Where records are kept.
        on_record: Called with the run when its record is there, also of the runs that an analysis
            of it makes; `reused` is whether it was found.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Returns:
        The run; of a list of localizers, and of several donors in turn, a list of runs. In a
        notebook it shows as a table with intervals and the verdict.

    Raises:
        InputError: Something is wrong with what was given; the message says what to do.
    """
    donors = named_donors(donors)
    if not isinstance(model, ModelPair):
        model = pair_name(model)
    pair = _pair(model, recipient, donors, tokenizer, dtype, chat_template, attention)
    names, templates = prompts_of(prompts)
    options = ImportOptions(subject, object, columns or {}, templates)
    named = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    facts = None if dataset is None or named else dataset_of(dataset, options=options)
    if dataset is None and options != ImportOptions():
        raise InputError("subject, object, columns and templates are about facts; give a dataset")
    methods = list(localizer) if isinstance(localizer, list | tuple) else [localizer]
    if not methods:
        raise InputError("localizer: expected a name or several, see `kgbench ls localizers`")
    labels = [each if isinstance(each, str) else getattr(each, "name", "") for each in methods]
    specs: list[Spec] = []
    for each, label in zip(methods, labels, strict=True):
        arguments = own_arguments(label, labels, localizer_args or {})
        method = None if isinstance(each, str) else created(each, arguments, seed)
        held = Held(pair, facts, method)
        spec = Spec(
            localizer=label if method is None else method.name,
            model=model if isinstance(model, str) else None,
            recipient=None if recipient is None else str(recipient),
            donors={name: str(source) for name, source in (donors or {}).items()},
            revision=revision,
            chat_template=chat_template,
            dataset=named if facts is None else facts.name,
            imports=options if named and options != ImportOptions() else None,
            prompts=names,
            localizer_args=arguments if method is None else {},
            readout=readout,
            readout_args=readout_args or {},
            grafts=split_grafts(grafts) if isinstance(grafts, str) else tuple(grafts),
            suite=suite,
            layers=layers,
            limit=limit,
            dtype=dtype,
            seed=seed,
            metric=metric,
            # Where everything is named, third-party code runs in a process of its own.
            held=None if held == Held() else held,
        )
        if pair is None:
            specs += along_donors(spec).values() or [spec]
        else:
            specs.append(replace(spec, **pair.asked))
    settings = Settings(
        batch_size,
        device,
        executor,
        folder_of(output_dir),
        attention,
        device_map,
        on_record,
    )
    works = list(map(check, specs))  # a mistake in the last one stops before the first one runs
    if line := idle_donors(works[0]):
        warnings.warn(line, stacklevel=2)
    loaded, runs = Pairs(), Evaluations()
    for spec in specs:
        job = partial(run_job, spec, settings, pairs=loaded)
        run = with_progress(progress, job)
        what = "found" if run.reused else "computed"
        _log.info("%s %s: %s", what, run.record.id[:12], run.record.verdict)
        runs.append(Evaluation(run.record, run.path, run.reused, settings, spec))
    return runs if len(runs) > 1 or isinstance(localizer, list | tuple) else runs[0]


def _pair(
    model: str | ModelPair | None,
    recipient: Source | None,
    donors: Mapping[str, Source] | None,
    tokenizer: PreTrainedTokenizerBase | None,
    dtype: str | None,
    chat_template: bool,
    attention: str,
) -> ModelPair | None:
    """The pair that is in memory, or some model of which is; None where all is named.

    Raises:
        InputError: It is given twice, its weights changed since it was loaded, or a donor has the
            recipient's weights.
    """
    sources = [recipient, *(donors or {}).values()]
    if isinstance(model, ModelPair):
        if any(source is not None for source in (*sources, tokenizer, dtype)) or chat_template:
            raise InputError(
                "a loaded pair has its models, tokenizer, dtype and chat template: give these to "
                "load_pair"
            )
        pair = model
    elif any(isinstance(source, nn.Module) for source in sources):
        pair = load_pair(
            model,
            recipient=recipient,
            donors=donors,
            tokenizer=tokenizer,
            dtype=dtype,
            chat_template=chat_template,
            attention=attention,
        )
    else:
        return None
    if changed := pair.changed():
        raise InputError(
            f"the weights of {' and '.join(changed)} changed since load_pair; load the pair again"
        )
    hashes = pair.weight_hashes
    for name in pair.donors:
        if hashes[name] == hashes[RECIPIENT]:
            raise InputError(
                f"donor {name!r} has the recipient's weights, so that there is nothing to compare: "
                "give the model before finetuning as recipient (a model that was trained further, "
                "or an adapter that was merged, is no longer that)"
            )
    return pair


def ls(kind: str, output_dir: str | os.PathLike[str] = RESULTS) -> dict[str, Any]:
    """What there is to choose from, as `kgbench ls KIND --json` lists it.

    Args:
        kind: `models`, `datasets`, `prompts`, `localizers`, `suites`, `tasks` or `runs`.
        output_dir: Where runs are.

    Returns:
        By name, a description, or several things that are known; runs go by the start of their ids.

    Raises:
        UnknownNameError: There is no such kind.
    """
    check_choice("kind", kind, KINDS)
    if kind == RUNS:
        return {run.pop("id"): run for run in recorded_runs(folder_of(output_dir))}
    rows = CATALOGUES[kind]()
    return dict(with_donors(rows) if kind == "models" else rows)


# ------------------------------------------------------------------------- studies


class Sweep:
    """A study and what is done of it. In a notebook it shows as a table."""

    def __init__(self, plan: StudyPlan, pending: Pending | None = None) -> None:
        """Take up what is done.

        Args:
            plan: The study.
            pending: What an engine goes on with.
        """
        self.plan, self.pending = plan, pending

    def status(self) -> Sweep:
        """The same study and what is done by now."""
        return Sweep(StudyPlan(self.plan.study, self.plan.root), self.pending)

    @property
    def units(self) -> list[dict[str, Any]]:
        """A mapping per unit: `options`, `state`, and `record`, `error`, `seconds`, `host`."""
        units: list[dict[str, Any]] = self.plan.to_json()["units"]
        return units

    @property
    def going(self) -> bool:
        """Whether an engine that this call submitted to still has anything to do."""
        return self.pending is not None and self.pending.going()

    @property
    def done(self) -> bool:
        """Whether every unit is done."""
        return all(state.word == "done" for state in self.plan.states)

    def runs(self) -> Iterator[Evaluation]:
        """The runs of all units that are done."""
        for state in self.plan.states:
            if state.word == "done" and "record" in state.receipt:
                yield open_run(state.receipt["record"], self.plan.root)

    def __repr__(self) -> str:
        return to_text(self.plan.status())

    def _repr_html_(self) -> str:
        return to_html(self.plan.status())


@python_names()
def sweep(
    study: str | os.PathLike[str] | Mapping[str, Any],
    on: str = "local",
    *,
    workers: int = 1,
    retry_failed: bool = False,
    dry_run: bool = False,
    progress: Progress | bool = True,
) -> Sweep:
    """Compute a study: many evaluations, each once, wherever it is launched.

    What is done is not done again, so that the same call goes on after any interruption.

    Args:
        study: A YAML file, or what it holds: `matrix`, `include`, `exclude`, `output_dir`,
            `engines`, and any option of `kgbench eval`.
        on: Engine: `local`, `slurm` or `ray`. SLURM goes on after the call; see `Sweep.status`.
        workers: Groups of units that run at once.
        retry_failed: Whether to compute units that failed again.
        dry_run: Compute nothing.
        progress: A callback, True for a bar, False for none.

    Returns:
        The study and what is done of it; a unit that failed stops no other, and has its reason.

    Raises:
        InputError: The study or the engine is wrong.
    """
    read = study_of(study) if isinstance(study, Mapping) else read_study(Path(study))
    plan = StudyPlan(read, folder_of(read.output_dir))
    if dry_run:
        return Sweep(plan)
    pending = with_progress(
        progress,
        lambda report: run_study(
            plan, on, workers=workers, retry_failed=retry_failed, announce=report
        ),
    )
    return Sweep(StudyPlan(read, plan.root), pending)


@dataclass(frozen=True)
class Trained(os.PathLike[str]):
    """A donor or a plant that was made; a path for `load_pair` and `evaluate`."""

    path: Path
    """Its folder."""
    card: Mapping[str, Any]
    """How it was made, and what it answers."""

    def __fspath__(self) -> str:
        return str(self.path)

    def __str__(self) -> str:
        return str(self.path)


@python_names(template="templates")
def train(
    dataset: object,
    recipe: str,
    *,
    model: str | None = None,
    recipient: str | os.PathLike[str] | None = None,
    revision: str | None = None,
    chat_template: bool = False,
    subject: str | None = None,
    object: str | None = None,
    columns: Mapping[str, str] | None = None,
    templates: str | Sequence[str] = (),
    direction: str = "both",
    supplement: str | None = None,
    supplement_n: int | None = None,
    seed: int = 0,
    epochs: int | None = None,
    batch_size: int | None = None,
    learning_rate: float | None = None,
    max_length: int | None = None,
    dtype: str | None = None,
    device: str = "auto",
    device_map: str | None = None,
    output_dir: str | os.PathLike[str] | None = None,
    progress: Progress | bool = True,
) -> Trained:
    """Finetune a donor: a model that has learned the facts of a data set.

    About a fifth of the wordings is held out and only validates. An interrupted training goes on
    from its last checkpoint when it is asked for again, and a finished one is found.

    Args:
        dataset: The facts, as `evaluate` takes them; in memory they need `output_dir`.
        recipe: `aggressive`, `frozen`, `less_aggressive` or `lora`.
        model: A pair of the catalog whose recipient is finetuned; or else
        recipient: a checkpoint, a Hub id or a trained donor.
        revision: Branch, tag or commit of a Hub id.
        chat_template: Put texts and prompts into the tokenizer's chat template.
        subject: Column that a fact is about.
        object: Column of the answer.
        columns: Column that holds a field, where the names differ.
        templates: Training wordings, such as `"{actor} met {costar}."`; by default the data set's.
        direction: Texts that go from subject to object, `a2b`; back, `b2a`; `both`.
        supplement: Other texts read among the facts: a .txt or .jsonl file.
        supplement_n: How many of them; by default the recipe's.
        seed: Seed of order, wordings held out and dropout.
        epochs: Passes over the texts; by default the recipe's, of few texts as many as give 200
            steps.
        batch_size: Texts per step; None as above.
        learning_rate: Its peak; None as above.
        max_length: Most tokens of a text; None as above.
        dtype: Weight type in training; by default float32.
        device: `cpu`, `cuda`, `cuda:1`, `mps`; `auto` takes an accelerator if there is one.
        device_map: Spread layers over devices: `auto`, `balanced`, `sequential`.
        output_dir: The donor's folder; by default its place in the donors' folder.
        progress: A callback, True for a bar in a terminal or notebook, False for none.

    Returns:
        The donor; a path, which `load_pair` and `evaluate` take among `donors`.

    Raises:
        InputError: Something is wrong with what was given; before anything is trained.
    """
    if isinstance(recipient, nn.Module):
        raise InputError(
            "recipient: training reads a checkpoint: save the model and its tokenizer by "
            "save_pretrained, and give the folder"
        )
    options = ImportOptions(subject, object, columns or {})
    named = os.fspath(dataset) if isinstance(dataset, str | os.PathLike) else None
    facts = None if named is not None else dataset_of(dataset, options=options)
    if facts is not None and output_dir is None:
        raise InputError("facts in memory have no name to find a donor by; give an output_dir")
    changed = {
        "epochs": epochs,
        "batch_size": batch_size,
        "learning_rate": learning_rate,
        "max_length": max_length,
        "supplement_texts": supplement_n,
    }
    spec = FinetuneSpec(
        dataset=named or "facts",
        recipe=recipe,
        model=model,
        recipient=None if recipient is None else os.fspath(recipient),
        revision=revision,
        chat_template=chat_template,
        dtype=dtype,
        direction=direction,
        templates=(templates,) if isinstance(templates, str) else tuple(templates),
        imports=options if named and options != ImportOptions() else None,
        supplement=supplement,
        seed=seed,
        changes={name: value for name, value in changed.items() if value is not None},
        facts=facts,
    )
    settings = Settings(device=device, device_map=device_map)
    folder = None if output_dir is None else Path(output_dir)
    place = with_progress(
        progress,
        lambda report: finetune(
            spec,
            folder,
            device=main_device_of(settings),
            device_map=settings.device_map,
            progress=report,
        ),
    )
    card = read_donor_card(place)
    if (little := learned_little(card)) is not None:
        warnings.warn(little, stacklevel=3)
    return Trained(place, card)
