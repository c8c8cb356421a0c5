"""``ckpt up`` from the first version to the last signal: a real server, worker, watcher and events, and one kill."""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ckptcore.registry import resolve
from tests.e2e.measuring import latencies, ready_line, table
from tests.e2e.mishaps import Stops, reading
from tests.e2e.running import Training, Up, eventually, published_steps, running
from tests.receiver import receiving

pytestmark = pytest.mark.e2e


def test_versions_become_releases_once_however_they_are_seen(tmp_path: Path, tell: Callable[[str], None]) -> None:
    training, registry, stops = Training(tmp_path / "run"), tmp_path / "registry", Stops(tmp_path / "stops")
    training.write(1)  # before anybody watches
    with (
        receiving() as receiver,
        running(tmp_path, environment=stops.environment, notifications=[{"webhook": receiver.url}]) as up,
        reading(registry, "tiny") as reader,
    ):
        tell(f"{ready_line(up)}, on a new database")
        training.write(2)
        training.announce(2, up.url)  # by two ranks, and the watcher sees it too
        training.write(3)  # the watcher alone
        training.write_damaged(4)
        eventually(lambda: sorted(published_steps(registry, "tiny")) == [1, 2, 3], within_s=300, what="three releases")
        eventually(lambda: receiver.requests, within_s=300, what="the alert of the damaged version")
        alert = receiver.requests[0][2]
        assert (alert["alert"], alert["pipeline"], alert["payload"]["step"]) == ("damaged", "tiny", 4)

        stops.ask_for("merge")
        training.write(5)
        training.announce(5, up.url)
        process = stops.wait_for("merge")["merge"]
        os.kill(process, signal.SIGKILL)
        stops.let_go()
        eventually(lambda: len(receiver.requests) > 1, within_s=300, what="the alert of the crashed run")
        eventually(lambda: all(run["end_time"] for run in up.merges()), within_s=300, what="every run at its end")
        assert resolve(registry, "tiny").name.startswith("step-3_")
        for line in table("the first three", latencies(training, up.merges())):
            tell(line)
        children = up.children()
        assert set(children) == {"server", "worker"}
        assert up.stop(signal.SIGINT) == 0
    assert [role for role, process in children.items() if os.path.exists(f"/proc/{process}")] == []
    # Each is told of once, and nobody was told of anything else.
    assert Counter(body["alert"] for _, _, body in receiver.requests) == {"damaged": 1, "crashed": 1}

    # What was written while all was down comes by reconcile, oldest first, and does not take the newest one's place.
    for step in (6, 7, 8, 9):
        training.write(step)
    with running(tmp_path) as up:
        tell(f"{ready_line(up)}, on the database that it had")
        eventually(
            lambda: sorted(published_steps(registry, "tiny")) == [1, 2, 3, 5, 6, 7, 8, 9], within_s=600, what="the rest"
        )
        assert resolve(registry, "tiny").name.startswith("step-9_")
        all_there = datetime.now(UTC).isoformat()
        eventually(lambda: _reconciled_since(up, all_there), within_s=300, what="another reconcile")
        assert len(published_steps(registry, "tiny")) == 8
        eventually(lambda: not up.active_slots(), within_s=300, what="every slot given back")
    assert reader.problems == []


def _reconciled_since(up: Up, moment: str) -> bool:
    """Whether a reconcile that began after ``moment`` is done, and has left nothing to run."""
    done = [run for run in up.runs() if run["name"] == "tiny: reconcile" and run["state_type"] == "COMPLETED"]
    return any(run["start_time"] > moment for run in done) and all(run["end_time"] for run in up.merges())
