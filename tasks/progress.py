"""A merge's progress as a Prefect artifact, which costs the merge nothing."""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from types import TracebackType
from uuid import UUID

from prefect.artifacts import create_progress_artifact, update_progress_artifact
from prefect.logging import get_run_logger

from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.sizes import format_size
from tasks.artifacts import is_in_task_run

UPDATE_SECONDS = 2.0


class MergeProgress:
    """Counts written bytes from any thread; a thread of its own tells Prefect, at most every two seconds.

    Used as a context around the merge, and as its ``on_progress``; where other processes write, ``written`` is asked
    instead. A server that does not answer stops the telling, never the merge.
    """

    def __init__(self, plan: MergePlan, key: str, written: Callable[[], int] | None = None) -> None:
        self._total = sum(shard.data_bytes for shard in plan.shards)
        self._key = key
        self._written = written
        self._done = 0
        self._start = time.monotonic()
        self._mutex = threading.Lock()
        self._is_over = threading.Event()
        self._teller: threading.Thread | None = None

    def __call__(self, size_bytes: int) -> None:
        with self._mutex:
            self._done += size_bytes

    def __enter__(self) -> MergeProgress:
        if is_in_task_run():
            # Prefect's settings and the run that owns an artifact travel by context, which threads do not inherit.
            self._teller = threading.Thread(target=contextvars.copy_context().run, args=(self._tell,), daemon=True)
            self._teller.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        if self._teller is not None:
            self._teller.join()

    def _tell(self) -> None:
        try:
            artifact: UUID | None = None
            is_over = False
            while not is_over:
                is_over = self._is_over.wait(UPDATE_SECONDS)
                if self._written is not None:
                    self._done = self._written()
                if not self._done:
                    continue  # nothing is written where the release stands already
                if artifact is None:
                    created = create_progress_artifact(self._percent(), key=self._key, description=self._text())
                    assert isinstance(created, UUID)  # a coroutine only where an event loop runs
                    artifact = created
                else:
                    update_progress_artifact(artifact, self._percent(), description=self._text())
        except Exception:  # noqa: BLE001 - whatever the client raises, the bytes are what matters
            get_run_logger().warning("cannot tell Prefect how far the merge is; it goes on", exc_info=True)

    def _percent(self) -> float:
        return min(100.0, 100.0 * self._done / self._total)

    def _text(self) -> str:
        seconds = time.monotonic() - self._start
        rate = self._done / seconds if seconds else 0.0
        return f"{format_size(self._done)} of {format_size(self._total)}, {format_size(rate)}/s"
