"""Which shards of a plan are finished in a staging directory, so that a killed merge goes on instead of starting over.

The first line names the plan (whose digest covers the source's fingerprint) and what was hashed; each further line is
a finished shard, appended after its last byte. A line that a crash cut short is a shard that was not finished.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field

from ckptcore.rules.json_documents import parse_json
from ckptcore.rules.manifest import FileRecord

JOURNAL_NAME = ".journal.jsonl"


@dataclass(frozen=True, slots=True)
class FinishedShard:
    """A written shard: its record, and the SHA-256 of each tensor's data by key, where tensors were hashed.

    ``overflows`` counts, by key, the finite values that a cast made infinite, where there were any.
    """

    record: FileRecord
    tensors: Mapping[str, str]
    overflows: Mapping[str, int] = field(default_factory=dict)

    def to_line(self) -> bytes:
        record = self.record
        document = {"name": record.name, "size_bytes": record.size_bytes, "sha256": record.sha256}
        counted = {"tensors": dict(self.tensors), "overflows": dict(self.overflows)}
        return (json.dumps(document | counted) + "\n").encode()


def journal_head(plan_digest: str, digests: str) -> bytes:
    """The first line of the journal of a plan."""
    return (json.dumps({"plan": plan_digest, "digests": digests}) + "\n").encode()


def finished_shards(journal: bytes, head: bytes) -> tuple[FinishedShard, ...] | None:
    """The shards that the journal says are finished; None where it is not of the plan that ``head`` names."""
    if not journal.startswith(head):
        return None
    finished = {}
    for line in journal[len(head) :].split(b"\n"):
        try:
            document = parse_json(line)
            record = FileRecord(str(document["name"]), int(document["size_bytes"]), str(document["sha256"]))
            finished[record.name] = FinishedShard(
                record,
                {str(k): str(v) for k, v in document["tensors"].items()},
                {str(k): int(v) for k, v in document["overflows"].items()},
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            continue
    return tuple(finished[name] for name in sorted(finished))
