"""The finished parts of an output that several processes write at once, in a directory inside its staging.

The directory's name is new each time somebody takes the staging over, and the rename that gives it is the fence:
whoever works on for an owner that is gone finds no directory under the name that it knows, so that nothing it does
reaches what the new owner has. A part appears whole, in one rename, and the same part put twice is harmless where its
bytes are the same. Who may take over is ``staging``'s lock to say.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptcore.errors import Busy, StorageError, WorkerUnfit
from ckptcore.storage.commit import write_new
from ckptcore.storage.refusals import reported

_PREFIX = ".parts-"
_TOKEN_BYTES = 8


def take_over(staging: Path) -> Path:
    """The directory of parts in the held ``staging``, with what was left there, under a name that nobody else knows."""
    parts = staging / f"{_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}"
    with reported("cannot prepare", parts):
        # A link under such a name would lead somewhere else.
        left = sorted(path for path in staging.glob(f"{_PREFIX}*") if path.is_dir() and not path.is_symlink())
        if left:
            os.rename(left[0], parts)
        else:
            parts.mkdir()
    return parts


def close(parts: Path) -> Path:
    """Let nobody put parts any more; the directory under its new name. Raises :class:`Busy` as :func:`owned` does."""
    closed = parts.with_name(f"{_PREFIX}{secrets.token_hex(_TOKEN_BYTES)}")
    with owned(parts), reported("cannot close", parts):
        os.rename(parts, closed)
    return closed


@contextmanager
def owned(parts: Path) -> Iterator[None]:
    """Tells what fails inside the block because another process has taken the staging over: raises :class:`Busy` then.

    Raises :class:`WorkerUnfit` where this machine does not see the place of stagings at all.
    """
    try:
        yield
    except StorageError as error:
        if os.path.isdir(parts):
            raise
        if not os.path.isdir(parts.parent.parent):
            raise WorkerUnfit(f"{_here()} does not see {parts.parent.parent}: every machine must") from error
        raise Busy(f"{parts.parent}: another process has taken this over, or finished it") from error


def _here() -> str:
    return os.uname().nodename


def aside_of(parts: Path, name: str) -> Path:
    """A path for the bytes of a part that is being written; every call gives another, for this writer alone."""
    return parts / f".{name}.{secrets.token_hex(_TOKEN_BYTES)}"


def put(aside: Path, part: Path) -> None:
    """Let the bytes that were written aside appear as ``part``, in the place of the same bytes of somebody else."""
    with reported("cannot put in place", part):
        os.replace(aside, part)


def put_document(part: Path, data: bytes) -> None:
    """Write a small part durably, in one step."""
    aside = aside_of(part.parent, part.name)
    with reported("cannot write", part):
        write_new(aside, data)
    put(aside, part)
