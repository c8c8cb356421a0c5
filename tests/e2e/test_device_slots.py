"""A holder of a device that is killed: its device is free at once, and its slot when the lease is over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ckptcore.storage.commit import is_locked
from flows.configuring import QUIET
from flows.processes import is_healthy
from flows.up import SERVER
from tests.command import REPOSITORY
from tests.e2e.running import eventually, free_port

pytestmark = pytest.mark.e2e


@contextmanager
def serving(directory: Path) -> Iterator[str]:
    """Prefect's server as ``ckpt up`` starts it, alone; gives the address of its API."""
    port = free_port()
    url = f"http://127.0.0.1:{port}/api"
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    environment |= SERVER | QUIET | {"PREFECT_HOME": str(directory / "server"), "PYTHONPATH": str(REPOSITORY)}
    with (directory / "server.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "flows.processes", "server", "127.0.0.1", str(port)],
            cwd=REPOSITORY,
            env=environment,
            stdout=log,
            stderr=log,
        )
    try:
        eventually(lambda: is_healthy(url), within_s=300, what="a server")
        yield url
    finally:
        process.kill()
        process.wait()


def test_who_waits_gets_the_slot_of_who_was_killed(tmp_path: Path) -> None:
    journal, locks = tmp_path / "journal", tmp_path / "locks"
    with serving(tmp_path) as url:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")} | {
            "PYTHONPATH": str(REPOSITORY),
            "PREFECT_API_URL": url,
            "PREFECT_HOME": str(tmp_path / "prefect"),
            "CKPT_DEVICE_LOCKS": str(locks),
            "CKPT_HOST": "node",
        }
        environment.pop("CUDA_VISIBLE_DEVICES", None)

        def start(name: str, seconds: float) -> subprocess.Popen[bytes]:
            return subprocess.Popen(
                [sys.executable, "-m", "tests.device_flows", name, str(journal), str(seconds)],
                cwd=REPOSITORY,
                env=environment,
            )

        def slots() -> float:
            with urllib.request.urlopen(f"{url}/v2/concurrency_limits/gpu:node", timeout=60) as answer:
                return float(json.load(answer)["active_slots"])

        holder = start("first", 600)
        try:
            eventually(journal.exists, within_s=300, what="the first has the device")
            assert slots() == 1
        finally:
            holder.kill()
            holder.wait()
        eventually(lambda: not is_locked(locks / "0"), within_s=30, what="the device is free")
        second = start("second", 0.1)
        try:
            assert second.wait(600) == 0
        finally:
            second.kill()
            second.wait()
        assert [line.split()[0] for line in journal.read_text().splitlines()] == ["first", "second"]
        assert "SHARED" not in Path(f"{journal}.steps").read_text()
        eventually(lambda: slots() == 0, within_s=60, what="no slot is left taken")
