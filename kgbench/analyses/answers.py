"""Scores of whole answers: log-likelihood, rank among the answers of a data set, first tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from kgbench.analyses import GRAFTS, SAMPLED, Analysis, Answer, Inputs, fact_sample
from kgbench.errors import InputError
from kgbench.estimate import Estimate, plain
from kgbench.numbers import number_text, percent_text
from kgbench.progress import Progress
from kgbench.report import Cell, Lines, Report, Table, csv_lines
from kgbench.runner.spec import Settings, Spec
from kgbench.sites import BASELINES
from kgbench.stats import hit_rate, recovery
from kgbench.stats.scores import support_of
from kgbench.stats.summary import means


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
    scored: int
    """How many candidates had to be scored to their last token."""


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
    sharers: float
    """How many other candidates have an answer's first token, on average."""
    several: Estimate
    """Share of the answers that can begin with several tokens."""
    scored: float
    """Share of the candidates that had to be scored to their last token."""


def answer_figures(answers: Sequence[ScoredAnswer], n_candidates: int) -> list[PromptFigures]:
    """The figures of each prompt.

    Args:
        answers: Of the same facts under every configuration, in one order.
        n_candidates: Number of candidates.
    """
    by_prompt: dict[str, list[ScoredAnswer]] = {}
    for row in answers:
        by_prompt.setdefault(row.prompt, []).append(row)
    return [_prompt_figures(rows, n_candidates) for rows in by_prompt.values()]


def _prompt_figures(answers: Sequence[ScoredAnswer], n_candidates: int) -> PromptFigures:
    rows: dict[str, list[ScoredAnswer]] = {}
    for row in answers:
        rows.setdefault(row.graft, []).append(row)
    facts = rows["PRE"]
    figures: dict[str, dict[str, Estimate]] = {graft: {} for graft in rows}
    for name, score in _SCORES.items():
        scores = {}
        for graft, some in rows.items():
            scores[graft] = np.array(list(map(score, some)))
        support = _SUPPORT.get(name) or support_of(scores.values())
        for graft, figure in means(scores, support).items():
            figures[graft][name] = figure
        for ratio, metric in _RECOVERIES.items():
            if metric == name:
                for graft in rows:
                    figures[graft][ratio] = recovery(scores, graft)
    return PromptFigures(
        facts[0].prompt,
        len(facts),
        figures,
        hit_rate(sum(row.collisions > 0 for row in facts), len(facts)),
        float(np.mean([row.collisions for row in facts])),
        hit_rate(sum(len(row.alternatives) > 1 for row in facts), len(facts)),
        float(np.mean([row.scored for row in answers])) / n_candidates,
    )


PROMPTS_AT_ONCE = 8
"""Prompts whose candidates are searched together, which bounds the memory of the search."""
ROWS_AT_ONCE = 1024
"""Token rows of a forward, where the budget has fewer. Its small trees take little attention, so
that it is faster than with the rows that suit larger ones."""


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
    from kgbench.analyses._whole_answers import candidate_names, score_prompts
    from kgbench.engine import Engine
    from kgbench.runner.job import prepare_job

    job = prepare_job(spec, settings)
    names = candidate_names(job.dataset)
    if len(names) < 2:
        raise InputError(
            f"data set {job.dataset.name!r} has only the answer {names[0]!r}, "
            "and a rank needs two candidates or more"
        )
    chosen = set(fact_sample(job.all_prompts, n_facts, spec.seed))
    configurations = tuple(dict.fromkeys([*BASELINES, *spec.grafts]))
    prompts = {}
    for name, some in job.prompts.items():
        prompts[name] = [prompt for prompt in some if prompt.fact.id in chosen]
    total, done = sum(map(len, prompts.values())), 0
    rows: list[ScoredAnswer] = []
    budget = job.engine.budget
    budget = replace(budget, tokens=max(budget.tokens, ROWS_AT_ONCE))
    engine = Engine(job.pair, job.engine.executor, budget)
    for name, some in prompts.items():
        for start in range(0, len(some), PROMPTS_AT_ONCE):
            if progress is not None:
                progress(done, total, name)
            group = some[start : start + PROMPTS_AT_ONCE]
            rows += score_prompts(engine, group, names, configurations)
            done += len(group)
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
    sample = f"all {_facts(facts)}"
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
        of = _facts(prompt.n)
        whole = f"{prompt.name}: the whole answer among {n} candidates, {of} (by chance: {chance})"
        about = (
            "Share of these answers whose first token is another candidate's too: ",
            prompt.colliding.rounded(),
            f", with {number_text(prompt.sharers)} others on average; "
            "that can begin with several tokens: ",
            prompt.several.rounded(),
            f". To the last token were scored {percent_text(prompt.scored)} % of the candidates; "
            "the others cannot be more likely than the answer.",
        )
        first = f"{prompt.name}: the first token, {of}"
        parts += [_table(prompt, whole, WHOLE), _table(prompt, first, FIRST), Lines([about])]
    return Report(title, parts, notes=LEGEND)


def _table(prompt: PromptFigures, title: str, heads: Mapping[str, str]) -> Table:
    rows: list[list[Cell]] = []
    for graft, figures in prompt.configurations.items():
        rows.append([graft, *(figures[name].rounded() for name in heads)])
    return Table(title, ["graft", *heads.values()], rows, GRAFT_WIDTH)


def _facts(n: int) -> str:
    return f"{n} fact{'s' * (n > 1)}"


def answers_json(run: AnswersRun, prompts: Sequence[PromptFigures]) -> dict[str, Any]:
    """The object that `kgbench answers --json` prints; `facts` has a row per scored answer."""
    rows, first_tokens = [], {}
    for prompt in prompts:
        for graft, figures in prompt.configurations.items():
            row: dict[str, Any] = {"prompt": prompt.name, "graft": graft, "n": prompt.n}
            for name, figure in figures.items():
                row[name] = figure.rounded().answer()
            rows.append(row)
        first_tokens[prompt.name] = {
            "colliding": prompt.colliding.rounded().answer(),
            "sharers": prompt.sharers,
            "several_first_tokens": prompt.several.rounded().answer(),
            "scored": prompt.scored,
        }
    return {
        "model": run.model,
        "dataset": run.dataset,
        "dtype": run.dtype,
        "seed": run.seed,
        "candidates": len(run.candidates),
        "origins": dict(run.origins),
        "rows": rows,
        "first_tokens": first_tokens,
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
    takes = ("grafts", "seed", "batch_size", "device")
    changes = SAMPLED
    writes_csv = True

    facts: int = field(
        default=100, metadata={"flag": "--limit", "alias": "--facts", "metavar": "N"}
    )
    """Number of facts."""

    def answer(self, inputs: Inputs) -> Answer:
        """Score the answers, and estimate the figures of each prompt."""
        (spec,) = inputs.specs
        spec = replace(spec, grafts=spec.grafts or GRAFTS)
        run = score_answers(spec, inputs.settings, self.facts, inputs.progress)
        prompts = answer_figures(run.answers, len(run.candidates))
        report, json = answers_report(run, prompts), answers_json(run, prompts)
        return Answer(report, json, answers_csv(run), run.origins)
