"""What all tests share: no network, one thread, examples that repeat."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kgbench.runner import Settings, Spec

# Before anything imports them: libraries read these once. A test that wants the hub says so itself.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No donor that was trained on this machine takes part in a test.
# For the tests in tests/real; a worker of pytest-xdist has it from the process that started it.
os.environ.setdefault("KGBENCH_KEPT", os.environ.get("KGBENCH_HOME", ""))
os.environ["KGBENCH_HOME"] = str(Path(__file__).parent / "no-such-home")

import forks
import hypothesis
import nightly
import pytest
from commands import Call, caller
from jaxtyping import install_import_hook

# Shapes and types of what goes in and out are checked against the annotations, here only. Not in
# forward.py and treatment.py: the one
# defines functions within functions, for each of which the checks would be built anew at every
# call, the other is called once per token.
CHECKED = ("engine", "packed", "plan", "rows", "selftest", "sequential", "tree")
install_import_hook(
    [*(f"kgbench.engine.{name}" for name in CHECKED), "kgbench.metrics"], "beartype.beartype"
)

# The same examples on every machine, so that a red test stays red until it is mended;
# `--hypothesis-profile explore` looks for new ones.
hypothesis.settings.register_profile("repeatable", deadline=None, derandomize=True)
hypothesis.settings.register_profile("explore", deadline=None, max_examples=1000)
hypothesis.settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tests of what a system does not have are not collected there."""
    nightly.mark_cases(items)
    absent = {name for name in ("linux", "posix") if not _has(name)}
    others = [item for item in items if absent & {mark.name for mark in item.iter_markers()}]
    if others:
        config.hook.pytest_deselected(items=others)
        items[:] = [item for item in items if item not in others]


def _has(system: str) -> bool:
    return os.name == "posix" if system == "posix" else sys.platform == system


def pytest_collection_finish() -> None:
    """What imports and collection made stays to the end, so no garbage collection looks at it."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Call:
    """Runs a command in this process; gives exit status, stdout and stderr."""
    return caller(capsys)


@pytest.fixture(scope="session", autouse=True)
def localizers_of_others() -> Iterator[None]:
    """Processes of third-party localizers are forked from one that has imported torch."""
    from kgbench.runner import third_party_process

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(third_party_process, "subprocess", forks.module)
        yield


@pytest.fixture(scope="module")
def exact() -> Iterator[None]:
    """Models that compute in float64 all through.

    Eager attention takes its softmax, and an RMS norm its mean, in float32 whatever the type of the
    model. How that rounds depends on the last bit of what goes in, and for the softmax on how many
    masked places stand beside, so that no two ways to arrange the same tokens would agree better
    than to 1e-6, and a small error in the engine could hide in that.

    Layers compute rows of their own wherever these are fewer, also where that saves little.
    """
    import torch

    from kgbench.engine import forward, packed

    plain, to, single = torch.nn.functional.softmax, torch.Tensor.to, torch.Tensor.float

    def softmax(
        x: torch.Tensor,
        dim: int | None = None,
        _stacklevel: int = 3,
        dtype: torch.dtype | None = None,
    ) -> torch.Tensor:
        return plain(x, dim=dim, dtype=torch.float64 if x.dtype == torch.float64 else dtype)

    def kept(x: torch.Tensor, *wanted: Any, **options: Any) -> torch.Tensor:
        narrows = x.dtype == torch.float64 and torch.float32 in (*wanted, options.get("dtype"))
        return x if narrows else to(x, *wanted, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "softmax", softmax)
        patch.setattr(torch.Tensor, "to", kept)
        patch.setattr(packed, "WASTE", 0.0)
        patch.setattr(packed, "SAVED", 0.0)
        patch.setattr(forward, "MLP_SAVED", 0.0)
        patch.setattr(
            torch.Tensor,
            "float",
            lambda x, *options, **more: (
                x if x.dtype == torch.float64 else single(x, *options, **more)
            ),
        )
        yield


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Checkpoints on disk as others write them: `recipient` and `sft`, of GPT-2 type with tied
    embeddings, and their tokenizer.
    """
    import torch
    from transformers import AutoModelForCausalLM

    from kgbench.testing import PICO_FAMILIES, pico_tokenizer

    root = tmp_path_factory.mktemp("pair")
    tokenizer = pico_tokenizer(bos=False)
    for seed, name in enumerate(("recipient", "sft")):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(PICO_FAMILIES["gpt2"](len(tokenizer), True))
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(0.2 * torch.randn(parameter.shape))
        model.save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    return {name: root / name for name in ("recipient", "sft")}


@pytest.fixture(scope="module")
def spec(folders: dict[str, Path]) -> Spec:
    """A small job on checkpoints from disk."""
    from kgbench.runner import Spec

    return Spec(
        recipient=str(folders["recipient"]),
        donors={"sft": str(folders["sft"])},
        dataset="fake_movies_fake_actors",
        prompts=("headline", "qa"),
        limit=5,
    )


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """A folder of records for the runs of a file, on the processor."""
    from kgbench.runner import Settings

    return Settings(output_dir=tmp_path_factory.mktemp("runs"), device="cpu")


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Path]]:
    """Random checkpoints of a family, with its tokenizer, for lm-eval; written once."""
    from lm_eval_runs import write_checkpoints

    return cache(lambda family: write_checkpoints(tmp_path_factory.mktemp(family), family))


@pytest.fixture(scope="session")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tasks for lm-eval on facts with difficult names."""
    from lm_eval_runs import write_tasks

    return write_tasks(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the sources make, built and unpacked as an installer unpacks it."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(
        command,
        cwd=Path(__file__).parent.parent,
        check=True,
        capture_output=True,
        env=os.environ | {"PYTHONDONTWRITEBYTECODE": "1"},
    )
    (built,) = folder.glob("kgbench-*.whl")
    with zipfile.ZipFile(built) as archive:
        archive.extractall(folder / "installed")
    return folder / "installed"
