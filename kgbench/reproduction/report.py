"""The report: every figure beside the paper's, its claims one by one, and how long it took."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from kgbench.board.escape import markdown_text
from kgbench.leaderboard.published import PublishedRow, experiments, paper
from kgbench.numbers import duration_text, figure_text, number_text, plain_text
from kgbench.reproduction.claimed import LEAST, Checked, agreement, family, published_rates
from kgbench.reproduction.drawing import picture
from kgbench.reproduction.made import Made, distinct, distinct_claims, shown
from kgbench.reproduction.page import page
from kgbench.reproduction.unlike import departures, differing

__all__ = ["CLAIM_HEADS", "REPORT", "claim_cells", "figure_rows", "write_report"]

REPORT = "REPORT.md"
CLAIM_HEADS = ("claim", "that is", "difference", "here", "in the paper")

_ABOUT = (
    "Built by `{command}`. Ours are means over facts with 95 % intervals, which are over facts: each donor was trained once, and another "
    "seed would give other figures. The paper's figures (arXiv 2506.20746, v1, and the runs behind it) are those of its own four models "
    "and have no intervals. They are no target: compare the claims."
)
_CLAIMS = (
    "A difference is one of recoveries, shares of what finetuning added, fact by fact. A claim holds where the whole interval keeps its "
    f"bound, fails where none of it does, and is undecided otherwise. It is vacuous where the larger of its terms recovers less than "
    f"{number_text(LEAST)}: then it is about next to nothing, whether it is kept or not. The paper's are differences of its top-5 rates; "
    "(no) where they do not keep the bound, (?) where as many facts as it has, taken for independent, do not tell."
)
_ADDED = "Claims that the paper does not make, or gives no figures of. They are no part of the agreement."
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def write_report(model: str, made: Sequence[Made], folder: Path) -> Path:
    """Write the report and its pictures; equal records and donors give equal bytes.

    Args:
        model: The pair.
        made: The figures, in order.
        folder: Where the report goes.

    Returns:
        Path of the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for one in distinct(made).values():
        (folder / f"{one.name}.png").write_bytes(picture(one))
    path = folder / REPORT
    path.write_text("\n".join(map(_unpadded, _lines(model, made))) + "\n", encoding="utf-8")
    return path


def _unpadded(text: str) -> str:
    """A Markdown table without the blanks that align it, which are half of a long one."""
    return re.sub(r"-{4,}", "---", re.sub(r" {2,}", " ", text)) if text.startswith("|") else text


def _lines(model: str, made: Sequence[Made]) -> Iterator[str]:
    firsts = distinct(made)
    yield f"# The paper's figures on {model}\n"
    yield f"{_ABOUT.format(command=_command(model, made))}\n"
    claims = distinct_claims(made)
    cited, added = ([pair for pair in claims if bool(pair[1].paper) is known] for known in (True, False))
    yield f"## The paper's claims: {_counted(cited)}\n"
    yield f"{_CLAIMS}\n"
    yield f"{agreement_text(model, [claim for _, claim in cited])}\n"
    yield _claims_table(cited, CLAIM_HEADS)
    yield f"\n## Additional claims: {_counted(added)}\n"
    yield f"{_ADDED}\n"
    yield _claims_table(added, CLAIM_HEADS[:-1])
    yield "\n## Settings that are not the paper's\n"
    yield from (f"- {one}" for one in departures(made))
    yield "\n## Where it is unlike the paper\n"
    yield from differing(made)
    yield "\n## Before comparing with the paper\n"
    yield from (f"- {doubt}" for doubt in paper().doubts)
    yield "\n## Times\n"
    yield from _times(made)
    for one in made:
        yield f"\n## {one.name}: {one.figure.title}\n"
        first = firsts[shown(one)]
        if one is not first:
            yield f"As {first.name}: the paper shows it twice.\n"
            continue
        if one.figure.note:
            yield f"{one.figure.note}\n"
        yield f"![{one.figure.title}]({one.name}.png)\n"
        yield from _figure_tables(one)
        yield from _doubts(one)


def _command(model: str, made: Sequence[Made]) -> str:
    names = [one.name for one in made]
    return f"kgbench reproduce {'all' if names == list(page().figures) else ' '.join(names)} --model {model}"


def _doubts(made: Made) -> Iterator[str]:
    """What is to be known before ours and the paper's are compared."""
    if made.figure.published is not None:
        yield "Before comparing, beside what is said above:\n"
        yield from (f"- {doubt}" for doubt in experiments()[made.figure.published].doubts)


def _counted(claims: Sequence[tuple[str, Checked]]) -> str:
    found: Counter[str] = Counter(claim.outcome for _, claim in claims)
    return f"{found['holds']} hold, {found['fails']} fail, {found['undecided']} are undecided, {found['vacuous']} vacuous"


def agreement_text(model: str, claims: Sequence[Checked]) -> str:
    """How many claims come out as in the paper, of those that both sides decide."""
    like = family(model)
    if like is None:
        return f"The paper has no model of the family of {model}: agreement is not counted."
    found = agreement(claims, like)
    return (
        f"Agreement with {like}: {found.agree} of {found.decided}, over those of its {found.claims} claims here that both sides decide, "
        "neither undecided nor vacuous."
    )


def _claims_table(claims: Sequence[tuple[str, Checked]], heads: Sequence[str]) -> str:
    """A row per figure, prompt and claim."""
    rows = [
        [name, claim.prompt, *(cell if isinstance(cell, str) else ", ".join(cell) for cell in claim_cells(claim)[: len(heads)])]
        for name, claim in claims
    ]
    return tabulate(rows, ["figure", "prompt", *heads], tablefmt="github", disable_numparse=True)


def claim_cells(claim: Checked) -> list[str | list[str]]:
    """A claim, what it means, what came out here and, a text per model, in the paper."""
    return [claim.claim.says, _asked(claim), _difference(claim), outcome_text(claim), _in_paper(claim)]


def outcome_text(claim: Checked) -> str:
    """The outcome; of a vacuous claim with the term that recovers next to nothing."""
    if claim.outcome != "vacuous" or claim.larger is None:
        return claim.outcome
    return f"vacuous: {claim.larger.name} recovers {number_text(claim.larger.recovery)}"


def _asked(claim: Checked) -> str:
    share = "" if claim.claim.share == 1 else f"{number_text(claim.claim.share)} × "
    bounds = " and ".join(f"{_SIGNS[op]} {number_text(bound)}" for op, bound in claim.claim.bounds.items())
    return f"{claim.claim.first} − {share}{claim.claim.second} {bounds}{' (reciprocal ranks)' if claim.metric == 'mrr' else ''}"


def _difference(claim: Checked) -> str:
    """With more decimals where two would not show on which side of the bound an end lies."""
    estimate = claim.difference
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return figure_text(estimate)
    value, low, high = (_beside(number, claim.claim.bounds.values()) for number in (estimate.value, estimate.low, estimate.high))
    return f"{value} [{low}, {high}]"


def _beside(number: float, bounds: Iterable[float]) -> str:
    if all(number == bound or number_text(number) != number_text(bound) for bound in bounds):
        return number_text(number)
    return plain_text(number, 4)


def _in_paper(claim: Checked) -> list[str]:
    if not claim.paper:
        return ["–"]
    mark = {"holds": "", "fails": " (no)", "undecided": " (?)", "vacuous": " (vacuous)"}
    return [f"{model} {number_text(claim.paper[model].value)}{mark[outcome]}" for model, outcome in claim.in_paper.items()]


def _times(made: Sequence[Made]) -> Iterator[str]:
    cards = {name: card for one in made for name, card in one.cards.items()}
    records = {one.figure.evaluation: one.record for one in made}
    seconds = [*(card["seconds"] for card in cards.values()), *(record.cost.seconds for record in records.values())]
    rows = [
        [f"donor {name}", card["data"]["name"], card["texts"]["trained"], card["steps"], f"weights {card['weights'][:12]}"]
        for name, card in cards.items()
    ]
    rows += [[f"evaluation {name}", record.identity.dataset.name, "", "", f"record {record.id[:12]}"] for name, record in records.items()]
    table = [[*row[:-1], duration_text(spent), row[-1]] for row, spent in zip(rows, seconds, strict=True)]
    yield tabulate(table, ["part", "facts", "texts", "steps", "time", "identity"], tablefmt="github", disable_numparse=True)
    origin = next(iter(records.values())).provenance
    yield (
        f"\n{duration_text(sum(seconds))} of training and evaluation in all, by the clock of the machine that they ran on: kgbench "
        f"{origin.kgbench}, torch {origin.packages['torch']}, {origin.device}, {origin.platform}."
    )


def _figure_tables(made: Made) -> Iterator[str]:
    """Ours beside the paper's, a table per prompt."""
    for heads, rows in figure_rows(made):
        yield tabulate(rows, list(map(markdown_text, heads)), tablefmt="github", disable_numparse=True)
        yield ""


def figure_rows(made: Made) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Heads and rows of ours beside the paper's, per prompt."""
    for prompt in made.figure.prompts:
        rates = published_rates(made.figure, made.dataset, prompt)
        own = {row.graft: row.estimate(made.figure.metric) for row in made.record.rows if row.prompt == prompt}
        rows = [
            [
                name,
                figure_text(own[graft]),
                *(_rate(known, name, made.figure.metric) for known in rates.values()),
            ]
            for name, graft in made.rows.items()
        ]
        heads = [
            prompt,
            f"{made.model}, n = {own['SFT'].n}",
            *(f"{model} (paper, {next(iter(known.values())).prompt})" for model, known in rates.items()),
        ]
        yield heads, rows


def _rate(known: Mapping[str, PublishedRow], name: str, metric: str) -> str:
    return number_text(getattr(known[name], metric)) if name in known else "–"
