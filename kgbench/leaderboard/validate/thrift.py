"""Structs in Thrift's compact protocol, in which Parquet writes everything but values."""

from __future__ import annotations

from typing import TypeAlias

from kgbench.errors import DataError

__all__ = ["Struct", "Value", "count", "listed", "read_struct", "structs", "within"]

Struct: TypeAlias = "dict[int, Value]"
"""Values by number of the field."""

Value: TypeAlias = "int | bytes | list[Value] | Struct"

_STOP, _TRUE, _FALSE, _BYTE, _DOUBLE, _BINARY, _LIST, _SET, _STRUCT = 0, 1, 2, 3, 7, 8, 9, 10, 12
_VARINTS = (4, 5, 6)
_DEEPEST = 12


def read_struct(data: bytes) -> tuple[Struct, int]:
    """A struct at the beginning of some bytes, and how many it takes.

    Raises:
        DataError: There is none.
    """
    reader = _Reader(data)
    return reader.struct(0), reader.at


def count(struct: Struct, field: int) -> int:
    """A whole number, 0 or more; -1 where it is missing, and where it is something else."""
    value = struct.get(field, -1)
    return value if isinstance(value, int) and value >= 0 else -1


def within(struct: Struct, field: int) -> Struct:
    """A struct within a struct; an empty one where there is none."""
    value = struct.get(field)
    return value if isinstance(value, dict) else {}


def listed(struct: Struct, field: int) -> list[Value]:
    """A list; an empty one where there is none."""
    value = struct.get(field)
    return value if isinstance(value, list) else []


def structs(struct: Struct, field: int) -> list[Struct]:
    """A list of structs; an empty one where there is none."""
    return [value for value in listed(struct, field) if isinstance(value, dict)]


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def struct(self, depth: int) -> Struct:
        if depth > _DEEPEST:
            raise DataError("its description nests too deep")
        found: Struct = {}
        number = 0
        while (head := self._byte()) != _STOP:
            number = number + (head >> 4) if head >> 4 else self._signed()
            kind = head & 15
            found[number] = (
                int(kind == _TRUE) if kind in (_TRUE, _FALSE) else self._value(kind, depth)
            )
        return found

    def _value(self, kind: int, depth: int) -> Value:
        if kind in _VARINTS:
            return self._signed()
        if kind == _BINARY:
            return self._take(self._unsigned())
        if kind == _STRUCT:
            return self.struct(depth + 1)
        if kind in (_LIST, _SET):
            return self._list(depth + 1)
        if kind in (_BYTE, _DOUBLE, _TRUE, _FALSE):  # within a list, a truth value is a byte
            return self._take(8 if kind == _DOUBLE else 1)
        raise DataError("its description holds what none has")

    def _list(self, depth: int) -> list[Value]:
        if depth > _DEEPEST:
            raise DataError("its description nests too deep")
        head = self._byte()
        size = head >> 4 if head >> 4 < 15 else self._unsigned()
        if size > len(self.data) - self.at:  # each takes a byte at least
            raise DataError("its description is cut short")
        return [self._value(head & 15, depth) for _ in range(size)]

    def _take(self, n: int) -> bytes:
        self.at += n
        if self.at > len(self.data):
            raise DataError("its description is cut short")
        return self.data[self.at - n : self.at]

    def _byte(self) -> int:
        return self._take(1)[0]

    def _unsigned(self) -> int:
        value = shift = 0
        while shift < 64:
            byte = self._byte()
            value |= (byte & 127) << shift
            if byte < 128:
                return value
            shift += 7
        raise DataError("its description holds a number that is too large")

    def _signed(self) -> int:
        value = self._unsigned()
        return (value >> 1) ^ -(value & 1)
