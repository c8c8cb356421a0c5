"""The two tables of the metadata joined, and everything in which they can contradict each other."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from ckptcore.rules.index import MAX_RANK, build_index
from ckptcore.rules.issues import Issue
from ckptcore.rules.metadata import Metadata, PieceRecord, PlaceKey, StoredPieces
from ckptcore.rules.tensors import Box, Index, IndexedTensor, Piece, Shape


@dataclass(frozen=True)
class Key:
    """A key of the storage table, as Paddle has it."""

    tensor_key: str
    offset: Shape
    shape: Shape | None = None
    flat: tuple[int, int] | None = None
    replica: int | None = None


Storage = tuple[tuple[Key, str], ...]
ROWS = (PieceRecord((0, 0), (8, 4), "float32", (16, 4)), PieceRecord((8, 0), (8, 4), "float32", (16, 4)))
ROWS_STORED = ((Key("w", (0, 0), (8, 4)), "0_7.distcp"), (Key("w", (8, 0), (8, 4)), "1_7.distcp"))


def table(storage: Storage) -> dict[str, StoredPieces]:
    held: dict[str, list[tuple[PlaceKey, str]]] = {}
    for key, file in storage:
        held.setdefault(key.tensor_key, []).append((PlaceKey(key.offset, key.shape, key.flat, key.replica), file))
    return {key: StoredPieces(*zip(*entries, strict=True)) for key, entries in held.items()}


def build(records: tuple[PieceRecord, ...], storage: Storage) -> tuple[Index, tuple[Issue, ...]]:
    return build_index(Metadata({"w": records}, table(storage), {}), "7.metadata", 7)


def only(records: tuple[PieceRecord, ...], storage: Storage = ROWS_STORED) -> tuple[IndexedTensor | None, Issue]:
    """The tensor of the index, if it is there, and the one issue."""
    index, (issue,) = build(records, storage)
    return (index.tensors[0] if index.tensors else None), issue


def test_records_and_files_become_pieces() -> None:
    index, issues = build(ROWS[::-1], ROWS_STORED[::-1])
    first, second = Piece(Box((0, 0), (8, 4)), "0_7.distcp"), Piece(Box((8, 0), (8, 4)), "1_7.distcp")
    assert issues == ()
    assert index == Index((IndexedTensor("w", "float32", (16, 4), (first, second)),), ("0_7.distcp", "1_7.distcp"))


def test_tensors_and_files_are_sorted() -> None:
    record = PieceRecord((0,), (2,), "int8", (2,))
    storage = tuple((Key(key, (0,), (2,)), f"{rank}_7.distcp") for rank, key in ((2, "b"), (0, ""), (1, "a")))
    index, issues = build_index(
        Metadata({"b": (record,), "": (record,), "a": (record,)}, table(storage), {}), "7.metadata", 7
    )
    assert issues == ()
    assert [tensor.key for tensor in index.tensors] == ["", "a", "b"]
    assert index.files == ("0_7.distcp", "1_7.distcp", "2_7.distcp")


def test_tensors_in_the_same_words_differ_in_their_files_alone() -> None:
    places = tuple(PlaceKey((8 * i, 0), (8, 4)) for i in (0, 1))
    files = {"w": ("0_7.distcp", "1_7.distcp"), "v": ("9_7.distcp", "10_7.distcp"), "u": ("3_7.distcp", "3_7.distcp")}
    storage = {key: StoredPieces(places, held) for key, held in files.items()}
    index, issues = build_index(Metadata(dict.fromkeys(files, ROWS), storage, {}), "7.metadata", 7)
    boxes = Box((0, 0), (8, 4)), Box((8, 0), (8, 4))
    assert [issue.code for issue in issues] == ["pieces-share-file"]
    for tensor in index.tensors:
        assert (tensor.dtype, tensor.shape) == ("float32", (16, 4))
        assert tensor.pieces == tuple(map(Piece, boxes, files[tensor.key]))


def test_which_file_comes_first_is_told_for_each_tensor() -> None:
    places = (PlaceKey((0, 0), (8, 4)), PlaceKey((0, 0), (8, 4), None, 0), PlaceKey((8, 0), (8, 4)))
    files = {"w": ("0_7.distcp", "1_7.distcp", "2_7.distcp"), "v": ("5_7.distcp", "4_7.distcp", "3_7.distcp")}
    storage = {key: StoredPieces(places, held) for key, held in files.items()}
    index, issues = build_index(Metadata(dict.fromkeys(files, ROWS), storage, {}), "7.metadata", 7)
    assert issues == ()
    in_order = {tensor.key: [piece.file for piece in tensor.pieces] for tensor in index.tensors}
    assert in_order == {"w": sorted(files["w"]), "v": ["4_7.distcp", "5_7.distcp", "3_7.distcp"]}


def test_fields_that_older_releases_lack_are_inferred() -> None:
    records = tuple(replace(record, dtype=None, global_shape=None) for record in ROWS)
    index, issues = build(records, tuple((replace(key, shape=None), file) for key, file in ROWS_STORED))
    (tensor,) = index.tensors
    assert issues == ()
    assert (tensor.dtype, tensor.shape, tensor.shape_is_recorded) == (None, (16, 4), False)
    assert [piece.box.shape for piece in tensor.pieces] == [(8, 4), (8, 4)]


def test_flattened_ranges_tell_pieces_of_one_box_apart() -> None:
    records = tuple(PieceRecord((0, 0), (5, 3), "float32", (5, 3), flat) for flat in ((0, 8), (8, 15)))
    storage = tuple((Key("w", (0, 0), None, record.flat), f"{i}_7.distcp") for i, record in enumerate(records))
    index, issues = build(records, storage)
    assert issues == ()
    assert [(piece.file, piece.flat) for piece in index.tensors[0].pieces] == [
        ("0_7.distcp", (0, 8)),
        ("1_7.distcp", (8, 15)),
    ]


def test_replicas_are_pieces_of_one_record() -> None:
    replicas = tuple(
        (replace(ROWS_STORED[0][0], replica=replica), f"{rank}_7.distcp") for rank, replica in ((2, 1), (0, 0))
    )
    index, issues = build(ROWS, (*replicas, ROWS_STORED[1]))
    assert issues == ()
    assert [(piece.file, piece.replica) for piece in index.tensors[0].pieces] == [
        ("0_7.distcp", 0),
        ("2_7.distcp", 1),
        ("1_7.distcp", None),
    ]


def test_what_is_listed_twice_word_for_word_counts_once() -> None:
    assert build((*ROWS, ROWS[0]), (*ROWS_STORED, ROWS_STORED[0])) == build(ROWS, ROWS_STORED)


def test_a_piece_without_a_file_is_named_and_the_tensor_kept() -> None:
    tensor, issue = only(ROWS, ROWS_STORED[:1])
    assert str(issue) == "tensor 'w': the storage table names no file for the piece [8:16, 0:4]"
    assert tensor is not None
    assert len(tensor.pieces) == 1


def test_a_file_without_a_piece_is_named_and_the_tensor_kept() -> None:
    tensor, issue = only(ROWS[:1])
    assert issue.code == "storage-without-piece"
    assert "[8:16, 0:4] in '1_7.distcp'" in str(issue)
    assert tensor is not None

    flattened = (Key("w", (0, 0), (8, 4), (0, 32)), "0_7.distcp"), ROWS_STORED[1]
    _, issues = build(ROWS, flattened)
    assert {issue.code for issue in issues} == {"storage-without-piece", "piece-without-file"}
    assert "[0:8, 0:4] (flattened 0:32)" in str(issues[0])


def test_a_shape_that_the_tables_disagree_on_is_found() -> None:
    _, issues = build(ROWS, ((replace(ROWS_STORED[0][0], shape=(4, 4)), "0_7.distcp"), ROWS_STORED[1]))
    assert {issue.code for issue in issues} == {"storage-without-piece", "piece-without-file"}


def test_two_shapes_at_one_offset_need_a_shape_in_the_storage_table() -> None:
    records = (*ROWS, replace(ROWS[0], shape=(8, 2)))
    _, issue = only(records, tuple((replace(key, shape=None), file) for key, file in ROWS_STORED))
    assert issue.code == "storage-ambiguous"
    assert "[0, 0] in '0_7.distcp'" in str(issue)


def test_storage_of_an_unknown_tensor_is_found() -> None:
    _, issue = only(ROWS, (*ROWS_STORED, (Key("x", (0,)), "1_7.distcp")))
    assert (issue.where, issue.code) == ("tensor 'x'", "storage-without-tensor")


def test_a_file_holds_one_array_of_a_key() -> None:
    _, issue = only(ROWS, (ROWS_STORED[0], (ROWS_STORED[1][0], "0_7.distcp")))
    assert (issue.code, issue.found) == ("pieces-share-file", "2 pieces in 0_7.distcp")


@pytest.mark.parametrize(
    "name", ["../x.distcp", "/0_7.distcp", "0_7.distcp\0", "model.bin", "0_07.distcp", "a/0_7.distcp", ""]
)
def test_a_file_name_that_is_no_rank_files_takes_its_tensors_out(name: str) -> None:
    tensor, issue = only(ROWS, (ROWS_STORED[0], (ROWS_STORED[1][0], name)))
    assert tensor is None
    assert (issue.code, issue.found) == ("file-name", repr(name))
    index, _ = build(ROWS, (ROWS_STORED[0], (ROWS_STORED[1][0], name)))
    assert index.files == ("0_7.distcp",)


def test_a_file_of_another_save_is_refused() -> None:
    tensor, issue = only(ROWS, (ROWS_STORED[0], (ROWS_STORED[1][0], "1_17.distcp")))
    assert tensor is None
    assert (issue.expected, issue.found) == ("id 7", "'1_17.distcp'")


@pytest.mark.parametrize(
    ("second", "code"),
    [
        (replace(ROWS[1], dtype="bfloat16"), "dtype-disagreement"),
        (replace(ROWS[1], dtype=None), "dtype-disagreement"),
        (replace(ROWS[1], global_shape=(17, 4)), "global-shape-disagreement"),
        (replace(ROWS[1], global_shape=None), "global-shape-disagreement"),
        (replace(ROWS[1], global_shape=(16, 4, 1)), "rank-disagreement"),
        (replace(ROWS[1], shape=(8,)), "rank-disagreement"),
        (replace(ROWS[1], offset=(8, 0, 0)), "rank-disagreement"),
        (replace(ROWS[1], shape=(9, 4)), "piece-outside"),
        (replace(ROWS[1], offset=(8, -1)), "piece-outside"),
        (replace(ROWS[1], shape=(8, -4)), "piece-outside"),
        (replace(ROWS[1], flat=(0, 33)), "flat-range-outside"),
        (replace(ROWS[1], flat=(-1, 3)), "flat-range-outside"),
        (replace(ROWS[1], flat=(3, 2)), "flat-range-outside"),
    ],
)
def test_a_piece_that_contradicts_the_tensor_takes_it_out(second: PieceRecord, code: str) -> None:
    tensor, issue = only((ROWS[0], second))
    assert tensor is None
    assert (issue.where, issue.code) == ("tensor 'w'", code)


def test_a_tensor_without_a_usable_description_is_left_out() -> None:
    unknown = tuple(replace(record, dtype="float7") for record in ROWS)
    tensor, issue = only(unknown)
    assert (tensor, issue.code, issue.found) == (None, "dtype-unknown", "'float7'")

    tensor, issue = only(())
    assert (tensor, issue.code) == (None, "no-piece")

    zeros: Shape = (0,) * (MAX_RANK + 1)
    ones: Shape = (1,) * (MAX_RANK + 1)
    tensor, issue = only((PieceRecord(zeros, ones, "float32", ones),), ((Key("w", zeros, ones), "0_7.distcp"),))
    assert (tensor, issue.code) == (None, "rank-too-large")


def test_scalars_have_pieces_too() -> None:
    index, issues = build((PieceRecord((), (), "float64"),), ((Key("w", ()), "0_7.distcp"),))
    assert issues == ()
    assert index.tensors == (IndexedTensor("w", "float64", (), (Piece(Box((), ()), "0_7.distcp"),), False),)


def test_all_issues_come_at_once_and_in_order() -> None:
    metadata = Metadata(
        {"b": (replace(ROWS[0], dtype="float7"),), "a": ROWS},
        table(((Key("b", (0, 0)), "../b"), (Key("c", (0,)), "0_7.distcp"))),
        {},
    )
    _, issues = build_index(metadata, "7.metadata", 7)
    assert [issue.code for issue in issues] == [
        "file-name",
        "piece-without-file",
        "piece-without-file",
        "dtype-unknown",
        "storage-without-tensor",
    ]
