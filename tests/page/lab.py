"""A JupyterLab of its own, with a notebook that shows the explorer."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import nbformat
import psutil
from playwright.sync_api import Locator, Page

ROOT = Path(__file__).parents[2]
PATIENCE = 120_000
"""Milliseconds for what waits for a kernel or for a model."""
TEXT, SUBJECT = "Alan Collins stars in a movie alongside", "Alan Collins"
CELL = f"""import kgbench

pair = kgbench.load_pair("tiny-gemma")
kgbench.explore(pair, "{TEXT}", subject="{SUBJECT}")"""

SETTINGS = {
    # Neither news nor versions are asked of the network, and no question about them covers the page.
    "notification": {"fetchNews": "false", "checkForUpdates": False, "doNotDisturbMode": True},
    "themes": {"adaptive-theme": True},
}
"""Of the extension `@jupyterlab/apputils-extension`."""


def write_notebook(folder: Path) -> str:
    """A notebook of one cell, which shows the explorer; its name."""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, folder / "explorer.ipynb")
    return "explorer.ipynb"


@contextmanager
def jupyterlab(folder: Path) -> Iterator[str]:
    """A server on this machine alone, with settings of its own; it and its kernels end with it.

    Args:
        folder: An empty folder, for the notebook and all that Jupyter keeps.

    Yields:
        The address of the notebook, with the token.
    """
    notebooks = folder / "notebooks"
    notebooks.mkdir()
    name = write_notebook(notebooks)
    settings = folder / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    for plugin, values in SETTINGS.items():
        (settings / f"{plugin}.jupyterlab-settings").write_text(json.dumps(values), "utf-8")
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "IPYTHONDIR": str(folder / "ipython"),
        "JUPYTER_CONFIG_DIR": str(folder / "config"),
        "JUPYTER_DATA_DIR": str(folder / "data"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(folder / "workspaces"),
    }
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root"]
    command += ["--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]
    command += [f"--ServerApp.root_dir={notebooks}"]
    log = folder / "server.log"
    with log.open("wb") as output:
        server = subprocess.Popen(
            command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT
        )
    try:
        found = _started(server, folder / "runtime", log)
        yield f"{found['url']}lab/tree/{name}?token={found['token']}"
    finally:
        processes = [psutil.Process(server.pid)] if server.poll() is None else []
        for process in list(processes):
            processes += process.children(recursive=True)
        server.terminate()  # ends its kernels too
        _, left = psutil.wait_procs(processes, timeout=PATIENCE / 1000)
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        server.wait()


def _started(server: subprocess.Popen[bytes], runtime: Path, log: Path) -> dict[str, str]:
    """What a server says of itself, once it listens."""
    deadline = time.monotonic() + PATIENCE / 1000
    while time.monotonic() < deadline and server.poll() is None:
        for path in runtime.glob("jpserver-*.json"):
            if text := path.read_text("utf-8"):
                return dict(json.loads(text))
        time.sleep(0.1)
    raise AssertionError(f"JupyterLab did not start:\n{log.read_text('utf-8')[-3000:]}")


def explorer_in(page: Page, address: str) -> Locator:
    """Open a notebook, run its cell, and wait for the widget."""
    page.set_default_timeout(PATIENCE)
    page.goto(address)
    # A cell that is run before its kernel is there is not run at all.
    page.get_by_text("Python 3 (ipykernel) | Idle").wait_for()
    page.locator(".jp-CodeCell .cm-content").click()
    page.keyboard.press("Shift+Enter")
    widget = page.locator(".jp-OutputArea-output .kgbench-explorer")
    widget.locator(".cell").first.wait_for()
    return widget
