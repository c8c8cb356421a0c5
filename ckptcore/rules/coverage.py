"""Do the pieces of a tensor make the whole tensor: nothing that nobody saved, nothing saved twice.

Owns what a hole, an overlap and a replica are. Pieces of the same box and range are copies of each other only where
Paddle says so by distinct replica ids (``save_replicas=True``); without, one of them may be another save's, and
which is right cannot be known. The geometry is ``tiling``'s.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from ckptcore.rules.issues import Issue
from ckptcore.rules.tensors import Box, IndexedTensor, Piece
from ckptcore.rules.tiling import Overlap, is_grid, survey

MOST_REPORTED = 8
"""How many holes, and how many overlaps, of one tensor are named one by one; the others are counted."""


class Coverage:
    """Checks tensor after tensor, and those that are cut alike, as the layers of a model are, only once."""

    def __init__(self) -> None:
        self._proven: dict[object, IndexedTensor] = {}

    def check(self, tensor: IndexedTensor) -> tuple[Issue, ...]:
        """As :func:`check_coverage`."""
        # Boxes by identity, which the index gives to equal ones. What is kept keeps them, so that none gets another.
        cut = tensor.shape, tuple([(id(piece.box), piece.flat, piece.replica) for piece in tensor.pieces])
        if cut in self._proven:
            return ()
        issues = check_coverage(tensor)
        if not issues:
            self._proven[cut] = tensor
        return issues


def check_coverage(tensor: IndexedTensor) -> tuple[Issue, ...]:
    """Every hole and overlap of the tensor. Its pieces must lie inside its shape, as those of an ``Index`` do."""
    whole_boxes = _whole_boxes(tensor.pieces)
    if whole_boxes is not None and is_grid(tensor.shape, whole_boxes):
        return ()
    where = f"tensor {tensor.key!r}"
    issues = _check_replicas(where, tensor.pieces)
    pieces = primary_pieces(tensor)
    held = [(box, piece) for piece in pieces for box in piece.boxes()]
    owners = [piece for _, piece in held]
    found = survey(tensor.shape, [box for box, _ in held])
    issues += _at_most(
        [Issue(where, f"nobody saved {hole}", code="hole") for hole in found.holes],
        Issue(where, f"nobody saved {len(found.holes) - MOST_REPORTED} more boxes of it", code="hole"),
    )
    issues += _at_most(
        [_overlap_issue(where, overlap, owners) for overlap in found.overlaps],
        Issue(where, f"{len(found.overlaps) - MOST_REPORTED} more boxes of it are saved twice", code="overlap"),
    )
    if not found.is_finished:
        what = "its pieces lie in such disorder that whether they make a whole was not settled"
        issues.append(Issue(where, what, found=f"{len(pieces)} pieces", code="coverage-unsettled"))
    return tuple(issues)


def primary_pieces(tensor: IndexedTensor) -> tuple[Piece, ...]:
    """One piece of each set of replicas (the lowest replica id, then file name), sorted by box and range."""
    pieces = tensor.pieces
    if all(a.box.offset < b.box.offset or _is_later_range(b, a) for a, b in pairwise(pieces)):
        return pieces
    chosen: dict[tuple[Box, tuple[int, int] | None], Piece] = {}
    for piece in sorted(pieces, key=_replica_order):
        chosen.setdefault((piece.box, piece.flat), piece)
    return tuple(sorted(chosen.values(), key=_place_order))


def _is_later_range(piece: Piece, other: Piece) -> bool:
    return (
        piece.flat is not None
        and other.flat is not None
        and piece.box.offset == other.box.offset
        and piece.box.shape == other.box.shape
        and piece.flat > other.flat
    )


def _whole_boxes(pieces: Sequence[Piece]) -> list[Box] | None:
    """The boxes that the pieces hold, where each is held once: whole, or as ranges that follow each other in order.
    None says nothing."""
    boxes: list[Box] = []
    end = volume = 0
    for piece in pieces:
        if piece.flat is None:
            if end != volume:
                return None
            boxes.append(piece.box)
            continue
        start, stop = piece.flat
        if start == 0 and end == volume:
            boxes.append(piece.box)
            volume = piece.box.volume
        elif start != end or start == stop or piece.box != boxes[-1]:
            return None
        end = stop
    return boxes if end == volume else None


def _check_replicas(where: str, pieces: Sequence[Piece]) -> list[Issue]:
    """Pieces of the same box and range must carry distinct replica ids; empty ones hold nothing to disagree on."""
    files: dict[tuple[Box, tuple[int, int] | None, int], list[str]] = {}
    for piece in pieces:
        files.setdefault((piece.box, piece.flat, piece.replica or 0), []).append(piece.file)
    if len(files) == len(pieces):
        return []
    return _at_most(
        [
            Issue(
                where,
                f"{box} is saved {len(held)} times, and not marked as replicas",
                found=", ".join(sorted(held)),
                code="saved-twice",
            )
            for (box, _, _), held in files.items()
            if len(held) > 1 and box.volume
        ],
        Issue(where, "more boxes of it are saved several times", code="saved-twice"),
    )


def _overlap_issue(where: str, overlap: Overlap, owners: Sequence[Piece]) -> Issue:
    held = [f"{owners[member].box} in {owners[member].file}" for member in overlap.members[:MOST_REPORTED]]
    if len(overlap.members) > MOST_REPORTED:
        held.append(f"{len(overlap.members) - MOST_REPORTED} more")
    return Issue(
        where, f"{overlap.box} is saved by {len(overlap.members)} pieces", "one", ", ".join(held), code="overlap"
    )


def _at_most(issues: list[Issue], more: Issue) -> list[Issue]:
    return issues if len(issues) <= MOST_REPORTED else [*issues[:MOST_REPORTED], more]


def _replica_order(piece: Piece) -> tuple[int, str]:
    return piece.replica or 0, piece.file


def _place_order(piece: Piece) -> tuple[Box, tuple[int, ...]]:
    return piece.box, piece.flat or ()
