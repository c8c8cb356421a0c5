"""Which files an audit has read, so that one that was interrupted goes on instead of starting over.

The first line says when the audit began; each further line is a file that was read, with the stamp that it had. A file
whose stamp is another now is read again. A line that a crash cut short is a file that was not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from ckptcore.rules.fingerprint import FileStamp
from ckptcore.rules.json_documents import parse_json


@dataclass(frozen=True, slots=True)
class AuditedFiles:
    """When the audit began, and the SHA-256 of each file that it read, by its path and its stamp at that time."""

    begun_at: str
    digests: Mapping[tuple[str, FileStamp], str]


def journal_head(begun_at: str) -> bytes:
    """The first line."""
    return (json.dumps({"begun_at": begun_at}) + "\n").encode()


def audited_line(path: str, stamp: FileStamp, sha256: str) -> bytes:
    """The line of one file; ``path`` tells it from the others of the audit."""
    document = [path, stamp.name, stamp.size_bytes, stamp.mtime_ns, stamp.inode, sha256]
    return (json.dumps(document) + "\n").encode()


def parse_journal(data: bytes) -> AuditedFiles | None:
    """What an interrupted audit left; None where it is no such journal, or nothing was read."""
    head, *lines = data.split(b"\n")
    try:
        begun_at = str(parse_json(head)["begun_at"])
    except (ValueError, KeyError, TypeError):
        return None
    digests = {}
    for line in lines:
        try:
            path, name, size_bytes, mtime_ns, inode, sha256 = parse_json(line)
            stamp = FileStamp(str(name), int(size_bytes), int(mtime_ns), int(inode))
        except (ValueError, TypeError, OverflowError):
            continue
        digests[str(path), stamp] = str(sha256)
    return AuditedFiles(begun_at, digests) if digests else None
