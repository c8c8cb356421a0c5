"""Files read once in bounded blocks: their SHA-256, and a copy that is hashed on the way."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

from ckptcore.rules.manifest import FileRecord
from ckptcore.storage.refusals import reported

_BLOCK_BYTES = 1 << 20


def sha256_of(path: Path, on_bytes: Callable[[int], None]) -> FileRecord:
    """Size and SHA-256 of a file as it reads now; ``on_bytes`` is told the size of each block."""
    return _stream(path, None, on_bytes)


def copy_file(source: Path, target: Path) -> FileRecord:
    """Copy a file to a new durable one; the record is of the bytes that were written."""
    return _stream(source, target, lambda _: None)


def _stream(source: Path, target: Path | None, on_bytes: Callable[[int], None]) -> FileRecord:
    sha, size = hashlib.sha256(), 0
    buffer = bytearray(_BLOCK_BYTES)
    with reported("cannot read", source), open(source, "rb", buffering=0) as file:
        output = None
        try:
            if target is not None:
                output = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
            while length := file.readinto(buffer):
                block = memoryview(buffer)[:length]
                sha.update(block)
                size += length
                while output is not None and block:
                    block = block[os.write(output, block) :]
                on_bytes(length)
            if output is not None:
                os.fsync(output)
        finally:
            if output is not None:
                os.close(output)
    return FileRecord((target or source).name, size, sha.hexdigest())
