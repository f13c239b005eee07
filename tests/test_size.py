"""Models larger than one device: layers on several devices, narrow types, and what a dry run says
of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import cpu_offload, disk_offload, dispatch_model
from tiny import random_model, tiny_config
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import AutoModelForCausalLM

from kgbench import cli, grafted_logits
from kgbench.data import Prompt, load_prompts
from kgbench.engine import Budget, Engine, load_pair
from kgbench.engine.batch_rows import run_rows
from kgbench.engine.edits import Hook
from kgbench.engine.engine import choosing, chosen_budget
from kgbench.engine.forward import Wiring
from kgbench.engine.gated import Differentiable
from kgbench.engine.generation import write_texts
from kgbench.engine.gradients import graft_effects, patch_effects, weight_gradients
from kgbench.engine.out_of_memory import is_out_of_memory
from kgbench.engine.packed import run_packed
from kgbench.engine.plan import Plan, Request
from kgbench.engine.selftest import tolerance
from kgbench.engine.treatment import graft_treatments, parse_configuration
from kgbench.errors import InputError
from kgbench.localizers.mask_graft import MaskGraft
from kgbench.models import placement
from kgbench.models.checkpoints import locate
from kgbench.models.family_map import load_family
from kgbench.models.pair import ModelPair, prepare
from kgbench.models.placement import (
    STRATEGIES,
    devices_of,
    free_memory,
    place,
)
from kgbench.readouts import TextReadout, readout_named
from kgbench.runner import Pairs, Settings, Spec, dry_run
from kgbench.runner.costs import weights_bytes
from kgbench.runner.forecast import checkpoint_bytes
from kgbench.sites import CONFIGURATIONS as PATHWAYS
from kgbench.testing import PICO_FAMILIES, pico_pair, pico_tokenizer

Folders = Mapping[str, Path]

AFTER = Hook(1, "resid_post")
GRAFTS = ("PRE", "SFT", "ALL", "FE", "LT:o+ffn@second_half", "LT:q", "ALL; LT:head")
DATASET = "fake_movies_fake_actors"


@pytest.fixture(scope="module")
def prompts() -> list[Prompt]:
    return load_prompts(DATASET, ["headline"], limit=2)


@pytest.fixture(
    scope="module",
    params=[
        ("gpt_neox", "parallel, tied"),
        ("phi3", "untied"),
        ("opt", "projections, norms behind"),
    ],
)
def checkpoints(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Folders:
    """Checkpoints with fused projections, tied and untied heads, learned positions and norms on
    either side.
    """
    root = tmp_path_factory.mktemp("sizes")
    for seed, name in enumerate(("recipient", "sft")):
        random_model(tiny_config(*request.param), None, seed, torch.float32).save_pretrained(
            root / name
        )
        pico_tokenizer(bos=False).save_pretrained(root / name)
    return {name: root / name for name in ("recipient", "sft")}


def loaded(folders: Folders, **options: Any) -> ModelPair:
    return load_pair(
        recipient=str(folders["recipient"]), donors={"sft": str(folders["sft"])}, **options
    )


def test_narrow_models_have_more_rows_in_a_forward() -> None:
    """On a CPU as many numbers as rows of width 256 have, and never fewer rows than these; on an
    accelerator what a quarter of its free memory holds, without that of models to come.
    """
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    rows = [Budget.on(cpu, width).tokens for width in (64, 128, 256, 768, 4096)]
    assert rows == [2048, 1024, 512, 512, 512]
    for width in (64, 768, 4096, 1 << 20):
        free, budget = free_memory()["cpu"], Budget.on(cuda, width)
        rows = free // 4 // budget.activations(1, width, torch.float32)
        assert budget.tokens == pytest.approx(min(max(512, rows), 1 << 15), rel=0.2)
    assert Budget.on(cuda, 64, held=1 << 60).tokens == 512
    assert Budget.on(cpu, 128, prompts=3) == Budget(tokens=1024, prompts=3)


class SmallDevice(TorchDispatchMode):
    """A device on which no tensor of more numbers has room."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self.most = most

    def __torch_dispatch__(
        self, call: Any, types: Any, given: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> Any:
        result = call(*given, **options)
        if isinstance(result, torch.Tensor) and result.numel() > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return result


@pytest.mark.parametrize("executor", ["packed", "rows"])
def test_out_of_memory_halves_a_forward(executor: str) -> None:
    """What was not answered is answered in smaller forwards, each answer once and as where there is
    room; later plans are small from the start, and nothing more is said.
    """
    pair, prompts = pico_pair("llama"), load_prompts("tiny_movies", ["headline"], limit=8)
    engine, wide = (Engine(pair, executor, Budget(10**6, tree=10**6)) for _ in range(2))
    plan, grafts = engine.plan(prompts, PATHWAYS), len(PATHWAYS)
    expected, (rows,) = wide.logits(plan), wide.sizes(plan)
    widest = pair.recipient.config.intermediate_size
    vocabulary = pair.recipient.config.vocab_size
    most = max(rows * widest, 8 * grafts * vocabulary) // 3
    with SmallDevice(most), pytest.warns(UserWarning, match="'cpu' ran out of memory: fewer"):
        chunks = list(engine.run(plan))
    labels = [torch.cat([getattr(c, name) for c in chunks]) for name in ("prompt", "configuration")]
    assert sorted(zip(*map(torch.Tensor.tolist, labels), strict=True)) == [
        *product(range(8), range(grafts))
    ]
    got = torch.cat([chunk.logits for chunk in chunks])
    torch.testing.assert_close(got, expected[labels[0], labels[1], 0], atol=1e-5, rtol=1e-5)
    assert max(engine.sizes(plan)) < rows
    with SmallDevice(most):
        assert [chunk.token_rows for chunk in engine.run(plan)] == engine.sizes(plan)


class SmallHead(SmallDevice):
    """A device without room for the logits of more than a few tokens."""

    def __init__(self, vocabulary: int, most: int) -> None:
        super().__init__(most * vocabulary)
        self.vocabulary = vocabulary

    def __torch_dispatch__(
        self, call: Any, types: Any, given: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> Any:
        result = call(*given, **options)
        is_logits = isinstance(result, torch.Tensor) and result.shape[-1:] == (self.vocabulary,)
        if is_logits and result.numel() > self.most:
            raise torch.OutOfMemoryError("out of memory")
        return result


@pytest.mark.parametrize("executor", ["packed", "rows"])
def test_a_long_prompt_is_not_what_had_no_room(executor: str) -> None:
    """A prompt that is a forward by itself, however many rows one may have, keeps no others from
    smaller forwards.
    """
    pair, prompts = pico_pair("llama"), load_prompts("tiny_movies", ["headline"], limit=8)
    long = replace(prompts[0], text=" ".join([prompts[0].text] * 6), spans={})
    rows = len(pair.encode(long))
    engine = Engine(pair, executor, Budget(rows))
    plan = engine.plan([long, *prompts], ["PRE"])
    assert max(engine.sizes(plan)) == rows
    expected = Engine(pair, executor).logits(plan)
    with (
        SmallHead(pair.recipient.config.vocab_size, 2),
        pytest.warns(UserWarning, match="ran out of memory"),
    ):
        chunks = list(engine.run(plan))
    answered = torch.cat([chunk.prompt for chunk in chunks])
    assert sorted(answered.tolist()) == [*range(9)]
    got = torch.cat([chunk.logits for chunk in chunks])
    torch.testing.assert_close(got, expected[answered, 0, 0], atol=1e-5, rtol=1e-5)


def _texts(pair: ModelPair, prompts: Sequence[Prompt]) -> list[Any]:
    """Texts of each prompt, drawn at a temperature."""
    readout = readout_named("text", {"contains": "a", "samples": 3, "temperature": 1, "tokens": 3})
    assert isinstance(readout, TextReadout)
    texts: list[Any] = [[] for _ in prompts]
    for part in write_texts(pair, "FE", prompts, readout, chosen_budget(pair)):
        for number, text in zip(part.prompts, part.texts, strict=True):
            texts[number].append(text)
    return texts


def _activations(pair: ModelPair, prompts: Sequence[Prompt]) -> list[Any]:
    treatments = graft_treatments(pair, prompts, parse_configuration("FE"))
    return Engine(pair).activations(prompts, treatments, [AFTER])


def _weights(pair: ModelPair, prompts: Sequence[Prompt]) -> list[Any]:
    total: dict[str, torch.Tensor] = {}
    for batch in weight_gradients(pair, prompts, "recipient"):
        for name, tensor in batch.items():
            total[name] = total.get(name, 0) + tensor
    return list(total.values())


def _mask(pair: ModelPair, prompts: Sequence[Prompt]) -> list[Any]:
    scores = MaskGraft(steps=2, sample=32).scores(pair, prompts)
    return list(scores.values())


class Largest(TorchDispatchMode):
    """The size of the largest tensor that is made."""

    size = 0

    def __torch_dispatch__(
        self, call: Any, types: Any, given: Sequence[Any] = (), options: Mapping[str, Any] = {}
    ) -> Any:
        result = call(*given, **options)
        if isinstance(result, torch.Tensor):
            self.size = max(self.size, result.numel())
        return result


@pytest.mark.parametrize(
    "computed",
    [
        graft_effects,
        lambda pair, prompts: patch_effects(pair, prompts, [AFTER]),
        _weights,
        _mask,
        _activations,
        _texts,
    ],
)
def test_out_of_memory_halves_a_batch(
    computed: Callable[[ModelPair, Sequence[Prompt]], list[Any]],
) -> None:
    """Derivatives, activations and texts are those of a device with room, in smaller batches."""
    pair, prompts = pico_pair("llama"), load_prompts("tiny_movies", ["headline"], limit=32)
    with choosing("rows", Budget(10**6)), Largest() as largest:
        expected = computed(pair, prompts)
    with (
        choosing("rows", Budget(10**6)),
        SmallDevice(largest.size // 3),
        pytest.warns(UserWarning, match="'cpu' ran out of memory: fewer"),
    ):
        got = computed(pair, prompts)
    assert len(got) == len(expected) > 1
    for one, other in zip(got, expected, strict=True):
        if isinstance(one, list):
            assert one == other and len(one) == 3
        else:
            np.testing.assert_allclose(one, other, atol=1e-5, rtol=1e-4)


def test_memory_for_nothing_is_an_error() -> None:
    """Where one configuration of a prompt has no room, one line says what to do; other errors of
    torch are not taken for a lack of memory.
    """
    pair, prompts = pico_pair("llama"), load_prompts("tiny_movies", ["headline"], limit=2)
    engine = Engine(pair, "packed")
    plan = engine.plan(prompts, ["PRE", "SFT"])
    with (
        SmallDevice(10),
        pytest.warns(UserWarning, match="ran out"),
        pytest.raises(InputError, match="too small for a prompt under one configuration: try --dt"),
    ):
        list(engine.run(plan))
    with SmallDevice(10), pytest.raises(InputError, match="too small for a prompt under"):
        graft_effects(pair, prompts[:1])
    assert not is_out_of_memory(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_a_tensor_without_room_is_out_of_memory() -> None:
    """On a processor torch raises no error of its own for it, but says so in its text."""
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert is_out_of_memory(caught.value)


# ---------------------------------------------------------------------------------- several devices


def test_devices_of_a_map() -> None:
    """Whole layers are placed: accelerators are filled alike, or in turn; the processor takes what
    they have no room for, or all where there is none of them.
    """
    pair = pico_pair("llama")
    size = sum(t.numel() * t.element_size() for t in pair.recipient.state_dict().values())
    enough, less = 4 * size, 2 * size

    def found(strategy: str, **free: int) -> list[str]:
        mapped = devices_of(
            pair.recipient,
            "model.layers",
            strategy,
            2,
            {name.replace("_", ":"): n for name, n in free.items()},
        )
        assert [*mapped] == [
            "model.embed_tokens",
            *(f"model.layers.{i}" for i in range(3)),
            "model.norm",
            "model.rotary_emb",
            "lm_head",
        ]
        return [str(device) for device in mapped.values()]

    for strategy in STRATEGIES:
        assert set(found(strategy, cuda_0=enough, cpu=enough)) == {"cuda:0"}
        assert set(found(strategy, cpu=enough)) == {"cpu"}
        spread = found(strategy, cuda_0=less, cpu=enough)
        assert spread == sorted(spread, reverse=True) and set(spread) == {"cuda:0", "cpu"}
        assert len(set(found(strategy, cuda_0=enough, cuda_1=enough, cpu=enough))) == (
            1 if strategy == "sequential" else 2
        )
        with pytest.raises(InputError, match=r"do not fit: .* try --dtype bfloat16"):
            found(strategy, cuda_0=10, cpu=10)


@pytest.mark.parametrize(
    "limit, expected", [("6000", 6000), ("max\n", 9000), (None, 9000), ("20000", 9000)]
)
def test_a_container_has_less_than_the_machine(
    limit: str | None, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a container may still take is free, where that is less than what the machine has left."""
    if limit is not None:
        (tmp_path / "memory.max").write_text(limit, "ascii")
    monkeypatch.setattr(placement, "_LIMITS", (str(tmp_path / "memory.max"),))
    monkeypatch.setattr(
        placement.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 9000})()
    )
    process = type("Process", (), {"memory_info": lambda _: type("Info", (), {"rss": 0})()})
    monkeypatch.setattr(placement.psutil, "Process", process)
    assert free_memory()["cpu"] == expected


@pytest.mark.sampled(1)
def test_a_map_changes_no_answer(checkpoints: Folders, prompts: list[Prompt]) -> None:
    """With every unit placed by a map, here all on the processor, answers are bit for bit those
    without one.
    """
    plain, mapped = (loaded(checkpoints, device_map=how) for how in (None, "balanced"))
    assert torch.equal(
        grafted_logits(plain, prompts, GRAFTS), grafted_logits(mapped, prompts, GRAFTS)
    )
    assert plain.weight_hashes == mapped.weight_hashes


@pytest.mark.parametrize("model_type", ["llama", "gpt2"])
def test_activations_follow_the_layers(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On three devices, of tensors without content, no operation meets tensors of two; the answers
    are where the input was.
    """
    family, tokenizer = load_family(model_type), pico_tokenizer(bos=False)

    def model() -> Any:
        made = prepare(
            AutoModelForCausalLM.from_config(PICO_FAMILIES[model_type](len(tokenizer), True))
        )
        parts = [*devices_of(made, family.layers, "auto")]
        devices = {path: torch.device("lazy", 3 * i // len(parts)) for i, path in enumerate(parts)}
        for path, device in devices.items():
            for module in made.get_submodule(path).modules():
                for name, weight in module.named_parameters(recurse=False):
                    module._parameters[name] = torch.nn.Parameter(
                        torch.empty(weight.shape, device=device), requires_grad=False
                    )
                for name, buffer in module.named_buffers(recurse=False):
                    module._buffers[name] = torch.empty(
                        buffer.shape, dtype=buffer.dtype, device=device
                    )
        place(made, devices, family.layers)
        return made

    types = {np.dtype(np.int64): torch.int64, np.dtype(bool): torch.bool}
    monkeypatch.setattr(
        torch, "from_numpy", lambda array: torch.empty(array.shape, dtype=types[array.dtype])
    )
    with FakeTensorMode(allow_non_fake_inputs=True), torch.inference_mode():
        pair = ModelPair("nowhere", model(), {"sft": model()}, tokenizer, family)
        assert len({weight.device for weight in pair.recipient.parameters()}) == 3
        wiring = Wiring(pair)
        table = np.array([[0], [1]], dtype=np.uint8).repeat(len(wiring.slots), axis=1)
        plan = Plan(
            table, (Request(tuple(range(5, 11)), np.array([[0] * 6, [1] * 6, [0, 1] * 3]), (5,)),)
        )
        for run in (run_rows, run_packed):
            (chunk,) = run(wiring, plan, Budget())
            answers = chunk.answers()
            assert answers.logits.device == pair.device == torch.device("lazy", 0)
            assert answers.logits.shape == (3, 300)
        with pytest.raises(
            InputError, match="methods that take derivatives need them on one device"
        ):
            Differentiable(pair)


@pytest.mark.parametrize("offload", ["hooks", "cpu", "disk"])
def test_models_that_accelerate_has_dispatched(
    folders: Folders, prompts: list[Prompt], offload: str, tmp_path: Path
) -> None:
    """Hooks of accelerate stay in force under a graft: on all modules, and on a donor whose weights
    it fetches.
    """
    plain, hooked = loaded(folders, share=False), loaded(folders, share=False)
    donor = hooked.donors["sft"]
    if offload == "hooks":
        for model in (hooked.recipient, donor):
            dispatch_model(model, {"": "cpu"}, main_device="cpu", force_hooks=True)
    elif offload == "cpu":
        cpu_offload(donor, torch.device("cpu"))
    else:
        disk_offload(donor, str(tmp_path), torch.device("cpu"))
    assert torch.equal(
        grafted_logits(plain, prompts, GRAFTS), grafted_logits(hooked, prompts, GRAFTS)
    )


# ------------------------------------------------------------------------------ types and gradients


@pytest.mark.parametrize("executor", ["packed", "rows", "sequential"])
def test_laws_in_bfloat16(folders: Folders, prompts: list[Prompt], executor: str) -> None:
    """Grafting nothing is the recipient and everything the donor, as far as two rows of one batch
    round alike.
    """
    pair = loaded(folders, dtype="bfloat16")
    grafts = [
        "NONE",
        "ALL; ALL:ln_f+head",
        "ALL; ALL:ln_f+head; ALL=recipient; ALL:ln_f+head=recipient",
    ]
    nothing, all_, back = grafted_logits(pair, prompts, grafts, executor).unbind(1)
    for model, ours in (
        (pair.recipient, nothing),
        (pair.donors["sft"], all_),
        (pair.recipient, back),
    ):
        for prompt, logits in zip(prompts, ours, strict=True):
            with torch.inference_mode():
                alone = model(
                    input_ids=torch.tensor([pair.encode(prompt)]), use_cache=False
                ).logits[0, -1]
            assert logits.dtype == torch.bfloat16
            assert float((logits - alone).abs().max()) <= tolerance(pair, alone)
            assert int(alone.argmax()) in logits.topk(3).indices


def test_nothing_is_kept_for_gradients(folders: Folders, prompts: list[Prompt]) -> None:
    """No weight asks for a gradient, and every answer is computed in inference mode."""
    pair = loaded(folders)
    assert not any(
        weight.requires_grad
        for model in (pair.recipient, *pair.donors.values())
        for weight in model.parameters()
    )
    seen: list[bool] = []
    handle = pair.recipient.register_forward_pre_hook(
        lambda *_: seen.append(torch.is_inference_mode_enabled())
    )
    for executor in ("packed", "rows", "sequential"):
        engine = Engine(pair, executor)
        assert all(
            chunk.logits.is_inference() for chunk in engine.run(engine.plan(prompts, ["FE"]))
        )
    handle.remove()
    assert seen and all(seen)


# ---------------------------------------------------------------------------------------- what fits


@pytest.fixture
def asked(folders: Folders) -> Spec:
    return Spec(
        recipient=str(folders["recipient"]),
        donors={"sft": str(folders["sft"])},
        dataset=DATASET,
        prompts=("headline",),
        limit=2,
    )


def test_a_dry_run_says_that_it_fits(asked: Spec, tmp_path: Path) -> None:
    """Weights, logits and activations against what is free."""
    cost = dry_run(asked, Settings(device="cpu", output_dir=tmp_path))
    assert cost.fits and cost.verdict.startswith("fits: needs ")
    assert list(cost.memory) == ["weights", "logits", "activations"]
    assert cost.free > sum(cost.memory.values()) == cost.needed > 0


def test_a_dry_run_says_what_does_not_fit(
    asked: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before anything is loaded, and what to try."""
    monkeypatch.setattr(
        placement.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 100_000})()
    )
    with pytest.raises(
        InputError,
        match=r"^does not fit: needs .* free on cpu; try --dtype bfloat16, --device-map",
    ):
        dry_run(asked, Settings(device="cpu", output_dir=tmp_path))
    absent = Spec(model="gemma-2b", prompts=("headline",), limit=2)
    settings = Settings(device="cpu", output_dir=tmp_path)
    whole = dry_run(absent, settings)
    assert not whole.fits and whole.verdict.startswith("does not fit: needs ")
    assert whole.verdict.endswith("; try --dtype bfloat16, --device-map auto")
    half = dry_run(replace(absent, dtype="bfloat16"), settings)
    assert not half.fits and half.verdict.endswith("; try --device-map auto")
    assert half.memory["weights"] * 2 == whole.memory["weights"]


def test_localizers_in_turn_need_the_memory_once(
    asked: Spec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair that one dry run has loaded is not refused in the next for the memory that it takes
    itself.
    """
    settings, loaded = Settings(device="cpu", output_dir=tmp_path), Pairs()
    first = dry_run(asked, settings, loaded)
    monkeypatch.setattr(
        placement.psutil,
        "virtual_memory",
        lambda: type("Memory", (), {"available": first.memory["weights"] // 2})(),
    )
    again = dry_run(replace(asked, localizer="static_graft"), settings, loaded)
    assert again.memory["weights"] == first.memory["weights"]
    with pytest.raises(InputError, match="does not fit"):
        dry_run(replace(asked, dtype="float64"), settings, loaded)


def test_what_a_checkpoint_takes(folders: Folders) -> None:
    """By its configuration, what it takes loaded, whatever other files lie beside it."""
    found, pair = locate(str(folders["recipient"])), loaded(folders, share=False)
    assert (
        2 * checkpoint_bytes(found, torch.float32)
        == weights_bytes(pair)
        == 4 * checkpoint_bytes(found, torch.bfloat16)
    )


def test_the_command(folders: Folders, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`kgbench eval` takes the options, and refuses a map that is none and two ways of saying
    where.
    """
    job = f"eval --dataset {DATASET} --prompt headline --limit 2".split()
    job += ["--recipient", str(folders["recipient"]), "--donor", f"sft={folders['sft']}"]
    job += ["--output-dir", str(tmp_path)]
    outputs = []
    for options in ((), ("--device-map", "auto")):
        assert cli.main([*job, *options]) == 0
        outputs.append(capsys.readouterr().out)
    assert "computed before: this run computed nothing" in outputs[1]
    for options in (
        ("--device-map", "balance"),
        ("--device-map", "auto", "--device", "cpu"),
    ):
        assert cli.main([*job, *options]) == 2
