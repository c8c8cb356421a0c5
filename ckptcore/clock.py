"""The time, as records write it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def seconds_of(text: str) -> float | None:
    """What :func:`now` gave, in seconds since 1970, or None where it is no such time."""
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        return None
