"""``prefect.yaml`` and ``automations.yaml`` give a server what ``ckpt deploy`` gives it for the same pipeline."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pytest
import yaml
from prefect import Flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId
from prefect.client.schemas.responses import DeploymentResponse
from prefect.events.schemas.automations import Automation
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint

from ckptcore.events import WRITTEN, send
from ckptcore.pipeline import Pipeline
from ckptcore.rules.pipeline import MERGE
from flows.deploying import deploy, undeploy
from flows.deployments import deployments_of
from flows.names import ENTRYPOINTS, OPERATIONS
from tests.command import REPOSITORY
from tests.deployments.composing import DEPLOYMENTS
from tests.e2e.running import eventually

pytestmark = pytest.mark.prefect_server

COMPARED = (
    "name", "description", "entrypoint", "path", "pull_steps", "parameter_openapi_schema", "enforce_parameter_schema",
    "work_pool_name", "work_queue_name", "job_variables", "tags", "paused",
)  # fmt: skip


@pytest.fixture
def deployed(server: str) -> Iterator[str]:
    """A server that was told each command that the head of prefect.yaml names, and has no pipeline afterwards."""
    head = (DEPLOYMENTS / "prefect.yaml").read_text().partition("\nname:")[0]
    commands = re.findall(r"^#   prefect (.*)$", head, re.MULTILINE)
    assert len(commands) == 5
    environment = os.environ | {"PREFECT_API_URL": server, "PYTHONPATH": str(REPOSITORY)}
    # Another file's tests may have deployed to the same server before.
    with get_client(sync_client=True) as client, suppress(ObjectNotFound):
        client.delete_work_pool("ckpt")
    for command in commands:
        done = subprocess.run(
            [sys.executable, "-m", "prefect", *command.split()],
            cwd=DEPLOYMENTS,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    yield server
    undeploy("llama")
    with get_client(sync_client=True) as client:
        client.delete_work_pool("ckpt")


def described() -> Pipeline:
    """Not as the reader of files gives it, which adds the path of the state of ckpt up: beside the file."""
    return Pipeline.model_validate(yaml.safe_load((DEPLOYMENTS / "ckpt.yaml").read_text()))


def on_the_server() -> tuple[dict[str, DeploymentResponse], dict[str, Automation]]:
    with get_client(sync_client=True) as client:
        wanted = [each for each in deployments_of(described()) if each.name == "llama"]
        deployments = {each.flow: client.read_deployment_by_name(each.full_name) for each in wanted}
        automations = {each.name: each for each in client.read_automations() if each.name.startswith("ckpt llama: ")}
    return deployments, automations


def described_as(deployment: DeploymentResponse) -> dict[str, Any]:
    """What is compared; where a flow takes no model, only one of the two ways says that it has no definitions."""
    found = {key: getattr(deployment, key) for key in COMPARED}
    return found | {"parameter_openapi_schema": {"definitions": {}} | found["parameter_openapi_schema"]}


def meant(flow: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """The parameters as the flow gets them, defaults and all."""
    loaded: Flow[Any, Any] = load_flow_from_entrypoint(ENTRYPOINTS[flow], use_placeholder_flow=False)
    taken = inspect.signature(loaded.fn).bind(**loaded.validate_parameters(parameters))
    taken.apply_defaults()
    return dict(taken.arguments)


def schedules_of(deployment: DeploymentResponse) -> list[tuple[object, bool]]:
    said = [(each.schedule.model_dump(exclude={"anchor_date"}), each.active) for each in deployment.schedules]
    return sorted(said, key=str)


def trigger_of(automation: Automation) -> Any:
    return automation.trigger.model_dump(mode="json", exclude={"id"})


def actions_of(automation: Automation, deployments: dict[str, DeploymentResponse]) -> list[dict[str, Any]]:
    """The actions, with names for the ids of deployments, which every deploying makes anew."""
    flows = {deployment.id: flow for flow, deployment in deployments.items()}
    said = [action.model_dump() for action in automation.actions]
    return [{key: flows[value] if key == "deployment_id" else value for key, value in each.items()} for each in said]


def test_both_ways_to_deploy_give_the_same(deployed: str) -> None:
    deployments, automations = on_the_server()
    undeploy("llama")
    deploy(described(), "/srv/ckpt")
    wanted_deployments, wanted_automations = on_the_server()
    for flow, wanted in wanted_deployments.items():
        made = deployments[flow]
        assert described_as(made) == described_as(wanted)
        if flow in OPERATIONS:  # which the operator says the rest of
            assert made.parameters == wanted.parameters
        else:
            assert meant(flow, made.parameters) == meant(flow, wanted.parameters)
        assert schedules_of(made) == schedules_of(wanted)
    assert automations.keys() == wanted_automations.keys()
    for name, expected in wanted_automations.items():
        assert trigger_of(automations[name]) == trigger_of(expected)
        assert actions_of(automations[name], deployments) == actions_of(expected, wanted_deployments)


def written(path: str) -> dict[str, Any]:
    """The event of a version that a trainer announces."""
    return {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": WRITTEN,
        "resource": {"prefect.resource.id": f"ckpt.version.{path}/0", "ckpt.component": "model_state"},
        "payload": {"path": path, "unique_id": 0},
    }


def test_an_announced_version_starts_a_run_for_it(deployed: str) -> None:
    deployments, _ = on_the_server()
    send(written("/srv/training/other/checkpoint-7/model_state"), deployed)
    send(written("/srv/training/llama/checkpoint-7/model_state"), deployed)
    deployment = DeploymentFilter(id=DeploymentFilterId(any_=[deployments[MERGE].id]))
    with get_client(sync_client=True) as client:
        runs = eventually(lambda: client.read_flow_runs(deployment_filter=deployment), within_s=60, what="a run")
    [run] = runs
    given = meant(MERGE, run.parameters)
    assert (given["directory"], given["unique_id"]) == ("/srv/training/llama/checkpoint-7/model_state", 0)
    assert given["source"].prefixes == ("model",)
