"""How a tensor is cut into boxes of bounded size: runs of consecutive bytes, or tiles where it is stored turned.

A run of a transposed tensor takes a few elements of every stored row. Where a whole stored run fits into a box with
the rows that it becomes, boxes are cut along the pieces; where it does not, a box is a tile that is long on both
sides, so that neither reading nor writing falls apart into calls of a few bytes and no page is read many times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from math import isqrt, prod

from ckptcore.rules.merge_plan import Copy
from ckptcore.rules.tensors import Box, Shape

READ_TO_WRITE = 4
"""How much longer than its written runs the read runs of a tile are: the page cache gathers what is written."""


@dataclass(frozen=True, slots=True)
class Cutting:
    """Either runs of at most ``run`` elements, or (``axis`` given) tiles of ``rows`` along that axis and ``run``
    elements of the flattening of the axes after it. Bands of tiles begin at multiples of ``stride`` rows."""

    run: int
    axis: int | None = None
    rows: int = 0
    stride: int = 0


def cutting_of(shape: Shape, copies: Sequence[Copy], max_elements: int) -> Cutting:
    """The cutting that reads and writes in the longest runs that ``max_elements`` a box allow."""
    largest = max(copies, key=lambda copy: copy.target.volume, default=None)
    axis = None if largest is None else largest.turned_axis
    if largest is None or axis is None or prod(shape) <= max_elements:
        return Cutting(max_elements)
    behind = prod(shape[axis + 1 :])
    stored = largest.target.shape[axis]
    fitting = max_elements // behind
    if fitting >= stored:
        return Cutting(fitting // stored * stored * behind)
    rows = _evenly(stored, min(stored, max_elements, isqrt(READ_TO_WRITE * max_elements)))
    if rows <= fitting:
        return Cutting(_evenly(stored, fitting) * behind)
    return Cutting(_evenly(behind, max(1, max_elements // rows)), axis, rows, stored)


def _evenly(extent: int, at_most: int) -> int:
    """The size of equal parts of ``extent`` of at most ``at_most`` each."""
    return -(-extent // -(-extent // at_most))


def boxes(shape: Shape, cutting: Cutting) -> Iterator[Box]:
    """The boxes that tile ``shape``, ascending by offset: a tile's band before the next one."""
    if cutting.axis is None:
        yield from slabs(shape, cutting.run)
        return
    axis, extent = cutting.axis, shape[cutting.axis]
    for lead in product(*(range(n) for n in shape[:axis])):
        for start in range(0, extent, cutting.stride):
            end = min(extent, start + cutting.stride)
            for row in range(start, end, cutting.rows):
                for slab in slabs(shape[axis + 1 :], cutting.run):
                    rows = min(cutting.rows, end - row)
                    yield Box((*lead, row, *slab.offset), (*(1 for _ in lead), rows, *slab.shape))


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
