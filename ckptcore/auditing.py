"""Audit: re-read a registry against its manifests, and find what does not belong there.

Gather (each name, then each release without its data), decide (``rules.audit``, ``rules.validation``), then read every
byte that a digest is known of, on all cores, the largest file first. Nothing is repaired, and nothing but the audit's
own journal is written: an audit that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ckptcore.clock import now
from ckptcore.errors import ReleaseInvalid, ReleaseNotFound, StorageError
from ckptcore.registry import Shelf, existing_shelf, is_release, names_in, shelf_of
from ckptcore.rules.audit import (
    STAGINGS,
    TRASH,
    AuditReport,
    FoundAlias,
    FoundEntry,
    FoundLeftover,
    FoundShelf,
    check_shelf,
    is_newer,
    within,
)
from ckptcore.rules.audit_journal import AuditedFiles, audited_line, journal_head, parse_journal
from ckptcore.rules.fingerprint import FileStamp
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.manifest import FileRecord
from ckptcore.rules.release import release_named_by
from ckptcore.rules.validation import compare_file
from ckptcore.storage.audit_journal import JournalFile, journal_at
from ckptcore.storage.commit import is_locked
from ckptcore.storage.digests import sha256_of
from ckptcore.storage.local import GONE, fingerprint
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.storage.refusals import reported, storage_error
from ckptcore.storage.regular_files import read_document
from ckptcore.storage.staging import stagings_in
from ckptcore.validating import examine, read_manifest

JOURNAL_NAME = ".audit.jsonl"
PARTIAL_JOURNAL_NAME = ".audit-since.jsonl"


@dataclass(frozen=True, slots=True)
class _Release:
    """A release to be audited, and what its findings are filed under."""

    directory: Path
    label: str


@dataclass(frozen=True, slots=True)
class _File:
    """A file whose bytes are to be read: what the manifest promises, and its stamp before that."""

    release: _Release
    promised: FileRecord
    stamp: FileStamp

    @property
    def path(self) -> str:
        """What tells it from the others in the journal."""
        return f"{self.release.label}/{self.promised.name}"


class _Found:
    """What an audit has found so far."""

    def __init__(self) -> None:
        self.issues: list[Issue] = []
        self.notes: list[Issue] = []
        self.releases: list[_Release] = []
        self.skipped = 0

    def refused(self, where: str, error: StorageError) -> None:
        self.issues.append(Issue(where, error.message, code="unreadable"))


class _Stopped(Exception):
    """Ends a reading thread when the audit is given up."""


def unwatched(_: int) -> OnProgress:
    """For those who do not look at progress."""
    return ignore_progress


def audit(
    registry: str | os.PathLike[str],
    name: str | None = None,
    *,
    since: datetime | None = None,
    on_start: Callable[[int], OnProgress] = unwatched,
) -> AuditReport:
    """Audit every name of ``registry``, or ``name`` alone; with ``since``, only the releases made then or later.

    ``on_start`` is told how many bytes will be read and gives the callback that is told each block. What prune takes
    away meanwhile is left out. Raises :class:`ReleaseNotFound` where there is nothing to audit, and :class:`Busy`
    where another audit of the same runs.
    """
    root = Path(os.path.abspath(registry))
    names = _names(root) if name is None else (existing_shelf(root, name).name,)
    journal_name = JOURNAL_NAME if since is None else PARTIAL_JOURNAL_NAME
    with journal_at((root if name is None else root / name) / journal_name) as journal:
        found = _Found()
        if name is None:
            found.notes += _strays(root, names)
        for shelf in (shelf_of(root, each) for each in names):
            _audit_shelf(shelf, since, found)
        files = [file for release in found.releases for file in _examined(release, found)]
        files.sort(key=lambda file: (-file.promised.size_bytes, file.path))
        earlier = parse_journal(journal.content)
        continued = _take_over(files, earlier, found)
        _read([file for file in files if file not in continued], earlier, journal, found, on_start)
        journal.remove()
    if journal.refusal:
        found.notes.append(Issue("", f"{journal.refusal}; an interrupted audit starts over", code="no-journal"))
    return AuditReport(
        registry=str(root),
        names=len(names),
        releases=len(found.releases),
        skipped=found.skipped,
        files=len(files),
        size_bytes=sum(file.promised.size_bytes for file in files),
        continued=len(continued),
        continued_from=earlier.begun_at if earlier and continued else "",
        issues=in_order(found.issues),
        notes=in_order(found.notes),
    )


def _names(root: Path) -> tuple[str, ...]:
    names = names_in(root)
    if not names:
        raise ReleaseNotFound(f"{root}: holds no releases; nothing to audit")
    return names


def _strays(root: Path, names: Sequence[str]) -> Iterator[Issue]:
    """A note on each entry of the registry that is no name: a mount's own directories, say."""
    for entry in _entries(root):
        if entry.name not in names and not entry.name.startswith("."):
            yield Issue(entry.name, f"is no name of the registry: a {entry.kind}", code="stray")


def _audit_shelf(shelf: Shelf, since: datetime | None, found: _Found) -> None:
    """File the findings about a name, and the releases of it that are to be audited."""
    try:
        listed = _listed(shelf)
    except StorageError as error:
        found.refused(shelf.name, error)
        return
    findings = check_shelf(listed, datetime.now(UTC))
    found.issues += findings.issues
    found.notes += findings.notes
    for release in listed.releases:
        directory = shelf.release(release)
        if since is None or _is_newer(directory, since):
            found.releases.append(_Release(directory, f"{shelf.name}@{release}"))
        else:
            found.skipped += 1


def _listed(shelf: Shelf) -> FoundShelf:
    """A name as it is now. What moves while it is listed is looked at again rather than taken for damage."""
    in_releases = _entries(shelf.releases)
    whole = {entry.name for entry in in_releases if entry.kind == "directory" and is_release(shelf.release(entry.name))}
    entries = _entries(shelf.root)
    with reported("cannot read", shelf.root):
        links = [entry.name for entry in entries if entry.kind == "link" and not entry.name.startswith(".")]
        texts = {link: os.readlink(shelf.alias(link)) for link in links}
        aliases = [
            FoundAlias(link, text, is_release(shelf.release(release_named_by(text)))) for link, text in texts.items()
        ]
        history = read_document(shelf.history) if shelf.history.is_file() else b""
    at_work = is_locked(shelf.lock)
    return FoundShelf(
        name=shelf.name,
        entries=tuple(entry for entry in entries if os.path.lexists(shelf.root / entry.name)),
        releases=tuple(sorted(whole)),
        unfinished=tuple(e for e in in_releases if e.name not in whole and os.path.lexists(shelf.release(e.name))),
        aliases=tuple(aliases),
        leftovers=tuple(_leftovers(shelf)),
        history=history,
        is_locked=at_work,
    )


def _leftovers(shelf: Shelf) -> Iterator[FoundLeftover]:
    for name, at_work in stagings_in(shelf.stagings):
        yield FoundLeftover(STAGINGS, name, at_work, _finished_at(shelf.staging(name)))
    for entry in _entries(shelf.trash):
        at_work = is_locked(shelf.root / ".prune.lock")
        if os.path.lexists(shelf.trash / entry.name):
            yield FoundLeftover(TRASH, entry.name, at_work)


def _finished_at(staging: Path) -> str:
    try:
        return read_manifest(staging).created_at
    except (ReleaseInvalid, StorageError):
        return ""


def _entries(directory: Path) -> tuple[FoundEntry, ...]:
    """What lies in a directory, sorted by name; nothing where there is none."""
    try:
        with os.scandir(directory) as entries:
            return tuple(sorted(FoundEntry(entry.name, _kind(entry)) for entry in entries))
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise storage_error("cannot list", directory, error) from error


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "directory"
    return "file" if entry.is_file(follow_symlinks=False) else "special file"


def _is_newer(directory: Path, since: datetime) -> bool:
    """What cannot be read is audited, so that it is found."""
    try:
        return is_newer(read_manifest(directory).created_at, since)
    except (ReleaseInvalid, StorageError):
        return True


def _examined(release: _Release, found: _Found) -> Iterator[_File]:
    """File what a release shows without its data, and give the files that have to be read."""
    try:
        examined = examine(release.directory)
        stamps = {s.name: s for s in fingerprint(release.directory, (f.name for f in examined.unread)).files}
    except ReleaseNotFound:
        _note_pruned(release, found)
        return
    except StorageError as error:
        if release.directory.is_dir():
            found.refused(release.label, error)
        else:
            _note_pruned(release, found)
        return
    if not release.directory.is_dir():
        _note_pruned(release, found)
        return
    found.issues += within(release.label, examined.report.issues)
    for promised in examined.unread:
        if promised.name in stamps:
            yield _File(release, promised, stamps[promised.name])


def _note_pruned(release: _Release, found: _Found) -> None:
    found.notes.append(Issue(release.label, "was pruned while it was audited", code="pruned"))


def _take_over(files: Sequence[_File], earlier: AuditedFiles | None, found: _Found) -> frozenset[_File]:
    """Judge those files that an interrupted audit has read and that are unchanged since."""
    if earlier is None:
        return frozenset()
    taken = set()
    for file in files:
        sha256 = earlier.digests.get((file.path, file.stamp))
        if sha256 is not None:
            taken.add(file)
            _judge(file, FileRecord(file.promised.name, file.stamp.size_bytes, sha256), found)
    return frozenset(taken)


def _judge(file: _File, read: FileRecord, found: _Found) -> None:
    found.issues += within(file.release.label, compare_file(file.promised, read))


def _read(
    files: Sequence[_File],
    earlier: AuditedFiles | None,
    journal: JournalFile,
    found: _Found,
    on_start: Callable[[int], OnProgress],
) -> None:
    """Read the files, in their order, on all cores; each that is through is judged and noted in the journal."""
    on_progress = on_start(sum(file.promised.size_bytes for file in files))
    stop = threading.Event()

    def on_bytes(size_bytes: int) -> None:
        if stop.is_set():
            raise _Stopped
        on_progress(size_bytes)

    if earlier is None and files:
        journal.begin(journal_head(now()))
    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "ckpt-audit") as pool:
        started = {pool.submit(sha256_of, f.release.directory / f.promised.name, on_bytes): f for f in files}
        try:
            for done in as_completed(started):
                file = started.pop(done)
                try:
                    read = done.result()
                except StorageError as error:
                    if error.errno in GONE and not file.release.directory.is_dir():
                        _note_pruned(file.release, found)
                    else:
                        found.refused(file.release.label, error)
                    continue
                journal.append(audited_line(file.path, file.stamp, read.sha256))
                _judge(file, read, found)
        except BaseException:
            stop.set()
            pool.shutdown(cancel_futures=True)
            raise
