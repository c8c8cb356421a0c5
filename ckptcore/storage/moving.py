"""Move elements from what was read to where they belong: the same bits, turned or cast on the way.

Everything is done in tiles that stay in a core's cache. A turned tile is first packed: rows whose distance is a power
of two would otherwise fall on few cache lines, which costs numpy's transposing assignment three quarters of its speed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]
Cast = Callable[[Array], tuple[Array, int]]

TILE_ELEMENTS = 1 << 15


def move(source: Array, target: Array, cast: Cast | None = None) -> int:
    """Write ``source`` to ``target``, of the same shape, and say how many finite values ``cast`` made infinite."""
    source, target = np.atleast_1d(source), np.atleast_1d(target)
    if cast is None and not _is_turned(source, target):
        target[...] = source
        return 0
    # Axes as they lie in the source, so that packing and casting run along its rows.
    order = sorted(range(source.ndim), key=lambda axis: -source.strides[axis])
    source, target = source.transpose(order), target.transpose(order)
    overflows = 0
    for tile in _tiles(source.shape):
        packed = np.ascontiguousarray(source[tile])
        if cast is not None:
            packed, found = cast(packed)
            overflows += found
        target[tile] = packed
    return overflows


def _is_turned(source: Array, target: Array) -> bool:
    """Whether neighbours in the source are not neighbours in the target, and there are enough of them to matter."""
    if source.ndim < 2 or source.size < TILE_ELEMENTS:
        return False
    return _nearest(source) != _nearest(target)


def _nearest(array: Array) -> int:
    return min(range(array.ndim), key=lambda axis: array.strides[axis])


def _tiles(shape: tuple[int, ...]) -> Iterator[tuple[slice, ...]]:
    """Slices of at most ``TILE_ELEMENTS`` elements, halved along the longest axis, so that tiles are long on all."""
    waiting = [(tuple(0 for _ in shape), shape)]
    while waiting:
        low, high = waiting.pop()
        extents = [end - start for start, end in zip(low, high, strict=True)]
        if np.prod(extents, dtype=np.int64) <= TILE_ELEMENTS:
            yield tuple(map(slice, low, high))
            continue
        axis = max(range(len(extents)), key=extents.__getitem__)
        # A multiple of the elements of a cache line, so that no line is shared by two tiles.
        middle = low[axis] + max(1, (extents[axis] // 2 + 31) // 32 * 32 if extents[axis] > 64 else extents[axis] // 2)
        waiting.append(((*low[:axis], middle, *low[axis + 1 :]), high))
        waiting.append((low, (*high[:axis], middle, *high[axis + 1 :])))
