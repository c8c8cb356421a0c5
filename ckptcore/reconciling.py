"""Which versions of a source an alias has not come to yet, the oldest first.

Looks at names, sizes and times first, so that what was published costs no reading; only the rest is verified. What
becomes of the versions is the flow's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ckptcore.detecting import list_versions
from ckptcore.registry import Shelf, history_of, is_release, pointed_to, releases_on, shelf_of
from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.layout import metadata_name
from ckptcore.rules.manifest import SourceRecord, is_earlier
from ckptcore.rules.pipeline import version_key
from ckptcore.rules.reconciling import Made, made_from, named_ever, published_under
from ckptcore.rules.release import DEFAULT_ALIAS, parse_release_name
from ckptcore.rules.versions import Version, VersionState
from ckptcore.storage.local import Directories, fingerprint
from ckptcore.validating import read_manifest
from ckptcore.verifying import verify_listed


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A version that is not published, its state, the digest of all files of its id, and the key of publishing it.

    ``written_at`` is when the youngest of them was written, in seconds since 1970 by the file system's clock.
    """

    version: Version
    state: VersionState
    fingerprint: str
    key: str
    written_at: float


def outstanding(
    source: str,
    component: str | None,
    registry: str | os.PathLike[str],
    name: str,
    alias: str = DEFAULT_ALIAS,
    *,
    only_newer: bool = False,
) -> Iterator[Outstanding]:
    """Every version of the source that is not published under ``alias``, the oldest first; verified one by one, as they
    are asked for. With ``only_newer`` those that are newer than each that was published, the newest first.

    A release alone does not publish: it may be a candidate under another alias, or its publisher was killed before the
    alias moved. Publishing its version again moves the alias, and merges nothing. Where the alias has gone past it
    nothing is left to do. Raises as :func:`ckptcore.list_versions` does, and where the registry cannot be read.
    """
    published = _Published(shelf_of(registry, name), alias)
    directories = Directories()
    newest_first = list_versions(source, component)
    for version in newest_first if only_newer else reversed(newest_first):
        files = _files_of(version, directories)
        digest = files.digest
        if published.has(version, digest):
            if only_newer:
                return
            continue
        verified = verify_listed(version, directories)
        # Rank files that the metadata does not name are no part of a version, which only the metadata shows.
        read = digest if verified.located is None else verified.located.fingerprint.digest
        if published.has(version, read):
            if only_newer:
                return
            continue
        key = version_key(name, version.directory, version.unique_id, digest)
        written_at = max((stamp.mtime_ns / 1e9 for stamp in files.files), default=0.0)
        yield Outstanding(version, verified.report.state, digest, key, written_at)


def fingerprint_of(version: Version, directories: Directories) -> str:
    """The digest over name, size and time of every file of the version's id."""
    return _files_of(version, directories).digest


def _files_of(version: Version, directories: Directories) -> Fingerprint:
    listing = directories.listing(version.directory)
    names = () if listing is None else listing.rank_files.get(version.unique_id, ())
    return fingerprint(version.directory, [*names, metadata_name(version.unique_id)])


class _Published:
    """What the alias has come to, or gone past, of the versions that there are releases of."""

    def __init__(self, shelf: Shelf, alias: str) -> None:
        history, visible = history_of(shelf), releases_on(shelf)
        made = made_from(history)
        # Releases that an earlier version of this package published, or that nobody lived to record.
        made |= {release: _made(_source_of(shelf, release)) for release in visible if release not in made}
        named = named_ever(history, alias, pointed_to(shelf, alias))
        done = published_under(history, named, visible)
        self._done = {made[release] for release in done if release in made}
        self._released = frozenset(made.values())
        self._shelf = shelf
        # A manifest may be large; it is read where it is asked for, which most looks never do.
        self._named = sorted(named, key=_place, reverse=True)
        self._sources: dict[str, SourceRecord | None] = {}

    def has(self, version: Version, digest: str) -> bool:
        """Whether nothing is left to do for the version whose files have that digest."""
        made = (version.step, version.unique_id, digest)
        if made in self._released and made not in self._done and self._is_passed(version):
            self._done.add(made)
        return made in self._done

    def _is_passed(self, version: Version) -> bool:
        """Whether the alias names or named a later version of the run: it would not go back to this one."""
        this = SourceRecord(version.directory, version.step, version.unique_id, version.component, "", "")
        for release in self._named:
            if _place(release) <= _place_of(version.step, version.unique_id):
                return False
            if release not in self._sources:
                is_there = is_release(self._shelf.release(release))
                self._sources[release] = _source_of(self._shelf, release) if is_there else None
            source = self._sources[release]
            if source is not None and is_earlier(this, source):
                return True
        return False


def _source_of(shelf: Shelf, release: str) -> SourceRecord:
    return read_manifest(shelf.release(release)).source


def _made(source: SourceRecord) -> Made:
    return source.step, source.unique_id, source.fingerprint


def _place(release: str) -> tuple[int, int]:
    name = parse_release_name(release)
    return (-1, -1) if name is None else _place_of(name.step, name.unique_id)


def _place_of(step: int | None, unique_id: int) -> tuple[int, int]:
    return (-1 if step is None else step, unique_id)
