"""The flows against a real Prefect server: states, names, attempts, artifacts, and what a shell sees."""

from __future__ import annotations

import base64
import json
import re
import socket
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    ArtifactFilter,
    ArtifactFilterFlowRunId,
    FlowRunFilter,
    FlowRunFilterId,
)
from prefect.client.schemas.objects import Artifact, FlowRun, State, TaskRun
from prefect.exceptions import ParameterTypeError
from prefect.tasks import Task

from ckptcore.errors import ReleaseInvalid, SelectionError, SmokeFailed, VersionIncomplete, VersionNotFound
from ckptcore.lifecycle import Choice
from ckptcore.mappings import mapping
from ckptcore.pipeline import CheckSettings, SourceChoice
from ckptcore.publishing import Staged
from ckptcore.registry import history_of, resolve, shelf_of
from ckptcore.rules.output_layout import OutputLayout
from ckptcore.rules.selection import Selection
from ckptcore.validating import read_manifest
from flows.merge_and_publish import merge_and_publish
from flows.running import run_as_flow
from tasks.detect import detect
from tasks.merge import merge
from tasks.plan import plan
from tasks.retrying import RETRY_DELAYS_SECONDS
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.collector import ckpt_code, collecting
from tests.command import REPOSITORY, ckpt_process
from tests.corpus import LLAMA_RUN

pytestmark = pytest.mark.prefect_server

LLAMA = SourceChoice(path=str(LLAMA_RUN))
SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


@pytest.fixture
def registry(tmp_path: Path) -> str:
    return str(tmp_path / "registry")


def flow_run_of(state: State[Any]) -> FlowRun:
    with get_client(sync_client=True) as client:
        flow_run_id = state.state_details.flow_run_id
        assert flow_run_id is not None
        return client.read_flow_run(flow_run_id)


def task_runs_of(flow_run_id: UUID, *, last: str) -> dict[str, TaskRun]:
    """The task runs by the task's name, once the server has recorded that ``last`` is over."""
    wanted = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    deadline = time.monotonic() + 60
    with get_client(sync_client=True) as client:
        while time.monotonic() < deadline:
            runs = {run.name.rsplit("-", 1)[0]: run for run in client.read_task_runs(flow_run_filter=wanted)}
            if last in runs and all(run.state is not None and run.state.is_final() for run in runs.values()):
                return runs
            time.sleep(0.1)
    raise AssertionError(f"{last} was not recorded")


def artifacts_of(flow_run_id: UUID) -> list[Artifact]:
    wanted = ArtifactFilter(flow_run_id=ArtifactFilterFlowRunId(any_=[flow_run_id]))
    with get_client(sync_client=True) as client:
        return [found for found in client.read_artifacts(artifact_filter=wanted) if found.key]  # no results of runs


def svg_of(picture: Artifact) -> str:
    scheme, _, data = str(picture.data).partition(",")
    assert scheme == "data:image/svg+xml;base64"
    return base64.b64decode(data).decode()


def test_the_newest_version_is_published_once(server: str, registry: str) -> None:
    first = merge_and_publish(LLAMA, registry, "Llama_3", return_state=True)
    published = first.result()
    release = resolve(registry, "Llama_3")
    assert (published.did_work, published.path) == (True, str(release))
    run = flow_run_of(first)
    assert run.name == "Llama_3: version 0 of step 100"
    assert set(task_runs_of(run.id, last="publish")) == {"detect", "verify", "plan", "merge", "validate", "publish"}

    manifest = read_manifest(release)
    assert manifest.flow_run == str(run.id)
    assert json.loads((release.parents[1] / "history.jsonl").read_text())["flow_run"] == str(run.id)
    shown = {str(artifact.key).rsplit("-", 1)[0]: artifact for artifact in artifacts_of(run.id)}
    assert {key: found.type for key, found in shown.items() if "llama-3" in key} == {
        "merge-llama-3": "progress",
        "validation-llama-3": "table",
        "release-llama-3": "markdown",
        "steps-llama-3": "image",
    }
    assert float(str(shown["merge-llama-3"].data)) == 100.0
    page = str(shown["release-llama-3"].data)
    for expected in (*(record.sha256 for record in manifest.files), manifest.plan_digest, "| tensors | `21` |"):
        assert expected in page
    [verification] = [found for key, found in shown.items() if key.startswith("verification-")]
    rows = json.loads(str(verification.data))
    assert [row["where"] for row in rows if row["kind"] == "file"] == ["0.metadata", "0_0.distcp", "1_0.distcp"]
    pictures = {key.partition("-")[0]: svg_of(found) for key, found in shown.items() if found.type == "image"}
    assert set(pictures) == {"ranks", "steps"}
    assert "2 present" in pictures["ranks"]
    for verb in ("detect", "verify", "plan", "merge", "validate", "publish"):
        assert f">{verb}</text>" in pictures["steps"]
    assert {"ckpt-name:Llama_3", "ckpt-step:100"} < set(run.tags)
    [act] = history_of(shelf_of(registry, "Llama_3"))
    assert list(act.took) == ["detect", "verify", "plan", "merge", "validate"]
    assert act.took["merge"].size_bytes == act.took["validate"].size_bytes == manifest.files[0].size_bytes

    again = merge_and_publish(LLAMA, registry, "Llama_3", return_state=True)
    assert again.result().did_work is False
    runs = task_runs_of(flow_run_of(again).id, last="publish")
    assert set(runs) == {"detect", "verify", "plan", "merge", "publish"}
    assert len((release.parents[1] / "history.jsonl").read_text().splitlines()) == 1


def test_the_parameters_choose_the_version_and_the_tensors(server: str, tmp_path: Path, registry: str) -> None:
    both = SAVED.tensor("ema.w", np.ones(3, np.float32))
    run = write_trainer_run(tmp_path / "run", {1: both, 2: both})
    (tmp_path / "NOTES").write_text("notes")
    published = merge_and_publish(
        SourceChoice(path=str(run), prefixes=("ema",), attach=(str(tmp_path / "NOTES"),)),
        registry,
        "ema",
        step=1,
        alias="best",
    )
    manifest = read_manifest(resolve(registry, "ema@best"))
    assert published.alias == "best"
    assert (manifest.source.step, [spec.key for spec in manifest.specs()]) == (1, ["w"])
    assert "NOTES" in [record.name for record in manifest.attachments]


def test_the_layout_travels_as_parameters(server: str, tmp_path: Path, registry: str) -> None:
    source = SAVED.write(tmp_path / "source")
    (tmp_path / "map.yaml").write_text("- w^T -> v\n")
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "config.json").write_text('{"model_type": "unheard-of"}')
    layout = OutputLayout(mapping(tmp_path / "map.yaml"), str(tmp_path / "hf"), "bfloat16")
    published = run_as_flow(Choice(str(source), layout=layout), registry, "m", alias="latest")
    manifest = read_manifest(Path(published.path))
    assert [(spec.key, spec.dtype, spec.shape) for spec in manifest.specs()] == [("v", "bfloat16", (6, 8))]
    assert [record.name for record in manifest.attachments] == ["config.json"]


def test_a_refusal_fails_the_run_at_once_with_every_issue(
    server: str, tmp_path: Path, registry: str, capfd: pytest.CaptureFixture[str]
) -> None:
    run = write_trainer_run(tmp_path / "run", {7: SAVED.without_rank(0).without_rank(1)})
    state = merge_and_publish(SourceChoice(path=str(run)), registry, "broken", return_state=True)
    assert state.is_failed()
    for name in ("0_0.distcp", "1_0.distcp"):
        assert name in (state.message or "")
    with pytest.raises(VersionNotFound):
        state.result()
    runs = task_runs_of(flow_run_of(state).id, last="detect")
    assert {name: run.run_count for name, run in runs.items()} == {"detect": 1}
    [artifact] = [found for found in artifacts_of(flow_run_of(state).id) if found.type == "table"]
    assert "0_0.distcp" in str(artifact.data)
    assert not Path(registry).exists()
    assert "Traceback" not in capfd.readouterr().err


def test_a_refusal_of_a_later_step_is_not_tried_again_either(server: str, tmp_path: Path, registry: str) -> None:
    (tmp_path / "shapes.yaml").write_text("tensors: {w: {shape: [8, 7]}}")
    run = write_trainer_run(tmp_path / "run", {1: SAVED})
    state = merge_and_publish(
        SourceChoice(path=str(run), expectations=str(tmp_path / "shapes.yaml")), registry, "small", return_state=True
    )
    with pytest.raises(ReleaseInvalid):
        state.result()
    assert "[8, 7]" in (state.message or "")
    runs = task_runs_of(flow_run_of(state).id, last="validate")
    assert {name: run.run_count for name, run in runs.items()} == dict.fromkeys(
        ["detect", "verify", "plan", "merge", "validate"], 1
    )
    assert list((Path(registry) / "small" / "releases").iterdir()) == []


def test_a_release_passes_its_gates_before_the_alias_moves(server: str, registry: str) -> None:
    refused = merge_and_publish(
        LLAMA, registry, "gated", checks=CheckSettings(smoke="tests.smoke_functions:says_no"), return_state=True
    )
    with pytest.raises(SmokeFailed):
        refused.result()
    runs = task_runs_of(flow_run_of(refused).id, last="gate")
    assert (runs["gate"].run_count, "publish" in runs) == (1, False)
    assert list((Path(registry) / "gated").glob("releases/*")) == []

    passed = merge_and_publish(
        LLAMA, registry, "gated", checks=CheckSettings(smoke="tests.smoke_functions:good"), return_state=True
    )
    [report] = passed.result().gates
    shown = [str(found.data) for found in artifacts_of(flow_run_of(passed).id) if str(found.key).startswith("gates-")]
    assert len(shown) == 1
    assert report.finding in shown[0]


def test_a_fault_of_the_file_system_is_tried_again(server: str, tmp_path: Path) -> None:
    obstacle = tmp_path / "registry"
    obstacle.write_text("a file where the directory must be")

    def clear_the_way(_task: Task[..., Any], run: TaskRun, _state: State[Any]) -> None:
        if run.run_count == len(RETRY_DELAYS_SECONDS):
            obstacle.unlink()

    patient_merge = merge.with_options(retry_delay_seconds=0, on_running=[clear_the_way])

    @flow
    def stage_only() -> Staged:
        return patient_merge(plan(detect(str(LLAMA_RUN))), str(obstacle), "llama")

    state = stage_only(return_state=True)
    assert Path(state.result().path).is_dir()
    assert task_runs_of(flow_run_of(state).id, last="merge")["merge"].run_count == len(RETRY_DELAYS_SECONDS)


def test_a_wrong_parameter_is_refused_before_anything_runs(server: str, registry: str) -> None:
    with pytest.raises(ParameterTypeError, match="5 apples"):
        merge_and_publish({"path": "here", "max_shard_size": "5 apples"}, registry, "llama")  # type: ignore[call-overload]
    assert not Path(registry).exists()


def test_the_form_says_what_every_parameter_is() -> None:
    schema = merge_and_publish.parameters
    assert schema.required == ["source", "registry", "name"]
    assert [name for name, entry in schema.properties.items() if not entry.get("description")] == []
    assert {"minimum": 0, "type": "integer"} in schema.properties["step"]["anyOf"]


def test_run_as_flow_gives_what_the_library_gives(
    server: str, tmp_path: Path, registry: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_trainer_run(tmp_path / "run", {1: SAVED, 2: SAVED})
    monkeypatch.chdir(tmp_path)
    selection = Selection(include=("w",))
    published = run_as_flow(Choice("run", step=1, selection=selection, max_shard_bytes=123), "registry", "s", alias="a")
    assert published.path == str(resolve(registry, "s@a"))
    with get_client(sync_client=True) as client:
        recorded = client.read_flow_run(UUID(read_manifest(Path(published.path)).flow_run))
    assert (recorded.parameters["source"]["path"], recorded.parameters["registry"]) == (str(tmp_path / "run"), registry)

    with pytest.raises(SelectionError):
        run_as_flow(Choice("run", selection=Selection(include=("nothing",))), "registry", "s", alias="a")
    (tmp_path / "run/checkpoint-2/model_state/0_0.distcp").unlink()
    with pytest.raises(VersionIncomplete):
        run_as_flow(Choice("run", step=2), "registry", "s", alias="a")


def test_a_refusal_as_a_shell_sees_it(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_trainer_run(tmp_path / "run", {7: SAVED.without_rank(1)})
    monkeypatch.setenv("PREFECT_API_URL", server)
    outcome = ckpt_process("run", "run", "registry", "--name", "broken", "--flow", cwd=tmp_path)
    assert (outcome.status, outcome.stdout) == (1, "")
    assert "1_0.distcp" in outcome.stderr.splitlines()[-1]
    assert "Traceback" not in outcome.stderr


def test_a_server_that_does_not_answer_is_no_stack_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}/api"
    monkeypatch.setenv("PREFECT_API_URL", address)
    outcome = ckpt_process("run", LLAMA_RUN, "registry", "--name", "llama", "--flow", cwd=tmp_path)
    assert (outcome.status, outcome.stdout) == (1, "")
    assert outcome.stderr == f"ckpt: the flow was not run: Failed to reach API at {address}/\n"
    assert not (tmp_path / "registry").exists()


def test_prefect_is_told_not_to_track_before_it_is_imported() -> None:
    script = "import flows.running, sys; sys.exit('prefect' in sys.modules)"
    subprocess.run([sys.executable, "-c", script], cwd=REPOSITORY, check=True)


def test_a_run_without_any_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "demo" / "prefect"))
    outcome = ckpt_process("run", LLAMA_RUN, "registry", "--name", "llama", "--flow", "--json", cwd=tmp_path)
    assert outcome.status == 0, outcome
    assert json.loads(outcome.stdout)["path"] == str(resolve(tmp_path / "registry", "llama"))
    assert "Stopping temporary server" in outcome.stderr
    assert "Traceback" not in outcome.stderr
    with closing(sqlite3.connect(tmp_path / "demo" / "prefect" / "prefect.db")) as records:
        states = dict(records.execute("SELECT name, state_type FROM task_run"))
    assert sorted(states.values()) == ["COMPLETED"] * 6  # nothing was lost when the server stopped


def test_the_example_in_the_documentation(
    server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (REPOSITORY / "docs" / "flows.md").read_text()
    [example] = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "example.py").write_text(example)
    (tmp_path / "output").symlink_to(LLAMA_RUN)
    monkeypatch.chdir(tmp_path)
    exec(compile(example, str(tmp_path / "example.py"), "exec"), {"__name__": "example"})
    assert capsys.readouterr().out.splitlines()[-1] == str(resolve(tmp_path / "registry", "llama@candidate"))


def test_the_spans_of_a_flow_run_are_one_trace(server: str, tmp_path: Path) -> None:
    code = """
import sys
from flows.merge_and_publish import merge_and_publish
merge_and_publish({"path": sys.argv[1]}, *sys.argv[2:])
"""
    with collecting() as collected:
        traced = {"PREFECT_API_URL": server, "OTEL_EXPORTER_OTLP_ENDPOINT": collected.url}
        done = ckpt_code(LLAMA_RUN, tmp_path, "llama", code=code, **traced)
    assert done.returncode == 0, done.stderr
    [root] = collected.named("ckpt.merge-and-publish")
    assert {span.trace_id for span in collected.spans} == {root.trace_id}
    assert {span.name for span in collected.spans if span.parent_span_id == root.span_id} == {
        f"ckpt.{verb}" for verb in ("detect", "verify", "plan", "merge", "validate", "publish")
    }
