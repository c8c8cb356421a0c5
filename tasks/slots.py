"""Slots of a global concurrency limit of the server, leased: a process that is killed gives them back within a minute.

What stands behind the slots, so that a server which loses them does no harm, is the caller's.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from prefect.client.orchestration import get_client
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.logging import get_run_logger

LEASE_SECONDS = 60.0
"""The shortest that the server grants; it takes up to as long again to notice."""
PATIENCE_SECONDS = 600.0
_TRIES = 3


@contextmanager
def slots(limit: str, *, size: int, count: int = 1) -> Iterator[None]:
    """Hold ``count`` of the ``size`` slots of ``limit``, made so if it is not, while the block runs.

    Who does not get them in ten minutes goes on without: either slots were lost, or what stands behind them refuses, or
    makes it wait as well.
    """
    with ExitStack() as held:
        for attempt in range(1, _TRIES + 1):
            _ensure(limit, size)
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
                held.enter_context(taken)
                break
            except TimeoutError:
                get_run_logger().warning("nobody gave %s back in %.0f s; going on without it", limit, PATIENCE_SECONDS)
                break
            except ConcurrencySlotAcquisitionError:
                if attempt == _TRIES:
                    raise  # reconcile removes limits that nobody uses, but not every time
        yield


def _ensure(limit: str, size: int) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.upsert_global_concurrency_limit_by_name(limit, size)
        except ObjectAlreadyExists:
            pass  # another process made it between the two calls of this one
