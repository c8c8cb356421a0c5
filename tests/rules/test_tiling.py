"""The geometry against counting: every element of a small region, in how many boxes it lies."""

from __future__ import annotations

from itertools import pairwise, product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.tensors import Box, Shape
from ckptcore.rules.tiling import Overlap, Survey, is_grid, survey
from tests.formats.bytes_under_test import counted_calls

SHAPES = st.lists(st.integers(0, 5), max_size=3).map(tuple)


@st.composite
def boxes_within(draw: st.DrawFn, shape: Shape) -> Box:
    edges = [sorted((draw(st.integers(0, extent)), draw(st.integers(0, extent)))) for extent in shape]
    return Box(tuple(low for low, _ in edges), tuple(high - low for low, high in edges))


@st.composite
def regions_with_boxes(draw: st.DrawFn) -> tuple[Shape, list[Box]]:
    shape = draw(SHAPES)
    return shape, draw(st.lists(boxes_within(shape), max_size=7))


def elements(box: Box) -> set[Shape]:
    return set(product(*(range(low, high) for low, high in zip(box.offset, box.end, strict=True))))


@given(regions_with_boxes())
def test_a_survey_finds_what_counting_finds(region: tuple[Shape, list[Box]]) -> None:
    shape, boxes = region
    holders: dict[Shape, tuple[int, ...]] = {
        element: tuple(i for i, box in enumerate(boxes) if element in elements(box))
        for element in elements(Box.whole(shape))
    }
    found = survey(shape, boxes)
    assert found.is_finished

    holes = [element for hole in found.holes for element in elements(hole)]
    assert sorted(holes) == sorted(element for element, held in holders.items() if not held)
    overlaps = [(element, overlap.members) for overlap in found.overlaps for element in elements(overlap.box)]
    assert sorted(overlaps) == sorted((element, held) for element, held in holders.items() if len(held) > 1)
    assert found.is_exact == all(len(held) == 1 for held in holders.values())


@given(regions_with_boxes())
def test_a_grid_is_a_tiling(region: tuple[Shape, list[Box]]) -> None:
    shape, boxes = region
    if is_grid(shape, boxes):
        assert survey(shape, boxes).is_exact


@given(st.data())
def test_the_cells_of_any_grid_in_any_order_are_a_grid(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 6), max_size=3).map(tuple))
    cuts = [sorted({0, extent, *data.draw(st.lists(st.integers(0, extent), max_size=3))}) for extent in shape]
    spans = [list(pairwise(edges)) for edges in cuts]
    cells = [Box(tuple(low for low, _ in cell), tuple(high - low for low, high in cell)) for cell in product(*spans)]
    cells = data.draw(st.permutations(cells))
    assert is_grid(shape, cells)
    assert survey(shape, cells) == Survey((), ())
    assert not is_grid(shape, cells[1:])
    assert not is_grid(shape, [*cells, cells[0]])


def pinwheel(row: int, column: int) -> list[Box]:
    """Five boxes that fill 3x3, of which no straight cut separates any two."""
    return [
        Box((row, column), (1, 2)),
        Box((row, column + 2), (2, 1)),
        Box((row + 1, column), (2, 1)),
        Box((row + 2, column + 1), (1, 2)),
        Box((row + 1, column + 1), (1, 1)),
    ]


def test_boxes_that_turn_around_each_other_tile() -> None:
    boxes = [box for row in range(0, 30, 3) for column in range(0, 30, 3) for box in pinwheel(row, column)]
    assert survey((30, 30), boxes).is_exact
    assert survey((3, 3), pinwheel(0, 0)[:4]).holes == (Box((1, 1), (1, 1)),)


def test_a_hole_or_overlap_seen_in_parts_is_one_box() -> None:
    boxes = [Box((0, 0), (6, 2)), Box((0, 6), (3, 2)), Box((3, 6), (3, 2)), Box((2, 0), (2, 8))]
    found = survey((6, 8), boxes)
    assert found.holes == (Box((0, 2), (2, 4)), Box((4, 2), (2, 4)))
    assert found.overlaps == (
        Overlap(Box((2, 0), (2, 2)), (0, 3)),
        Overlap(Box((2, 6), (1, 2)), (1, 3)),
        Overlap(Box((3, 6), (1, 2)), (2, 3)),
    )


def test_work_is_bounded_and_says_so() -> None:
    # Each box overlaps hundreds: naming every overlap would take millions of steps.
    staircase = [Box((i, 0), (800, 8)) for i in range(3_000)]
    found = survey((3_799, 8), staircase)
    assert not found.is_finished
    assert not found.is_exact

    # Each cut takes off one box of two thousand.
    nested = [
        Box((i, i), (1, 4_000 - i)) if turn == 0 else Box((i + 1, i), (3_999 - i, 1))
        for i in range(1_000)
        for turn in (0, 1)
    ]
    found = survey((4_000, 4_000), nested)
    assert not found.is_finished


def test_merging_holes_is_bounded_work() -> None:
    # As many passes over thousands of holes as there are pairs of axes would be millions of steps.
    boxes = [Box((i,) * 32, (1,) * 32) for i in range(60)]
    with counted_calls() as calls:
        found = survey((60,) * 32, boxes)
    assert len(found.holes) > 2_000
    assert calls.made < 20 * (20_000 + 64 * len(boxes))


@pytest.mark.parametrize("shape", [(4_096,), (64, 64), (16, 16, 16)])
def test_a_large_mesh_needs_no_more_work_than_is_allowed(shape: Shape) -> None:
    cells = [Box(tuple(int(i) for i in index), (1,) * len(shape)) for index in np.ndindex(*shape)]
    assert survey(shape, cells).is_exact
    assert survey(shape, cells[:77] + cells[78:]) == Survey((cells[77],), ())
