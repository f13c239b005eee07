"""`kgbench doctor` and `kgbench completion`: what is installed, and shell completion."""

from __future__ import annotations

import platform
import re
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path

import click

from kgbench import __version__
from kgbench.cli.options import RESULTS
from kgbench.cli.output import echo_json, echo_table, json_option

PACKAGES = (
    "torch",
    "transformers",
    "tokenizers",
    "safetensors",
    "numpy",
    "scipy",
    "pyarrow",
    "pydantic",
    "matplotlib",
    "faker",
    "click",
    "rich",
)
"""Distributions whose versions decide what comes out or whether it runs."""

EXTRAS = {
    "lm-eval": "tasks and a model for the Language Model Evaluation Harness",
    "hub": "data sets of the Hugging Face Hub",
    "lora": "the recipe lora of kgbench train",
    "notebook": "the explorer as a widget, and tables as DataFrames",
    "tools": "nnsight and TransformerLens, for the models of a pair",
    "slurm": "studies on SLURM",
    "ray": "studies on Ray",
    "s3": "records in an object store",
    "bench": "kgbench's benchmarks, and the tools they are compared with",
    "test": "kgbench's own tests",
    "cluster": "tests of studies on clusters of one machine",
    "page": "tests of pages and notebooks in a browser",
    "docs": "kgbench's documentation",
    "dev": "style and types of kgbench's code",
}
"""Extras of the package, and what each is for."""

GIB = 2**30


@click.command()
@json_option()
def doctor_command(as_json: bool) -> int:
    """Show versions, devices, memory, caches, and what is missing."""
    from kgbench.models.catalog import plants

    pairs = _shipped_pairs()
    here = [name for name, complete in pairs.items() if complete]
    planted = [name for name in here if name in plants()]
    unplanted = [name for name in here if name not in planted]
    facts = {
        **_versions(),
        **_machine(),
        **_places(),
        "shipped pairs": ", ".join(unplanted) or "none",
        "shipped plants": ", ".join(planted) or "none",
    }
    missing = []
    for name in PACKAGES:
        if _version(name) is None:
            missing.append(f"package {name}; pip install kgbench brings it")
    for name in pairs:
        if name not in here:
            missing.append(f"shipped pair {name}: install kgbench again")
    extras = {name: _lacking(name) for name in EXTRAS}
    if as_json:
        installed = {name: not lacking for name, lacking in extras.items()}
        echo_json({"facts": facts, "missing": missing, "extras": installed})
    else:
        echo_table(["what", "here"], list(facts.items()))
        click.echo()
        click.echo("\n".join([*(f"missing: {line}" for line in missing), *_extra_lines(extras)]))
        if not missing:
            click.echo("nothing that kgbench needs is missing")
    return 1 if missing else 0


def _extra_lines(extras: Mapping[str, Sequence[str]]) -> list[str]:
    """A line on each extra: installed, or by which command it would be."""
    lines = []
    for name, lacking in extras.items():
        state = f"not installed: pip install 'kgbench[{name}]'" if lacking else "installed"
        lines.append(f"extra    {name:7}  {state}  ({EXTRAS[name]})")
    return lines


def _lacking(extra: str) -> list[str]:
    """Distributions that an extra asks for and that are not here."""
    names = []
    for line in metadata.requires("kgbench") or ():
        if re.search(rf"extra == ['\"]{extra}['\"]", line):
            names.append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return [name for name in names if _version(name) is None]


def _versions() -> dict[str, str]:
    return {
        "kgbench": __version__,
        "python": platform.python_version(),
        **{name: _version(name) or "missing" for name in PACKAGES},
    }


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _shipped_pairs() -> dict[str, bool]:
    """Pairs that come with the package, and whether all their files did."""
    from kgbench.models.catalog import entry, is_delta, pair_names, zoo_path

    pairs = {}
    for name in pair_names():
        sources = (entry(name).recipient, *entry(name).donors.values())
        paths = [path for path in map(zoo_path, sources) if path is not None]
        if paths:
            complete = [(path / "config.json").exists() or is_delta(path) for path in paths]
            pairs[name] = all(complete)
    return pairs


def _machine() -> dict[str, str]:
    import psutil

    memory = psutil.virtual_memory()
    return {
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": str(_cores()),
        "memory": f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}",
        "devices": ", ".join(_devices()),
    }


def _cores() -> int:
    """Cores that this process may use."""
    import psutil

    process = psutil.Process()
    return (
        len(process.cpu_affinity()) if hasattr(process, "cpu_affinity") else psutil.cpu_count() or 1
    )


def _devices() -> list[str]:
    try:
        import torch
    except ImportError:
        return ["cpu (no torch to ask for others)"]
    found = ["cpu"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        found.append(f"cuda:{index} ({properties.name}, {properties.total_memory / GIB:.0f} GiB)")
    if torch.backends.mps.is_available():
        found.append("mps")
    return found


def _places() -> dict[str, str]:
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    hub = Path(HF_HUB_CACHE)
    checkpoints = len(list(hub.glob("models--*"))) if hub.is_dir() else 0
    return {
        "hub": "offline (HF_HUB_OFFLINE)"
        if HF_HUB_OFFLINE
        else "asked for ids that are no directory",
        "hub cache": f"{hub}, {checkpoints} models",
        "records go to": f"{RESULTS.absolute()} (eval --output-dir)",
    }


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]), metavar="bash|zsh|fish")
@click.pass_context
def completion_command(ctx: click.Context, shell: str) -> None:
    """Print the completion script of a shell.

    \b
    bash: kgbench completion bash >> ~/.bashrc
    zsh:  kgbench completion zsh >> ~/.zshrc
    fish: kgbench completion fish > ~/.config/fish/completions/kgbench.fish
    """  # noqa: D301 (click reads the character, not its escape)
    from click.shell_completion import get_completion_class

    script = get_completion_class(shell)
    assert script is not None
    click.echo(script(ctx.find_root().command, {}, "kgbench", "_KGBENCH_COMPLETE").source())
