"""How long it took from an event to its run and to the release, and ``ckpt up`` to be ready."""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tests.e2e.running import Training, Up

CALM_BEFORE_S, CALM_AFTER_S = 10.0, 90.0
"""A version that is written so long before or after a mishap may be late by it."""


@dataclass(frozen=True)
class Latency:
    """Of one version: when its event was made, its first run began, and the run that published it ended."""

    step: int
    event_at: float
    running_at: float
    published_at: float


def latencies(training: Training, runs: Sequence[Mapping[str, Any]]) -> list[Latency]:
    """One for each version that was published."""
    running_at, published_at = dict[int, float](), dict[int, float]()
    for run in runs:
        step = int(re.findall(r"checkpoint-(\d+)", run["parameters"]["directory"])[-1])
        running_at[step] = min(_seconds(run["start_time"]), running_at.get(step, float("inf")))
        if run["state_type"] == "COMPLETED":
            published_at[step] = min(_seconds(run["end_time"]), published_at.get(step, float("inf")))
    return [Latency(step, _event_at(training, step), running_at[step], at) for step, at in published_at.items()]


def calm(measured: Sequence[Latency], mishaps_at: Sequence[float]) -> list[Latency]:
    """Those that no mishap can have made late."""
    return [
        each for each in measured if not any(-CALM_AFTER_S < at - each.event_at < CALM_BEFORE_S for at in mishaps_at)
    ]


def table(title: str, measured: Sequence[Latency]) -> Iterator[str]:
    """Lines of p50, p95 and the longest, in seconds."""
    yield f"{title}: {len(measured)} version(s)"
    spans = {
        "event to running": [each.running_at - each.event_at for each in measured],
        "event to published": [each.published_at - each.event_at for each in measured],
    }
    for name, seconds in spans.items():
        if len(seconds) >= 2:
            cuts = statistics.quantiles(seconds, n=20, method="inclusive")
            yield f"  {name:<20} p50 {cuts[9]:6.1f} s   p95 {cuts[18]:6.1f} s   longest {max(seconds):6.1f} s"


def ready_line(up: Up) -> str:
    [seconds] = re.findall(r"ready after ([0-9.]+) s", up.log)
    return f"ckpt up was ready after {seconds} s"


def states_line(runs: Sequence[Mapping[str, Any]]) -> str:
    states = Counter(str(run["state_name"]) for run in runs)
    return f"{len(runs)} run(s): " + ", ".join(f"{count} {name}" for name, count in sorted(states.items()))


def _event_at(training: Training, step: int) -> float:
    """As the mark says, which trainer, watcher and reconcile agree on."""
    [event] = json.loads((training.run / f"checkpoint-{step}" / "model_state" / "0.announced").read_text())
    return _seconds(event["occurred"])


def _seconds(text: object) -> float:
    return datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp()
