"""Whose turn it is to read: so many at a time, and so many of one place.

A file system that hangs holds what reads from it for ever. So whoever was not heard of for a while keeps its turn from
those alone who want the same place; all others go past it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_LOOK_SECONDS = 0.5
"""Nobody tells that a reading has gone quiet, so those who wait look by themselves."""

IsQuiet = Callable[[], bool]


class Turns:
    """The turns of one kind of reading. Safe to share between threads."""

    def __init__(self, at_a_time: int) -> None:
        self._at_a_time = at_a_time
        self._changed = threading.Condition()
        self._taken: list[tuple[str, IsQuiet]] = []

    @contextmanager
    def turn(self, place: str, is_quiet: IsQuiet, is_wanted: Callable[[], bool]) -> Iterator[None]:
        """Wait for a turn at ``place``, and hold it. It comes at once where it is wanted no more."""
        mine = (place, is_quiet)
        with self._changed:
            while is_wanted() and not self._is_free(place):
                self._changed.wait(_LOOK_SECONDS)
            self._taken.append(mine)
        try:
            yield
        finally:
            with self._changed:
                self._taken.remove(mine)
                self._changed.notify_all()

    def _is_free(self, place: str) -> bool:
        here = sum(taken == place for taken, _ in self._taken)
        return here < self._at_a_time and sum(not is_quiet() for _, is_quiet in self._taken) < self._at_a_time
