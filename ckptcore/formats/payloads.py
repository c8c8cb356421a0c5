"""The bytes of a stored array, as if they lay in one piece, whatever segments and spelling they have in the file."""

from __future__ import annotations

from ckptcore.formats.damage import damaged
from ckptcore.formats.latin1_text import decoded
from ckptcore.formats.reader import Reader
from ckptcore.rules.stored import Segment, StoredArray

WHERE = "a tensor's payload"


def read_payload(reader: Reader, array: StoredArray, offset: int, out: memoryview) -> None:
    """Fill ``out`` (bytes) with the payload's decoded bytes from ``offset``.

    ``out`` must lie inside the payload. Raises DamagedFile where the file ends before it is full, or no longer spells
    what it did when it was parsed.
    """
    assert 0 <= offset <= offset + len(out) <= array.payload_bytes
    for segment in array.segments:
        if not len(out):
            return
        length = min(segment.length - offset, len(out))
        if length > 0:
            _read_segment(reader, segment, offset, out[:length])
            out = out[length:]
        offset = max(offset - segment.length, 0)


def _read_segment(reader: Reader, segment: Segment, start: int, out: memoryview) -> None:
    filled = 0
    if segment.marks is None:
        # A read may stop short of what was asked for (2 GiB on Linux) without being at the end.
        while filled < len(out) and (count := reader.readinto_at(segment.offset + start + filled, out[filled:])):
            filled += count
    else:
        for part in decoded(reader, WHERE, segment, start, len(out)):
            out[filled : filled + len(part)] = part
            filled += len(part)
    if filled < len(out):
        what = f"the file ends {len(out) - filled:,} bytes too early"
        raise damaged(WHERE, what, expected=f"{len(out):,} bytes", found=f"{filled:,}", code="payload")
