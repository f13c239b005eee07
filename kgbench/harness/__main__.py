"""lm-eval's command line with `--model kgbench` registered: `python -m kgbench.harness run …`.

It goes when a release of lm-eval reads the entry points in the group `lm_eval.models` itself.
"""

from __future__ import annotations

import sys

from kgbench.errors import KgbenchError
from kgbench.harness import register


def main() -> int:
    """Run lm-eval on the process's arguments and return the exit status."""
    try:
        register()
        from lm_eval.__main__ import cli_evaluate

        cli_evaluate()
    except KgbenchError as error:
        print(f"kgbench: error: {error}", file=sys.stderr)
        return error.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(main())
