"""Python programs in processes that are forked from one which has imported torch and all else that
kgbench imports, so that the seconds of these imports are spent once and not by each process.

A forked process whose path has another kgbench imports that, and is else what `subprocess` starts: a
child of the caller with its streams, folder, environment, session and exit status. Tests of
imports and of start-up start processes by `subprocess` itself.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import importlib.machinery
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Container, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest

__all__ = ["Popen", "hears_interrupts", "module", "run"]

HERE = Path(__file__).resolve().parent
IMPORTED = (
    "kgbench.cli.eval",
    "kgbench.runner.run",
    "kgbench.runner.third_party_process",
    "kgbench.testing",
    "matplotlib.pyplot",
    "pytest",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("gemma", "gpt2", "llama")),
)
"""Modules whose imports a forked process finds there."""
READ_ONCE = (
    *("HF_HUB_OFFLINE", "HF_ENDPOINT", "HF_HOME", "OMP_NUM_THREADS", "TOKENIZERS_PARALLELISM"),
    *("PYTHONHASHSEED", "PYTHONWARNINGS", "MPLBACKEND", "LANG", "LC_ALL"),
)
"""Variables that are read at start or import, so that a program with others is not forked."""
READ_BY_FORKS = ("PYTHONPATH", "PYTHONUNBUFFERED")
ENVIRONMENT = dict(os.environ)
"""As the tests set it, before any test changes it for itself."""
SUBREAPER = 36
"""`PR_SET_CHILD_SUBREAPER` of prctl(2)."""

Plain = subprocess.Popen


def hears_interrupts() -> None:
    """Let a child end on SIGINT: it inherits from whoever runs the tests that it is ignored, as
    under `nohup make test &`.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def is_forkable(line: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether a program can run in a process that has imported modules before."""
    options = [word for word in line[1:2] if word == "-u"]
    command = line[1 + len(options) :]
    return (
        sys.platform == "linux"
        and line[0] == sys.executable
        and len(command) >= 2
        and command[0] in ("-c", "-m")
        and _read_once(environment) == _read_once(ENVIRONMENT)
    )


def _read_once(environment: Mapping[str, str]) -> list[str | None]:
    return [environment.get(name) for name in READ_ONCE]


class Popen(Plain):  # type: ignore[type-arg]
    """As `subprocess.Popen`, and forked where the program can be."""

    def _execute_child(self, *given: Any) -> None:
        args, executable, preexec_fn, _, pass_fds, cwd, env, _, _, shell = given[:10]
        streams, options = given[10:16], given[16:]
        line = [] if isinstance(args, (str, bytes)) else [os.fspath(word) for word in args]
        environment = dict(os.environ if env is None else env)
        as_usual = shell or executable or pass_fds or preexec_fn not in (None, hears_interrupts)
        if not line or as_usual or not is_forkable(line, environment):
            super()._execute_child(*given)  # type: ignore[misc]
            return
        request = {
            "line": line[1:],
            "environment": environment,
            "folder": os.path.abspath(cwd or os.curdir),
            "is_session": bool(options[5]),
            "hears_interrupts": preexec_fn is not None,
            "parent": os.getpid(),
        }
        ends = (streams[0], streams[3], streams[5])
        self.pid = _forked(request, [own if end == -1 else end for own, end in enumerate(ends)])
        self._child_created = True
        self._close_pipe_fds(*streams)  # type: ignore[attr-defined]


def run(*arguments: Any, **options: Any) -> subprocess.CompletedProcess[Any]:
    """As `subprocess.run`, and forked where the program can be."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", Popen)
        return subprocess.run(*arguments, **options)


module = SimpleNamespace(**{**vars(subprocess), "Popen": Popen})
"""For modules that start processes by `subprocess.Popen`."""
_one_at_a_time = threading.Lock()
_server: list[socket.socket] = []
"""The connection to the process that forks, which the first request starts."""


def _forked(request: Mapping[str, Any], streams: Sequence[int]) -> int:
    """Start a program; gives the number of its process, a child of this one."""
    prctl = ctypes.CDLL(None).prctl
    text = json.dumps(request).encode()
    with _one_at_a_time:
        if not _server:
            _server.append(_started())
        # Its parent ends at once, and this process inherits it.
        prctl(SUBREAPER, 1, 0, 0, 0)
        try:
            socket.send_fds(_server[0], [len(text).to_bytes(4, "big")], list(streams))
            _server[0].sendall(text)
            return int.from_bytes(_exactly(_server[0], 4), "big")
        finally:
            prctl(SUBREAPER, 0, 0, 0, 0)


def _started() -> socket.socket:
    """Start the process that forks, which ends with this one."""
    ours, its = socket.socketpair()
    with its:
        plain = {name: value for name, value in ENVIRONMENT.items() if name not in READ_BY_FORKS}
        line = [sys.executable, str(HERE / "forks.py"), str(its.fileno())]
        nowhere = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        process = Plain(line, env=plain, pass_fds=[its.fileno()], **nowhere)
    atexit.register(process.wait)
    atexit.register(ours.close)
    return ours


def _exactly(connection: socket.socket, length: int) -> bytes:
    parts = b""
    while len(parts) < length:
        part = connection.recv(length - len(parts))
        if not part:
            raise EOFError("the process that forks has ended")
        parts += part
    return parts


# ---------------------------------------------------------------------- in the process that forks


def _import_all() -> None:
    """Import kgbench and what it imports, and forget plug-ins of pytest."""
    sys.path.insert(0, str(HERE.parent))
    for name in IMPORTED:
        importlib.import_module(name)
    # pytest rewrites the modules of plug-ins as they are imported.
    plugins = {
        file.parts[0].removesuffix(".py")
        for distribution in metadata.distributions()
        if any(point.group == "pytest11" for point in distribution.entry_points)
        for file in distribution.files or ()
        if file.suffix == ".py"
    }
    _forget(plugins - {"kgbench"})
    del sys.path[0]
    gc.collect()
    gc.freeze()


def _forget(names: Container[str]) -> None:
    """Have modules, and those of packages, imported anew."""
    for name in [*sys.modules]:
        if name in names or name.partition(".")[0] in names:
            del sys.modules[name]


def _serve(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork a process for each request; returns in each of these, with its request and streams."""
    while True:
        length, streams, *_ = socket.recv_fds(connection, 4, 3)
        if not length:
            os._exit(0)
        request = json.loads(_exactly(connection, int.from_bytes(length, "big")))
        reading, writing = os.pipe()
        between = os.fork()
        if not between:
            child = os.fork()
            if child:
                os.write(writing, child.to_bytes(4, "big"))
                os._exit(0)
            connection.close()
            os.close(reading)
            os.close(writing)
            return request, streams
        os.waitpid(between, 0)
        connection.sendall(os.read(reading, 4))
        for descriptor in (reading, writing, *streams):
            os.close(descriptor)


def _become(request: Mapping[str, Any], streams: Sequence[int]) -> None:
    """Take the place, the streams and the environment of a request."""
    for own, stream in enumerate(streams):
        os.dup2(stream, own)
        os.close(stream)
    while os.getppid() != request["parent"]:
        time.sleep(0.0005)
    if request["is_session"]:
        os.setsid()
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.stdout.reconfigure(line_buffering=os.isatty(1))  # type: ignore[union-attr]


def _program(connection: socket.socket) -> list[str]:
    """Fork on request, for ever; returns in the forked processes, with the line of each."""
    interrupt = signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        request, streams = _serve(connection)
        _become(request, streams)
        ours, its = socket.socketpair()
        if os.fork():
            break
        # A process beside the program's, which forks what the program starts.
        connection = its
        ours.close()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for own in range(3):
            os.dup2(nowhere, own)
    its.close()
    _server.append(ours)
    ENVIRONMENT.update(os.environ)
    subprocess.Popen = Popen  # type: ignore[misc]
    hears = request["hears_interrupts"]
    signal.signal(signal.SIGINT, signal.default_int_handler if hears else interrupt)
    line: list[str] = request["line"]
    return line[1:] if line[0] == "-u" else line


def _paths(first: str, base: Sequence[str]) -> list[str]:
    """The folders of a program's modules."""
    given = os.environ.get("PYTHONPATH", "")
    own = [os.path.abspath(folder) for folder in given.split(os.pathsep) if folder]
    return list(dict.fromkeys([first, *own, *base]))


def main(connection: socket.socket) -> None:
    """Import, fork, and run in each forked process its program."""
    base = sys.path[1:]
    _import_all()
    kind, what, *arguments = _program(connection)
    sys.argv = [kind, *arguments]
    sys.path[:] = _paths("" if kind == "-c" else os.getcwd(), base)
    theirs = importlib.machinery.PathFinder.find_spec("kgbench", sys.path)
    # kgbench's plug-in of pytest works with the others, which are imported anew.
    if what == "pytest" or theirs is None or theirs.origin != sys.modules["kgbench"].__file__:
        _forget({"kgbench"})
    _end(_status(kind, what))


def _status(kind: str, what: str) -> int:
    """Run a program as `__main__`; gives its exit status, minus a signal."""
    try:
        if kind == "-m":
            runpy.run_module(what, run_name="__main__", alter_sys=True)
        else:
            own = vars(sys.modules["__main__"])
            own.clear()
            own.update(__name__="__main__", __builtins__=__builtins__)
            exec(compile(what, "<string>", "exec"), own)
    except SystemExit as ended:
        if ended.code is None or isinstance(ended.code, int):
            return (ended.code or 0) & 0xFF
        print(ended.code, file=sys.stderr)
        return 1
    except BaseException as error:
        sys.excepthook(type(error), error, error.__traceback__)
        return -signal.SIGINT if type(error) is KeyboardInterrupt else 1
    return 0


def _end(status: int) -> NoReturn:
    """End as Python does, but for taking its modules apart, which copies their memory."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    if status < 0:
        hears_interrupts()
        os.kill(os.getpid(), -status)
    os._exit(status)


if __name__ == "__main__":
    import forks

    forks.main(socket.socket(fileno=int(sys.argv[1])))
