"""Files that a command writes."""

from __future__ import annotations

import os
from pathlib import Path

from kgbench.errors import OutputError


def write_file(path: Path, content: bytes) -> None:
    """Write a file whole or not at all.

    Raises:
        OutputError: The file cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(content)
        os.replace(temporary, path)
    except OSError as error:
        raise OutputError(f"cannot write {str(path)!r}: {error.strerror}") from error
    finally:
        temporary.unlink(missing_ok=True)
