"""One flow at a time merges a version, on any machine that works for the same server.

A slot of a global concurrency limit of the version's own. It is leased: a flow that is killed gives it back within a
minute. The registry's lock stands behind it, so that a server which loses its slots costs a wait and no second merge.
A server that is away is waited for before the merge, and cannot fail it afterwards.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import GlobalConcurrencyLimitCreate
from prefect.concurrency.asyncio import ConcurrencySlotAcquisitionError
from prefect.concurrency.sync import concurrency
from prefect.exceptions import ObjectAlreadyExists
from prefect.logging import get_run_logger

from ckptcore.rules.pipeline import merge_limit
from ckptcore.rules.versions import Version

LEASE_SECONDS = 60.0
PATIENCE_SECONDS = 600.0
"""Then somebody is merging who will refuse us by the registry's lock, or slot or server was lost."""
_PAUSE_SECONDS = 2.0
_TRIES = 3


@contextmanager
def alone_with(version: Version, name: str) -> Iterator[None]:
    """Hold the slot of merging the version for ``name`` while the block runs."""
    with ExitStack() as held:
        _take(held, merge_limit(name, version.directory, version.unique_id))
        yield


def _take(held: ExitStack, name: str) -> None:
    failures, end = 0, time.monotonic() + PATIENCE_SECONDS
    while True:
        # A server that was restarted must not end the merge that goes on without it.
        slot = concurrency(
            name,
            occupy=1,
            strict=True,
            timeout_seconds=PATIENCE_SECONDS,
            lease_duration=LEASE_SECONDS,
            raise_on_lease_renewal_failure=False,
        )
        try:
            _ensure(name)
            slot.__enter__()
        except TimeoutError:
            get_run_logger().warning("nobody gave %s back in %.0f s; going on without it", name, PATIENCE_SECONDS)
            return
        except (httpx.HTTPError, ConcurrencySlotAcquisitionError) as error:
            if _is_away(error):
                if time.monotonic() > end:
                    get_run_logger().warning("no server gives %s; going on without it", name)
                    return
                # Prefect's client tries again only where it was connected before, and here it has a new one each time.
                time.sleep(_PAUSE_SECONDS)
                continue
            failures += 1
            if failures == _TRIES:
                raise  # reconcile removes limits that nobody uses, but not every time
        else:
            held.callback(_give_back, slot, name)
            return


def _is_away(error: BaseException) -> bool:
    """Whether the server did not answer, or answered that it cannot now, as while its database is away."""
    cause = error if isinstance(error, httpx.HTTPError) else error.__cause__
    if isinstance(cause, httpx.HTTPStatusError):
        return cause.response.status_code >= httpx.codes.INTERNAL_SERVER_ERROR
    return isinstance(cause, httpx.TransportError)


def _give_back(slot: AbstractContextManager[None], name: str) -> None:
    """End the lease; where the server is away it ends by itself, and what was done stays done."""
    try:
        slot.__exit__(None, None, None)
    except httpx.HTTPError as error:
        get_run_logger().warning("%s is given back when its lease ends, in %.0f s: %s", name, LEASE_SECONDS, error)


def _ensure(name: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        except ObjectAlreadyExists:
            pass
