"""A whole pipeline as ``ckpt up`` runs it, a simulated trainer, and what may happen to them, by name."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ckptcore import announcing
from ckptcore.registry import history_of, shelf_of
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY

START_SECONDS = 300.0
SCRIPT = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(holds: Callable[[], Any], *, within_s: float, what: str) -> Any:
    """The first true value of ``holds``; fails after ``within_s``."""
    end = time.monotonic() + within_s
    while time.monotonic() < end:
        if found := holds():
            return found
        time.sleep(0.2)
    raise AssertionError(f"{what}: not within {within_s:.0f} s")


@dataclass
class Training:
    """A run directory that is written to as a trainer would."""

    run: Path
    written_at: dict[int, float] = field(default_factory=dict)

    def saved(self, step: int) -> SavedCheckpoint:
        return SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6) + step, grid=(2, 1))

    def write(self, step: int, *, signals: bool = False) -> Path:
        """Save a step; its model_state directory."""
        write_trainer_run(self.run, {step: self.saved(step)}, signals=signals)
        self.written_at[step] = time.time()
        return self.run / f"checkpoint-{step}" / "model_state"

    def write_damaged(self, step: int) -> None:
        write_trainer_run(self.run, {step: self.saved(step).truncated("1_0.distcp", at=100)}, signals=False)

    def announce(self, step: int, url: str) -> None:
        """As rank 0 and rank 1 do."""
        directory = self.run / f"checkpoint-{step}" / "model_state"
        for rank in (0, 1):
            announcing.announce(directory, 0, url=url, rank=rank)


@dataclass
class Up:
    """A running ``ckpt up``."""

    directory: Path
    port: int
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/api"

    @property
    def log(self) -> str:
        return (self.directory / "up.log").read_text()

    def wait_until_ready(self) -> None:
        eventually(
            lambda: "ready after" in self.log or self.process.poll() is not None, within_s=START_SECONDS, what="ready"
        )
        assert self.process.poll() is None, self.log

    def ask(self, path: str, body: dict[str, Any]) -> Any:
        data = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def runs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("/flow_runs/filter", {"sort": "START_TIME_ASC"})
        return found

    def merges(self) -> list[dict[str, Any]]:
        """The runs for one version each that have begun."""
        return [run for run in self.runs() if run["parameters"].get("directory") and run["start_time"]]

    def flows(self) -> dict[str, int]:
        """The process of each flow run that works now, by the run's id, whoever its parent is by now."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                environment = (entry / "environ").read_bytes().split(b"\0")
            except OSError:
                continue
            if b"prefect.engine" in command and f"PREFECT_API_URL={self.url}".encode() in environment:
                [run] = [each for each in environment if each.startswith(b"PREFECT__FLOW_RUN_ID=")]
                found[run.partition(b"=")[2].decode()] = int(entry.name)
        return found

    def active_slots(self) -> dict[str, int]:
        """The limits that somebody holds slots of."""
        limits = self.ask("/v2/concurrency_limits/filter", {"limit": 200})
        return {limit["name"]: limit["active_slots"] for limit in limits if limit["active_slots"]}

    def children(self) -> dict[str, int]:
        """The process of each role."""
        found = {}
        for entry in Path("/proc").iterdir():
            try:
                command = (entry / "cmdline").read_bytes().split(b"\0")
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (OSError, ValueError):
                continue
            if parent == self.process.pid and b"flows.processes" in command:
                found[command[command.index(b"flows.processes") + 1].decode()] = int(entry.name)
        return found

    def kill(self, role: str) -> None:
        """kill -9 of the server or the worker, and wait until it was started again."""
        before = self.children()[role]
        os.kill(before, signal.SIGKILL)
        eventually(lambda: self.children().get(role, before) != before, within_s=30, what=f"another {role}")

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


def published_steps(registry: Path, name: str) -> list[int]:
    """The step of each publication in the history, in its order; one that was merged twice would be there twice."""
    acts = history_of(shelf_of(registry, name))
    return [int(act.release.split("_")[0].removeprefix("step-")) for act in acts if act.act == "publish"]


@contextmanager
def running(
    directory: Path, port: int | None = None, environment: Mapping[str, str] | None = None, **settings: object
) -> Iterator[Up]:
    """``ckpt up`` in ``directory``, on the run ``run``; ``settings`` are more of ckpt.yaml."""
    port = port or free_port()
    config: dict[str, object] = {
        "name": "tiny",
        "registry": "registry",
        "sources": [{"path": "run"}],
        "server": {"port": port},
        "schedule": {"reconcile": "20s"},
        "watch": {"every": "1s", "settle": 2},
    }
    (directory / "ckpt.yaml").write_text(json.dumps(config | settings))
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    own = {"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"}
    with (directory / "up.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT, "up"],
            cwd=directory,
            env=inherited | own | dict(environment or {}),
            stdout=log,
            stderr=log,
        )
    up = Up(directory, port, process)
    try:
        up.wait_until_ready()
        yield up
    finally:
        if process.poll() is None:
            up.stop()
