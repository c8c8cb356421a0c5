"""Which failures are worth another try: faults of the file system, never a refusal."""

from __future__ import annotations

from typing import Any

from prefect.client.schemas.objects import State, TaskRun
from prefect.tasks import Task

from ckptcore.errors import (
    Busy,
    CheckpointError,
    DeviceFailed,
    NotEnoughSpace,
    RunnerUnavailable,
    SourceChanged,
    StorageError,
    Superseded,
    VersionIncomplete,
    WorkerUnfit,
)

RETRY_DELAYS_SECONDS = (1.0, 5.0, 25.0)
"""Half a minute in all: a network file system that fails over takes seconds."""


_PASSING = (
    Busy,
    DeviceFailed,
    NotEnoughSpace,
    RunnerUnavailable,
    SourceChanged,
    StorageError,
    Superseded,
    VersionIncomplete,
    WorkerUnfit,
)


def is_io_fault(error: object) -> bool:
    """Whether the file system failed, so that the same call may succeed later.

    A full disk, a lock that another process holds and whatever is wrong with the checkpoint are answers, not faults.
    """
    if isinstance(error, CheckpointError):
        return isinstance(error, StorageError)
    return isinstance(error, OSError)


def is_final(error: object) -> bool:
    """Whether the same request for the same bytes would be refused again, however much later."""
    return isinstance(error, CheckpointError) and not isinstance(error, _PASSING)


def retry_io_faults(task: Task[..., Any], task_run: TaskRun, state: State[Any]) -> bool:  # noqa: ARG001 - Prefect's signature
    """The ``retry_condition_fn`` of every step."""
    return is_io_fault(state.result(raise_on_failure=False))
