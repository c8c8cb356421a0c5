"""A real Dask cluster as an administrator starts one: a scheduler and workers, each a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.command import REPOSITORY

MOST_SECONDS = 600.0
"""Whatever takes this long has hung; a busy machine may need minutes."""


@dataclass
class Cluster:
    """``workers`` run one task at a time each; one that is killed stays dead."""

    directory: Path
    scheduler: subprocess.Popen[bytes]
    address: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> subprocess.Popen[bytes]:
        number = len(self.workers)
        options = [
            "--no-nanny",
            "--nthreads",
            "1",
            "--dashboard-address",
            "127.0.0.1:0",
            "--local-directory",
            str(self.directory),
        ]
        arguments = [self.address, "--host", "127.0.0.1", *options]
        worker = _started("distributed.cli.dask_worker", arguments, self.log(number))
        self.workers.append(worker)
        wait_for(lambda: b"Starting established connection" in self.log(number).read_bytes(), worker)
        return worker

    def log(self, worker: int) -> Path:
        return self.directory / f"worker-{worker}.log"


@contextmanager
def dask_cluster(directory: Path, workers: int) -> Iterator[Cluster]:
    """A scheduler on a free port of this machine with so many workers; all of them are ended with the block."""
    directory.mkdir()
    log = directory / "scheduler.log"
    arguments = ["--host", "127.0.0.1", "--port", "0", "--dashboard-address", "127.0.0.1:0"]
    scheduler = _started("distributed.cli.dask_scheduler", arguments, log)
    cluster = Cluster(directory, scheduler, "")
    try:
        wait_for(lambda: b"Scheduler at:" in log.read_bytes(), scheduler)
        [line] = [line for line in log.read_text().splitlines() if "Scheduler at:" in line]
        cluster.address = line.split()[-1]
        for _ in range(workers):
            cluster.add_worker()
        yield cluster
    finally:
        for process in (*cluster.workers, scheduler):
            process.kill()
            process.wait()


def wait_for(happened: Callable[[], bool], process: subprocess.Popen[bytes]) -> None:
    """Wait until it happened; the process must live on."""
    deadline = time.monotonic() + MOST_SECONDS
    while not happened():
        assert process.poll() is None, f"{process.args!r} ended"
        assert time.monotonic() < deadline, f"{process.args!r} took too long"
        time.sleep(0.001)


def _started(module: str, arguments: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
