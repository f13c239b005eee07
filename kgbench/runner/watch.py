"""Check that a third-party localizer leaves models and process unchanged."""

from __future__ import annotations

import kgbench.runner.run  # noqa: F401  # what a run calls is loaded, so that a patched function is noticed
from kgbench.engine.state import changes, process_state, state_of
from kgbench.errors import InputError
from kgbench.localizers import is_foreign
from kgbench.models.pair import ModelPair


class Watch:
    """State of process and models before a third-party localizer; not taken for kgbench's own.

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
        found = changes(
            self._before, process_state() if self._pair is None else state_of(self._pair)
        )
        if self._pair is None or not (weights or found):
            return found
        return (*(f"the weights of {name}" for name in self._pair.changed()), *found)

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
