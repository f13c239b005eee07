"""Cases that are more than a fact in a text: messages of a chat, and groups."""

from __future__ import annotations

import json
import re
from typing import Any, NamedTuple

from kgbench.errors import InputError

GROUPS = ("on", "off")
"""Where a behaviour is to show, which is the default, and its control, where it is not."""

GROUP, MESSAGES = "group", "messages"
"""Columns of a case: its group, and its messages in place of a text."""

_ROLES = re.compile(r"(system )?(user assistant )*user (assistant )?")


class Message(NamedTuple):
    """One message of a chat."""

    role: str
    """`system`, `user` or `assistant`; the last message of an assistant is continued."""
    content: str


def messages_of(cell: Any) -> tuple[Message, ...]:
    """The messages of a cell: a list of objects with role and content, also as JSON text.

    Raises:
        InputError: It holds something else, or roles that do not take turns.
    """
    expected = 'expected messages, as [{"role": "user", "content": "…"}]'
    if isinstance(cell, str):
        try:
            cell = json.loads(cell)
        except ValueError as error:
            raise InputError(f"{expected}; it is not JSON: {error}") from None
    messages = []
    for message in cell if isinstance(cell, list) else [cell]:
        texts = list(message.values()) if isinstance(message, dict) else []
        if not texts or {*message} != {*Message._fields} or not all(map(_is_text, texts)):
            raise InputError(f"{expected}; found {str(message)[:60]}")
        messages.append(Message(str(message["role"]), str(message["content"])))
    if not _ROLES.fullmatch("".join(f"{message.role} " for message in messages)):
        roles = ", ".join(message.role for message in messages)
        raise InputError(
            "expected an optional system message, then user and assistant in turn, the user first; "
            f"the roles are {roles or 'none'}"
        )
    return tuple(messages)


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


def messages_text(messages: tuple[Message, ...]) -> str:
    """Messages as the text of a field, which `messages_of` reads."""
    return json.dumps([message._asdict() for message in messages], ensure_ascii=False)
