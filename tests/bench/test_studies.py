"""What studies cost: processes side by side, the time beside the units, dry runs and look-ups."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from kgbench.records import RecordStore

ROOT = Path(__file__).resolve().parents[2]
STUDY = {
    "matrix": {
        "model": ["tiny-gemma", "tiny-llama", "tiny-gpt2", "tiny-pythia"],
        "seed": list(range(20)),
    },
    "prompt": "headline",
}
"""Eighty units of 400 prompts under nine configurations."""


def sweep(folder: Path, *arguments: str, **content: Any) -> tuple[float, str]:
    """Seconds of `kgbench sweep …`, and what it printed."""
    folder.mkdir(exist_ok=True)
    study = folder / "study.yaml"
    study.write_text(yaml.safe_dump({**content, "output_dir": str(folder / "records")}))
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    call = [sys.executable, "-m", "kgbench", "sweep", str(study), *arguments]
    began = time.perf_counter()
    told = subprocess.run(call, env=environment, check=True, capture_output=True, text=True)
    return time.perf_counter() - began, told.stdout


def test_throughput(tmp_path: Path) -> None:
    """Eighty units by two processes and by one, and the time beside computing."""
    seconds = {}
    for workers in (2, 1):
        folder = tmp_path / str(workers)
        seconds[workers], _ = sweep(folder, "--workers", str(workers), "-q", **STUDY)
    receipts = sorted((tmp_path / "1" / "records" / "units").glob("*.json"))
    units = [json.loads(path.read_text()) for path in receipts]
    computing = sum(unit["seconds"] for unit in units)
    first = min(path.stat().st_mtime for path in receipts)
    begun = (tmp_path / "1" / "study.yaml").stat().st_mtime
    print()
    print(f"80 units by one process    {seconds[1]:6.1f} s")
    print(f"80 units by two processes  {seconds[2]:6.1f} s, {seconds[1] / seconds[2]:.2f} × faster")
    print(f"beside the units           {(seconds[1] - computing) / len(units):6.3f} s a unit")
    print(f"to the first result        {first - begun:6.1f} s")


def test_dry_run(tmp_path: Path) -> None:
    """The groups of ten thousand units on the paper's models."""
    matrix = {
        "model": ["gemma-2b", "llama-3.2-1b", "gpt2-xl", "pythia-2.8b"],
        "localizer": ["dynamic_graft", "activation_patch", "ablation", "all", "none"],
        "prompt": ["headline", "qa"],
        "seed": list(range(250)),
    }
    seconds, shown = sweep(tmp_path, "--dry-run", matrix=matrix)
    assert "10,000 units" in shown
    print(f"\ndry run of 10,000 units    {seconds:6.1f} s")


def test_find(tmp_path: Path) -> None:
    """A record among ten thousand."""
    sweep(tmp_path, "-q", model="tiny-gemma", prompt="headline", limit=8)
    store = RecordStore(tmp_path / "records")
    (found,) = store.scan()
    text = (found.path / "record.json").read_text()
    for i in range(10_000):
        id = f"{i:012x}" + found.record.id[12:]
        folder = store.root / f"tiny-gemma-tiny_movies-dynamic_graft-{id[:12]}"
        folder.mkdir()
        (folder / "record.json").write_text(text.replace(found.record.id, id))
    seconds = []
    for _ in range(9):
        began = time.perf_counter()
        assert store.find(found.record.id) is not None
        seconds.append(time.perf_counter() - began)
    print(f"\nfind among 10,000 records  {1e3 * median(seconds):6.1f} ms")
    shutil.rmtree(store.root)
