"""Flows that hold a simulated device, for the server that the environment names.

``python -m tests.device_flows NAME JOURNAL SECONDS`` runs one.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from prefect import flow, task

from ckptcore.apart import run_apart
from tasks.device_slots import device_host
from tests.device_steps import note


@task
def hold(name: str, journal: str, seconds: str) -> None:
    with device_host((0,)).claimed(1) as claim:
        note(Path(journal), name, os.getpid())
        ended = run_apart(
            "tests.device_steps",
            ["step", f"{journal}.steps", seconds],
            environment=claim.environment(),
            descriptors=claim.descriptors,
        )
    assert not ended.failure, ended.output


@flow
def holding(name: str, journal: str, seconds: str) -> None:
    hold(name, journal, seconds)


if __name__ == "__main__":
    holding(*sys.argv[1:])
