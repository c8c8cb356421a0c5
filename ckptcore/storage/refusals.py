"""The file system's refusals as this package's errors: what was tried, on which path, and why it failed."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from ckptcore.errors import CheckpointError, NotEnoughSpace, StorageError


def storage_error(action: str, path: str | os.PathLike[str], error: OSError) -> StorageError | NotEnoughSpace:
    """The refusal for an operating system error, with its ``errno``; ``action`` reads ``cannot list``, say."""
    kind = NotEnoughSpace if error.errno in (errno.ENOSPC, errno.EDQUOT) else StorageError
    refusal = kind(f"{action} {os.fspath(path)}: {error.strerror or error}")
    refusal.errno = error.errno
    return refusal


@contextmanager
def reported(action: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turns an OSError inside the block into :func:`storage_error`'s refusal; refusals that are one already pass."""
    try:
        yield
    except OSError as error:
        if isinstance(error, CheckpointError):
            raise
        raise storage_error(action, path, error) from error
