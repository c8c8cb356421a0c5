"""What is known of a shard that was written: the record beside it, by which anybody finds it finished.

Each record names the plan (whose digest covers the source's fingerprint) and what was hashed, so that a shard of
another plan or source is never taken for one of this.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptcore.rules.json_documents import parse_json
from ckptcore.rules.manifest import FileRecord

RECORD_SUFFIX = ".done"


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A written shard: its record, and the SHA-256 of each tensor's data by key, where tensors were hashed.

    ``overflows`` counts, by key, the finite values that a cast made infinite, where there were any.
    """

    record: FileRecord
    tensors: Mapping[str, str]
    overflows: Mapping[str, int] = field(default_factory=dict)

    def to_bytes(self, plan_digest: str, digests: str) -> bytes:
        record = self.record
        of = {"plan": plan_digest, "digests": digests}
        file = {"name": record.name, "size_bytes": record.size_bytes, "sha256": record.sha256}
        counted = {"tensors": dict(self.tensors), "overflows": dict(self.overflows)}
        return (json.dumps(of | file | counted) + "\n").encode()


def record_name(shard: str) -> str:
    """The file beside a shard that says that it is finished; it appears after the shard's last byte."""
    return f"{shard}{RECORD_SUFFIX}"


def finished_shard(record: bytes, name: str, plan_digest: str, digests: str) -> FinishedShard | None:
    """What the record says of the shard ``name``; None where it is cut, or of another plan or kind of digests."""
    try:
        document = parse_json(record)
        if (document["plan"], document["digests"], document["name"]) != (plan_digest, digests, name):
            return None
        return FinishedShard(
            FileRecord(name, int(document["size_bytes"]), str(document["sha256"])),
            {str(k): str(v) for k, v in document["tensors"].items()},
            {str(k): int(v) for k, v in document["overflows"].items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
        return None
