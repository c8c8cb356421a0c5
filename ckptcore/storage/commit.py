"""Make a finished directory visible at once, or not at all: staging, locks, renames, symlinks, appended lines.

Every function leaves the disk in the old state or the new one, also when the process is killed inside it. Names
and order of the steps are the callers'.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptcore.errors import Busy, OutputExists
from ckptcore.storage.refusals import reported

_AT_FDCWD = -100
_RENAME_NOREPLACE = 1
_RENAME_EXCHANGE = 2


@contextmanager
def locked(path: Path, *, wait: bool) -> Iterator[None]:
    """Hold the advisory lock of the file ``path`` (made if missing, and left: removing a lock file races).

    The kernel drops it when the process dies. Without ``wait``, raises :class:`Busy` where another holds it.
    """
    with reported("cannot lock", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError as error:
                raise Busy(f"{path}: another process is writing the same output") from error
            yield
        finally:
            os.close(descriptor)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock of the file ``path``; no file, no holder.

    There is no way to look at such a lock but to take it, here shared and for an instant.
    """
    with reported("cannot look at the lock", path):
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
    return False


def write_file(path: Path, data: bytes) -> None:
    """Create ``path`` with all of ``data``, on disk, in one step; it must not exist. One writer at a time.

    That it exists may then mean that all before it is finished: see ``registry.is_release``.
    """
    aside = path.with_name(f".{path.name}.new")
    with reported("cannot write", path):
        aside.unlink(missing_ok=True)
        try:
            write_new(aside, data)
            _rename(aside, path, _RENAME_NOREPLACE)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise


def write_new(path: Path, data: bytes) -> None:
    """Create ``path`` with all of ``data``, on disk; what fails leaves a part of it. Raises OSError."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(descriptor, rest) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_directory(path: Path) -> None:
    """Make the entries of a directory durable."""
    with reported("cannot sync", path):
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def make_directory(path: Path) -> None:
    """Make a directory and those above it durably, as far as they are missing."""
    if path.is_dir():
        return
    make_directory(path.parent)
    with reported("cannot make", path):
        path.mkdir(exist_ok=True)
    sync_directory(path.parent)


def append_line(path: Path, line: bytes) -> None:
    """Add one line durably; the caller holds the lock. A line that a crash cut short is closed first."""
    with reported("cannot append to", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            rest = memoryview(line)
            while rest:
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    if size == 0:
        sync_directory(path.parent)


def point_symlink(link: Path, target: str) -> None:
    """Make ``link`` a symlink to ``target``, replacing what it pointed to in one step. The caller holds the lock."""
    aside = link.with_name(f".{link.name}.new")
    with reported(f"cannot point to {target}:", link):
        aside.unlink(missing_ok=True)
        aside.symlink_to(target)
        os.replace(aside, link)
    sync_directory(link.parent)


def appear(staged: Path, path: Path, *, overwrite: bool) -> None:
    """Move the finished directory ``staged`` to ``path`` in one step. Both must be on one file system.

    What is at ``path`` is exchanged for it and then deleted with ``overwrite``, else :class:`OutputExists`. Where the
    file system cannot exchange, there is an instant without anything at ``path``; see :func:`displaced`.
    """
    with reported("cannot move the finished output to", path):
        try:
            _rename(staged, path, _RENAME_NOREPLACE)
        except FileExistsError as error:
            if not overwrite:
                raise OutputExists(f"{path} exists already") from error
            _rename(staged, path, _RENAME_EXCHANGE)
            remove_tree(displaced(staged))
            os.rename(staged, displaced(staged))
        remove_tree(displaced(staged))
    sync_directory(path.parent)


def displaced(staged: Path) -> Path:
    """Where a process that was killed inside :func:`appear` may have left what was at the path before."""
    return staged.with_name(f"{staged.name}.old")


def remove_tree(path: Path) -> None:
    """Delete a file or directory that no reader can see any more; nothing there is fine."""
    with reported("cannot delete", path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _rename(source: Path, target: Path, flags: int) -> None:
    """Linux's ``renameat2``; where the file system lacks it (some network ones), the nearest plain renames."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), flags) == 0:
        return
    code = ctypes.get_errno()
    if code not in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        raise OSError(code, os.strerror(code), str(target))
    if flags == _RENAME_NOREPLACE:
        try:
            os.lstat(target)
        except FileNotFoundError:
            os.rename(source, target)
            return
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(target))
    aside = displaced(source)
    remove_tree(aside)
    os.rename(target, aside)
    os.rename(source, target)
    os.rename(aside, source)
