"""Scores of whole answers: log-likelihood, rank among the answers of a data set, first tokens.

Every candidate is read, and the engine's token trees share what candidates begin with in common. So
ranks are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Float

from kgbench.analyses import GRAFTS, SAMPLED, Analysis, Answer, Inputs, fact_sample
from kgbench.data import Prompt
from kgbench.errors import InputError, RegionError
from kgbench.estimate import Estimate, plain
from kgbench.numbers import count_text
from kgbench.progress import Progress
from kgbench.records.record import BOUNDS
from kgbench.report import Cell, Line, Lines, Report, Table, csv_lines
from kgbench.runner.spec import Settings, Spec
from kgbench.sites import BASELINES
from kgbench.stats import hit_rate, recovery
from kgbench.stats.answer_frequency import answer_counts, guess_text, is_blunt
from kgbench.stats.scores import support_of
from kgbench.stats.summary import means

if TYPE_CHECKING:  # the help of the command must not wait for torch
    from transformers import PreTrainedTokenizerBase

    from kgbench.engine import Engine
    from kgbench.models.encoding import Encoded, Encoder

Tokens = tuple[int, ...]
"""Token ids that follow a prompt."""
PASSAGES_AT_ONCE = 4096
"""Candidates planned together, of one prompt or of several, which bounds the memory of plans."""
ROWS_AT_ONCE = 1024
"""Token rows of a forward, where the budget has fewer. Its small trees take little attention, so
that it is faster than with the rows that suit larger ones."""


@dataclass(frozen=True)
class ScoredAnswer:
    """The answer to one prompt under one configuration."""

    fact: str
    prompt: str
    graft: str
    answer: str
    n_tokens: int
    """Of the answer."""
    logprob: float
    """Log-likelihood (nats) of the whole answer."""
    rank: int
    """1 + the number of other candidates that are at least as likely."""
    likeliest: str
    """The likeliest candidate; the answer itself where no other is as likely."""
    first_token: str
    """Text of the answer's first token."""
    first_logprob: float
    """Its log-probability (nats)."""
    first_rank: int
    """1 + the number of other tokens that are at least as probable, as `kgbench eval` has it."""
    alternatives: tuple[str, ...]
    """Texts of all tokens that the name can begin with, the answer's own first token included."""
    alternatives_prob: float
    """Their probability together."""
    alternatives_rank: int
    """The best of their ranks."""
    collisions: int
    """How many other candidates have the same first token."""


# ------------------------------------------------------------------------------------ candidates


def continuation(text: str, name: str) -> str:
    """The answer as text after another, with a blank before it unless that ends with one."""
    return name if text[-1].isspace() else f" {name}"


def encode_candidates(
    encoder: Encoder, prompt: Prompt, names: Sequence[str]
) -> tuple[Encoded, dict[str, Tokens]]:
    """A prompt, and by candidate the tokens that it adds to it.

    A blank that the tokenizer keeps apart is given with the prompt where it is before every
    candidate; else it is read as the candidates' own.

    Raises:
        RegionError: The prompt's tokens are not a prefix of those of prompt and candidate.
    """
    encoded = encoder(prompt)
    texts = [encoded.text + continuation(encoded.text, name) for name in names]
    special = not encoder.chat_template
    rows = encoder.tokenizer(texts, add_special_tokens=special)["input_ids"]
    if any(tuple(ids[: len(encoded.ids)]) != encoded.ids for ids in rows):
        encoded = encoded.without_blanks()
    head = list(encoded.ids)
    for name, ids in zip(names, rows, strict=True):
        if len(ids) <= len(head) or ids[: len(head)] != head:
            raise RegionError(
                f"fact {prompt.fact.id}, prompt {prompt.name!r}: the tokens of the prompt are "
                f"not a prefix of the tokens of prompt and candidate {name!r}, so that the "
                "candidate has no probability of its own"
            )
    return encoded, {name: tuple(ids[len(head) :]) for name, ids in zip(names, rows, strict=True)}


@lru_cache(maxsize=1)  # the tokens of a large vocabulary take seconds, and prompts come in groups
def token_texts(tokenizer: PreTrainedTokenizerBase, vocabulary: int) -> dict[str, tuple[int, ...]]:
    """Tokens by the text that they add to a text before them.

    A token is decoded after another one, since some tokenizers drop a leading blank at the
    beginning. Left out are special tokens, those that add nothing or only blanks, with which every
    name begins, and those that are no text by themselves, such as a part of a character.

    Args:
        tokenizer: Of the pair; its own vocabulary may be smaller than the model's.
        vocabulary: Number of tokens that the model has logits of.
    """
    before = int(tokenizer("a", add_special_tokens=False)["input_ids"][-1])
    start = str(tokenizer.decode([before], clean_up_tokenization_spaces=False))
    special = set(tokenizer.all_special_ids)
    for i, token in tokenizer.added_tokens_decoder.items():
        if token.special:
            special.add(i)
    ids = [i for i in range(min(vocabulary, len(tokenizer))) if i not in special]
    pairs = [[before, i] for i in ids]
    texts = tokenizer.batch_decode(pairs, clean_up_tokenization_spaces=False)
    by_text: dict[str, list[int]] = {}
    for i, text in zip(ids, texts, strict=True):
        added = text[len(start) :]
        if text.startswith(start) and added.strip():
            by_text.setdefault(added, []).append(i)
    return {text: tuple(tokens) for text, tokens in by_text.items()}


def first_tokens(texts: Mapping[str, tuple[int, ...]], answer: str, first: int) -> dict[int, str]:
    """The tokens whose text is a prefix of an answer's, the shortest first, and that text.

    Args:
        texts: Tokens by text, see `token_texts`.
        answer: The answer with the blank before it, if it has one.
        first: The token that the tokenizer begins it with, which always counts, even where it is a
            blank or a part of a character.
    """
    beginnings: dict[int, str] = {}
    for end in range(1, len(answer) + 1):
        for token in texts.get(answer[:end], ()):
            beginnings[token] = answer[:end]
    return beginnings if first in beginnings else {first: "", **beginnings}


# --------------------------------------------------------------------------------------- scoring


@dataclass(frozen=True)
class _Question:
    """One prompt, its candidates, and what was read of them."""

    prompt: Prompt
    encoded: Encoded
    candidates: Mapping[str, Tokens]
    alternatives: Mapping[int, str]
    """Tokens that the answer can begin with, and their texts."""
    blanks: int
    """Tokens of the answer before its first word."""
    logliks: Mapping[str, Float[np.ndarray, " configuration"]]
    """Log-likelihoods (nats) by candidate."""
    first: dict[int, dict[str, Any]] = field(default_factory=dict)
    """By configuration, scores of the first token and of its alternatives."""

    def first_word(self, name: str) -> Tokens:
        """Tokens of a candidate up to the first of its first word, which is scored."""
        return self.candidates[name][: self.blanks + 1]


def score_prompts(
    engine: Engine, prompts: Sequence[Prompt], names: Sequence[str], configurations: Sequence[str]
) -> list[ScoredAnswer]:
    """Score the answers to some prompts.

    Args:
        engine: Of the pair.
        prompts: Prompts whose targets are among the candidates.
        names: All candidates.
        configurations: Graft expressions, `PRE` or `SFT`.

    Returns:
        By prompt, then configuration.

    Raises:
        RegionError: The tokens of a prompt change with a candidate, or it lacks a graft's region.
        InputError: A prompt with a candidate is longer than the model reads.
    """
    from kgbench.models.encoding import Encoder
    from kgbench.runner.measure import chunks

    pair = engine.pair
    encoder = Encoder(pair.tokenizer, pair.chat_template)
    texts = token_texts(encoder.tokenizer, int(pair.recipient.config.vocab_size))
    questions = []
    passages: list[tuple[_Question, str]] = []
    for prompt in prompts:
        encoded, candidates = encode_candidates(encoder, prompt, names)
        _check_length(engine, prompt, candidates)
        of_eval, answer = pair.encoded(prompt), continuation(encoded.text, prompt.target)
        if of_eval.blanks:
            answer = answer.lstrip()
        alternatives = first_tokens(texts, answer, of_eval.target)
        blanks = of_eval.blanks - encoded.blanks
        logliks = {name: np.zeros(len(configurations)) for name in names}
        question = _Question(prompt, encoded, candidates, alternatives, blanks, logliks)
        questions.append(question)
        passages += ((question, name) for name in sorted(names, key=candidates.__getitem__))
    for chunk in chunks(passages, PASSAGES_AT_ONCE):
        _read(engine, chunk, configurations)
    scored = []
    for question in questions:
        for number, label in enumerate(configurations):
            scored.append(_scored(question, number, label, pair.tokenizer.decode))
    return scored


def _check_length(engine: Engine, prompt: Prompt, candidates: Mapping[str, Tokens]) -> None:
    most = getattr(engine.pair.recipient.config, "max_position_embeddings", None)
    name, tokens = max(candidates.items(), key=lambda named: len(named[1]))
    n = len(engine.pair.encoded(prompt).ids) + len(tokens) - 1
    if most is not None and n > most:
        raise InputError(
            f"fact {prompt.fact.id}, prompt {prompt.name!r} has {n} tokens with the candidate "
            f"{name!r}; the model reads at most {most}"
        )


def _read(
    engine: Engine, passages: Sequence[tuple[_Question, str]], configurations: Sequence[str]
) -> None:
    """Add up log-probabilities of candidates, and keep scores of first tokens.

    A candidate is read without its last token; its tokens are treated as LT is.
    """
    from kgbench.metrics import Read, score_labels

    read: dict[Prompt, Encoded] = {}
    reads, owners, stems = list[Read](), list[int](), list[int]()
    for place, (question, name) in enumerate(passages):
        last, tokens = len(question.encoded.ids) - 1, question.candidates[name]
        own = [Read(last + i, (token,)) for i, token in enumerate(tokens)]
        if name == question.prompt.target:
            own.append(Read(last + question.blanks, tuple(question.alternatives)))
        read[replace(question.prompt, target=name)] = question.encoded.reading(own, tokens[:-1])
        stems.append(id(question))
        reads += own
        owners += [place] * len(own)

    def label(configuration: int, number: int) -> str:
        prompt = passages[owners[number]][0].prompt
        where = f"fact {prompt.fact.id}, prompt {prompt.name!r}"
        return f"configuration {configurations[configuration]}, {where}"

    with engine.pair.read_as(read):
        plan = engine.plan(list(read), configurations, stems=stems)
    run = map(plan.numbered, engine.run(plan))
    parts = ((answers.prompt, answers.configuration, answers.logits) for answers in run)
    columns = score_labels(parts, reads, len(configurations), label)
    first = 0
    for question, name in passages:
        n = len(question.candidates[name])
        question.logliks[name][:] = columns["logprob"][:, first : first + n].sum(axis=1)
        if name == question.prompt.target:
            for number in range(len(configurations)):
                question.first[number] = {
                    "first_logprob": float(columns["logprob"][number, first + question.blanks]),
                    "first_rank": int(columns["rank"][number, first + question.blanks]),
                    "alternatives_prob": float(columns["prob"][number, first + n]),
                    "alternatives_rank": int(columns["rank"][number, first + n]),
                }
            n += 1
        first += n


def _scored(
    question: _Question, number: int, label: str, decode: Callable[..., Any]
) -> ScoredAnswer:
    prompt, first_word = question.prompt, question.first_word(question.prompt.target)
    logliks = {name: float(values[number]) for name, values in question.logliks.items()}
    answer_loglik = logliks.pop(prompt.target)
    likelier = [name for name, loglik in logliks.items() if loglik >= answer_loglik]
    alternatives = []
    for token, text in question.alternatives.items():
        alternatives.append(text or str(decode([token])))
    return ScoredAnswer(
        fact=prompt.fact.id,
        prompt=prompt.name,
        graft=label,
        answer=prompt.target,
        n_tokens=len(question.candidates[prompt.target]),
        logprob=answer_loglik,
        rank=1 + len(likelier),
        likeliest=min(likelier, key=lambda name: (-logliks[name], name), default=prompt.target),
        first_token=str(decode(first_word[-1:])),
        alternatives=tuple(alternatives),
        collisions=sum(question.first_word(name) == first_word for name in logliks),
        **question.first[number],
    )


@dataclass(frozen=True)
class AnswersRun:
    """Scored answers, and what they are of."""

    model: str
    dataset: str
    dtype: str
    seed: int
    """Of the choice of facts."""
    n_facts: int
    """Of the data set; some of them are scored."""
    candidates: tuple[str, ...]
    """The distinct answers of the data set."""
    answers: tuple[ScoredAnswer, ...]
    """By prompt, then fact, then configuration; PRE and SFT come first."""
    origins: Mapping[str, str] = field(default_factory=dict)
    """Where the models of the pair are from, by name."""


def score_answers(
    spec: Spec, settings: Settings, n_facts: int, progress: Progress | None = None
) -> AnswersRun:
    """Score the whole answers to the prompts of some facts; the candidates are those of all facts.

    Args:
        spec: Pair, facts, prompts and grafts; its seed chooses the facts.
        settings: How it is computed.
        n_facts: How many facts; all where there are fewer.
        progress: Progress callback.

    Raises:
        InputError: Something in the specification is wrong, or there is only one candidate.
    """
    from kgbench.engine import Engine
    from kgbench.runner.job import prepare_job
    from kgbench.runner.measure import chunks

    job = prepare_job(spec, settings)
    names = job.dataset.answers
    if len(names) < 2:
        raise InputError(
            f"data set {job.dataset.name!r} has only the answer {names[0]!r}, "
            "and a rank needs two candidates or more"
        )
    chosen = set(fact_sample(job.all_prompts, n_facts, spec.seed))
    configurations = tuple(dict.fromkeys([*BASELINES, *spec.grafts]))
    prompts = [prompt for prompt in job.all_prompts if prompt.fact.id in chosen]
    rows: list[ScoredAnswer] = []
    budget = replace(job.engine.budget, tokens=max(job.engine.budget.tokens, ROWS_AT_ONCE))
    engine = Engine(job.pair, job.engine.executor, budget)
    for group in chunks(prompts, max(1, PASSAGES_AT_ONCE // len(names))):
        if progress is not None:
            progress(len(rows) // len(configurations), len(prompts), group[0].name)
        rows += score_prompts(engine, group, names, configurations)
    return AnswersRun(
        job.pair.name,
        job.dataset.name,
        str(job.pair.dtype).removeprefix("torch."),
        spec.seed,
        len({prompt.fact.id for prompt in job.all_prompts}),
        names,
        tuple(rows),
        job.pair.origins,
    )


# --------------------------------------------------------------------------------------- figures


TOP = 5
"""Of the hits that recoveries are of, as in `kgbench eval`."""

_SCORES: Mapping[str, Callable[[ScoredAnswer], bool | float]] = {
    "logprob": lambda row: row.logprob,
    "top1": lambda row: row.rank <= 1,
    "top5": lambda row: row.rank <= TOP,
    "mrr": lambda row: 1 / row.rank,
    "first_top5": lambda row: row.first_rank <= TOP,
    "first_prob": lambda row: float(np.exp(row.first_logprob)),
    "alternatives_top5": lambda row: row.alternatives_rank <= TOP,
    "alternatives_prob": lambda row: row.alternatives_prob,
}
_RECOVERIES = {"recovery": "top5", "first_recovery": "first_top5"}

FIGURES = (*_SCORES, *_RECOVERIES)
"""`logprob` (nats), `top1`, `top5` and `mrr` of the whole answer among the candidates; top-5 hit
rate and probability of its first token, and of all first tokens of the name (`alternatives_…`);
recovery on `top5` and on `first_top5`."""

_SUPPORT = {"mrr": (0.0, 1.0), "first_prob": (0.0, 1.0), "alternatives_prob": (0.0, 1.0)}
"""Bounds of scores; log-likelihoods are bounded by the means of the prompt's configurations."""


@dataclass(frozen=True)
class PromptFigures:
    """The figures of one prompt."""

    name: str
    n: int
    """Number of facts."""
    configurations: Mapping[str, Mapping[str, Estimate]]
    """By configuration, then by the names in `FIGURES`."""
    colliding: Estimate
    """Share of the answers whose first token is another candidate's too."""
    counts: tuple[int, ...]
    """How often each first token is the answer's, the most frequent first."""


def answer_figures(answers: Sequence[ScoredAnswer]) -> list[PromptFigures]:
    """The figures of each prompt.

    Args:
        answers: Of the same facts under every configuration, in one order.
    """
    by_prompt: dict[str, list[ScoredAnswer]] = {}
    for row in answers:
        by_prompt.setdefault(row.prompt, []).append(row)
    return list(map(_prompt_figures, by_prompt.values()))


def _prompt_figures(answers: Sequence[ScoredAnswer]) -> PromptFigures:
    rows: dict[str, list[ScoredAnswer]] = {}
    for row in answers:
        rows.setdefault(row.graft, []).append(row)
    facts = rows["PRE"]
    figures: dict[str, dict[str, Estimate]] = {graft: {} for graft in rows}
    for name, score in _SCORES.items():
        scores = {}
        for graft, answers_of_graft in rows.items():
            scores[graft] = np.array(list(map(score, answers_of_graft)))
        support = _SUPPORT.get(name) or support_of(scores.values())
        for graft, figure in means(scores, support).items():
            figures[graft][name] = figure.within(*BOUNDS.get(name, (-inf, inf)))
        for ratio, metric in _RECOVERIES.items():
            if metric == name:
                for graft in rows:
                    figures[graft][ratio] = recovery(scores, graft)
    return PromptFigures(
        facts[0].prompt,
        len(facts),
        figures,
        hit_rate(sum(row.collisions > 0 for row in facts), len(facts)),
        answer_counts([row.first_token for row in facts]),
    )


GRAFT_WIDTH = 20

WHOLE = {"logprob": "logprob", "top1": "top1", "top5": "top5", "mrr": "mrr", "recovery": "recovery"}
FIRST = {
    "first_top5": "top5",
    "alternatives_top5": "top5, any",
    "first_prob": "prob",
    "alternatives_prob": "prob, any",
    "first_recovery": "recovery",
}
"""Heads of the tables' columns."""

LEGEND = (
    "logprob: log-likelihood of all tokens of the answer, in nats, later ones treated as LT; "
    "mrr: mean of 1 / rank",
    "any: the best rank of any token that the name can begin with, and the probability of all of "
    "them",
    "recovery: the share of what finetuning added to top5 that a graft brings",
)


def answers_report(run: AnswersRun, prompts: Sequence[PromptFigures]) -> Report:
    """Two tables per prompt, of the whole answer among the candidates and of its first token."""
    facts = max(prompt.n for prompt in prompts)
    sample = f"all {count_text(facts, 'fact')}"
    if facts < run.n_facts:
        sample = f"{facts} of {run.n_facts} facts, seed {run.seed}"
    title = (
        f"whole answers of {run.model}, {run.dataset}, {run.dtype}, {sample}: "
        "means over facts with 95 % intervals"
    )
    n = len(run.candidates)
    chance = ", ".join(f"top{k} {min(k, n)}/{n}" for k in (1, 5))
    parts: list[Table | Lines] = []
    for prompt in prompts:
        of = count_text(prompt.n, "fact")
        whole_title = (
            f"{prompt.name}: the whole answer among {n} candidates, {of} (by chance: {chance})"
        )
        about = (
            "Share of these answers whose first token is another candidate's too: ",
            prompt.colliding.rounded(),
            ".",
        )
        first = f"{prompt.name}: the first token, {of}"
        lines: list[Line] = [about]
        donor = prompt.configurations["SFT"]["first_top5"]
        if is_blunt(prompt.counts, "top5", donor, facts < run.n_facts):
            guess = guess_text(prompt.counts, "top5")
            lines.append(f"{guess}: the recovery of first tokens says little of facts.")
        parts += [_table(prompt, whole_title, WHOLE), _table(prompt, first, FIRST), Lines(lines)]
    return Report(title, parts, notes=LEGEND)


def _table(prompt: PromptFigures, title: str, heads: Mapping[str, str]) -> Table:
    rows: list[list[Cell]] = []
    for graft, figures in prompt.configurations.items():
        rows.append([graft, *(figures[name].rounded() for name in heads)])
    return Table(title, ["graft", *heads.values()], rows, GRAFT_WIDTH)


def answers_json(run: AnswersRun, prompts: Sequence[PromptFigures]) -> dict[str, Any]:
    """The object that `kgbench answers --json` prints; `facts` has a row per scored answer."""
    rows, colliding = [], {}
    for prompt in prompts:
        for graft, figures in prompt.configurations.items():
            estimates = {name: figure.rounded().answer() for name, figure in figures.items()}
            rows.append({"prompt": prompt.name, "graft": graft, "n": prompt.n, **estimates})
        colliding[prompt.name] = prompt.colliding.rounded().answer()
    return {
        "model": run.model,
        "dataset": run.dataset,
        "dtype": run.dtype,
        "seed": run.seed,
        "candidates": len(run.candidates),
        "origins": dict(run.origins),
        "rows": rows,
        "colliding": colliding,
        "facts": plain(run.answers),
    }


def answers_csv(run: AnswersRun) -> str:
    """A line per prompt, fact and configuration."""
    return csv_lines(plain(run.answers), [column.name for column in fields(ScoredAnswer)])


@dataclass(frozen=True)
class WholeAnswers(Analysis):
    """Score whole answers under grafts, where `kgbench eval` reads their first token.

    Names that begin alike share their first token, and one name can begin with
    several: " R", " Rob", " Robert". So this gives the log-likelihood of the
    whole answer, its rank among all answers of the data set, and next to the rank
    of its first token the best rank of any token that the name can begin with.

    \b
    kgbench answers kgbench-results/RUN --limit 50
    """  # noqa: D301 (click reads the character, not its escape)

    name = "answers"
    about = "Score whole answers instead of their first tokens."
    arguments = "RUN"
    of = "pair"
    takes = ("grafts", "seed", "device")
    changes = SAMPLED
    writes_csv = True

    facts: int = field(default=100, metadata={"flag": "--limit", "also": "--facts", "metavar": "N"})
    """Number of facts."""

    def answer(self, inputs: Inputs) -> Answer:
        """Score the answers, and estimate the figures of each prompt."""
        (spec,) = inputs.specs
        spec = replace(spec, grafts=spec.grafts or GRAFTS)
        run = score_answers(spec, inputs.settings, self.facts, inputs.progress)
        prompts = answer_figures(run.answers)
        report, json = answers_report(run, prompts), answers_json(run, prompts)
        return Answer(report, json, answers_csv(run), run.origins)
