"""An array as it lies in a rank file: where its payload is, and how the payload spells its elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from ckptcore.rules.tensors import Shape, row_major_strides


@dataclass(frozen=True, slots=True)
class Segment:
    """A run of payload bytes in the file.

    ``length`` counts decoded bytes. ``marks`` is None for raw bytes (all that Paddle has written since
    2.1). Pickle protocol 2 spells bytes as UTF-8 text of latin-1 characters; then ``marks[i]`` is the
    offset in the file at which decoded byte ``i * MARK_EVERY`` starts, so that any part can be read
    without decoding what lies before it, and ``stored_length`` counts the bytes in the file.
    """

    offset: int
    length: int
    marks: tuple[int, ...] | None = None
    stored_length: int = -1


MARK_EVERY = 1 << 20


@dataclass(frozen=True, slots=True)
class StoredArray:
    """One array of a rank file. Its payload is the concatenation of ``segments`` (one, except where Paddle
    sliced a tensor over 1 GiB at protocol 2 or 3). ``dtype`` is numpy's spelling with byte order: ``<f4``, ``|i1``.

    ``axes`` lists the array's axes from the slowest to the fastest in the file, where that is neither C's nor
    Fortran's order (numpy 2.4 at pickle protocol 5); else None. ``means`` is Paddle's dtype where the file itself
    tells bfloat16 or float8 from the integers of that size (safetensors), else "".
    """

    shape: Shape
    dtype: str
    fortran: bool
    segments: tuple[Segment, ...]
    axes: tuple[int, ...] | None = None
    means: str = ""

    @property
    def payload_bytes(self) -> int:
        return sum(segment.length for segment in self.segments)

    @property
    def expected_bytes(self) -> int:
        return prod(self.shape) * self.itemsize

    @property
    def itemsize(self) -> int:
        return int(self.dtype[2:])

    @property
    def strides(self) -> Shape:
        """Strides of the stored elements, in elements."""
        if self.axes is not None:
            by_axis = dict(
                zip(self.axes, row_major_strides(tuple(self.shape[axis] for axis in self.axes)), strict=True)
            )
            return tuple(by_axis[axis] for axis in range(len(self.shape)))
        if self.fortran:
            return tuple(reversed(row_major_strides(tuple(reversed(self.shape)))))
        return row_major_strides(self.shape)


@dataclass(frozen=True, slots=True)
class RankFile:
    """What one rank file holds: its arrays by tensor key, and the parameter name of each structured name."""

    arrays: Mapping[str, StoredArray]
    parameter_names: Mapping[str, str]
