"""Differences of a pair from the paper's models, in sentences: settings and outcomes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kgbench.numbers import exact_text, figure_text, number_text, plain_text
from kgbench.reproduction.claimed import Checked, family, published_rates
from kgbench.reproduction.made import Made, distinct, distinct_claims
from kgbench.reproduction.measured import About
from kgbench.reproduction.page import page
from kgbench.stats.scores import LOG_RANK

__all__ = ["departures", "differing", "seeds_text", "unlike"]

_FAR = 0.1
"""From this on a rate that lies off our interval is told."""

_WITH_HEAD = "FE+LT, head"


def departures(made: Sequence[Made]) -> Iterator[str]:
    """A line for each setting that is not the paper's, as the page lists them."""
    about = made[0].about
    donors = [donor for one in made for donor in one.donors.values()]
    filled = {
        "trained": _trained_text(made),
        "precision": " and ".join(
            dict.fromkeys(donor.precision for donor in donors if donor.precision)
        )
        or "fp32",
        "seeds": seeds_text(about),
        "facts": _facts_text(made),
        "supplement": f"{page().tiny.supplement:,}",
    }
    for one in page().departures:
        if about.tiny or not one.tiny:
            yield f"**{one.setting}**: in the paper {one.paper}; here {one.here.format(**filled)}."


def _trained_text(made: Sequence[Made]) -> str:
    """How donors were trained, those of the same steps together."""
    found: dict[str, dict[str, None]] = {}
    for one in made:
        for (_, name), donor in one.donors.items():
            found.setdefault(f"{donor.recipe['name']}, {_recipe(donor.recipe)}", {})[name] = None
    return "; ".join(f"{how} ({', '.join(names)})" for how, names in found.items())


def _facts_text(made: Sequence[Made]) -> str:
    """How many facts the donors of a tiny pair learned, such as `400 (actors, names)`."""
    names = dict.fromkeys(name for one in made for name in one.trainings)
    by_number: dict[int, list[str]] = {}
    for name in names:
        by_number.setdefault(page().trainings[name].tiny.facts, []).append(name)
    return ", ".join(
        f"{number} ({', '.join(by_number[number])})" for number in sorted(by_number, reverse=True)
    )


def seeds_text(about: About) -> str:
    """Which training seeds there are, and what else than the donors they are of."""
    if len(about.seeds) == 1:
        return f"one run, with seed {about.seeds[0]}"
    what = "pretraining and finetuning" if about.tiny else "finetuning"
    return f"{len(about.seeds)}, of {what}: {', '.join(map(str, about.seeds))}"


def _recipe(recipe: Mapping[str, Any]) -> str:
    epochs, batch, rate, decay, warmup = (
        plain_text(recipe[name])
        for name in ("epochs", "batch_size", "learning_rate", "weight_decay", "warmup_steps")
    )
    return (
        f"{epochs} epochs, batch size {batch}, rate {rate}, weight decay {decay}, {warmup} "
        "steps of warm-up"
    )


def differing(made: Sequence[Made]) -> Iterator[str]:
    """A line per claim and per figure's rates that differ from the paper, or one that none does."""
    like = family(made[0].model) if made else None
    found = [
        line
        for name, claim in distinct_claims(made)
        if (line := unlike(name, claim, like)) is not None
    ]
    found += [line for one in distinct(made).values() for line in _rates(one, like)]
    nowhere = "Nowhere, as far as the paper gives figures."
    yield from (f"- {line}" for line in dict.fromkeys([*_by_head(made), *(found or [nowhere])]))


def _by_head(made: Sequence[Made]) -> Iterator[str]:
    """What FE+LT lacks, where that is the head."""
    kept = [
        f"{name}, {claim.prompt}"
        for name, claim in distinct_claims(made)
        if (claim.claim.first, claim.claim.second, claim.outcome) == (_WITH_HEAD, "SFT", "holds")
    ]
    if kept:
        yield (
            f"With the donor's head FE+LT does what the donor does ({'; '.join(kept)}): what it "
            "lacks there is the head, which a graft of "
            "tokens leaves the recipient's."
        )


def _rates(made: Made, like: str | None) -> Iterator[str]:
    """Rates of a figure far from those of the paper's model of the same family, by prompt."""
    for prompt in made.figure.prompts:
        known = published_rates(made.figure, made.dataset, prompt).get(like or "", {})
        if made.figure.metric != "top5" or not known:
            continue
        told = []
        for name, graft in made.rows.items():
            if name not in known:
                continue
            ours = made.estimate(prompt, graft)
            if ours.value is None or ours.low is None or ours.high is None:
                continue
            rate = known[name].top5
            if not ours.low <= rate <= ours.high and abs(rate - ours.value) >= _FAR:
                told.append(f"{name} {figure_text(ours)} ({number_text(rate)})")
        if told:
            yield f"{made.name}, {prompt}: top-5 rates far from those of {like}, in brackets: {', '.join(told)}."


def unlike(figure: str, claim: Checked, like: str | None = None) -> str | None:
    """How a claim is unlike the paper; None where it is not, or where that cannot be told.

    It is held against the paper's model of the same family where that has figures, otherwise
    against most of its models that decide it.

    Args:
        figure: The figure's name.
        claim: The claim.
        like: The paper's model of the same family.
    """
    if claim.difference.undefined is not None:
        return (
            f"{figure}, {claim.prompt}: nothing can be asked of it: {exact_text(claim.difference)}."
        )
    about = (
        f"{figure}, {claim.prompt}: “{claim.claim.says}” {claim.outcome} here, "
        f"{figure_text(claim.difference)}"
    )
    if not claim.in_paper:
        missing = "mean ranks but no mean log ranks" if claim.metric == LOG_RANK else "no figures"
        return f"{about}; the paper gives {missing}." if claim.outcome == "fails" else None
    if like is not None and like in claim.in_paper:
        its = claim.in_paper[like]
        return (
            f"{about}; {like} {'keeps' if its == 'holds' else 'does not keep'} it."
            if {its, claim.outcome} == {"holds", "fails"}
            else None
        )
    decided = [outcome == "holds" for outcome in claim.in_paper.values() if outcome != "undecided"]
    yes = sum(decided)
    if 2 * yes == len(decided) or claim.outcome != ("fails" if 2 * yes > len(decided) else "holds"):
        return None
    return f"{about}; {yes} of the paper's {len(decided)} models that decide it keep it."
