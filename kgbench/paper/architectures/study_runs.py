"""The runs of the study: pretrain, finetune the weights inside the layers, and measure the pair.

The rows of a finished run are one file in the study's folder. Weights and checkpoints are kept
apart from them, under the user's data folder. Several processes may work on one study: each takes a
run that no other is at.
"""

from __future__ import annotations

import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from random import Random

import numpy as np
import torch
from filelock import FileLock, Timeout
from jaxtyping import Int
from safetensors.torch import load_file, save_file
from transformers import PreTrainedTokenizerFast

from kgbench.data import Fact, Prompt, load_dataset, load_prompts
from kgbench.engine import Engine
from kgbench.engine.edits import Cut, Treatment
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import DataError
from kgbench.metrics import score_logits
from kgbench.models.catalog import donors_folder
from kgbench.models.pair import ModelPair, prepare
from kgbench.paper.architectures.design import Study, StudyRun
from kgbench.paper.architectures.run_rows import (
    BOTH,
    KNOWN,
    PATHWAYS,
    RunAbout,
    RunRows,
    cut_from,
    cut_in,
    read_rows,
    rows_path,
    table_of,
    write_rows,
)
from kgbench.paper.architectures.switched_model import (
    SwitchedConfig,
    SwitchedModel,
    new_model,
    switched_family,
)
from kgbench.progress import Progress
from kgbench.runner.training.hit_rates import configuration_hits
from kgbench.runner.training.model_setup import freeze
from kgbench.runner.training.resumable_build import Build
from kgbench.runner.training.stages import SAVE_EVERY, StageOutcome
from kgbench.version import __version__
from kgbench.zoo import tiny_pairs


def make_run(
    study: Study,
    run: StudyRun,
    folder: Path,
    progress: Progress | None = None,
    save_every: int = SAVE_EVERY,
) -> RunRows:
    """Make a run, or finish it.

    Args:
        study: The design.
        run: Which of its runs.
        folder: For weights and checkpoints of this run alone.
        progress: Progress callback.
        save_every: Steps between checkpoints.

    Returns:
        Its rows; the finished weights stay in the folder.
    """
    return _Making(study, run, folder, progress, save_every).rows()


class _Making:
    def __init__(
        self, study: Study, run: StudyRun, folder: Path, progress: Progress | None, save_every: int
    ) -> None:
        self.study, self.run, self.folder = study, run, folder
        self.recipe = study.recipe()
        self.dataset = load_dataset(study.dataset)
        self.identity = study.identity(run, self.dataset.content_hash)
        about = {"identity": self.identity}
        self.build = Build(folder, folder, "the run", about, progress, save_every)
        self.facts: list[Mapping[str, str]] = [fact.fields for fact in self.dataset.facts]
        self.prompts = {name: load_prompts(self.dataset, [name]) for name in study.prompts}

    def rows(self) -> RunRows:
        """Train what is not trained, then measure."""
        self.build.begin(replace=True)
        recipient = self._stage("recipient", None)
        for count in range(1, self.study.training.finetunings + 1):
            before = "recipient" if count == 1 else f"sft-{count - 1}"
            pair = self._pair(recipient, self._stage(f"sft-{count}", before))
            if self._answers(pair) >= self.study.criteria.sft:
                break
        started = time.monotonic()
        table = table_of([*self._known(pair), *self._pathways(pair)])
        return RunRows(self._about(pair, count, time.monotonic() - started), table)

    @cached_property
    def _tokenizer(self) -> PreTrainedTokenizerFast:
        texts = tiny_pairs.tokenizer_texts(self.recipe, self.run.seed, self.facts)
        return tiny_pairs.train_tokenizer(texts, self.recipe.vocabulary, self.recipe.bos)

    @cached_property
    def _config(self) -> SwitchedConfig:
        special = tiny_pairs.tokenizer_settings(self._tokenizer)
        return SwitchedConfig(**special, **self.study.config(self.run.cell))

    def _stage(self, name: str, start: str | None) -> SwitchedModel:
        """The weights after a stage, which is run where it is not complete.

        Args:
            name: Name of the stage.
            start: The stage before; None for random weights.
        """
        seed = self.run.seed if start is None else 0
        model, complete = new_model(self._config, seed), self._weights(name)
        if not complete.is_file():
            training = self.study.training
            if start is None:
                rounds = tiny_pairs.pretraining_rounds(self.recipe, self.run.seed, self.facts)
                schedule = training.pretraining
            else:
                _load(model, self._weights(start))
                freeze(model, switched_family())
                rounds = tiny_pairs.finetuning_rounds(self.recipe, self.facts)
                schedule = training.finetuning
            order = Random(f"{name} {self.run.seed}")
            batches = tiny_pairs.batched(rounds, self._tokenizer, schedule.batch_size, order)

            def store(model: SwitchedModel, outcome: StageOutcome) -> None:
                clock = {"steps": len(batches), "seconds": outcome.seconds}
                (self.folder / f"{name}.json").write_text(json.dumps(clock), encoding="utf-8")
                _save(model, complete)

            self.build.stage(
                f"{name}-checkpoints",
                complete,
                lambda: model,
                store,
                batches=batches,
                stage=schedule,
                seed=self.run.seed,
                what=f"{self.run.name}: {name}",
            )
        # A model that was trained runs in the trainer's half precision, one that was read does not.
        stored = new_model(self._config, seed)
        _load(stored, complete)
        return stored

    def _weights(self, stage: str) -> Path:
        return self.folder / f"{stage}.safetensors"

    def _pair(self, recipient: SwitchedModel, donor: SwitchedModel) -> ModelPair:
        """Recipient and donor, whose own heads and embeddings are untied."""
        donors = {"sft": prepare(donor)}
        return ModelPair(
            self.run.name, prepare(recipient), donors, self._tokenizer, switched_family()
        )

    def _answers(self, pair: ModelPair) -> float:
        """Share of the facts that the donor answers, of the prompt with the least."""
        rates = (configuration_hits(pair, self.dataset, name, ["SFT"]) for name in self.prompts)
        return min(rate["SFT"] for rate in rates)

    def _known(self, pair: ModelPair) -> Iterator[tuple[str, str, np.ndarray]]:
        """Answers of the recipient on movies that pretraining had in all wordings."""
        movies = tiny_pairs.known_movies(self.recipe, self.study.known)
        facts = tuple(Fact(f"known/{number}", movie) for number, movie in enumerate(movies))
        dataset = replace(self.dataset, name="known", facts=facts)
        for name in self.study.prompts:
            prompts = load_prompts(dataset, [name])
            (ranks,) = _ranks(pair, prompts, _treatments(pair, prompts, ["PRE"]))
            yield name, KNOWN, ranks

    def _pathways(self, pair: ModelPair) -> Iterator[tuple[str, str, np.ndarray]]:
        """Pathways, and FE+LT with the attention of LT to FE cut in one layer, or from one on."""
        layers = range(pair.n_layers)
        for name, prompts in self.prompts.items():
            treatments = dict(zip(PATHWAYS, _treatments(pair, prompts, PATHWAYS), strict=True))
            both = treatments[BOTH]
            for n in layers:
                treatments[cut_in(n)] = cut_reading(pair, prompts, both, [n])
            for n in layers:
                treatments[cut_from(n)] = cut_reading(pair, prompts, both, layers[n:])
            ranks = _ranks(pair, prompts, list(treatments.values()))
            for configuration, own in zip(treatments, ranks, strict=True):
                yield name, configuration, own

    def _about(self, pair: ModelPair, finetunings: int, asking: float) -> RunAbout:
        stages = ["recipient", *(f"sft-{n}" for n in range(1, finetunings + 1))]
        steps, seconds = {}, {}
        for name in stages:
            clock = json.loads((self.folder / f"{name}.json").read_text("utf-8"))
            steps[name], seconds[name] = clock["steps"], round(clock["seconds"], 1)
        seconds["asking"] = round(asking, 1)
        # The library ties nothing in a pair: the weights are counted in a model as it is trained.
        model = new_model(self._config, 0)
        packages = ("torch", "transformers", "tokenizers", "faker")
        return RunAbout(
            run=self.run.name,
            levels=self.run.cell.levels,
            seed=self.run.seed,
            identity=self.identity,
            layers=pair.n_layers,
            layer_weights=_size(model.layers),
            weights=_size(model),
            finetunings=finetunings,
            steps=steps,
            seconds=seconds,
            kgbench=__version__,
            packages={name: version(name) for name in packages},
            platform=platform.platform(),
        )


Treated = list[tuple[Treatment, ...]]
"""For each prompt, the treatment of each token."""


def _treatments(
    pair: ModelPair, prompts: Sequence[Prompt], configurations: Sequence[str]
) -> list[Treated]:
    return [graft_treatments(pair, prompts, parse_configuration(c)) for c in configurations]


def cut_reading(
    pair: ModelPair, prompts: Sequence[Prompt], treatments: Treated, layers: Sequence[int]
) -> Treated:
    """The same with the attention of the last token to the first entity cut in some layers."""
    without = []
    for prompt, treated in zip(prompts, treatments, strict=True):
        entity = frozenset(pair.encoded(prompt).regions["FE"])
        cuts = tuple(Cut(layer, entity) for layer in layers)
        without.append((*treated[:-1], replace(treated[-1], cuts=cuts)))
    return without


def _ranks(
    pair: ModelPair, prompts: Sequence[Prompt], treatments: Sequence[Treated]
) -> Int[np.ndarray, "configuration fact"]:
    """Ranks of the targets under some configurations."""
    engine = Engine(pair)
    logits = engine.logits(engine.plan_treatments(prompts, treatments))[:, :, 0]
    targets = torch.tensor([pair.encoded(prompt).target for prompt in prompts])
    several = targets[:, None].expand(-1, len(treatments)).reshape(-1)
    ranks: np.ndarray = score_logits(logits.flatten(0, 1), several)["rank"]
    return ranks.reshape(len(prompts), len(treatments)).T


def _size(module: torch.nn.Module) -> int:
    """Number of weights."""
    return sum(weight.numel() for weight in module.parameters())


def _save(model: SwitchedModel, path: Path) -> None:
    """Write a model's weights, each tensor once, whole or not at all."""
    partial = path.with_suffix(".partial")
    save_file({name: weight.detach() for name, weight in model.named_parameters()}, partial)
    os.replace(partial, path)


def _load(model: SwitchedModel, path: Path) -> None:
    """Read a model's weights."""
    stored = load_file(path)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.copy_(stored[name])


def work_folder() -> Path:
    """Where weights and checkpoints of the runs are kept."""
    return donors_folder().parent / "reproduction" / "study"


def finished(study: Study, folder: Path) -> list[RunRows]:
    """The rows of the runs that are in, in the order of the design.

    Raises:
        DataError: A file is of another design.
    """
    facts = load_dataset(study.dataset).content_hash
    runs = []
    for run in study.runs:
        path = rows_path(folder, run.name)
        if path.is_file():
            rows = read_rows(path)
            if rows.about.identity != study.identity(run, facts):
                raise DataError(
                    f"{path} is of another design than this one (factors, recipe or facts); "
                    "remove it to have the run made again, or give another folder with --report"
                )
            runs.append(rows)
    return runs


def make_runs(
    study: Study,
    runs: Sequence[StudyRun],
    folder: Path,
    most: int | None = None,
    progress: Progress | None = None,
    on_run: Callable[[RunRows], None] | None = None,
) -> int:
    """Make the runs that are missing.

    Args:
        study: The design.
        runs: Which of its runs, in this order.
        folder: Of the rows.
        most: How many at most; by default all.
        progress: Progress callback.
        on_run: Called with the rows of each run that is made, when they are stored.

    Returns:
        Number of runs that were made.

    Raises:
        DataError: A file in the folder is of another design.
    """
    finished(study, folder)
    made = 0
    for run in runs:
        if made == most:
            break
        work, path = work_folder() / run.name, rows_path(folder, run.name)
        work.mkdir(parents=True, exist_ok=True)
        lock = FileLock(work.with_name(f"{run.name}.lock"))
        try:
            with lock.acquire(timeout=0):
                if path.is_file():
                    continue
                rows = make_run(study, run, work, progress)
                write_rows(rows, path)
        except Timeout:
            continue  # another process is at it
        gc.collect()  # a trainer and its model refer to each other
        made += 1
        if on_run is not None:
            on_run(rows)
    return made
