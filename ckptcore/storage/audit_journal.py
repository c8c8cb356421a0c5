"""The file in which an audit notes what it has read, held by one audit at a time and removed when it is through.

It only saves work: where it cannot be written (a read-only registry, a full disk), the audit goes on without it. A line
is handed to the kernel at once, but not synced: what a power failure takes is read again. What a line says is
``rules.audit_journal``'s.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ckptcore.errors import Busy
from ckptcore.storage.refusals import storage_error
from ckptcore.storage.regular_files import read_document

# A link in its place could lead to a file that is another's, and a FIFO would make the opening wait.
_FLAGS = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class JournalFile:
    """``content`` is what an earlier audit left; ``refusal`` why nothing more can be noted, or ""."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = -1
        self.content, self.refusal = b"", ""
        try:
            self._descriptor = os.open(path, _FLAGS, 0o666)
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.content = read_document(path)
            if self.content and not self.content.endswith(b"\n"):
                self.append(b"\n")  # closes a line that a crash cut short
        except BlockingIOError as error:
            self.close()
            raise Busy(f"{path}: another audit of the same is running") from error
        except OSError as error:
            self._give_up(error)

    def begin(self, head: bytes) -> None:
        """Forget what was noted, and note the first line."""
        if self._descriptor >= 0:
            try:
                os.ftruncate(self._descriptor, 0)
            except OSError as error:
                self._give_up(error)
        self.append(head)

    def append(self, line: bytes) -> None:
        """Note one line, if that is possible."""
        if self._descriptor < 0:
            return
        try:
            os.write(self._descriptor, line)
        except OSError as error:
            self._give_up(error)

    def remove(self) -> None:
        """The audit is through: the next one reads everything again."""
        if self._descriptor < 0:
            return
        try:
            os.unlink(self._path)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _give_up(self, error: OSError) -> None:
        self.refusal = storage_error("cannot write", self._path, error).message
        self.close()


@contextmanager
def journal_at(path: Path) -> Iterator[JournalFile]:
    """Hold the journal at ``path``, made if missing. Raises :class:`Busy` where another audit holds it."""
    journal = JournalFile(path)
    try:
        yield journal
    finally:
        journal.close()
