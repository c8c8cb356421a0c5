"""Files read once in bounded blocks: their SHA-256, and a copy that is hashed on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Iterator
from io import RawIOBase
from pathlib import Path

from ckptcore.errors import SourceChanged
from ckptcore.rules.manifest import FileRecord
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import open_regular

_BLOCK_BYTES = 1 << 20


def sha256_of(path: Path, on_bytes: Callable[[int], None]) -> FileRecord:
    """Size and SHA-256 of a file as it reads now; ``on_bytes`` is told the size of each block."""
    return _stream(path, None, on_bytes)


def copy_file(source: Path, target: Path, expected: FileRecord | None = None) -> FileRecord:
    """Copy a file to a new durable one; the record is of the bytes that were written.

    Raises :class:`SourceChanged` where they are not those of ``expected`` (its name aside, and its digest if empty).
    """
    record = _stream(source, target, lambda _: None)
    if expected is not None:
        is_same = record.size_bytes == expected.size_bytes and expected.sha256 in ("", record.sha256)
        if not is_same:
            raise SourceChanged(f"{source}: was changed since it was first read; nothing was published")
    return record


def _stream(source: Path, target: Path | None, on_bytes: Callable[[int], None]) -> FileRecord:
    sha, size = hashlib.sha256(), 0
    with reported("cannot read", source), open(open_regular(source), "rb", buffering=0) as file:
        expected = os.fstat(file.fileno()).st_size
        output = None
        try:
            if target is not None:
                with reported("cannot create", target):
                    output = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            for block in _blocks(file):
                sha.update(block)
                size += len(block)
                if output is not None and target is not None:
                    _write_all(output, block, target)
                on_bytes(len(block))
            if output is not None and target is not None:
                with reported("cannot sync", target):
                    os.fsync(output)
        finally:
            if output is not None:
                os.close(output)
    if size != expected:
        raise SourceChanged(f"{source}: changed while it was read: expected {expected:,} bytes, found {size:,}")
    return FileRecord((target or source).name, size, sha.hexdigest())


def _blocks(file: RawIOBase) -> Iterator[memoryview]:
    buffer = memoryview(bytearray(_BLOCK_BYTES))
    while length := file.readinto(buffer):
        yield buffer[:length]


def _write_all(descriptor: int, block: memoryview, path: Path) -> None:
    with reported("cannot write", path):
        while block:
            block = block[os.write(descriptor, block) :]
