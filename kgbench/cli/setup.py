"""`kgbench doctor` and `kgbench completion`: what is installed, and shell completion."""

from __future__ import annotations

import platform
import re
from importlib import metadata
from pathlib import Path

import click

from kgbench import __version__
from kgbench.cli.options import cli_command
from kgbench.cli.output import Output, table_text
from kgbench.runner.spec import RESULTS

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


@cli_command("as_json")
def doctor_command() -> Output:
    """Show versions, devices, memory, caches, and what is missing."""
    from kgbench.models.catalog import plants

    pairs = _shipped_pairs()
    here = [name for name, complete in pairs.items() if complete]
    planted = [name for name in here if name in plants()]
    unplanted = [name for name in here if name not in planted]
    facts = {
        **_machine(),
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
    lines = [f"missing: {line}" for line in missing]
    for name, lacking in extras.items():
        state = f"not installed: pip install 'kgbench[{name}]'" if lacking else "installed"
        lines.append(f"extra    {name:7}  {state}  ({EXTRAS[name]})")
    if not missing:
        lines.append("nothing that kgbench needs is missing")
    table = table_text(["what", "here"], list(facts.items()))
    installed = {name: not lacking for name, lacking in extras.items()}
    answer = {"facts": facts, "missing": missing, "extras": installed}
    return Output([table, "", *lines], answer, int(bool(missing)))


def _lacking(extra: str) -> list[str]:
    """Distributions that an extra asks for and that are not here."""
    names = []
    for line in metadata.requires("kgbench") or ():
        if re.search(rf"extra == ['\"]{extra}['\"]", line):
            names.append(re.split(r"[^\w.-]", line, maxsplit=1)[0])
    return [name for name in names if _version(name) is None]


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
    """Versions, the machine, and where files are read and written."""
    import psutil
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    memory, process, hub = psutil.virtual_memory(), psutil.Process(), Path(HF_HUB_CACHE)
    cores = psutil.cpu_count() or 1
    if hasattr(process, "cpu_affinity"):  # those that this process may use
        cores = len(process.cpu_affinity())
    checkpoints = len(list(hub.glob("models--*"))) if hub.is_dir() else 0
    return {
        "kgbench": __version__,
        "python": platform.python_version(),
        **{name: _version(name) or "missing" for name in PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "cores": str(cores),
        "memory": f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}",
        "devices": ", ".join(_devices()),
        "hub": "offline (HF_HUB_OFFLINE)"
        if HF_HUB_OFFLINE
        else "asked for ids that are no directory",
        "hub cache": f"{hub}, {checkpoints} models",
        "records go to": f"{RESULTS.absolute()} (eval --output-dir)",
    }


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


@cli_command(shell={"type": click.Choice(["bash", "zsh", "fish"]), "metavar": "bash|zsh|fish"})
def completion_command(shell: str) -> Output:
    """Print the completion script of a shell.

    \b
    bash: kgbench completion bash >> ~/.bashrc
    zsh:  kgbench completion zsh >> ~/.zshrc
    fish: kgbench completion fish > ~/.config/fish/completions/kgbench.fish
    """  # noqa: D301 (click reads the character, not its escape)
    from click.shell_completion import get_completion_class

    script, context = get_completion_class(shell), click.get_current_context()
    assert script is not None
    program = context.find_root().command
    return Output([script(program, {}, "kgbench", "_KGBENCH_COMPLETE").source()])
