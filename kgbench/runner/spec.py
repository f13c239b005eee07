"""Specification of a run: what is evaluated, apart from how.

A field's docstring is the help of its option; its metadata holds what else the option needs
(`kgbench.cli.options`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kgbench.data import ImportOptions
from kgbench.errors import InputError
from kgbench.sites import split_grafts

if TYPE_CHECKING:
    from kgbench.data import Dataset
    from kgbench.localizers import AbstractLocalizer
    from kgbench.models.pair import ModelPair

RESULTS = Path("kgbench-results")
"""Default folder of records, in the working directory."""

PAIR = ("model", "recipient", "donors", "revision", "chat_template")
"""Fields of the model pair."""
FACTS = ("dataset", "subject", "object", "columns", "templates", "prompts")
"""Fields of the facts and how they are asked for."""
INSTALLED: Mapping[str, Any] = {
    "default": None,
    "metavar": "FILE.py:CLASS",
    "help": "Localizer of the run, where it is not installed.",
}
"""Changes of the option of a localizer, where it is that of a recorded run."""
COMPUTING = (
    "dtype",
    "batch_size",
    "device",
    "device_map",
    "executor",
    "attention",
)
"""Fields of how a run is computed."""


@dataclass(frozen=True)
class Held:
    """What a caller holds in memory, in the place of what a specification names."""

    pair: ModelPair | None = None
    dataset: Dataset | None = None
    localizer: AbstractLocalizer | None = None
    code: str | None = None
    """Hash of the localizer's code, where that is not at hand."""


def option(default: Any, metavar: str | None = None, **more: Any) -> Any:
    """A field with an option on the command line.

    Args:
        default: Its value, or the type that makes one.
        metavar: What the help shows in the place of the value.
        **more: What else the option needs (`kgbench.cli.options`).
    """
    metadata = {**({} if metavar is None else {"metavar": metavar}), **more}
    if isinstance(default, type):
        return field(default_factory=default, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Spec:
    """What is evaluated; with the hashes of weights and facts it is the identity of a record."""

    localizer: str = option("dynamic_graft", "NAME|FILE.py:CLASS", names="localizers")
    """Localizer, by name or as a class of a file."""
    model: str | None = option(None, "NAME", names="models")
    """Model pair by name, see `kgbench ls models`."""
    recipient: str | None = option(None, "PATH|ID", also="--base")
    """Base (recipient): the model before finetuning, without or in place of --model's."""
    donors: Mapping[str, str] = option(dict, "[NAME=]PATH|ID", flag="--donor", also="--finetuned")
    """Finetuned model (donor), by default named sft; may be repeated."""
    revision: str | None = option(None, "REV")
    """Branch, tag or commit of Hub checkpoints."""
    chat_template: bool = option(False, flag="--chat-template/--no-chat-template")
    """Put prompts into the tokenizer's chat template.  [default: off]"""
    dataset: str | None = option(None, "NAME|FILE", names="datasets")
    """Facts: a shipped data set, or your own file.  [default: the pair's own]"""
    imports: ImportOptions | None = None
    prompts: tuple[str, ...] = option((), "NAME", flag="--prompt", names="prompts")
    """Evaluation prompts; several with commas.  [default: the suite's, or the file's own]"""
    readout: str | None = option(None, "NAME", names="readouts")
    """What is read of the output, see `kgbench ls readouts`.  [default: the data set's, or
    first_token]"""
    readout_args: Mapping[str, Any] = option(dict, "KEY=VALUE", flag="--readout-arg")
    """Parameter of the readout; may be repeated."""
    localizer_args: Mapping[str, str] = option(dict, "KEY=VALUE", flag="--localizer-arg")
    """Argument of the localizer; may be repeated."""
    grafts: tuple[str, ...] = option((), "GRAFT", flag="--graft")
    """Graft expression, such as "FE+LT" or "LT:o+ffn@second_half"; several with commas."""
    suite: str = option("pathways", "NAME", names="suites", asked=True)
    """Named set of configurations.  [default: pathways]"""
    layers: str | None = option(None, "LAYERS")
    """Layers for all grafts that name none, such as second_half or 8-17."""
    limit: int | None = option(None, "N")
    """Only the first N facts."""
    dtype: str | None = option(None, "DTYPE")
    """float32, float64, bfloat16, float16.  [default: float32 on CPU, as stored elsewhere]"""
    seed: int = option(0, "N", least=0)
    """Random seed of the bootstrap and of random localizers."""
    metric: str | None = option(None, "NAME")
    """Metric of the ratios and the verdict.  [default: top5, or the first of top1 and logprob
    where few first tokens are answers]"""
    held: Any = field(default=None, repr=False)
    """Objects in the place of names, a `Held`; never written, and no option."""
    expected: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """Parts of the identity of a recorded run that this one must have, as JSON; no option."""


@dataclass(frozen=True)
class Settings:
    """How it is computed; no part of the identity."""

    batch_size: int | None = option(None, "N|auto", auto=True)
    """Prompts per forward.  [default: auto, by width and free memory, halved where it runs out]"""
    device: str = option("auto", "DEVICE")
    """cpu, cuda, cuda:1, mps."""
    executor: str = option("auto", "NAME")
    """auto, packed, rows or sequential."""
    output_dir: Path = RESULTS
    """Where records go."""
    attention: str = option("auto", "NAME")
    """Attention backend: auto, sdpa or eager."""
    device_map: str | None = option(None, "MAP")
    """Spread layers over devices: auto, balanced or sequential."""
    on_record: Callable[[Any], None] | None = field(default=None, repr=False, compare=False)
    """Called with each `Run` once its record is there, found or computed; no option."""

    def __post_init__(self) -> None:
        """Refuse a device besides a map.

        Raises:
            InputError: Both are given.
        """
        if self.device_map is not None and self.device != "auto":
            raise InputError(
                "--device is one device, --device-map spreads layers over several: give one of them"
            )


def listed(values: Iterable[str]) -> tuple[str, ...]:
    """Names given by repetition, with commas, or both; each once, in order."""
    names = [name.strip() for name in ",".join(values).split(",")]
    return tuple(dict.fromkeys(filter(None, names)))


def own_arguments(
    localizer: str, localizers: Iterable[str], arguments: Mapping[str, str]
) -> dict[str, str]:
    """Arguments of one localizer: those for all, overruled by its own, as in `random.seed`.

    Args:
        localizer: A registered name, or `path/to/file.py:Class`, which is named by its class.
        localizers: All that are run.
        arguments: Values by parameter, with or without the localizer.

    Raises:
        InputError: An argument is of a localizer that is not run.
    """
    shared: dict[str, str] = {}
    arguments_of_one: dict[str, str] = {}
    named = {name.rpartition(":")[2]: name for name in localizers}
    for key, value in arguments.items():
        owner, _, parameter = key.rpartition(".")
        if owner and owner not in named:
            raise InputError(
                f"--localizer-arg {key}={value}: {owner!r} is not run; --localizer has "
                f"{', '.join(named)}"
            )
        if not owner:
            shared[parameter] = value
        elif named[owner] == localizer:
            arguments_of_one[parameter] = value
    return {**shared, **arguments_of_one}


def grafts_of(values: Iterable[str]) -> tuple[str, ...]:
    """Graft expressions given by repetition, with commas, or both; each once, in order."""
    return tuple(dict.fromkeys(chain.from_iterable(map(split_grafts, values))))
