"""What ``deployments/compose.yaml`` starts, started here without Docker: PostgreSQL, server, worker and watcher."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from ckptcore.registry import resolve
from tests.deployments.composing import Stack, example_environment, stacked
from tests.e2e.running import Training, eventually, free_port, published_steps

pytestmark = pytest.mark.e2e


def ask(stack: Stack, path: str, body: dict[str, Any], *, who: str | None = "team:s3cret word") -> Any:
    headers = {"Content-Type": "application/json"}
    if who is not None:
        headers["Authorization"] = f"Basic {base64.b64encode(who.encode()).decode()}"
    request = urllib.request.Request(f"{stack.url}{path}", json.dumps(body).encode(), headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def final_states(stack: Stack) -> list[str]:
    runs = ask(stack, "/flow_runs/filter", {"flows": {"name": {"any_": ["merge-and-publish"]}}})
    return [run["state_name"] for run in runs if run["state_type"] != "SCHEDULED"]


def test_postgres_server_worker_and_watcher_publish_and_a_lost_database_loses_nothing(tmp_path: Path) -> None:
    directories = {"CKPT_CONFIG": "config", "CKPT_SOURCES": "sources", "CKPT_REGISTRY": "registry"}
    environment = example_environment() | {key: str(tmp_path / place) for key, place in directories.items()}
    for place in directories.values():
        (tmp_path / place).mkdir()
    training, registry = Training(tmp_path / "sources" / "run"), tmp_path / "registry"
    config = {
        "name": "tiny",
        "registry": str(registry),
        "sources": [{"path": str(training.run)}],
        "schedule": {"reconcile": "20s"},
        "watch": {"every": "1s", "settle": 2},
    }
    (tmp_path / "config" / "ckpt.yaml").write_text(json.dumps(config))
    ports = {name: free_port() for name in ("postgres", "server", "worker")}
    training.write(1)
    with stacked(environment, ports) as stack:
        for service in stack.services:
            stack.start(service)
        stack.wait_until_healthy("worker")
        training.write(2)  # for the watcher; what was there before is for reconcile
        eventually(lambda: sorted(published_steps(registry, "tiny")) == [1, 2], within_s=120, what="two releases")
        assert resolve(registry, "tiny").name.startswith("step-2_")
        eventually(lambda: final_states(stack) == ["Completed"] * 2, within_s=60, what="both runs at their end")
        assert ask(stack, "/task_runs/count", {}) > 0
        assert "ckpt tiny: publish tiny" in [each["name"] for each in ask(stack, "/automations/filter", {})]
        with pytest.raises(urllib.error.HTTPError, match="401"):
            ask(stack, "/flow_runs/filter", {}, who=None)

        for service in ("watcher", "worker", "server"):
            stack.stop(service)
        stack.sql("drop database prefect")
        stack.sql("create database prefect")
        for step in (3, 4, 5, 6):
            training.write(step)
        for service in ("server", "deploy", "worker", "watcher"):
            stack.start(service)
        eventually(
            lambda: sorted(published_steps(registry, "tiny")) == [1, 2, 3, 4, 5, 6], within_s=180, what="the other four"
        )
        assert resolve(registry, "tiny").name.startswith("step-6_")
        # The watcher announces the newest again, a new server knows of nothing: no version is published twice.
        eventually(lambda: set(final_states(stack)) == {"Completed"}, within_s=120, what="all runs at their end")
        assert sorted(published_steps(registry, "tiny")) == [1, 2, 3, 4, 5, 6]
