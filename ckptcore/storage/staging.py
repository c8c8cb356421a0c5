"""A directory in which an output is prepared, beside the place where it will appear, held by one process at a time.

The name is the caller's and the same for the same output, so that what a killed process left is found and cleared
(or finished) by the next. The lock lies beside the directory, so that it is held until the directory has been moved
into place and whatever it replaced is gone; its file goes with its holder.
"""

from __future__ import annotations

import fcntl
import os
import stat
from collections.abc import Iterator, Set
from contextlib import contextmanager, suppress
from pathlib import Path

from ckptcore.errors import Busy, OutputExists
from ckptcore.rules.manifest import MANIFEST_NAME
from ckptcore.storage.commit import appear, displaced, is_locked, remove_tree
from ckptcore.storage.refusals import reported

OWN_MARK = ".staging"
"""The file that tells a staging directory from a directory of somebody else under its name."""


@contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold the staging directory ``path``, made if missing. Raises :class:`Busy` where another process holds it."""
    lock = _lock_of(path)
    descriptor = _taken(lock, path)
    try:
        _make_own(path)
        yield
    except BaseException:
        # Interrupted before anything was put there: nothing to go on with, and nothing to leave about.
        _remove_empty(path)
        raise
    finally:
        # Still locked: who has opened the file meanwhile gets the lock of one that is gone, and tries again. Where it
        # cannot be deleted, the next holder takes it over.
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


def _remove_empty(path: Path) -> None:
    with suppress(OSError):
        if set(os.listdir(path)) <= {OWN_MARK}:
            (path / OWN_MARK).unlink(missing_ok=True)
            path.rmdir()


def _make_own(path: Path) -> None:
    """Make the directory, or take over one that an earlier process made: never a link, nor a directory of others."""
    with reported("cannot prepare", path):
        path.mkdir(exist_ok=True)
        if not stat.S_ISDIR(os.lstat(path).st_mode):
            raise OutputExists(f"{path} is in the way, and no directory of this command: remove it")
        names = os.listdir(path)
        if OWN_MARK in names:
            return
        # A manifest: killed on the way to its place, or changed places with the output that it was to replace.
        if names and MANIFEST_NAME not in names:
            raise OutputExists(f"{path} is in the way: it holds {names[0]!r}, which this command has not put there")
        os.close(os.open(path / OWN_MARK, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))


def _lock_of(path: Path) -> Path:
    return path.with_name(f".{path.name.lstrip('.')}.lock")


def _taken(lock: Path, path: Path) -> int:
    """The locked descriptor of the file that is at ``lock`` now."""
    while True:
        with reported("cannot make", path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        with reported("cannot prepare", path):
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.stat(lock), os.fstat(descriptor)):
                    return descriptor
            except BlockingIOError as error:
                os.close(descriptor)
                raise Busy(f"{path}: another process is writing the same output") from error
            except FileNotFoundError:
                pass  # its holder was done between the two calls
            except BaseException:
                os.close(descriptor)
                raise
            os.close(descriptor)


def stagings_in(parent: Path) -> tuple[tuple[str, bool], ...]:
    """What is staged in the directory ``parent``, sorted by name, each with whether a live process holds it.

    Locks are left out, and so is what has been moved into place or deleted meanwhile.
    """
    with reported("cannot list", parent):
        names = sorted(os.listdir(parent)) if parent.is_dir() else []
    staged = [name for name in names if not (name.startswith(".") and name.endswith(".lock"))]
    # What `displaced` names is its staging's holder's as well.
    found = [(name, is_locked(_lock_of(parent / name.removesuffix(".old")))) for name in staged]
    return tuple((name, is_held) for name, is_held in found if os.path.lexists(parent / name))


def forget(path: Path) -> None:
    """Delete what processes that were killed left of the staging directory ``path``; nothing there is fine."""
    if any(os.path.lexists(left) for left in (path, _lock_of(path), displaced(path))):
        with held(path):
            drop(path)


def drop(path: Path) -> None:
    """Delete a held staging directory; nothing there is fine.

    It goes out of the way first, in one step, so that what a crash leaves of it is never taken for a finished one.
    """
    remove_tree(displaced(path))
    with reported("cannot delete", path):
        if os.path.lexists(path):
            os.rename(path, displaced(path))
    remove_tree(displaced(path))


def clear(path: Path, *, keep: Set[str] = frozenset()) -> None:
    """Delete what an earlier process left in a held staging directory, but for the names to ``keep``."""
    with reported("cannot clear", path):
        leftovers = [entry for entry in path.iterdir() if entry.name not in keep and entry.name != OWN_MARK]
    for entry in leftovers:
        remove_tree(entry)


def commit(path: Path, target: Path, *, overwrite: bool) -> None:
    """Move a held, finished staging directory to ``target`` in one step, as ``commit.appear`` does."""
    with reported("cannot release", path):
        # The mark goes last: what a crash leaves before is still known as a staging directory.
        for entry in sorted(path.iterdir(), key=lambda entry: entry.name == OWN_MARK):
            if entry.name.startswith("."):
                remove_tree(entry)
    appear(path, target, overwrite=overwrite)
