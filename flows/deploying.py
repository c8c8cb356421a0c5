"""Deploy: make a server have what a pipeline's file says, no less and no more.

Deployments, automations, work pools, queues and the webhooks of alerts. What is there already and the same is left as
it is, so that a second call changes nothing; what the pipeline had and its file no longer says is removed. Other
pipelines of the same server are left alone.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from prefect import Flow
from prefect.blocks.core import Block
from prefect.blocks.webhook import Webhook
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentScheduleCreate
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterTags
from prefect.client.schemas.responses import DeploymentResponse
from prefect.client.schemas.schedules import CronSchedule, IntervalSchedule
from prefect.events.actions import ActionTypes, CallWebhook, SendNotification
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.utilities.callables import parameter_schema
from pydantic import SecretStr

from ckptcore.blocks import CheckpointRegistry, CheckpointSource
from ckptcore.errors import InvalidConfig
from ckptcore.pipeline import ALERTS, Alert, NotificationSettings, Pipeline
from ckptcore.rules.issues import Issue
from ckptcore.rules.pipeline import MERGE, parse_interval, pipeline_tag
from flows.automations import HEARTBEAT_SECONDS, alert_body, alert_text, automations_of, name_prefix
from flows.deployments import Wanted, deployments_of
from flows.names import ENTRYPOINTS
from flows.queues import apply_queues, queue_of, remove_queues

_DIGEST = re.compile(r"\[([0-9a-f]{16})\]$")
_PAGE = 200
_RUN_ENVIRONMENT = {
    "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS),
    # 2 + 4 + … + 128 s: a server that is started again, or whose database is, costs a run a wait.
    "PREFECT_CLIENT_MAX_RETRIES": "7",
    # What the server answers while its database cannot be reached; every step may be done twice.
    "PREFECT_CLIENT_RETRY_EXTRA_CODES": "500",
}
_T = TypeVar("_T")


@dataclass(slots=True)
class Deployed:
    """What a call changed, by name; all empty where the server had everything already."""

    made: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)

    @property
    def is_unchanged(self) -> bool:
        return not (self.made or self.changed or self.removed)

    def to_json(self) -> dict[str, list[str]]:
        return {"made": self.made, "changed": self.changed, "removed": self.removed}


def deploy(pipeline: Pipeline, working_directory: str) -> Deployed:
    """Make the configured server have the pipeline; what was changed. Flows run in ``working_directory``, where their
    smoke tests are found. Raises :class:`InvalidConfig` where the server has no such notification block, and before
    anything is changed where another pipeline has a deployment of the same name."""
    deployed = Deployed()
    with get_client(sync_client=True) as client:
        wanted = list(deployments_of(pipeline))
        there = _there(client, pipeline, wanted)
        _apply_blocks(client, pipeline, deployed)
        targets = _targets(client, pipeline, deployed)
        made, changed = apply_queues(client, pipeline)
        deployed.made += made
        deployed.changed += changed
        ids = {
            each.full_name: _apply(client, pipeline, each, there.get(each.full_name), working_directory, deployed)
            for each in wanted
        }
        _remove_deployments(client, pipeline.name, ids.keys(), deployed)
        # Those of a pool that the file named before; by now no deployment is in them.
        deployed.removed += remove_queues(client, pipeline.name, kept_pool=pipeline.work_pool)
        publishing = {each.name: ids[each.full_name] for each in wanted if each.flow == MERGE}
        automations = list(automations_of(pipeline, publishing, targets))
        _apply_automations(client, pipeline.name, automations, deployed)
    return deployed


def undeploy(name: str) -> Deployed:
    """Remove everything that the pipeline of that name has on the configured server; its runs and releases stay."""
    deployed = Deployed()
    with get_client(sync_client=True) as client:
        _apply_automations(client, name, [], deployed)
        _remove_deployments(client, name, (), deployed)
        deployed.removed += remove_queues(client, name)
        _remove_numbered(client, "webhook", name, 0, deployed)
        _remove_numbered(client, "checkpoint-registry", name, 0, deployed)
        _remove_numbered(client, "checkpoint-source", name, 0, deployed)
    return deployed


def _there(client: SyncPrefectClient, pipeline: Pipeline, wanted: Iterable[Wanted]) -> dict[str, DeploymentResponse]:
    """The deployments that are there already, by name. Raises :class:`InvalidConfig` where one is another pipeline's:
    its events would be published into our registry."""
    there, issues = dict[str, DeploymentResponse](), list[Issue]()
    for each in wanted:
        try:
            found = there[each.full_name] = client.read_deployment_by_name(each.full_name)
        except ObjectNotFound:
            continue
        if "ckpt" in found.tags and pipeline_tag(pipeline.name) not in found.tags:
            owner = ", ".join(sorted({*found.tags} - {"ckpt"}))
            issues.append(Issue(each.full_name, "is taken", "a name of its own", owner, code="name-taken"))
    if issues:
        raise InvalidConfig(f"{pipeline.name}: {len(issues)} deployment(s) are another pipeline's", issues)
    return there


def _apply(
    client: SyncPrefectClient,
    pipeline: Pipeline,
    wanted: Wanted,
    existing: DeploymentResponse | None,
    working_directory: str,
    deployed: Deployed,
) -> UUID:
    job_variables = {
        # Without a command of its own a process worker first copies the whole working directory, in a second process.
        "command": "python -m prefect.engine",
        "working_dir": working_directory,
        "env": _RUN_ENVIRONMENT,
    }
    place = (wanted.pool or pipeline.work_pool, queue_of(wanted.flow, pipeline.name))
    parts = [dict(wanted.parameters), wanted.when, place, job_variables, ENTRYPOINTS[wanted.flow]]
    flow: Flow[Any, Any] = load_flow_from_entrypoint(ENTRYPOINTS[wanted.flow], use_placeholder_flow=False)
    schema = parameter_schema(flow.fn).model_dump_for_openapi()
    digest = _digest(*parts, schema)
    if existing is not None and existing.version == digest:
        return existing.id
    (deployed.made if existing is None else deployed.changed).append(wanted.full_name)
    return client.create_deployment(
        flow_id=client.create_flow(flow),
        name=wanted.name,
        version=digest,
        description=flow.description,
        entrypoint=ENTRYPOINTS[wanted.flow],
        parameters=dict(wanted.parameters),
        parameter_openapi_schema=schema,
        enforce_parameter_schema=True,
        schedules=[DeploymentScheduleCreate(schedule=_schedule(wanted.when))] if wanted.when else [],
        tags=["ckpt", pipeline_tag(pipeline.name)],
        work_pool_name=place[0],
        work_queue_name=place[1],
        job_variables=job_variables,
    )


def _schedule(when: str) -> IntervalSchedule | CronSchedule:
    interval_s = parse_interval(when)
    return CronSchedule(cron=when) if interval_s is None else IntervalSchedule(interval=timedelta(seconds=interval_s))


def _remove_deployments(client: SyncPrefectClient, name: str, kept: Iterable[str], deployed: Deployed) -> None:
    tagged = DeploymentFilter(tags=DeploymentFilterTags(all_=[pipeline_tag(name)]))
    for existing in _all_of(partial(client.read_deployments, deployment_filter=tagged)):
        full_name = f"{client.read_flow(existing.flow_id).name}/{existing.name}"
        if full_name not in kept:
            client.delete_deployment(existing.id)
            deployed.removed.append(full_name)


def _apply_automations(
    client: SyncPrefectClient, pipeline: str, wanted: Sequence[AutomationCore], deployed: Deployed
) -> None:
    existing = {
        found.name: found for found in _all_of(client.read_automations) if found.name.startswith(name_prefix(pipeline))
    }
    for automation in wanted:
        digest = _digest(automation.model_dump(mode="json"))
        marked = automation.model_copy(update={"description": f"{automation.description} [{digest}]"})
        found = existing.pop(automation.name, None)
        if found is None:
            client.create_automation(marked)
            deployed.made.append(automation.name)
            continue
        mark = _DIGEST.search(found.description)
        if mark is None or mark[1] != digest:
            client.update_automation(found.id, marked)
            deployed.changed.append(automation.name)
    for found in existing.values():
        client.delete_automation(found.id)
        deployed.removed.append(found.name)


def _all_of(read: Callable[..., list[_T]]) -> list[_T]:
    """Everything that ``read(limit=…, offset=…)`` gives: a server answers with 200 at most."""
    found: list[_T] = []
    while page := read(limit=_PAGE, offset=len(found)):
        found += page
    return found


def _targets(client: SyncPrefectClient, pipeline: Pipeline, deployed: Deployed) -> dict[Alert, list[ActionTypes]]:
    """Who is told of which alert, the webhooks of the file made as blocks of the server."""
    targets: dict[Alert, list[ActionTypes]] = {alert: [] for alert in ALERTS}
    webhooks = [told for told in pipeline.notifications if told.webhook is not None]
    for number, told in enumerate(webhooks):
        webhook = Webhook(url=SecretStr(str(told.webhook)))
        block_id = _apply_block(client, webhook, _numbered(pipeline.name, number), deployed)
        for alert in told.alerts:
            targets[alert].append(CallWebhook(block_document_id=block_id, payload=alert_body(alert, pipeline)))
    _remove_numbered(client, "webhook", pipeline.name, len(webhooks), deployed)
    for told in pipeline.notifications:
        if told.block is None:
            continue
        block_id = _block_id(client, told)
        for alert in told.alerts:
            subject, body = alert_text(alert, pipeline)
            targets[alert].append(SendNotification(block_document_id=block_id, subject=subject, body=body))
    return targets


def _apply_blocks(client: SyncPrefectClient, pipeline: Pipeline, deployed: Deployed) -> None:
    """The registry and the sources as blocks, for flows of somebody's own."""
    _apply_block(client, CheckpointRegistry(path=pipeline.registry), _numbered(pipeline.name, 0), deployed)
    for number, source in enumerate(pipeline.sources):
        block = CheckpointSource(path=source.path, component=source.component)
        _apply_block(client, block, _numbered(pipeline.name, number), deployed)
    _remove_numbered(client, "checkpoint-source", pipeline.name, len(pipeline.sources), deployed)


def _apply_block(client: SyncPrefectClient, block: Block, name: str, deployed: Deployed) -> UUID:
    kind = block.get_block_type_slug()
    data = block.model_dump(mode="json", context={"include_secrets": True})
    try:
        existing = client.read_block_document_by_name(name, kind, include_secrets=True)
    except ObjectNotFound:
        existing = None
    if existing is not None and all(data.get(key) == value for key, value in existing.data.items()):
        return existing.id
    (deployed.made if existing is None else deployed.changed).append(f"block {kind}/{name}")
    saved = block.save(name, overwrite=True)
    assert isinstance(saved, UUID)  # a coroutine only where an event loop runs
    return saved


def _remove_numbered(client: SyncPrefectClient, kind: str, pipeline: str, kept: int, deployed: Deployed) -> None:
    """The blocks of a kind that the pipeline had, from the number ``kept`` on."""
    while True:
        name = _numbered(pipeline, kept)
        try:
            found = client.read_block_document_by_name(name, kind)
        except ObjectNotFound:
            return
        client.delete_block_document(found.id)
        deployed.removed.append(f"block {kind}/{name}")
        kept += 1


def _numbered(pipeline: str, number: int) -> str:
    """A name of lowercase letters, digits and dashes, which is all that blocks may have."""
    slug = re.sub(r"[^a-z0-9]+", "-", pipeline.lower()).strip("-")
    return f"ckpt-{slug}-{_digest(pipeline)[:6]}-{number}"


def _block_id(client: SyncPrefectClient, told: NotificationSettings) -> UUID:
    kind, _, name = str(told.block).partition("/")
    try:
        return client.read_block_document_by_name(name, kind).id
    except ObjectNotFound as error:
        raise InvalidConfig(f"the server has no notification block {told.block!r}") from error


def _digest(*parts: object) -> str:
    record = json.dumps(_ordered(list(parts)), sort_keys=True, default=str, ensure_ascii=True)
    return hashlib.sha256(record.encode()).hexdigest()[:16]


def _ordered(value: object) -> object:
    """The value with its lists of texts sorted: what Prefect holds as a set has another order in each process."""
    if isinstance(value, Mapping):
        return {key: _ordered(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        children = [_ordered(child) for child in value]
        return sorted(children, key=str) if all(isinstance(child, str) for child in children) else children
    return value
