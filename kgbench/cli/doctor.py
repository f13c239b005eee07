"""`kgbench doctor`: what is installed, and what the machine has."""

from __future__ import annotations

import platform
from importlib import metadata

from kgbench.cli.options import cli_command
from kgbench.cli.output import Output, table_text
from kgbench.extras import install_command, is_installed
from kgbench.version import __version__

PACKAGES = ("torch", "transformers", "tokenizers", "numpy")
"""Distributions whose versions decide what comes out."""

GIB = 2**30


@cli_command("as_json")
def doctor_command() -> Output:
    """Show versions, devices, memory, the folders of models, and which extras are installed."""
    import psutil
    from huggingface_hub.constants import HF_HUB_CACHE, HF_HUB_OFFLINE

    from kgbench.models.catalog import donors_folder

    memory = psutil.virtual_memory()
    facts = {
        "kgbench": __version__,
        "python": f"{platform.python_version()}, {platform.system()} {platform.machine()}",
        **{name: metadata.version(name) for name in PACKAGES},
        "memory": f"{memory.available / GIB:.1f} GiB free of {memory.total / GIB:.1f}",
        "devices": ", ".join(_devices()),
        "hub cache": HF_HUB_CACHE + (", offline (HF_HUB_OFFLINE)" if HF_HUB_OFFLINE else ""),
        "donors": str(donors_folder()),
    }
    names = metadata.metadata("kgbench").get_all("Provides-Extra") or ()
    extras = {name: is_installed(name) for name in names}
    lines = [table_text(["what", "here"], list(facts.items())), ""]
    for name, installed in extras.items():
        state = "installed" if installed else f"not installed: {install_command(name)}"
        lines.append(f"extra    {name:8}  {state}")
    return Output(lines, {"facts": facts, "extras": extras})


def _devices() -> list[str]:
    import torch

    devices = ["cpu"]
    for index in range(torch.cuda.device_count()):
        properties = torch.cuda.get_device_properties(index)
        devices.append(f"cuda:{index} ({properties.name}, {properties.total_memory / GIB:.0f} GiB)")
    return devices + ["mps"] * torch.backends.mps.is_available()
