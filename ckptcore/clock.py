"""The time, as records write it."""

from __future__ import annotations

from datetime import UTC, datetime


def now() -> str:
    """The time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
