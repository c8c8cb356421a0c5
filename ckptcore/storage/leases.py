"""Hold a directory for as long as it is read: a shared kernel lock on a file that lies in it anyway.

Nothing is written, so a reader needs no permission to write, nothing is left behind, and the kernel frees what a dead
process held. Who wants to delete the directory takes the same lock alone. ``flock`` reaches other hosts over NFS
(which wants a writable descriptor for the exclusive one) unless it is mounted ``nolock`` or ``local_lock``.
"""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptcore.storage.refusals import reported

# A FIFO under the file's name must not make the opening wait.
_FLAGS = os.O_CLOEXEC | os.O_NONBLOCK


def hold(file: Path, *, wait: bool) -> int:
    """A descriptor that shares the lock of the file at this path until it, and each copy of it, is closed.

    Raises FileNotFoundError where the file is gone or goes meanwhile, BlockingIOError where another process has the
    lock alone and ``wait`` is False, and other OSErrors where the file system has no locks.
    """
    while True:
        descriptor = os.open(file, os.O_RDONLY | _FLAGS)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | (0 if wait else fcntl.LOCK_NB))
            if os.path.samestat(os.stat(file), os.fstat(descriptor)):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # another file took its place


@contextmanager
def held_if_possible(file: Path) -> Iterator[None]:
    """Hold ``file`` while the block runs, where file and file system allow it; else just run the block."""
    try:
        descriptor = hold(file, wait=False)
    except OSError:
        yield
        return
    try:
        yield
    finally:
        os.close(descriptor)


@contextmanager
def alone(file: str | os.PathLike[str]) -> Iterator[bool]:
    """Gives whether nobody holds ``file``, and then keeps everybody from it while the block runs.

    Raises :class:`StorageError` where that cannot be told.
    """
    with reported("cannot ask who holds", file):
        descriptor = _opened_to_lock(file)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_free = False
        except BaseException:
            os.close(descriptor)
            raise
        else:
            is_free = True
    try:
        yield is_free
    finally:
        os.close(descriptor)


def is_held(file: str | os.PathLike[str]) -> bool:
    """Whether any process holds ``file`` now."""
    with alone(file) as is_free:
        return not is_free


def _opened_to_lock(file: str | os.PathLike[str]) -> int:
    try:
        return os.open(file, os.O_RDWR | _FLAGS)
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        return os.open(file, os.O_RDONLY | _FLAGS)
