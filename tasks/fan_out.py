"""Fan out: the shards of one release written by the processes of a task runner, on any machine that sees the files.

The plan lies beside the shards and is read by each worker; what travels are names and digests. A worker that dies loses
what it had in work, and its shards are written elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from prefect import unmapped
from prefect.futures import as_completed
from prefect.logging import get_run_logger
from prefect.task_runners import TaskRunner
from prefect.tasks import Task

from ckptcore.errors import RunnerUnavailable
from ckptcore.pipeline import RunnerSettings
from ckptcore.sharing import SharedPlan, finished_bytes, merge_shared, share, shares
from ckptcore.writing import Writing
from tasks.lifecycle_task import lifecycle_task
from tasks.progress import MergeProgress

MOST_CHUNKS = 100
"""The server records each task run, which is what bounds it."""


@lifecycle_task
def merge_shards(shared: SharedPlan, names: Sequence[str]) -> Mapping[str, str]:
    """The SHA-256 of each of the shards, which are written now unless they are there already."""
    digests = merge_shared(shared, names)
    get_run_logger().info("%d shard(s) are there: %s", len(digests), ", ".join(digests))
    return digests


def fan_out(writing: Writing, runner: RunnerSettings, key: str) -> None:
    """Have the rest of the shards written by the runner's processes, in at most a hundred task runs of like size.

    Raises the first refusal of any of them, and :class:`RunnerUnavailable`.
    """
    chunks = shares(writing, most=MOST_CHUNKS)
    if not chunks:
        return
    shared = share(writing)
    chunk: Task[Any, Any] = merge_shards
    with MergeProgress(writing.plan, key, partial(finished_bytes, writing)), task_runner(runner) as machines:
        futures = machines.map(chunk, {"shared": unmapped(shared), "names": chunks})
        for future in as_completed(list(futures)):
            future.result()


def task_runner(settings: RunnerSettings) -> TaskRunner[Any]:
    """The runner that the settings name: the workers of a cluster that runs already, or new ones on this machine."""
    try:
        from prefect_dask.task_runners import DaskTaskRunner
    except ImportError as error:
        raise RunnerUnavailable(f"runner.dask needs the extra `dask`: {error}") from error
    if isinstance(settings.dask, str):
        return DaskTaskRunner(address=settings.dask)
    # A merge has threads of its own. The page of a cluster that lives for minutes would only take a port.
    return DaskTaskRunner(
        cluster_kwargs={"n_workers": settings.dask, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    )
