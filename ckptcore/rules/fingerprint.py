"""What identifies the bytes of a source without reading them: name, size, time and inode of each file.

Pure data and its comparison. Taking a fingerprint is ``storage.local``'s work.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

from ckptcore.rules.issues import Issue, in_order

SOURCE_CHANGED = "source-changed"


@dataclass(frozen=True, slots=True, order=True)
class FileStamp:
    """One file as ``stat`` saw it: plain name, size in bytes, modification time in nanoseconds, inode."""

    name: str
    size_bytes: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """The stamps of all files of a version that are read, sorted by name."""

    files: tuple[FileStamp, ...]

    @property
    def digest(self) -> str:
        """SHA-256 over name, size and time of each file; a copy that keeps times keeps the digest."""
        record = hashlib.sha256()
        for stamp in self.files:
            record.update(f"{stamp.name}\0{stamp.size_bytes}\0{stamp.mtime_ns}\n".encode())
        return record.hexdigest()

    @property
    def size_bytes(self) -> int:
        return sum(stamp.size_bytes for stamp in self.files)

    def changes_to(self, later: Fingerprint) -> tuple[Issue, ...]:
        """One issue for each file that ``later`` lacks, adds or has otherwise; empty where nothing moved."""
        before = {stamp.name: stamp for stamp in self.files}
        after = {stamp.name: stamp for stamp in later.files}
        return in_order(
            _change(name, before.get(name), after.get(name))
            for name in before.keys() | after.keys()
            if before.get(name) != after.get(name)
        )


def _change(name: str, before: FileStamp | None, after: FileStamp | None) -> Issue:
    match (before, after):
        case (FileStamp(), None):
            return Issue(name, "was deleted while it was being read", code=SOURCE_CHANGED)
        case (FileStamp() as old, FileStamp() as new) if old.size_bytes != new.size_bytes:
            expected, found = f"{old.size_bytes:,} bytes", f"{new.size_bytes:,} bytes"
            return Issue(name, "changed its size while it was being read", expected, found, SOURCE_CHANGED)
        case (FileStamp() as old, FileStamp() as new) if old.inode != new.inode:
            return Issue(name, "was replaced by another file while it was being read", code=SOURCE_CHANGED)
        case (FileStamp(), FileStamp()):
            return Issue(name, "was written to while it was being read", code=SOURCE_CHANGED)
        case _:
            return Issue(name, "appeared while the source was being read", code=SOURCE_CHANGED)
