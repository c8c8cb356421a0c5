"""What a tensor is: its dtype, its shape, and the boxes and flattened ranges that pieces of it occupy.

Owns the dtype table and box arithmetic. Which pieces make a whole is decided in ``coverage``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class DType:
    """A dtype by Paddle's name, how Paddle stores it in a rank file, and what safetensors calls it.

    ``stored`` is the numpy kind and item size without byte order (``u2`` for bfloat16);
    ``safetensors`` is empty where that format has no such dtype.
    """

    name: str
    itemsize: int
    stored: str
    safetensors: str

    @property
    def is_float(self) -> bool:
        """Whether casts between floating dtypes apply (float8 included)."""
        return "float" in self.name


DTYPES: dict[str, DType] = {
    dtype.name: dtype
    for dtype in (
        DType("float64", 8, "f8", "F64"),
        DType("float32", 4, "f4", "F32"),
        DType("float16", 2, "f2", "F16"),
        DType("bfloat16", 2, "u2", "BF16"),
        DType("float8_e4m3fn", 1, "i1", "F8_E4M3"),
        DType("float8_e5m2", 1, "i1", "F8_E5M2"),
        DType("int64", 8, "i8", "I64"),
        DType("int32", 4, "i4", "I32"),
        DType("int16", 2, "i2", "I16"),
        DType("int8", 1, "i1", "I8"),
        DType("uint8", 1, "u1", "U8"),
        DType("bool", 1, "b1", "BOOL"),
        DType("complex64", 8, "c8", "C64"),
        DType("complex128", 16, "c16", ""),
    )
}


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """An unsharded tensor: key, dtype name (a key of ``DTYPES``) and global shape."""

    key: str
    dtype: str
    shape: Shape

    @property
    def size_bytes(self) -> int:
        return prod(self.shape) * DTYPES[self.dtype].itemsize


@dataclass(frozen=True, slots=True, order=True)
class Box:
    """An axis-aligned box of a tensor: where it starts and how far it reaches, in elements per axis."""

    offset: Shape
    shape: Shape

    @classmethod
    def whole(cls, shape: Shape) -> Box:
        return cls((0,) * len(shape), shape)

    @property
    def end(self) -> Shape:
        return tuple(o + s for o, s in zip(self.offset, self.shape, strict=True))

    @property
    def volume(self) -> int:
        return prod(self.shape)

    def intersect(self, other: Box) -> Box | None:
        """The common part, or None where it holds no element."""
        offset, shape = [], []
        for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True):
            low = a if a > b else b
            high = a + n if a + n < b + m else b + m
            if high <= low:
                return None
            offset.append(low)
            shape.append(high - low)
        return Box(tuple(offset), tuple(shape))

    def contains(self, other: Box) -> bool:
        return all(
            a <= b and b + m <= a + n
            for a, n, b, m in zip(self.offset, self.shape, other.offset, other.shape, strict=True)
        )

    def shifted(self, by: Shape) -> Box:
        return Box(tuple(o + d for o, d in zip(self.offset, by, strict=True)), self.shape)

    def __str__(self) -> str:
        return "[" + ", ".join(f"{o}:{o + s}" for o, s in zip(self.offset, self.shape, strict=True)) + "]"


def row_major_strides(shape: Shape) -> Shape:
    """Strides in elements of a C-ordered array of that shape."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step *= extent
    return tuple(reversed(strides))


def flat_range_boxes(shape: Shape, start: int, stop: int) -> Iterator[Box]:
    """The boxes, in order, that the range ``start:stop`` of the row-major flattening of ``shape`` covers.

    Each box is one contiguous run of the flattening; there are at most ``2 * len(shape) - 1``.
    """
    if start >= stop:
        return
    if not shape:
        yield Box((), ())
        return
    inner = prod(shape[1:])
    first, head = divmod(start, inner)
    last, tail = divmod(stop, inner)

    def nested(row: int, low: int, high: int) -> Iterator[Box]:
        for box in flat_range_boxes(shape[1:], low, high):
            yield Box((row, *box.offset), (1, *box.shape))

    if first == last:
        yield from nested(first, head, tail)
        return
    if head:
        yield from nested(first, head, inner)
        first += 1
    if first < last:
        yield Box((first, *(0,) * (len(shape) - 1)), (last - first, *shape[1:]))
    if tail:
        yield from nested(last, 0, tail)


@dataclass(frozen=True, slots=True)
class Piece:
    """One local tensor as the metadata describes it: a box of the global tensor in one rank file.

    ``flat`` is the half-open range of the row-major flattening of the *box* that the payload holds
    (Paddle 3.2 and later, sharded optimizers), or None for the whole box. ``replica`` is Paddle's
    ``replica_id``: 0 or None for the main copy.
    """

    box: Box
    file: str
    flat: tuple[int, int] | None = None
    replica: int | None = None

    @property
    def payload_shape(self) -> Shape:
        """The shape that the stored array must have."""
        return self.box.shape if self.flat is None else (self.flat[1] - self.flat[0],)

    def boxes(self) -> Iterator[Box]:
        """The boxes of the global tensor that the payload holds, in payload order."""
        if self.flat is None:
            yield self.box
        else:
            for box in flat_range_boxes(self.box.shape, *self.flat):
                yield box.shifted(self.box.offset)


@dataclass(frozen=True, slots=True)
class IndexedTensor:
    """A tensor as the metadata promises it. ``dtype`` is None in Paddle 2.6, which does not record it;
    ``shape_is_recorded`` is False where the shape was inferred from the pieces (before Paddle 3.2)."""

    key: str
    dtype: str | None
    shape: Shape
    pieces: tuple[Piece, ...]
    shape_is_recorded: bool = True


@dataclass(frozen=True, slots=True)
class Index:
    """What one metadata file promises: its tensors by key, sorted, and the rank files that it names, sorted.

    ``left_out`` are the keys that it names too, but contradicts itself about.
    """

    tensors: tuple[IndexedTensor, ...]
    files: tuple[str, ...]
    left_out: frozenset[str] = frozenset()
