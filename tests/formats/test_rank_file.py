"""Rank files: every way in which numpy and ``paddle.save`` spell arrays, and each way in which one can be wrong."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from ckptcore.errors import DamagedFile
from ckptcore.formats.payloads import read_payload
from ckptcore.formats.rank_file import parse_rank_file
from ckptcore.formats.reader import BytesReader
from ckptcore.formats.safetensors_file import safetensors_rank_file
from ckptcore.rules.stored import RankFile, StoredArray
from tests.corpus import Case, all_cases
from tests.formats.bytes_under_test import Spelling, WatchedReader, counted_calls, damaged_copies

Array = np.ndarray[Any, np.dtype[Any]]

NAMES = "StructuredToParameterName@@"
SLICED = "UnpackBigParamInfor@@"


def parse(data: bytes) -> RankFile:
    return parse_rank_file(WatchedReader(data), "0_0.distcp")


def values_of(data: bytes, stored: StoredArray) -> Array:
    """The array, built as a merge builds it: from the payload and the strides."""
    payload = bytearray(stored.payload_bytes)
    read_payload(BytesReader(data), stored, 0, memoryview(payload))
    flat = np.frombuffer(payload, stored.dtype)
    strides = [stride * stored.itemsize for stride in stored.strides]
    return np.lib.stride_tricks.as_strided(flat, stored.shape, strides).copy()


def assert_reads(tensors: Mapping[str, Array], data: bytes) -> None:
    found = parse(data).arrays
    assert list(found) == list(tensors)
    for key, array in tensors.items():
        stored = found[key]
        assert stored.dtype == array.dtype.str
        assert stored.shape == array.shape
        assert values_of(data, stored).tobytes() == array.tobytes()


DTYPES = ("?", "i1", "i2", "i4", "i8", "u1", "u2", "f2", "f4", "f8", "c8", "c16", ">f4", ">i8", ">u2")
shapes = nps.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@st.composite
def arrays(draw: st.DrawFn) -> Array:
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(shapes)
    payload = draw(st.binary(min_size=1, max_size=64)) * dtype.itemsize
    array = np.resize(np.frombuffer(payload, np.uint8), int(np.prod(shape)) * dtype.itemsize)
    values = (array & 1 if dtype.kind == "b" else array).view(dtype).reshape(shape)
    return values.transpose(draw(st.permutations(range(values.ndim))))


@given(
    tensors=st.dictionaries(st.text(max_size=6), arrays(), max_size=5),
    protocol=st.sampled_from((2, 3, 4, 5)),
)
def test_reads_every_array_at_every_protocol(tensors: dict[str, Array], protocol: int) -> None:
    if protocol == 2:  # numpy spells no bytes at all as a call of its own there, and Paddle saves no empty tensor
        tensors = {key: array for key, array in tensors.items() if array.size}
    assert_reads(tensors, pickle.dumps(tensors, protocol=protocol))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_reads_big_payloads_without_their_bytes(protocol: int) -> None:
    rng = np.random.default_rng(protocol)
    tensors: dict[str, Array] = {
        "big": rng.integers(0, 255, (300, 1000), np.uint8),
        "small": np.ones(3, np.float32),
        "fortran": np.asfortranarray(rng.normal(size=(200, 300))),
    }
    data = pickle.dumps(tensors, protocol=protocol)
    assert_reads(tensors, data)
    if protocol > 2:  # there a payload's length takes reading it
        reader = WatchedReader(data)
        parse_rank_file(reader, "0_0.distcp")
        assert reader.bytes_read < len(data) / 5


def test_shared_arrays_are_one_payload() -> None:
    array = np.arange(6, dtype=np.int64)
    found = parse(pickle.dumps({"a": array, "b": array}, protocol=4)).arrays
    assert found["a"] == found["b"]


def test_reads_parameter_names() -> None:
    saved: dict[str, Any] = {"w": np.ones(2, np.float32), NAMES: {"w": "linear_0.w_0"}}
    found = parse(pickle.dumps(saved, protocol=4))
    assert list(found.arrays) == ["w"]
    assert found.parameter_names == {"w": "linear_0.w_0"}


def test_a_tensor_may_have_a_special_name() -> None:
    special: dict[str, Array] = {
        NAMES: np.ones(2, np.float32),
        SLICED: np.zeros(3, np.float32),
        "x@@.0": np.ones(1, np.int8),
    }
    assert_reads(special, pickle.dumps(special, protocol=4))


def sliced(array: Array, cuts: list[int], *, key: str = "w", **info: Any) -> dict[str, Any]:
    """What ``paddle.save`` makes of a tensor over 1 GiB at protocols 2 and 3."""
    parts = {f"{key}@@.{i}": part for i, part in enumerate(np.split(array.reshape(-1), cuts))}
    return (
        {"first": np.ones(2, np.int8)}
        | parts
        | {SLICED: {key: {"OriginShape": array.shape, "slices": list(parts)} | info}}
    )


@pytest.mark.parametrize("protocol", [2, 3])
def test_joins_sliced_tensors(protocol: int) -> None:
    array = np.arange(700_000, dtype=np.int32).reshape(700, 1000)
    data = pickle.dumps(sliced(array, [10, 300_000]), protocol=protocol)
    assert_reads({"first": np.ones(2, np.int8), "w": array}, data)


ARRAY = np.arange(6, dtype=np.float32).reshape(2, 3)


class CallsFor:
    """Pickles as the call of a function with arguments, and a state."""

    def __init__(self, *reduced: Any) -> None:
        self.reduced = reduced

    def __reduce__(self) -> Any:
        return self.reduced


RECONSTRUCT = ARRAY.__reduce__()[0]
DTYPE = np.dtype("f4")


def made(*state: Any, args: tuple[Any, ...] = (np.ndarray, (0,), b"b")) -> CallsFor:
    return CallsFor(RECONSTRUCT, args, state)


def dtype_of(*args: Any, state: Any = (3, "<", None, None, None, -1, -1, 0)) -> CallsFor:
    return CallsFor(np.dtype, args, state)


FROMBUFFER = np.ones(2).__reduce_ex__(5)[0]

FAULTS: dict[str, tuple[Any, str]] = {
    "no dict": ([ARRAY], "the file's one object: expected a dict"),
    "key that is a number": ({7: ARRAY}, "a key: expected text, found 7"),
    "key without end": ({"k" * 70_000: ARRAY}, "a key: expected text, found a text of 70,000 bytes"),
    "value that is text": ({"w": "text"}, "'w': the value: expected an array, found 'text'"),
    "value that is a dict": ({"w": {}}, "'w': the value: expected an array, found a dict"),
    "value that is bytes": ({"w": b"bytes"}, "'w': the value: expected an array"),
    "parameter names that are numbers": ({NAMES: {"w": 7}}, "of 'w': expected a parameter's name, found 7"),
    "numpy scalar": ({"w": np.float32(1)}, "names 'numpy._core.multiarray' 'scalar'"),
    "objects": ({"w": np.array([None, "a"])}, "'w': the array's dtype: expected plain numbers"),
    "text": ({"w": np.array(["a", "b"])}, "'w': the array's dtype: expected plain numbers"),
    "structured": ({"w": np.zeros(2, "i4,f4")}, "'w': the array's dtype: expected plain numbers"),
    "dates": ({"w": np.zeros(2, "M8[s]")}, "'w': the array's dtype: expected plain numbers"),
    "long double": ({"w": np.zeros(2, np.longdouble)}, "'w': the array's dtype: expected plain numbers"),
    "payload too short": ({"w": made(1, (2, 3), DTYPE, False, bytes(23))}, "'w': the payload's length: expected 24"),
    "payload too long": ({"w": made(1, (2, 3), DTYPE, False, bytes(25))}, "'w': the payload's length: expected 24"),
    "shape of the world": ({"w": made(1, (2**62, 2**62), DTYPE, False, b"")}, "'w': the payload's length"),
    "negative shape": ({"w": made(1, (-2, -3), DTYPE, False, bytes(24))}, "'w': the array's shape"),
    "shape of text": ({"w": made(1, ("2",), DTYPE, False, bytes(24))}, "'w': the array's shape"),
    "shape of a number": ({"w": made(1, 6, DTYPE, False, bytes(24))}, "'w': the array's shape"),
    "payload of numbers": ({"w": made(1, (2, 3), DTYPE, False, [0] * 6)}, "'w': the payload: expected bytes"),
    "order that is a number": ({"w": made(1, (2, 3), DTYPE, 0, bytes(24))}, "'w': the array's state"),
    "state of another version": ({"w": made(2, (2, 3), DTYPE, False, bytes(24))}, "'w': the array's state"),
    "no state": ({"w": CallsFor(RECONSTRUCT, (np.ndarray, (0,), b"b"))}, "'w': the array's state"),
    "made of another class": ({"w": made(args=(np.dtype, (0,), b"b"))}, "'w': the array: expected numpy's"),
    "dtype that is text": ({"w": made(1, (2, 3), "f4", False, bytes(24))}, "'w': the array's dtype"),
    "dtype without state": (
        {"w": made(1, (), dtype_of("f4", False, True, state=None), False, bytes(4))},
        "'w': the array's dtype: expected numpy's",
    ),
    "byte order that is none": (
        {"w": made(1, (), dtype_of("f4", False, True, state=(3, "!", None, None, None, -1, -1, 0)), False, bytes(4))},
        "'w': the dtype's state",
    ),
    "byte order that says nothing": (
        {"w": made(1, (), dtype_of("f4", False, True, state=(3, "|", None, None, None, -1, -1, 0)), False, bytes(4))},
        "'w': the dtype's byte order",
    ),
    "dtype with a long state": (
        {"w": made(1, (), dtype_of("f4", False, True, state=(3, *"abcdefghijkl")), False, bytes(4))},
        "'w': the dtype's state",
    ),
    "order K without axes": ({"w": CallsFor(FROMBUFFER, (bytes(4), DTYPE, (1,), "K"))}, "'w': the array: expected"),
    "axes that are not all": (
        {"w": CallsFor(FROMBUFFER, (bytes(4), DTYPE, (1, 1), "K", (0, 0)))},
        "'w': the array's axes: expected each of its 2 once",
    ),
    "buffer with a state": ({"w": CallsFor(FROMBUFFER, (bytes(4), DTYPE, (1,), "C"), (1,))}, "'w': the array's state"),
    "slices that are missing": (sliced(ARRAY, [2], slices=["w@@.0", "w@@.7"]), "sliced tensor 'w'"),
    "slices twice": (sliced(ARRAY, [3], slices=["w@@.0", "w@@.0"]), "sliced tensor 'w'"),
    "slices that are not all": (sliced(ARRAY, [2], slices=["w@@.0"]), "sliced tensor 'w'"),
    "slices that are numbers": (sliced(ARRAY, [2], slices=[0, 1]), "sliced tensor 'w'"),
    "slices that are none": (sliced(ARRAY, [2], slices=[]), "sliced tensor 'w'"),
    "slices of two dtypes": (sliced(ARRAY, [3]) | {"w@@.1": np.ones(3, np.int32)}, "sliced tensor 'w'"),
    "slices of two axes": (sliced(ARRAY, [2]) | {"w@@.1": np.ones((2, 2), np.float32)}, "sliced tensor 'w'"),
    "slices without shape": (sliced(ARRAY, [2], OriginShape=None), "sliced tensor 'w'"),
    "sliced into its own name": (sliced(ARRAY, [2]) | {"w": ARRAY}, "sliced tensor 'w'"),
    "slices that are a list": ({SLICED: {"w": []}}, "sliced tensor 'w': expected a dict"),
}  # fmt: skip


@pytest.mark.parametrize(("value", "text"), FAULTS.values(), ids=FAULTS)
def test_refuses(value: Any, text: str) -> None:
    with pytest.raises(DamagedFile, match=text):
        parse(pickle.dumps(value, protocol=4))


def test_order_k_is_read_by_its_axes() -> None:
    array = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    data = pickle.dumps({"w": CallsFor(FROMBUFFER, (array.tobytes(), np.dtype("i2"), (2, 3, 4), "K", (1, 2, 0)))}, 5)
    turned = array.transpose(1, 2, 0)
    stored = parse(data).arrays["w"]
    assert stored.shape == turned.shape
    assert values_of(data, stored).tolist() == turned.tolist()


def test_native_byte_order_is_little() -> None:
    native = dtype_of("f4", False, True, state=(3, "=", None, None, None, -1, -1, 0))
    data = pickle.dumps({"w": made(1, (2, 3), native, False, ARRAY.tobytes())}, protocol=4)
    assert_reads({"w": ARRAY}, data)


def test_reports_every_issue_in_one_refusal() -> None:
    with pytest.raises(DamagedFile) as refusal:
        parse(pickle.dumps({"a": 1, "b": ARRAY, "c": np.array([None]), NAMES: {"d": 2}}, protocol=4))
    assert [issue.what.split(":")[0] for issue in refusal.value.issues] == [
        f"{NAMES} of 'd'",
        "tensor 'a'",
        "tensor 'c'",
    ]


def test_a_key_twice_is_refused() -> None:
    twice = b"\x80\x04}(\x8c\x01wN\x8c\x01wNu."
    with pytest.raises(DamagedFile, match="key 'w': expected it once, found it twice"):
        parse(twice)


def test_a_payload_of_other_characters_is_refused() -> None:
    data = pickle.dumps({"w": np.frombuffer("ééé".encode("latin-1"), np.uint8)}, protocol=2)
    with pytest.raises(DamagedFile, match="a payload that is spelled as text: expected UTF-8 of characters below 256"):
        parse(data.replace("ééé".encode(), "€é".encode() + b"\x01"))


def test_a_text_under_many_keys_is_measured_once() -> None:
    array = np.full(2_000_000, 200, np.uint8)
    many = {f"w{i}": array for i in range(300)}
    data = pickle.dumps(many, protocol=2)
    reader = WatchedReader(data)
    assert len(parse_rank_file(reader, "0_0.distcp").arrays) == 300
    assert reader.bytes_read < 2 * len(data)


def one_name_for_many_tensors(length: int, count: int) -> bytes:
    p = Spelling().add(b"}(", NAMES, b"}(", "k", "n" * length)
    name = p.memoize()
    for i in range(1, count):
        p.add(f"k{i}", name)
    return bytes(p.add(b"uu."))


def one_entry_for_many_sliced(slices: int, count: int) -> bytes:
    p = Spelling().add(b"}(", SLICED, b"}(", "k", b"}(", "OriginShape", b"K\x01\x85", "slices", b"](")
    p.add(*["s"] * slices, b"eu")
    entry = p.memoize()
    for i in range(1, count):
        p.add(f"k{i}", entry)
    return bytes(p.add(b"uu."))


def one_list_for_many_sliced(slices: int, count: int) -> bytes:
    p = Spelling().add(b"}(", SLICED, b"}(", "k", b"}(", "OriginShape", b"K\x01\x85", "slices", b"](")
    p.add(*["s"] * slices, b"e")
    listed = p.memoize()
    p.add(b"u")
    for i in range(1, count):
        p.add(f"k{i}", b"}(", "OriginShape", b"K\x01\x85", "slices", listed, b"u")
    return bytes(p.add(b"uu."))


def test_a_name_is_made_once_however_often_it_is_given() -> None:
    names = parse(one_name_for_many_tensors(10_000, 100)).parameter_names
    assert len(names) == 100
    assert len({id(name) for name in names.values()}) == 1


@pytest.mark.parametrize("build", [one_name_for_many_tensors, one_entry_for_many_sliced, one_list_for_many_sliced])
def test_a_small_file_cannot_stand_for_much_more(build: Callable[[int, int], bytes]) -> None:
    data = build(2_000, 8_000)
    with counted_calls() as calls, pytest.raises(DamagedFile, match="stands for far more than it holds"):
        parse(data)
    assert calls.made < 8 * len(data)


def test_a_slice_belongs_to_one_tensor() -> None:
    saved = sliced(ARRAY, [2])
    saved[SLICED]["v"] = {"OriginShape": ARRAY.shape, "slices": list(saved[SLICED]["w"]["slices"])}
    with pytest.raises(DamagedFile, match="sliced tensor 'v': expected its slices, each once"):
        parse(pickle.dumps(saved, protocol=2))


SAMPLES = [
    pickle.dumps({"a": ARRAY, "b": ARRAY.T, "c": ARRAY.astype(">i2"), NAMES: {"a": "w_0"}}, protocol=protocol)
    for protocol in (2, 3, 4, 5)
] + [pickle.dumps(sliced(ARRAY, [2]), protocol=2)]


@given(data=st.one_of([damaged_copies(sample) for sample in SAMPLES]))
def test_damage_gives_arrays_inside_the_file_or_a_refusal(data: bytes) -> None:
    try:
        found = parse(data)
    except DamagedFile:
        return
    for stored in found.arrays.values():
        values_of(data, stored)


@pytest.mark.parametrize("data", SAMPLES)
def test_every_cut_is_noticed(data: bytes) -> None:
    for at in range(len(data)):
        with pytest.raises(DamagedFile):
            parse(data[:at])


UNREADABLE = {
    "b_big_trunc_after_payload", "b_big_trunc_in_payload", "b_evil_rank", "b_rank_empty", "b_rank_garbage",
    "b_rank_not_dict", "b_rank_text", "b_rank_trailing", "b_rank_trunc_1", "b_rank_trunc_half", "b_rank_trunc_header",
}  # fmt: skip


def test_corpus(corpus_case: Case) -> None:
    files = [path for path in sorted(corpus_case.checkpoint.iterdir()) if path.is_file() and path.suffix != ".lock"]
    refused = []
    for path in files:
        if path.suffix == ".metadata":
            continue
        data = path.read_bytes()
        try:
            found = (parse_rank_file if path.suffix == ".distcp" else safetensors_rank_file)(
                BytesReader(data), path.name
            )
        except DamagedFile as error:
            refused.append(error)
            continue
        for stored in found.arrays.values():
            values_of(data, stored)
    assert len(refused) == (corpus_case.name in UNREADABLE)


WHOLE = [
    case
    for case in all_cases()
    if case.verdict == "good" and len(list(case.checkpoint.glob("*_0.*"))) == 1 and case.unique_ids == (0,)
]
"""The cases of one rank: each tensor is one array, where others take a merge to put together."""


@pytest.mark.parametrize("case", WHOLE, ids=[case.name for case in WHOLE])
def test_whole_tensors_of_the_corpus_are_exact(case: Case) -> None:
    (path,) = case.checkpoint.glob("*_0.*")
    data = path.read_bytes()
    parse_file = parse_rank_file if path.suffix == ".distcp" else safetensors_rank_file
    found = parse_file(BytesReader(data), path.name).arrays
    for key, (_, shape, expected) in case.expected(0).items():
        if expected:
            assert found[key].shape == shape
            assert values_of(data, found[key]).tobytes() == expected
