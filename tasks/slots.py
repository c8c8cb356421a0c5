"""Slots of a global concurrency limit of the server, leased: a process that is killed gives them back within a minute.

What stands behind the slots, so that a server which loses them does no harm, is the caller's. A server that is away is
waited for before the work, and cannot fail it afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import httpx
from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.logging import get_run_logger

LEASE_SECONDS = 60.0
"""The shortest that the server grants; it takes up to as long again to notice."""
PATIENCE_SECONDS = 600.0
_PAUSE_SECONDS = 2.0
_TRIES = 3


@contextmanager
def slots(limit: str, *, size: int, count: int = 1) -> Iterator[None]:
    """Hold ``count`` of the ``size`` slots of ``limit``, made so if it is not, while the block runs.

    Who does not get them in ten minutes goes on without: either slots were lost, or what stands behind them refuses, or
    makes it wait as well.
    """
    with ExitStack() as held:
        _take(held, limit, size, count)
        yield


def _take(held: ExitStack, limit: str, size: int, count: int) -> None:
    failures, end = 0, time.monotonic() + PATIENCE_SECONDS
    while True:
        # A server that was restarted must not end the work that goes on without it.
        taken = concurrency(
            limit,
            occupy=count,
            strict=True,
            timeout_seconds=PATIENCE_SECONDS,
            lease_duration=LEASE_SECONDS,
            raise_on_lease_renewal_failure=False,
        )
        try:
            _ensure(limit, size)
            taken.__enter__()
        except TimeoutError:
            get_run_logger().warning("nobody gave %s back in %.0f s; going on without it", limit, PATIENCE_SECONDS)
            return
        except (httpx.HTTPError, ConcurrencySlotAcquisitionError) as error:
            if _is_away(error):
                if time.monotonic() > end:
                    get_run_logger().warning("no server gives %s; going on without it", limit)
                    return
                # Prefect's client tries again only where it was connected before, and here it has a new one each time.
                time.sleep(_PAUSE_SECONDS)
                continue
            failures += 1
            if failures == _TRIES:
                raise  # reconcile removes limits that nobody uses, but not every time
        else:
            held.callback(_give_back, taken, limit)
            return


def _is_away(error: BaseException) -> bool:
    """Whether the server did not answer, or answered that it cannot now, as while its database is away."""
    cause = error if isinstance(error, httpx.HTTPError) else error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    return isinstance(cause, httpx.TransportError)


def _give_back(taken: AbstractContextManager[None], limit: str) -> None:
    """End the lease; where the server is away it ends by itself, and what was done stays done."""
    try:
        taken.__exit__(None, None, None)
    except httpx.HTTPError as error:
        get_run_logger().warning("%s is given back when its lease ends, in %.0f s: %s", limit, LEASE_SECONDS, error)


def _ensure(limit: str, size: int) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.upsert_global_concurrency_limit_by_name(limit, size)
        except ObjectAlreadyExists:
            pass  # another process made it between the two calls of this one
