"""Joins the two tables of a metadata file: the pieces that were saved, and the rank files that hold them.

Owns what the metadata says about itself: every piece has a file and every file entry has a piece, a tensor has one
dtype and one global shape, pieces lie inside it, and file names are those of this save. Whether the pieces make
a whole is decided in ``coverage``; whether the rank files agree, in ``agreement``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.layout import parse_rank_file_name
from ckptcore.rules.metadata import Metadata, PieceRecord, StoredPieces
from ckptcore.rules.tensors import DTYPES, Box, Index, IndexedTensor, Piece, Shape

MAX_RANK = 32
"""The most axes that a tensor may have. Paddle stops at 9; numpy 1 stopped here."""

_NOTHING = StoredPieces((), ())
_Flat = tuple[int, int] | None
_Identity = tuple[Shape, Shape, _Flat]


def build_index(metadata: Metadata, name: str, unique_id: int) -> tuple[Index, tuple[Issue, ...]]:
    """The index of the metadata file ``name``, and everything that is wrong with it.

    A tensor whose pieces cannot be told apart, placed or decoded (dtype, shape, offset, file name) is named in
    an issue and left out of the index; a piece without a file, or the reverse, leaves the tensor in, so that
    ``coverage`` can say what is missing. A record listed twice, word for word, counts once.
    """
    stored_files = {file for stored in metadata.storage.values() for file in stored.files}
    issues, bad_files = _check_file_names(stored_files, name, unique_id)
    tensors = []
    cuts = _Cuts()
    for tensor_key in sorted(metadata.tensors):
        records, stored = metadata.tensors[tensor_key], metadata.storage.get(tensor_key, _NOTHING)
        tensor, found = cuts.indexed(tensor_key, records, stored)
        issues += found
        if tensor is not None and not (bad_files and not bad_files.isdisjoint(stored.files)):
            tensors.append(tensor)
    for tensor_key in metadata.storage.keys() - metadata.tensors.keys():
        files = sorted(set(metadata.storage[tensor_key].files))
        issues.append(
            Issue(
                f"tensor {tensor_key!r}",
                "the storage table of the metadata names a tensor that its tensor table does not",
                found=f"{len(metadata.storage[tensor_key].files)} entries, first in {files[0]!r}",
                code="storage-without-tensor",
            )
        )
    named = metadata.tensors.keys() | metadata.storage.keys()
    left_out = frozenset(named - {tensor.key for tensor in tensors})
    return Index(tuple(tensors), tuple(sorted(stored_files - bad_files)), left_out), in_order(issues)


@dataclass(frozen=True, slots=True)
class _Cut:
    """How a tensor without issues is cut: its piece of each position in order, without a file, and the position of
    its entry in the storage table."""

    tensor: IndexedTensor
    positions: tuple[int, ...]


class _Cuts:
    """The tensors of one metadata file. The layers of a model repeat each other: of tensors that the file describes in
    the same words, one is looked at and the others differ in their files alone.

    Words are told apart by identity, which the reader gives to equal ones; where it does not, nothing is lost but time.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[int, ...], tuple[int, ...]], _Cut] = {}

    def indexed(
        self, key: str, records: Sequence[PieceRecord], stored: StoredPieces
    ) -> tuple[IndexedTensor | None, list[Issue]]:
        """The tensor, and what is wrong with it; the records must stay alive as long as this does."""
        files = stored.files
        if len(set(files)) < len(files):
            return _index_tensor(key, records, stored)
        words = tuple(map(id, records)), tuple(map(id, stored.places))
        known = self._known.get(words)
        if known is not None:
            like = known.tensor
            pieces = tuple(
                Piece(piece.box, files[position], piece.flat, piece.replica)
                for piece, position in zip(like.pieces, known.positions, strict=True)
            )
            return IndexedTensor(key, like.dtype, like.shape, pieces, like.shape_is_recorded), []
        tensor, issues = _index_tensor(key, records, stored)
        if tensor is not None and not issues and not _is_ordered_by_file(tensor):
            position_of = {file: position for position, file in enumerate(files)}
            self._known[words] = _Cut(tensor, tuple(position_of[piece.file] for piece in tensor.pieces))
        return tensor, issues


def _is_ordered_by_file(tensor: IndexedTensor) -> bool:
    """Whether the order of its pieces depends on the names of their files."""
    orders = map(_piece_order, tensor.pieces)
    return any(a[:-1] == b[:-1] for a, b in pairwise(orders))


def _check_file_names(files: Iterable[str], name: str, unique_id: int) -> tuple[list[Issue], set[str]]:
    issues, bad = [], set()
    for file in files:
        parsed = parse_rank_file_name(file)
        if parsed is None:
            what, expected = "is no name of a rank file", f"{{rank}}_{unique_id}.distcp or .safetensors"
        elif parsed.unique_id != unique_id:
            what, expected = "names a rank file of another save", f"id {unique_id}"
        else:
            continue
        bad.add(file)
        issues.append(Issue(name, f"an entry of its storage table {what}", expected, repr(file), "file-name"))
    return issues, bad


def _index_tensor(
    key: str, records: Sequence[PieceRecord], stored: StoredPieces
) -> tuple[IndexedTensor | None, list[Issue]]:
    where = f"tensor {key!r}"
    if not records:
        return None, [Issue(where, "the metadata records no piece of it", code="no-piece")]
    dtype, dtype_issue = _common_dtype(where, records)
    shape, shape_issues = _common_shape(where, records)
    issues = [*dtype_issue, *shape_issues]
    if shape is None or issues:
        return None, issues
    for record in records:
        issues += _check_place(where, record, shape)
    if issues:
        return None, issues
    pieces, issues = _join(where, records, stored)
    pieces, shared = _one_array_each(where, pieces)
    recorded = records[0].global_shape is not None
    return IndexedTensor(key, dtype, shape, pieces, recorded), [*issues, *shared]


def _common_dtype(where: str, records: Sequence[PieceRecord]) -> tuple[str | None, list[Issue]]:
    dtypes = {record.dtype for record in records}
    if len(dtypes) > 1:
        found = ", ".join(sorted("none" if dtype is None else repr(dtype) for dtype in dtypes))
        return None, [Issue(where, "its pieces disagree on the dtype", found=found, code="dtype-disagreement")]
    (dtype,) = dtypes
    if dtype is not None and dtype not in DTYPES:
        return None, [
            Issue(where, "the metadata gives a dtype that is not known", found=repr(dtype), code="dtype-unknown")
        ]
    return dtype, []


def _common_shape(where: str, records: Sequence[PieceRecord]) -> tuple[Shape | None, list[Issue]]:
    """The global shape; where Paddle recorded none (before 3.2), the bounding box of the pieces."""
    ranks = {len(record.offset) for record in records} | {len(record.shape) for record in records}
    recorded = {record.global_shape for record in records}
    ranks.update(len(shape) for shape in recorded if shape is not None)
    if len(ranks) > 1:
        found = ", ".join(str(rank) for rank in sorted(ranks))
        what = "its offsets and shapes disagree on the number of axes"
        return None, [Issue(where, what, found=found, code="rank-disagreement")]
    if max(ranks) > MAX_RANK:
        return None, [Issue(where, "too many axes", f"at most {MAX_RANK}", str(max(ranks)), "rank-too-large")]
    if len(recorded) > 1:
        found = ", ".join(sorted("none" if shape is None else str(list(shape)) for shape in recorded))
        what = "its pieces disagree on the global shape"
        return None, [Issue(where, what, found=found, code="global-shape-disagreement")]
    (shape,) = recorded
    if shape is None:
        ends = ([o + s for o, s in zip(record.offset, record.shape, strict=True)] for record in records)
        shape = tuple(max(axis) for axis in zip(*ends, strict=True))
    return shape, []


def _check_place(where: str, record: PieceRecord, shape: Shape) -> list[Issue]:
    for offset, extent, limit in zip(record.offset, record.shape, shape, strict=True):
        if offset < 0 or extent < 0 or offset + extent > limit:
            box = Box(record.offset, record.shape)
            return [Issue(where, "a piece lies outside the tensor", f"within {list(shape)}", str(box), "piece-outside")]
    if record.flat is not None:
        start, stop = record.flat
        volume = Box(record.offset, record.shape).volume
        if not 0 <= start <= stop <= volume:
            what = f"the flattened range of the piece at {Box(record.offset, record.shape)} lies outside it"
            return [Issue(where, what, f"within 0:{volume}", f"{start}:{stop}", "flat-range-outside")]
    return []


def _join(where: str, records: Sequence[PieceRecord], stored: StoredPieces) -> tuple[tuple[Piece, ...], list[Issue]]:
    whole = {(record.offset, record.shape): Box(record.offset, record.shape) for record in records}
    boxes = {(record.offset, record.shape, record.flat): whole[record.offset, record.shape] for record in records}
    shapes = _shapes_by_place(boxes) if any(place.shape is None for place in stored.places) else {}
    issues, pieces, without_file = [], [], set(boxes)
    for place, file in zip(stored.places, stored.files, strict=True):
        candidates = shapes.get((place.offset, place.flat), []) if place.shape is None else [place.shape]
        if len(candidates) == 1:
            identity = (place.offset, candidates[0], place.flat)
            box = boxes.get(identity)
            if box is not None:
                without_file.discard(identity)
                pieces.append(Piece(box, file, place.flat, place.replica))
                continue
        what = f"the storage table names a piece at {_place(place.offset, place.shape, place.flat)} in {file!r}"
        if len(candidates) > 1:
            what += ", and several pieces begin there"
            issues.append(Issue(where, what, "one shape", f"{len(candidates)} shapes", "storage-ambiguous"))
            without_file -= {(place.offset, shape, place.flat) for shape in candidates}
        else:
            issues.append(Issue(where, what + ", but no such piece was recorded", code="storage-without-piece"))
    for offset, shape, flat in without_file:
        what = f"the storage table names no file for the piece {_place(offset, shape, flat)}"
        issues.append(Issue(where, what, code="piece-without-file"))
    return tuple(sorted(pieces, key=_piece_order) if len(pieces) > 1 else pieces), issues


def _shapes_by_place(boxes: Iterable[_Identity]) -> dict[tuple[Shape, _Flat], list[Shape]]:
    """Before Paddle 3.3 a storage key has no shape, and before 3.2 no flattened range: the offset alone must do."""
    shapes: dict[tuple[Shape, _Flat], list[Shape]] = {}
    for offset, shape, flat in boxes:
        shapes.setdefault((offset, flat), []).append(shape)
    return shapes


def _one_array_each(where: str, pieces: tuple[Piece, ...]) -> tuple[tuple[Piece, ...], list[Issue]]:
    """A rank file holds one array a key, so that two pieces of a tensor cannot lie in one file."""
    if len({piece.file for piece in pieces}) == len(pieces):
        return pieces, []
    pieces = tuple(dict.fromkeys(pieces))
    by_file: dict[str, list[Piece]] = {}
    for piece in pieces:
        by_file.setdefault(piece.file, []).append(piece)
    what = "the storage table gives one rank file several pieces of it, and a rank file holds one array a key"
    return pieces, [
        Issue(where, what, found=f"{len(held)} pieces in {file}", code="pieces-share-file")
        for file, held in by_file.items()
        if len(held) > 1
    ]


def _piece_order(piece: Piece) -> tuple[Shape, Shape, tuple[int, ...], int, str]:
    return piece.box.offset, piece.box.shape, piece.flat or (), piece.replica or 0, piece.file


def _place(offset: Shape, shape: Shape | None, flat: _Flat) -> str:
    place = str(list(offset)) if shape is None else str(Box(offset, shape))
    return place if flat is None else f"{place} (flattened {flat[0]}:{flat[1]})"
