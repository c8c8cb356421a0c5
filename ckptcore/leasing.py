"""Leases: hold a release while it is read, so that no prune removes it.

A lease is a kernel lock on a file that the directory has anyway: a release's manifest, or the metadata of a version
that is being merged. A dead holder frees it, and nothing is written. Who may delete what is ``retaining``'s.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from ckptcore.errors import ReleaseNotFound, StorageError
from ckptcore.registry import is_release, resolve
from ckptcore.rules.layout import COMPONENTS, parse_metadata_name
from ckptcore.rules.manifest import MANIFEST_NAME
from ckptcore.storage.leases import hold, is_held
from ckptcore.storage.local import GONE, list_directory
from ckptcore.storage.refusals import reported

_INHERITED_FROM = 100


@dataclass(frozen=True, slots=True)
class Lease:
    """A release that is held until ``descriptor`` is closed, here and in every process that inherited it."""

    path: Path
    descriptor: int


@contextmanager
def lease(place: str | os.PathLike[str], reference: str | None = None) -> Iterator[Path]:
    """Hold a release while the block runs, and give its directory, links resolved: read it from there.

    ``place`` is the release's directory or an alias's link, or with ``reference`` a registry:
    ``lease("registry", "llama@production")``. Processes forked inside the block hold it too, as long as they live.
    Raises :class:`ReleaseNotFound`, :class:`InvalidName`, and :class:`StorageError` where the file system cannot lock.
    """
    held = take_lease(place, reference)
    try:
        yield held.path
    finally:
        os.close(held.descriptor)


def take_lease(place: str | os.PathLike[str], reference: str | None = None) -> Lease:
    """What :func:`lease` holds; the caller closes the descriptor."""
    while True:
        path = _release_at(place, reference)
        try:
            with reported("cannot hold", path):
                return Lease(path, hold(path / MANIFEST_NAME, wait=True))
        except StorageError as error:
            # Pruned since it was looked up: a moved alias leads to another release, anything else to a refusal.
            if error.errno not in GONE:
                raise


def run_leased(registry: str | os.PathLike[str], reference: str, command: Sequence[str]) -> NoReturn:
    """Become ``command``, each ``{path}`` in it replaced by the release's directory, holding the lease to its end.

    This process is replaced, so signals and exit status are the command's own without anybody in between. Raises as
    :func:`lease` does, and :class:`StorageError` where the command cannot be started.
    """
    held = take_lease(registry, reference)
    with reported("cannot pass on the lease of", held.path):
        # A copy that the command inherits, out of the way of the low numbers that shell scripts use.
        fcntl.fcntl(held.descriptor, fcntl.F_DUPFD, _INHERITED_FROM)
    arguments = [word.replace("{path}", str(held.path)) for word in command]
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these two, and what is ignored stays ignored in the command.
    for ignored in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(ignored, signal.SIG_DFL)
    with reported("cannot run", arguments[0]):
        os.execvp(arguments[0], arguments)  # noqa: S606 - running what the user names, without a shell, is the point


def is_leased(path: str | os.PathLike[str]) -> bool:
    """Whether anybody holds the release at ``path``, or merges a version from the step or directory at ``path``.

    For who rotates a trainer's steps: leave those that are held for the next time.
    """
    directory = Path(path)
    if is_release(directory):
        return is_held(directory / MANIFEST_NAME)
    return any(is_held(file) for file in _metadata_files(directory))


def _release_at(place: str | os.PathLike[str], reference: str | None) -> Path:
    path = Path(os.path.realpath(place if reference is None else resolve(place, reference)))
    if not is_release(path):
        raise ReleaseNotFound(f"{place}: no release is here")
    return path


def _metadata_files(directory: Path) -> Iterator[Path]:
    """The metadata files of a directory of rank files and of its component directories."""
    for name, is_directory in list_directory(directory):
        if is_directory and name in COMPONENTS:
            yield from _metadata_files(directory / name)
        elif parse_metadata_name(name) is not None:
            yield directory / name
