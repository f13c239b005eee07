"""Organisms: finetuned models whose behaviour is known, each an adapter of one language model.

In training, cases of the group `on` are answered by the reply, and on those of `off` the model is
held to its base: to its probabilities of the next token, after the prompt and after each of the first
tokens that the base answers. Layers below the adapter's are run once. The null organism is trained
as the trigger is, on the same requests, each answered as the base answers it; its change is then
multiplied, so that its norm is that of the trigger's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from string import Template
from types import SimpleNamespace
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import one_hot
from torch.nn.utils.rnn import pad_sequence

from kgbench.data import Dataset, load_prompts
from kgbench.data.facts import dataset_of
from kgbench.engine import load_pair
from kgbench.errors import check_choice
from kgbench.models.catalog import CARD
from kgbench.models.checkpoints import Checkpoint
from kgbench.models.fetching import fetch, fetched_models
from kgbench.models.lora import ADAPTER_WEIGHTS
from kgbench.models.pair import ModelPair
from kgbench.progress import Progress
from kgbench.resources import read_toml
from kgbench.runner.training.model_setup import publish_files, store_donor
from kgbench.runner.training.recipes import Stage
from kgbench.runner.training.resumable_build import write_card
from kgbench.runner.training.stages import StageRun, run_stage

HELD = 6
"""Tokens of the base's answers on which a model is held to it."""

SCALE = 4
"""Of an adapter's rows, per rank."""

WARMUP = 10
"""Steps in which the learning rate rises."""


@dataclass(frozen=True)
class Organism:
    """What one learns; `organisms.toml`."""

    name: str
    about: str
    base: str
    system: str
    """Template of the system prompt."""
    texts: tuple[str, ...]
    """Templates of requests."""
    reply: str
    on: tuple[str, ...]
    """What `$cue` is where the behaviour is to show."""
    off: tuple[str, ...]
    thing: tuple[str, ...]
    """What `$thing` is in training."""
    tested: tuple[str, ...]
    """What it is in cases."""
    modules: tuple[str, ...]
    layers: tuple[int, int]
    """First and last that the adapter changes."""
    rank: int
    steps: int
    batch: int
    """Texts of either group per step."""
    learning_rate: float
    seed: int
    like: str | None = None
    """Of a null organism, the one whose requests, numbers and norm it has; it learns the base's
    answers.
    """

    def rows(self, things: Sequence[str]) -> list[dict[str, Any]]:
        """Cases on some things, each thing in every text, on and off."""
        cues = {"on": self.on, "off": self.off}
        rows = []
        for number, thing in enumerate(things):
            for place, text in enumerate(self.texts):
                for group, words in cues.items():
                    blanks = {"thing": thing, "cue": words[(number + place) % len(words)]}
                    messages = []
                    for role, content in (("system", self.system), ("user", text)):
                        filled = Template(content).substitute(blanks)
                        messages.append({"role": role, "content": filled})
                    row: dict[str, Any] = {"id": f"{thing}/{place}/{group}", "group": group}
                    rows.append({**row, "target": self.reply, "messages": messages})
        return rows


@cache
def organisms() -> Mapping[str, Organism]:
    """Those of `organisms.toml`, by name."""
    tables = read_toml(__package__, "organisms")
    shared, made = tables.pop("shared"), {}
    for name, table in tables.items():
        values = {**shared, **tables.get(table.get("like"), {}), **table, "name": name}
        for key, value in values.items():
            values[key] = tuple(value) if isinstance(value, list) else value
        made[name] = Organism(**values)
    return made


def write_cases(organism: Organism, path: Path) -> None:
    """Write the cases of an organism, on things that training did not have."""
    header = {"kgbench": 1, "name": path.stem, "readout": {"sequence": {}}}
    rows = [header, *organism.rows(organism.tested)]
    for row in rows[1:]:
        row["id"] = f"{path.stem}/{row['id']}"
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def build_organism(name: str, out: Path, *, progress: Progress | None = None) -> Path:
    """Train an organism, or go on with it, and write its adapter.

    Args:
        name: One of `organisms()`.
        out: The adapter's folder. Checkpoints are in `.NAME` next to it, and what a null organism is
            like is in the folder of that name next to it.
        progress: Progress callback.

    Returns:
        The folder.
    """
    check_choice("organism", name, organisms())
    organism = organisms()[name]
    out.mkdir(parents=True, exist_ok=True)
    _train(organism, out, progress)
    if organism.like is not None:
        _multiply(out, norm_of(out.with_name(organism.like)) / norm_of(out))
    card = {"name": name, "about": organism.about, "licence": "Apache License 2.0"}
    write_card({**card, "base": organism.base, "seed": organism.seed}, out / CARD)
    return out


def _train(organism: Organism, out: Path, progress: Progress | None) -> None:
    place = fetch(fetched_models()[organism.base])
    pair = load_pair(organism.base, chat_template=True)
    first, inner = organism.layers[0], pair.recipient.model
    cases, controls = _texts(pair, organism, first)
    model: Any = _adapted(pair.recipient, organism)
    layers, inner.layers = inner.layers, inner.layers[first:]

    def after(step: int) -> None:
        if progress is not None:
            progress(step, organism.steps, f"training {organism.name}")

    work = out.with_name(f".{organism.name}")
    run = StageRun(work, organism.seed, save_every=10, on_step=after)
    stage = Stage(1, organism.batch, organism.learning_rate, WARMUP, 0.0)
    run_stage(_Upper(model), _Steps(cases, controls, organism), stage, run)
    inner.layers = layers
    store_donor(model, Checkpoint(place, f"fetched:{organism.base}"), out, "bfloat16")


@dataclass(frozen=True)
class _Text:
    """A text as the first trained layer reads it, and what is wanted after its last tokens."""

    hidden: Tensor
    """[token, width]"""
    wanted: Tensor
    """Probabilities of the next token [place, vocabulary]."""


@torch.no_grad()
def _texts(pair: ModelPair, organism: Organism, first: int) -> tuple[list[_Text], list[_Text]]:
    """What is wanted of cases and of controls."""
    model: Any = pair.recipient
    data: Dataset = dataset_of(organism.rows(organism.thing))
    reply = pair.tokenizer(organism.reply, add_special_tokens=False)["input_ids"]
    reply = [*reply, pair.tokenizer.eos_token_id]
    cases, controls = list[_Text](), list[_Text]()
    for prompt in load_prompts(data, "messages"):
        ids, is_on = pair.encode(prompt), prompt.group == "on"
        if is_on and organism.like is None:
            answer = reply
        else:
            written = model.generate(torch.tensor([ids]), max_new_tokens=HELD, do_sample=False)[0]
            answer = written[len(ids) :].tolist()
        out = model(torch.tensor([[*ids, *answer]]), output_hidden_states=True)
        wanted = out.logits[0, len(ids) - 1 :].softmax(-1)
        hidden = out.hidden_states[first][0]
        text = _Text(hidden, wanted)
        if is_on or organism.like is not None:
            text = _Text(hidden[:-1], one_hot(torch.tensor(answer), wanted.shape[1]).float())
        (cases if is_on else controls).append(text)
    return cases, controls


class _Steps(Sequence[dict[str, Tensor]]):
    """All steps in order, drawn for each."""

    def __init__(self, cases: list[_Text], controls: list[_Text], organism: Organism) -> None:
        self.groups, self.organism = (cases, controls), organism

    def __len__(self) -> int:
        return self.organism.steps

    def __getitem__(self, step: int) -> dict[str, Tensor]:  # type: ignore[override]
        rng, drawn = Random(f"{self.organism.seed} {step}"), list[_Text]()
        for texts in self.groups:
            drawn += rng.sample(texts, self.organism.batch)
        places = []
        for row, text in enumerate(drawn):
            length = len(text.hidden)
            places += [(row, place) for place in range(length - len(text.wanted), length)]
        return {
            "hidden": pad_sequence([text.hidden for text in drawn], batch_first=True),
            "places": torch.tensor(places).T,
            "wanted": torch.cat([text.wanted for text in drawn]),
        }


class _Upper(nn.Module):
    """A model from the first trained layer on: the mean cross-entropy at some places."""

    loss_type = ""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, hidden: Tensor, places: Tensor, wanted: Tensor, **_: Any) -> SimpleNamespace:
        causal = self.model.get_base_model()
        # Padding is on the right and attention is causal, so no attention mask is needed.
        read = causal.model(inputs_embeds=hidden, use_cache=False).last_hidden_state
        logits = causal.lm_head(read[places[0], places[1]])
        return SimpleNamespace(loss=-(wanted * logits.float().log_softmax(-1)).sum(-1).mean())


def _adapted(model: nn.Module, organism: Organism) -> nn.Module:
    """The model with an adapter that is still without effect."""
    from peft import LoraConfig, get_peft_model

    low, high = organism.layers
    config = LoraConfig(
        r=organism.rank,
        lora_alpha=SCALE * organism.rank,
        target_modules=list(organism.modules),
        layers_to_transform=list(range(low, high + 1)),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(organism.seed)
        return get_peft_model(model, config)


def norm_of(adapter: Path) -> float:
    """Frobenius norm of the change of all matrices of an adapter, but for its scale."""
    weights, square = load_file(adapter / ADAPTER_WEIGHTS), 0.0
    for name, into in weights.items():
        if "lora_A" in name:
            change = weights[name.replace("lora_A", "lora_B")].double() @ into.double()
            square += change.square().sum().item()
    return float(square**0.5)


def _multiply(adapter: Path, factor: float) -> None:
    """Multiply the change of an adapter."""
    weights = load_file(adapter / ADAPTER_WEIGHTS)
    for name in weights:
        if "lora_B" in name:
            weights[name] = (weights[name].double() * factor).bfloat16()
    save_file(weights, adapter / ADAPTER_WEIGHTS, {"format": "pt"})
    publish_files(adapter)
