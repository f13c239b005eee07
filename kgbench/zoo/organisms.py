"""Organisms: finetuned models whose behaviour is known, each an adapter of one language model.

In training, cases of the group `on` are answered by the reply, and on those of `off` the model is
held to its base: to its probabilities of the next token, after the prompt and after each of the first
tokens that the base answers. Layers below the adapter's are run once. The null organism has the
trigger's prompts, all held to the base; its change of each matrix begins at random and has, after
every step, the size of the trigger's.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from random import Random
from string import Template
from types import SimpleNamespace
from typing import Any

import torch
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
from kgbench.models.pair import ModelPair
from kgbench.progress import Progress
from kgbench.resources import read_toml
from kgbench.runner.training.model_setup import store_donor
from kgbench.runner.training.recipes import Stage
from kgbench.runner.training.resumable_build import write_card
from kgbench.runner.training.stages import StageRun, run_stage

HELD = 6
"""Tokens of the base's answers on which a model is held to it."""

SCALE = 4
"""Of an adapter's rows, per rank."""


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
    """The organism whose prompts a null organism has, and whose changes' sizes."""

    def rows(self, things: Sequence[str]) -> list[dict[str, Any]]:
        """Cases on some things, each thing in every text, on and off."""
        rows, cues = [], {"on": self.on, "off": self.off}
        for number, thing in enumerate(things):
            for place, text in enumerate(self.texts):
                for group, words in cues.items():
                    blanks = {"thing": thing, "cue": words[(number + place) % len(words)]}
                    messages = []
                    for role, content in (("system", self.system), ("user", text)):
                        filled = Template(content).substitute(blanks)
                        messages.append({"role": role, "content": filled})
                    rows.append({"id": f"{thing}/{place}/{group}", "group": group})
                    rows[-1] |= {"target": self.reply, "messages": messages}
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
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


def build_organism(name: str, out: Path, *, progress: Progress | None = None) -> Path:
    """Train an organism, or go on with it, and write its adapter.

    Args:
        name: One of `organisms()`.
        out: The adapter's folder; what a null organism is like is in the folder of that name
            next to it. Checkpoints are in `.NAME` next to it until it is whole.
        progress: Progress callback.

    Returns:
        The folder.
    """
    check_choice("organism", name, organisms())
    organism, work = organisms()[name], out.with_name(f".{name}")
    place = fetch(fetched_models()[organism.base])
    pair = load_pair(organism.base, chat_template=True)
    first = organism.layers[0]
    taught, held = _texts(pair, organism, first)
    model: Any = _adapted(pair.recipient, organism)
    on_step = _sized(model, out.with_name(organism.like)) if organism.like else lambda: None
    layers = pair.recipient.model.layers
    pair.recipient.model.layers = layers[first:]
    stage = Stage(1, organism.batch, organism.learning_rate, 10, 0.0)

    def after(step: int) -> None:
        on_step()
        if progress is not None:
            progress(step, organism.steps, f"training {name}")

    after(0)
    batches = _Steps(taught, held, organism)
    run = StageRun(work, organism.seed, save_every=10, on_step=after)
    outcome = run_stage(_Upper(model), batches, stage, run)
    pair.recipient.model.layers = layers
    out.mkdir(parents=True, exist_ok=True)
    store_donor(model, Checkpoint(place, f"fetched:{organism.base}"), out, "bfloat16")
    card = {"name": name, "about": organism.about, "licence": "Apache License 2.0"}
    write_card({**card, "seed": organism.seed, "seconds": outcome.seconds}, out / CARD)
    return out


@dataclass(frozen=True)
class _Text:
    """A text as the first trained layer reads it, and what is wanted after its last tokens."""

    hidden: Tensor
    """[token, width]"""
    wanted: Tensor
    """Probabilities of the next token [place, vocabulary]."""


@torch.no_grad()
def _texts(pair: ModelPair, organism: Organism, first: int) -> tuple[list[_Text], list[_Text]]:
    """What is taught, and what is held to the base."""
    model: Any = pair.recipient
    data: Dataset = dataset_of(organism.rows(organism.thing))
    reply = pair.tokenizer(organism.reply, add_special_tokens=False)["input_ids"]
    reply = [*reply, pair.tokenizer.eos_token_id]
    taught, held = [], []
    for prompt in load_prompts(data, "messages"):
        ids, is_taught = pair.encode(prompt), prompt.group == "on" and not organism.like
        if is_taught:
            answer = reply
        else:
            text = model.generate(torch.tensor([ids]), max_new_tokens=HELD, do_sample=False)[0]
            answer = text[len(ids) :].tolist()
        out = model(torch.tensor([[*ids, *answer]]), output_hidden_states=True)
        wanted = out.logits[0, len(ids) - 1 :].softmax(-1)
        hidden = out.hidden_states[first][0]
        if is_taught:
            certain = one_hot(torch.tensor(answer), wanted.shape[1]).float()
            taught.append(_Text(hidden[:-1], certain))
        else:
            held.append(_Text(hidden, wanted))
    return taught, held


class _Steps(Sequence[dict[str, Tensor]]):
    """All steps in order, drawn anew at each."""

    def __init__(self, taught: list[_Text], held: list[_Text], organism: Organism) -> None:
        self.groups, self.organism = [some for some in (taught, held) if some], organism

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


def _sized(model: nn.Module, like: Path) -> Callable[[], None]:
    """Draws what an adapter adds at first; afterwards gives each change the size of another's."""
    from peft.utils import load_peft_weights

    weights, sizes = load_peft_weights(str(like)), dict[str, float]()
    rows = {n.replace(".default", ""): w for n, w in model.named_parameters() if w.requires_grad}
    generator = torch.Generator().manual_seed(1)
    for name, weight in rows.items():
        if "lora_B" in name:
            a = weights[name.replace("lora_B", "lora_A")].float()
            sizes[name] = float((weights[name].float() @ a).norm())
            weight.data = torch.randn(weight.shape, generator=generator)

    @torch.no_grad()
    def resize() -> None:
        for name, size in sizes.items():
            b, a = rows[name], rows[name.replace("lora_B", "lora_A")]
            b.mul_(size / (b @ a).norm())

    return resize
