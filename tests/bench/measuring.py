"""Time whole processes, in pairs with a baseline, and say how much memory each held at most.

Owns how a measurement is made; what is measured is ``contenders``'. Kept to the standard library, and small, on
purpose: Linux counts the memory of the parent at the moment of the fork into the peak of a child, so that the peaks
here are those of the children only down to what this process itself holds (about 20 MB).
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

CALL_SECONDS = "call-seconds="
"""A child that prints a line of this and a number says how long its work took without its start-up."""


class ContenderFailed(Exception):
    """A measured process exited with another status than 0."""


@dataclass(frozen=True, slots=True)
class Contender:
    """A command that turns a checkpoint of ``size_bytes`` into output; ``argv`` is given an empty directory to fill.

    ``baseline`` is what runs beside it in each pair (None for a baseline itself), and ``most_rounds`` bounds how often
    a slow one is run. ``pieces`` is how many pieces the checkpoint is cut into.
    """

    checkpoint: str
    name: str
    size_bytes: int
    pieces: int
    argv: Callable[[Path], Sequence[str]]
    environment: Mapping[str, str] = field(default_factory=dict)
    baseline: Contender | None = None
    most_rounds: int = 1000


@dataclass(frozen=True, slots=True)
class Run:
    """One process from start to exit. ``call_seconds`` is its own count of the work alone, where it keeps one.

    ``cpu_seconds`` are spent by all its threads, in the kernel too: on a machine that is busy with other things they
    say more than ``seconds``.
    """

    seconds: float
    cpu_seconds: float
    peak_bytes: int
    call_seconds: float | None = None


@dataclass(slots=True)
class Measured:
    """Every run of one contender, and each as a multiple of the baseline's run beside it."""

    contender: Contender
    runs: list[Run] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    failure: str = ""

    @property
    def seconds(self) -> tuple[float, ...]:
        return tuple(run.seconds for run in self.runs)

    @property
    def cpu_seconds(self) -> tuple[float, ...]:
        return tuple(run.cpu_seconds for run in self.runs)

    @property
    def call_seconds(self) -> tuple[float, ...]:
        return tuple(run.call_seconds for run in self.runs if run.call_seconds is not None)

    @property
    def peak_bytes(self) -> int:
        return max((run.peak_bytes for run in self.runs), default=0)


def run(contender: Contender, scratch: Path) -> Run:
    """Run the contender once into a new directory, which is deleted afterwards, outside the measured time."""
    out = Path(tempfile.mkdtemp(prefix="out-", dir=scratch))
    try:
        with tempfile.TemporaryFile(dir=scratch) as printed:
            start = time.perf_counter()
            process = subprocess.Popen(
                contender.argv(out), stdout=printed, stderr=subprocess.STDOUT, env=os.environ | contender.environment
            )
            # wait4, not wait: it gives the peak memory of this child alone.
            _, status, usage = os.wait4(process.pid, 0)
            seconds = time.perf_counter() - start
            process.returncode = os.waitstatus_to_exitcode(status)
            printed.seek(0)
            lines = printed.read().decode(errors="replace").splitlines()
        if process.returncode:
            raise ContenderFailed(f"{contender.name}: exit status {process.returncode}: {' '.join(lines[-3:])}")
        call = [float(line.removeprefix(CALL_SECONDS)) for line in lines if line.startswith(CALL_SECONDS)]
        return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024, call[-1] if call else None)
    finally:
        shutil.rmtree(out)


def contest(contenders: Sequence[Contender], scratch: Path, *, rounds: int, warm_up: bool) -> list[Measured]:
    """Run every contender ``rounds`` times, each in a pair with its baseline; the order in the pair alternates.

    The baselines come back too, once each, with all their runs. ``warm_up`` runs baselines and contenders once before,
    not counted, so that the page cache holds what all of them read. A contender that fails is not run again.
    """
    baselines = {c.baseline.checkpoint: Measured(c.baseline) for c in contenders if c.baseline is not None}
    measured = [Measured(contender) for contender in contenders]
    os.sync()  # the writing back of what was just generated is not to be measured
    if warm_up:
        for baseline in baselines.values():
            run(baseline.contender, scratch)
        for one in measured:
            if one.contender.most_rounds >= rounds:
                _attempt(one, scratch)
                one.runs.clear()
    for turn in range(rounds):
        for position, one in enumerate(measured):
            if turn >= one.contender.most_rounds or one.failure or one.contender.baseline is None:
                continue
            baseline = baselines[one.contender.baseline.checkpoint]
            pair = (baseline, one) if (turn + position) % 2 == 0 else (one, baseline)
            if all(_attempt(half, scratch) for half in pair):
                one.ratios.append(one.runs[-1].seconds / baseline.runs[-1].seconds)
    return [*baselines.values(), *measured]


def _attempt(measured: Measured, scratch: Path) -> bool:
    try:
        measured.runs.append(run(measured.contender, scratch))
    except ContenderFailed as failure:
        measured.failure = str(failure)
        return False
    return True


def paired_ratio(numerator: Measured, denominator: Measured) -> float:
    """The median of run against run, of two that took turns."""
    return statistics.median(a / b for a, b in zip(numerator.seconds, denominator.seconds, strict=True))
