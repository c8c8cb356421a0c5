"""A holder of a device that is killed: its device is free at once, and its slot when the lease is over."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore.storage.commit import is_locked
from tests.command import REPOSITORY
from tests.e2e.running import eventually, running

pytestmark = pytest.mark.e2e


def test_who_waits_gets_the_slot_of_who_was_killed(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    journal, locks = tmp_path / "journal", tmp_path / "locks"
    with running(tmp_path) as up:
        environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")} | {
            "PYTHONPATH": str(REPOSITORY),
            "PREFECT_API_URL": up.url,
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
            [limit] = [found for found in up.ask("/v2/concurrency_limits/filter", {}) if found["name"] == "gpu:node"]
            return float(limit["active_slots"])

        holder = start("first", 600)
        try:
            eventually(journal.exists, within_s=120, what="the first has the device")
            assert slots() == 1
        finally:
            holder.kill()
            holder.wait()
        eventually(lambda: not is_locked(locks / "0"), within_s=30, what="the device is free")
        second = start("second", 0.1)
        try:
            assert second.wait(300) == 0
        finally:
            second.kill()
            second.wait()
        assert [line.split()[0] for line in journal.read_text().splitlines()] == ["first", "second"]
        assert "SHARED" not in Path(f"{journal}.steps").read_text()
        eventually(lambda: slots() == 0, within_s=60, what="no slot is left taken")
