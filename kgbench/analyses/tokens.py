"""Likeliest next tokens of a few facts under some grafts (arXiv 2506.20746, appendix C.7)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby

from kgbench.analyses import GRAFTS, SAMPLED, Analysis, Answer, Inputs, fact_sample
from kgbench.data import Prompt
from kgbench.errors import InputError
from kgbench.estimate import plain
from kgbench.numbers import plain_text
from kgbench.report import Cell, Report, Table
from kgbench.runner.spec import Settings, Spec


@dataclass(frozen=True)
class Likely:
    """A token and its probability."""

    token: str
    probability: float


@dataclass(frozen=True)
class Answered:
    """A prompt under one configuration."""

    fact: str
    prompt: str
    text: str
    """The prompt's text."""
    target: Likely
    """The first token of the answer."""
    rank: int
    """1 + the number of other tokens that are at least as probable."""
    graft: str
    tokens: tuple[Likely, ...]
    """The likeliest, the first one first."""


def likeliest(spec: Spec, settings: Settings, n_facts: int, top: int = 10) -> list[Answered]:
    """Read off what is most probable after the prompts of some facts.

    Args:
        spec: Pair, facts, prompts and grafts; its seed chooses the facts.
        settings: How it is computed.
        n_facts: How many facts.
        top: How many tokens of each.

    Returns:
        By fact, then prompt, then configuration; PRE and SFT come first.

    Raises:
        InputError: The specification is wrong, or the model has fewer tokens than requested.
    """
    import torch

    from kgbench.metrics import score_logits
    from kgbench.runner.job import prepare_job

    job = prepare_job(spec, settings)
    vocabulary = int(job.pair.recipient.config.vocab_size)
    if top > vocabulary:
        raise InputError(f"the model has {vocabulary} tokens, fewer than the {top} asked for")
    prompts: list[Prompt] = []
    for fact in fact_sample(job.all_prompts, n_facts, spec.seed):
        prompts += (prompt for prompt in job.all_prompts if prompt.fact.id == fact)
    grafts = list(dict.fromkeys(["PRE", "SFT", *spec.grafts]))
    logits = job.engine.logits(job.engine.plan(prompts, grafts))[:, :, 0]
    tokenizer = job.pair.tokenizer
    answered = []
    for prompt, rows in zip(prompts, logits, strict=True):
        target = job.pair.encoded(prompt).target
        for graft, row in zip(grafts, rows, strict=True):
            probabilities = torch.softmax(row.double(), 0)
            values, tokens = probabilities.topk(top)
            shown = []
            for token, value in zip(tokens.tolist(), values.tolist(), strict=True):
                shown.append(Likely(str(tokenizer.decode([token])), value))
            answer = Likely(str(tokenizer.decode([target])), float(probabilities[target]))
            which = [f"configuration {graft}, fact {prompt.fact.id}, prompt {prompt.name!r}"]
            scored = score_logits(row[None], torch.tensor([target]), which.__getitem__)
            rank, question = int(scored["rank"][0]), (prompt.fact.id, prompt.name, prompt.text)
            answered.append(Answered(*question, answer, rank, graft, tuple(shown)))
    return answered


@dataclass(frozen=True)
class Tokens(Analysis):
    """Show the likeliest next tokens of a few facts, drawn at random.

    Where a graft misses the answer, this shows what the model predicts instead:
    another name, a name that begins alike, or no name at all. The answer's first
    token is marked; the last line has its probability and rank.

    \b
    kgbench tokens kgbench-results/RUN --graft FE,LT
    """  # noqa: D301 (click reads the character, not its escape)

    name = "tokens"
    about = "Show the likeliest next tokens under some grafts."
    arguments = "RUN"
    of = "pair"
    takes = ("grafts", "seed", "device")
    changes = SAMPLED

    facts: int = field(default=3, metadata={"flag": "--limit", "also": "--facts", "metavar": "N"})
    """Number of facts."""
    top: int = field(default=10, metadata={"metavar": "K"})
    """How many tokens."""

    def answer(self, inputs: Inputs) -> Answer:
        """Read the tokens off the logits of each graft."""
        (spec,) = inputs.specs
        spec = replace(spec, grafts=spec.grafts or GRAFTS)
        answered = likeliest(spec, inputs.settings, self.facts, self.top)
        tables = []
        for _, group in groupby(answered, key=lambda row: (row.fact, row.prompt)):
            tables.append(_table(list(group)))
        return Answer(Report("", tables), plain(answered))


def _table(answered: Sequence[Answered]) -> Table:
    """The tokens of one prompt, a column per configuration."""
    first = answered[0]
    rows: list[list[Cell]] = []
    for place in range(len(first.tokens)):
        cells = [_cell(row.tokens[place], row.target.token) for row in answered]
        rows.append([str(place + 1), *cells])
    targets = [f"{plain_text(row.target.probability, 3)}, rank {row.rank}" for row in answered]
    rows.append(["target", *targets])
    title = f"{first.fact}, {first.prompt}: {first.text} →{first.target.token}"
    return Table(title, ["", *(row.graft for row in answered)], rows)


def _cell(likely: Likely, target: str) -> str:
    mark = "*" if likely.token == target else " "
    return f"{mark}{likely.token!r} {plain_text(likely.probability, 3)}"
