"""Third-party localizers, each computed in a process of its own.

Foreign code can leave hooks, flags or patched functions behind. Nothing of that reaches
another localizer's record, since the process ends with the call.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar, get_type_hints

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from kgbench import errors
from kgbench.errors import InputError, KgbenchError, first_fault
from kgbench.localizers import create, fingerprint, is_foreign
from kgbench.progress import Progress
from kgbench.registry import told
from kgbench.runner.lookup import Workload, localizer_arguments
from kgbench.runner.sources import Sources

if TYPE_CHECKING:
    from kgbench.runner.job import Pairs

T = TypeVar("T")

_GRACE_S = 5.0
"""Time for a child that has closed its stream to end by itself, before it is killed."""
_AS_JSON = ConfigDict(extra="forbid", ser_json_inf_nan="constants")


@dataclass(frozen=True)
class Method:
    """A localizer as it declares itself, without its code."""

    name: str
    kind: str
    version: str
    floor: str
    needs: frozenset[str]
    baseline: bool | None
    scanned: str | None
    """None where it ranks sites, and intervenes in nothing."""
    reads_any_token: bool | None
    parameters: Mapping[str, Any]
    arguments: Mapping[str, str]
    """By which it is made."""
    code: str
    """Hash of its code."""


DECLARED = (
    *("name", "kind", "version", "floor", "needs"),
    *("baseline", "scanned", "reads_any_token"),  # of interventions
)
"""What a localizer declares by its class."""


def method_of(work: Workload) -> Method:
    """The declaration of a workload's localizer, its parameters checked.

    Raises:
        UnknownNameError: There is no such localizer, or it has no such parameter.
        InputError: It does not load, or a parameter's value does not read.
    """
    name = work.localizer_name
    return isolated(name, _method, name, work.arguments, work.sources, work.seed)


def _method(localizer: str, arguments: Mapping[str, str], sources: Sources, seed: int) -> Method:
    arguments = localizer_arguments(localizer, arguments, sources)
    made = create(localizer, arguments, seed)
    declared: dict[str, Any] = {name: getattr(made, name, None) for name in DECLARED}
    code = fingerprint(localizer)
    return Method(**declared, parameters=made.parameters(), arguments=arguments, code=code)


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
    if pairs is not None:
        pairs.forget()  # there may be no room for the models twice
    format, message = _formats(function, len(arguments))
    with TemporaryDirectory(prefix="kgbench-") as folder:
        request = Path(folder) / "request.json"
        request.write_bytes(format.dump_json(arguments, warnings=False))
        call = (function.__module__, function.__name__, len(arguments), progress is not None)
        code = (
            f"import sys; sys.path[:] = {sys.path!r}; from kgbench.runner.third_party_process import "
            f"_serve; _serve({call!r}, {str(request)!r}, {localizer!r})"
        )
        # subprocess, not multiprocessing, which would run the caller's script again; in a session
        # of its own, so that Ctrl-C interrupts the parent alone.
        with subprocess.Popen(
            [sys.executable, "-c", code], stdout=subprocess.PIPE, start_new_session=True
        ) as child:
            threading.Thread(target=_end_rest, args=(child,), daemon=True).start()
            try:
                return _result(child, message, localizer, progress)
            finally:
                child.kill()


def _end_rest(child: subprocess.Popen[bytes]) -> None:
    """Once a child has ended, end the processes that it started: they may hold its stream open."""
    child.wait()
    if os.name == "posix":
        with suppress(OSError):
            os.killpg(child.pid, signal.SIGKILL)


class _Message(BaseModel, Generic[T]):
    """A line of the stream between the processes; one without content is a sign of life."""

    model_config = _AS_JSON

    progress: tuple[int, int, str] | None = None
    warning: str | None = None
    error: tuple[str, str] | None = None
    """Its class and its text."""
    result: T | None = None


def _formats(
    function: Callable[..., T], n: int
) -> tuple[TypeAdapter[tuple[Any, ...]], type[_Message[T]]]:
    """The formats of a function's first arguments, and of the messages with its result."""
    *hints, result = get_type_hints(function).values()
    arguments: Any = tuple[tuple(hints[:n])]  # type: ignore[misc]  # known when it runs
    return TypeAdapter(arguments, config=_AS_JSON), _Message[result]  # type: ignore[valid-type]


def _result(
    child: subprocess.Popen[bytes],
    format: type[_Message[T]],
    localizer: str,
    progress: Progress | None,
) -> T:
    """Pass on what a child reports, until it gives its result."""
    label = localizer.rpartition("/")[2]
    if progress is not None:
        progress(0, 0, f"{label}: loading")
    assert child.stdout is not None
    for line in child.stdout:
        if not line.endswith(b"\n"):
            break  # it was ended as it wrote
        try:
            message = format.model_validate_json(line)
        except ValidationError as error:
            raise InputError(
                f"localizer {localizer!r}: its process sent what is no message of kgbench "
                f"({first_fault(error, 'message')})"
            ) from error
        if progress is not None and message.progress is not None:
            done, total, text = message.progress
            progress(done, total, f"{label}: {text}")
        if message.warning is not None:
            warnings.warn(message.warning, stacklevel=2)
        if message.error is not None:
            name, text = message.error
            of = getattr(errors, name, None)
            if not (isinstance(of, type) and issubclass(of, KgbenchError)):
                of = InputError
            raise of.__new__(of, text)  # whatever its constructor takes
        if message.result is not None:
            return message.result
    with suppress(subprocess.TimeoutExpired):
        child.wait(_GRACE_S)
    child.kill()
    how = f"with exit status {child.wait()}"
    if (number := -child.returncode) > 0:
        memory = ", as when memory runs out" if number == signal.SIGKILL else ""
        how = f"by signal {number} ({signal.strsignal(number)}{memory})"
    raise InputError(f"localizer {localizer!r}: its process ended {how}, without a result")


def _serve(call: tuple[str, str, int, bool], request: str, localizer: str) -> NoReturn:
    """Answer one request; the whole life of a child."""
    channel = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a localizer writes to descriptor 1 is no message
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # a TextIOWrapper

    def send(format: type[BaseModel] = _Message, **message: Any) -> None:
        line = format.model_construct(**message).model_dump_json(exclude_unset=True, warnings=False)
        channel.write(f"{line}\n".encode())
        channel.flush()

    def live() -> None:
        """End with the parent, however that ended."""
        with suppress(OSError):
            while True:
                send()
                time.sleep(1.0)
        os._exit(1)

    try:
        warnings.showwarning = lambda message, *_, **__: send(warning=str(message))
        threading.Thread(target=live, daemon=True).start()
        with errors.command_line():  # the parent says how its errors name options
            module, name, n, reports = call
            function = getattr(import_module(module), name)
            format, message = _formats(function, n)
            arguments = format.validate_json(Path(request).read_bytes())
            options = {"progress": lambda *step: send(progress=step)} if reports else {}
            send(message, result=function(*arguments, **options))
    except KgbenchError as error:
        send(error=(type(error).__name__, str(error)))
    except BaseException as error:  # whatever an author's code raises, or where it cannot be used
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(last.filename).name}:{last.lineno}"
        remedy = f"run `kgbench check-localizer {localizer}`"
        send(error=("InputError", f"localizer {localizer!r}: {told(error)} ({where}); {remedy}"))
    finally:
        os._exit(1)  # threads that a localizer left do not keep the process
