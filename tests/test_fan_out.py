"""A merge that fans out: real clusters, processes that are killed, and the bytes that one process writes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

from ckptcore import Choice
from ckptcore import run as run_here
from ckptcore.errors import RunnerUnavailable, SourceChanged
from ckptcore.pipeline import RunnerSettings, SourceChoice
from ckptcore.publishing import Published
from ckptcore.registry import history_of, shelf_of
from ckptcore.validating import read_manifest
from flows.merge_and_publish import merge_and_publish
from tests.builders import SavedCheckpoint
from tests.command import REPOSITORY
from tests.corpus import LLAMA_RUN
from tests.dask_cluster import Cluster, dask_cluster, wait_for

pytestmark = pytest.mark.prefect_server

NAME = "llama"
SHARDS = 4
_FLOW = """
import json, sys
from ckptcore.pipeline import RunnerSettings, SourceChoice
from flows.merge_and_publish import merge_and_publish

source, registry, name, dask = sys.argv[1:]
source = SourceChoice(path=source, max_shard_size="20MB")
print(json.dumps(merge_and_publish(source, registry, name, runner=RunnerSettings(dask=dask)).to_json()))
"""


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


@pytest.fixture(scope="module")
def saved_large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards that take a disk long enough for a process to be caught within one."""
    saved = SavedCheckpoint()
    for number in range(SHARDS):
        saved = saved.tensor(f"layers.{number}.w", np.arange(4 << 20, dtype="f4") + number, grid=(2,))
    return saved.write(tmp_path_factory.mktemp("saved"))


@pytest.fixture
def large(saved_large: Path, tmp_path: Path) -> Path:
    """The same under a path of its own: this server never frees the slot of a version whose flow was killed."""
    return shutil.copytree(saved_large, tmp_path / "large", copy_function=os.link)


@pytest.fixture
def cluster(tmp_path: Path, server: str) -> Iterator[Cluster]:
    with dask_cluster(tmp_path / "dask", workers=2) as found:
        yield found


def bytes_of(directory: Path) -> dict[str, bytes]:
    """Every file, hidden ones too, without what the manifest records of when and by which run it was made."""
    files = {path.name: path.read_bytes() for path in directory.iterdir()}
    manifest = json.loads(files["manifest.json"])
    return files | {"manifest.json": json.dumps(manifest | {"created_at": "", "flow_run": ""}).encode()}


def require_as_by_one_process(published: Path, source: Path, max_shard_bytes: int, registry: Path) -> None:
    alone = run_here(Choice(str(source), max_shard_bytes=max_shard_bytes), registry.with_name("alone"), NAME)
    assert bytes_of(published) == bytes_of(Path(alone.path))
    assert os.listdir(registry / NAME / ".staging") == []


def chunks_recorded(flow_run: str, at_least: int) -> list[Any]:
    """The runs of ``merge_shards`` in a flow run, once the server has recorded that so many are over."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[UUID(flow_run)]))
    with get_client(sync_client=True) as client:
        while True:
            runs = [run for run in client.read_task_runs(flow_run_filter=wanted) if run.name.startswith("merge_shards")]
            if len(runs) >= at_least and all(run.state is not None and run.state.is_final() for run in runs):
                return runs


@contextmanager
def flow_process(
    source: Path, registry: Path, dask: str, server: str, *, host: str = ""
) -> Iterator[subprocess.Popen[str]]:
    """The flow in a process of its own; with ``host``, on a machine that calls itself so."""
    command = [sys.executable, "-c", _FLOW, str(source), str(registry), NAME, dask]
    if host:
        command = ["unshare", "--uts", "sh", "-c", f'hostname {host} && exec "$@"', "sh", *command]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PREFECT_API_URL": server}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    with process:
        try:
            yield process
        finally:
            process.kill()


def published_by(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    document: dict[str, Any] = json.loads(stdout.splitlines()[-1])
    return document


def stopped_within_a_shard(worker: subprocess.Popen[bytes], registry: Path) -> Path:
    """Stop the worker while it writes a shard; the file in which it does."""
    parts = f"{NAME}/.staging/*/.parts-*"
    while True:
        wait_for(lambda: writes(worker, registry.glob(f"{parts}/.model*")) is not None, worker)
        worker.send_signal(signal.SIGSTOP)
        found = writes(worker, registry.glob(f"{parts}/.model*"))
        if found is not None:
            return found
        worker.send_signal(signal.SIGCONT)  # it was quicker: the next shard


def writes(process: subprocess.Popen[bytes], paths: Iterator[Path]) -> Path | None:
    """Which of the paths it has open."""
    descriptors = Path(f"/proc/{process.pid}/fd")
    opened = {os.path.realpath(descriptor) for descriptor in descriptors.iterdir()}
    return next((path for path in paths if str(path.resolve()) in opened), None)


def meanwhile(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def fanned_out(source: Path, registry: Path, runner: RunnerSettings, size: str = "20MB") -> Published:
    return merge_and_publish(SourceChoice(path=str(source), max_shard_size=size), str(registry), NAME, runner=runner)


def test_processes_on_this_machine_write_what_one_process_writes(server: str, registry: Path) -> None:
    published = fanned_out(LLAMA_RUN, registry, RunnerSettings(dask=2), "100kB")
    manifest = read_manifest(Path(published.path))
    shards = [record.name for record in manifest.files if record.name.endswith(".safetensors")]
    assert len(shards) == 4
    runs = chunks_recorded(manifest.flow_run, len(shards))
    assert [(run.run_count, run.state.name) for run in runs] == [(1, "Completed")] * len(shards)
    require_as_by_one_process(Path(published.path), LLAMA_RUN, 100_000, registry)


@pytest.mark.fanout
def test_a_worker_killed_within_a_shard(server: str, cluster: Cluster, large: Path, registry: Path) -> None:
    """The other one writes it, and those that were still to come."""
    left: list[Path] = []

    def kill() -> None:
        left.append(stopped_within_a_shard(cluster.workers[0], registry))
        cluster.workers[0].kill()

    killer = meanwhile(kill)
    published = fanned_out(large, registry, RunnerSettings(dask=cluster.address))
    killer.join()
    assert [path.name.startswith(".model") for path in left] == [True]
    assert cluster.workers[0].wait() == -signal.SIGKILL
    require_as_by_one_process(Path(published.path), large, 20_000_000, registry)


@pytest.mark.fanout
def test_a_flow_killed_while_its_workers_go_on(server: str, cluster: Cluster, large: Path, registry: Path) -> None:
    """Who comes next has the release to itself: the worker of the dead flow is told so, and changes nothing."""
    zombie, other = cluster.workers
    other.kill()
    other.wait()
    with flow_process(large, registry, cluster.address, server) as flow:
        file = stopped_within_a_shard(zombie, registry)
        flow.kill()
    assert file.exists()
    published = run_here(Choice(str(large), max_shard_bytes=20_000_000), registry, NAME)
    before = bytes_of(Path(published.path))
    zombie.send_signal(signal.SIGCONT)
    wait_for(lambda: b"another process has taken this over" in cluster.log(0).read_bytes(), zombie)
    assert bytes_of(Path(published.path)) == before
    require_as_by_one_process(Path(published.path), large, 20_000_000, registry)


@pytest.mark.fanout
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a process another host name needs root")
def test_two_flows_on_two_machines_for_one_version(server: str, cluster: Cluster, large: Path, registry: Path) -> None:
    hosts = ["machine-a", "machine-b"]
    with (
        flow_process(large, registry, cluster.address, server, host=hosts[0]) as a,
        flow_process(large, registry, cluster.address, server, host=hosts[1]) as b,
    ):
        first, second = map(published_by, [a, b])
    assert sorted([first["did_work"], second["did_work"]]) == [False, True]
    assert first["path"] == second["path"]
    [act] = history_of(shelf_of(registry, NAME))
    assert act.host == hosts[[first["did_work"], second["did_work"]].index(True)]
    assert len(chunks_recorded(act.flow_run, SHARDS)) == SHARDS
    require_as_by_one_process(Path(first["path"]), large, 20_000_000, registry)


@pytest.mark.fanout
def test_a_source_that_changes_is_refused_by_the_workers(
    server: str, cluster: Cluster, large: Path, registry: Path, tmp_path: Path
) -> None:
    source = SavedCheckpoint().tensor("w", np.arange(64, dtype="f4"), grid=(2,)).write(tmp_path / "source")

    def touch() -> None:
        wait_for(lambda: any(registry.glob(f"{NAME}/.staging/*/.parts-*/plan.json")), cluster.scheduler)
        os.utime(source / "1_0.distcp")
        for worker in cluster.workers:
            worker.send_signal(signal.SIGCONT)

    for worker in cluster.workers:
        worker.send_signal(signal.SIGSTOP)
    toucher = meanwhile(touch)
    with pytest.raises(SourceChanged) as refusal:
        fanned_out(source, registry, RunnerSettings(dask=cluster.address))
    toucher.join()
    assert [issue.where for issue in refusal.value.issues] == ["1_0.distcp"]
    assert os.listdir(registry / NAME / ".staging") == []


@pytest.mark.fanout
def test_a_cluster_that_goes_away_is_said_to_be_gone(
    server: str, cluster: Cluster, large: Path, registry: Path
) -> None:
    def kill() -> None:
        wait_for(lambda: any(registry.glob(f"{NAME}/.staging/*/.parts-*/*.done")), cluster.scheduler)
        cluster.scheduler.kill()

    killer = meanwhile(kill)
    with pytest.raises(RunnerUnavailable, match="lost shards of this release"):
        fanned_out(large, registry, RunnerSettings(dask=cluster.address))
    killer.join()
    published = run_here(Choice(str(large), max_shard_bytes=20_000_000), registry, NAME)
    require_as_by_one_process(Path(published.path), large, 20_000_000, registry)


@pytest.mark.fanout
def test_a_cluster_that_is_not_there_is_said_to_be(
    server: str, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import dask

    dask.config.set({"distributed.comm.timeouts.connect": "1s"})
    with pytest.raises(RunnerUnavailable, match="cannot be reached"):
        fanned_out(LLAMA_RUN, registry, RunnerSettings(dask="tcp://127.0.0.1:9"))


@pytest.mark.fanout
def test_the_processes_of_ray(server: str, registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("prefect_ray")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    published = fanned_out(LLAMA_RUN, registry, RunnerSettings(ray=2), "100kB")
    require_as_by_one_process(Path(published.path), LLAMA_RUN, 100_000, registry)
