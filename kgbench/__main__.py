"""`python -m kgbench` is the `kgbench` command."""

from __future__ import annotations

import sys

from kgbench.cli import main

sys.exit(main())
