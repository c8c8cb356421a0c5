"""Gate elsewhere: let the gates that need a device be passed by a run of their own, where the devices are.

This flow waits meanwhile and holds no device; that run holds one for no longer than its gates take. The release lies
where both see it, and what comes back is the small verdict, in an artifact of that run.
"""

from __future__ import annotations

from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    ArtifactFilterType,
)
from prefect.client.schemas.objects import FlowRun
from prefect.client.schemas.sorting import ArtifactSort
from prefect.deployments import run_deployment
from prefect.exceptions import ObjectNotFound
from prefect.logging import get_run_logger
from prefect.runtime import flow_run
from prefect.states import Cancelled

from ckptcore.errors import DeviceFailed, InvalidConfig
from ckptcore.pipeline import CheckSettings
from ckptcore.publishing import Staged, is_settled
from ckptcore.rules.gates import GateReport
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.selection import Selection
from ckptcore.verdicts import passed
from tasks.lifecycle_task import lifecycle_task

VERDICT = "ckpt-verdict"
"""The type of the artifact."""
PATIENCE_SECONDS = 12 * 3600.0
"""Then nobody works in the pool, or all that do are stuck."""
_POLL_SECONDS = 1.0


@lifecycle_task
def gate_elsewhere(
    staged: Staged,
    checks: CheckSettings,
    deployment: str,
    selection: Selection = Selection(),
    alias: str = DEFAULT_ALIAS,
) -> tuple[GateReport, ...]:
    """What a run of ``deployment`` says of those gates that need a device. Raises what refused the release there.

    Where it ends without a verdict, however that happens, nothing is known and :class:`DeviceFailed` is raised.
    """
    if is_settled(staged, alias):
        return ()
    parameters = {
        "staged": {field: getattr(staged, field) for field in staged.__slots__},
        "checks": checks.model_dump(mode="json"),
        "selection": {field: getattr(selection, field) for field in selection.__slots__},
        "alias": alias,
    }
    try:
        run = run_deployment(
            deployment,
            parameters=parameters,
            flow_run_name=f"{staged.name}: {staged.release}",
            timeout=PATIENCE_SECONDS,
            poll_interval=_POLL_SECONDS,
            # A task that is tried again after a fault of the network meets the run that it has started already.
            idempotency_key=f"{flow_run.id}-{flow_run.run_count}-{staged.release}-{alias}",
            as_subflow=False,
        )
    except ObjectNotFound as error:
        raise InvalidConfig(f"the server has no deployment {deployment}: run ckpt deploy") from error
    assert isinstance(run, FlowRun)  # a coroutine only where an event loop runs
    reports = _verdict_of(run, deployment)
    for report in reports:
        get_run_logger().info("%s@%s: %s: %s", staged.name, staged.release, report.gate, report.finding)
    return reports


def tell_verdict(verdict: dict[str, object]) -> None:
    """Leave the verdict with the flow run in which this is called."""
    artifact = ArtifactCreate(type=VERDICT, data=verdict, flow_run_id=UUID(str(flow_run.id)))
    with get_client(sync_client=True) as client:
        client.create_artifact(artifact)


def _verdict_of(run: FlowRun, deployment: str) -> tuple[GateReport, ...]:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[run.id]), type=ArtifactFilterType(any_=[VERDICT]))
    with get_client(sync_client=True) as client:
        if run.state is None or not run.state.is_final():
            client.set_flow_run_state(run.id, Cancelled(message="The flow that asked for it waits no longer."))
            raise DeviceFailed(f"{deployment}: not done after {PATIENCE_SECONDS / 3600:.0f} h; who works in its pool?")
        told = client.read_artifacts(artifact_filter=wanted, sort=ArtifactSort.CREATED_DESC, limit=1)
    if not told or not isinstance(told[0].data, dict):
        raise DeviceFailed(f"{deployment}: run {run.name} ended as {run.state.name}: {run.state.message}")
    return passed(told[0].data)
