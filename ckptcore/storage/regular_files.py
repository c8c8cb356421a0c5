"""Files that a user or another process put somewhere: opened without waiting, and read whole only up to a bound.

A FIFO or a device under the name of a file would make its reader wait or read without end. Links are followed; the
names inside a checkpoint's own directory are ``local``'s, which is stricter.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ckptcore.errors import StorageError
from ckptcore.storage.local import kind_of
from ckptcore.storage.refusals import reported

MAX_DOCUMENT_BYTES = 512 << 20
"""The most that a manifest, an index, a history or a file of expectations may hold: millions of tensors or acts."""


def lies_at(path: Path) -> bool:
    """Whether anything lies at ``path``, a link to nowhere included.

    Raises :class:`StorageError` where that cannot be told; ``os.path.lexists`` says that nothing does.
    """
    with reported("cannot look at", path):
        try:
            os.lstat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
    return True


def open_regular(path: str | os.PathLike[str]) -> int:
    """A descriptor to read the regular file at ``path``. Raises :class:`StorageError` for anything else, and OSError.

    It is looked at before it is opened, because opening a device can have effects.
    """
    _require_regular(os.stat(path), path)
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        _require_regular(os.fstat(descriptor), path)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def read_end(path: Path, most_bytes: int) -> bytes:
    """The last bytes of the regular file at ``path``. Raises as :func:`open_regular` does."""
    descriptor = open_regular(path)
    try:
        size = os.fstat(descriptor).st_size
        return os.pread(descriptor, most_bytes, max(0, size - most_bytes))
    finally:
        os.close(descriptor)


def read_document(path: Path, max_bytes: int = MAX_DOCUMENT_BYTES) -> bytes:
    """All of a regular file of at most ``max_bytes``. Raises :class:`StorageError`, where fewer bytes come too."""
    with reported("cannot read", path), open(open_regular(path), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        data = file.read(max_bytes + 1)
    if max(size, len(data)) > max_bytes:
        raise StorageError(f"cannot read {path}: expected at most {max_bytes:,} bytes, found {max(size, len(data)):,}")
    if len(data) < size:
        raise StorageError(f"cannot read {path}: expected {size:,} bytes, found {len(data):,}")
    return data


def _require_regular(status: os.stat_result, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(status.st_mode):
        refusal = StorageError(f"cannot read {os.fspath(path)}: is {kind_of(status.st_mode)}, no regular file")
        refusal.errno = errno.EINVAL
        raise refusal
