"""Fifty versions at random times, with the server restarted twice and the worker killed three times."""

from __future__ import annotations

import json
import os
import random
import statistics
import time
from collections import Counter
from datetime import datetime
from pathlib import Path

import pytest

from ckptcore.registry import resolve
from tests.e2e.running import Training, Up, eventually, published_steps, running

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

VERSIONS = int(os.environ.get("CKPT_SOAK_VERSIONS", "50"))
MOST_PAUSE_S = 10.0
SEED = 4
MISHAPS = ("server", "worker", "worker", "server", "worker")


def test_every_version_becomes_one_release(tmp_path: Path) -> None:
    training, registry, chance = Training(tmp_path / "run"), tmp_path / "registry", random.Random(SEED)
    mishaps = dict(zip(chance.sample(range(1, VERSIONS), 5), MISHAPS, strict=True))
    with running(tmp_path) as up:
        for step in range(1, VERSIONS + 1):
            training.write(step)
            if chance.random() < 0.7:
                training.announce(step, up.url)
            if step in mishaps:
                up.kill(mishaps[step])
            time.sleep(chance.uniform(0, MOST_PAUSE_S))
        wanted = list(range(1, VERSIONS + 1))
        eventually(
            lambda: sorted(published_steps(registry, "tiny")) == wanted, within_s=900, what=f"{VERSIONS} releases"
        )
        assert resolve(registry, "tiny").name.startswith(f"step-{VERSIONS}_")
        eventually(lambda: _all_ended(up), within_s=300, what="every run in a final state")
        runs = _merges(up)
    report = _report(training, runs)
    (tmp_path / "soak.json").write_text(json.dumps(report))
    if place := os.environ.get("CKPT_SOAK_REPORT"):
        Path(place).write_text(json.dumps(report, indent=1))


def _merges(up: Up) -> list[dict[str, object]]:
    return [run for run in up.runs() if str(run["name"]).startswith("tiny: version")]


def _all_ended(up: Up) -> bool:
    return all(run["state_type"] in ("COMPLETED", "FAILED", "CRASHED", "CANCELLED") for run in _merges(up))


def _report(training: Training, runs: list[dict[str, object]]) -> dict[str, object]:
    """Seconds from the last byte of a version to its first run, and to the end of the one that published it."""
    to_running, to_end = dict[int, float](), dict[int, float]()
    for run in runs:
        step = int(str(run["name"]).rpartition(" ")[2])
        started = _seconds(run["start_time"]) - training.written_at[step]
        to_running[step] = min(started, to_running.get(step, started))
        if run["state_type"] == "COMPLETED":
            ended = _seconds(run["end_time"]) - training.written_at[step]
            to_end[step] = min(ended, to_end.get(step, ended))
    states = Counter(str(run["state_name"]) for run in runs)
    return {"runs": len(runs), "states": states, "to_running_s": _quantiles(to_running), "to_end_s": _quantiles(to_end)}


def _quantiles(seconds: dict[int, float]) -> dict[str, float]:
    cuts = statistics.quantiles(seconds.values(), n=20)
    return {"p50": cuts[9], "p95": cuts[18], "max": max(seconds.values())}


def _seconds(text: object) -> float:
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
