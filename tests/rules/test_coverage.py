"""Holes, overlaps and replicas of a tensor's pieces, for any way of cutting it up."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from hypothesis import assume, given
from hypothesis import strategies as st

from ckptcore.rules.coverage import MOST_REPORTED, check_coverage, primary_pieces
from ckptcore.rules.tensors import Box, IndexedTensor, Piece, Shape
from ckptcore.rules.tiling import survey

SHAPES = st.lists(st.integers(1, 9), max_size=4).map(tuple)


def tensor(shape: Shape, *pieces: Piece) -> IndexedTensor:
    return IndexedTensor("w", "float32", shape, pieces)


def piece(
    offset: Shape, shape: Shape, rank: int = 0, flat: tuple[int, int] | None = None, replica: int | None = None
) -> Piece:
    return Piece(Box(offset, shape), f"{rank}_0.distcp", flat, replica)


def found(checked: IndexedTensor) -> list[str]:
    return [str(issue) for issue in check_coverage(checked)]


def twice(box: str) -> str:
    return f"tensor 'w': {box} is saved by 2 pieces: expected one"


@st.composite
def cut_up(draw: st.DrawFn, box: Box, depth: int = 5) -> list[Box]:
    """A random guillotine partition of the box."""
    axes = [axis for axis, extent in enumerate(box.shape) if extent > 1]
    if not depth or not axes or draw(st.booleans()):
        return [box]
    axis = draw(st.sampled_from(axes))
    at = draw(st.integers(1, box.shape[axis] - 1))
    low = Box(box.offset, (*box.shape[:axis], at, *box.shape[axis + 1 :]))
    offset = (*box.offset[:axis], box.offset[axis] + at, *box.offset[axis + 1 :])
    high = Box(offset, (*box.shape[:axis], box.shape[axis] - at, *box.shape[axis + 1 :]))
    return draw(cut_up(low, depth - 1)) + draw(cut_up(high, depth - 1))


@st.composite
def tiled_tensors(draw: st.DrawFn) -> IndexedTensor:
    """A partition of a tensor, some of whose boxes are saved as flattened ranges."""
    shape = draw(SHAPES)
    pieces: list[Piece] = []
    for box in draw(cut_up(Box.whole(shape))):
        if draw(st.booleans()):
            pieces.append(Piece(box, f"{len(pieces)}_0.distcp"))
            continue
        cuts = sorted({0, box.volume, *draw(st.lists(st.integers(0, box.volume), max_size=3))})
        for start, stop in pairwise(cuts):
            pieces.append(Piece(box, f"{len(pieces)}_0.distcp", (start, stop)))
    return IndexedTensor("w", "float32", shape, tuple(draw(st.permutations(pieces))))


@given(tiled_tensors())
def test_any_partition_is_whole(whole: IndexedTensor) -> None:
    assert check_coverage(whole) == ()
    assert sorted(primary_pieces(whole), key=str) == sorted(whole.pieces, key=str)


@given(tiled_tensors(), st.data())
def test_a_piece_that_is_gone_is_a_hole(whole: IndexedTensor, data: st.DataObject) -> None:
    gone = data.draw(st.integers(0, len(whole.pieces) - 1))
    kept = whole.pieces[:gone] + whole.pieces[gone + 1 :]
    issues = check_coverage(replace(whole, pieces=kept))
    holes = survey(whole.shape, [box for other in kept for box in other.boxes()]).holes
    lost = list(whole.pieces[gone].boxes())
    assert {issue.code for issue in issues} == {"hole"}
    assert sum(hole.volume for hole in holes) == sum(box.volume for box in lost)
    assert {f"nobody saved {hole}" for hole in holes[:MOST_REPORTED]} <= {issue.what for issue in issues}


@given(tiled_tensors(), st.data())
def test_a_piece_that_moved_is_found(whole: IndexedTensor, data: st.DataObject) -> None:
    moved = data.draw(st.sampled_from(whole.pieces))
    offset = tuple(data.draw(st.integers(0, n - m)) for n, m in zip(whole.shape, moved.box.shape, strict=True))
    assume(offset != moved.box.offset)
    others = tuple(other for other in whole.pieces if other is not moved)
    pieces = (*others, replace(moved, box=Box(offset, moved.box.shape)))
    assert {"hole"} <= {issue.code for issue in check_coverage(replace(whole, pieces=pieces))}


@given(tiled_tensors(), st.data())
def test_a_piece_saved_twice_is_found_unless_it_is_a_replica(whole: IndexedTensor, data: st.DataObject) -> None:
    again = data.draw(st.sampled_from(whole.pieces))
    doubled = replace(whole, pieces=(*whole.pieces, replace(again, file="99_0.distcp")))
    assert [issue.code for issue in check_coverage(doubled)] == ["saved-twice"]
    assert "99_0.distcp" in str(check_coverage(doubled)[0])

    copies = replace(whole, pieces=(replace(again, file="99_0.distcp", replica=1), *whole.pieces))
    assert check_coverage(copies) == ()
    assert set(primary_pieces(copies)) == set(whole.pieces)


def test_the_message_names_the_box() -> None:
    assert found(tensor((16, 4), piece((0, 0), (8, 4)))) == ["tensor 'w': nobody saved [8:16, 0:4]"]
    assert found(tensor((5, 3), piece((0, 0), (3, 3)), piece((2, 0), (3, 3), rank=1))) == [
        f"{twice('[2:3, 0:3]')}, found [0:3, 0:3] in 0_0.distcp, [2:5, 0:3] in 1_0.distcp"
    ]


def test_flattened_ranges_are_parts_of_their_box() -> None:
    box = ((0, 2), (3, 4))
    left = piece((0, 0), (3, 2))
    assert found(tensor((3, 6), left, piece(*box, 1, flat=(0, 5)), piece(*box, 2, flat=(5, 12)))) == []
    assert found(tensor((3, 6), left, piece(*box, 1, flat=(0, 5)), piece(*box, 2, flat=(7, 12)))) == [
        "tensor 'w': nobody saved [1:2, 3:5]"
    ]
    assert found(tensor((3, 6), left, piece(*box, 1, flat=(0, 6)), piece(*box, 2, flat=(5, 12)))) == [
        f"{twice('[1:2, 3:4]')}, found [0:3, 2:6] in 1_0.distcp, [0:3, 2:6] in 2_0.distcp"
    ]


def test_scalars_and_empty_tensors() -> None:
    assert found(tensor((), piece((), ()))) == []
    assert found(tensor((), piece((), (), flat=(0, 1)))) == []
    assert found(tensor((), piece((), (), flat=(0, 0)))) == ["tensor 'w': nobody saved []"]
    assert found(tensor((0, 4), piece((0, 0), (0, 4)))) == []
    assert found(tensor((0, 4))) == []
    assert found(tensor((2, 4), piece((0, 0), (2, 4)), piece((2, 0), (0, 4), 1), piece((2, 0), (0, 4), 2))) == []


def test_replicas_in_other_cuts_are_no_replicas() -> None:
    halves = piece((0,), (2,), 0, replica=0), piece((2,), (2,), 1, replica=0)
    assert [issue.code for issue in check_coverage(tensor((4,), *halves, piece((0,), (4,), 2, replica=1)))] == [
        "overlap"
    ] * 2


def test_the_primary_piece_is_the_lowest_replica_then_the_first_file() -> None:
    rows = [
        piece((row, 0), (1, 4), rank, replica=replica) for row in (1, 0) for rank, replica in ((5, 1), (3, 2), (7, 0))
    ]
    assert primary_pieces(tensor((2, 4), *rows)) == (rows[5], rows[2])
    unmarked = piece((0,), (4,), 9), piece((0,), (4,), 2)
    assert primary_pieces(tensor((4,), *unmarked)) == (unmarked[1],)


def test_a_report_stays_short_and_counts_the_rest() -> None:
    every_other = [piece((2 * row,), (1,), row) for row in range(20)]
    messages = found(tensor((40,), *every_other))
    assert len(messages) == MOST_REPORTED + 1
    assert messages[-1] == "tensor 'w': nobody saved 12 more boxes of it"

    growing = [piece((0,), (extent,), extent) for extent in range(1, 13)]
    first, *_, last = check_coverage(tensor((12,), *growing))
    assert first.what == "[0:1] is saved by 12 pieces"
    assert first.found.endswith("[0:8] in 8_0.distcp, 4 more")
    assert last.what == "3 more boxes of it are saved twice"


def test_disorder_that_was_not_settled_is_refused() -> None:
    staircase = [piece((row, 0), (800, 8), row) for row in range(3_000)]
    assert check_coverage(tensor((3_799, 8), *staircase))[-1].code == "coverage-unsettled"
