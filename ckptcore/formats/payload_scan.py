"""Looks at every payload byte of a rank file: the file's SHA-256, NaN and Inf, and replicas held side by side.

Memory is a few blocks, whatever the size of a file or a tensor. What the counts mean for a version is ``verify``'s.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckptcore.formats.payloads import read_payload
from ckptcore.formats.reader import Reader
from ckptcore.rules.stored import StoredArray

Array = np.ndarray[Any, np.dtype[Any]]

BLOCK_BYTES = 4 << 20  # a multiple of every item size


@dataclass(frozen=True, slots=True)
class NonFiniteCount:
    """How many elements are NaN, and how many infinite. A complex element counts once, as NaN if either part is."""

    nan: int
    inf: int


def has_non_finite(dtype: str) -> bool:
    """Whether the dtype has values that are no finite numbers."""
    return "float" in dtype or "complex" in dtype


def scan_file(reader: Reader, arrays: Sequence[tuple[StoredArray, str]]) -> tuple[str, tuple[NonFiniteCount, ...]]:
    """The SHA-256 of the file in hexadecimal, and the count of each of ``arrays``, given with its dtype.

    The hash runs just ahead of the payloads, so that the storage delivers each byte once and the page cache the rest.
    """
    hashed = _Hashed(reader)
    counts: dict[int, NonFiniteCount] = {}
    for position in sorted(range(len(arrays)), key=lambda position: _start(arrays[position][0])):
        array, dtype = arrays[position]
        nan = inf = 0
        for offset, block in _blocks(reader, array):
            hashed.run_to(_start(array) + offset + block.nbytes)
            is_nan, is_inf = _classes(block, dtype)
            nan += int(np.count_nonzero(is_nan))
            inf += int(np.count_nonzero(is_inf & ~is_nan))
        counts[position] = NonFiniteCount(nan, inf)
    hashed.run_to(reader.size_bytes)
    return hashed.record.hexdigest(), tuple(counts[position] for position in range(len(arrays)))


def first_difference(reader: Reader, array: StoredArray, other_reader: Reader, other: StoredArray) -> int | None:
    """The position, in storage order, of the first element whose bits differ, or None. Byte orders may differ.

    The arrays must be :func:`comparable`.
    """
    position = 0
    blocks = zip(_blocks(reader, array), _blocks(other_reader, other), strict=True)
    for (_, mine), (_, theirs) in blocks:
        found = _first_unequal(mine, theirs)
        if found is not None:
            return position + found
        position += len(mine)
    return None


def comparable(array: StoredArray, other: StoredArray) -> bool:
    """Whether both hold as many elements of one kind in one memory order, byte order aside."""
    one_order = array.fortran == other.fortran or sum(extent > 1 for extent in array.shape) < 2
    return one_order and array.shape == other.shape and array.dtype[1:] == other.dtype[1:]


class _Hashed:
    """The hash of a file's first bytes, as far as it was run."""

    def __init__(self, reader: Reader) -> None:
        self.record = hashlib.sha256()
        self._reader, self._done = reader, 0

    def run_to(self, offset: int) -> None:
        while self._done < offset:
            part = self._reader.read_at(self._done, min(BLOCK_BYTES, offset - self._done))
            if not part:
                return
            self.record.update(part)
            self._done += len(part)


def _start(array: StoredArray) -> int:
    return array.segments[0].offset if array.segments else 0


def _blocks(reader: Reader, array: StoredArray) -> Iterator[tuple[int, Array]]:
    """The stored elements in storage order, each block with its byte offset in the payload; the next overwrites it."""
    size = array.payload_bytes
    buffer = memoryview(bytearray(min(BLOCK_BYTES, size)))
    for offset in range(0, size, BLOCK_BYTES):
        part = buffer[: min(BLOCK_BYTES, size - offset)]
        read_payload(reader, array, offset, part)
        yield offset, np.frombuffer(part, np.dtype(array.dtype))


def _classes(block: Array, dtype: str) -> tuple[Array, Array]:
    """Which elements are NaN and which are infinite, where the stored elements mean ``dtype``."""
    match dtype:
        case "bfloat16":
            magnitude = block & 0x7FFF
            return magnitude > 0x7F80, magnitude == 0x7F80
        case "float8_e5m2":
            magnitude = block.view(np.uint8) & 0x7F
            return magnitude > 0x7C, magnitude == 0x7C
        case "float8_e4m3fn":  # has no infinity, and one NaN of each sign
            magnitude = block.view(np.uint8) & 0x7F
            return magnitude == 0x7F, np.zeros(len(block), np.bool_)
        case _:
            return np.isnan(block), np.isinf(block)


def _first_unequal(mine: Array, theirs: Array) -> int | None:
    unequal = (_bits(mine) != _bits(theirs)).any(axis=1)
    return int(unequal.argmax()) if unequal.any() else None


def _bits(elements: Array) -> Array:
    """The bytes of each element, least significant first: NaN equals itself, and -0.0 is not 0.0."""
    little = elements.astype(elements.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(len(elements), -1)
