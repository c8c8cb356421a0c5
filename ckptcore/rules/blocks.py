"""How a shard's bytes are cut into blocks of bounded size, in file order, and what fills each block.

A block is a run of consecutive bytes of the shard: slabs of one large tensor, or several small tensors. Written in
order by one writer or out of order by many, the blocks are the shard's data exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ckptcore.rules.merge_plan import Copy, PlannedShard, PlannedTensor
from ckptcore.rules.tensors import DTYPES, Box, Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class Fill:
    """A slab of one tensor: where its bytes start in the block, and the parts of copies that tile it."""

    start: int
    slab: Box
    spec: TensorSpec
    parts: tuple[tuple[Copy, Box], ...]

    @property
    def size_bytes(self) -> int:
        return self.slab.volume * DTYPES[self.spec.dtype].itemsize


@dataclass(frozen=True, slots=True)
class Block:
    """``size_bytes`` bytes at ``offset`` of the shard, tiled by ``fills``."""

    offset: int
    size_bytes: int
    fills: tuple[Fill, ...]


def slabs(shape: Shape, max_elements: int) -> Iterator[Box]:
    """Boxes that are runs of the row-major order, in order, of at most ``max_elements`` elements each."""
    if prod(shape) <= max_elements:
        if prod(shape):
            yield Box.whole(shape)
        return
    inner = prod(shape[1:])
    if inner > max_elements:
        for row in range(shape[0]):
            for slab in slabs(shape[1:], max_elements):
                yield Box((row, *slab.offset), (1, *slab.shape))
        return
    rows = max(1, max_elements // inner)
    rest = (0,) * (len(shape) - 1)
    for row in range(0, shape[0], rows):
        yield Box((row, *rest), (min(rows, shape[0] - row), *shape[1:]))


def parts_of_slabs(copies: Sequence[Copy], slabs: Iterator[Box]) -> Iterator[tuple[Box, tuple[tuple[Copy, Box], ...]]]:
    """Each slab with the copies that reach into it, and the common box. Both must come in order of their offsets.

    Only the copies whose extent along the first axis that is longer than 1 can reach the slab are looked at, so that
    a tensor of a thousand pieces in two thousand slabs stays linear.
    """
    axis: int | None = None
    waiting = iter(copies)
    upcoming = next(waiting, None)
    open_copies: list[Copy] = []
    for slab in slabs:
        if axis is None and upcoming is not None:
            axis = _leading_axis(copies)
        if axis is None:
            parts = [(copy, slab) for copy in copies]
        else:
            low, high = slab.offset[axis], slab.offset[axis] + slab.shape[axis]
            open_copies = [c for c in open_copies if c.target.offset[axis] + c.target.shape[axis] > low]
            while upcoming is not None and upcoming.target.offset[axis] < high:
                open_copies.append(upcoming)
                upcoming = next(waiting, None)
            parts = [(c, common) for c in open_copies if (common := c.target.intersect(slab)) is not None]
        yield slab, tuple(parts)


def _leading_axis(copies: Sequence[Copy]) -> int | None:
    """The first axis along which the tensor is longer than 1; None for a single element."""
    for axis in range(len(copies[0].target.shape)):
        if any(copy.target.offset[axis] or copy.target.shape[axis] > 1 for copy in copies):
            return axis
    return None


def _slab_fills(tensor: PlannedTensor, max_bytes: int) -> Iterator[tuple[int, Fill]]:
    """Each slab of a tensor as (size in bytes, fill)."""
    itemsize = DTYPES[tensor.spec.dtype].itemsize
    for slab, parts in parts_of_slabs(tensor.copies, slabs(tensor.spec.shape, max(1, max_bytes // itemsize))):
        yield slab.volume * itemsize, Fill(0, slab, tensor.spec, parts)


def blocks(shard: PlannedShard, *, max_bytes: int) -> Iterator[Block]:
    """The shard's data as blocks of at most ``max_bytes`` bytes, in file order; the header is not part of it."""
    offset = len(shard.header)
    size, fills = 0, list[Fill]()
    for tensor in shard.tensors:
        for slab_bytes, fill in _slab_fills(tensor, max_bytes):
            if fills and size + slab_bytes > max_bytes:
                yield Block(offset, size, tuple(fills))
                offset, size, fills = offset + size, 0, []
            fills.append(Fill(size, fill.slab, fill.spec, fill.parts))
            size += slab_bytes
    if fills:
        yield Block(offset, size, tuple(fills))
