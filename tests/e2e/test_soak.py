"""Fifty versions at random times while the server and the worker are killed; and how long one takes in calm."""

from __future__ import annotations

import json
import os
import random
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

import pytest

from ckptcore.registry import resolve
from tests.e2e.measuring import calm, latencies, ready_line, states_line, table
from tests.e2e.mishaps import reading
from tests.e2e.running import Training, eventually, published_steps, running

pytestmark = [pytest.mark.e2e, pytest.mark.soak]

VERSIONS = int(os.environ.get("CKPT_SOAK_VERSIONS", "50"))
MOST_PAUSE_S = 10.0
CALM_VERSIONS = 25
CALM_PAUSES_S = (5.0, 15.0)
SEED = 4
MISHAPS = ("server", "worker", "worker", "server", "worker")


def test_every_version_becomes_one_release(tmp_path: Path, tell: Callable[[str], None]) -> None:
    training, registry, chance = Training(tmp_path / "run"), tmp_path / "registry", random.Random(SEED)
    mishaps = dict(zip(chance.sample(range(1, VERSIONS), 5), MISHAPS, strict=True))
    mishaps_at: list[float] = []
    with running(tmp_path) as up, reading(registry, "tiny") as reader:
        for step in range(1, VERSIONS + 1):
            training.write(step)
            if chance.random() < 0.7:
                training.announce(step, up.url)
            if step in mishaps:
                mishaps_at.append(time.time())
                up.kill(mishaps[step])
            time.sleep(chance.uniform(0, MOST_PAUSE_S))
        wanted = list(range(1, VERSIONS + 1))
        eventually(
            lambda: sorted(published_steps(registry, "tiny")) == wanted, within_s=900, what=f"{VERSIONS} releases"
        )
        assert resolve(registry, "tiny").name.startswith(f"step-{VERSIONS}_")
        eventually(lambda: all(run["end_time"] for run in up.merges()), within_s=300, what="every run at its end")
        eventually(lambda: not up.active_slots(), within_s=300, what="every slot given back")
        runs = up.merges()
        measured = latencies(training, runs)
        for line in (
            ready_line(up),
            states_line(runs),
            *table("all", measured),
            *table("with no mishap near", calm(measured, mishaps_at)),
        ):
            tell(line)
    assert reader.problems == []
    # A server that goes away costs a run a wait; a run whose worker and process are well does not fail.
    assert {run["state_name"] for run in runs} <= {"Completed", "Crashed"}
    if place := os.environ.get("CKPT_SOAK_REPORT"):
        Path(place).write_text(json.dumps([asdict(each) for each in measured], indent=1))


def test_how_long_a_version_takes_where_nothing_happens(tmp_path: Path, tell: Callable[[str], None]) -> None:
    training, registry, chance = Training(tmp_path / "run"), tmp_path / "registry", random.Random(SEED)
    wanted = list(range(1, CALM_VERSIONS + 1))
    with running(tmp_path) as up:
        for step in wanted:
            training.write(step)
            training.announce(step, up.url)
            time.sleep(chance.uniform(*CALM_PAUSES_S))
        eventually(lambda: published_steps(registry, "tiny") == wanted, within_s=300, what="each in its order")
        eventually(lambda: all(run["end_time"] for run in up.merges()), within_s=300, what="every run at its end")
        runs = up.merges()
        for line in (ready_line(up), states_line(runs), *table("in calm", latencies(training, runs))):
            tell(line)
    assert {run["state_name"] for run in runs} == {"Completed"}
