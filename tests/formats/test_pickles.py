"""The opcode reader: it says what pickles say, at every protocol, and refuses everything else without doing it."""

from __future__ import annotations

import os
import pickle
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import DamagedFile
from ckptcore.formats.pickle_values import Call, Global, Instance, LongText, Pairs, describe
from ckptcore.formats.pickles import read_pickle
from ckptcore.formats.reader import BytesReader
from ckptcore.rules.stored import Segment
from tests.formats.bytes_under_test import WatchedReader, damaged_copies, pickled_metadata

PROTOCOLS = (2, 3, 4, 5)

KNOWN = Global("numpy", "dtype")


def read(data: bytes, *allowed: Global) -> Any:
    return read_pickle(WatchedReader(data), "f", allowed or (KNOWN,))


def plain(value: Any, data: bytes) -> Any:
    """The value as Python's unpickler would have made it."""
    match value:
        case Pairs():
            return {plain(key, data): plain(entry, data) for key, entry in value.entries()}
        case list():
            return [plain(part, data) for part in value]
        case tuple():
            return tuple(plain(part, data) for part in value)
        case Segment(offset, length):
            return data[offset : offset + length]
        case LongText(offset, length):
            return data[offset : offset + length].decode()
        case str():
            return str(value)
        case _:
            return value


leaves = st.none() | st.booleans() | st.integers(-(2**100), 2**100) | st.floats(allow_nan=False) | st.text(max_size=300)
trees = st.recursive(
    leaves | st.lists(st.integers(0, 2**40), max_size=5).map(tuple),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=20,
)


@given(value=trees, protocol=st.sampled_from(PROTOCOLS))
def test_reads_what_pickle_wrote(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol=protocol)
    assert plain(read(data), data) == value


@given(value=st.binary(max_size=400) | st.binary(max_size=10).map(bytearray), protocol=st.sampled_from((4, 5)))
def test_leaves_payloads_in_place(value: bytes | bytearray, protocol: int) -> None:
    if protocol == 4:
        value = bytes(value)  # a bytearray is a call there
    data = pickle.dumps([value, value], protocol=protocol)
    assert plain(read(data), data) == [value, value]


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_reads_across_windows_and_frames(protocol: int) -> None:
    value: list[Any] = [(i, f"key {i}" * (i % 40), [i] * (i % 7), {"n": i << 20}) for i in range(20_000)]
    value += ["t" * length for length in (255, 256, 65_535, 65_536, 65_537, 300_000)]
    data = pickle.dumps(value, protocol=protocol)
    reader = WatchedReader(data)
    assert plain(read_pickle(reader, "f", ()), data) == value
    assert reader.reads < 4 + len(data) / 200_000 + 6  # windows, and one more for each text that is passed over


def test_reads_headers_only() -> None:
    payloads = [bytes([i]) * (1 << 20) for i in range(40)]
    data = pickle.dumps({str(i): payload for i, payload in enumerate(payloads)}, protocol=4)
    reader = WatchedReader(data)
    assert plain(read_pickle(reader, "f", ()), data) == {str(i): payload for i, payload in enumerate(payloads)}
    assert reader.reads <= len(payloads) + 3
    assert reader.bytes_read < len(data) / 20


def test_objects_are_inert_and_shared_ones_stay_one() -> None:
    data = pickled_metadata(lambda classes: [piece := classes.LocalTensorMetadata(dtype="f"), piece])
    named = Global("paddle.distributed.flex_checkpoint.dcp.metadata", "LocalTensorMetadata")
    first, second = read(data, named)
    assert type(first) is Instance
    assert first is second
    assert (first.cls, first.args, first.state) == (named, (), ["dtype", "f"])


def test_calls_are_recorded_not_made() -> None:
    value = read(b"\x80\x02cnumpy\ndtype\nX\x02\x00\x00\x00f4\x85R.")
    assert type(value) is Call
    assert (value.function, value.args, value.state) == (KNOWN, ("f4",), None)


def op(code: str, *parts: bytes) -> bytes:
    return code.encode("latin-1") + b"".join(parts)


def u8(number: int) -> bytes:
    return struct.pack("<Q", number)


def short(text: str) -> bytes:
    return op("\x8c", bytes([len(text)]), text.encode())


EVIL = {
    "os.system": pickle.dumps(os.system, protocol=2),
    "os.system by stack": pickle.dumps(os.system, protocol=4),
    "dotted": b"\x80\x04" + short("numpy") + short("testing.runstring") + b"\x93.",
    "dotted in lines": b"\x80\x02cnumpy\ntesting.runstring\n.",
    "builtins.eval": b"\x80\x02cbuiltins\neval\n(S'1'\ntR.",
    "module of another kind": b"\x80\x04K\x01" + short("dtype") + b"\x93.",
    "name that is a dict": b"\x80\x04" + short("numpy") + b"}\x93.",
    "endless line": b"\x80\x02c" + b"n" * 100_000,
    "INST": b"\x80\x02(inumpy\ndtype\n.",
    "OBJ": b"\x80\x02(cnumpy\ndtype\no.",
    "NEWOBJ_EX": b"\x80\x04" + short("numpy") + short("dtype") + b"\x93)}\x92.",
    "EXT1": b"\x80\x02\x82\x01.",
    "PERSID": b"\x80\x02P1\n.",
    "BINPERSID": b"\x80\x02N\x51.",
    "NEXT_BUFFER": b"\x80\x05\x97.",
    "protocol 0": b"(lp0\n.",
    "protocol 1": b"\x80\x01].",
    "protocol 6": b"\x80\x06].",
    "second PROTO": b"\x80\x04\x80\x04N.",
    "payload of 2**62 bytes": b"\x80\x04" + op("\x8e", u8(2**62)) + b"x.",
    "payload of 2**64 - 1 bytes": b"\x80\x05" + op("\x96", u8(2**64 - 1)) + b"x.",
    "text of 2**62 bytes": b"\x80\x04" + op("\x8d", u8(2**62)) + b"x.",
    "text of 4 GiB": b"\x80\x02X\xff\xff\xff\xffx.",
    "frame of 2**62 bytes": b"\x80\x04" + op("\x95", u8(2**62)) + b"N.",
    "frame in a frame": b"\x80\x04" + op("\x95", u8(12)) + op("\x95", u8(2)) + b"N..",
    "frame at protocol 3": b"\x80\x03" + op("\x95", u8(2)) + b"N.",
    "opcode over the end of a frame": b"\x80\x04" + op("\x95", u8(4)) + b"K\x01J\x01\x00\x00\x00\x86.",
    "payload over the end of a frame": b"\x80\x04" + op("\x95", u8(4)) + b"C\x04abcd.",
    "memo slot 2**31": b"\x80\x02Nr\x00\x00\x00\x80.",
    "memo slot that is taken": b"\x80\x02Nq\x00Nq\x00\x86.",
    "memo slot not written": b"\x80\x02h\x05.",
    "memo slot 2**32 - 1": b"\x80\x02j\xff\xff\xff\xff.",
    "int of 255 bytes": b"\x80\x02\x8a\xff" + b"\x01" * 255 + b".",
    "a million marks": b"\x80\x02" + b"(" * 1_000_000,
    "a million values": b"\x80\x02" + b"N" * 1_000_000 + b".",
    "empty stack": b"\x80\x02\x86.",
    "values below a mark": b"\x80\x02NN(\x86t.",
    "open mark": b"\x80\x02(N.",
    "two values": b"\x80\x02NN.",
    "no value": b"\x80\x02.",
    "SETITEMS into a list": b"\x80\x02](NNu.",
    "SETITEMS of a key": b"\x80\x02}(Nu.",
    "SETITEM into a list": b"\x80\x02]NNs.",
    "APPEND to a dict": b"\x80\x02}Na.",
    "APPENDS to a dict": b"\x80\x02}(NNe.",
    "BUILD of a dict": b"\x80\x02}}b.",
    "BUILD of a name": b"\x80\x02cnumpy\ndtype\n}b.",
    "BUILD with a number": b"\x80\x02cnumpy\ndtype\n)RK\x01b.",
    "BUILD twice": b"\x80\x02cnumpy\ndtype\n)R}b}b.",
    "call of a text": b"\x80\x02X\x01\x00\x00\x00f)R.",
    "call of a result": b"\x80\x02cnumpy\ndtype\n)R)R.",
    "call with a list": b"\x80\x02cnumpy\ndtype\n]R.",
    "object of a text": b"\x80\x02X\x01\x00\x00\x00f)\x81.",
    "text that is no UTF-8": b"\x80\x04\x8c\x01\xff.",
    "long text that is no UTF-8": b"\x80\x02X\x01\x00\x00\x00\xff.",
    "name that is no UTF-8": b"\x80\x02c\xff\ndtype\n.",
    "bytes after STOP": b"\x80\x02N.N",
    "nothing": b"",
    "one byte": b"\x80",
    "only a start": b"\x80\x04",
}


@pytest.mark.parametrize("data", EVIL.values(), ids=EVIL)
def test_refuses(data: bytes) -> None:
    with pytest.raises(DamagedFile) as refusal:
        read(data)
    assert [issue.where for issue in refusal.value.issues] == ["f"]
    assert "byte " in refusal.value.issues[0].what


def test_says_where_what_and_what_was_expected() -> None:
    with pytest.raises(
        DamagedFile, match=r"f: byte 17: opcode 0x93 STACK_GLOBAL names 'posix' 'system', which no such"
    ):
        read(b"\x80\x04" + short("posix") + short("system") + b"\x93.")
    with pytest.raises(
        DamagedFile, match=r"f: byte 4: opcode 0x52 REDUCE: expected a function and a tuple, found None"
    ):
        read(b"\x80\x02N)R.")


BOMBS = {
    "nested tuples": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "list of itself": b"\x80\x02]q\x00h\x00a.",
    "dict of itself": b"\x80\x02}q\x00h\x00h\x00s.",
    "doubling lists": b"\x80\x02]q\x00" + b"".join(b"(" + b"h\x00" * 200 + b"e" for _ in range(200)) + b".",
}


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS)
def test_strange_shapes_are_values_of_bounded_size(data: bytes) -> None:
    tracemalloc.start()
    try:
        value = read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(describe(value)) < 100
    assert peak < 64 * len(data) + 2_000_000


@pytest.mark.parametrize("name", ["a million marks", "a million values", "payload of 2**62 bytes", "text of 4 GiB"])
def test_length_fields_and_depth_cost_nothing(name: str) -> None:
    data = EVIL[name]
    tracemalloc.start()
    try:
        with pytest.raises(DamagedFile):
            read(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8_000_000


SAMPLE = pickle.dumps(
    {
        "w": (1, 300, -1, 2**40, None, True),
        "long": "x" * 300,
        "payload": bytes(70_000),
        "list": ["a", [1.5], {"b": ()}],
    },
    protocol=4,
)


def test_every_cut_is_noticed() -> None:
    small = pickle.dumps(
        {"w": (1, 300, -1, 2**40, None, True), "p": b"123", "list": ["a", [1.5], {"b": ()}]}, protocol=4
    )
    for at in range(len(small)):
        with pytest.raises(DamagedFile):
            read(small[:at])


@given(data=damaged_copies(SAMPLE))
def test_damage_gives_a_value_or_a_refusal(data: bytes) -> None:
    try:
        describe(read(data))
    except DamagedFile:
        pass


def test_a_file_that_shrinks_is_noticed() -> None:
    class Shrinking(BytesReader):
        @property
        def size_bytes(self) -> int:
            return super().size_bytes + 10

    with pytest.raises(DamagedFile, match="the file became shorter"):
        read_pickle(Shrinking(b"\x80\x02N."), "f", ())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (1.5, "1.5"),
        ("k", "'k'"),
        ("k" * 81, "a str of 81 characters"),
        ((1, 2), "(1, 2)"),
        ([1, 2], "[1, 2]"),
        ((1, "a"), "a tuple of 2 values"),
        (Pairs([1, 2]), "a dict of 1 entries"),
        (KNOWN, "the global numpy.dtype"),
        (Instance(KNOWN, ()), "a numpy.dtype"),
        (Call(KNOWN, ()), "a numpy.dtype(…)"),
        (LongText(0, 70_000), "a text of 70,000 bytes"),
        (Segment(0, 1), "a Segment"),
    ],
)
def test_describes_values_in_a_few_words(value: Any, words: str) -> None:
    assert describe(value) == words
