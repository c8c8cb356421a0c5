"""What every task of the lifecycle has in common."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from prefect import task
from prefect.cache_policies import NO_CACHE
from prefect.runtime import flow_run
from prefect.tasks import Task

from ckptcore.asking import asked_for
from ckptcore.rules.pipeline import person_of
from tasks.refusals import log_refusals_without_trace
from tasks.retrying import RETRY_DELAYS_SECONDS, retry_io_faults

P = ParamSpec("P")
R = TypeVar("R")

log_refusals_without_trace()


def lifecycle_task(function: Callable[P, R]) -> Task[P, R]:
    """A Prefect task of the function's name, tried again after faults of the file system alone.

    Never cached: what a step says is what the disk says now, and work that was done is found there. What it does to a
    registry is recorded as asked for by whoever the run's tags name.
    """

    @wraps(function)
    def asked(*args: P.args, **kwargs: P.kwargs) -> R:
        with asked_for(person_of(flow_run.tags or ())):
            return function(*args, **kwargs)

    return task(
        retries=len(RETRY_DELAYS_SECONDS),
        retry_delay_seconds=list(RETRY_DELAYS_SECONDS),
        retry_condition_fn=retry_io_faults,
        cache_policy=NO_CACHE,
    )(asked)
