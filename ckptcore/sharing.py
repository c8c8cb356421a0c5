"""Share the writing of one release with other processes and machines that see the same files.

:func:`share` puts the plan where the shards go, and what it gives is all that has to travel. :func:`merge_shared` is
what a worker does with it. Who holds the staging, begins and finishes is ``publishing``'s.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path

from ckptcore.errors import StorageError, WorkerUnfit
from ckptcore.rules.chunks import chunks
from ckptcore.rules.finished_shard import RECORD_SUFFIX
from ckptcore.rules.plan_documents import (
    HEAD_NAME,
    PlanHead,
    document_name,
    head_document,
    parse_head,
    parse_shard,
    sha256_of,
    shard_document,
)
from ckptcore.storage.copier import Digests
from ckptcore.storage.parts import owned, put_document
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import read_document
from ckptcore.writing import Writing, merge_shards


@dataclass(frozen=True, slots=True)
class SharedPlan:
    """A plan that lies where its shards go: the directory, and the SHA-256 of its head."""

    parts: str
    digest: str


def share(writing: Writing) -> SharedPlan:
    """Put the plan of what is left to write beside the parts, for whoever is to write some of it."""
    plan, rest = writing.plan, set(writing.rest)
    digests = {}
    for shard in plan.shards:
        if shard.name in rest:
            document = shard_document(shard)
            put_document(writing.parts / document_name(shard.name), document)
            digests[shard.name] = sha256_of(document)
    head = head_document(PlanHead(plan, digests, writing.digests, writing.fsync, _version()))
    put_document(writing.parts / HEAD_NAME, head)
    return SharedPlan(str(writing.parts), sha256_of(head))


def shares(writing: Writing, *, most: int) -> tuple[tuple[str, ...], ...]:
    """The shards that are left to write, in at most ``most`` chunks of about the same size."""
    rest = set(writing.rest)
    return chunks({shard.name: shard.size_bytes for shard in writing.plan.shards if shard.name in rest}, most=most)


def merge_shared(
    shared: SharedPlan, names: Sequence[str], *, on_progress: OnProgress = ignore_progress
) -> Mapping[str, str]:
    """Write the shards ``names`` of a shared plan, and give each one's SHA-256.

    Raises what :func:`ckptcore.writing.merge_shards` does, and :class:`WorkerUnfit` where this machine has another
    version of this package as well.
    """
    parts = Path(shared.parts)
    with owned(parts):
        head = parse_head(_read(parts / HEAD_NAME, shared.digest))
        if head.version != _version():
            here = f"{os.uname().nodename} has ckptcore {_version()}"
            raise WorkerUnfit(f"{here}: expected {head.version}, which planned {parts.parent.name}")
        read = (parse_shard(_read(parts / document_name(name), head.shards[name])) for name in names)
        plan = replace(head.plan, shards=tuple(read))
    return merge_shards(
        plan, set(names), parts, digests=Digests(head.digests), fsync=head.fsync, on_progress=on_progress
    )


def finished_bytes(writing: Writing) -> int:
    """How many bytes of data are in the shards that are finished by now, whoever wrote them."""
    sizes = {shard.name: shard.data_bytes for shard in writing.plan.shards}
    with reported("cannot list", writing.parts):
        names = os.listdir(writing.parts)
    return sum(sizes.get(name.removesuffix(RECORD_SUFFIX), 0) for name in names if name.endswith(RECORD_SUFFIX))


def _read(path: Path, digest: str) -> bytes:
    document = read_document(path)
    if sha256_of(document) != digest:
        raise StorageError(f"{path}: is not what was written: expected SHA-256 {digest}, found {sha256_of(document)}")
    return document


def _version() -> str:
    return metadata.version("ckptcore")
