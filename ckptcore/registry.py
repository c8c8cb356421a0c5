"""A registry on disk: where the parts of a name lie, what is there now, and how an alias moves.

``REGISTRY/NAME/releases/RELEASE/`` holds what is published, ``REGISTRY/NAME/ALIAS`` is a relative symlink,
``REGISTRY/NAME/history.jsonl`` records every act. Entries that start with a dot are the registry's own. Writers hold
the name's lock; readers need none, since every change is one rename.
"""

from __future__ import annotations

import getpass
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ckptcore.asking import asked_by
from ckptcore.clock import now
from ckptcore.errors import InvalidName, ReleaseInvalid, ReleaseNotFound
from ckptcore.rules.manifest import MANIFEST_NAME
from ckptcore.rules.release import HISTORY, RELEASES, Act, check_name, parse_history, parse_reference, release_named_by
from ckptcore.rules.steps import NOTHING_TOOK, VerbTotal
from ckptcore.storage.commit import append_line, make_directory, point_symlink
from ckptcore.storage.refusals import reported
from ckptcore.storage.regular_files import lies_at, read_document

# Long enough for what a listing does not mend at once, and short enough for whoever waits for an alias to nowhere.
_LOOK_AGAIN_AFTER_SECONDS = (0.0, 0.1, 0.4, 1.0)


@dataclass(frozen=True, slots=True)
class Shelf:
    """One name of a registry: the paths of its parts."""

    root: Path

    @property
    def name(self) -> str:
        return self.root.name

    @property
    def releases(self) -> Path:
        return self.root / RELEASES

    @property
    def stagings(self) -> Path:
        return self.root / ".staging"

    @property
    def lock(self) -> Path:
        return self.root / ".lock"

    @property
    def history(self) -> Path:
        return self.root / HISTORY

    def release(self, release: str) -> Path:
        return self.releases / release

    @property
    def pins(self) -> Path:
        return self.root / ".pins"

    @property
    def trash(self) -> Path:
        return self.root / ".trash"

    def staging(self, release: str) -> Path:
        return self.stagings / release

    def alias(self, alias: str) -> Path:
        return self.root / alias


def shelf_of(registry: str | os.PathLike[str], name: str) -> Shelf:
    """The place of ``name``, existing or not. Raises :class:`InvalidName`."""
    if "\0" in os.fspath(registry):
        raise InvalidName(f"registry {os.fspath(registry)!r} contains a NUL character")
    return Shelf(Path(os.path.abspath(registry)) / check_name(name, "name"))


def existing_shelf(registry: str | os.PathLike[str], name: str) -> Shelf:
    """The place of ``name``, which has releases. Raises :class:`InvalidName` and :class:`ReleaseNotFound`."""
    shelf = shelf_of(registry, name)
    if not shelf.releases.is_dir():
        raise ReleaseNotFound(f"{registry}: no such name: {name!r}")
    return shelf


def make_shelf(shelf: Shelf) -> None:
    """Make the directories of a name, where they are missing."""
    with reported("cannot make the registry's directories in", shelf.root):
        make_directory(shelf.releases)
        make_directory(shelf.stagings)


def is_release(path: Path) -> bool:
    """Whether a finished release lies there: the manifest is written last."""
    with reported("cannot look at", path):
        return (path / MANIFEST_NAME).is_file()


def names_in(registry: str | os.PathLike[str]) -> tuple[str, ...]:
    """The names that have releases, sorted. Raises :class:`StorageError` where the registry cannot be listed."""
    root = Path(os.path.abspath(registry))
    with reported("cannot list", root):
        return tuple(sorted(entry.name for entry in root.iterdir() if (entry / RELEASES).is_dir()))


def releases_on(shelf: Shelf) -> tuple[str, ...]:
    """The releases that are visible now, sorted by name."""
    if not shelf.releases.is_dir():
        return ()
    with reported("cannot list", shelf.releases):
        entries = sorted(shelf.releases.iterdir())
        return tuple(entry.name for entry in entries if is_release(entry) and not entry.is_symlink())


def aliases_on(shelf: Shelf) -> Mapping[str, str]:
    """Each alias and the release that it names, sorted by alias; the release need not exist.

    A link that does not name a release of this name is no alias; see :func:`links_on`.
    """
    named = {link: release_named_by(text) for link, text in links_on(shelf).items()}
    return {link: release for link, release in named.items() if release}


def links_on(shelf: Shelf) -> Mapping[str, str]:
    """Each link that stands where aliases do and its text, whatever that is, sorted by name."""
    if not shelf.root.is_dir():
        return {}
    with reported("cannot list", shelf.root):
        links = sorted(path for path in shelf.root.iterdir() if path.is_symlink() and not path.name.startswith("."))
        return {link.name: os.readlink(link) for link in links}


def pointed_to(shelf: Shelf, alias: str) -> str:
    """The release that an alias names, or "" where there is no such alias.

    Raises :class:`ReleaseInvalid` for a link that leads anywhere else: nothing here is taken from there.
    """
    link = shelf.alias(alias)
    if not link.is_symlink():
        return ""
    text = os.readlink(link)
    release = release_named_by(text)
    if not release:
        raise ReleaseInvalid(f"{link}: is no alias: expected a link to {RELEASES}/ and a release, found {text!r}")
    return release


def history_of(shelf: Shelf) -> tuple[Act, ...]:
    """Every recorded act, the oldest first.

    Raises :class:`StorageError` where not all of them can be read: acts that are not seen would be done again.
    """
    if not lies_at(shelf.history):
        return ()
    return parse_history(read_document(shelf.history))


def record(
    shelf: Shelf,
    act: str,
    release: str,
    *,
    alias: str = "",
    previous: str = "",
    flow_run: str = "",
    reason: str = "",
    source: str = "",
    took: Mapping[str, VerbTotal] = NOTHING_TOOK,
) -> None:
    """Append an act to the history, with who, where and when. The caller holds the lock."""
    entry = Act(
        at=now(),
        act=act,
        release=release,
        alias=alias,
        previous=previous,
        user=_user(),
        host=socket.gethostname(),
        flow_run=flow_run,
        reason=reason,
        source=source,
        by=asked_by(),
        took=took,
    )
    append_line(shelf.history, entry.to_line())


def move_alias(
    shelf: Shelf,
    act: str,
    alias: str,
    release: str,
    *,
    flow_run: str = "",
    reason: str = "",
    source: str = "",
    took: Mapping[str, VerbTotal] = NOTHING_TOOK,
) -> None:
    """Point ``alias`` to ``release`` in one step and record it as ``act``. The caller holds the lock."""
    previous = pointed_to(shelf, alias)
    history = history_of(shelf)  # one that cannot be read cannot be added to either
    if previous == release:
        # Whoever moved it was killed before it was recorded: this finishes that act, and records what was before it.
        previous = next((act.release for act in reversed(history) if act.alias == alias), "")
    point_symlink(shelf.alias(alias), f"{RELEASES}/{release}")
    record(
        shelf, act, release, alias=alias, previous=previous, flow_run=flow_run, reason=reason, source=source, took=took
    )


def resolve(registry: str | os.PathLike[str], reference: str) -> Path:
    """The directory that ``NAME``, ``NAME@alias`` or ``NAME@release`` means now, without symlinks in its last parts.

    Raises :class:`ReleaseNotFound`, :class:`InvalidName`, and :class:`ReleaseInvalid` for what a link takes elsewhere.
    """
    wanted = parse_reference(reference)
    shelf = shelf_of(registry, wanted.name)
    named = pointed_to(shelf, wanted.ref)
    path = shelf.release(named or wanted.ref)
    if path.is_symlink():
        raise ReleaseInvalid(f"{path}: is no release: expected a directory, found a link to {os.readlink(path)!r}")
    if not is_release(path) and not (named and _comes_to_be_seen(path)):
        known = "no such name" if not shelf.root.is_dir() else f"no release or alias {wanted.ref!r}"
        raise ReleaseNotFound(f"{registry}: {reference}: {known}")
    return path


def _comes_to_be_seen(path: Path) -> bool:
    """Look again, for a bounded time, for a release that an alias names.

    It was renamed into place before the alias moved. A network file system may show a host the alias and still say from
    its cache that the release is not there; listing the directory makes it ask.
    """
    for seconds in _LOOK_AGAIN_AFTER_SECONDS:
        time.sleep(seconds)
        if path.parent.is_dir():
            with reported("cannot list", path.parent):
                os.listdir(path.parent)
        if is_release(path):
            return True
    return False


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())  # a container's user need not have a name
