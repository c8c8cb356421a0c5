"""One line of progress on a terminal, for what takes longer than a glance."""

from __future__ import annotations

import sys
import threading
import time

from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.sizes import format_duration, format_size

_REDRAW_SECONDS = 0.2


class ByteProgress:
    """Counts finished bytes from any thread and redraws them with rate and time left, where stderr is a terminal.

    ``what`` is what the ``total`` of bytes makes up: ``290 tensors``.
    """

    def __init__(self, total: int, what: str) -> None:
        self._total, self._what = total, what
        self._is_shown = sys.stderr.isatty()
        self._start = self._drawn = time.monotonic()
        self._done = 0
        self._mutex = threading.Lock()

    def __call__(self, size_bytes: int) -> None:
        with self._mutex:
            self._done += size_bytes
            now = time.monotonic()
            if self._is_shown and (now - self._drawn >= _REDRAW_SECONDS or self._done >= self._total):
                self._drawn = now
                self._draw(now - self._start)

    def _draw(self, seconds: float) -> None:
        rate = self._done / seconds if seconds else 0.0
        left = (self._total - self._done) / rate if rate else 0.0
        share = self._done / self._total if self._total else 1.0
        done, total = format_size(self._done), format_size(self._total)
        sys.stderr.write(
            f"\r\x1b[K{share:4.0%} of {self._what}  "
            f"{done} of {total}  {format_size(rate)}/s  {format_duration(left)} left"
        )
        if self._done >= self._total:
            sys.stderr.write("\n")
        sys.stderr.flush()


class Progress(ByteProgress):
    """The progress of a merge, by its plan."""

    def __init__(self, plan: MergePlan) -> None:
        total = sum(shard.data_bytes for shard in plan.shards)
        super().__init__(total, f"{sum(len(shard.tensors) for shard in plan.shards):,} tensors")
