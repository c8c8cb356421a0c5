"""What a deployed pipeline reacts to: new versions start a merge, and what goes wrong or stays away is told."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from uuid import UUID

from prefect.client.schemas.objects import StateType
from prefect.events.actions import ActionTypes, ChangeFlowRunState, RunDeployment
from prefect.events.schemas.automations import AutomationCore, EventTrigger, Posture

from ckptcore.events import DAMAGED, WRITTEN
from ckptcore.pipeline import Alert, Pipeline, SourceSettings
from ckptcore.rules.pipeline import REFUSED, pipeline_tag, version_parameters, version_patterns
from ckptcore.rules.retention import parse_age
from flows.parameters import PATIENCE_SECONDS
from tasks.ending import NOT_PASSED, NOT_YET, STILL_FAILING, SUPERSEDED

HEARTBEAT_SECONDS = 30
_SILENCE = timedelta(seconds=90)
"""Three heartbeats: then nobody is left who could say how the run ended."""
_FLOW_RUNS = "prefect.flow-run."
_ENDS = ("Completed", "Failed", "Crashed", "Cancelled", REFUSED, NOT_YET, NOT_PASSED, SUPERSEDED, STILL_FAILING)


def name_prefix(pipeline: str) -> str:
    """How the names of all automations of a pipeline begin."""
    return f"ckpt {pipeline}: "


def automations_of(
    pipeline: Pipeline, deployments: Mapping[str, UUID], targets: Mapping[Alert, Sequence[ActionTypes]]
) -> Iterator[AutomationCore]:
    """Every automation of the pipeline. ``deployments`` are those that publish, by name, and ``targets`` who is told of
    what."""
    prefix = name_prefix(pipeline.name)
    for source in pipeline.sources:
        name = pipeline.name_of(source)
        yield AutomationCore(
            name=f"{prefix}publish {name}",
            description=f"A version that is written in {source.path} is published as {name}.",
            trigger=_written(source),
            actions=[_publish(deployments[name], pipeline)],
        )
        if pipeline.stall is not None and targets["stalled"]:
            yield AutomationCore(
                name=f"{prefix}stalled {name}",
                description=f"No version was written in {source.path} for {pipeline.stall}.",
                trigger=EventTrigger(
                    expect={WRITTEN},
                    match=_match(source),
                    posture=Posture.Proactive,
                    threshold=1,
                    within=timedelta(seconds=parse_age(pipeline.stall)),
                ),
                actions=list(targets["stalled"]),
            )
        if targets["damaged"]:
            yield AutomationCore(
                name=f"{prefix}damaged {name}",
                description=f"A version in {source.path} is damaged, and will not be published.",
                trigger=EventTrigger(expect={DAMAGED}, match=_match(source), posture=Posture.Reactive, threshold=1),
                actions=list(targets["damaged"]),
            )
    ends: tuple[tuple[Alert, str], ...] = (("failed", "Failed"), ("refused", REFUSED), ("crashed", "Crashed"))
    for alert, state in ends:
        if targets[alert]:
            yield AutomationCore(
                name=f"{prefix}{alert}",
                description=f"A run of the pipeline ended as {state}.",
                trigger=EventTrigger(
                    expect={f"{_FLOW_RUNS}{state}"},
                    match_related=_own_runs(pipeline),
                    posture=Posture.Reactive,
                    threshold=1,
                ),
                actions=list(targets[alert]),
            )
    yield _silent_runs_crash(pipeline)


def _silent_runs_crash(pipeline: Pipeline) -> AutomationCore:
    """A run whose process and worker were killed together says nothing any more; only its silence tells."""
    return AutomationCore(
        name=f"{name_prefix(pipeline.name)}silent runs crash",
        description="A run that sends no heartbeat any more and has not ended was killed.",
        trigger=EventTrigger(
            after={f"{_FLOW_RUNS}heartbeat"},
            expect={f"{_FLOW_RUNS}heartbeat", *(f"{_FLOW_RUNS}{state}" for state in _ENDS)},
            match_related=_own_runs(pipeline),
            for_each={"prefect.resource.id"},
            posture=Posture.Proactive,
            threshold=1,
            within=_SILENCE,
        ),
        actions=[
            ChangeFlowRunState(
                state=StateType.CRASHED, name="Crashed", message="It sends no heartbeat any more.", force=False
            )
        ],
    )


def _match(source: SourceSettings) -> dict[str, str | list[str]]:
    """Events of the versions that the source takes."""
    return {"prefect.resource.id": version_patterns(os.path.realpath(source.path), source.component)}


def _written(source: SourceSettings) -> EventTrigger:
    return EventTrigger(expect={WRITTEN}, match=_match(source), posture=Posture.Reactive, threshold=1)


def _publish(deployment_id: UUID, pipeline: Pipeline) -> RunDeployment:
    # A template of one expression keeps the type of its value.
    return RunDeployment(
        source="selected",
        deployment_id=deployment_id,
        job_variables=None,
        parameters=version_parameters("{{ event.payload.path }}", "{{ event.payload.unique_id }}")
        | {"patience_seconds": PATIENCE_SECONDS, "superseded": pipeline.limits.superseded},
    )


def _own_runs(pipeline: Pipeline) -> dict[str, str | list[str]]:
    return {"prefect.resource.role": "tag", "prefect.resource.id": f"prefect.tag.{pipeline_tag(pipeline.name)}"}


_WHAT = {
    # The description is ours, and ends with the digest of the automation.
    "stalled": "automation.description.rpartition(' [')[0]",
    "damaged": "event.payload.issues | join('; ')",
}
_ABOUT = {"stalled": "automation.name.partition(': stalled ')[2]"}
_WHERE = {"damaged": "event.payload.path"}
_RUN_WHAT, _RUN_WHERE = "event.payload.validated_state.message", "flow_run | ui_url or event.resource.id"


def alert_body(alert: Alert, pipeline: Pipeline) -> str:
    """What a webhook gets, as a template that the server fills in: JSON with what, whose, and about which event."""
    parts: dict[str, str] = {"about": _about(alert), "what": _what(alert)}
    if alert != "stalled":  # that nothing happened is no event, and its place is in the sentence
        parts |= {"where": _where(alert), "event": "event.event", "occurred": "event.occurred | string"}
        parts |= {"resource": "event.resource.id", "payload": "event.payload"}
    if alert not in ("stalled", "damaged"):
        # A run has no version in its name before it has looked.
        parts |= {"path": "flow_run.parameters.get('directory')", "unique_id": "flow_run.parameters.get('unique_id')"}
    head = json.dumps({"alert": alert, "pipeline": pipeline.name})
    filled = "".join(f', "{key}": {{{{ ({value}) | tojson }}}}' for key, value in parts.items())
    return f"{head[:-1]}{filled}}}"


def alert_text(alert: Alert, pipeline: Pipeline) -> tuple[str, str]:
    """Subject and body of a notification, as templates that the server fills in."""
    subject = f"{pipeline.name}: {alert}: {{{{ {_about(alert)} }}}}"
    if alert == "stalled":
        return subject, f"{{{{ {_what(alert)} }}}}"
    return subject, f"{{{{ {_what(alert)} }}}}\nSee {{{{ {_where(alert)} }}}}, {{{{ event.occurred }}}}"


def _about(alert: Alert) -> str:
    return _ABOUT.get(alert, "event.resource.name")


def _what(alert: Alert) -> str:
    return _WHAT.get(alert, _RUN_WHAT)


def _where(alert: Alert) -> str:
    return _WHERE.get(alert, _RUN_WHERE)
