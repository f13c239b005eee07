"""What all tests share: no network, one thread, examples that repeat."""

from __future__ import annotations

import os

# Before anything imports them: libraries read these once. A test that wants the hub says so itself.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

from hypothesis import settings

# The same examples on every machine, so that a red test stays red until it is mended; `--hypothesis-profile explore` looks for new ones.
settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=1000)
settings.load_profile("repeatable")
