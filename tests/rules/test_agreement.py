"""What the rank files hold against what the index promises."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptcore.rules.agreement import check_stored, check_unclaimed, claims_of, resolved_dtype, unclaimed_keys
from ckptcore.rules.issues import Issue
from ckptcore.rules.stored import RankFile, Segment, StoredArray
from ckptcore.rules.tensors import DTYPES, Box, DType, Index, IndexedTensor, Piece, Shape

PIECE = Piece(Box((2, 0), (2, 3)), "1_5.distcp")
TENSOR = IndexedTensor("w", "float32", (4, 3), (Piece(Box((0, 0), (2, 3)), "0_5.distcp"), PIECE))


def stored(shape: Shape, dtype: str, length: int | None = None, fortran: bool = False) -> StoredArray:
    array = StoredArray(shape, dtype, fortran, ())
    return replace(array, segments=(Segment(0, array.expected_bytes if length is None else length),))


def codes(tensor: IndexedTensor, piece: Piece, array: StoredArray | None) -> list[str]:
    return [issue.code for issue in check_stored(tensor, piece, array)]


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=lambda dtype: dtype.name)
def test_an_array_as_paddle_stores_it_agrees_in_any_order(dtype: DType) -> None:
    for order in "<>" if dtype.itemsize > 1 else "|":
        array = stored((2, 3), order + dtype.stored, fortran=order == ">")
        assert codes(replace(TENSOR, dtype=dtype.name), PIECE, array) == []


def test_a_flattened_range_is_stored_in_one_axis() -> None:
    flat = replace(PIECE, flat=(1, 6))
    assert codes(TENSOR, flat, stored((5,), "<f4")) == []
    assert codes(TENSOR, flat, stored((2, 3), "<f4")) == ["stored-shape"]


def test_each_disagreement_is_named() -> None:
    assert [str(issue) for issue in check_stored(TENSOR, PIECE, None)] == [
        "tensor 'w' in 1_5.distcp: the metadata promises a piece that the file does not hold: expected [2:4, 0:3]"
    ]
    found = check_stored(TENSOR, PIECE, stored((4, 2), "<f8", length=10))
    assert [str(issue).removeprefix("tensor 'w' in 1_5.distcp: ") for issue in found] == [
        "the stored shape is not the one that the metadata records: expected [2, 3], found [4, 2]",
        "the stored dtype is not the one that the metadata records: expected float32, stored as f4, found <f8",
        "the payload does not fill an array of shape [4, 2] and dtype <f8: expected 64 bytes, found 10",
    ]


@pytest.mark.parametrize(
    ("recorded", "found"),
    [("bfloat16", "<f2"), ("float16", "<u2"), ("int32", "<f4"), ("float32", "<f8"), ("bool", "|u1")],
)
def test_bits_of_another_dtype_are_never_taken_for_values(recorded: str, found: str) -> None:
    assert codes(replace(TENSOR, dtype=recorded), PIECE, stored((2, 3), found)) == ["stored-dtype"]


def test_the_dtype_comes_from_the_metadata_or_from_the_payload() -> None:
    silent = replace(TENSOR, dtype=None)
    assert resolved_dtype(TENSOR, []) == "float32"
    assert codes(silent, PIECE, stored((2, 3), "<u2")) == []
    assert resolved_dtype(silent, [stored((2, 3), "<u2"), stored((2, 3), ">u2")]) == "bfloat16"
    assert resolved_dtype(silent, [stored((2, 3), "|i1")]) == "int8"
    assert resolved_dtype(silent, [stored((2, 3), "<f4")]) == "float32"
    assert resolved_dtype(silent, [stored((2, 3), "|b1")]) == "bool"


@pytest.mark.parametrize(
    ("dtypes", "code", "found"),
    [
        (["<f4", "<f8"], "dtype-disagreement", "f4, f8"),
        ([], "dtype-unknown", ""),
        (["<u4"], "dtype-unknown", "u4"),
    ],
)
def test_a_dtype_that_cannot_be_told_is_an_issue(dtypes: list[str], code: str, found: str) -> None:
    issue = resolved_dtype(replace(TENSOR, dtype=None), [stored((2, 3), dtype) for dtype in dtypes])
    assert isinstance(issue, Issue)
    assert (issue.code, issue.found) == (code, found)


def rank_file(*keys: str) -> RankFile:
    return RankFile({key: stored((2, 3), "<f4") for key in keys}, {})


def test_keys_that_the_metadata_does_not_name_are_of_another_save_but_for_a_trainers_additions() -> None:
    claims = claims_of(Index((TENSOR,), ("0_5.distcp", "1_5.distcp", "2_5.distcp")))
    assert unclaimed_keys({"w"}, rank_file("w")) == ()
    unclaimed = unclaimed_keys({"w"}, rank_file("w", "z", "a"))
    assert unclaimed == ("a", "z")
    found = check_unclaimed(claims, "1_5.distcp", unclaimed, may_hold_more=False)
    assert [issue.where for issue in found] == ["tensor 'a' in 1_5.distcp", "tensor 'z' in 1_5.distcp"]
    assert check_unclaimed(claims, "1_5.distcp", unclaimed, may_hold_more=True) == ()


def test_a_key_in_a_file_that_should_not_hold_it_is_of_another_save() -> None:
    """Saved by three ranks, then by two under the same id: the old metadata sends a reader to the stale file."""
    silent = replace(TENSOR, key="n", dtype=None)
    claims = claims_of(Index((silent, TENSOR), ("0_5.distcp", "1_5.distcp", "2_5.distcp")))
    unclaimed = unclaimed_keys(set(), rank_file("n", "w"))
    assert unclaimed == ("n", "w")
    (issue,) = check_unclaimed(claims, "2_5.distcp", unclaimed, may_hold_more=False)
    assert (issue.where, issue.code) == ("tensor 'w' in 2_5.distcp", "other-save")
    # A file that the metadata does not name at all is a left-over of an earlier save, and nobody reads it.
    assert check_unclaimed(claims, "3_5.distcp", unclaimed, may_hold_more=False) == ()
