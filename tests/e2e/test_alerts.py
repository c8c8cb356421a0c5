"""What goes wrong with a pipeline reaches people once, by webhook and by notification block, and says where to look."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import uuid
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from ckptcore.events import send
from tests.command import REPOSITORY
from tests.e2e.mishaps import Stops
from tests.e2e.running import SCRIPT, Training, Up, eventually, published_steps, running
from tests.receiver import Receiver, receiving

pytestmark = [pytest.mark.e2e, pytest.mark.kills]

NAMES = ("good", "gated", "blocked", "empty")
UNENDING = ("tiny: stalled", "tiny: failed")


def test_each_alert_arrives_once_by_webhook_and_by_block(tmp_path: Path) -> None:
    training = {name: Training(tmp_path / name) for name in NAMES}
    stops = Stops(tmp_path / "stops")
    sources: list[dict[str, object]] = [{"path": name, "name": name} for name in NAMES]
    sources[NAMES.index("empty")]["include"] = ["no.such.tensor"]
    settings: dict[str, Any] = {"sources": sources, "checks": {"smoke": "tests.smoke_functions:refuses_gated"}}
    # A name that cannot be a directory, because it is a file: a fault of the file system, which is tried again first.
    (tmp_path / "registry").mkdir()
    (tmp_path / "registry" / "blocked").write_text("")
    with receiving() as receiver, running(tmp_path, environment=stops.environment, **settings) as up:
        _save_block(up, f"{receiver.url}/block")
        told = [{"webhook": f"{receiver.url}/hook"}, {"block": "custom-webhook/team"}]
        _deploy(tmp_path, up, {"stall": "100s", "notifications": told})

        training["good"].write(0)
        eventually(lambda: published_steps(tmp_path / "registry", "good") == [0], within_s=300, what="a release")
        [ended] = eventually(lambda: [run for run in up.merges() if run["end_time"]], within_s=300, what="a run's end")
        # Prefect's issue 18653: a heartbeat that comes after the end, or an end whose event is lost, looks like a run
        # that was killed.
        _send_heartbeat(up, ended["id"])

        training["good"].write_damaged(1)
        for name in ("gated", "blocked", "empty"):
            training[name].write(2)
        stops.ask_for("merge")
        training["good"].write(3)
        process = stops.wait_for("merge")["merge"]
        run = next(run for run, each in up.flows().items() if each == process)
        os.kill(process, signal.SIGKILL)

        expected = {("damaged", "version 0 of step 1"), ("crashed", "good: version 0 of step 3")}
        expected |= {("refused", f"{name}: version 0 of step 2") for name in ("gated", "empty")}
        expected |= {("failed", "blocked: version 0 of step 2")}
        expected |= {("stalled", name) for name in NAMES}
        eventually(
            lambda: set(_by_hook(receiver)) >= expected and len(_by_block(receiver)) >= len(expected),
            within_s=900,
            what="every alert",
        )
        fired = eventually(lambda: _triggered_for(up, ended["id"]), within_s=300, what="the automation of silent runs")
        assert fired["payload"]["triggering_labels"]["prefect.resource.id"] == f"prefect.flow-run.{ended['id']}"
        assert [run["state_name"] for run in up.merges() if run["id"] == ended["id"]] == ["Completed"]
        hooks, blocks = _by_hook(receiver), _by_block(receiver)
        bodies = {(body["alert"], body["about"]): body for path, _, body in receiver.requests if path.endswith("/hook")}
    assert set(hooks) == expected
    assert set(blocks) == {f"tiny: {alert}: {about}" for alert, about in expected}
    # A stall is told of again and again until it ends, and what failed is tried again; everything else is told once.
    assert {count for (alert, _), count in hooks.items() if not f"tiny: {alert}".startswith(UNENDING)} == {1}
    once = Counter(json.dumps(body) for _, _, body in receiver.requests if "stalled" not in json.dumps(body))
    assert set(once.values()) == {1}
    assert {count for subject, count in blocks.items() if not subject.startswith(UNENDING)} == {1}

    damaged = bodies["damaged", "version 0 of step 1"]
    assert damaged["where"] == str(tmp_path / "good" / "checkpoint-1" / "model_state")
    assert "1_0.distcp" in damaged["what"]
    crashed = bodies["crashed", "good: version 0 of step 3"]
    assert crashed["where"] == f"{up.url.removesuffix('/api')}/runs/flow-run/{run}"
    assert (crashed["path"], crashed["unique_id"]) == (str(tmp_path / "good" / "checkpoint-3" / "model_state"), 0)
    gated = bodies["refused", "gated: version 0 of step 2"]
    assert "smoke test tests.smoke_functions:refuses_gated" in gated["what"]
    assert "perplexity is 1e9" in gated["what"]
    assert "SelectionError" in bodies["refused", "empty: version 0 of step 2"]["what"]
    assert "blocked" in bodies["failed", "blocked: version 0 of step 2"]["what"]
    assert f"No version was written in {tmp_path / 'empty'} for 100s." == bodies["stalled", "empty"]["what"]
    assert {body["pipeline"] for body in bodies.values()} == {"tiny"}


def _by_hook(receiver: Receiver) -> Counter[tuple[str, str]]:
    return Counter((body["alert"], body["about"]) for path, _, body in receiver.requests if path.endswith("/hook"))


def _by_block(receiver: Receiver) -> Counter[str]:
    return Counter(body["subject"] for path, _, body in receiver.requests if path.endswith("/block"))


def _send_heartbeat(up: Up, run: str) -> None:
    tag = {"prefect.resource.id": "prefect.tag.ckpt-pipeline:tiny", "prefect.resource.role": "tag"}
    event = {
        "id": str(uuid.uuid4()),
        "occurred": datetime.now(UTC).isoformat(),
        "event": "prefect.flow-run.heartbeat",
        "resource": {"prefect.resource.id": f"prefect.flow-run.{run}"},
        "related": [tag],
    }
    send(event, up.url)


def _triggered_for(up: Up, run: str) -> Any:
    """What the server tells of the automation that looks after silent runs, once it acted on that one."""
    found = up.ask("/events/filter", {"filter": {"event": {"name": ["prefect.automation.triggered"]}}, "limit": 50})
    return next((each for each in found["events"] if run in json.dumps(each)), None)


def _save_block(up: Up, url: str) -> None:
    """A notification block of the server's, as somebody makes it in Prefect's interface."""
    [kind] = up.ask("/block_types/filter", {"block_types": {"slug": {"any_": ["custom-webhook"]}}})
    [schema, *_] = up.ask("/block_schemas/filter", {"block_schemas": {"block_type_id": {"any_": [kind["id"]]}}})
    data = {"name": "team", "url": url, "json_data": {"subject": "{{subject}}", "body": "{{body}}"}}
    block = {"name": "team", "data": data, "block_type_id": kind["id"], "block_schema_id": schema["id"]}
    up.ask("/block_documents/", block)


def _deploy(directory: Path, up: Up, settings: dict[str, object]) -> None:
    """``ckpt deploy`` of the file with ``settings`` added, on the server that runs."""
    file = directory / "ckpt.yaml"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY), "PREFECT_API_URL": up.url}
    command = [sys.executable, "-c", SCRIPT, "deploy"]
    subprocess.run(command, cwd=directory, env=environment, check=True, capture_output=True)
