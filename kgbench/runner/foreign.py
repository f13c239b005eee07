"""Localizers that are not kgbench's own: each is computed in a process of its own.

Somebody else's code can leave hooks, flags or patched functions behind. Nothing of that reaches
another localizer's record, since the process ends with the call.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar

from pydantic import BaseModel

from kgbench import errors
from kgbench.errors import InputError, KgbenchError, NotApplicableError
from kgbench.localizers import AbstractLocalizer, create, is_foreign
from kgbench.records import DamagedRecordWarning
from kgbench.registry import frames_in, told
from kgbench.runner.spec import Spec
from kgbench.runner.truth import localizer_arguments

if TYPE_CHECKING:
    from kgbench.records import Journal
    from kgbench.runner.job import Job
    from kgbench.runner.pairs import Pairs

__all__ = ["Method", "blamed", "guarded", "isolated", "method_of"]

T = TypeVar("T")
Progress = Callable[[int, int, str], None]

_INTERRUPTED = 130
"""Exit status of a child that ended on Ctrl-C."""
_GRACE_S = 5.0
"""Time for a child to end by itself, before it is killed."""
_POLL_S = 1.0


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a child; a plain `KeyboardInterrupt` is one that the localizer raised."""


@dataclass(frozen=True)
class Method:
    """A localizer as it declares itself, without its code."""

    name: str
    kind: str
    parameters: Mapping[str, Any]


def method_of(spec: Spec) -> Method:
    """The declaration of a specification's localizer, its parameters checked.

    Raises:
        UnknownNameError: There is no such localizer, or it has no such parameter.
        InputError: It does not load, or a parameter's value does not read.
    """
    if is_foreign(spec.localizer):
        return isolated(spec.localizer, _method, spec)
    return _method(spec)


def _method(spec: Spec) -> Method:
    made = create(spec.localizer, localizer_arguments(spec), spec.seed)
    return Method(made.name, made.kind, made.parameters())


def isolated(localizer: str, function: Callable[..., T], *arguments: object, progress: Progress | None = None) -> T:
    """Call a function of kgbench that runs somebody else's localizer, in a process of its own.

    Args:
        localizer: The localizer's name or file, for messages.
        function: A function of a module of kgbench. Given a progress callback, it takes `progress`.
        *arguments: Its other arguments; they must pickle.
        progress: Progress callback.

    Returns:
        What the function returns: dataclasses and records of kgbench, arrays, and plain values.

    Raises:
        KgbenchError: As the function raises it.
        InputError: The process ended without a result.
    """
    label = localizer.rpartition("/")[2]
    if progress is not None:
        progress(0, 0, f"{label}: loading")
    with TemporaryDirectory(prefix="kgbench-") as folder:
        request = Path(folder) / "request"
        asked = (function.__module__, function.__name__, arguments, progress is not None)
        request.write_bytes(pickle.dumps(asked))
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from kgbench.runner.foreign import _serve; "
            f"_serve({str(request)!r}, {os.getpid()}, {localizer!r})"
        )
        # subprocess, not multiprocessing, which would run the caller's script again.
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            found: T = _received(child, localizer, label, progress)
            return found
        except BaseException:
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
            raise
        finally:
            _end(child)


def _received(child: subprocess.Popen[bytes], localizer: str, label: str, progress: Progress | None) -> Any:
    """Pass on what a child reports, until it gives its result."""
    assert child.stdout is not None
    messages: Queue[tuple[Any, ...]] = Queue()
    threading.Thread(target=_read, args=(child.stdout, messages), daemon=True).start()
    while True:
        kind, *content = _next(child, messages)
        if kind == "progress" and progress is not None:
            done, total, text = content
            progress(done, total, f"{label}: {text}")
        elif kind == "warning":
            name, text = content
            known = {DamagedRecordWarning.__name__: DamagedRecordWarning}
            warnings.warn(text, known.get(name, UserWarning), stacklevel=2)
        elif kind == "error":
            raise _error(*content)
        elif kind == "result":
            return content[0]
        elif kind == "end":
            _end(child)
            raise InputError(f"localizer {localizer!r}: its process ended {_how(child.returncode)}, without a result")


def _read(stream: IO[bytes], messages: Queue[tuple[Any, ...]]) -> None:
    with stream, contextlib.suppress(Exception):  # the end of the stream, or what is no message
        while True:
            messages.put(_Messages(stream).load())
    messages.put(("end",))


def _next(child: subprocess.Popen[bytes], messages: Queue[tuple[Any, ...]]) -> tuple[Any, ...]:
    """The next message; a process that the localizer started may hold the stream open after the end."""
    while True:
        ended = child.poll() is not None
        with contextlib.suppress(Empty):
            return messages.get(timeout=_POLL_S)
        if ended:
            return ("end",)


class _Messages(pickle.Unpickler):
    """Reads values only: kgbench's dataclasses and records, paths, and numpy's arrays."""

    def find_class(self, module: str, name: str) -> Any:
        found = super().find_class(module, name) if module.split(".")[0] in ("kgbench", "pathlib", "numpy") else None
        ours = isinstance(found, type) and (is_dataclass(found) or issubclass(found, BaseModel | Path))
        array = module.startswith("numpy") and name in ("_reconstruct", "_frombuffer", "scalar", "ndarray", "dtype")
        if not (ours or array):
            raise pickle.UnpicklingError(f"{module}.{name} is no value")
        return found


def _error(kind: str, message: str, attributes: Mapping[str, Any]) -> KgbenchError:
    """An error of the child as its own class, whatever its constructor takes."""
    found = getattr(errors, kind, InputError)
    error: KgbenchError = found.__new__(found, message)
    vars(error).update(attributes)
    return error


def _how(status: int) -> str:
    if status >= 0:
        return f"with exit status {status}"
    memory = ", as when memory runs out" if -status == signal.SIGKILL else ""
    return f"by signal {-status} ({signal.strsignal(-status)}{memory})"


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _serve(request: str, parent: int, localizer: str) -> NoReturn:
    """Answer one request; the whole life of a child."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a localizer writes to descriptor 1 is no message
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
    threading.Thread(target=_outlive, args=(parent,), daemon=True).start()

    def send(*message: object) -> None:
        channel.write(pickle.dumps(message))
        channel.flush()

    def warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        send("warning", category.__name__, str(message))

    status = 1
    try:
        warnings.showwarning = warn
        _answer(Path(request), send)
        status = 0
    except Interrupted:
        status = _INTERRUPTED
    except KgbenchError as error:
        send("error", type(error).__name__, str(error), vars(error))
    except Exception:
        traceback.print_exc()
    except BaseException as error:  # GeneratorExit, KeyboardInterrupt or SystemExit, which nothing of kgbench raises
        send("error", "InputError", f"localizer {localizer!r} raised {told(error)}", {})
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # threads that a localizer left do not keep the process


def _answer(request: Path, send: Callable[..., None]) -> None:
    module, name, arguments, reports = pickle.loads(request.read_bytes())
    options = {"progress": lambda *step: send("progress", *step)} if reports else {}
    send("result", getattr(import_module(module), name)(*arguments, **options))


def _interrupt(number: int, frame: object) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # once: what cleans up is not interrupted again
    raise Interrupted


def _outlive(parent: int) -> None:
    """End with the parent, however that ended."""
    while os.getppid() == parent:
        time.sleep(_POLL_S)
    os._exit(_INTERRUPTED)


@contextmanager
def guarded(job: Job, journal: Journal, pairs: Pairs | None) -> Iterator[None]:
    """Run a localizer; where it is somebody else's and leaves models or settings changed, nothing that was computed is used.

    Args:
        job: The job.
        journal: Where its parts are kept.
        pairs: Where its models are kept, if anywhere.

    Raises:
        InputError: The localizer leaves something changed, or raises what is no `KgbenchError`.
    """
    if not _is_theirs(job.localizer):
        yield
        return
    from kgbench.engine.state import changes, state_of

    changed: tuple[str, ...] = ()
    before = state_of(job.pair)
    try:
        with blamed(job):
            yield
    finally:
        weights = [f"the weights of {name}" for name in job.pair.changed()]
        if changed := (*weights, *changes(before, state_of(job.pair))):
            journal.discard()
            if pairs is not None:
                pairs.forget()
    if changed:
        raise InputError(
            f"localizer {job.localizer.name!r} changed {' and '.join(changed)}, so that no record is written; "
            f"run `kgbench check-localizer {job.spec.localizer}`"
        )


@contextmanager
def blamed(job: Job) -> Iterator[None]:
    """Tell in a line what somebody else's localizer raises.

    Raises:
        InputError: Instead of what the localizer's own code raised; an error of ours passes as it is.
    """
    try:
        yield
    except (Interrupted, NotApplicableError):
        raise
    except BaseException as error:  # whatever an author's code raises
        frames = _frames(error, job.localizer) if _is_theirs(job.localizer) else []
        ours = isinstance(error, KgbenchError)
        if not frames or (ours and frames[-1] != traceback.extract_tb(error.__traceback__)[-1]):
            raise
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        raise InputError(
            f"localizer {job.localizer.name!r}: {frames[0].name} raised {told(error)} ({where}); "
            f"run `kgbench check-localizer {job.spec.localizer}`"
        ) from error


def _frames(error: BaseException, localizer: AbstractLocalizer) -> list[traceback.FrameSummary]:
    """Where an error passed through the localizer's file, or through the package that it is of."""
    package = sys.modules[type(localizer).__module__.partition(".")[0]]
    place = getattr(package, "__path__", None)
    return frames_in(error, Path(inspect.getfile(type(localizer))) if place is None else Path(next(iter(place))))


def _is_theirs(localizer: AbstractLocalizer) -> bool:
    return not type(localizer).__module__.startswith("kgbench.")
