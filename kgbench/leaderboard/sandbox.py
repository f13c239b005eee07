"""Untrusted Parquet files, read in a child process with limits on memory and time.

Arrow decodes Parquet in native code, which aborts its process on some broken files and allocates
whatever sizes a file names. The child decodes; the parent receives an Arrow IPC stream of plain
columns, or one line of error. Nothing is pickled, and nothing that a file holds is executed.

One child reads many files, since starting it costs half a second. Windows has no
`resource.setrlimit`, and macOS does not enforce RLIMIT_AS: there only the counts in the file's own
metadata and the time limit hold.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import time
from itertools import product
from pathlib import Path
from threading import Lock, Timer

import pyarrow as pa

from kgbench.errors import DataError
from kgbench.leaderboard.limits import CPU_SECONDS, READ_MEMORY, ROWS, TABLE, WALL_SECONDS

_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); \
from kgbench.leaderboard.sandbox import serve; serve(int(sys.argv[2]))"

_ERROR = b"error"
"""Metadata of the columns that answer a file which is refused."""

_CODECS = frozenset({"UNCOMPRESSED", "SNAPPY", "BROTLI", "ZSTD"})
_ENCODINGS = frozenset({"PLAIN", "PLAIN_DICTIONARY", "RLE", "RLE_DICTIONARY", "BYTE_STREAM_SPLIT"})
"""Encodings in which no value is a function of the values before it."""

_TEXT = 300
"""Characters of a prompt's name, a fact's id or a configuration."""

_GROUPS = 1000
"""Row groups of a file."""

_METADATA = 4000
"""Bytes of ARROW:schema, the only metadata that a file may carry."""


# ---------------------------------------------------------------------------------------- parent


class Sandbox:
    """A child process that decodes Parquet files, started when it is first needed."""

    def __init__(self, memory: int = READ_MEMORY, seconds: float = WALL_SECONDS) -> None:
        """Set the limits of each file.

        Args:
            memory: Bytes beyond those that the child takes before it reads.
            seconds: Time by the clock.
        """
        self.memory, self.seconds = memory, seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()

    def read(self, content: bytes, schema: pa.Schema) -> pa.Table:
        """The table of an untrusted file.

        Args:
            content: The file.
            schema: Its columns of texts and numbers, without nulls.

        Raises:
            DataError: It has other columns, carries more than columns, exceeds a limit, or is no
                Parquet file.
        """
        head = f"{len(content)} {schema.serialize().to_pybytes().hex()}\n"
        with self._lock:
            process = self._running()
            assert process.stdin is not None and process.stdout is not None
            timer = Timer(self.seconds, process.kill)
            timer.daemon = True
            timer.start()
            try:
                process.stdin.write(head.encode() + content)
                process.stdin.flush()
                table = pa.ipc.open_stream(process.stdout).read_all()
                table.validate(full=True)
                error = (table.schema.metadata or {}).get(_ERROR)
                table = table if error else table.select(schema.names).cast(schema)
            except (OSError, pa.ArrowException, KeyError):
                limit = f"{self.memory} bytes, or breaks the reader"
                if timer.finished.is_set():
                    limit = f"{self.seconds} s"
                self.close()
                raise DataError(f"reading it takes more than {limit}") from None
            finally:
                timer.cancel()
        if error:
            raise DataError(error.decode("utf-8", "replace"))
        return table

    def close(self) -> None:
        """End the child; another one is started where a file is read afterwards."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # Isolated from PYTHON* variables and the working directory; it imports from where this
            # process does.
            paths = json.dumps([os.path.abspath(path) for path in sys.path if path])
            threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-c", _CODE, paths, str(self.memory)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env={**os.environ, **threads, "ARROW_DEFAULT_MEMORY_POOL": "system"},
            )
        return self._process


SANDBOX = Sandbox()
"""The child process that all checks share."""

atexit.register(SANDBOX.close)


# ----------------------------------------------------------------------------------------- child


def serve(memory: int) -> None:
    """Answer requests on standard input until it ends; the main function of the child.

    Args:
        memory: Bytes that decoding a file may take.
    """
    import pyarrow.parquet  # noqa: F401  # loaded before memory is limited

    _limit_memory(memory)
    while head := sys.stdin.buffer.readline().decode():
        size, columns = head.split()
        content = sys.stdin.buffer.read(int(size))
        _limit_time()
        table, text = pa.table({}), ""
        try:
            schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(columns)))
            table = _decoded(pa.py_buffer(content), schema)
        except DataError as error:
            text = str(error)
        except MemoryError:  # Arrow's is one, too
            text = f"reading it takes more than {memory} bytes"
        except Exception as error:  # the library raises errors of any type on broken files
            line = ascii((str(error).splitlines() or [""])[0])[:80]
            text = f"it is no whole Parquet file ({type(error).__name__}: {line})"
        table = table.replace_schema_metadata({_ERROR: text})
        with pa.ipc.new_stream(sys.stdout.buffer, table.schema) as writer:
            writer.write_table(table)
        sys.stdout.buffer.flush()


def _limit_memory(memory: int) -> None:
    """Bound this process to so many bytes beyond its address space in use, and let it write none."""
    if sys.platform != "win32":
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time() -> None:
    """End this process after `CPU_SECONDS` more, also where the parent is gone."""
    if sys.platform != "win32":
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_SECONDS, hard))


def _decoded(content: pa.Buffer, schema: pa.Schema) -> pa.Table:
    """The table of a file.

    Raises:
        DataError: It has other columns, carries more than columns, or exceeds a limit.
    """
    from pyarrow import parquet

    stated = parquet.ParquetFile(pa.BufferReader(content))
    if not stated.schema_arrow.equals(schema):
        columns = stated.schema_arrow.to_string(show_field_metadata=False)[:400].split("\n")
        expected = ", ".join(schema.to_string().split("\n"))
        raise DataError(f"the columns are {', '.join(columns)!a}, not {expected}")
    extra = stated.metadata.metadata or {}
    if extra.keys() - {b"ARROW:schema"} or any(len(text) > _METADATA for text in extra.values()):
        raise DataError(f"it carries more than columns: {ascii(sorted(extra))[:80]}")
    n_rows, n_groups = stated.metadata.num_rows, stated.metadata.num_row_groups
    if not 1 <= n_rows <= ROWS or n_groups > _GROUPS:
        most = f"1 to {ROWS} rows in up to {_GROUPS} groups are read"
        raise DataError(f"it has {n_rows} rows in {n_groups} groups; {most}")
    groups = list(map(stated.metadata.row_group, range(n_groups)))
    for group, place in product(groups, range(len(schema))):
        column = group.column(place)
        if column.compression not in _CODECS or not _ENCODINGS.issuperset(column.encodings):
            packing = f"{column.compression} of {', '.join(sorted(column.encodings))}"
            raise DataError(f"a column is packed by {packing}, which is not read")
    if sum(group.total_byte_size for group in groups) > TABLE:
        raise DataError(f"it unpacks to more than {TABLE} bytes")
    # Texts are decoded as references into a dictionary, so that repeating a long one costs little.
    texts = [field.name for field in schema if field.type == pa.string()]
    file = parquet.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
    table = file.read(use_threads=False).replace_schema_metadata(None)
    table.validate(full=True)
    if table.num_rows != n_rows:
        raise DataError(f"it has {table.num_rows} rows, not {n_rows} as it states")
    for name in texts:
        for text in table[name].unify_dictionaries().chunk(0).dictionary.to_pylist():
            if text is None or len(text) > _TEXT:
                short = ascii(text)[:80]
                raise DataError(f"a {name} is {short}; expected {_TEXT} characters at most")
    plain = table.cast(schema)
    if plain.nbytes > TABLE:
        raise DataError(f"it unpacks to more than {TABLE} bytes")
    return plain.combine_chunks()
