"""Do the rank files hold what the index promises: each piece in its file, in the recorded shape, dtype and length.

Owns the comparison of one array, or one file's keys, with the index. This is what tells a metadata file that was left
behind by an earlier save of the same id (Paddle 3.2 and 3.3 keep it) from one that describes these rank files.
"""

from __future__ import annotations

from collections.abc import Iterable, Set
from dataclasses import dataclass

from ckptcore.rules.issues import Issue
from ckptcore.rules.stored import RankFile, StoredArray
from ckptcore.rules.tensors import DTYPES, Index, IndexedTensor, Piece

# Where the metadata does not say (Paddle 2.6), the payload does: that release knows no float8, and stores
# bfloat16 as the unsigned 16-bit integers that Paddle does not have.
_DTYPE_OF_STORED = {dtype.stored: dtype.name for dtype in DTYPES.values() if not dtype.name.startswith("float8")}


def check_stored(tensor: IndexedTensor, piece: Piece, array: StoredArray | None) -> tuple[Issue, ...]:
    """Everything in which ``array``, found under the tensor's key in the piece's file, is not the piece.

    ``array`` is None where the file has no such key. A dtype that the metadata does not give is not judged here;
    see ``resolved_dtype``. Byte order and Fortran order are how the array is spelled, and no fault.
    """
    where = f"tensor {tensor.key!r} in {piece.file}"
    if array is None:
        return (
            Issue(where, "the metadata promises a piece that the file does not hold", str(piece.box), "", "missing"),
        )
    issues = []
    if array.shape != piece.payload_shape:
        what = "the stored shape is not the one that the metadata records"
        issues.append(Issue(where, what, str(list(piece.payload_shape)), str(list(array.shape)), "stored-shape"))
    if tensor.dtype is not None and array.means not in ("", tensor.dtype):
        what = "the stored dtype is not the one that the metadata records"
        issues.append(Issue(where, what, tensor.dtype, array.means, "stored-dtype"))
    elif tensor.dtype is not None and array.dtype[1:] != DTYPES[tensor.dtype].stored:
        expected = f"{tensor.dtype}, stored as {DTYPES[tensor.dtype].stored}"
        what = "the stored dtype is not the one that the metadata records"
        issues.append(Issue(where, what, expected, array.dtype, "stored-dtype"))
    if array.payload_bytes != array.expected_bytes:
        what = f"the payload does not fill an array of shape {list(array.shape)} and dtype {array.dtype}"
        issues.append(
            Issue(where, what, f"{array.expected_bytes:,} bytes", f"{array.payload_bytes:,}", "stored-length")
        )
    return tuple(issues)


def resolved_dtype(tensor: IndexedTensor, arrays: Iterable[StoredArray]) -> str | Issue:
    """The tensor's dtype by Paddle's name: the metadata's, or where that has none (Paddle 2.6), the one its
    stored arrays agree on; the issue where they do not."""
    if tensor.dtype is not None:
        return tensor.dtype
    where = f"tensor {tensor.key!r}"
    stored = sorted({array.dtype[1:] for array in arrays})
    if len(stored) > 1:
        return Issue(
            where, "its stored pieces disagree on the dtype", found=", ".join(stored), code="dtype-disagreement"
        )
    if not stored:
        what = "no stored piece tells the dtype, and the metadata does not record it"
        return Issue(where, what, code="dtype-unknown")
    dtype = _DTYPE_OF_STORED.get(stored[0])
    return dtype or Issue(
        where, "its pieces are stored in a dtype that is not known", found=stored[0], code="dtype-unknown"
    )


@dataclass(frozen=True, slots=True)
class Claims:
    """What the index says of files and keys: ``files`` are those that it names, ``named`` all keys, ``dtyped`` those
    with a recorded dtype."""

    files: frozenset[str]
    named: frozenset[str]
    dtyped: frozenset[str]


def claims_of(index: Index) -> Claims:
    """The names of the index, gathered once, to look at file after file."""
    return Claims(
        frozenset(index.files),
        index.left_out.union(tensor.key for tensor in index.tensors),
        frozenset(tensor.key for tensor in index.tensors if tensor.dtype is not None),
    )


def unclaimed_keys(claimed: Set[str], rank_file: RankFile) -> tuple[str, ...]:
    """The keys in a rank file that are none of those ``claimed``, which the metadata assigns to it, sorted: worth a
    note, no fault by themselves.

    Paddle 2.6 writes replicated tensors on every rank and assigns one; ``ema_state`` holds keys that its
    metadata does not name. ``check_unclaimed`` finds those that are a fault.
    """
    return tuple(sorted(rank_file.arrays.keys() - claimed))


def check_unclaimed(claims: Claims, file: str, unclaimed: Iterable[str], *, may_hold_more: bool) -> tuple[Issue, ...]:
    """Of the ``unclaimed`` keys of a file, those that the metadata assigns to other files only, or to none: such a key
    proves that the metadata, or the file, is of another save of the same id.

    Paddle 3.0 and later (those that record dtypes) drop a tensor from every file but those that the metadata assigns it
    to; 2.6 does not. ``may_hold_more`` is for ``ema_state``, whose trainers add keys that the metadata does not name.
    """
    if file not in claims.files:
        return ()
    issues = []
    for key in unclaimed:
        where = f"tensor {key!r} in {file}"
        if key in claims.dtyped:
            what = "the file holds a piece that the metadata assigns to other files only; they are not of one save"
            issues.append(Issue(where, what, code="other-save"))
        elif key not in claims.named and not may_hold_more:
            what = "the metadata does not name this tensor; it is of another save of this id"
            issues.append(Issue(where, what, code="other-save"))
    return tuple(issues)
