"""The rank files of one source, opened when needed and a bounded number at a time.

A checkpoint of thousands of ranks has more files than a process may open; which of them a merge reads together
follows from the sharding, so the least recently used is closed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from ckptcore.storage.local import LocalReader

MAX_OPEN_FILES = 256


class ReaderPool:
    """Readers of ``names`` in ``directory`` by position; safe to share between threads."""

    def __init__(self, directory: Path, names: Sequence[str], *, max_open: int = MAX_OPEN_FILES) -> None:
        self._directory, self._names, self._max_open = directory, names, max_open
        self._idle: OrderedDict[int, LocalReader] = OrderedDict()
        self._in_use: dict[int, tuple[LocalReader, int]] = {}
        self._mutex = threading.Lock()

    @contextmanager
    def opened(self, position: int) -> Iterator[LocalReader]:
        """The reader of file ``position``, kept open for as long as the block runs."""
        with self._mutex:
            reader = self._acquire(position)
        try:
            yield reader
        finally:
            with self._mutex:
                self._release(position)

    def _acquire(self, position: int) -> LocalReader:
        if position in self._in_use:
            reader, users = self._in_use[position]
            self._in_use[position] = (reader, users + 1)
            return reader
        if position in self._idle:
            reader = self._idle.pop(position)
        else:
            reader = LocalReader(self._directory, self._names[position])
        self._in_use[position] = (reader, 1)
        return reader

    def _release(self, position: int) -> None:
        reader, users = self._in_use.pop(position)
        if users > 1:
            self._in_use[position] = (reader, users - 1)
            return
        self._idle[position] = reader
        while len(self._idle) > self._max_open:
            self._idle.popitem(last=False)[1].close()

    def __enter__(self) -> ReaderPool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        while self._idle:
            self._idle.popitem()[1].close()
