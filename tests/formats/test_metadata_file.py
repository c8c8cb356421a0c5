"""Metadata files of every release: what they say, at every protocol, and each way in which one can be wrong."""

from __future__ import annotations

import pickle
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import DamagedFile
from ckptcore.formats import spelled_records
from ckptcore.formats.metadata_file import GLOBALS, parse_metadata
from ckptcore.formats.pickle_values import Instance
from ckptcore.formats.pickles import read_pickle
from ckptcore.formats.spelled_records import SpelledRecords
from ckptcore.rules.metadata import Metadata, PieceRecord, PlaceKey, StoredPieces
from tests.corpus import Case
from tests.formats.bytes_under_test import (
    BEFORE_3_2,
    FLEX,
    Spelling,
    WatchedReader,
    counted_calls,
    damaged_copies,
    pickled_metadata,
)

PIECE_FIELDS = {
    "2.6": ("global_offset", "local_shape"),
    "3.0": ("global_offset", "local_shape", "dtype"),
    "3.3": ("global_offset", "local_shape", "dtype", "global_shape", "is_flattened", "flattened_range"),
}
KEY_FIELDS = {
    "2.6": ("tensor_key", "global_offset"),
    "3.0": ("tensor_key", "global_offset"),
    "3.3": ("tensor_key", "global_offset", "is_flattened", "flattened_range", "replica_id", "local_shape"),
}


def parse(data: bytes) -> Metadata:
    return parse_metadata(WatchedReader(data), "0.metadata")


@dataclass(frozen=True)
class Saved:
    """One piece, as a release would have recorded it."""

    tensor: str
    fields: dict[str, Any]
    file: str

    def shown(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: self.fields[name] for name in names}


def metadata_of(
    saved: list[Saved], release: str, *, shared: bool = True, more: dict[str, Any] | None = None
) -> Callable[[Any], Any]:
    def build(classes: Any) -> Any:
        tensors: dict[str, list[Any]] = {}
        storage = {}
        for piece in saved:
            tensors.setdefault(piece.tensor, []).append(
                classes.LocalTensorMetadata(**piece.shown(PIECE_FIELDS[release]))
            )
            index = piece.shown(KEY_FIELDS[release])
            if not shared:  # then the pickler spells them anew
                index = {name: (*value,) if isinstance(value, tuple) else value for name, value in index.items()}
            storage[classes.LocalTensorIndex(**index)] = piece.file
        nested = {} if release == "2.6" else {"flat_mapping": {key: tuple(key.split(".")) for key in tensors}}
        return classes.Metadata(state_dict_metadata=tensors, storage_metadata=storage, **nested | (more or {}))

    return build


def expected_of(saved: list[Saved], release: str) -> Metadata:
    tensors: dict[str, tuple[PieceRecord, ...]] = {}
    storage: dict[str, list[tuple[PlaceKey, str]]] = {}
    for piece in saved:
        f: dict[str, Any] = dict.fromkeys(PIECE_FIELDS["3.3"]) | piece.shown(PIECE_FIELDS[release])
        record = PieceRecord(f["global_offset"], f["local_shape"], f["dtype"], f["global_shape"], f["flattened_range"])
        tensors[piece.tensor] = (*tensors.get(piece.tensor, ()), record)
        f = dict.fromkeys(KEY_FIELDS["3.3"]) | piece.shown(KEY_FIELDS[release])
        place = PlaceKey(f["global_offset"], f["local_shape"], f["flattened_range"], f["replica_id"])
        storage.setdefault(piece.tensor, []).append((place, piece.file))
    nested = {} if release == "2.6" else {key: tuple(key.split(".")) for key in tensors}
    return Metadata(tensors, {key: StoredPieces(*zip(*held, strict=True)) for key, held in storage.items()}, nested)


sizes = st.sampled_from((0, 1, 4, 255, 256, 70_000, 2**31 - 1, 2**31, 2**40)) | st.integers(0, 2**62)


@st.composite
def pieces(draw: st.DrawFn) -> Saved:
    rank = draw(st.integers(0, 5))
    dims = st.lists(sizes, min_size=rank, max_size=rank).map(tuple)
    flat = draw(st.none() | st.tuples(sizes, sizes).map(sorted).map(tuple))
    tensor = draw(st.sampled_from(("w", "model.w", "", "层.weight", "k" * 300)))
    fields = {
        "tensor_key": tensor,
        "global_offset": draw(dims),
        "local_shape": draw(dims),
        "dtype": "".join(draw(st.sampled_from((("float", "32"), ("bfloat", "16"))))),
        "global_shape": draw(st.none() | dims),
        "is_flattened": flat is not None,
        "flattened_range": flat,
        "replica_id": draw(st.none() | st.integers(0, 70_000)),
    }
    return Saved(tensor, fields, f"{draw(st.integers(0, 3))}_0.distcp")


@given(
    saved=st.lists(pieces(), max_size=12),
    release=st.sampled_from(tuple(PIECE_FIELDS)),
    protocol=st.sampled_from((2, 3, 4, 5)),
    shared=st.booleans(),
)
def test_reads_every_release_at_every_protocol(saved: list[Saved], release: str, protocol: int, shared: bool) -> None:
    module = BEFORE_3_2 if release in ("2.6", "3.0") else FLEX
    data = pickled_metadata(metadata_of(saved, release, shared=shared), protocol=protocol, module=module)
    assert parse(data) == expected_of(saved, release)


def grid(tensors: int, ranks: int) -> list[Saved]:
    return [
        Saved(
            f"layers.{t}.w",
            {
                "tensor_key": f"layers.{t}.w",
                "global_offset": (0, 4096 * r),
                "local_shape": (8192, 4096),
                "dtype": "".join(("bfloat", "16")),
                "global_shape": (8192, 4096 * ranks),
                "is_flattened": False,
                "flattened_range": None,
                "replica_id": None,
            },
            f"{r}_0.distcp",
        )
        for t in range(tensors)
        for r in range(ranks)
    ]


@pytest.mark.parametrize("release", PIECE_FIELDS)
def test_the_shortcut_reads_nearly_all_records(release: str) -> None:
    data = pickled_metadata(metadata_of(grid(100, 20), release))
    root = read_pickle(WatchedReader(data), "0.metadata", GLOBALS, SpelledRecords())
    fields = dict(root.state.entries())
    records = [record for held in fields["state_dict_metadata"][1::2] for record in held]
    keys = fields["storage_metadata"][::2]
    assert len(records) == len(keys) == 2000
    assert sum(type(record) is Instance for record in [*records, *keys]) < 20


def test_the_shortcut_changes_nothing() -> None:
    saved = grid(40, 16)
    quick, slow = (pickled_metadata(metadata_of(saved, "3.3"), protocol=protocol) for protocol in (4, 2))
    assert parse(quick) == parse(slow) == expected_of(saved, "3.3")


def test_the_shortcut_forgets_spellings_but_no_meaning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spelled_records, "_CACHE_LIMIT", 3)
    saved = grid(20, 16)
    assert parse(pickled_metadata(metadata_of(saved, "3.3", shared=False))) == expected_of(saved, "3.3")


def test_many_pieces_take_little_memory() -> None:
    data = pickled_metadata(metadata_of(grid(200, 50), "3.3"))
    tracemalloc.start()
    try:
        parse(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 6 * len(data)


ONE = Saved(
    "w",
    {
        "tensor_key": "w",
        "global_offset": (0, 4),
        "local_shape": (2, 4),
        "dtype": "float32",
        "global_shape": (2, 8),
        "is_flattened": False,
        "flattened_range": None,
        "replica_id": 0,
    },
    "0_0.distcp",
)


def test_passes_over_what_newer_releases_add() -> None:
    saved = [ONE, *grid(3, 3)]
    more = {"model_type": "ernie", "checkpoint_version": 2.5, "paddle_commit_id": None, "nested": {"a": [1, (2, 3)]}}

    def build(classes: Any) -> Any:
        metadata = metadata_of(saved, "3.3", more=more)(classes)
        for records in metadata.state_dict_metadata.values():
            for record in records:
                record.__dict__["added"] = (1, 2, 3, 4)
        return metadata

    assert parse(pickled_metadata(build)) == expected_of(saved, "3.3")


def test_takes_lists_for_tuples_and_no_nesting() -> None:
    listed = {name: list(value) if isinstance(value, tuple) else value for name, value in ONE.fields.items()}
    found = parse(pickled_metadata(metadata_of([Saved("w", listed, "0_0.distcp")], "3.3", more={"flat_mapping": None})))
    assert found.tensors == expected_of([ONE], "3.3").tensors
    assert found.storage == expected_of([ONE], "3.3").storage
    assert found.nested_keys == {}


def test_takes_lists_that_records_share() -> None:
    saved = grid(4, 4)
    listed = [
        Saved(piece.tensor, piece.fields | {"global_offset": list(piece.fields["global_offset"])}, piece.file)
        for piece in saved
    ]
    assert parse(pickled_metadata(metadata_of(listed, "3.3"))) == expected_of(saved, "3.3")


FAULTS: dict[str, tuple[dict[str, Any], str]] = {
    "negative offset": ({"global_offset": (-1, 4)}, "global_offset"),
    "offset of floats": ({"global_offset": (0.0, 4)}, "global_offset"),
    "offset of booleans": ({"global_offset": (False, True)}, "global_offset"),
    "no offset": ({"global_offset": None}, "global_offset"),
    "offset past 2**63": ({"global_offset": (0, 2**63)}, "global_offset"),
    "shape of another rank": ({"local_shape": (2,)}, "local_shape"),
    "shape that is text": ({"local_shape": "24"}, "local_shape"),
    "shape of 65 axes": ({"local_shape": (1,) * 65, "global_offset": (0,) * 65}, "global_offset"),
    "global shape of another rank": ({"global_shape": (2, 8, 1)}, "global_shape"),
    "dtype that is a number": ({"dtype": 7}, "dtype"),
    "dtype without end": ({"dtype": "float" * 20}, "dtype"),
    "flag that is a number": ({"is_flattened": 0}, "is_flattened"),
    "range without flag": ({"flattened_range": (0, 4)}, "flattened_range"),
    "flag without range": ({"is_flattened": True}, "flattened_range"),
    "range backwards": ({"is_flattened": True, "flattened_range": (4, 0)}, "flattened_range"),
    "range of three": ({"is_flattened": True, "flattened_range": (0, 1, 2)}, "flattened_range"),
    "negative replica": ({"replica_id": -1}, "replica_id"),
    "replica that is text": ({"replica_id": "0"}, "replica_id"),
    "key that is a number": ({"tensor_key": 7}, "tensor_key"),
}


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize(("fields", "named"), FAULTS.values(), ids=FAULTS)
def test_refuses_a_wrong_field(fields: dict[str, Any], named: str, protocol: int) -> None:
    # The third record of its class: at protocol 4 the shortcut is in use by then, and must leave it.
    saved = [*grid(2, 1), Saved("w", ONE.fields | fields, "0_0.distcp")]
    with pytest.raises(DamagedFile) as refusal:
        parse(pickled_metadata(metadata_of(saved, "3.3"), protocol=protocol))
    assert {issue.where for issue in refusal.value.issues} == {"0.metadata"}
    assert any(named in issue.what for issue in refusal.value.issues)


def build_wrong(**fields: Any) -> Callable[[Any], Any]:
    def build(classes: Any) -> Any:
        metadata = metadata_of([ONE], "3.3")(classes)
        metadata.__dict__.update(fields)
        return metadata

    return build


def shared_list(classes: Any) -> Any:
    metadata = metadata_of([ONE], "3.3")(classes)
    metadata.state_dict_metadata["v"] = metadata.state_dict_metadata["w"]
    return metadata


def key_among_pieces(classes: Any) -> Any:
    metadata = metadata_of([ONE], "3.3")(classes)
    metadata.state_dict_metadata["w"] += metadata.storage_metadata
    return metadata


def piece_as_key(classes: Any) -> Any:
    metadata = metadata_of([ONE], "3.3")(classes)
    metadata.storage_metadata[metadata.state_dict_metadata["w"][0]] = "0_0.distcp"
    return metadata


def without_field(name: str) -> Callable[[Any], Any]:
    def build(classes: Any) -> Any:
        metadata = metadata_of([ONE], "3.3")(classes)
        del metadata.state_dict_metadata["w"][0].__dict__[name]
        return metadata

    return build


STRUCTURES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a dict": (lambda classes: {"state_dict_metadata": {}}, "Paddle's Metadata"),
    "another class": (lambda classes: classes.LocalTensorIndex(tensor_key="w"), "Paddle's Metadata"),
    "an object without state": (lambda classes: classes.Metadata(), "Paddle's Metadata"),
    "no tensors": (build_wrong(state_dict_metadata=None), "state_dict_metadata: expected a dict"),
    "no storage": (build_wrong(storage_metadata=[]), "storage_metadata: expected a dict"),
    "nesting that is text": (build_wrong(flat_mapping="w"), "flat_mapping: expected a dict"),
    "nesting of numbers": (build_wrong(flat_mapping={"w": (1,)}), "flat_mapping of 'w'"),
    "nesting without end": (build_wrong(flat_mapping={"w": ("a",) * 1001}), "flat_mapping of 'w'"),
    "tensor key that is a number": (build_wrong(state_dict_metadata={7: []}), "a tensor: expected text, found 7"),
    "pieces that are a tuple": (build_wrong(state_dict_metadata={"w": ()}), "tensor 'w': expected a list"),
    "piece that is text": (build_wrong(state_dict_metadata={"w": ["x"]}), "tensor 'w', piece 0: expected a LocalT"),
    "one list for two tensors": (shared_list, "tensor 'v': expected a list of its pieces"),
    "an index among pieces": (key_among_pieces, "tensor 'w', piece 1: expected a LocalTensorMetadata"),
    "a piece as an index": (piece_as_key, "storage_metadata, entry 1: expected a LocalTensorIndex"),
    "index that is text": (build_wrong(storage_metadata={"w": "0_0.distcp"}), "entry 0: expected a LocalTensorIndex"),
    "a piece without fields": (
        lambda classes: build_wrong(state_dict_metadata={"w": [classes.LocalTensorMetadata()]})(classes),
        "piece 0: state: expected fields by name, found None",
    ),
    "pieces without shapes": (
        lambda classes: build_wrong(
            state_dict_metadata={"w": [classes.LocalTensorMetadata(global_offset=(i, i), dtype="f") for i in range(3)]}
        )(classes),
        "piece 2: local_shape: expected .* found no such field",
    ),
    "no shape": (without_field("local_shape"), "piece 0: local_shape: expected .* found no such field"),
    "file that is a number": (
        lambda classes: build_wrong(storage_metadata={classes.LocalTensorIndex(**ONE.shown(KEY_FIELDS["3.3"])): 7})(
            classes
        ),
        "entry 0: expected a file's name, found 7",
    ),
}


@pytest.mark.parametrize(("build", "text"), STRUCTURES.values(), ids=STRUCTURES)
def test_refuses_a_wrong_structure(build: Callable[[Any], Any], text: str) -> None:
    with pytest.raises(DamagedFile, match=text):
        parse(pickled_metadata(build))


def test_reports_every_issue() -> None:
    wrong = [
        Saved(f"t{i}", ONE.fields | {"global_offset": (-1, i), "tensor_key": f"t{i}"}, "0_0.distcp") for i in range(5)
    ]
    with pytest.raises(DamagedFile) as refusal:
        parse(pickled_metadata(metadata_of(wrong, "3.3")))
    assert len(refusal.value.issues) == 10  # five pieces and five indexes


def text(value: str) -> bytes:
    return b"\x8c" + bytes([len(value)]) + value.encode()


START = b"\x80\x04" + text(FLEX) + b"\x94"
EVIL = {
    "field twice": START + text("Metadata") + b"\x93)\x81}(" + (text("storage_metadata") + b"}") * 2 + b"ub.",
    "tensor twice": START
    + (text("Metadata") + b"\x93)\x81}(" + text("state_dict_metadata") + b"}(" + (text("w") + b"]") * 2)
    + (b"u" + text("storage_metadata") + b"}ub."),
    "pieces that hold themselves": START
    + (text("Metadata") + b"\x93)\x81}(" + text("state_dict_metadata") + b"}" + text("w") + b"]\x94h\x01as")
    + (text("storage_metadata") + b"}ub."),
    "a piece that is its own state": START
    + (text("LocalTensorMetadata") + b"\x93)\x81\x94}(" + text("global_offset") + b"h\x01ub."),
    "a key of a million tuples": START
    + (text("Metadata") + b"\x93)\x81}(" + text("state_dict_metadata") + b"}(" + b")" + b"\x85" * 1_000_000)
    + (b"]u" + text("storage_metadata") + b"}ub."),
    "a field of a piece twice": START
    + (text("Metadata") + b"\x93)\x81}(" + text("state_dict_metadata") + b"}" + text("w") + b"]h\x00")
    + (text("LocalTensorMetadata") + b"\x93)\x81}(" + (text("dtype") + b"N") * 2 + b"ubas")
    + (text("storage_metadata") + b"}ub."),
    "names of fields that are nowhere": START
    + (text("LocalTensorMetadata") + b"\x93)\x81\x94}\x94(h\x77h\x00h\x78Nub."),
    "a text of another length": START
    + (text("LocalTensorMetadata") + b"\x93\x94" + text("global_offset") + b"\x94" + text("local_shape") + b"\x94")
    + (b"h\x01)\x81\x94}\x94(h\x02)h\x03)ub" + b"h\x01)\x81\x94}\x94(h\x02)h\x03\x8c\x09abc\x94ub."),
    "a name from elsewhere": b"\x80\x04" + text("paddle") + text("Metadata") + b"\x93)\x81}b.",
}


@pytest.mark.parametrize("data", EVIL.values(), ids=EVIL)
def test_refuses_what_no_pickler_writes(data: bytes) -> None:
    with pytest.raises(DamagedFile):
        parse(data)


def started() -> Spelling:
    return Spelling().add(FLEX, "Metadata", b"\x93)\x81}(")


def one_key_for_many_indexes(key: str, count: int) -> bytes:
    p = started().add("state_dict_metadata", b"}", "storage_metadata", b"}(", FLEX, "LocalTensorIndex", b"\x93")
    cls = p.memoize()
    p.add(b")\x81}(", "tensor_key", key)
    slot = p.memoize()
    p.add("global_offset", b"K\x00\x85ub", "0_0.distcp")
    for i in range(1, count):
        p.add(cls, b")\x81}(", "tensor_key", slot, "global_offset", b"K" + bytes([i % 256]) + b"\x85ub", "0_0.distcp")
    return bytes(p.add(b"uub."))


def one_state_for_many_pieces(fields: int, count: int) -> bytes:
    p = started().add("storage_metadata", b"}", "state_dict_metadata", b"}(", "w", b"](")
    p.add(FLEX, "LocalTensorMetadata", b"\x93")
    cls = p.memoize()
    p.add(b")\x81}(", "global_offset", b"K\x00\x85", "local_shape", b"K\x01\x85")
    for i in range(fields):
        p.add(f"f{i}", b"N")
    p.add(b"u")
    state = p.memoize()
    p.add(b"b")
    for _ in range(1, count):
        p.add(cls, b")\x81", state, b"b")
    return bytes(p.add(b"euub."))


def one_path_for_many_keys(parts: int, count: int) -> bytes:
    p = started().add("state_dict_metadata", b"}", "storage_metadata", b"}", "flat_mapping", b"}(")
    p.add("k", b"(", "part")
    part = p.memoize()
    p.add(*[part] * (parts - 1), b"t")
    path = p.memoize()
    for i in range(1, count):
        p.add(f"k{i}", path)
    return bytes(p.add(b"uub."))


SHARING: dict[str, Callable[[int, int], bytes]] = {
    "one long key": lambda length, count: one_key_for_many_indexes("x" * 10 * length, count),
    "one state of many fields": one_state_for_many_pieces,
    "one path of many parts": one_path_for_many_keys,
}


@pytest.mark.parametrize("build", SHARING.values(), ids=SHARING)
def test_what_is_shared_is_read(build: Callable[[int, int], bytes]) -> None:
    found = parse(build(20, 30))
    assert 30 in (
        len(found.storage.get("x" * 200, StoredPieces((), ())).files),
        len(found.tensors.get("w", ())),
        len(found.nested_keys),
    )


@pytest.mark.parametrize("build", SHARING.values(), ids=SHARING)
def test_a_small_file_cannot_stand_for_much_more(build: Callable[[int, int], bytes]) -> None:
    data = build(1_000, 6_000)
    with counted_calls() as calls, pytest.raises(DamagedFile, match="stands for far more than it holds"):
        parse(data)
    assert calls.made < 8 * len(data)


def test_a_text_is_made_once_however_often_it_is_named() -> None:
    data = one_key_for_many_indexes("x" * 10_000, 100)
    ((key, stored),) = parse(data).storage.items()
    assert (len(key), len(stored.places)) == (10_000, 100)


def test_records_that_disagree_on_their_layout_are_read() -> None:
    names = tuple(reversed(PIECE_FIELDS["3.3"]))

    def build(classes: Any) -> Any:
        metadata = metadata_of(grid(6, 2), "3.3")(classes)
        for records in list(metadata.state_dict_metadata.values())[3:]:
            for record in records:
                record.__dict__.update({name: record.__dict__.pop(name) for name in names})
        return metadata

    assert parse(pickled_metadata(build)) == expected_of(grid(6, 2), "3.3")


SAMPLE = pickled_metadata(metadata_of([ONE, *grid(4, 2)], "3.3"))


@given(data=damaged_copies(SAMPLE))
def test_damage_gives_metadata_or_a_refusal(data: bytes) -> None:
    try:
        found = parse(data)
    except DamagedFile:
        return
    assert all(type(record) is PieceRecord for records in found.tensors.values() for record in records)
    for key, stored in found.storage.items():
        assert type(key) is str
        assert len(stored.places) == len(stored.files)
        assert all(type(place) is PlaceKey for place in stored.places)
        assert all(type(file) is str for file in stored.files)


def test_every_cut_is_noticed() -> None:
    for at in range(len(SAMPLE)):
        with pytest.raises(DamagedFile):
            parse(SAMPLE[:at])


UNREADABLE = {
    "b_evil_meta",
    "b_meta_empty",
    "b_meta_garbage",
    "b_meta_not_metadata",
    "b_meta_trunc_1",
    "b_meta_trunc_half",
}


def test_corpus(corpus_case: Case) -> None:
    for path in sorted(corpus_case.checkpoint.glob("*.metadata")):
        data = path.read_bytes()
        if corpus_case.name in UNREADABLE:
            with pytest.raises(DamagedFile):
                parse(data)
        else:
            found = parse(data)
            assert found.tensors
            assert found.storage


def test_nothing_is_imported_for_a_name() -> None:
    data = pickle.dumps(pickle.Unpickler, protocol=4)
    with pytest.raises(DamagedFile, match="names '_pickle' 'Unpickler', which no such file needs; nothing was run"):
        parse(data)
