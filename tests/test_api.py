"""Models in memory: the same identity and record as their saved forms, and left as they were."""

from __future__ import annotations

import copy
import inspect
import json
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pandas as pd
import polars
import pytest
import torch
from accelerate import Accelerator
from adapters import ADAPTERS, Made, adapter_pair, maker, quiet
from datasets import Dataset as HubDataset
from pages import code
from peft import PeftModel
from torch import nn
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

import kgbench
import kgbench.paper
from kgbench.analyses.audit import Audit
from kgbench.analyses.heads import Heads
from kgbench.cli import command as cli
from kgbench.cli import main
from kgbench.data import load_dataset
from kgbench.errors import (
    DataError,
    InputError,
    ModelError,
    UnknownNameError,
    command_line,
    python_names,
)
from kgbench.localizers import InterventionLocalizer
from kgbench.localizers.dynamic_graft import DynamicGraft
from kgbench.registry import source_fingerprint
from kgbench.runner.choices import KINDS
from kgbench.testing import assert_not_at, pico_pair
from kgbench.testing.assertions import assert_localized

PROMPTS = {"stars": "{actor} {R:stars} {RP:in} a movie {P:alongside}"}
GRAFTS = ["FE", "LT", "FE+LT"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints `before` and `after` of a tied model, with tokenizer, and a file of facts."""
    root = tmp_path_factory.mktemp("pair")
    pair = pico_pair("gpt2", dtype=torch.float32)
    for name, model in (("before", pair.recipient), ("after", pair.donors["sft"])):
        tied = copy.deepcopy(model)
        tied.config.tie_word_embeddings = True
        tied.tie_weights()
        tied.save_pretrained(root / name)
    pair.tokenizer.save_pretrained(root / "before")
    facts().to_csv(root / "facts.csv", index=False)
    return root


def facts() -> pd.DataFrame:
    """Twelve facts of two columns."""
    rows = []
    for fact in load_dataset("tiny_movies").facts[:12]:
        rows.append((fact.fields["first_actor"], fact.fields["second_actor"]))
    return pd.DataFrame(rows, columns=["actor", "costar"])


def loaded(folder: Path, name: str) -> PreTrainedModel:
    """A checkpoint as a user loads it."""
    model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(folder / name)
    return model


@pytest.fixture
def models(folder: Path) -> Iterator[dict[str, Any]]:
    """Arguments of `load_pair`, with models that must be afterwards what they are now."""
    before, after = loaded(folder, "before"), loaded(folder, "after")
    before.train()
    states = [state(model) for model in (before, after)]
    yield {
        "recipient": before,
        "donors": {"sft": after},
        "tokenizer": AutoTokenizer.from_pretrained(folder / "before"),
    }
    assert [state(model) for model in (before, after)] == states


def state(model: nn.Module) -> dict[str, Any]:
    """All that a user may look at: weights and where they are, modes, hooks, gradients, ties."""
    seen: dict[str, Any] = {"config": getattr(model, "config", nn.Module()).to_dict()}
    for name, module in model.named_modules():
        hooks = [len(module._forward_hooks), len(module._forward_pre_hooks)]
        seen[name] = (type(module), module.training, hooks, sorted(vars(module)))
    for name, weight in model.named_parameters(remove_duplicate=False):
        seen[name] = (id(weight), weight._version, weight.requires_grad, weight.data_ptr())
    return seen


def evaluated(out: Path, *pair: Any, **options: Any) -> kgbench.Evaluation:
    """A run on the facts in memory."""
    given = {"dataset": facts(), "subject": "actor", "object": "costar", "prompts": PROMPTS}
    asked = {**given, "grafts": GRAFTS, "output_dir": out, "device": "cpu", **options}
    return kgbench.evaluate(*pair, **asked)


# ------------------------------------------------------------------------------------ identities


def test_a_pair_in_memory_is_its_saved_form(folder: Path, models: dict[str, Any]) -> None:
    """Whichever of its models are read and whichever are in memory; tied heads included."""
    before, after = str(folder / "before"), str(folder / "after")
    saved = kgbench.load_pair(recipient=before, donors={"sft": after})
    assert models["recipient"].config.tie_word_embeddings
    mixed: list[dict[str, Any]] = [
        models,
        {"recipient": folder / "before", "donors": models["donors"]},
        {**models, "donors": {"sft": after}},
    ]
    for sources in mixed:
        pair = kgbench.load_pair(**sources)
        assert pair.weight_hashes == saved.weight_hashes
        assert pair.tokenizer_hash == saved.tokenizer_hash


def test_a_run_has_the_record_of_the_command(
    folder: Path, models: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Facts, templates, grafts and models in memory give the id that names and files give."""
    run = evaluated(tmp_path, kgbench.load_pair(**models))
    options = ["--recipient", folder / "before", "--donor", folder / "after"]
    options += ["--dataset", folder / "facts.csv", "--subject", "actor", "--object", "costar"]
    options += ["--template", f"stars={PROMPTS['stars']}", "--prompt", "stars"]
    options += ["--graft", ",".join(GRAFTS), "--output-dir", tmp_path, "--device", "cpu", "-q"]
    assert main(["eval", *map(str, options)]) == 0
    assert capsys.readouterr().out.strip() == run.record.verdict
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()] == [run.path.name]


def hub_dataset() -> HubDataset:
    return HubDataset.from_pandas(facts())


def polars_frame() -> polars.DataFrame:
    return polars.DataFrame(facts().to_dict("list"))


@pytest.mark.parametrize(
    "make",
    [hub_dataset, polars_frame, lambda: facts().to_dict("records"), lambda: iter(hub_dataset())],
    ids=["datasets", "polars", "dicts", "iterator"],
)
def test_facts_of_any_library_are_one_data_set(
    make: Callable[[], object], folder: Path, models: dict[str, Any], tmp_path: Path
) -> None:
    pair = kgbench.load_pair(**models)
    first = evaluated(tmp_path, pair)
    again = evaluated(tmp_path, pair, dataset=make())
    assert again.reused and again.record.id == first.record.id
    by_file = evaluated(tmp_path, pair, dataset=folder / "facts.csv")
    assert by_file.record.id == first.record.id


def test_missing_values_are_left_out(tmp_path: Path, models: dict[str, Any]) -> None:
    """As empty cells of a file are; numbers become text."""
    table = facts().assign(year=[float("nan"), *range(1990, 2001)])
    table.loc[3, "costar"] = None
    run = evaluated(tmp_path, kgbench.load_pair(**models), dataset=table)
    assert run.record.dropped == {"row without subject or object": 1}


# ---------------------------------------------------------------------------------------- adapters


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Made]:
    return maker(tmp_path_factory)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("family", ADAPTERS)
def test_an_adapter_in_memory_is_its_saved_form(made: Callable[[str], Made], family: str) -> None:
    """The recipient is the model with the adapter off, the donor that with it on; nothing is
    merged, and PEFT's model is left as it was.
    """
    *_, recipient, adapter = made(family)
    saved = adapter_pair(recipient, adapter)
    with quiet():
        model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(recipient), adapter)
    before = state(model)
    pair = kgbench.load_pair(donors={"sft": model}, tokenizer=saved.tokenizer)
    assert state(model) == before
    assert pair.weight_hashes == saved.weight_hashes
    ids = torch.tensor([[3, 4, 5, 6]])
    model.eval()
    with torch.no_grad():
        on = model(input_ids=ids).logits
        with model.disable_adapter():
            off = model(input_ids=ids).logits
        assert torch.equal(pair.recipient(input_ids=ids).logits, off)
        torch.testing.assert_close(pair.donors["sft"](input_ids=ids).logits, on)


# --------------------------------------------------------------------------- what cannot be used


def test_models_that_are_refused(folder: Path, models: dict[str, Any]) -> None:
    """In a line that says what to do."""
    before = models["recipient"]
    spread = copy.deepcopy(before)
    spread.lm_head.to("meta")
    quantised = copy.deepcopy(before)
    quantised.is_quantized = True
    cases: list[tuple[dict[str, Any], str]] = [
        (
            {"recipient": spread},
            r"is on cpu and disk: give its directory or Hub id with device_map",
        ),
        ({"recipient": quantised}, r"quantised, and a graft needs plain weights"),
        ({"recipient": nn.Linear(2, 2)}, r"recipient is a Linear; expected a causal language"),
        ({"device_map": "auto"}, r"device_map is for models that are read"),
        ({"donors": {}}, r"no donor given"),
    ]
    for changed, message in cases:
        with pytest.raises(ModelError, match=message):
            kgbench.load_pair(**{**models, **changed})


def test_weights_that_changed_are_noticed(folder: Path, tmp_path: Path) -> None:
    """A pair is of the weights that it was loaded with, and a record of no others."""
    before, after = loaded(folder, "before"), loaded(folder, "after")
    tokenizer = AutoTokenizer.from_pretrained(folder / "before")
    pair = kgbench.load_pair(recipient=before, donors={"sft": after}, tokenizer=tokenizer)
    after.transformer.ln_f.weight.data.mul_(2)
    with pytest.raises(InputError, match="the weights of sft changed since load_pair"):
        evaluated(tmp_path, pair)
    with pytest.raises(InputError, match=r"donor 'sft' has the recipient's weights"):
        evaluated(tmp_path, recipient=before, donors={"sft": before}, tokenizer=tokenizer)


def test_hooks_are_refused(folder: Path, models: dict[str, Any]) -> None:
    """Those of libraries are left out, and stay on the caller's model."""
    plain = kgbench.load_pair(**models)
    trained = loaded(folder, "before")
    trained.enable_input_require_grads()  # of the library, and changes no answer
    Accelerator(mixed_precision="bf16", cpu=True).prepare(trained)  # as a Trainer leaves it
    pair = kgbench.load_pair(**{**models, "recipient": trained})
    ids = torch.tensor([[3, 4, 5]])
    assert torch.equal(pair.recipient(input_ids=ids).logits, plain.recipient(input_ids=ids).logits)
    trained.transformer.h[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(InputError, match=r"recipient has hooks .* at transformer\.h\.1, which may"):
        kgbench.load_pair(**{**models, "recipient": trained})


# ----------------------------------------------------------------------------------------- methods


class Halved(InterventionLocalizer):
    """A method of a user's file."""

    name = "halved"
    about = "Grafts as dynamic_graft does."
    version = "1"
    needs = frozenset({"weights"})

    treat = DynamicGraft.treat


def test_a_method_may_be_a_class_or_an_instance(tmp_path: Path, models: dict[str, Any]) -> None:
    """Kgbench's own has the record that it has by name; another's source is in the identity."""
    pair = kgbench.load_pair(**models)
    ids = []
    for method in ("dynamic_graft", DynamicGraft, DynamicGraft()):
        ids.append(evaluated(tmp_path, pair, localizer=method).record.id)
    assert len(set(ids)) == 1
    run = evaluated(tmp_path, pair, localizer=Halved)
    assert run.record.identity.localizer.name == "halved"
    assert source_fingerprint(Halved) in run.record.identity.localizer.version
    with pytest.raises(UnknownNameError, match="parameter of localizer 'halved'"):
        evaluated(tmp_path, pair, localizer=Halved, localizer_args={"a": "1"})
    with pytest.raises(InputError, match="is an instance, which has its parameters"):
        evaluated(tmp_path, pair, localizer=Halved(), localizer_args={"a": "1"})
    with pytest.raises(InputError, match="expected a class that derives from"):
        evaluated(tmp_path, pair, localizer=dict)


def test_the_source_of_a_cell_is_read(tmp_path: Path) -> None:
    """Of a class that no file holds, its own text counts: another text is another method."""
    import linecache

    def cell(number: int, text: str) -> type:
        name, scope = f"<cell {number}>", {"__name__": "__no_such_module__"}
        linecache.cache[name] = (len(text), None, text.splitlines(True), name)
        exec(compile(text, name, "exec"), scope)
        found: type = scope["Mine"]  # type: ignore[assignment]
        return found

    text = "x = {}\n\n\nclass Mine:\n    def treat(self):\n        return {}\n"
    first, same, other = cell(1, text.format(1, 2)), cell(2, text.format(5, 2)), cell(3, text)
    assert source_fingerprint(first) == source_fingerprint(same)
    assert source_fingerprint(first) != source_fingerprint(other)


# ------------------------------------------------------------------------------------------ results


def test_a_run_is_looked_at(tmp_path: Path, models: dict[str, Any]) -> None:
    """Tables, rows, comparison, picture, copy and claims, of one object."""
    pair = kgbench.load_pair(**models)
    run, other = evaluated(tmp_path, pair), evaluated(tmp_path, pair, localizer="activation_patch")
    table = run.to_pandas()
    assert list(table.graft) == [row.graft for row in run.record.rows]
    lt = table.set_index("graft").loc["LT"]
    row = next(row for row in run.record.rows if row.graft == "LT")
    assert (lt.top5, lt.top5_low, lt.top5_high) == (row.top5.value, row.top5.low, row.top5.high)
    assert len(run.facts.to_pandas()) == len(run.record.rows) * 12
    assert run.record.verdict in " ".join(repr(run).split())
    page = run._repr_html_()
    assert "<table>" in page and "median_rank</th>" in page and "terminal" not in page
    assert "paired over the facts that both have" in str(run.compare(other))
    assert run.plot()._repr_png_().startswith(b"\x89PNG")
    assert ".save(" in repr(run.plot())
    assert main(["show", str(run.save(tmp_path / "copy"))]) == 0
    with pytest.raises(InputError, match=r"is in .* already"):
        run.save(tmp_path)
    assert_localized(run, "ALL", top5__le=1.0)
    assert_not_at(run.record, "PRE", top5__le=1.0)


def test_an_analysis_has_its_options(tmp_path: Path, models: dict[str, Any]) -> None:
    """Given with its name, as on the command line; a wrong one, or a second run of an analysis of
    one, is told.
    """
    run = evaluated(tmp_path, kgbench.load_pair(**models))
    assert "q.h0" in str(run.ask("heads", component="q"))
    with pytest.raises(UnknownNameError, match=r"option of 'heads' 'layer'.*component, positions"):
        run.ask("heads", layer=1)
    with pytest.raises(InputError, match="give component to Heads"):
        run.ask(Heads(), component="q")
    with pytest.raises(InputError, match="asked of one run"):
        run.ask("heads", run)


def test_an_idle_donor_is_told(tmp_path: Path, models: dict[str, Any]) -> None:
    """A second donor that no graft names was given for nothing."""
    after = models["donors"]["sft"]
    pair = kgbench.load_pair(**{**models, "donors": {"sft": after, "other": after}})
    with pytest.warns(UserWarning, match=r"no graft uses the donor 'other'.*LT=other"):
        evaluated(tmp_path, pair)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluated(tmp_path, pair, grafts=["LT", "LT=other"])
    pair = kgbench.load_pair(**{**models, "donors": {"a": after, "b": after}})
    with pytest.raises(InputError, match="which of the donors a, b is measured"):
        evaluated(tmp_path, pair)


def test_a_recorded_run_is_opened(tmp_path: Path, models: dict[str, Any]) -> None:
    """By folder or by the start of its id; it shows and compares as it did when it was made."""
    pair = kgbench.load_pair(**models)
    run, other = evaluated(tmp_path, pair), evaluated(tmp_path, pair, localizer="activation_patch")
    for given in (run.path, str(run.path), run.record.id[:12]):
        opened = kgbench.open_run(given, tmp_path)
        assert repr(opened) == repr(run)
        assert opened.facts.equals(run.facts)
    told = str(kgbench.compare(run.path, other.record.id[:12], output_dir=tmp_path))
    assert told == repr(run.compare(other)) == str(kgbench.open_run(run.path).compare(other.path))
    with pytest.raises(UnknownNameError, match="0000"):
        kgbench.open_run("0000", tmp_path)


def test_records_are_told(tmp_path: Path, models: dict[str, Any]) -> None:
    """Found ones too, and those that an analysis of a run makes."""
    pair, told = kgbench.load_pair(**models), []
    for _ in range(2):
        run = evaluated(tmp_path, pair, on_record=told.append)
    assert [(each.record.id, each.reused) for each in told] == [
        (run.record.id, False),
        (run.record.id, True),
    ]
    run.ask(Audit(seeds=2))
    assert len({each.record.id for each in told}) == 2


# ----------------------------------------------------------------------------- the other functions


def test_a_donor_is_trained_on_facts_in_memory(folder: Path, tmp_path: Path) -> None:
    """As the command trains it on a file of them; its path is a donor."""
    given: dict[str, Any] = {
        "recipe": "aggressive",
        "recipient": folder / "before",
        "subject": "actor",
        "object": "costar",
        "templates": ["{actor} met {costar}."],
        "direction": "a2b",
        "epochs": 4,
        "device": "cpu",
        "progress": False,
    }
    kept = facts().iloc[:4]
    kept.to_csv(tmp_path / "facts.csv", index=False)
    with pytest.warns(UserWarning, match="the donor learned little: top-5 .* on wording") as warned:
        donor = kgbench.train(kept, output_dir=tmp_path / "memory", **given)
        other = kgbench.train(tmp_path / "facts.csv", output_dir=tmp_path / "file", **given)
    assert {Path(warning.filename) for warning in warned} == {Path(__file__)}
    assert donor.card["data"] == other.card["data"]
    assert donor.card["weights"] == other.card["weights"]
    pair = kgbench.load_pair(recipient=folder / "before", donors={"sft": donor})
    assert pair.weight_hashes["sft"] != pair.weight_hashes["recipient"]
    with pytest.raises(InputError, match="give an output_dir"):
        kgbench.train(kept, **given)
    with pytest.raises(InputError, match='train with direction="a2b"'):
        kgbench.train(kept, output_dir=tmp_path / "other", **{**given, "direction": "both"})
    with pytest.raises(InputError, match="give some with templates=TEXT"):
        kgbench.train(kept, output_dir=tmp_path / "other", **{**given, "templates": ()})


RENAMED = {
    "column": "columns",
    "donor": "donors",
    "graft": "grafts",
    "localizer_arg": "localizer_args",
    "readout_arg": "readout_args",
    "prompt": "prompts",
    "quiet": "progress",
    "run_a": "first",
    "run_b": "second",
}
"""Parameters of functions, by options with other names."""
IN_A_TERMINAL = {"as_json", "dry_run", "config"}
"""Options of what is printed, or in place of which Python has variables."""


@pytest.mark.parametrize("name", ["compare", "eval", "submit", "train"])
def test_a_function_has_the_options_of_its_command(name: str) -> None:
    """None is missing."""
    found = cli.get_command(click.Context(cli), name)
    assert found is not None
    renamed = {**RENAMED, "template": "templates" if name == "train" else "prompts"}
    options = set()
    for parameter in found.params:
        if not getattr(parameter, "hidden", False):
            options.add(renamed.get(str(parameter.name), str(parameter.name)))
    function = getattr(kgbench, {"eval": "evaluate"}.get(name, name))
    parameters = set(inspect.signature(function).parameters)
    assert options - IN_A_TERMINAL <= parameters


def test_public_functions_have_typed_options() -> None:
    """No `**options: Any`, and a documented parameter each."""
    functions = [getattr(kgbench, name) for name in kgbench.__all__]
    functions += [getattr(kgbench.paper, name) for name in kgbench.paper.__all__]
    for function in filter(inspect.isfunction, functions):
        name = function.__name__
        for parameter in inspect.signature(function).parameters.values():
            assert parameter.kind is not parameter.VAR_KEYWORD
            assert parameter.annotation not in (parameter.empty, "Any"), (name, parameter.name)
            assert f"{parameter.name}: " in str(function.__doc__), (name, parameter.name)


def test_the_readme_s_example(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: dict[str, Any]
) -> None:
    """It runs as it stands."""
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {
        "before": models["recipient"],
        "after": models["donors"]["sft"],
        "tokenizer": models["tokenizer"],
        "facts": facts(),
    }
    exec(code("from Python"), names)
    assert list((tmp_path / "kept").iterdir())


def test_wrong_arguments(tmp_path: Path, models: dict[str, Any]) -> None:
    pair = kgbench.load_pair(**models)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"dataset": {"train": facts()}}, "expected a DataFrame.*one split of it"),
        ({"dataset": ["x"]}, "row 1: expected a mapping"),
        ({"subject": "actress"}, "no column 'actress'"),
        ({"dataset": None}, "are about facts; give a dataset"),
        ({"tokenizer": pair.tokenizer}, "give these to load_pair"),
    ]
    for changed, message in cases:
        with pytest.raises((InputError, DataError), match=message):
            evaluated(tmp_path, pair, **changed)


# ------------------------------------------------------------------------------- errors in Python

GIVEN = {
    "name one by --subject COLUMN": "name one by subject=COLUMN",
    "add --donor sft=PATH, the finetuned one": 'add donors={"sft": PATH}, the finetuned one',
    "give --recipient FILE.py:CLASS --donor a=PATH.": (
        'give recipient=FILE.py:CLASS donors={"a": PATH}.'
    ),
    "give --recipient PATH --donor a=PATH": 'give recipient=PATH donors={"a": PATH}',
    "a prompt by --template NAME=TEXT": "a prompt by prompts={NAME: TEXT}",
    "call it --column subject=id": 'call it columns={"subject": "id"}',
    "give --localizer-arg KEY=VALUE": "give localizer_args={KEY: VALUE}",
    "--dtype bfloat16 or --chat-template": 'dtype="bfloat16" or chat_template',
    "leave --chat-template off": "leave chat_template off",
    "run `kgbench train --model X --recipe lora` with --model X": (
        "run `kgbench train --model X --recipe lora` with model X"
    ),
    "a dash -- and a-b": "a dash -- and a-b",
}
"""Words of an error on the command line, and the same in Python."""


@pytest.mark.parametrize("words", GIVEN)
def test_errors_name_arguments(words: str) -> None:
    """Options in an error's text are arguments of `evaluate` where Python called, and stay options
    on the command line; commands stay as they are.
    """
    with pytest.raises(InputError) as raised, python_names():
        raise InputError(words)
    assert str(raised.value) == GIVEN[words]
    with pytest.raises(InputError) as raised, command_line(), python_names():
        raise InputError(words)
    assert str(raised.value) == words


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"dataset": "tiny_movies"}, r"no model given: .*recipient=PATH donors=\{\"sft\": PATH\}"),
        ({"donors": "after"}, r"which facts did the donor learn\? Give dataset=NAME"),
        ({"model": "tiny-gemma", "donors": 3}, r"donors: expected a finetuned model .*, got int"),
        (
            {"localizers": ["all"]},
            r"unknown argument of evaluate: 'localizers'. Did you mean 'locali",
        ),
        ({"model": 42}, r"model: expected a pair that load_pair has loaded, or the name of one"),
        ({"model": torch.nn.Linear(1, 1)}, r"got Linear; a model goes by recipient"),
        ({"model": "tiny-gemma", "prompts": "{a} is"}, r"are about facts; give a dataset"),
        ({"model": "tiny-gemma", "localizer": []}, r"localizer: expected a name or several"),
        ({"model": "tiny-gemma", "metric": ["top1"]}, r"metric is a list; expected one name"),
        (
            {"model": "tiny-gemma", "localizer": ["all"], "localizer_args": {"none.a": "1"}},
            r"'none' is not run",
        ),
        ({"model": "tiny-gemma", "dataset": [{"a": "b", "c": "d"}]}, r"by subject=COLUMN"),
    ],
)
def test_what_a_newcomer_gives_is_answered(options: dict[str, Any], told: str) -> None:
    """Each is an error of one line that says what to give, in Python's words."""
    with pytest.raises(InputError, match=told) as raised:
        kgbench.evaluate(**options)
    assert "\n" not in str(raised.value) and "--" not in str(raised.value)


# ------------------------------------------------------------------- Python as the command line


def test_a_single_donor_needs_no_name(folder: Path, models: dict[str, Any], tmp_path: Path) -> None:
    """A model, a path or a donor that was trained is the donor `sft`, as `--donor PATH` is."""
    named = kgbench.load_pair(**models)
    for donor in (models["donors"]["sft"], folder / "after", str(folder / "after")):
        pair = kgbench.load_pair(**{**models, "donors": donor})
        assert pair.weight_hashes == named.weight_hashes
        run = evaluated(tmp_path, **{**models, "donors": donor})
        assert run.record.id == evaluated(tmp_path, named).record.id


def test_several_localizers_are_several_runs(tmp_path: Path, models: dict[str, Any]) -> None:
    """By name, class or instance; each has the record that it has alone, and they show as a table.
    Nothing runs where one of them is wrong.
    """
    pair = kgbench.load_pair(**models)
    with pytest.raises(UnknownNameError, match="weight_dalta"):
        evaluated(tmp_path, pair, localizer=["dynamic_graft", "weight_dalta"])
    assert not list(tmp_path.glob("*/record.json"))
    asked: dict[str, Any] = {"localizer_args": {"random.seed": "3"}, "suite": "budget"}
    methods = ["weight_delta", "random", DynamicGraft]
    runs = evaluated(tmp_path, pair, localizer=methods, grafts=(), **asked)
    assert isinstance(runs, kgbench.Evaluations)
    told = [run.record.identity.localizer.name for run in runs]
    assert told == ["weight_delta", "random", "dynamic_graft"]
    assert runs[1].record.identity.localizer.parameters["seed"] == 3
    alone = evaluated(tmp_path, pair, localizer="weight_delta", grafts=(), suite="budget")
    assert alone.reused and alone.record.id == runs[0].record.id
    assert all(name in repr(runs) and name in runs._repr_html_() for name in told)


def test_a_run_shows_its_ranking(tmp_path: Path, models: dict[str, Any]) -> None:
    """The scores of sites as a table, and the pictures that the command draws of them."""
    pair = kgbench.load_pair(**models)
    ranked = evaluated(tmp_path, pair, localizer="weight_delta", grafts=(), suite="budget")
    scores = ranked.scores.to_pandas()
    assert list(scores.columns) == ["region", "component", "layer", "score"]
    assert scores.layer.dtype == "Int64" and scores.layer.max() == pair.n_layers - 1
    table = scores[scores.region == "LT"].pivot(index="layer", columns="component", values="score")
    score = next(s for s in ranked.record.scores if (s.layer, s.region) == (1, "LT"))
    assert table.loc[1, score.component] == score.score
    pictures = {ranked.plot(kind)._repr_png_() for kind in ("chart", "curve", "map")}
    assert len(pictures) == 3
    with pytest.raises(UnknownNameError, match="unknown kind 'bars'"):
        ranked.plot("bars")
    run = evaluated(tmp_path, pair)
    assert len(run.scores) == 0
    with pytest.raises(InputError, match="has no map: no sites were ranked"):
        run.plot(kind="map")


@pytest.mark.parametrize("kind", KINDS)
def test_python_lists_what_the_command_lists(
    kind: str, tmp_path: Path, models: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """Every kind of `kgbench ls KIND`, with the same names and the same descriptions."""
    evaluated(tmp_path, kgbench.load_pair(**models))
    capsys.readouterr()
    assert main(["ls", kind, "--json", "--results", str(tmp_path)]) == 0
    told = json.loads(capsys.readouterr().out)
    if kind == "runs":
        told = {run.pop("id"): run for run in told["runs"]}
    assert kgbench.ls(kind, tmp_path) == told != {}


def test_public_names_alone_are_listed() -> None:
    """`dir(kgbench)` helps to find them."""
    assert dir(kgbench) == sorted(kgbench.__all__)


def test_a_pair_shows_in_a_line(models: dict[str, Any]) -> None:
    """Not by the modules of its models."""
    told = repr(kgbench.load_pair(**models))
    assert told.startswith("ModelPair('before': gpt2, ") and told.endswith(" donors sft)")
    assert len(told) < 100


def test_prompts_of_a_table(models: dict[str, Any]) -> None:
    """`load_prompts` takes facts and templates as `evaluate` does, and `grafted_logits` its prompts
    alone: of anything else the error says what is expected.
    """
    pair = kgbench.load_pair(**models)
    roles = {"subject": "actor", "object": "costar"}
    by_name = kgbench.load_prompts(facts(), PROMPTS, limit=3, **roles)
    alone = kgbench.load_prompts(facts(), PROMPTS["stars"], limit=3, **roles)
    assert [prompt.text for prompt in by_name] == [prompt.text for prompt in alone]
    assert {prompt.name for prompt in alone} == {"stars-in-a-movie-alongside"}
    rows = [
        {"prompt": prompt.text, "subject": fact.actor, "target": fact.costar}
        for prompt, fact in zip(by_name, facts().itertuples(), strict=False)
    ]
    asked = kgbench.load_prompts(rows)
    assert [prompt.text for prompt in asked] == [prompt.text for prompt in by_name]
    grafted = kgbench.grafted_logits(pair, asked, "FE,LT")
    assert torch.equal(grafted, kgbench.grafted_logits(pair, asked, ["FE", "LT"]))
    single = kgbench.grafted_logits(pair, asked[0], ["FE", "LT"])
    torch.testing.assert_close(single, grafted[:1])
    with pytest.raises(InputError, match="has no prompts of its own: name some"):
        kgbench.load_prompts(facts(), **roles)
    for read in (pair.encoded, pair.regions, pair.question):
        with pytest.raises(
            InputError, match=r"expected prompts .* as load_prompts gives them, got"
        ):
            read("a text")


def test_rows_of_prompt_and_target_are_one_record_on_the_command_line(
    folder: Path, models: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a template, from Python and from a file of any kind; so is a template without a name."""
    pair = kgbench.load_pair(**models)
    rows = []
    for actor, costar in facts().itertuples(index=False):
        text = f"{actor} stars in a movie alongside"
        rows.append({"prompt": text, "subject": actor, "target": costar})
    own: dict[str, Any] = {"subject": None, "object": None, "prompts": ()}
    run = evaluated(tmp_path, pair, dataset=rows, **own)
    assert list(run.record.identity.prompts) == ["prompt"]
    assert {row.n for row in run.record.rows} == {len(rows)}
    Path(tmp_path / "facts.json").write_text(json.dumps(rows))
    pd.DataFrame(rows).to_csv(tmp_path / "facts.csv", index=False)
    models_of = ["--recipient", folder / "before", "--donor", folder / "after", "--device", "cpu"]
    models_of += ["--graft", ",".join(GRAFTS), "--output-dir", tmp_path, "-q"]
    for name in ("facts.json", "facts.csv"):
        options = ["--dataset", tmp_path / name, *models_of]
        assert main(["eval", *map(str, options)]) == 0
        assert capsys.readouterr().out.strip() == run.record.verdict
    template = "{subject} stars in a movie alongside"
    named = evaluated(tmp_path, pair, dataset=rows, **{**own, "prompts": template})
    options = ["--dataset", tmp_path / "facts.json", "--template", template, *models_of]
    assert main(["eval", *map(str, options)]) == 0
    assert [path.name for path in tmp_path.glob("*/record.json")] == ["record.json"] * 2
    assert named.record.id != run.record.id


def test_one_fact_is_few(tmp_path: Path, models: dict[str, Any]) -> None:
    run = evaluated(tmp_path, kgbench.load_pair(**models), limit=1)
    assert "1 fact is few" in " ".join(str(run).split()) and "undefined" in run.record.verdict


def test_rows_of_prompt_and_target_are_learned(folder: Path, tmp_path: Path) -> None:
    """As prompt and target, in the one direction that they have; what cannot be is said."""
    rows = []
    for actor, costar in facts().iloc[:4].itertuples(index=False):
        rows.append({"prompt": "{} stars with", "subject": actor, "target": costar})
    given: dict[str, Any] = {"recipe": "aggressive", "epochs": 1, "device": "cpu"}
    given |= {"recipient": folder / "before", "output_dir": tmp_path / "donor", "progress": False}
    with pytest.raises(InputError, match='train with direction="a2b"'):
        kgbench.train(rows, **given)
    with pytest.raises(InputError, match="training reads a checkpoint"):
        kgbench.train(rows, **{**given, "recipient": loaded(folder, "before")})
    with pytest.warns(UserWarning, match="the donor learned little"):
        donor = kgbench.train(rows, direction="a2b", **given)
    assert donor.card["wordings"]["trained"] == ["{prompt} {target}."]
    assert donor.card["scores"]["prompt"]["n"] == 4
    given |= {"templates": "{subject} met {target}.", "output_dir": tmp_path / "one"}
    with pytest.warns(UserWarning, match="the donor learned little"):
        one = kgbench.train(rows, direction="a2b", **given)
    assert one.card["wordings"]["trained"] == ["{subject} met {target}."]
