"""Pausing Python's search for cycles of objects while millions are made of which none is in one.

The search looks at all of them again and again: it takes half the time of reading a large checkpoint's headers.
Objects are freed as ever when the last reference to them goes.
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Pauses:
    """How many threads want it paused at the moment, and whether it ran before the first of them."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._count, self._was_enabled = 0, False

    def begin(self) -> None:
        with self._mutex:
            if not self._count:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._count += 1

    def end(self) -> None:
        with self._mutex:
            self._count -= 1
            if not self._count and self._was_enabled:
                gc.enable()


_PAUSES = _Pauses()


@contextmanager
def collector_paused() -> Iterator[None]:
    """No search for cycles in this process for as long as the block runs, in any thread."""
    _PAUSES.begin()
    try:
        yield
    finally:
        _PAUSES.end()
