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
from collections.abc import Iterable
from pathlib import Path
from threading import Lock, Timer
from typing import IO

import pyarrow as pa

from kgbench.errors import DataError
from kgbench.leaderboard.limits import CPU_SECONDS, READ_MEMORY, ROWS, TABLE, WALL_SECONDS

_CODE = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); \
from kgbench.leaderboard.sandbox import serve; serve(int(sys.argv[2]))"

_LENGTH = 8
"""Bytes of a message's length, which follows its kind and precedes its content."""

_FILE, _TABLE, _ERROR = b"F", b"T", b"E"
"""Kinds of messages: columns and a file; its table as an Arrow IPC stream; the text of an error."""

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
        self._expired = False
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
        head = schema.serialize().to_pybytes().hex()
        with self._lock:
            kind, answer = self._answer(f"{head}\n".encode() + content)
        if kind != _TABLE:
            raise DataError(answer.decode("utf-8", "replace"))
        table = pa.ipc.open_stream(pa.py_buffer(answer)).read_all()
        table.validate(full=True)
        if table.column_names != schema.names:
            raise DataError(f"its reader returned other columns: {table.column_names!a}")
        return table.cast(schema)

    def start(self) -> None:
        """Start the child without waiting for it, so that it is ready when a file is read."""
        with self._lock:
            self._running()

    def close(self) -> None:
        """End the child; another one is started where a file is read afterwards."""
        with self._lock:
            self._stop()

    def _answer(self, request: bytes) -> tuple[bytes, bytes]:
        process = self._running()
        assert process.stdin is not None and process.stdout is not None
        timer = Timer(self.seconds, self._expire)
        timer.daemon = True
        timer.start()
        try:
            _send(process.stdin, _FILE, request)
            return _receive(process.stdout)
        except (OSError, EOFError):
            limit = f"{self.seconds} s" if self._expired else f"{self.memory} bytes"
            broken = "" if self._expired else ", or breaks the reader"
            self._stop()
            raise DataError(f"reading it takes more than {limit}{broken}") from None
        finally:
            timer.cancel()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None:
            return self._process
        # Isolated from PYTHON* variables and the working directory; it imports from where this
        # process does.
        paths = json.dumps([os.path.abspath(path) for path in sys.path if path])
        threads = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
        self._expired = False
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-c", _CODE, paths, str(self.memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, **threads, "ARROW_DEFAULT_MEMORY_POOL": "system"},
        )
        return self._process

    def _expire(self) -> None:
        if self._process is not None:
            self._expired = True
            self._process.kill()

    def _stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


SANDBOX = Sandbox()
"""The child process that all checks share."""

atexit.register(SANDBOX.close)


def _send(stream: IO[bytes], kind: bytes, content: bytes) -> None:
    stream.write(kind + len(content).to_bytes(_LENGTH, "big"))
    stream.write(content)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[bytes, bytes]:
    """Kind and content of a message, up to `2 * TABLE` bytes.

    The content is an object of its own: Arrow needs its buffers aligned.

    Raises:
        EOFError: The stream ended before it, or it is longer.
    """
    head = stream.read(1 + _LENGTH)
    length = int.from_bytes(head[1:], "big")
    if len(head) < 1 + _LENGTH or length > 2 * TABLE:
        raise EOFError
    if len(content := stream.read(length)) < length:
        raise EOFError
    return head[:1], content


# ----------------------------------------------------------------------------------------- child


def serve(memory: int) -> None:
    """Answer requests on standard input until it ends; the main function of the child.

    Args:
        memory: Bytes that decoding a file may take.
    """
    import pyarrow.parquet  # noqa: F401  # loaded before memory is limited

    requests, answers = sys.stdin.buffer, sys.stdout.buffer
    _limit_memory(memory)
    while True:
        try:
            _, request = _receive(requests)
        except EOFError:
            return
        _limit_time()
        try:
            kind, answer = _TABLE, _decoded(request)
        except DataError as error:
            kind, answer = _ERROR, str(error).encode()
        except (MemoryError, pa.ArrowMemoryError):
            kind, answer = _ERROR, f"reading it takes more than {memory} bytes".encode()
        except Exception as error:  # the library raises errors of any type on broken files
            line = ascii((str(error).splitlines() or [""])[0])[:80]
            text = f"it is no whole Parquet file ({type(error).__name__}: {line})"
            kind, answer = _ERROR, text.encode()
        _send(answers, kind, answer)


def _limit_memory(memory: int) -> None:
    """Bound the address space to what is in use and `memory` bytes; no files, no core dump."""
    if sys.platform == "win32":
        return
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    if sys.platform == "linux":
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + memory
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


def _limit_time() -> None:
    """Let the system end this process after `CPU_SECONDS` more, also where the parent is gone."""
    if sys.platform == "win32":
        return
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time()) + CPU_SECONDS, hard))


def _decoded(request: bytes) -> bytes:
    """The Arrow IPC stream of a request's file.

    Raises:
        DataError: It has other columns, or exceeds a limit.
    """
    head, _, content = request.partition(b"\n")
    schema = pa.ipc.read_schema(pa.py_buffer(bytes.fromhex(head.decode())))
    table = _table(pa.py_buffer(content), schema)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _table(content: pa.Buffer, schema: pa.Schema) -> pa.Table:
    from pyarrow import parquet

    file = parquet.ParquetFile(pa.BufferReader(content))
    if not file.schema_arrow.equals(schema):
        found, expected = _listed(list(file.schema_arrow)[:12]), _listed(schema)
        raise DataError(f"the columns are {found!a}, not {expected} without nulls")
    _check_metadata(file.metadata)
    texts = [field.name for field in schema if field.type == pa.string()]
    # Texts are decoded as references into a dictionary, so that repeating a long one costs little.
    file = parquet.ParquetFile(pa.BufferReader(content), read_dictionary=texts)
    table = file.read(use_threads=False).replace_schema_metadata(None)
    table.validate(full=True)
    if table.num_rows != file.metadata.num_rows:
        raise DataError(f"it has {table.num_rows} rows, not {file.metadata.num_rows} as it states")
    for name in texts:
        _check_texts(name, table[name])
    plain = table.cast(schema)
    if plain.nbytes > TABLE:
        raise DataError(f"it unpacks to more than {TABLE} bytes")
    return plain.combine_chunks()


def _listed(fields: Iterable[pa.Field]) -> str:
    return ", ".join(f"{field.name} ({field.type})" for field in fields)


def _check_metadata(metadata: pa.parquet.FileMetaData) -> None:
    """Counts and sizes as the file states them, and no metadata but the columns'."""
    extra = metadata.metadata or {}
    if extra.keys() - {b"ARROW:schema"} or any(len(text) > _METADATA for text in extra.values()):
        raise DataError(f"it carries more than columns: {ascii(sorted(extra))[:80]}")
    if not 1 <= metadata.num_rows <= ROWS:
        raise DataError(f"it has {metadata.num_rows} rows; 1 to {ROWS} are read")
    if metadata.num_row_groups > _GROUPS:
        raise DataError(f"it has {metadata.num_row_groups} row groups; at most {_GROUPS} are read")
    size = 0
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        size += group.total_byte_size
        for place in range(group.num_columns):
            column = group.column(place)
            if column.compression not in _CODECS:
                known = ", ".join(sorted(_CODECS))
                raise DataError(f"a column is compressed by {column.compression}, not by {known}")
            if other := set(column.encodings) - _ENCODINGS:
                raise DataError(f"a column is in the encoding {min(other)}, which is not read")
    if size > TABLE:
        raise DataError(f"it unpacks to more than {TABLE} bytes")


def _check_texts(name: str, column: pa.ChunkedArray) -> None:
    for chunk in column.chunks:
        values = chunk.dictionary if isinstance(chunk, pa.DictionaryArray) else chunk
        for text in values.to_pylist():
            if text is None or len(text) > _TEXT:
                raise DataError(
                    f"a {name} is {ascii(text)[:80]}; expected {_TEXT} characters at most"
                )
