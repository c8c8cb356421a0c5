"""The pieces of one tensor drawn over its global shape, each in the colour of the rank that holds it, as SVG text.

A vector is a bar, a matrix a field; of more axes all but the last are flattened into rows, and where that would take
too many fields, one slice of them is drawn. Flattened ranges are drawn as the boxes that they cover. Whatever a name
holds is text in the picture, never markup.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from ckptcore.rules.layout import parse_rank_file_name
from ckptcore.rules.tensors import Box, Piece, Shape

WIDTH = 480.0
_LOWEST, _HIGHEST, _BAR = 90.0, 340.0, 56.0
MOST_FIELDS = 3_000
_MOST_LINES = 64
_MOST_RANKS_NAMED = 6


@dataclass(frozen=True, slots=True)
class Holding:
    """A box and range of the tensor, the piece that a merge reads, and the ranks of its replicas."""

    piece: Piece
    rank: int
    replicas: tuple[int, ...]
    is_there: bool


@dataclass(frozen=True, slots=True)
class ShardingMap:
    """``svg`` is "" where the tensor has no element; ``words`` say what is drawn; ``holdings`` are what it is of."""

    svg: str
    words: str
    holdings: tuple[Holding, ...]


def sharding_map(shape: Shape, pieces: Sequence[Piece], absent: Collection[str] = ()) -> ShardingMap:
    """The map of a tensor of that shape. ``absent`` are the rank files that are missing or damaged."""
    holdings = tuple(_holdings(pieces, absent))
    if not prod(shape):
        return ShardingMap("", "It has no elements: there is nothing to draw.", holdings)
    part, fields, is_cut = _part(shape, holdings)
    rows, columns = _plane(part)
    height = _BAR if rows == 1 else min(_HIGHEST, max(_LOWEST, WIDTH * rows / columns))
    body = [f'<rect class="hole" x="0" y="0" width="{WIDTH:g}" height="{height:g}"/>']
    body += [_drawn(holding, boxes, part, height) for holding, boxes in fields]
    body += _borders(part, height)
    view = f'viewBox="-1 -1 {WIDTH + 2:g} {height + 2:g}"'
    svg = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {view} class="sharding" role="img" '
        f'aria-label="pieces by rank">{"".join(body)}</svg>'
    )
    cut = f" Only the first {len(fields):,} pieces are drawn." if is_cut else ""
    return ShardingMap(svg, _words(shape, part) + cut, holdings)


def hue_of(rank: int) -> float:
    """The hue of a rank, in degrees: neighbours differ much, and as many as wanted differ at all (golden angle)."""
    return rank * 137.508 % 360


def _rank_of(piece: Piece) -> int:
    parsed = parse_rank_file_name(piece.file)
    return -1 if parsed is None else parsed.rank


def _holdings(pieces: Sequence[Piece], absent: Collection[str]) -> Iterator[Holding]:
    places: dict[tuple[Box, tuple[int, int] | None], list[Piece]] = {}
    for piece in sorted(pieces, key=lambda piece: (piece.box, piece.flat or (), piece.replica or 0, _rank_of(piece))):
        places.setdefault((piece.box, piece.flat), []).append(piece)
    for first, *others in places.values():
        yield Holding(first, _rank_of(first), tuple(map(_rank_of, others)), first.file not in absent)


def _part(shape: Shape, holdings: Sequence[Holding]) -> tuple[Box, list[tuple[Holding, list[Box]]], bool]:
    """What is drawn of the tensor: all of it, or its first slices where all of it would be too many fields.

    The last two axes are always drawn, as far as that many fields go; the flag says that they did not.
    """
    fixed = 0
    while True:
        part = Box((0,) * len(shape), (1,) * fixed + shape[fixed:])
        found, count = list[tuple[Holding, list[Box]]](), 0
        for holding in holdings:
            boxes = [common for box in holding.piece.boxes() if (common := box.intersect(part)) is not None]
            count += sum(_run_count(box, part.shape) for box in boxes)
            if count > MOST_FIELDS:
                break
            if boxes:
                found.append((holding, boxes))
        if count <= MOST_FIELDS or fixed >= len(shape) - 2:
            return part, found, count > MOST_FIELDS
        fixed += 1


def _plane(part: Box) -> tuple[int, int]:
    """Rows and columns of what is drawn."""
    return (prod(part.shape[:-1]), part.shape[-1]) if part.shape else (1, 1)


def _run_axis(box: Box, shape: Shape) -> int:
    """The first leading axis from which on the box is a run of rows: all leading axes after it are full."""
    axis = max(0, len(shape) - 2)
    while axis > 0 and box.shape[axis] == shape[axis]:
        axis -= 1
    return axis


def _run_count(box: Box, shape: Shape) -> int:
    return prod(box.shape[: _run_axis(box, shape)]) if len(shape) > 1 else 1


def _runs(box: Box, shape: Shape) -> Iterator[tuple[int, int, int, int]]:
    """The box on the plane: first row, rows, first column, columns."""
    if not shape:
        yield 0, 1, 0, 1
        return
    if len(shape) == 1:
        yield 0, 1, box.offset[0], box.shape[0]
        return
    axis = _run_axis(box, shape)
    below = prod(shape[axis + 1 : -1])
    length = box.shape[axis] * below
    outer = [range(start, start + extent) for start, extent in zip(box.offset[:axis], box.shape[:axis], strict=True)]
    for place in itertools.product(*outer):
        row = 0
        for at, extent in zip(place, shape[:axis], strict=True):
            row = row * extent + at
        yield (row * shape[axis] + box.offset[axis]) * below, length, box.offset[-1], box.shape[-1]


def _drawn(holding: Holding, boxes: Sequence[Box], part: Box, height: float) -> str:
    rows, columns = _plane(part)
    places, label = list[str](), ""
    for row, high, column, wide in (run for box in boxes for run in _runs(box, part.shape)):
        x, y = WIDTH * column / columns, height * row / rows
        width, tall = WIDTH * wide / columns, height * high / rows
        places.append(f"M{x:.2f} {y:.2f}h{width:.2f}v{tall:.2f}h-{width:.2f}z")
        if not label and width > 24 and tall > 15:
            more = f" +{len(holding.replicas)}" if holding.replicas and width > 48 else ""
            label = f'<text x="{x + width / 2:.1f}" y="{y + tall / 2 + 4:.1f}">{holding.rank}{more}</text>'
    look = f'class="piece" style="--hue:{hue_of(holding.rank):.0f}"' if holding.is_there else 'class="piece absent"'
    title = html.escape(described(holding))
    return f'<g {look}><title>{title}</title><path d="{"".join(places)}"/>{label}</g>'


def described(holding: Holding) -> str:
    """A holding in one line: which rank, which file, which box, and who has it too."""
    piece = holding.piece
    flat = "" if piece.flat is None else f", elements {piece.flat[0]:,} to {piece.flat[1]:,} of it flattened"
    text = f"rank {holding.rank}: {piece.box}{flat}, in {piece.file}"
    if holding.replicas:
        named = ", ".join(map(str, holding.replicas[:_MOST_RANKS_NAMED]))
        more = len(holding.replicas) - _MOST_RANKS_NAMED
        text += f"; replicas of rank {named}{f' and {more} more' if more > 0 else ''}"
    return text if holding.is_there else f"{text}, which is missing or damaged"


def _borders(part: Box, height: float) -> Iterator[str]:
    """Lines between the slices of the first axis, where there are more axes than two and not too many slices."""
    slices = next((extent for extent in part.shape[:-2] if extent > 1), 1)
    if 1 < slices <= _MOST_LINES:
        places = "".join(f"M0 {height * at / slices:.2f}h{WIDTH:g}" for at in range(1, slices))
        yield f'<path class="border" d="{places}"/>'


def _words(shape: Shape, part: Box) -> str:
    if not shape:
        return "A single number."
    if len(shape) == 1:
        return f"{shape[0]:,} elements from left to right."
    drawn = (
        "" if part.shape == shape else f"The slice {_slice(part, shape)} alone: all of them would be too many fields. "
    )
    if len(shape) == 2:
        return f"{shape[0]:,} rows down, {shape[1]:,} columns across."
    flattened = " × ".join(f"{extent:,}" for extent in part.shape[:-1])
    return f"{drawn}{flattened} rows down, all axes but the last flattened; {shape[-1]:,} columns across."


def _slice(part: Box, shape: Shape) -> str:
    places = ("0" if drawn == 1 < whole else ":" for drawn, whole in zip(part.shape, shape, strict=True))
    return f"[{', '.join(places)}]"
