"""``ckpt up`` from the first version to the last signal: a real server, worker, watcher and events."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest

from ckptcore.registry import resolve
from tests.e2e.running import Training, eventually, published_steps, running
from tests.receiver import receiving

pytestmark = pytest.mark.e2e


def test_versions_become_releases_once_however_they_are_seen(tmp_path: Path) -> None:
    training, registry = Training(tmp_path / "run"), tmp_path / "registry"
    training.write(1)  # before anybody watches
    with receiving() as receiver, running(tmp_path, notifications=[{"webhook": receiver.url}]) as up:
        training.write(2)
        training.announce(2, up.url)  # by two ranks, and the watcher sees it too
        training.write(3)  # the watcher alone
        training.write_damaged(4)
        eventually(lambda: sorted(published_steps(registry, "tiny")) == [1, 2, 3], within_s=120, what="three releases")
        eventually(lambda: receiver.requests, within_s=60, what="the alert of the damaged version")
        alert = receiver.requests[0][2]
        assert (alert["alert"], alert["pipeline"], alert["payload"]["step"]) == ("damaged", "tiny", 4)
        assert resolve(registry, "tiny").name.startswith("step-3_")
        children = up.children()
        assert set(children) == {"server", "worker"}
        assert up.stop(signal.SIGINT) == 0
    assert [role for role, process in children.items() if os.path.exists(f"/proc/{process}")] == []
    # A damaged version is told of once, and nobody was told of anything else.
    assert {json.dumps(body["alert"]) for _, _, body in receiver.requests} == {'"damaged"'}

    # What was written while all was down comes by reconcile, oldest first, and does not take the newest one's place.
    for step in (5, 6, 7, 8, 9):
        training.write(step)
    with running(tmp_path) as up:
        eventually(
            lambda: sorted(published_steps(registry, "tiny")) == [1, 2, 3, 5, 6, 7, 8, 9], within_s=180, what="the rest"
        )
        assert resolve(registry, "tiny").name.startswith("step-9_")
        time.sleep(25)  # another reconcile finds nothing to do
        assert len(published_steps(registry, "tiny")) == 8


def test_a_worker_and_a_server_that_are_killed_cost_no_version(tmp_path: Path) -> None:
    training, registry = Training(tmp_path / "run"), tmp_path / "registry"
    with running(tmp_path) as up:
        training.write(1)
        training.announce(1, up.url)
        up.kill("worker")
        training.write(2)
        up.kill("server")
        training.announce(2, up.url)
        training.write(3)
        eventually(lambda: sorted(published_steps(registry, "tiny")) == [1, 2, 3], within_s=400, what="three releases")
        assert resolve(registry, "tiny").name.startswith("step-3_")
