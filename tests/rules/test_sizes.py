"""Sizes and durations as people write and read them."""

from __future__ import annotations

import pytest

from ckptcore.rules.sizes import format_duration, format_size, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [("5GB", 5_000_000_000), ("2GiB", 2 << 30), ("1.5kb", 1500), ("10", 10), (" 3 M ", 3_000_000), ("7B", 7)],
)
def test_a_size_is_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "0", "0.1B", "5 parsecs", "1e3", "nan"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"is not a size|less than one byte"):
        parse_size(text)


@pytest.mark.parametrize(("size", "text"), [(0, "0 B"), (999, "999 B"), (1_570_000_000, "1.57 GB"), (5e15, "5e+03 TB")])
def test_a_size_is_shown(size: float, text: str) -> None:
    assert format_size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.2, "0 s"), (59.4, "59 s"), (59.6, "1 min 0 s"), (200, "3 min 20 s"), (7440, "2 h 4 min")]
)
def test_a_duration_is_shown(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text
