"""Do boxes tile a region exactly: which parts are in none of them, and which in several.

Pure geometry, exact for boxes of any arrangement, and quick for those that occur. Straight cuts through the whole
region (every mesh of shards, every flattened range) take it apart in about ``n log n`` per axis. Where no such cut
exists (boxes that overlap, or turn around each other) the region is sliced at every edge along one axis, which costs
up to ``n`` squared; work is therefore bounded, and what was left unexamined is said. What a box stands for is
``coverage``'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ckptcore.rules.tensors import Box, Shape


@dataclass(frozen=True, slots=True)
class Overlap:
    """A box that lies in several of the boxes examined, and their positions in the sequence, ascending."""

    box: Box
    members: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Survey:
    """Every hole and overlap, sorted. ``is_finished`` is False where the bound on work was reached before the end.

    Neighbouring boxes are one where finding that out does not cost too much.
    """

    holes: tuple[Box, ...]
    overlaps: tuple[Overlap, ...]
    is_finished: bool = True

    @property
    def is_exact(self) -> bool:
        """Whether the boxes tile the region."""
        return self.is_finished and not self.holes and not self.overlaps


def is_grid(shape: Shape, boxes: Sequence[Box]) -> bool:
    """Whether the boxes are every cell of a grid laid over ``shape``, each once. False says nothing.

    This is how nearly all tensors are saved (whole, along one axis, over a mesh); it decides them without taking
    anything apart.
    """
    if len({box.offset for box in boxes}) != len(boxes):
        return False
    cells = 1
    offsets_by_axis = zip(*[box.offset for box in boxes], strict=True)
    extents_by_axis = zip(*[box.shape for box in boxes], strict=True)
    for limit, offsets, extents in zip(shape, offsets_by_axis, extents_by_axis, strict=False):
        spans = set(zip(offsets, extents, strict=True))
        position = 0
        for offset, extent in sorted(spans):
            if offset != position:
                return False
            position += extent
        if position != limit:
            return False
        cells *= len(spans)
    # Distinct offsets, as many as the grid has cells: none is missing.
    return cells == len(boxes)


def survey(shape: Shape, boxes: Sequence[Box]) -> Survey:
    """What the boxes leave out of, and cover twice in, a region of that shape. They must lie inside it."""
    return _Surveyor(boxes).survey(shape)


@dataclass(frozen=True, slots=True)
class _Task:
    """A part of the region, the boxes that reach into it, and the axes along which they may not fill it."""

    low: Shape
    high: Shape
    members: list[int]
    axes: tuple[int, ...]

    def between(self, axis: int, low: int, high: int) -> tuple[Shape, Shape]:
        lows, highs = self.low, self.high
        return (*lows[:axis], low, *lows[axis + 1 :]), (*highs[:axis], high, *highs[axis + 1 :])


class _Surveyor:
    def __init__(self, boxes: Sequence[Box]) -> None:
        self._lows = [box.offset for box in boxes]
        self._highs = [box.end for box in boxes]
        self._members = [i for i, box in enumerate(boxes) if box.volume]
        # Boxes that tile are visited a few times per axis; the rest is for naming what is wrong in those that do not.
        self._work_left = 20_000 + 64 * len(boxes)
        self._merging_left = self._work_left
        self._holes: list[Box] = []
        self._overlaps: dict[tuple[int, ...], list[Box]] = {}

    def survey(self, shape: Shape) -> Survey:
        # A stack of its own, since a partition may be nested as deep as it has boxes.
        tasks = [_Task((0,) * len(shape), shape, self._members, tuple(range(len(shape))))] if all(shape) else []
        while tasks and self._work_left > 0:
            task = tasks.pop()
            if not task.members:
                self._holes.append(_box(task.low, task.high))
                continue
            tasks.extend(self._cut(task) or self._slice(task))
        overlaps = (Overlap(box, members) for members, found in self._overlaps.items() for box in self._merged(found))
        return Survey(
            tuple(self._merged(self._holes)),
            tuple(sorted(overlaps, key=lambda overlap: (overlap.box, overlap.members))),
            is_finished=not tasks,
        )

    def _cut(self, task: _Task) -> list[_Task]:
        """The parts between the straight cuts across the first axis that has any."""
        for axis in task.axes:
            self._work_left -= len(task.members)
            spans = self._spans(task, axis)
            if len(spans) > 1:
                return [_Task(*task.between(axis, low, high), members, task.axes) for low, high, members in spans]
        return []

    def _spans(self, task: _Task, axis: int) -> list[tuple[int, int, list[int]]]:
        """The region's axis as intervals that no box crosses the ends of, in order, each with its boxes."""
        lows, highs = self._lows, self._highs
        spans: list[tuple[int, int, list[int]]] = []
        start = end = task.low[axis]
        members: list[int] = []
        for member in sorted(task.members, key=lambda i: lows[i][axis]):
            low = lows[member][axis]
            if low >= end:
                if members:
                    spans.append((start, end, members))
                if low > end:
                    spans.append((end, low, []))
                start, members = low, []
            members.append(member)
            if highs[member][axis] > end:
                end = highs[member][axis]
        spans.append((start, end, members))
        if end < task.high[axis]:
            spans.append((end, task.high[axis], []))
        return spans

    def _slice(self, task: _Task) -> Iterator[_Task]:
        """Slabs between all edges of the boxes along one axis; none where the boxes all fill the region."""
        lows, highs = self._lows, self._highs
        edges_by_axis = {
            axis: {lows[i][axis] for i in task.members} | {highs[i][axis] for i in task.members} for axis in task.axes
        }
        axes = tuple(axis for axis in task.axes if len(edges_by_axis[axis]) > 2)
        if not axes:
            if len(task.members) > 1:
                self._overlaps.setdefault(tuple(sorted(task.members)), []).append(_box(task.low, task.high))
            return
        axis = min(axes, key=lambda axis: len(edges_by_axis[axis]))
        remaining = tuple(other for other in axes if other != axis)
        edges = sorted(edges_by_axis[axis])
        for low, high in pairwise(edges):
            self._work_left -= len(task.members)
            if self._work_left <= 0:
                # Left on the stack as work that was not done.
                yield task
                return
            members = [i for i in task.members if lows[i][axis] <= low and highs[i][axis] >= high]
            yield _Task(*task.between(axis, low, high), members, remaining)

    def _merged(self, boxes: list[Box]) -> list[Box]:
        """The same elements in as few boxes as the work that is left for it finds. Sorted."""
        rank = len(boxes[0].shape) if boxes else 0
        axes = [axis for axis in range(rank) if len({box.offset[axis] for box in boxes}) > 1]
        # A merge along one axis makes room for another along an axis that was looked at before.
        count = len(boxes) + 1
        while len(boxes) < count:
            count = len(boxes)
            for axis in axes:
                self._merging_left -= len(boxes)
                if self._merging_left < 0:
                    return sorted(boxes)
                boxes = _merged_along(boxes, axis)
        return sorted(boxes)


def _box(low: Shape, high: Shape) -> Box:
    return Box(low, tuple(h - o for o, h in zip(low, high, strict=True)))


def _merged_along(boxes: list[Box], axis: int) -> list[Box]:
    """The same elements in fewer boxes: neighbours along the axis that agree on all others become one."""
    merged: list[Box] = []
    for box in sorted(boxes, key=lambda box: (_across(box, axis), box.offset[axis])):
        last = merged[-1] if merged else box
        follows = box.offset[axis] == last.offset[axis] + last.shape[axis]
        if follows and _across(box, axis) == _across(last, axis):
            shape = (*last.shape[:axis], last.shape[axis] + box.shape[axis], *last.shape[axis + 1 :])
            merged[-1] = Box(last.offset, shape)
        else:
            merged.append(box)
    return merged


def _across(box: Box, axis: int) -> tuple[Shape, Shape]:
    """What a box is on all other axes."""
    return box.offset[:axis] + box.offset[axis + 1 :], box.shape[:axis] + box.shape[axis + 1 :]
