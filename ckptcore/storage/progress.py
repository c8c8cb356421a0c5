"""The callback that is told bytes as they are dealt with, from any thread."""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[int], None]


def ignore_progress(size_bytes: int) -> None:
    """The progress callback of those who do not look."""
