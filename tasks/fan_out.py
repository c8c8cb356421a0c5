"""Fan out: the shards of one release written by the processes of a task runner, on any machine that sees the files.

The plan lies beside the shards and is read by each worker; what travels are names and digests. A worker that dies loses
what it had in work, and its shards are written elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any

from prefect import unmapped
from prefect.futures import PrefectFuture, as_completed
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
_ENGINES = ("distributed", "ray")
"""The packages whose own exceptions say that the work was lost, not that it was refused."""


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
    machines, shared = task_runner(runner), share(writing)
    chunk: Task[Any, Any] = merge_shards
    with MergeProgress(writing.plan, key, partial(finished_bytes, writing)), ExitStack() as running:
        try:
            running.enter_context(machines)
            futures = machines.map(chunk, {"shared": unmapped(shared), "names": chunks})
        except OSError as error:
            raise RunnerUnavailable(f"the runner cannot be reached: {error}") from error
        for future in as_completed(list(futures)):
            _require_done(future)


def _require_done(future: PrefectFuture[Any]) -> None:
    """Raise what the task was refused for, or that the runner lost it, its workers or its head having died."""
    try:
        future.result()
    except Exception as error:
        if type(error).__module__.partition(".")[0] in _ENGINES:
            raise RunnerUnavailable(f"the runner lost shards of this release: {error}") from error
        raise


def task_runner(settings: RunnerSettings) -> TaskRunner[Any]:
    """The runner that the settings name: the workers of a cluster that runs already, or new ones on this machine.

    Raises :class:`RunnerUnavailable` where it is not installed.
    """
    try:
        return _of_dask(settings.dask) if settings.dask is not None else _of_ray(settings.ray)
    except ImportError as error:
        raise RunnerUnavailable(f"the runner is not installed here: {error}") from error


def _of_dask(place: int | str) -> TaskRunner[Any]:
    from prefect_dask.task_runners import DaskTaskRunner

    if isinstance(place, str):
        return DaskTaskRunner(address=place)
    # One task at a time for each process, since a merge has threads of its own.
    workers = {"n_workers": place, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    return DaskTaskRunner(cluster_kwargs=workers)


def _of_ray(place: int | str | None) -> TaskRunner[Any]:
    from prefect_ray.task_runners import RayTaskRunner

    if isinstance(place, str):
        runner: TaskRunner[Any] = RayTaskRunner(address=place)
        return runner
    here: TaskRunner[Any] = RayTaskRunner(init_kwargs={"num_cpus": place, "include_dashboard": False})
    return here
