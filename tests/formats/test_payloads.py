"""Payload bytes, in any parts, however the file spells them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import DamagedFile
from ckptcore.formats.latin1_text import CHUNK, measured_text
from ckptcore.formats.payloads import read_payload
from ckptcore.formats.reader import BytesReader
from ckptcore.rules.stored import MARK_EVERY, Segment, StoredArray

PAYLOAD = np.random.default_rng(0).integers(0, 256, 3 * MARK_EVERY + 12_345, np.uint8).tobytes()
BEFORE = b"before it"
TEXT = PAYLOAD.decode("latin-1").encode()
SPELLED = BEFORE + TEXT + b"after"
SEGMENT = measured_text(BytesReader(SPELLED), "f", len(BEFORE), len(TEXT))


def stored(*segments: Segment) -> StoredArray:
    return StoredArray((sum(segment.length for segment in segments),), "|u1", False, segments)


def read(data: bytes, array: StoredArray, offset: int, length: int) -> bytes:
    out = bytearray(length)
    read_payload(BytesReader(data), array, offset, memoryview(out))
    return bytes(out)


def test_measures_a_text() -> None:
    assert SEGMENT.length == len(PAYLOAD)
    assert SEGMENT.stored_length == len(TEXT)
    assert SEGMENT.marks is not None
    assert len(SEGMENT.marks) == 4
    for i, mark in enumerate(SEGMENT.marks):
        assert SPELLED[mark : mark + 40].startswith(PAYLOAD[i * MARK_EVERY :][:10].decode("latin-1").encode())


@pytest.mark.parametrize("length", [0, 1, CHUNK - 1, CHUNK, MARK_EVERY - 1, MARK_EVERY, MARK_EVERY + 1, 2 * MARK_EVERY])
@pytest.mark.parametrize("character", ["a", "é"])
def test_measures_texts_of_every_length(length: int, character: str) -> None:
    text = (character * length).encode()
    segment = measured_text(BytesReader(text), "f", 0, len(text))
    marks = range(0, length, MARK_EVERY) or range(1)
    assert segment == Segment(0, length, tuple(mark * len(character.encode()) for mark in marks), len(text))


@given(bounds=st.lists(st.integers(0, len(PAYLOAD)), min_size=2, max_size=2).map(sorted))
def test_reads_any_part_of_a_text(bounds: list[int]) -> None:
    start, stop = bounds
    assert read(SPELLED, stored(SEGMENT), start, stop - start) == PAYLOAD[start:stop]


@given(data=st.data(), lengths=st.lists(st.integers(0, 9), min_size=1, max_size=5))
def test_reads_across_segments(data: st.DataObject, lengths: list[int]) -> None:
    file, segments, whole = b"", [], b""
    for i, length in enumerate(lengths):
        part = bytes((200 + i + n) % 256 for n in range(length))
        if data.draw(st.booleans()):
            spelled = part.decode("latin-1").encode()
            segments.append(Segment(len(file), length, (len(file),), len(spelled)))
        else:
            spelled = part
            segments.append(Segment(len(file), length))
        file, whole = file + spelled + b"!", whole + part
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert read(file, stored(*segments), start, stop - start) == whole[start:stop]


def test_reads_nothing_of_a_text() -> None:
    assert read(SPELLED, stored(Segment(0, 0, (0,), 0), SEGMENT), 0, 0) == b""
    assert measured_text(BytesReader(b""), "f", 0, 0) == Segment(0, 0, (0,), 0)


def test_goes_on_after_a_read_that_stops_short() -> None:
    class Reluctant(BytesReader):
        def readinto_at(self, offset: int, target: memoryview) -> int:
            return super().readinto_at(offset, target[:3])

    out = bytearray(10)
    read_payload(Reluctant(b"..0123456789.."), stored(Segment(2, 10)), 0, memoryview(out))
    assert out == b"0123456789"


def test_refuses_a_file_that_ends_too_early() -> None:
    with pytest.raises(DamagedFile, match="the file ends 4 bytes too early: expected 10 bytes, found 6"):
        read(b"..0123 5", stored(Segment(2, 10)), 0, 10)
    with pytest.raises(DamagedFile, match="byte 209: the file ends in a payload"):
        read(SPELLED[:209], stored(SEGMENT), 0, 1000)


def test_refuses_a_text_that_changed() -> None:
    with pytest.raises(DamagedFile, match="a payload that is spelled as text"):
        read(BEFORE + b"\xff" * len(TEXT), stored(SEGMENT), 0, 10)
    with pytest.raises(DamagedFile, match=r"the file ends .* bytes too early"):
        read(BEFORE + "é".encode() * len(TEXT), stored(SEGMENT), 0, len(PAYLOAD))
