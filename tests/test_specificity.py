"""Specificity: divergences are those of the plain models, nothing grafted moves nothing, and
neutral texts hold no name of the facts.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kgbench import evaluate
from kgbench.analyses import specificity as module
from kgbench.analyses.specificity import (
    KINDS,
    MeasuredTexts,
    Specificity,
    Texts,
    divergence,
    measure,
    rows_of,
    sample_texts,
    specificity,
)
from kgbench.cli import main
from kgbench.data import Dataset, dataset_names, load_dataset, load_prompts
from kgbench.data.prompts import neutral_prompts, sibling_prompts
from kgbench.errors import InputError
from kgbench.models import catalog
from kgbench.models.pair import ModelPair
from kgbench.runner import Settings, Spec
from kgbench.runner.job import Job, prepare_job
from kgbench.runner.sources import Sources
from kgbench.runner.spec import Held
from kgbench.testing import pico_pair
from kgbench.zoo.tiny_pairs import known_movies, recipe
from kgbench.zoo.worlds import FIELDS, fill_all, training_templates

U = "ALL; ALL:ln_f+head"
LABELS = ("SFT", "NONE", "FE", "LT", U, "M")


def job_on(pair: ModelPair) -> Job:
    names = ("headline", "movie_title")
    spec = Spec(model="tiny-gemma", dataset="tiny_movies:first30", prompts=names, held=Held(pair))
    return prepare_job(spec, Settings(device="cpu"))


@pytest.fixture(scope="module")
def job() -> Job:
    return job_on(pico_pair("llama"))


@pytest.fixture(scope="module")
def measured(job: Job) -> list[MeasuredTexts]:
    return [measure(job, texts, LABELS) for texts in sample_texts(job, Specificity(facts=6))]


def test_nothing_grafted_moves_nothing(measured: list[MeasuredTexts]) -> None:
    """Under NONE the divergence of every prompt is exactly 0, no likeliest token changes, and no
    answer's probability does.
    """
    for one in measured:
        moved = one.moved["NONE"]
        assert len(moved.kl) == len(one.texts.prompts) > 0
        assert not moved.kl.any() and not moved.changed.any() and not moved.logprob.any()
        assert (moved.top5 == moved.top5_before).all()


def test_everything_grafted_is_the_donor(measured: list[MeasuredTexts]) -> None:
    """All components, final norm and head at all tokens move every text as the donor does, and only
    so.
    """
    for one in measured:
        assert one.moved[U].kl == pytest.approx(one.moved["SFT"].kl, rel=1e-9)
        assert (one.moved[U].changed == one.moved["SFT"].changed).all()
        assert (one.moved["FE"].kl != one.moved["SFT"].kl).any()


def test_it_is_the_divergence_of_the_plain_models(job: Job, measured: list[MeasuredTexts]) -> None:
    """KL(PRE || SFT) of every text is what torch says of the two models run by themselves on the
    text's tokens.
    """
    for one in measured:
        found = dict(
            zip(((p.fact.id, p.name) for p in one.texts.prompts), one.moved["SFT"].kl, strict=True)
        )
        for prompt in one.texts.prompts:
            ids = torch.tensor([job.pair.encode(prompt)])
            with torch.no_grad():
                p, q = (
                    model(ids).logits[0, -1].double().log_softmax(-1)
                    for model in (job.pair.recipient, job.pair.donors["sft"])
                )
            plain = torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True)
            assert found[prompt.fact.id, prompt.name] == pytest.approx(float(plain), abs=1e-6)
            assert found[prompt.fact.id, prompt.name] > 0


@given(st.integers(0, 10**6), st.sampled_from([0.0, 1e-12, 1e-6, 1e-3, 1.0, 30.0]))
def test_divergence_is_never_negative(seed: int, scale: float) -> None:
    """It is no less than 0 at any distance, 0 for equal logits, blind to a shift, and agrees with
    torch where that is exact.
    """
    generator = torch.Generator().manual_seed(seed)
    before, noise = torch.randn(2, 3, 50, dtype=torch.float64, generator=generator)
    after = before + scale * noise
    found = divergence(before, after)
    assert (found >= 0).all() and not divergence(before, before).any()
    plain = torch.nn.functional.kl_div(
        after.log_softmax(-1), before.log_softmax(-1), reduction="none", log_target=True
    ).sum(-1)
    assert torch.allclose(found, plain, rtol=1e-7, atol=1e-13)
    assert torch.allclose(
        found, divergence(before, after + 5.0), rtol=1e-6, atol=1e-20 + 1e-15 * scale
    )


def test_divergence_keeps_what_is_small() -> None:
    """Of a small step d of the logits it is the half of the variance of d under p, far below the
    rounding of its terms.
    """
    before = torch.linspace(-2, 2, 9, dtype=torch.float64)[None]
    step = torch.linspace(-1, 1, 9, dtype=torch.float64)[None] ** 2
    p = before.softmax(-1)
    variance = (p * step.square()).sum() - (p * step).sum() ** 2
    assert float(divergence(before, before + 1e-7 * step)) == pytest.approx(
        0.5e-14 * float(variance), rel=1e-4
    )


def test_a_region_that_a_text_lacks(job: Job, measured: list[MeasuredTexts]) -> None:
    """A graft at M is absent on all neutral texts and on the prompts without a title, with the
    reason, and present on the others.
    """
    by_kind = {one.texts.kind: one for one in measured}
    assert "M" not in by_kind["neutral"].moved
    assert sum(by_kind["neutral"].absent["M"].values()) == len(by_kind["neutral"].texts.prompts)
    assert len(by_kind["target"].moved["M"].kl) == 6 == sum(by_kind["target"].absent["M"].values())
    row = next(
        row for row in rows_of(measured, LABELS) if (row.graft, row.kind) == ("M", "neutral")
    )
    assert row.prompts == 0 and row.kl.undefined is not None and "no region M" in row.kl.undefined
    assert not any(label in one.absent for one in measured for label in LABELS[:-1])


def test_figures(measured: list[MeasuredTexts]) -> None:
    """Means are over facts; a leak is one mean
    over another.
    """
    rows = {(row.graft, row.kind): row for row in rows_of(measured, LABELS)}
    by_kind = {one.texts.kind: one for one in measured}
    for (label, kind), row in rows.items():
        if row.prompts and label != "NONE":
            moved = by_kind[kind].moved[label]
            facts = sorted({fact for fact, _ in moved.prompts})
            means = [
                np.mean(
                    [
                        kl
                        for kl, (fact, _) in zip(moved.kl, moved.prompts, strict=True)
                        if fact == one
                    ]
                )
                for one in facts
            ]
            assert row.kl.n == len(facts) and row.kl.value == pytest.approx(np.mean(means))
            if row.leak is not None:
                assert row.leak.value == pytest.approx(
                    row.kl.value / rows[label, "target"].kl.value
                )
        if label == "NONE" and row.leak is not None:
            assert row.leak.undefined == "the graft moves no target fact" and row.kl_largest == 0
        assert (row.top5 is not None) == (kind in ("target", "known") and row.prompts > 0)


def test_weights_that_did_not_change_move_nothing() -> None:
    """In a plant, grafting norms, which did not change, leaves neutral texts as they are, and
    grafting a layer's FFN moves them.
    """
    labels = ("ALL:ln", "ALL:ffn@2")
    job = prepare_job(
        Spec(model="tiny-gemma.one-0", prompts=("headline",), dtype="float64", limit=2),
        Settings(device="cpu"),
    )
    moved = measure(job, Texts("neutral", "", tuple(neutral_prompts()[::4])), labels).moved
    assert moved["ALL:ln"].kl == pytest.approx(0, abs=1e-12)
    assert not moved["ALL:ln"].changed.any()
    assert (moved["ALL:ffn@2"].kl > 1e-4).all()


def test_neutral_texts() -> None:
    """No text stands twice; all have FE, R, RP and P; none holds a word of a name or a title of any
    shipped data set.
    """
    prompts = neutral_prompts()
    assert len(prompts) >= 40
    assert (
        len({p.text for p in prompts})
        == len({p.fact.id for p in prompts})
        == len({p.fact.fields["subject"] for p in prompts})
        == len(prompts)
    )
    rows = [fact.fields for name in dataset_names() for fact in load_dataset(name).facts]
    names = {
        word
        for row in rows
        for field in ("first_actor", "second_actor", "main_character")
        for word in row.get(field, "").split()
    }
    titles = {row["movie_title"].lower() for row in rows if "movie_title" in row} | {
        row["battle"].lower() for row in rows if "battle" in row
    }
    for prompt in prompts:
        assert set(prompt.spans) == {"FE", "R", "RP", "P"}
        assert prompt.text[slice(*prompt.spans["FE"])] == prompt.fact.fields["subject"]
        assert names.isdisjoint(
            word for word in re.findall(r"\w+", prompt.text) if word[0].isupper()
        )
        assert not [
            title
            for title in titles
            if title in prompt.text.lower()
            and re.search(rf"\b{re.escape(title)}(?!\w)", prompt.text.lower())
        ]


def test_siblings_keep_the_first_entity() -> None:
    """They ask about the facts' own subjects, as no evaluation prompt does, and give no answer
    away.
    """
    dataset = load_dataset("battles")
    prompts = sibling_prompts(dataset, dataset.facts[:5])
    assert {p.fact.id for p in prompts} == {fact.id for fact in dataset.facts[:5]}
    assert len({p.text for p in prompts}) == len(prompts) == 15
    for prompt in prompts:
        assert prompt.text[slice(*prompt.spans["FE"])] == prompt.fact.fields["battle"]
        assert prompt.fact.fields["year"] not in prompt.text


def test_texts_are_apart(job: Job) -> None:
    """No known fact and no fact of another kind has a name of the target facts; a kind that cannot
    be had says why.
    """
    target, sibling, known, other, neutral = sample_texts(job, Specificity(facts=10))
    assert [t.kind for t in (target, sibling, known, other, neutral)] == list(KINDS)
    taken = {
        fact.fields[field]
        for fact in job.dataset.facts
        for field in ("first_actor", "second_actor")
    }
    for texts in (known, other):
        assert len({p.fact.id for p in texts.prompts}) == 10
        assert taken.isdisjoint(p.text[slice(*p.spans["FE"])] for p in texts.prompts)
    assert "pretrained" in known.about and "pretraining" in other.about
    battles = replace(
        job,
        sources=Sources(),
        dataset=load_dataset("battles"),
        prompts={"battle_year": load_prompts("battles", ["battle_year"])},
    )
    kinds = {texts.kind: texts for texts in sample_texts(battles, Specificity(facts=3))}
    for kind in ("known", "other"):
        assert not kinds[kind].prompts and f"--{kind}" in kinds[kind].about
    assert len(kinds["target"].prompts) == 3


def _shipped(kind: str) -> Dataset:
    return load_dataset(str(Path(module.__file__).with_name(f"specificity_{kind}.jsonl")))


def test_shipped_texts_of_another_kind() -> None:
    """200 movies as `World("supplement")` drew them with Faker 40.54.0: none has a title that the
    tiny pairs read, and every prompt begins a text as their recipients read of other movies, up to
    the town.
    """
    shipped = _shipped("other")
    assert (shipped.subject, shipped.object) == ("movie_title", "city") and not shipped.dropped
    titles = {fact.fields["movie_title"] for fact in shipped.facts}
    for movies in (load_dataset("tiny_movies").facts, _shipped("known").facts):
        assert titles.isdisjoint(fact.fields["movie_title"] for fact in movies)
    assert len(titles) == len(shipped.facts) == 200
    prompts = load_prompts(shipped, list(shipped.templates))
    assert len(prompts) == 400
    for prompt in prompts:
        movie = {**dict.fromkeys(FIELDS, "?"), **prompt.fact.fields}
        read = fill_all(training_templates().background, [movie])
        assert any(text.startswith(f"{prompt.text} {prompt.target}") for text in read)


@pytest.mark.parametrize("base", catalog.shipped())
def test_shipped_texts_that_are_known(base: str) -> None:
    """They are the movies that the recipient of each tiny pair read in all wordings."""
    movies = known_movies(recipe(base), 1000)
    for fact, movie in zip(_shipped("known").facts, movies, strict=True):
        assert fact.fields == {field: movie[field] for field in FIELDS}


def test_wrong_requests(job: Job) -> None:
    """They are told before a model is loaded."""
    nowhere = Settings(device="no such device")
    with pytest.raises(InputError, match="ranks sites"):
        specificity(Spec(model="tiny-gpt2", localizer="snip"), nowhere, Specificity())
    with pytest.raises(InputError, match="random draws"):
        specificity(Spec(model="tiny-gpt2", localizer="causal_trace"), nowhere, Specificity())
    with pytest.raises(InputError, match="data set"):
        specificity(Spec(model="tiny-gpt2"), nowhere, Specificity(known="tiny_moves"))


def test_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Tables with a sentence at the end, or JSON; nothing is written but the run."""
    monkeypatch.chdir(tmp_path)
    run = evaluate("tiny-gpt2", prompts="headline", limit=4, output_dir="runs", progress=False)
    asked = ["specificity", str(run.path), "--graft", "FE+LT", "--graft", "NONE", "--facts", "4"]
    assert main(asked) == 0
    table = capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [kind["kind"] for kind in found["kinds"]] == list(KINDS)
    assert {(row["graft"], row["kind"]) for row in found["rows"]} == {
        (g, k) for g in ("SFT", "FE+LT", "NONE") for k in KINDS
    }
    neutral = next(
        row for row in found["rows"] if (row["graft"], row["kind"]) == ("FE+LT", "neutral")
    )
    assert neutral["prompts"] == neutral["kl"]["n"] == len(neutral_prompts())
    assert neutral["kl"]["low"] > 0
    assert found["verdict"].startswith("FE+LT moves")
    assert " ".join(table.split()).startswith(found["verdict"])
    assert max(map(len, table.splitlines())) <= 100 and "0 in all 48" in table
    assert [path.name for path in tmp_path.iterdir()] == ["runs"]


def test_a_kind_without_texts(job: Job) -> None:
    """Its rows say why there is nothing."""
    target = measure(job, sample_texts(job, Specificity(facts=3))[0], ["SFT"])
    row = rows_of([target, MeasuredTexts(Texts("known", "nobody knows"), {})], ["SFT"])[1]
    assert row.kl.undefined == "absent: nobody knows" and row.top5 is None


METHOD = """
from kgbench.localizers.dynamic_graft import DynamicGraft

class Mine(DynamicGraft):
    name = "mine"
"""


@pytest.mark.nightly
def test_a_method_of_a_file(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is given by name, runs in a process of its own, and must be the code of the run."""
    code = tmp_path / "mine.py"
    code.write_text(METHOD)
    mine, asked = f"{code}:Mine", {"prompts": "qa", "limit": 3, "output_dir": tmp_path / "runs"}
    runs = [evaluate("tiny-gpt2", localizer=of, **asked) for of in (mine, "dynamic_graft")]
    rows = []
    for run, more in zip(runs, (["--localizer", mine], []), strict=True):
        assert main(["specificity", str(run.path), "--limit", "2", "--json", "-q", *more]) == 0
        rows.append(json.loads(capsys.readouterr().out)["rows"])
    assert rows[0] == rows[1]
    code.write_text(f"{METHOD}# changed")
    for more, message in (([], "'mine' is not installed"), (["--localizer", mine], "version")):
        assert main(["specificity", str(runs[0].path), *more]) == 2
        assert message in capsys.readouterr().err
