"""What pages want to know of one version or release and no snapshot holds, read by a process of its own.

``python -m ckptcore.dashboard.reading`` takes one request, a JSON document on standard input, and answers in lines of
JSON, each a kind and its data; ``jobs`` asks and listens. A process gives back all its memory, and can be stopped at
any moment. Paths come from the dashboard, which takes them from what it watches, never from a browser.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ckptcore.errors import CheckpointError, VersionNotFound
from ckptcore.rules.issues import Issue
from ckptcore.rules.layout import parse_rank_file_name
from ckptcore.rules.pictures import cells_of
from ckptcore.rules.shard_layout import natural_key
from ckptcore.rules.versions import Version
from ckptcore.storage.progress import OnProgress
from ckptcore.verifying import Verified, verify

MOST_ISSUES = 500
"""So many findings are told one by one; the others are counted."""
_TOLD_EVERY_SECONDS = 0.25
_WORKS_EVERY_SECONDS = 1.0

Request = Mapping[str, Any]
Say = Callable[[str, object], None]


def main() -> int:
    """Answer the request on standard input; the exit status is 0 where it was answered to the end."""
    request = json.loads(sys.stdin.readline())
    mutex = threading.Lock()

    def say(kind: str, data: object) -> None:
        line = json.dumps([kind, data], separators=(",", ":"))
        with mutex:
            sys.stdout.write(f"{line}\n")
            if kind != "row":
                sys.stdout.flush()

    try:
        with _telling_of_work(say):
            _READERS[request["what"]](request, say)
    except CheckpointError as error:
        say("refused", {"message": error.message, "issues": _issues(error.issues)})
        return 1
    say("done", None)
    return 0


@contextmanager
def _telling_of_work(say: Say) -> Iterator[None]:
    """Say now and then that there is work, as long as any is done: who waits for a file system uses no processor."""
    is_over = threading.Event()

    def tell() -> None:
        used = time.process_time()
        while not is_over.wait(_WORKS_EVERY_SECONDS):
            before, used = used, time.process_time()
            if used - before > _WORKS_EVERY_SECONDS / 100:
                say("works", None)

    teller = threading.Thread(target=tell, daemon=True)
    teller.start()
    try:
        yield
    finally:
        is_over.set()
        teller.join()


def _version(request: Request) -> Version:
    from ckptcore.detecting import list_versions

    step, unique_id = request["step"], request["unique_id"]
    for version in list_versions(request["source"], request["component"]):
        if (version.step, version.unique_id) == (step, unique_id):
            return version
    raise VersionNotFound(f"{request['source']}: the version is gone")


def _read_version(request: Request, say: Say) -> None:
    """Verify it, by its headers, and tell every tensor of its metadata in natural order."""
    version = _version(request)
    verified = verify(version)
    report = verified.report
    head = {
        "directory": version.directory,
        "component": version.component,
        "state": report.state.kind.value,
        "paddle_format": "" if verified.located is None else verified.located.paddle_format,
        "tensor_bytes": report.tensor_bytes,
        "files": [[found.name, found.state.value, found.size_bytes] for found in report.files],
        "cells": [[cell.rank, cell.name, cell.state.value, cell.size_bytes] for cell in cells_of(report)],
        "issues": _issues(report.issues),
        "issue_count": len(report.issues),
        "notes": _issues(report.notes),
        "note_count": len(report.notes),
    }
    say("head", head)
    dtypes = {} if verified.located is None else {t.spec.key: t.spec.dtype for t in verified.located.tensors}
    for tensor in _indexed(version):
        files = {piece.file for piece in tensor.pieces}
        places = {(piece.box, piece.flat) for piece in tensor.pieces}
        dtype = tensor.dtype or dtypes.get(tensor.key, "")
        say("row", [tensor.key, dtype, tensor.shape, len(places), len(files), len(tensor.pieces) - len(places)])


def _read_pieces(request: Request, say: Say) -> None:
    """Where each piece of one tensor lies."""
    tensor = next((each for each in _indexed(_version(request)) if each.key == request["key"]), None)
    if tensor is None:
        raise VersionNotFound("the metadata names no such tensor any more")
    say("head", {"key": tensor.key, "dtype": tensor.dtype or "", "shape": tensor.shape})
    for piece in tensor.pieces:
        parsed = parse_rank_file_name(piece.file)
        rank = -1 if parsed is None else parsed.rank
        say("row", [rank, piece.file, piece.box.offset, piece.box.shape, piece.flat, piece.replica])


def _indexed(version: Version) -> Sequence[Any]:
    """The tensors that the metadata names, in natural order; none where it cannot be read."""
    from ckptcore.header_scan import scan_metadata
    from ckptcore.storage.local import Directories

    listing = Directories().listing(version.directory)
    promised = None if listing is None else scan_metadata(version, listing).index
    return () if promised is None else sorted(promised.tensors, key=lambda tensor: natural_key(tensor.key))


def _read_plan(request: Request, say: Say) -> None:
    """What a merge of the version would do; as the pipeline's configuration says where there is one."""
    from ckptcore.merging import plan
    from ckptcore.rules.merge_plan import DEFAULT_MAX_SHARD_BYTES
    from ckptcore.rules.output_layout import OutputLayout
    from ckptcore.rules.selection import Selection

    selection, layout, most = Selection(), OutputLayout(), DEFAULT_MAX_SHARD_BYTES
    if request["config"]:
        from ckptcore.config import read_config

        pipeline = read_config(request["config"])
        source = next((each for each in pipeline.sources if pipeline.name_of(each) == request["name"]), None)
        if source is None:
            raise VersionNotFound(f"{request['config']}: has no source for {request['name']} any more")
        selection, layout, most = source.selection, source.layout(), source.max_shard_bytes
    verified: Verified = verify(_version(request))
    planned = plan(verified.checkpoint, selection=selection, layout=layout, max_shard_bytes=most)
    copies = 0
    for shard in planned.shards:
        of_shard = sum(len(tensor.copies) for tensor in shard.tensors)
        copies += of_shard
        say("row", [shard.name, shard.size_bytes, len(shard.tensors), of_shard])
    head = {
        "digest": planned.digest,
        "bytes_in": planned.bytes_in,
        "bytes_out": planned.bytes_out,
        "peak_memory_bytes": planned.peak_memory_bytes,
        "inputs": len(planned.inputs),
        "tensors": sum(len(shard.tensors) for shard in planned.shards),
        "copies": copies,
        "notes": _issues(planned.notes),
    }
    say("head", head)


def _release(request: Request, release: str) -> Path:
    from ckptcore.registry import existing_shelf
    from ckptcore.rules.release import check_name

    return existing_shelf(request["registry"], request["name"]).release(check_name(release, "release"))


def _read_release(request: Request, say: Say) -> None:
    """The manifest and every tensor in natural order."""
    from ckptcore.rules.manifest import MANIFEST_NAME, SIGNATURE_NAME, FileRecord
    from ckptcore.storage.regular_files import read_document
    from ckptcore.validating import read_manifest

    path = _release(request, request["release"])
    manifest = read_manifest(path)
    own = FileRecord.of(MANIFEST_NAME, read_document(path / MANIFEST_NAME))
    head = {
        "path": str(path),
        "manifest": [own.size_bytes, own.sha256],
        "is_signed": (path / SIGNATURE_NAME).is_file(),
        "source": asdict(manifest.source),
        "plan_digest": manifest.plan_digest,
        "identity": manifest.identity,
        "software": dict(manifest.software),
        "flow_run": manifest.flow_run,
        "created_at": manifest.created_at,
        "files": [[record.name, record.size_bytes, record.sha256] for record in manifest.files],
    }
    say("head", head)
    for record in sorted(manifest.tensors, key=lambda record: natural_key(record.spec.key)):
        spec = record.spec
        say("row", [spec.key, spec.dtype, spec.shape, record.file, record.sha256, record.overflows])


def _read_history(request: Request, say: Say) -> None:
    """Every act on the name, the oldest first."""
    from ckptcore.registry import existing_shelf, history_of

    for act in history_of(existing_shelf(request["registry"], request["name"])):
        say("row", act.to_json())
    say("head", {})


def _read_comparison(request: Request, say: Say) -> None:
    """What headers and digests alone show of two releases."""
    from ckptcore.differing import compare

    compared = compare(_release(request, request["a"]), _release(request, request["b"]))
    for change in sorted(compared.changes, key=lambda change: natural_key(change.key)):
        say("row", [change.key, change.difference.value, _spec(change.before), _spec(change.after), None])
    for before, after in sorted(compared.pairs, key=lambda pair: natural_key(pair[0].key)):
        kind = "changed" if before.dtype == after.dtype else "recast"
        say("row", [before.key, kind, _spec(before), _spec(after), None])
    say("head", {"unchanged": compared.equal, "to_read": len(compared.pairs), "is_measured": False})


def _read_diff(request: Request, say: Say) -> None:
    """How much every tensor of a release changed from one to another; every byte that may differ is read."""
    from ckptcore.differing import diff

    a, b = _release(request, request["a"]), _release(request, request["b"])
    report = diff(a, b, on_start=_teller(say))
    for change in report.changes:
        values = None
        if change.values is not None:
            found = change.values
            values = [found.elements, found.differing, found.not_finite, found.relative, found.largest]
        say("row", [change.key, change.difference.value, _spec(change.before), _spec(change.after), values])
    say("head", {"unchanged": report.unchanged, "to_read": 0, "is_measured": True})


def _read_health(request: Request, say: Say) -> None:
    from ckptcore.health import health

    report = health(_release(request, request["release"]), on_start=_teller(say))
    for tensor in report.tensors:
        say("row", [tensor.spec.key, tensor.nan, tensor.inf, tensor.absmax, tensor.norm])
    say("head", {"others": report.others, "norm": report.norm})


def _spec(spec: Any) -> list[object] | None:
    return None if spec is None else [spec.dtype, spec.shape]


def _issues(issues: Sequence[Issue]) -> list[list[str]]:
    return [[issue.where, issue.what, issue.expected, issue.found, issue.code] for issue in issues[:MOST_ISSUES]]


def _teller(say: Say) -> Callable[[int], OnProgress]:
    """Tells how many bytes are done, some times a second, from any thread."""

    def begin(total: int) -> OnProgress:
        mutex, done, told_at = threading.Lock(), 0, 0.0

        def tell(size_bytes: int) -> None:
            nonlocal done, told_at
            with mutex:
                done += size_bytes
                now = time.monotonic()
                if now - told_at < _TOLD_EVERY_SECONDS and done < total:
                    return
                told_at = now
                say("progress", [done, total])

        say("progress", [0, total])
        return tell

    return begin


_READERS: Mapping[str, Callable[[Request, Say], None]] = {
    "version": _read_version,
    "pieces": _read_pieces,
    "plan": _read_plan,
    "release": _read_release,
    "history": _read_history,
    "comparison": _read_comparison,
    "diff": _read_diff,
    "health": _read_health,
}

if __name__ == "__main__":
    sys.exit(main())
