"""The map of a tensor's pieces: that what is drawn covers what the pieces cover, cell by cell."""

from __future__ import annotations

import itertools
import re
from math import prod
from xml.etree import ElementTree

import pytest

from ckptcore.rules.sharding_map import MOST_FIELDS, WIDTH, hue_of, sharding_map
from ckptcore.rules.tensors import Box, Piece, Shape

_FIELD = re.compile(r"M([0-9.]+) ([0-9.]+)h([0-9.]+)v([0-9.]+)h-[0-9.]+z")
_SVG = "{http://www.w3.org/2000/svg}"


def piece(
    rank: int, offset: Shape, shape: Shape, flat: tuple[int, int] | None = None, replica: int | None = None
) -> Piece:
    return Piece(Box(offset, shape), f"{rank}_0.distcp", flat, replica)


def drawn(shape: Shape, pieces: list[Piece]) -> dict[tuple[int, int], str]:
    """What is drawn at each row and column of the plane: the start of the title of the piece."""
    svg = ElementTree.fromstring(sharding_map(shape, pieces).svg)
    height = float(svg.attrib["viewBox"].split()[3]) - 2
    rows, columns = (prod(shape[:-1]), shape[-1]) if shape else (1, 1)
    found: dict[tuple[int, int], str] = {}
    for group in svg.iter(f"{_SVG}g"):
        path, title = group.find(f"{_SVG}path"), group.find(f"{_SVG}title")
        assert path is not None
        assert title is not None
        for x, y, wide, high in (map(float, match) for match in _FIELD.findall(path.attrib["d"])):
            for row, column in itertools.product(range(rows), range(columns)):
                at_x, at_y = WIDTH * (column + 0.5) / columns, height * (row + 0.5) / rows
                if x < at_x < x + wide and y < at_y < y + high:
                    assert (row, column) not in found
                    found[row, column] = str(title.text).partition(":")[0]
    return found


def expected(shape: Shape, pieces: list[Piece]) -> dict[tuple[int, int], str]:
    """The same from the boxes, element by element."""
    found = {}
    for each in pieces:
        for box in each.boxes():
            for place in itertools.product(*(range(o, o + n) for o, n in zip(box.offset, box.shape, strict=True))):
                row = 0
                for at, extent in zip(place[:-1], shape[:-1], strict=True):
                    row = row * extent + at
                found[row, place[-1] if place else 0] = f"rank {each.file.partition('_')[0]}"
    return found


@pytest.mark.parametrize(
    ("shape", "pieces"),
    [
        ((), [piece(0, (), ())]),
        ((8,), [piece(0, (0,), (3,)), piece(1, (3,), (5,))]),
        ((4, 6), [piece(0, (0, 0), (4, 2)), piece(1, (0, 2), (2, 4)), piece(2, (2, 2), (2, 4))]),
        ((4, 6), [piece(0, (0, 0), (4, 6), (0, 9)), piece(1, (0, 0), (4, 6), (9, 24))]),
        ((3, 4, 5), [piece(rank, (0, rank, 0), (3, 1, 5)) for rank in range(4)]),
        ((3, 4, 5), [piece(rank, (0, 0, rank), (3, 4, 1)) for rank in range(5)]),
        ((2, 3, 4, 2), [piece(0, (0, 0, 0, 0), (2, 3, 2, 2)), piece(1, (0, 0, 2, 0), (2, 3, 2, 2))]),
        ((2, 3, 4), [piece(0, (0, 0, 0), (2, 3, 4), (0, 7)), piece(1, (0, 0, 0), (2, 3, 4), (7, 24))]),
    ],
)
def test_what_is_drawn_is_what_the_pieces_cover(shape: Shape, pieces: list[Piece]) -> None:
    assert drawn(shape, pieces) == expected(shape, pieces)


def test_a_hole_stays_empty() -> None:
    pieces = [piece(0, (0, 0), (2, 2))]
    assert len(drawn((4, 4), pieces)) == 4


def test_replicas_are_one_holding() -> None:
    pieces = [piece(rank, (0, 0), (4, 4), replica=rank) for rank in range(3)]
    found = sharding_map((4, 4), pieces)
    (holding,) = found.holdings
    assert (holding.rank, holding.replicas) == (0, (1, 2))
    assert "replicas of rank 1, 2" in found.svg


def test_a_missing_file_is_drawn_another_way_and_said() -> None:
    found = sharding_map((4,), [piece(0, (0,), (2,)), piece(1, (2,), (2,))], {"1_0.distcp"})
    assert [holding.is_there for holding in found.holdings] == [True, False]
    assert found.svg.count("piece absent") == 1
    assert "missing or damaged" in found.svg


def test_a_tensor_without_elements_has_no_picture() -> None:
    assert sharding_map((0, 3), [piece(0, (0, 0), (0, 3))]).svg == ""


def test_too_many_fields_give_a_slice_and_say_so() -> None:
    shape = (MOST_FIELDS, 2, 4)
    found = sharding_map(shape, [piece(0, (0, 0, 0), (MOST_FIELDS, 1, 4)), piece(1, (0, 1, 0), (MOST_FIELDS, 1, 4))])
    assert "The slice [0, :, :] alone" in found.words
    assert len(_FIELD.findall(found.svg)) == 2


def test_more_pieces_than_fields_are_cut_and_said() -> None:
    count = MOST_FIELDS + 5
    found = sharding_map((count, 2), [piece(rank, (rank, 0), (1, 2)) for rank in range(count)])
    assert len(_FIELD.findall(found.svg)) <= MOST_FIELDS
    assert f"Only the first {MOST_FIELDS:,} pieces are drawn." in found.words


def test_names_are_text() -> None:
    hostile = Piece(Box((0,), (1,)), '<script>&".distcp')
    svg = sharding_map((1,), [hostile]).svg
    assert "<script>" not in svg
    ElementTree.fromstring(svg)


def test_neighbouring_ranks_differ_in_colour() -> None:
    hues = [hue_of(rank) for rank in range(64)]
    assert len(set(hues)) == 64
    assert all(abs(a - b) > 40 for a, b in itertools.pairwise(hues))
