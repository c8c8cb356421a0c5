"""One flow at a time merges a version, on any machine that works for the same server.

A slot of a global concurrency limit of the version's own. It is leased: a flow that is killed gives it back within a
minute. The registry's lock stands behind it, so that a server which loses its slots costs a wait and no second merge.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

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
"""Then somebody is merging who will refuse us by the registry's lock, or the slot was lost."""
_TRIES = 3


@contextmanager
def alone_with(version: Version, name: str) -> Iterator[None]:
    """Hold the slot of merging the version for ``name`` while the block runs."""
    with ExitStack() as held:
        _take(held, merge_limit(name, version.directory, version.unique_id))
        yield


def _take(held: ExitStack, name: str) -> None:
    for attempt in range(1, _TRIES + 1):
        _ensure(name)
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
            held.enter_context(slot)
            return
        except TimeoutError:
            get_run_logger().warning("nobody gave %s back in %.0f s; going on without it", name, PATIENCE_SECONDS)
            return
        except ConcurrencySlotAcquisitionError:
            if attempt == _TRIES:
                raise  # reconcile removes limits that nobody uses, but not every time


def _ensure(name: str) -> None:
    with get_client(sync_client=True) as client:
        try:
            client.create_global_concurrency_limit(GlobalConcurrencyLimitCreate(name=name, limit=1))
        except ObjectAlreadyExists:
            pass
