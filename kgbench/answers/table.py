"""Scored answers as text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

from tabulate import tabulate

from kgbench.answers.figures import PromptFigures
from kgbench.answers.run import AnswersRun
from kgbench.board.escape import csv_text
from kgbench.board.footnotes import Footnotes
from kgbench.board.wrap import wrapped
from kgbench.estimate import Estimate
from kgbench.numbers import number_text, percent_text

__all__ = ["answers_csv", "answers_json", "render_answers"]

GRAFT_WIDTH = 20
"""Longer graft expressions are wrapped."""

WHOLE = {"logprob": "logprob", "top1": "top1", "top5": "top5", "mrr": "mrr", "recovery": "recovery"}
FIRST = {
    "first_top5": "top5",
    "alternatives_top5": "top5, any",
    "first_prob": "prob",
    "alternatives_prob": "prob, any",
    "first_recovery": "recovery",
}
"""Heads of the figures."""


def render_answers(run: AnswersRun, prompts: Sequence[PromptFigures]) -> str:
    """Two tables per prompt, of the whole answer among the candidates and of its first token, and what they mean.

    Returns:
        Text of at most 100 columns, without a line end after the last line.
    """
    notes = Footnotes()
    blocks = [block for prompt in prompts for block in _blocks(run, prompt, notes)]
    reasons = [wrapped(line, "    ") for line in notes.lines()]
    return "\n\n".join([_head(run, prompts), *blocks, "\n".join([_legend(), *reasons])])


def answers_json(run: AnswersRun, prompts: Sequence[PromptFigures]) -> dict[str, Any]:
    """The object that `kgbench answers --json` prints; `facts` has a row per prompt, fact and configuration."""
    rows = [
        {
            "prompt": prompt.name,
            "graft": one.graft,
            "n": prompt.n,
            **{name: _estimate(figure).answer() for name, figure in one.figures.items()},
        }
        for prompt in prompts
        for one in prompt.configurations
    ]
    about = {
        prompt.name: {
            "colliding": _estimate(prompt.colliding).answer(),
            "sharers": prompt.sharers,
            "several_first_tokens": _estimate(prompt.several).answer(),
            "scored": prompt.scored,
        }
        for prompt in prompts
    }
    what = {
        "model": run.model,
        "dataset": run.dataset,
        "dtype": run.dtype,
        "seed": run.seed,
        "candidates": len(run.candidates),
    }
    return {
        **what,
        "origins": dict(run.origins),
        "rows": rows,
        "first_tokens": about,
        "facts": [row.to_json() for row in run.answers],
    }


def answers_csv(run: AnswersRun) -> str:
    """A line per prompt, fact and configuration; text that a spreadsheet would compute begins with an apostrophe."""
    out = io.StringIO(newline="")
    rows = [_cells(row.to_json()) for row in run.answers]
    writer = csv.DictWriter(out, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def _cells(row: Mapping[str, Any]) -> dict[str, Any]:
    texts = {
        name: "|".join(value) if isinstance(value, list) else value for name, value in row.items()
    }
    return {
        name: csv_text(value) if isinstance(value, str) else value for name, value in texts.items()
    }


def _head(run: AnswersRun, prompts: Sequence[PromptFigures]) -> str:
    n = max(prompt.n for prompt in prompts)
    sample = (
        f"{n} of {run.n_facts} facts, seed {run.seed}" if n < run.n_facts else f"all {_facts(n)}"
    )
    return wrapped(
        f"whole answers of {run.model}, {run.dataset}, {run.dtype}, {sample}: means over facts with 95 % intervals"
    )


def _blocks(run: AnswersRun, prompt: PromptFigures, notes: Footnotes) -> list[str]:
    n = len(run.candidates)
    chance = ", ".join(f"top{k} {min(k, n)}/{n}" for k in (1, 5))
    whole = f"{prompt.name}: the whole answer among {n} candidates, {_facts(prompt.n)} (by chance: {chance})"
    first = f"{prompt.name}: the first token, {_facts(prompt.n)}"
    told = (
        f"Share of these answers whose first token is another candidate's too: {_cell(prompt.colliding, notes)}, with "
        f"{number_text(prompt.sharers)} others on average; that can begin with several tokens: {_cell(prompt.several, notes)}. "
        f"To the last token were scored {percent_text(prompt.scored)} % of the candidates; "
        "the others cannot be more likely than the answer."
    )
    return [
        f"{whole}\n{_table(prompt, WHOLE, notes)}",
        f"{first}\n{_table(prompt, FIRST, notes)}",
        wrapped(told),
    ]


def _table(prompt: PromptFigures, heads: Mapping[str, str], notes: Footnotes) -> str:
    body = [
        [
            "\n".join(textwrap.wrap(one.graft, GRAFT_WIDTH)),
            *(_cell(one.figures[name], notes) for name in heads),
        ]
        for one in prompt.configurations
    ]
    return tabulate(body, ["graft", *heads.values()], tablefmt="simple", disable_numparse=True)


def _cell(figure: Estimate, notes: Footnotes) -> str:
    return notes.cell(_estimate(figure))


def _facts(n: int) -> str:
    return f"{n} fact{'s' * (n > 1)}"


def _estimate(figure: Estimate) -> Estimate:
    return figure.rounded()


def _legend() -> str:
    lines = (
        "logprob: log-likelihood of all tokens of the answer, in nats, later ones treated as LT; mrr: mean of 1 / rank",
        "any: the best rank of any token that the name can begin with, and the probability of all of them",
        "recovery: the share of what finetuning added to top5 that a graft brings",
    )
    return "\n".join(wrapped(line, "  ") for line in lines)
