"""A checkpoint's directory on a local or mounted file system: list it, stamp its files, read them.

Owns the rule of what counts as a file of a directory: a regular file inside it. A directory, FIFO, socket or
device under a file's name is refused without being opened, and so is a symbolic link that leads out. Nothing
is cached; each call asks the file system. Names are given meaning in ``rules.layout`` and ``rules.versions``.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType

from ckptcore.errors import DamagedFile, StorageError
from ckptcore.rules.fingerprint import FileStamp, Fingerprint
from ckptcore.rules.issues import Issue
from ckptcore.rules.versions import Entry, Listing, read_listing
from ckptcore.storage.refusals import storage_error

GONE = (errno.ENOENT, errno.ENOTDIR)
"""What the file system says about a path that is not there (any more)."""

NOT_REGULAR = "not-regular"
OUTSIDE = "outside-directory"

_KINDS = (
    (stat.S_ISDIR, "a directory"),
    (stat.S_ISFIFO, "a FIFO"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a character device"),
    (stat.S_ISBLK, "a block device"),
)


def list_directory(directory: str | Path) -> tuple[Entry, ...]:
    """The entries of ``directory``, sorted by name, each with whether it is a directory (links followed).

    One ``scandir``: 100,000 entries take a fraction of a second. Raises :class:`StorageError`, whose ``errno`` tells
    a directory that is not there from one that cannot be read.
    """
    try:
        with os.scandir(directory) as found:
            return tuple(sorted(Entry(entry.name, _is_directory(entry)) for entry in found))
    except OSError as error:
        raise storage_error("cannot list", directory, error) from error


class Directories:
    """Directories and what their names say, each listed once for as long as one question is being answered.

    Many versions may lie in one directory of 100,000 names, which each of them would list again.
    """

    def __init__(self) -> None:
        self._listings: dict[str, Listing | None] = {}

    def listing(self, directory: str) -> Listing | None:
        """The directory as it was when it was first asked for; None where there was none. Raises StorageError."""
        if directory not in self._listings:
            self._listings[directory] = _read(directory)
        return self._listings[directory]


def _read(directory: str) -> Listing | None:
    try:
        return read_listing(list_directory(directory))
    except StorageError as error:
        if error.errno in GONE:
            return None
        raise


def _is_directory(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a loop, or one that leads where we may not look
        return False


class LocalReader:
    """One regular file of ``directory``, read at offsets; safe to share between threads.

    Raises :class:`DamagedFile` where the name leads to anything else or out of the directory, and
    :class:`StorageError` where the file system refuses (``errno`` ENOENT where there is no such file).
    """

    def __init__(self, directory: str | Path, name: str) -> None:
        self.path = os.path.join(directory, name)
        self.name = name
        try:
            self._descriptor = _open_regular(str(directory), name)
        except OSError as error:
            raise storage_error("cannot open", self.path, error) from error
        status = os.fstat(self._descriptor)
        self.stamp = _stamp(name, status)
        """The file as it was when it was opened."""

    @property
    def size_bytes(self) -> int:
        return self.stamp.size_bytes

    def read_at(self, offset: int, length: int) -> bytes:
        """Up to ``length`` bytes from ``offset``; fewer only at the end of the file."""
        # The claim of a hostile length field must not become an allocation.
        length = max(0, min(length, self.size_bytes - offset))
        try:
            data = os.pread(self._descriptor, length, offset)
            while len(data) < length and (more := os.pread(self._descriptor, length - len(data), offset + len(data))):
                data += more
        except OSError as error:
            raise storage_error("cannot read", self.path, error) from error
        return data

    def readinto_at(self, offset: int, target: memoryview) -> int:
        """Fill ``target`` from ``offset`` and say how many bytes came; fewer than asked only at the end of the file."""
        done = 0
        try:
            while done < len(target):
                count = os.preadv(self._descriptor, [target[done:]], offset + done)
                if count == 0:
                    break
                done += count
        except OSError as error:
            raise storage_error("cannot read", self.path, error) from error
        return done

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> LocalReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def fingerprint(directory: str | Path, names: Iterable[str]) -> Fingerprint:
    """The stamps of those of ``names`` that exist in ``directory`` now. Raises :class:`StorageError`."""
    stamps = []
    for name in sorted(set(names)):
        path = os.path.join(directory, name)
        try:
            stamps.append(_stamp(name, os.stat(path)))
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            raise storage_error("cannot stat", path, error) from error
    return Fingerprint(tuple(stamps))


def _stamp(name: str, status: os.stat_result) -> FileStamp:
    return FileStamp(name, status.st_size, status.st_mtime_ns, status.st_ino)


def _open_regular(directory: str, name: str) -> int:
    if not name or "\0" in name or os.path.basename(name) != name or name in (os.curdir, os.pardir):
        raise DamagedFile(f"{name!r} is no file name", [Issue(name, "is no plain file name", code=OUTSIDE)])
    path = os.path.join(directory, name)
    if stat.S_ISLNK(os.lstat(path).st_mode):
        path = _link_target(directory, path, name)
    # Looked at before it is opened, because opening a device can have effects.
    _require_regular(os.lstat(path).st_mode, name, path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor).st_mode, name, path)
    except DamagedFile:
        os.close(descriptor)
        raise
    return descriptor


def _link_target(directory: str, path: str, name: str) -> str:
    resolved = os.path.realpath(path, strict=True)
    if os.path.commonpath([resolved, os.path.realpath(directory)]) != os.path.realpath(directory):
        issue = Issue(name, "is a link that leads out of its directory", found=resolved, code=OUTSIDE)
        raise DamagedFile(f"{path}: leads out of its directory, to {resolved}", [issue])
    return resolved


def kind_of(mode: int) -> str:
    """What a path of that mode is, where it is no regular file: ``a FIFO``."""
    return next((kind for matches, kind in _KINDS if matches(mode)), "something else")


def _require_regular(mode: int, name: str, path: str) -> None:
    if stat.S_ISREG(mode):
        return
    kind = kind_of(mode)
    issue = Issue(name, "is no regular file", found=kind, code=NOT_REGULAR)
    raise DamagedFile(f"{path}: is {kind}, no regular file", [issue])
