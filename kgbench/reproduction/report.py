"""The report: every figure beside the paper's, its claims one by one, and how long it took."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

from tabulate import tabulate

from kgbench.leaderboard.published import PublishedRow, experiments, paper
from kgbench.numbers import duration_text, figure_text, metric_name, number_text, plain_text
from kgbench.report import markdown_text, pipe_table
from kgbench.reproduction.acceptance import Result
from kgbench.reproduction.claimed import LEAST, Checked, agreement, family, published_rates
from kgbench.reproduction.drawing import picture
from kgbench.reproduction.ingredients import SHIPPED
from kgbench.reproduction.made import Made, distinct, distinct_claims, shown
from kgbench.reproduction.measured import ROWS, About
from kgbench.reproduction.page import chosen, page
from kgbench.reproduction.unlike import departures, differing
from kgbench.stats.scores import LOG_RANK

__all__ = [
    "CLAIMS_LEGEND",
    "REPORT",
    "claims_text",
    "figure_lines",
    "report_text",
    "write_report",
]

REPORT = "REPORT.md"
CLAIM_HEADS = ("claim", "that is", "difference", "here", "in the paper")

CLAIMS_LEGEND = (
    "difference: of shares of what finetuning added, with its 95 % interval over facts (and "
    "training seeds, where there are several); in the paper, of top-5 rates: (no) where they do "
    "not keep the bound, (?) where so many facts do not tell; vacuous: the larger term recovers "
    f"less than {number_text(LEAST)}"
)
"""Legend of claims in a terminal."""

_NAME = 18
"""Columns of a row's name in a terminal."""
_WIDTHS = (24, 17, None, 12, None)
"""Columns of a claim and of what it means; intervals and models stay on their lines."""

_ABOUT = (
    "Built by `{command}`. {ours} The paper's figures (arXiv 2506.20746, v1, and the runs behind "
    "it) are those of its own four models "
    "and have no intervals. They are no target: compare the claims. Every figure follows from the "
    "rows in `{rows}`: "
    "`kgbench reproduce {what} --rows {rows}`."
)
_NOT_YET = (
    "Not measured yet, of the seeds above: {left}. Figures of these evaluations are "
    "over fewer seeds, or not shown."
)
_ONE_SEED = (
    "Ours are means over facts with 95 % intervals, which are over facts: each donor was trained "
    "once, and another seed would give other "
    "figures."
)
_SEEDS = (
    "Ours are means over facts and {n} training seeds ({seeds}), with 95 % intervals over both: "
    "they speak of the recipe, and not of these "
    "{n} pairs alone. Margins over facts and over seeds are squared and added."
)
_CLAIMS = (
    "A difference is one of recoveries, shares of what finetuning added, fact by fact. A claim "
    "holds where the whole interval keeps its "
    "bound, fails where none of it does, and is undecided otherwise. It is vacuous where the "
    "larger of its terms recovers less than "
    f"{number_text(LEAST)}: then it is about next to nothing, whether it is kept or not. The "
    "paper's are differences of its top-5 rates; "
    "(no) where they do not keep the bound, (?) where as many facts as it has, taken for "
    "independent, do not tell."
)
_CONTROL = (
    "What a benchmark of methods rests on: whether the pair shows the mechanism that the paper "
    "describes. Bounds are on mean hit rates under each training seed; they were set before the "
    "pairs were built. A criterion is shown where it is kept under all seeds but one, and under "
    "one "
    "at least."
)
_ADDED = (
    "Claims that the paper does not make, or gives no figures of. They are no part of the "
    "agreement."
)
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


def write_report(
    made: Sequence[Made],
    folder: Path,
    left: Mapping[str, Sequence[int]] | None = None,
    control: Sequence[Result] = (),
) -> Path:
    """Write the report and its pictures; equal rows give equal bytes. Pictures of figures that are not there are removed.

    Args:
        made: The figures, in order.
        folder: Where the report goes.
        left: Seeds under which an evaluation is not there yet, by its name.
        control: Criteria of the positive control.

    Returns:
        Path of the report.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in page().figures:
        (folder / f"{name}.png").unlink(missing_ok=True)
    for one in distinct(made).values():
        (folder / f"{one.name}.png").write_bytes(picture(one))
    path = folder / REPORT
    path.write_text(report_text(made, left, control), encoding="utf-8")
    return path


def report_text(
    made: Sequence[Made],
    left: Mapping[str, Sequence[int]] | None = None,
    control: Sequence[Result] = (),
) -> str:
    """The report as Markdown, see `write_report`."""
    return "\n".join(_lines(made, left or {}, control)) + "\n"


def _lines(
    made: Sequence[Made], left: Mapping[str, Sequence[int]], control: Sequence[Result]
) -> Iterator[str]:
    firsts, model = distinct(made), made[0].model
    yield f"# The paper's figures on {model}\n"
    what = _what(made, left)
    command = f"kgbench reproduce {what} --model {model}{_seeds(made[0].about)}"
    yield f"{_ABOUT.format(command=command, what=what, ours=_ours(made[0].about), rows=ROWS)}\n"
    if left:
        told = "; ".join(
            f"{name} ({'seeds' if len(own) > 1 else 'seed'} {', '.join(map(str, own))})"
            for name, own in left.items()
        )
        yield f"{_NOT_YET.format(left=told)}\n"
    yield from _control(control)
    claims = distinct_claims(made)
    cited, added = (
        [pair for pair in claims if bool(pair[1].paper) is known] for known in (True, False)
    )
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
        if one.seeds != one.about.seeds:
            yield f"Of the seeds above this figure has {', '.join(map(str, one.seeds))}.\n"
        yield f"![{one.figure.title}]({one.name}.png)\n"
        yield from _figure_tables(one)
        yield from _doubts(one)


def _control(control: Sequence[Result]) -> Iterator[str]:
    """Which criteria the pair shows, with the figures of each seed."""
    if not control:
        return
    yield f"## Positive control: {sum(one.shown for one in control)} of {len(control)} criteria shown\n"
    yield f"{_CONTROL}\n"
    rows = [
        [
            one.criterion.says,
            "yes" if one.shown else "**no**",
            f"{len(one.kept)} of {len(one.rates)}",
            "<br>".join(f"seed {seed}: {text}" for seed, text in one.figures().items()),
        ]
        for one in control
    ]
    yield pipe_table(["criterion", "shown", "seeds", "top-5 hit rates"], rows)
    yield ""


def _ours(about: About) -> str:
    """What our intervals are over."""
    n = len(about.seeds)
    return _ONE_SEED if n == 1 else _SEEDS.format(n=n, seeds=", ".join(map(str, about.seeds)))


def _what(made: Sequence[Made], left: Mapping[str, Sequence[int]]) -> str:
    """The argument of the command that makes these figures."""
    names = tuple(one.name for one in made)
    asked = {chosen(share): share for share in page().shares}
    return names[0] if len(names) == 1 and not left else asked.get(names, "all")


def _seeds(about: About) -> str:
    return f" --seeds {','.join(map(str, about.seeds))}" if about.seeds != (SHIPPED,) else ""


def _doubts(made: Made) -> Iterator[str]:
    """What is to be known before ours and the paper's are compared."""
    if made.figure.published is not None:
        yield "Before comparing, beside what is said above:\n"
        yield from (f"- {doubt}" for doubt in experiments()[made.figure.published].doubts)


def _counted(claims: Sequence[tuple[str, Checked]]) -> str:
    found: Counter[str] = Counter(claim.outcome for _, claim in claims)
    return (
        f"{found['holds']} hold, {found['fails']} fail, {found['undecided']} are undecided, "
        f"{found['vacuous']} vacuous"
    )


def agreement_text(model: str, claims: Sequence[Checked]) -> str:
    """How many claims come out as in the paper, of those that both sides decide."""
    like = family(model)
    if like is None:
        return f"The paper has no model of the family of {model}: agreement is not counted."
    found = agreement(claims, like)
    return (
        f"Agreement with {like}: {found.agree} of {found.decided}, over those of its "
        f"{found.claims} claims here that both sides decide, "
        "neither undecided nor vacuous."
    )


def _claims_table(claims: Sequence[tuple[str, Checked]], heads: Sequence[str]) -> str:
    """A row per figure, prompt and claim."""
    rows = [
        [
            name,
            claim.prompt,
            *(
                cell if isinstance(cell, str) else ", ".join(cell)
                for cell in claim_cells(claim)[: len(heads)]
            ),
        ]
        for name, claim in claims
    ]
    return pipe_table(["figure", "prompt", *heads], rows)


def claim_cells(claim: Checked) -> list[str | list[str]]:
    """A claim, what it means, what came out here and, a text per model, in the paper."""
    return [
        claim.claim.says,
        _asked(claim),
        _difference(claim),
        outcome_text(claim),
        _in_paper(claim),
    ]


def outcome_text(claim: Checked) -> str:
    """The outcome; of a vacuous claim with the term that recovers next to nothing."""
    if claim.outcome != "vacuous" or claim.larger is None:
        return claim.outcome
    return f"vacuous: {claim.larger.name} recovers {number_text(claim.larger.recovery)}"


def _asked(claim: Checked) -> str:
    share = "" if claim.claim.share == 1 else f"{number_text(claim.claim.share)} × "
    bounds = " and ".join(
        f"{_SIGNS[op]} {number_text(bound)}" for op, bound in claim.claim.bounds.items()
    )
    return (
        f"{claim.claim.first} − {share}{claim.claim.second} "
        f"{bounds}{' (log ranks)' if claim.metric == LOG_RANK else ''}"
    )


def _difference(claim: Checked) -> str:
    """With more decimals where two would not show on which side of the bound an end lies."""
    estimate = claim.difference
    if estimate.value is None or estimate.low is None or estimate.high is None:
        return figure_text(estimate)
    value, low, high = (
        _beside(number, claim.claim.bounds.values())
        for number in (estimate.value, estimate.low, estimate.high)
    )
    return f"{value} [{low}, {high}]"


def _beside(number: float, bounds: Iterable[float]) -> str:
    if all(number == bound or number_text(number) != number_text(bound) for bound in bounds):
        return number_text(number)
    return plain_text(number, 4)


def _in_paper(claim: Checked) -> list[str]:
    if not claim.paper:
        return ["–"]
    mark = {"holds": "", "fails": " (no)", "undecided": " (?)", "vacuous": " (vacuous)"}
    return [
        f"{model} {number_text(claim.paper[model].value)}{mark[outcome]}"
        for model, outcome in claim.in_paper.items()
    ]


def _times(made: Sequence[Made]) -> Iterator[str]:
    about = made[0].about
    donors = {key: donor for one in made for key, donor in one.donors.items()}
    names = dict.fromkeys(one.figure.evaluation for one in made)
    runs = {
        (seed, name): own[name]
        for seed, own in sorted(about.evaluations.items())
        for name in names
        if name in own
    }
    rows = [
        [
            seed,
            f"donor {name}",
            one.data,
            one.texts,
            one.steps,
            duration_text(one.seconds),
            f"weights {one.weights[:12]}",
        ]
        for (seed, name), one in donors.items()
    ]
    rows += [
        [
            seed,
            f"evaluation {name}",
            run.data,
            "",
            "",
            duration_text(run.seconds),
            f"record {run.record[:12]}",
        ]
        for (seed, name), run in runs.items()
    ]
    seconds = [one.seconds for one in donors.values()] + [one.seconds for one in runs.values()]
    yield pipe_table(["seed", "part", "facts", "texts", "steps", "time", "identity"], rows)
    origins = dict.fromkeys(
        f"kgbench {run.kgbench}, torch {run.torch}, {run.device}, {run.platform}"
        for run in runs.values()
    )
    yield (
        f"\n{duration_text(sum(seconds))} of training and evaluation in all, by the clock of the "
        "machine that they ran on: "
        f"{'; '.join(origins)}."
    )


def _figure_tables(made: Made) -> Iterator[str]:
    """Ours beside the paper's, a table per prompt."""
    for heads, rows in figure_rows(made):
        yield pipe_table(list(map(markdown_text, heads)), rows)
        yield ""


def figure_rows(made: Made) -> Iterator[tuple[list[str], list[list[str]]]]:
    """Heads and rows of ours beside the paper's, per prompt."""
    for prompt in made.figure.prompts:
        rates = published_rates(made.figure, made.dataset, prompt)
        metrics, cited = made.figure.shown, made.figure.cited
        rows = [
            [
                name,
                *(figure_text(made.estimate(prompt, graft, metric)) for metric in metrics),
                *(_rate(known, name, cited) for known in rates.values()),
            ]
            for name, graft in made.rows.items()
        ]
        named, mean = (
            ([f", {metric_name(metric)}" for metric in metrics], f", {metric_name(cited)}")
            if len(metrics) > 1
            else ([""], "")
        )
        heads = [
            prompt,
            *(f"{made.model}{name}, n = {made.n(prompt)}" for name in named),
            *(
                f"{model} (paper{mean}, {next(iter(known.values())).prompt})"
                for model, known in rates.items()
            ),
        ]
        yield heads, rows


def _rate(known: Mapping[str, PublishedRow], name: str, metric: str) -> str:
    return number_text(getattr(known[name], metric)) if name in known else "–"


def figure_lines(made: Made) -> Iterator[str]:
    """Ours beside the paper's for a terminal, a table per prompt; heads take a line per word."""
    for heads, rows in figure_rows(made):
        broken = [head.replace(" (", "\n(").replace(", ", ",\n") for head in heads]
        yield _terminal_table(rows, broken, [_NAME, *(None for _ in heads[1:])])
        yield ""


def claims_text(made: Made) -> Iterator[str]:
    """Claims here and in the paper for a terminal, a table per prompt."""
    for prompt, claims in groupby(made.claims, key=lambda claim: claim.prompt):
        rows = []
        for claim in claims:
            cells = claim_cells(claim)
            rows.append([cell if isinstance(cell, str) else "\n".join(cell) for cell in cells])
        yield f"claims on {prompt}"
        yield _terminal_table(rows, CLAIM_HEADS, _WIDTHS)
        yield ""


def _terminal_table(
    rows: Sequence[Sequence[str]], heads: Sequence[str], widths: Sequence[int | None]
) -> str:
    return tabulate(rows, heads, tablefmt="simple", disable_numparse=True, maxcolwidths=widths)
