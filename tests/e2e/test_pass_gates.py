"""Gates in a pool of their own: a real server, a real worker, and a verdict that comes back, or does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterName, FlowFilter, FlowFilterName
from prefect.client.schemas.objects import FlowRun

from ckptcore import Choice, resolve
from ckptcore.errors import DeviceFailed, InvalidConfig, ReleaseNotFound, SmokeFailed
from ckptcore.pipeline import CheckSettings, Pipeline, SourceChoice
from ckptcore.publishing import Published, Staged, stage
from ckptcore.rules.gates import GateReport
from ckptcore.rules.pipeline import GATES
from flows.deploying import deploy
from flows.merge_and_publish import merge_and_publish
from flows.names import gates_deployment
from flows.parameters import merge_parameters
from tasks.gate_elsewhere import gate_elsewhere
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY

pytestmark = pytest.mark.e2e

POOL = "gpus-of-tests"
SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


@pytest.fixture(scope="module")
def worker(server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A worker of the pool on another host, as its name says; gives its log."""
    directory = tmp_path_factory.mktemp("worker")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
    environment = os.environ | {
        "PATH": path,
        "PYTHONPATH": str(REPOSITORY),
        "PREFECT_API_URL": server,
        "PREFECT_WORKER_QUERY_SECONDS": "1",
        "CKPT_DEVICE_LOCKS": str(directory / "locks"),
        "CKPT_HOST": "gpu-host",
    }
    with (directory / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.processes", "worker", server, POOL, "2"],
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=log,
        )
    yield directory / "log"
    process.terminate()
    process.wait()


def pipeline_in(directory: Path, name: str, **checks: Any) -> Pipeline:
    write_trainer_run(directory / "run", {1: SAVED})
    return Pipeline.model_validate(
        {
            "name": name,
            "registry": str(directory / "registry"),
            "sources": [{"path": str(directory / "run")}],
            "checks": checks,
            "gpu_work_pool": POOL,
            "gpu_devices": 2,
        }
    )


def published_by(pipeline: Pipeline) -> Published:
    deploy(pipeline, str(REPOSITORY))
    published: Published = merge_and_publish(**merge_parameters(pipeline, pipeline.sources[0]))
    return published


def runs_of(name: str) -> list[FlowRun]:
    with get_client(sync_client=True) as client:
        return client.read_flow_runs(
            flow_filter=FlowFilter(name=FlowFilterName(any_=[GATES])),
            deployment_filter=DeploymentFilter(name=DeploymentFilterName(any_=[name])),
        )


def releases_in(directory: Path, name: str) -> list[str]:
    return os.listdir(directory / "registry" / name / "releases")


def test_a_release_passes_where_the_devices_are_and_is_published_here(worker: Path, tmp_path: Path) -> None:
    function = "tests.smoke_functions:sees_one_device"
    pipeline = pipeline_in(tmp_path, "passes", smoke=function, smoke_gpus=1)
    published = published_by(pipeline)
    [report] = published.gates
    assert (report.gate, report.by) == ("smoke", function)
    assert report.finding.endswith("on device 0")
    assert resolve(tmp_path / "registry", "passes") == Path(published.path)
    [run] = runs_of("passes")
    assert (run.state_name, run.work_pool_name, run.name) == ("Completed", POOL, f"passes: {published.release}")
    with get_client(sync_client=True) as client:
        limit = client.read_global_concurrency_limit_by_name("gpu:gpu-host")
    assert (limit.limit, limit.active_slots) == (2, 0)

    # Where all stands, no run is started.
    assert not published_by(pipeline).did_work
    assert len(runs_of("passes")) == 1


def test_what_refuses_it_there_refuses_it_here(worker: Path, tmp_path: Path) -> None:
    with pytest.raises(SmokeFailed, match="failed with exit status 1") as refusal:
        published_by(pipeline_in(tmp_path, "refused", smoke="tests.smoke_functions:says_no", smoke_gpus=1))
    assert "perplexity is 1e9" in [issue.what for issue in refusal.value.issues]
    [run] = runs_of("refused")
    assert run.state is not None
    assert (run.state_name, run.state.is_failed()) == ("NotPassed", True)
    assert releases_in(tmp_path, "refused") == []
    assert os.listdir(tmp_path / "registry" / "refused" / ".staging") == []


def test_a_run_that_dies_there_is_no_verdict(worker: Path, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "dies", smoke="tests.smoke_functions:kills_its_caller", smoke_gpus=2)
    with pytest.raises(DeviceFailed, match="ended as Crashed"):
        published_by(pipeline)
    assert releases_in(tmp_path, "dies") == []
    # Nothing is known against the release, so the next run goes on with it; its devices are free.
    [staged] = (tmp_path / "registry" / "dies" / ".staging").glob("step-*")
    with get_client(sync_client=True) as client:
        # As the end of the lease would; this server runs none of the services that look after them.
        client.delete_global_concurrency_limit_by_name("gpu:gpu-host")
    good = pipeline.checks.model_copy(update={"smoke": "tests.smoke_functions:good"})
    again = published_by(pipeline.model_copy(update={"checks": good}))
    assert (again.did_work, again.release, len(runs_of("dies"))) == (True, staged.name, 2)


@flow
def gated_twice(staged: Staged, checks: CheckSettings, deployment: str) -> list[tuple[GateReport, ...]]:
    return [gate_elsewhere(staged, checks, deployment) for _ in range(2)]


def test_a_task_that_is_tried_again_meets_its_run(worker: Path, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "twice", smoke="tests.smoke_functions:good", smoke_gpus=1)
    deploy(pipeline, str(REPOSITORY))
    staged = stage(Choice(pipeline.sources[0].path).planned(), pipeline.registry, "twice")
    first, second = gated_twice(staged, pipeline.checks, gates_deployment("twice"))
    assert first == second
    assert len(runs_of("twice")) == 1
    assert releases_in(tmp_path, "twice") == []


def test_a_machine_that_does_not_see_the_release_makes_nothing(worker: Path, tmp_path: Path) -> None:
    pipeline = pipeline_in(tmp_path, "unseen", smoke="tests.smoke_functions:good", smoke_gpus=1)
    deploy(pipeline, str(REPOSITORY))
    nowhere = Staged(str(tmp_path / "no"), "unseen", "step-1_id-0_000000000000", str(tmp_path / "no" / "x"), False)
    with pytest.raises(ReleaseNotFound):
        gated_twice(nowhere, pipeline.checks, gates_deployment("unseen"))
    assert not (tmp_path / "no").exists()


def test_a_deployment_that_is_not_there(server: str, tmp_path: Path) -> None:
    write_trainer_run(tmp_path / "run", {1: SAVED})
    with pytest.raises(InvalidConfig, match="no deployment pass-gates/nobody: run ckpt deploy"):
        merge_and_publish(
            SourceChoice(path=str(tmp_path / "run")),
            str(tmp_path / "registry"),
            "lost",
            checks=CheckSettings(smoke="m:f", smoke_gpus=1),
            gates_deployment="pass-gates/nobody",
        )
    assert releases_in(tmp_path, "lost") == []
