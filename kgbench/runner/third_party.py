"""Third-party localizers, each computed in a process of its own.

Foreign code can leave hooks, flags or patched functions behind. Nothing of that reaches
another localizer's record, since the process ends with the call.
"""

from __future__ import annotations

import contextlib
import inspect
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from queue import Empty, Queue
from tempfile import TemporaryDirectory
from typing import IO, TYPE_CHECKING, Any, NoReturn, TypeVar, get_type_hints

import psutil
from pydantic import BaseModel, ConfigDict, ValidationError, create_model

from kgbench import errors
from kgbench.errors import InputError, KgbenchError
from kgbench.localizers import (
    InterventionLocalizer,
    create,
    fingerprint,
    is_foreign,
)
from kgbench.progress import Progress
from kgbench.records import DamagedRecordWarning
from kgbench.registry import told
from kgbench.runner.spec import Spec
from kgbench.runner.workload import localizer_arguments

if TYPE_CHECKING:
    from kgbench.runner.job import Pairs

T = TypeVar("T")
Attribute = str | int | tuple[str, ...] | None
"""Of an error, such as the names that are near to an unknown one."""

_INTERRUPTED = 130
"""Exit status of a child that ended on Ctrl-C."""
_GRACE_S = 5.0
"""Time for a child to end by itself, before it is killed."""
_POLL_S = 1.0
_AS_JSON = ConfigDict(extra="forbid", populate_by_name=True, ser_json_inf_nan="constants")


class Interrupted(KeyboardInterrupt):
    """Ctrl-C in a child; a plain `KeyboardInterrupt` is one that the localizer raised."""


@dataclass(frozen=True)
class Method:
    """A localizer as it declares itself, without its code."""

    name: str
    kind: str
    parameters: Mapping[str, Any]
    arguments: Mapping[str, str]
    """By which it is made."""
    version: str
    code: str
    """Hash of its code."""
    floor: str
    needs: tuple[str, ...]
    baseline: bool = False
    scanned: str = "alone"


def method_of(spec: Spec) -> Method:
    """The declaration of a specification's localizer, its parameters checked.

    Raises:
        UnknownNameError: There is no such localizer, or it has no such parameter.
        InputError: It does not load, or a parameter's value does not read.
    """
    return isolated(spec.localizer, _method, spec)


def _method(spec: Spec) -> Method:
    arguments = localizer_arguments(spec)
    made = create(spec.localizer, arguments, spec.seed)
    scan: dict[str, Any] = {}
    if isinstance(made, InterventionLocalizer):
        scan = {"baseline": made.baseline, "scanned": made.scanned}
    return Method(
        made.name,
        made.kind,
        made.parameters(),
        arguments,
        made.version,
        fingerprint(spec.localizer),
        made.floor,
        tuple(sorted(made.needs)),
        **scan,
    )


def isolated(
    localizer: str,
    function: Callable[..., T],
    *arguments: object,
    progress: Progress | None = None,
    pairs: Pairs | None = None,
) -> T:
    """Call a function of kgbench; one that runs a third-party localizer, in a process of its own.

    Args:
        localizer: The localizer's name or file.
        function: A function of a module of kgbench, which takes `progress` and `pairs` where they
            are given. To another process arguments travel as JSON, by pydantic from its
            annotations, and so does the result.
        *arguments: Its first arguments.
        progress: Progress callback.
        pairs: Where models are loaded in this process; another one loads its own.

    Returns:
        What the function returns.

    Raises:
        KgbenchError: As the function raises it.
        InputError: The process ended without a result, or sent what is none.
    """
    if not is_foreign(localizer):
        given = {"progress": progress, "pairs": pairs}
        return function(*arguments, **{k: v for k, v in given.items() if v is not None})
    label = localizer.rpartition("/")[2]
    if pairs is not None:
        pairs.forget()  # there may be no room for the models twice
    if progress is not None:
        progress(0, 0, f"{label}: loading")
    with TemporaryDirectory(prefix="kgbench-") as folder:
        request = Path(folder) / "request.json"
        request.write_text(
            _json(_arguments(function, len(arguments)), *arguments), encoding="utf-8"
        )
        call = (function.__module__, function.__name__, len(arguments), progress is not None)
        code = (
            "import signal, sys; signal.getsignal(2) is signal.SIG_IGN or "
            "signal.signal(2, signal.SIG_DFL); "
            f"sys.path[:] = {sys.path!r}; from kgbench.runner.third_party import _serve; "
            f"_serve({call!r}, {str(request)!r}, {os.getpid()}, {localizer!r})"
        )
        # subprocess, not multiprocessing, which would run the caller's script again.
        child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE)
        try:
            found: T = _received(child, _message(function), localizer, label, progress)
            return found
        except BaseException:
            if child.poll() is None and os.name == "posix":
                child.send_signal(signal.SIGINT)
            elif child.poll() is None:  # Windows has no signal for one process
                child.terminate()
            raise
        finally:
            _end(child)


class _Message(BaseModel):
    """A line of the stream between the processes, with one of these or a result."""

    model_config = _AS_JSON

    progress: tuple[int, int, str] = (0, 0, "")
    warning: tuple[str, str] = ("", "")
    error: tuple[str, str, Mapping[str, Attribute]] = ("", "", {})


def _arguments(function: Callable[..., Any], n: int) -> type[BaseModel]:
    """The format of a function's first arguments."""
    hints = get_type_hints(function)
    fields: dict[str, Any] = {
        name: (hints[name], ...) for name in list(inspect.signature(function).parameters)[:n]
    }
    return create_model("Arguments", __config__=_AS_JSON, **fields)


def _message(function: Callable[..., Any]) -> type[BaseModel]:
    """The format of all messages, the result among them."""
    result: Any = (get_type_hints(function)["return"], None)
    return create_model("Message", __base__=_Message, result=result)


def _json(format: type[BaseModel], *values: object, **named: object) -> str:
    """Values in the order of a format's fields, or by name, as a line; the reader checks them."""
    values_by_name: dict[str, Any] = {
        **dict(zip(format.model_fields, values, strict=False)),
        **named,
    }
    return (
        format.model_construct(**values_by_name).model_dump_json(exclude_unset=True, warnings=False)
        + "\n"
    )


def _received(
    child: subprocess.Popen[bytes],
    format: type[BaseModel],
    localizer: str,
    label: str,
    progress: Progress | None,
) -> Any:
    """Pass on what a child reports, until it gives its result."""
    lines: Queue[bytes] = Queue()

    def read(stream: IO[bytes]) -> None:
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(b"")

    threading.Thread(target=read, args=(child.stdout,), daemon=True).start()
    while (line := _next(child, lines)).endswith(b"\n"):
        kind, content = _parsed(format, line, localizer)
        if kind == "progress" and progress is not None:
            done, total, text = content
            progress(done, total, f"{label}: {text}")
        elif kind == "warning":
            name, text = content
            warnings_by_name = {DamagedRecordWarning.__name__: DamagedRecordWarning}
            warnings.warn(text, warnings_by_name.get(name, UserWarning), stacklevel=2)
        elif kind == "error":
            name, text, attributes = content
            # As its own class, whatever its constructor takes.
            of = getattr(errors, name) if name in errors.__all__ else InputError
            error: KgbenchError = of.__new__(of, text)
            vars(error).update(attributes)
            raise error
        elif kind == "result":
            return content
    _end(child)
    status = child.returncode
    how = f"with exit status {status}"
    if status < 0:
        memory = ", as when memory runs out" if -status == signal.SIGKILL else ""
        how = f"by signal {-status} ({signal.strsignal(-status)}{memory})"
    raise InputError(f"localizer {localizer!r}: its process ended {how}, without a result")


def _parsed(format: type[BaseModel], line: bytes, localizer: str) -> tuple[str, Any]:
    """The kind of a message, and its content.

    Raises:
        InputError: The line is no message.
    """
    try:
        message = format.model_validate_json(line)
        (kind,) = message.model_fields_set
    except ValueError as error:  # pydantic's are such
        what = (
            error.errors()[0]["msg"]
            if isinstance(error, ValidationError)
            else "it has not one content"
        )
        raise InputError(
            f"localizer {localizer!r}: its process sent what is no message of kgbench ({what})"
        ) from error
    return kind, getattr(message, kind)


def _next(child: subprocess.Popen[bytes], lines: Queue[bytes]) -> bytes:
    """Next line, empty at the end, even if a process of the localizer holds the stream open."""
    while True:
        ended = child.poll() is not None
        with contextlib.suppress(Empty):
            return lines.get(timeout=_POLL_S)
        if ended:
            return b""


def _end(child: subprocess.Popen[bytes]) -> None:
    try:
        child.wait(timeout=_GRACE_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()


def _serve(call: tuple[str, str, int, bool], request: str, parent: int, localizer: str) -> NoReturn:
    """Answer one request; the whole life of a child."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a localizer writes to descriptor 1 is no message
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, _interrupt)
        sys.unraisablehook = _unraisable
    threading.Thread(target=_outlive, args=(parent,), daemon=True).start()

    def send(format: type[BaseModel] = _Message, **message: object) -> None:
        channel.write(_json(format, **message).encode())
        channel.flush()

    def fail(error: str, message: str, attributes: Mapping[str, Attribute]) -> None:
        signal.signal(
            signal.SIGINT, signal.SIG_IGN
        )  # the parent interrupts a child as soon as it has its error
        send(error=(error, message, attributes))

    def warn(message: Warning | str, category: type[Warning], *_: object, **__: object) -> None:
        send(warning=(category.__name__, str(message)))

    status = 1
    try:
        warnings.showwarning = warn
        with errors.command_line():  # the parent says how its errors name options
            module, name, n, reports = call
            function = getattr(import_module(module), name)
            task = _arguments(function, n).model_validate_json(Path(request).read_bytes())
            arguments = [getattr(task, field) for field in type(task).model_fields]
            options = {"progress": lambda *step: send(progress=step)} if reports else {}
            send(_message(function), result=function(*arguments, **options))
        status = 0
    except Interrupted:
        status = _INTERRUPTED
    except KgbenchError as error:
        fields = {name: value for name, value in vars(error).items() if _is_attribute(value)}
        fail(type(error).__name__, str(error), fields)
    except Exception as error:  # of no line of the author's, as where a result cannot be used
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        fail(
            "InputError",
            f"localizer {localizer!r}: {told(error)} ({where}); "
            f"run `kgbench check-localizer {localizer}`",
            {},
        )
    except (
        BaseException
    ) as error:  # GeneratorExit, KeyboardInterrupt or SystemExit, which nothing of kgbench raises
        fail("InputError", f"localizer {localizer!r} raised {told(error)}", {})
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)  # threads that a localizer left do not keep the process


def _is_attribute(value: object) -> bool:
    several = isinstance(value, tuple) and all(isinstance(item, str) for item in value)
    return several or isinstance(value, str | int | None)


def _interrupt(number: int, frame: object) -> None:
    signal.signal(signal.SIGINT, lambda *_: None)  # once: what cleans up is not interrupted again
    raise Interrupted


def _unraisable(unraisable: sys.UnraisableHookArgs) -> None:
    """Exit on an interruption in a finalizer, which cannot raise; report other errors as usual."""
    if unraisable.exc_type is Interrupted:
        os._exit(_INTERRUPTED)
    sys.__unraisablehook__(unraisable)


def _outlive(parent: int) -> None:
    """End with the parent, however that ended.

    On Windows a virtual environment's Python starts another one, so that the parent need not be
    what the system calls so.
    """
    while os.getppid() == parent if os.name == "posix" else psutil.pid_exists(parent):
        time.sleep(_POLL_S)
    os._exit(_INTERRUPTED)
