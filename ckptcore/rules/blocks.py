"""How a shard's bytes are cut into blocks of bounded size, in file order, and what fills each block.

A block is a run of consecutive bytes of the shard (slabs of one large tensor, or several small tensors), or a tile of
one tensor that is stored turned. Written in order by one writer or out of order by many, the blocks are the shard's
data exactly once. Which boxes a tensor is cut into is ``tiles``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ckptcore.rules.merge_plan import Copy, PlannedShard, PlannedTensor
from ckptcore.rules.tensors import DTYPES, Box, TensorSpec, row_major_strides
from ckptcore.rules.tiles import Cutting, boxes, cutting_of


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
    """``size_bytes`` bytes of the shard, tiled by ``fills``: consecutive ones at ``offset``, or, as a tile, ``rows``
    equal runs of which each begins ``pitch`` bytes after the one before.

    ``band`` is None for a run. The last tile of a band of rows has the offset and size of the band, whose bytes are
    all written once this block and those before it are; the other tiles have (0, 0).
    """

    offset: int
    size_bytes: int
    fills: tuple[Fill, ...]
    rows: int = 1
    pitch: int = 0
    band: tuple[int, int] | None = None


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


def blocks(shard: PlannedShard, *, max_bytes: int) -> Iterator[Block]:
    """The shard's data as blocks of at most ``max_bytes`` bytes, in file order; the header is not part of it."""
    offset = len(shard.header)
    size, fills = 0, list[Fill]()
    for tensor in shard.tensors:
        itemsize = DTYPES[tensor.spec.dtype].itemsize
        cutting = cutting_of(tensor.spec.shape, tensor.copies, max(1, max_bytes // itemsize))
        if cutting.axis is not None:
            if fills:
                yield Block(offset, size, tuple(fills))
            yield from _tiles(tensor, cutting, cutting.axis)
            offset, size, fills = tensor.offset + tensor.spec.size_bytes, 0, []
            continue
        for slab, parts in parts_of_slabs(tensor.copies, boxes(tensor.spec.shape, cutting)):
            slab_bytes = slab.volume * itemsize
            if fills and size + slab_bytes > max_bytes:
                yield Block(offset, size, tuple(fills))
                offset, size, fills = offset + size, 0, []
            fills.append(Fill(size, slab, tensor.spec, parts))
            size += slab_bytes
    if fills:
        yield Block(offset, size, tuple(fills))


def _tiles(tensor: PlannedTensor, cutting: Cutting, axis: int) -> Iterator[Block]:
    shape, itemsize = tensor.spec.shape, DTYPES[tensor.spec.dtype].itemsize
    strides = row_major_strides(shape)
    for tile, parts in parts_of_slabs(tensor.copies, boxes(shape, cutting)):
        start = sum(at * stride for at, stride in zip(tile.offset, strides, strict=True))
        rows, pitch = tile.shape[axis], strides[axis]
        behind = sum(at * stride for at, stride in zip(tile.offset[axis + 1 :], strides[axis + 1 :], strict=True))
        is_last = behind + prod(tile.shape[axis + 1 :]) == pitch
        band = (tensor.offset + (start - behind) * itemsize, rows * pitch * itemsize) if is_last else (0, 0)
        yield Block(
            tensor.offset + start * itemsize,
            tile.volume * itemsize,
            (Fill(0, tile, tensor.spec, parts),),
            rows,
            pitch * itemsize,
            band,
        )
