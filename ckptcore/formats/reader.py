"""The one port that formats read through: bytes at an offset, and how many there are."""

from __future__ import annotations

from typing import Protocol


class Reader(Protocol):
    """Random access to one file's bytes."""

    @property
    def size_bytes(self) -> int:
        """How many bytes there are."""
        ...

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        ...

    def readinto_at(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` from ``offset``; how many bytes that were, fewer than asked only at the end of the file."""
        ...


class BytesReader:
    """A reader over bytes in memory."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    @property
    def size_bytes(self) -> int:
        return len(self._data)

    def read_at(self, offset: int, length: int) -> bytes:
        return self._data[offset : offset + length]

    def readinto_at(self, offset: int, target: memoryview) -> int:
        part = self._data[offset : offset + len(target)]
        target[: len(part)] = part
        return len(part)
