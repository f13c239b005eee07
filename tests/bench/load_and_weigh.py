"""Load a pair in a process of its own and print what its weights take, as JSON.

`one` and `all`: bytes of the recipient's weights and of the whole pair's; `peak`: most growth of
resident memory while loading and running; `private`: the same without pages of files, which the
system may drop at any time.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import psutil
import torch

from kgbench.engine import Engine, load_pair
from kgbench.models.pair import ModelPair

EVERY = 0.002
"""Seconds between two looks at the memory."""


def weights(*models: torch.nn.Module) -> int:
    """Bytes of distinct storages."""
    storages = [
        tensor.untyped_storage() for model in models for tensor in model.state_dict().values()
    ]
    return sum({s.data_ptr(): s.nbytes() for s in storages}.values())


def resident() -> tuple[int, int]:
    """Resident memory, and that without pages of files."""
    memory = psutil.Process().memory_info()
    return memory.rss, memory.rss - memory.shared


@contextmanager
def growth() -> Iterator[dict[str, int]]:
    """Most growth of memory in the block."""
    before, done = resident(), threading.Event()
    most = {"peak": 0, "private": 0}

    def look() -> None:
        while not done.wait(EVERY):
            for name, now, then in zip(most, resident(), before, strict=True):
                most[name] = max(most[name], now - then)

    watcher = threading.Thread(target=look)
    watcher.start()
    yield most
    done.set()
    watcher.join()


def load(recipient: str, donor: str) -> ModelPair:
    pair = load_pair(recipient=recipient, donors={"sft": donor})
    Engine(pair, "auto")  # tests the packed executor, and so runs it
    return pair


def main(recipient: str, donor: str, small: str) -> None:
    load(
        f"{small}/recipient", f"{small}/sft"
    )  # what a first load takes in libraries is not weights
    with growth() as most:
        pair = load(recipient, donor)
    print(
        json.dumps(
            {
                "one": weights(pair.recipient),
                "all": weights(pair.recipient, *pair.donors.values()),
                **most,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
