"""Catch up: start a run for each version that is not published, the oldest first, as far as there is room."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from uuid import UUID

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import (
    DeploymentFilter,
    DeploymentFilterId,
    FlowRunFilter,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import FlowRun, StateType
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.settings import PREFECT_API_URL
from prefect.states import Cancelled, Crashed

from ckptcore.errors import EventUnacceptable, StorageError
from ckptcore.events import damaged_event, send_once
from ckptcore.pipeline import Pipeline, SourceSettings
from ckptcore.reconciling import Outstanding, outstanding
from ckptcore.rules.pipeline import MERGE_LIMITS, version_parameters, version_tag
from ckptcore.rules.reconciling import Attempt, is_given_up, next_attempt
from ckptcore.rules.versions import StateKind
from tasks.artifacts import Row, artifact_key, show_table
from tasks.attempts import attempts_of
from tasks.lifecycle_task import lifecycle_task

_UNDERWAY = [StateType.SCHEDULED, StateType.PENDING, StateType.RUNNING, StateType.PAUSED, StateType.CANCELLING]
_LIMITS_A_PAGE = 200
START_SECONDS = 120.0
"""How long a worker may take to start a run that it took."""
EVENT_SECONDS = 60.0
"""What is younger is left to its event, which is on its way: two runs would be refused, and told of, for one fault."""


@dataclass(frozen=True, slots=True)
class CaughtUp:
    """What one look at a source led to, by the labels of versions: runs started, and what is left for which reason."""

    started: tuple[str, ...] = ()
    held_back: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()


@lifecycle_task
def catch_up(pipeline: Pipeline, source: SourceSettings, deployment: str) -> CaughtUp:
    """Start runs of the deployment for what the source holds and the alias has not come to.

    As many runs wait or work at a time as the pipeline allows; the rest waits for the next call, and so does what was
    written just now. A version that was refused is left alone, one that broke is tried again, later each time. Where
    the pipeline stops what is superseded, the newest that is whole and not given up is the only one.
    """
    name, logger = pipeline.name_of(source), get_run_logger()
    started, held_back, incomplete, damaged = list[str](), list[str](), list[str](), list[str]()
    with get_client(sync_client=True) as client:
        deployed = client.read_deployment_by_name(deployment)
        deployment_id = deployed.id
        if deployed.work_pool_name and client.read_work_pool(deployed.work_pool_name).type == "process":
            # Elsewhere a run that was taken may wait for its image, or in a queue, for longer than anybody knows.
            _bury_forgotten(client, deployment_id)
        underway = _underway(client, deployment_id)
        room = pipeline.limits.queued - len(underway)
        only_newest = pipeline.limits.superseded == "stop"
        alias = pipeline.alias_of(source)
        for found in outstanding(source.path, source.component, pipeline.registry, name, alias, only_newer=only_newest):
            label = found.version.label
            is_young = 0 <= time.time() - found.written_at < EVENT_SECONDS
            match found.state.kind:
                case StateKind.INCOMPLETE:
                    incomplete.append(label)
                case StateKind.DAMAGED if is_young:
                    incomplete.append(label)  # a file that is still being written looks like one that is cut off
                case StateKind.DAMAGED:
                    damaged.append(label)
                    try:
                        _tell_damaged(found)
                    except (StorageError, EventUnacceptable) as error:
                        # The next call tells it; what is whole is not to wait for that.
                        logger.warning("%s: nobody is told yet that it is damaged: %s", label, error)
                case StateKind.COMPLETE:
                    attempt, tried = None, attempts_of(client, found.key)
                    is_left_to_event = is_young and not tried
                    if (
                        room > 0
                        and not is_left_to_event
                        and (found.version.directory, found.version.unique_id) not in underway
                    ):
                        attempt = next_attempt(tried, time.time())
                    if attempt is None:
                        held_back.append(label)
                    else:
                        _start(client, deployment_id, found, f"{attempt}-{_last_end(tried)}", pipeline)
                        started.append(label)
                        room -= 1
                    if only_newest and not is_given_up(tried):
                        break
            if room <= 0:
                break  # the oldest come first: what is newer can wait to be looked at
    caught_up = CaughtUp(tuple(started), tuple(held_back), tuple(incomplete), tuple(damaged))
    logger.info("%s: %d run(s) started, %d version(s) held back", source.path, len(started), len(held_back))
    show_table(artifact_key("reconcile", name), _rows(caught_up), f"{source.path}: {len(started)} run(s) started")
    return caught_up


def _bury_forgotten(client: SyncPrefectClient, deployment_id: UUID) -> None:
    """End the runs that a worker took and did not live to start; without a heartbeat nobody else would ever do so."""
    for run in _runs(client, deployment_id, [StateType.PENDING]):
        if run.state is not None and time.time() - run.state.timestamp.timestamp() > START_SECONDS:
            message = f"Its worker did not start it in {START_SECONDS:.0f} s."
            client.set_flow_run_state(run.id, Crashed(message=message))


def _underway(client: SyncPrefectClient, deployment_id: UUID) -> list[tuple[object, object]]:
    """Directory and unique_id of each run of the deployment that waits or works; runs that wait have no tag yet."""
    runs = _runs(client, deployment_id, _UNDERWAY)
    return [(run.parameters.get("directory"), run.parameters.get("unique_id")) for run in runs]


def _runs(client: SyncPrefectClient, deployment_id: UUID, states: list[StateType]) -> list[FlowRun]:
    return client.read_flow_runs(
        flow_run_filter=FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=states))),
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id])),
    )


def _start(
    client: SyncPrefectClient, deployment_id: UUID, found: Outstanding, attempt: str, pipeline: Pipeline
) -> None:
    version = found.version
    client.create_flow_run_from_deployment(
        deployment_id,
        parameters=version_parameters(version.directory, version.unique_id)
        | {"superseded": pipeline.limits.superseded},
        tags=[version_tag(found.key)],
        name=version.label,
        # Two reconciles at once, or one that is tried again, start one run. The number alone would come again once the
        # server has forgotten the oldest tries.
        idempotency_key=f"{found.key}-{attempt}",
    )


def _last_end(attempts: Sequence[Attempt]) -> int:
    """When the last try ended, in whole seconds since 1970; 0 where there was none."""
    return int(max((attempt.ended_at or 0.0 for attempt in attempts), default=0.0))


def _tell_damaged(found: Outstanding) -> None:
    """The event whose id is the same for the same bytes, so that one alert is raised."""
    url = PREFECT_API_URL.value()
    if url:
        send_once(damaged_event(found.version, found.fingerprint, found.state.reasons), url)


def _rows(caught_up: CaughtUp) -> Iterator[Row]:
    for kind in ("started", "held_back", "incomplete", "damaged"):
        for label in getattr(caught_up, kind):
            yield {"kind": kind.replace("_", " "), "where": label, "finding": ""}


@lifecycle_task
def drop_missed(deployment_id: str) -> int:
    """Cancel the runs of the deployment that were due before now: what they would do is done now. How many.

    After a night without a worker there is one for each time that was missed.
    """
    missed = 0
    with get_client(sync_client=True) as client:
        for run in _runs(client, UUID(deployment_id), [StateType.SCHEDULED]):
            if run.expected_start_time is not None and run.expected_start_time.timestamp() < time.time():
                client.set_flow_run_state(run.id, Cancelled(message="A later run does its work."))
                missed += 1
    return missed


@lifecycle_task
def tidy_limits() -> int:
    """Remove the limits of versions that nobody merges now, and say how many; one is made again when it is needed."""
    removed = 0
    with get_client(sync_client=True) as client:
        limits, offset = client.read_global_concurrency_limits(limit=_LIMITS_A_PAGE), 0
        while limits:
            unused = [limit for limit in limits if limit.name.startswith(MERGE_LIMITS) and not limit.active_slots]
            for limit in unused:
                try:
                    client.delete_global_concurrency_limit_by_name(limit.name)
                    removed += 1
                except ObjectNotFound:
                    pass  # another reconcile was quicker
            offset += len(limits) - len(unused)
            limits = client.read_global_concurrency_limits(limit=_LIMITS_A_PAGE, offset=offset)
    return removed
