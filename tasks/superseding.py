"""Stop a run whose version a newer one will take the place of, where the pipeline says so.

The newer version must be whole, and none that the pipeline has given up. A trainer that writes faster than a merge
takes must not starve its readers: after so many stops without a publication, the next run goes on to its end.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, Protocol
from uuid import UUID

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterEndTime,
    FlowRunFilterState,
    FlowRunFilterStateName,
)
from prefect.logging import get_run_logger
from prefect.runtime import deployment

from ckptcore.errors import CheckpointError, Superseded
from ckptcore.publishing import Staged, discard
from ckptcore.registry import history_of, shelf_of
from ckptcore.rules.pipeline import version_key
from ckptcore.rules.reconciling import MOST_STOPS, is_given_up, last_publication
from ckptcore.rules.versions import Version
from ckptcore.storage.progress import OnProgress
from ckptcore.superseding import Lookout
from tasks.attempts import attempts_of
from tasks.ending import SUPERSEDED

LOOK_SECONDS = 5.0


class GoOn(Protocol):
    """Raises :class:`Superseded` where the run is to stop; what is ``staged`` is thrown away first."""

    def __call__(self, staged: Staged | None = None) -> None: ...


def go_on(staged: Staged | None = None) -> None:
    """For runs that nothing stops."""


class Turn:
    """The turn of one run of a deployment to publish ``version`` under ``name``, a :class:`GoOn`."""

    def __init__(self, source: str, version: Version, registry: str, name: str, deployment_id: UUID) -> None:
        self._lookout = Lookout(source, version)
        self._version = version
        self._registry = registry
        self._name = name
        self._deployment_id = deployment_id

    def __call__(self, staged: Staged | None = None) -> None:
        newer = self._newer()
        if newer is None:
            return
        if staged is not None:
            discard(staged)
        raise Superseded(f"{self._version.label} is not published: {newer.label} is whole, in {newer.directory}")

    def _newer(self) -> Version | None:
        """The version that will be published instead."""
        try:
            for newer, digest in self._lookout.newer():
                with get_client(sync_client=True) as client:
                    key = version_key(self._name, newer.directory, newer.unique_id, digest)
                    if is_given_up(attempts_of(client, key)):
                        continue
                    return newer if self._stops(client) < MOST_STOPS else None
        except (CheckpointError, httpx.HTTPError) as error:
            # Whoever cannot look has no reason to stop.
            get_run_logger().warning("cannot look for a newer version: %s", error)
        return None

    def _stops(self, client: SyncPrefectClient) -> int:
        """How many runs have stopped since the last publication, counted as far as it matters."""
        published_at = last_publication(history_of(shelf_of(self._registry, self._name)))
        stopped = FlowRunFilter(
            state=FlowRunFilterState(name=FlowRunFilterStateName(any_=[SUPERSEDED])),
            end_time=FlowRunFilterEndTime.model_validate({"after_": published_at}),
        )
        own = DeploymentFilter(id=DeploymentFilterId(any_=[self._deployment_id]))
        return len(client.read_flow_runs(flow_run_filter=stopped, deployment_filter=own, limit=MOST_STOPS))


def turn_of(version: Version, source: str, registry: str, name: str, superseded: Literal["finish", "stop"]) -> GoOn:
    """What the flow asks between its steps; a run that no deployment started is never stopped."""
    if superseded == "finish" or deployment.id is None:
        return go_on
    return Turn(source, version, registry, name, UUID(str(deployment.id)))


@contextmanager
def interrupted_by(go_on: GoOn, on_progress: OnProgress) -> Iterator[OnProgress]:
    """``on_progress``, which also raises what ``go_on`` raises; that is asked every few seconds beside the work."""
    over, raised = threading.Event(), list[Superseded]()

    def ask() -> None:
        while not raised and not over.wait(LOOK_SECONDS):
            try:
                go_on()
            except Superseded as stop:
                raised.append(stop)

    def progress(size_bytes: int) -> None:
        if raised:
            raise raised[0]
        on_progress(size_bytes)

    # Prefect's settings and the run travel by context, which threads do not inherit.
    asker = threading.Thread(target=contextvars.copy_context().run, args=(ask,), daemon=True)
    asker.start()
    try:
        yield progress
    finally:
        over.set()
        asker.join()
