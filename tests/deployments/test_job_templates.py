"""The base job templates: what a worker of each kind makes of them is valid for its platform, and runs."""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import FlowRun
from prefect.settings import PREFECT_API_URL
from prefect.utilities.templating import find_placeholders
from prefect.workers.base import BaseJobConfiguration

from ckptcore.pipeline import Pipeline
from ckptcore.registry import resolve
from flows.automations import HEARTBEAT_SECONDS
from flows.configuring import QUIET
from flows.deploying import deploy, undeploy
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY
from tests.deployments.composing import DEPLOYMENTS, SERVICES, example_environment

KINDS = ("docker", "kubernetes", "slurm")
TEMPLATES: dict[str, Any] = {
    kind: json.loads((DEPLOYMENTS / kind / "base-job-template.json").read_text()) for kind in KINDS
}
SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))
_CONFIGURATIONS = {
    "docker": ("prefect_docker.worker", "DockerWorkerJobConfiguration"),
    "kubernetes": ("prefect_kubernetes.worker", "KubernetesWorkerJobConfiguration"),
    "slurm": ("prefect_slurm.config", "SlurmWorkerConfiguration"),
}
OF_A_WORKER = {"name", "labels", "annotations"}  # filled in for each run


@pytest.mark.parametrize("kind", KINDS)
def test_every_placeholder_is_a_variable_and_every_default_is_valid(kind: str) -> None:
    template = TEMPLATES[kind]
    variables = template["variables"]["properties"]
    assert {found.name for found in find_placeholders(template["job_configuration"])} == set(variables)
    Draft202012Validator.check_schema(template["variables"])
    defaults = {name: schema["default"] for name, schema in variables.items() if "default" in schema}
    Draft202012Validator(template["variables"]).validate(defaults)
    assert set(variables) - set(defaults) <= OF_A_WORKER
    # A run that nobody starts by hand needs no answer to a question.
    assert "required" not in template["variables"]
    assert defaults["command"] == "python -m prefect.engine"
    assert defaults["env"].items() >= {
        "DO_NOT_TRACK": QUIET["DO_NOT_TRACK"], "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_SECONDS)
    }.items()  # fmt: skip


@pytest.mark.prefect_server
@pytest.mark.parametrize("kind", KINDS)
def test_what_a_deployment_sets_takes_the_place_of_a_default(server: str, kind: str) -> None:
    every_kind: Any = _Anything
    told = {"command": "true", "working_dir": "/somewhere", "env": {"PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "7"}}
    template = TEMPLATES[kind]
    # What each kind's own class does first.
    configured = asyncio.run(every_kind.from_template_and_values(template, told)).model_dump()
    assert configured["env"]["PREFECT_FLOWS_HEARTBEAT_FREQUENCY"] == "7"
    assert configured["env"]["DO_NOT_TRACK"] == "1"
    assert configured["command"] == "true"
    assert "/somewhere" in json.dumps(configured)


class _Anything(BaseJobConfiguration):
    model_config = {"extra": "allow"}  # noqa: RUF012 - pydantic's own


def test_paths_and_images_are_those_of_compose() -> None:
    told, docker = example_environment(), TEMPLATES["docker"]["variables"]["properties"]
    assert docker["volumes"]["default"] == SERVICES["worker"]["volumes"]
    assert docker["networks"]["default"] == ["ckpt_pipeline"]
    kubernetes = TEMPLATES["kubernetes"]["variables"]["properties"]
    assert kubernetes["sources_path"]["default"] == told["CKPT_SOURCES"]
    assert kubernetes["registry_path"]["default"] == told["CKPT_REGISTRY"]
    assert {docker["image"]["default"], kubernetes["image"]["default"]} == {SERVICES["worker"]["image"]}
    assert f"{kubernetes['user']['default']}:{kubernetes['group']['default']}" == docker["user"]["default"]


@pytest.fixture(params=KINDS)
def prepared(request: pytest.FixtureRequest, server: str, tmp_path: Path) -> Iterator[tuple[str, FlowRun, Any, Path]]:
    """A run of a pipeline whose pool has the template, as a worker of the kind prepares it: its configuration."""
    kind: str = request.param
    write_trainer_run(tmp_path / "run", {1: SAVED})
    pool = f"ckpt-{kind}"
    document = {"name": f"on-{kind}", "registry": str(tmp_path / "registry"), "work_pool": pool}
    pipeline = Pipeline.model_validate(document | {"sources": [{"path": str(tmp_path / "run")}]})
    template = DEPLOYMENTS / kind / "base-job-template.json"
    command = ["work-pool", "create", pool, "--type", kind, "--base-job-template", str(template)]
    subprocess.run(
        [sys.executable, "-m", "prefect", *command], check=True, env=os.environ | {"PREFECT_API_URL": server}
    )
    deploy(pipeline, str(tmp_path))  # the server holds its job variables against the template
    with get_client(sync_client=True) as client:
        deployment = client.read_deployment_by_name(f"merge-and-publish/on-{kind}")
        run = client.create_flow_run_from_deployment(deployment.id)
        work_pool, flow = client.read_work_pool(pool), client.read_flow(deployment.flow_id)
        configuration = asyncio.run(
            _configuration_of(kind).from_template_and_values(
                work_pool.base_job_template, deployment.job_variables or {}
            )
        )
        configuration.prepare_for_flow_run(run, deployment, flow, work_pool, "worker")
        yield kind, run, configuration, tmp_path
        undeploy(pipeline.name)
        client.delete_work_pool(pool)


def _configuration_of(kind: str) -> Any:
    """The class of the worker of that kind."""
    module, name = _CONFIGURATIONS[kind]
    return getattr(importlib.import_module(module), name)


@pytest.mark.deployments
@pytest.mark.prefect_server
def test_the_job_of_a_run_is_valid_and_publishes(prepared: tuple[str, FlowRun, Any, Path]) -> None:
    kind, run, configuration, place = prepared
    match kind:
        case "docker":
            command, environment = _docker_job(configuration)
        case "kubernetes":
            command, environment = _kubernetes_job(configuration)
        case _:
            command, environment = _slurm_job(configuration, run, place)
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    here = {"PATH": path, "PYTHONPATH": str(REPOSITORY), "PREFECT_HOME": str(place / "prefect")}
    here["PREFECT_API_URL"] = PREFECT_API_URL.value()  # which is another inside a container
    done = subprocess.run(command, env=environment | here, cwd=place, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(run.id).state_name == "Completed", done.stdout + done.stderr
    assert resolve(place / "registry", f"on-{kind}").name.startswith("step-1_")


def _docker_job(configuration: Any) -> tuple[list[str], dict[str, str]]:
    """What the Docker worker asks Docker for; docker-py refuses what it does not know."""
    from docker.models.containers import _create_container_args
    from prefect_docker.worker import DockerWorker

    # It asks the daemon for its version only where the API is on this host.
    configuration.env["PREFECT_API_URL"] = "http://server:4200/api"
    settings = DockerWorker._build_container_settings(None, None, configuration)
    asked = _create_container_args(settings | {"version": "1.47"})
    assert asked["user"] == "10001:10001"
    assert asked["host_config"]["ReadonlyRootfs"]
    assert asked["host_config"]["Binds"] == SERVICES["worker"]["volumes"]
    assert asked["host_config"]["NetworkMode"] == "ckpt_pipeline"
    return asked["command"].split(), dict(asked["environment"])


def _kubernetes_job(configuration: Any) -> tuple[list[str], dict[str, str]]:
    import kubernetes_validate

    manifest = configuration.job_manifest
    kubernetes_validate.validate(manifest, kubernetes_validate.latest_version(), strict=True)
    kubernetes_validate.validate(manifest, "1.28", strict=True)
    pod = manifest["spec"]["template"]["spec"]
    [container] = pod["containers"]
    assert pod["securityContext"]["runAsUser"] == 10001  # a number, which a template of text would not be
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    return container["args"], {each["name"]: each["value"] for each in container["env"]}


def _slurm_job(configuration: Any, run: FlowRun, place: Path) -> tuple[list[str], dict[str, str]]:
    from slurpy.v0042.asyncio import JobSubmitReq

    specification = configuration.get_slurm_job_spec(run)
    request = JobSubmitReq.from_dict(specification)
    assert request is not None
    assert request.to_dict()["job"]["script"] == specification["job"]["script"]  # nothing that its model passes over
    (place / "activate").write_text("echo activated\n")
    script = specification["job"]["script"].replace("/opt/ckptcore/bin/activate", str(place / "activate"))
    assert str(place / "activate") in script
    assert "pip install" not in script
    (place / "job.sh").write_text(script)
    subprocess.run(["bash", "-n", place / "job.sh"], check=True)
    return ["bash", "job.sh"], dict(each.split("=", 1) for each in specification["job"]["environment"])
