"""The table that is printed and the JSON that is written, and how far the results reach.

Owns the arithmetic on measurements; nothing here runs anything.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tests.bench.contenders import CAST, FUSED, MERGE, MERGE_WITHOUT_DIGESTS, PADDLE, TRANSPOSED
from tests.bench.measuring import Measured, paired_ratio

MOST_PEAK_BYTES = 120_000_000
MOST_PEAK_BYTES_LAID_OUT = 200_000_000
MOST_PEAK_BYTES_PER_PIECE = 1024
LINEAR_SLACK = 1.15
"""Twice the work may take this much more than twice the time before it counts as not linear."""


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``ratio_to_cp`` is the median over pairs of runs; None where nothing ran beside it."""

    checkpoint: str
    name: str
    runs: int
    seconds_median: float | None
    seconds_min: float | None
    seconds_max: float | None
    cpu_seconds_median: float | None
    call_seconds_median: float | None
    gb_per_s: float | None
    ratio_to_cp: float | None
    peak_mb: float | None
    failure: str


@dataclass(frozen=True, slots=True)
class Reach:
    """One thing that the merge is to reach, and what was measured."""

    what: str
    measured: float
    limit: float
    is_upper_limit: bool

    @property
    def is_reached(self) -> bool:
        return self.measured <= self.limit if self.is_upper_limit else self.measured >= self.limit

    def __str__(self) -> str:
        verdict, sign = "reached" if self.is_reached else "MISSED", "≤" if self.is_upper_limit else "≥"
        return f"{verdict:<8} {self.what}: {self.measured:.2f} ({sign} {self.limit:g})"


def row(measured: Measured) -> Row:
    contender, seconds, calls = measured.contender, measured.seconds, measured.call_seconds
    median = statistics.median(seconds) if seconds else None
    return Row(
        checkpoint=contender.checkpoint,
        name=contender.name,
        runs=len(seconds),
        seconds_median=median,
        seconds_min=min(seconds, default=None),
        seconds_max=max(seconds, default=None),
        cpu_seconds_median=statistics.median(measured.cpu_seconds) if seconds else None,
        call_seconds_median=statistics.median(calls) if calls else None,
        gb_per_s=contender.size_bytes / median / 1e9 if median else None,
        ratio_to_cp=statistics.median(measured.ratios) if measured.ratios else None,
        peak_mb=measured.peak_bytes / 1e6 if seconds else None,
        failure=measured.failure,
    )


def table(rows: Sequence[Row]) -> str:
    """The rows as aligned text. ``call s`` is the time of the call alone, without start-up, where it is known."""
    heads = ("checkpoint", "what", "runs", "median s", "min", "max", "cpu s", "call s", "GB/s", "x cp", "peak MB")
    lines: list[tuple[str, ...]] = [heads]
    for one in rows:
        numbers = (
            (one.seconds_median, 2), (one.seconds_min, 2), (one.seconds_max, 2), (one.cpu_seconds_median, 2),
            (one.call_seconds_median, 2),
            (one.gb_per_s, 2), (one.ratio_to_cp, 2), (one.peak_mb, 0),
        )  # fmt: skip
        lines.append((one.checkpoint, one.name, str(one.runs), *(_number(*number) for number in numbers)))
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    aligned = [
        "  ".join(cell.ljust(width) if column < 2 else cell.rjust(width) for column, (cell, width) in enumerate(cells))
        for cells in (tuple(zip(line, widths, strict=True)) for line in lines)
    ]
    failures = [f"{one.checkpoint}, {one.failure}" for one in rows if one.failure]
    return "\n".join([*aligned, *failures])


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def reaches(
    measured: Sequence[Measured], columns_and_rows: tuple[str, str], linear: Sequence[tuple[str, str, str, float]]
) -> list[Reach]:
    """What the measurements amount to, where they were made.

    ``linear`` holds (what, larger, smaller, factor): the checkpoint ``larger`` has ``factor`` times the ``what`` of
    ``smaller``, and all else the same.
    """
    found = {(one.contender.checkpoint, one.contender.name): one for one in measured if one.runs and not one.failure}
    reached = []
    for (checkpoint, name), one in found.items():
        if name == PADDLE and (merge := found.get((checkpoint, MERGE))) is not None:
            times = statistics.median(one.seconds) / statistics.median(merge.seconds)
            reached.append(Reach(f"{checkpoint}: Paddle's time over ckpt merge's", times, 15, False))
        if name in (TRANSPOSED, FUSED, CAST) and (merge := found.get((checkpoint, MERGE))) is not None:
            if name == TRANSPOSED:  # the limit is its; a cast's time is that of its arithmetic
                reached.append(Reach(f"{name}, over ckpt merge", paired_ratio(one, merge), 3.0, True))
            reached.append(Reach(f"{name}, peak MB", one.peak_bytes / 1e6, MOST_PEAK_BYTES_LAID_OUT / 1e6, True))
        limits = {MERGE_WITHOUT_DIGESTS: 1.0, MERGE: 1.5}
        if name in limits and one.ratios and checkpoint == measured[0].contender.checkpoint:
            ratio = statistics.median(one.ratios)
            reached.append(Reach(f"{checkpoint}: {name} over cp", ratio, limits[name], True))
    columns, rows = (found.get((checkpoint, MERGE_WITHOUT_DIGESTS)) for checkpoint in columns_and_rows)
    if columns is not None and rows is not None:
        reached.append(Reach("columns over rows, without digests", paired_ratio(columns, rows), 1.3, True))
    for what, larger, smaller, factor in linear:
        big, small = found.get((larger, MERGE)), found.get((smaller, MERGE))
        if big is not None and small is not None:
            limit = factor * LINEAR_SLACK
            reached.append(Reach(f"time for {factor:g} times the {what}", paired_ratio(big, small), limit, True))
    peaks = [
        (one.peak_bytes - MOST_PEAK_BYTES_PER_PIECE * one.contender.pieces) / 1e6
        for (_, name), one in found.items()
        if name in (MERGE, MERGE_WITHOUT_DIGESTS)
    ]
    if peaks:
        reached.append(Reach("peak MB of any ckpt merge, less 1 KiB a piece", max(peaks), MOST_PEAK_BYTES / 1e6, True))
    return reached


def document(measured: Sequence[Measured], reached: Sequence[Reach], about: dict[str, Any]) -> dict[str, Any]:
    """Everything, single runs included, as JSON can hold it."""
    results = [
        asdict(row(one)) | {"size_bytes": one.contender.size_bytes, "seconds": one.seconds, "ratios": one.ratios}
        for one in measured
    ]
    return about | {"results": results, "reach": [asdict(one) | {"is_reached": one.is_reached} for one in reached]}
