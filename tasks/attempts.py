"""What was tried to publish a version, as the server's runs tell it."""

from __future__ import annotations

from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterTags
from prefect.client.schemas.objects import FlowRun

from ckptcore.rules.pipeline import REFUSED, version_tag
from ckptcore.rules.reconciling import Attempt, Outcome

_PAGE = 200


def attempts_of(client: SyncPrefectClient, key: str) -> list[Attempt]:
    """The runs that were to do the work of the key."""
    tagged = FlowRunFilter(tags=FlowRunFilterTags(all_=[version_tag(key)]))
    runs, page = list[FlowRun](), client.read_flow_runs(flow_run_filter=tagged, limit=_PAGE)
    while page:
        runs += page
        page = client.read_flow_runs(flow_run_filter=tagged, limit=_PAGE, offset=len(runs))
    return [_attempt(run) for run in runs]


def _attempt(run: FlowRun) -> Attempt:
    state = run.state
    if state is None or not state.is_final():
        return Attempt(Outcome.UNDERWAY)
    ended_at = state.timestamp.timestamp()
    if state.is_cancelled() or state.name == REFUSED:
        return Attempt(Outcome.REFUSED, ended_at)
    return Attempt(Outcome.DONE if state.is_completed() else Outcome.BROKEN, ended_at)
