"""The report: every figure beside the paper's, its claims one by one, and how long it took."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from tabulate import tabulate

from kgbench.board.escape import markdown_text
from kgbench.board.numbers import exact_text, figure_text, number_text
from kgbench.leaderboard.published import PublishedRow, experiments, paper
from kgbench.reproduction.claimed import Checked, published_rates
from kgbench.reproduction.drawing import picture
from kgbench.reproduction.made import Made
from kgbench.reproduction.page import page

__all__ = ["REPORT", "claims_table", "differing", "figure_tables", "unlike", "write_report"]

REPORT = "REPORT.md"


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
    for one in _distinct(made).values():
        (folder / f"{one.name}.png").write_bytes(picture(one))
    path = folder / REPORT
    path.write_text("\n".join(map(_unpadded, _lines(model, made))) + "\n", encoding="utf-8")
    return path


def _unpadded(text: str) -> str:
    """A Markdown table without the blanks that align it, which are half of a long one."""
    return re.sub(r"-{4,}", "---", re.sub(r" {2,}", " ", text)) if text.startswith("|") else text


def _lines(model: str, made: Sequence[Made]) -> Iterator[str]:
    distinct = _distinct(made)
    yield f"# The paper's figures on {model}\n"
    yield (
        "Built by `kgbench reproduce`. Ours are means over facts with 95 % intervals. The paper's figures (arXiv 2506.20746, v1, and the "
        "runs behind it) are those of its own four models and have no intervals. They are no target: compare the claims.\n"
    )
    yield f"## Claims: {_counted([claim for _, claim in _claims(made)])}\n"
    yield claims_table(made)
    yield "\n## Where it is unlike the paper\n"
    yield from differing(made)
    yield "\n## Times\n"
    yield from _times(made)
    for one in made:
        yield f"\n## {one.name}: {one.figure.title}\n"
        first = distinct[_key(one)]
        if one is not first:
            yield f"As {first.name}: the paper shows it twice.\n"
            continue
        yield f"![{one.figure.title}]({one.name}.png)\n"
        yield from figure_tables(one)
        yield from _doubts(one)


def _doubts(made: Made) -> Iterator[str]:
    """What is to be known before ours and the paper's are compared."""
    if made.figure.published is not None:
        yield "Before comparing:\n"
        yield from (f"- {doubt}" for doubt in (*experiments()[made.figure.published].doubts, *paper().doubts))


def _key(made: Made) -> tuple[str, tuple[str, ...], str]:
    return made.figure.evaluation, made.figure.prompts, made.figure.metric


def _distinct(made: Sequence[Made]) -> dict[tuple[str, tuple[str, ...], str], Made]:
    """The figures without those that show the same as an earlier one."""
    found: dict[tuple[str, tuple[str, ...], str], Made] = {}
    for one in made:
        found.setdefault(_key(one), one)
    return found


def _claims(made: Sequence[Made]) -> list[tuple[str, Checked]]:
    """Every claim with its figure; what several figures share stands once."""
    found: dict[tuple[str, str, str, str], tuple[str, Checked]] = {}
    for one in made:
        for claim in one.claims:
            found.setdefault((one.figure.evaluation, claim.prompt, one.figure.metric, claim.claim.says), (one.name, claim))
    return list(found.values())


def _counted(claims: Sequence[Checked]) -> str:
    found: Counter[str] = Counter(claim.outcome for claim in claims)
    return f"{found['holds']} hold, {found['fails']} fail, {found['undecided']} are undecided"


def claims_table(made: Sequence[Made], fmt: str = "github") -> str:
    """A row per figure, prompt and claim."""
    heads = ["figure", "prompt", "claim", "difference", "here", "in the paper"]
    rows = [
        [name, claim.prompt, claim.claim.says, figure_text(claim.difference), claim.outcome, _in_paper(claim)]
        for name, claim in _claims(made)
    ]
    return tabulate(rows, heads, tablefmt=fmt, disable_numparse=True)


def _in_paper(claim: Checked) -> str:
    if not claim.paper:
        return "–"
    return ", ".join(f"{model} {number_text(claim.paper[model])}{'' if kept else ' (no)'}" for model, kept in claim.in_paper.items())


def differing(made: Sequence[Made]) -> Iterator[str]:
    """A line for each claim that is unlike the paper, or one that says that there is none."""
    like = page().tiny.like.get(made[0].model, made[0].model) if made else None
    found = [line for name, claim in _claims(made) if (line := unlike(name, claim, like)) is not None]
    nowhere = "Nowhere, as far as the paper gives figures."
    yield from (f"- {line}" for line in dict.fromkeys(found or [nowhere]))


def unlike(figure: str, claim: Checked, like: str | None = None) -> str | None:
    """How a claim is unlike the paper; None where it is not, or where that cannot be told.

    It is held against the paper's model of the same family where that has figures, otherwise against most of its models.

    Args:
        figure: The figure's name.
        claim: The claim.
        like: The paper's model of the same family.
    """
    if claim.difference.undefined is not None:
        return f"{figure}, {claim.prompt}: nothing can be asked of it: {exact_text(claim.difference)}."
    about = f"{figure}, {claim.prompt}: “{claim.claim.says}” {claim.outcome} here, {figure_text(claim.difference)}"
    kept = claim.in_paper
    if like is not None and like in kept:
        return f"{about}; {like} {'keeps' if kept[like] else 'does not keep'} it." if claim.outcome == _otherwise(kept[like]) else None
    yes = sum(kept.values())
    if not kept:
        return f"{about}; the paper gives no figures." if claim.outcome == "fails" else None
    if 2 * yes == len(kept) or claim.outcome != _otherwise(2 * yes > len(kept)):
        return None
    return f"{about}; {yes} of the paper's {len(kept)} models keep it."


def _otherwise(kept: bool) -> str:
    return "fails" if kept else "holds"


def _times(made: Sequence[Made]) -> Iterator[str]:
    cards = {name: card for one in made for name, card in one.cards.items()}
    records = {one.figure.evaluation: one.record for one in made}
    seconds = [*(card["seconds"] for card in cards.values()), *(record.cost.seconds for record in records.values())]
    rows = [[f"donor {name}", card["data"]["name"], card["texts"]["trained"], card["steps"]] for name, card in cards.items()]
    rows += [[f"evaluation {name}", record.identity.dataset.name, "", ""] for name, record in records.items()]
    rows = [[*row, f"{spent:.0f} s"] for row, spent in zip(rows, seconds, strict=True)]
    yield tabulate(rows, ["part", "facts", "texts", "steps", "time"], tablefmt="github", disable_numparse=True)
    yield f"\n{sum(seconds) / 60:.1f} minutes of training and evaluation in all, by the clock of the machine that they ran on."


def figure_tables(made: Made, fmt: str = "github") -> Iterator[str]:
    """Ours beside the paper's, a table per prompt."""
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
        yield tabulate(rows, [markdown_text(head) if fmt == "github" else head for head in heads], tablefmt=fmt, disable_numparse=True)
        yield ""


def _rate(known: Mapping[str, PublishedRow], name: str, metric: str) -> str:
    return number_text(getattr(known[name], metric)) if name in known else "–"
