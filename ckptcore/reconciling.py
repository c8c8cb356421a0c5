"""Which versions of a source have no release of a name yet, the oldest first.

Looks at names, sizes and times first, so that what was published costs no reading; only the rest is verified. What
becomes of the versions is the flow's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

from ckptcore.detecting import list_versions
from ckptcore.registry import Shelf, history_of, releases_on, shelf_of
from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.layout import metadata_name
from ckptcore.rules.pipeline import version_key
from ckptcore.rules.reconciling import Made, ever_published
from ckptcore.rules.versions import Version, VersionState
from ckptcore.storage.local import Directories, fingerprint
from ckptcore.validating import read_manifest
from ckptcore.verifying import verify_listed


@dataclass(frozen=True, slots=True)
class Outstanding:
    """A version without a release, its state, the digest of all files of its id, and the key of publishing it.

    ``written_at`` is when the youngest of them was written, in seconds since 1970 by the file system's clock.
    """

    version: Version
    state: VersionState
    fingerprint: str
    key: str
    written_at: float


def outstanding(
    source: str, component: str | None, registry: str | os.PathLike[str], name: str, *, only_newer: bool = False
) -> Iterator[Outstanding]:
    """Every version of the source that no release of ``name`` was made from, the oldest first; verified one by one, as
    they are asked for. With ``only_newer`` those that are newer than each that was published, the newest first.
    Raises as :func:`ckptcore.list_versions` does."""
    shelf = shelf_of(registry, name)
    published = _published(shelf)
    directories = Directories()
    newest_first = list_versions(source, component)
    for version in newest_first if only_newer else reversed(newest_first):
        files = _files_of(version, directories)
        digest = files.digest
        if (version.step, version.unique_id, digest) in published:
            if only_newer:
                return
            continue
        verified = verify_listed(version, directories)
        # Rank files that the metadata does not name are no part of a version, which only the metadata shows.
        read = digest if verified.located is None else verified.located.fingerprint.digest
        if (version.step, version.unique_id, read) in published:
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


def _published(shelf: Shelf) -> frozenset[Made]:
    history = history_of(shelf)
    told = {act.release for act in history if act.source}
    # Releases that an earlier version of this package published, or that nobody lived to record.
    untold = [read_manifest(shelf.release(name)).source for name in releases_on(shelf) if name not in told]
    return ever_published(history) | {(source.step, source.unique_id, source.fingerprint) for source in untold}
