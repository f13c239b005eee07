"""The Hugging Face Hub: what to do where it refuses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from kgbench.errors import InputError, first_line

ANSWER_WITHIN = 10.0
"""Seconds to wait for the Hub before saying that it cannot be reached."""


@contextmanager
def hub_errors(
    name: str, revision: str | None, otherwise: str, error_type: type[InputError] = InputError
) -> Iterator[None]:
    """Ask the Hub for a repository, with its errors as ours.

    Args:
        name: The repository.
        revision: Which revision of it.
        otherwise: What to do without the Hub.
        error_type: Type of the errors.

    Raises:
        InputError: The Hub refuses, or cannot be reached.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HfHubHTTPError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except GatedRepoError as error:
        raise error_type(
            f"{name!r} is gated: accept its terms on the Hub and log in with 'hf auth login'"
        ) from error
    except RevisionNotFoundError as error:
        raise error_type(f"{name!r} has no revision {revision!r} on the Hub") from error
    except RepositoryNotFoundError as error:
        raise error_type(f"the Hub has no {name!r} that you may read; {otherwise}") from error
    except HfHubHTTPError as error:
        raise error_type(f"the Hub refuses {name!r}: {first_line(error)}") from error
    except Exception as error:  # the client lets its HTTP library's own errors through
        raise error_type(
            f"the Hugging Face Hub cannot be reached for {name!r} ({first_line(error)}); "
            f"{otherwise}"
        ) from error
