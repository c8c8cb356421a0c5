"""How a run of the lifecycle ends that did not do its work: refused for good, failing, not yet, or stopped for a
newer version.

The state's name says which, so that whoever is alerted and whoever tries again can tell it from a fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.client.schemas.sorting import FlowRunSort
from prefect.states import Completed, Failed

from ckptcore.errors import CheckpointError
from ckptcore.rules.pipeline import REFUSED
from tasks.retrying import is_final

NOT_YET = "NotYet"
NOT_PASSED = "NotPassed"
SUPERSEDED = "Superseded"
FAILED = "Failed"
STILL_FAILING = "StillFailing"
"""As ``Failed``, by the same faults as the run before, of which people were told then."""


def ended_by(refusal: CheckpointError) -> Any:
    """The failed state of a run that the refusal ends; raises it again where the same may be granted later.

    A flow returns it in the place of its value: who calls the flow gets the refusal raised, never the state.
    """
    if not is_final(refusal):
        raise refusal
    return Failed(name=REFUSED, message=f"{type(refusal).__name__}: {refusal}", data=refusal)


def ended_by_all(refusals: Sequence[Exception]) -> Any:
    """The failed state of a run of several parts, with every refusal in its message: refused where each of them is for
    good, failed where one part may be granted later.

    A flow returns it in the place of its value.
    """
    name = REFUSED if all(map(is_final, refusals)) else FAILED
    return Failed(name=name, message=_told(refusals), data=_as_one(refusals))


def failing_by(faults: Sequence[Exception], deployment_id: UUID | None) -> Any:
    """The failed state of a run that is started again and again and met these faults, all of them in its message:
    ``Failed`` for the first such run of the deployment, ``StillFailing`` for the next, so that people are told once.

    A flow returns it in the place of its value.
    """
    message = _told(faults)
    is_known = deployment_id is not None and _last_failure(deployment_id) == message
    return Failed(name=STILL_FAILING if is_known else FAILED, message=message, data=_as_one(faults))


def _told(faults: Sequence[Exception]) -> str:
    return "\n".join(f"{type(fault).__name__}: {fault}" for fault in faults)


def _as_one(faults: Sequence[Exception]) -> Exception:
    return faults[0] if len(faults) == 1 else CheckpointError(_told(faults))


def _last_failure(deployment_id: UUID) -> str | None:
    """The message of the last run of the deployment that came to an end of its own, where that failed."""
    with get_client(sync_client=True) as client:
        last = client.read_flow_runs(
            flow_run_filter=FlowRunFilter(
                deployment_id=FlowRunFilterDeploymentId(any_=[deployment_id]),
                state=FlowRunFilterState(
                    type=FlowRunFilterStateType(any_=[StateType.COMPLETED, StateType.FAILED]),
                ),
            ),
            sort=FlowRunSort.END_TIME_DESC,
            limit=1,
        )
    return next((run.state.message for run in last if run.state is not None and run.state.is_failed()), None)


def not_passed(refusal: CheckpointError) -> Any:
    """The failed state of a run of gates alone. The flow that waits for it ends by the refusal, and alerts of that.

    A flow returns it in the place of its value.
    """
    return Failed(name=NOT_PASSED, message=f"{type(refusal).__name__}: {refusal}", data=refusal)


def not_yet(refusal: CheckpointError) -> Any:
    """The state of a run that an early announcement started, or the second run of a version: nothing is wrong, and
    reconcile comes back to the version unless it is published by then.

    A flow returns it in the place of its value, and who calls the flow gets None.
    """
    return Completed(name=NOT_YET, message=f"{refusal}\nreconcile comes back to it")


def superseded_by(newer: CheckpointError) -> Any:
    """The state of a run that stopped for a newer version: nothing is wrong, and nothing comes back to it.

    A flow returns it in the place of its value, and who calls the flow gets None.
    """
    return Completed(name=SUPERSEDED, message=str(newer))
