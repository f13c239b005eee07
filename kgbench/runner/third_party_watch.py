"""Code of third parties under watch: what it raises is a line, and what it changes is noticed."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from kgbench.engine.state import changes as state_changes
from kgbench.engine.state import process_state, state_of
from kgbench.errors import InputError, KgbenchError, NotApplicableError
from kgbench.localizers import AbstractLocalizer, is_foreign
from kgbench.models.pair import ModelPair
from kgbench.registry import code_file, frames_in, told
from kgbench.runner.measure import is_theirs


class Watch:
    """State of process and models before a third-party localizer; not taken for kgbench's own.

    What measures is loaded with this module, so that a patched function of it is noticed.

    Args:
        localizer: The localizer's name or file; its code is not loaded yet.
    """

    def __init__(self, localizer: str) -> None:
        self.localizer = localizer
        self._pair: ModelPair | None = None
        self._is_needed = is_foreign(localizer)
        self._before = process_state() if self._is_needed else {}

    def add(self, pair: ModelPair) -> None:
        """Watch a pair too, from now on."""
        if self._is_needed:
            _ = pair.weight_hashes  # kept with the pair, of the weights as they are now
            self._pair, self._before = pair, {**state_of(pair), **self._before}

    def changed(self, weights: bool = True) -> tuple[str, ...]:
        """What is no longer as it was.

        Args:
            weights: Read all weights, which takes long for large models. Otherwise they are read
                only where something else changed, such as the output of a short forward.
        """
        if not self._is_needed:
            return ()
        changes = state_changes(
            self._before, process_state() if self._pair is None else state_of(self._pair)
        )
        if self._pair is None or not (weights or changes):
            return changes
        return (*(f"the weights of {name}" for name in self._pair.changed()), *changes)

    def check(self, weights: bool = True) -> None:
        """Refuse to go on where something has changed.

        Args:
            weights: As of `changed`.

        Raises:
            InputError: Something has.
        """
        if changed := self.changed(weights):
            raise InputError(
                f"localizer {self.localizer!r}, or what was run with it, changed "
                f"{' and '.join(changed)}, and nothing that this process computes from here on can "
                f"be trusted; run `kgbench check-localizer {self.localizer}`"
            )


@contextmanager
def guarded(
    localizer: AbstractLocalizer, target: str, pair: ModelPair, discard: Callable[[], None]
) -> Iterator[None]:
    """Run a localizer; discard results of a third-party one that changes models or settings.

    Args:
        localizer: The localizer.
        target: Its name or file.
        pair: The models that it gets.
        discard: Called where it has changed something.

    Raises:
        InputError: The localizer leaves something changed, or raises what is no `KgbenchError`.
    """
    if not is_theirs(localizer):
        yield
        return
    watch = Watch(target)
    watch.add(pair)
    try:
        with blamed(localizer, target):
            yield
        watch.check()
    except BaseException:
        if watch.changed():
            discard()
        raise


@contextmanager
def blamed(localizer: AbstractLocalizer, target: str) -> Iterator[None]:
    """Report errors of a third-party localizer in one line.

    Args:
        localizer: The localizer.
        target: Its name or file.

    Raises:
        InputError: In place of an error of the localizer's code; errors of kgbench pass.
    """
    try:
        yield
    except NotApplicableError:
        raise
    except BaseException as error:  # whatever an author's code raises
        frames = []
        if is_theirs(localizer):
            # Where the error passed through the localizer's file, or through its package.
            package = sys.modules[type(localizer).__module__.partition(".")[0]]
            place = getattr(package, "__path__", None)
            file = code_file(type(localizer)) if place is None else Path(next(iter(place)))
            frames = frames_in(error, file)
        ours = isinstance(error, KgbenchError)
        if not frames or (ours and frames[-1] != traceback.extract_tb(error.__traceback__)[-1]):
            raise
        where = f"{Path(frames[-1].filename).name}:{frames[-1].lineno}"
        raise InputError(
            f"localizer {localizer.name!r}: {frames[0].name} raised {told(error)} ({where}); "
            f"run `kgbench check-localizer {target}`"
        ) from error
