"""Payloads as pickle protocol 2 spells them: UTF-8 text of latin-1 characters, one character a byte.

Owns measuring such a text once, with marks, and decoding any part of it from the mark before. Both work in bounded
chunks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ckptcore.formats.damage import damaged
from ckptcore.formats.reader import Reader
from ckptcore.rules.stored import MARK_EVERY, Segment

CHUNK: Final = 256 << 10
_LEADS: Final = (0xC2, 0xC3)


def measured_text(reader: Reader, name: str, offset: int, stored_length: int) -> Segment:
    """The payload that the text at ``offset`` spells, with its decoded length and marks.

    Reads the whole text, at the speed of decoding it. Raises DamagedFile where a character is none of latin-1's.
    """
    marks, length = [offset], 0
    for start, payload in _chunks(reader, name, offset, offset + stored_length):
        following = len(marks) * MARK_EVERY - length
        while following < len(payload):
            marks.append(start + len(payload[:following].decode("latin-1").encode("utf-8")))
            following += MARK_EVERY
        length += len(payload)
    return Segment(offset, length, tuple(marks), stored_length)


def decoded(reader: Reader, name: str, segment: Segment, start: int, length: int) -> Iterator[bytes]:
    """The payload's bytes from ``start``, ``length`` (one or more) in all, in parts."""
    assert segment.marks is not None
    mark = start // MARK_EVERY
    skip, left = start - mark * MARK_EVERY, length
    for _, payload in _chunks(reader, name, segment.marks[mark], segment.offset + segment.stored_length):
        part = payload[skip : skip + left]
        skip = max(skip - len(payload), 0)
        left -= len(part)
        if part:
            yield part
        if not left:
            return


def _chunks(reader: Reader, name: str, offset: int, end: int) -> Iterator[tuple[int, bytes]]:
    """The decoded text from ``offset`` to ``end``, and where in the file each chunk starts."""
    while offset < end:
        stored = reader.read_at(offset, min(CHUNK, end - offset))
        if len(stored) > 1 and stored[-1] in _LEADS and offset + len(stored) < end:
            stored = stored[:-1]  # half a character: the next chunk starts with it
        try:
            payload = stored.decode("utf-8").encode("latin-1")
        except UnicodeError:
            what = f"byte {offset:,} and on: a payload that is spelled as text"
            raise damaged(name, what, expected="UTF-8 of characters below 256", code="payload") from None
        if not stored:
            what = f"byte {offset:,}: the file ends in a payload"
            raise damaged(name, what, expected=f"{end - offset:,} bytes more", code="payload")
        yield offset, payload
        offset += len(stored)
