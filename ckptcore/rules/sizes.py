"""Sizes as people write and read them: ``5GB`` is decimal, ``5GiB`` binary, a bare number bytes; and durations."""

from __future__ import annotations

import re

_UNITS = {"": 1, "B": 1} | {
    f"{letter}{infix}": base**power
    for power, letter in enumerate("KMGT", start=1)
    for infix, base in (("", 1000), ("B", 1000), ("IB", 1024))
}


def parse_size(text: str) -> int:
    """Bytes, at least 1. Raises ValueError with what is wrong."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*", text)
    unit = _UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ValueError(f"{text!r} is not a size such as 500MB, 5GB or 2GiB")
    size = int(float(match[1]) * unit)
    if size < 1:
        raise ValueError(f"{text!r} is less than one byte")
    return size


def format_size(size_bytes: float) -> str:
    """Decimal units with three figures: ``1.57 GB``."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if size_bytes < 1000 or unit == "TB":
            return f"{size_bytes:.0f} B" if unit == "B" else f"{size_bytes:.3g} {unit}"
        size_bytes /= 1000
    raise AssertionError("unreachable")


def format_duration(seconds: float) -> str:
    """The two units that matter: ``42 s``, ``3 min 20 s``, ``2 h 4 min``."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600:,} h {whole % 3600 // 60} min"
