"""A directory in which an output is prepared, beside the place where it will appear, held by one process at a time.

The name is the caller's and the same for the same output, so that what a killed process left is found and cleared
(or finished) by the next. The lock lies inside and goes before the directory is moved into place.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Set
from contextlib import contextmanager
from pathlib import Path

from ckptcore.errors import Busy
from ckptcore.storage.commit import appear, remove_tree
from ckptcore.storage.refusals import reported

_LOCK = ".lock"


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the staging directory ``path``, made if missing. Raises :class:`Busy` where another process holds it."""
    descriptor = _lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(path: Path) -> int:
    """The locked descriptor of the directory's lock file, of the directory that is at ``path`` now."""
    while True:
        with reported("cannot prepare", path):
            path.mkdir(parents=True, exist_ok=True)
            try:
                descriptor = os.open(path / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # its holder moved the directory into place between the two calls
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                current = os.stat(path / _LOCK)
            except BlockingIOError as error:
                os.close(descriptor)
                raise Busy(f"{path}: another process is writing the same output") from error
            except FileNotFoundError:
                os.close(descriptor)
                continue
            except BaseException:
                os.close(descriptor)
                raise
            if os.path.samestat(current, os.fstat(descriptor)):
                return descriptor
            os.close(descriptor)


def clear(path: Path, *, keep: Set[str] = frozenset()) -> None:
    """Delete what an earlier process left in a held staging directory, but for the names to ``keep``."""
    with reported("cannot clear", path):
        leftovers = [entry for entry in path.iterdir() if entry.name != _LOCK and entry.name not in keep]
    for entry in leftovers:
        remove_tree(entry)


def commit(path: Path, target: Path, *, overwrite: bool) -> None:
    """Move a held, finished staging directory to ``target`` in one step, as ``commit.appear`` does."""
    with reported("cannot release", path):
        notes = [entry for entry in path.iterdir() if entry.name.startswith(".") and entry.name != _LOCK]
        # The lock goes last: what a crash leaves between is still a held, finished staging directory.
        for entry in (*notes, path / _LOCK):
            entry.unlink(missing_ok=True)
    appear(path, target, overwrite=overwrite)
