"""Readings that take longer than a page may wait: each a process that is asked once, listened to, and can be stopped.

What was read is remembered, in memory alone and only so much of it; the same is not read twice, and what failed is not
tried again until somebody asks for that. One reading of values goes on at a time, however many people ask, since it
takes every core; few of headers do.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, Protocol, TypeVar

from ckptcore.dashboard.turns import Turns
from ckptcore.rules.issues import Issue

MOST_ROWS = 400_000
"""So many rows of tables are remembered, over all readings; the newest one whatever its size."""
MOST_READINGS = 200
HEADERS_AT_A_TIME = 2
MOST_WAITING = 20
"""More readings of one place than these do not queue up: whoever asks is told that it is busy."""
QUIET_SECONDS = 5.0
"""A reading that works says so every second; one that was not heard of for so long waits for a file system."""


class Result(Protocol):
    """What a reading becomes."""

    def take_head(self, head: Mapping[str, Any]) -> None: ...

    def take_row(self, row: list[Any]) -> None: ...

    @property
    def row_count(self) -> int: ...


R = TypeVar("R", bound=Result)


class JobState(StrEnum):
    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    REFUSED = "refused"
    """What was read says no: there are a message and issues."""
    FAILED = "failed"
    """The process broke."""
    STOPPED = "stopped"


ENDED = frozenset({JobState.DONE, JobState.REFUSED, JobState.FAILED, JobState.STOPPED})


@dataclass(slots=True)
class Job(Generic[R]):
    """One reading. ``result`` is whole once ``state`` is done; ``ticks`` grows with whatever is new."""

    result: R
    state: JobState = JobState.WAITING
    message: str = ""
    issues: tuple[Issue, ...] = ()
    done_bytes: int = 0
    total_bytes: int = 0
    ticks: int = 0
    place: str = ""
    heard_at: float = field(default_factory=time.monotonic)
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    @property
    def is_done(self) -> bool:
        return self.state is JobState.DONE

    @property
    def is_open(self) -> bool:
        return self.state not in ENDED

    @property
    def share(self) -> float | None:
        """How much of the values is read, None where that is not known."""
        return self.done_bytes / self.total_bytes if self.total_bytes else None

    @property
    def quiet_seconds(self) -> float:
        """For how long nothing was heard of it."""
        return time.monotonic() - self.heard_at

    @property
    def is_quiet(self) -> bool:
        return self.quiet_seconds > QUIET_SECONDS

    def end(self, state: JobState, message: str = "") -> None:
        self.state, self.message = state, message
        self.ticks += 1


def result_of(job: Job[R] | None) -> R | None:
    """What was read, None while it is not whole."""
    return job.result if job is not None and job.is_done else None


class Jobs:
    """Every reading of this dashboard, by what was asked."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[str, Job[Any]] = OrderedDict()
        self._mutex = threading.Lock()
        self._headers = Turns(HEADERS_AT_A_TIME)
        self._values = Turns(1)
        self._is_closed = False

    def known(self, request: Mapping[str, Any]) -> Job[Any] | None:
        """The reading of just this, where it was asked for already."""
        with self._mutex:
            return self._jobs.get(_key(request))

    def ask(self, request: Mapping[str, Any], make: Callable[[], R], *, reads_values: bool = False) -> Job[R]:
        """The reading of this, begun now where it is not known, however it ended; see ``forget``. Never waits."""
        key, place = _key(request), _place(request)
        with self._mutex:
            known = self._jobs.get(key)
            if known is not None:
                self._jobs.move_to_end(key)
                return known
            job = Job(make(), place=place)
            waiting = sum(each.is_open and each.place == place for each in self._jobs.values())
            if waiting >= MOST_WAITING or self._is_closed:
                job.end(JobState.FAILED, "too much is being read already; try again in a minute")
                return job
            self._jobs[key] = job
        turns = self._values if reads_values else self._headers
        threading.Thread(target=self._run, args=(job, dict(request), turns), name="reading", daemon=True).start()
        return job

    def forget(self, request: Mapping[str, Any]) -> None:
        """Let the next who asks for this read it again."""
        with self._mutex:
            known = self._jobs.get(_key(request))
            if known is not None and not known.is_open:
                del self._jobs[_key(request)]

    def stop(self, job: Job[Any]) -> None:
        """End it; what was read so far is thrown away."""
        with self._mutex:
            if not job.is_open:
                return
            job.end(JobState.STOPPED)
            process = job.process
        if process is not None:
            process.kill()

    def close(self) -> None:
        """End every reading; none is begun from now on."""
        with self._mutex:
            self._is_closed = True
            jobs = list(self._jobs.values())
        for job in jobs:
            self.stop(job)

    def _run(self, job: Job[Any], request: Mapping[str, Any], turns: Turns) -> None:
        with turns.turn(job.place, lambda: job.is_quiet, lambda: job.is_open):
            with self._mutex:
                if not job.is_open:
                    return
                try:
                    process = job.process = subprocess.Popen(
                        [sys.executable, "-P", "-m", "ckptcore.dashboard.reading"],
                        stdin=subprocess.PIPE,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.PIPE,
                        env={**os.environ, "PYTHONUTF8": "1"},
                    )
                except OSError as error:
                    job.end(JobState.FAILED, f"no process could be started: {error.strerror}")
                    return
                job.state, job.heard_at = JobState.RUNNING, time.monotonic()
                job.ticks += 1
            with process:
                self._listen(job, process, request)
            with self._mutex:
                job.process = None
                if job.is_open:
                    job.end(JobState.FAILED, f"the process that read it ended with status {process.returncode}")
        self._forget()

    def _listen(self, job: Job[Any], process: subprocess.Popen[bytes], request: Mapping[str, Any]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        errors = process.stderr
        # Nobody reads what it complains of, but a full pipe would hold it up.
        drain = threading.Thread(target=errors.read, daemon=True)
        drain.start()
        try:
            process.stdin.write(f"{json.dumps(request)}\n".encode())
            process.stdin.close()
            for line in process.stdout:
                job.heard_at = time.monotonic()
                kind, data = json.loads(line)
                self._take(job, kind, data)
        except (OSError, ValueError):
            process.kill()  # it was stopped in the middle of a line, or nobody will read what else it has to say
        except Exception as error:  # noqa: BLE001 - a reading that never ends would keep the others waiting
            process.kill()
            with self._mutex:
                if job.is_open:
                    job.end(JobState.FAILED, f"what was read cannot be shown: {error}")
        process.wait()
        drain.join()

    def _take(self, job: Job[Any], kind: str, data: Any) -> None:
        match kind:
            case "row":
                job.result.take_row(data)
            case "head":
                job.result.take_head(data)
            case "progress":
                job.done_bytes, job.total_bytes = data
                job.ticks += 1
            case "refused":
                job.issues = tuple(Issue(*issue) for issue in data["issues"])
                with self._mutex:
                    if job.is_open:
                        job.end(JobState.REFUSED, data["message"])
            case "done":
                with self._mutex:
                    if job.is_open:
                        job.end(JobState.DONE)

    def _forget(self) -> None:
        """Let go of what was asked for longest ago, as far as there is too much."""
        with self._mutex:
            rows = sum(job.result.row_count for job in self._jobs.values())
            for key, job in list(self._jobs.items())[:-1]:
                if rows <= MOST_ROWS and len(self._jobs) <= MOST_READINGS:
                    return
                if not job.is_open:
                    rows -= job.result.row_count
                    del self._jobs[key]


def _place(request: Mapping[str, Any]) -> str:
    """What it reads from: a source, or one name of a registry."""
    return _key({part: request.get(part) for part in ("source", "registry", "name")})


def _key(request: Mapping[str, Any]) -> str:
    return json.dumps(request, sort_keys=True)
