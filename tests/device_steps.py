"""Processes that claim simulated devices, and steps that run on them: ``python -m tests.device_steps ROLE …``.

A step proves by a second lock of its own, which only a live process can have, that it is alone on each device.
"""

from __future__ import annotations

import fcntl
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ckptcore.apart import run_apart
from ckptcore.devices import DeviceHost

DEVICES = 4


def note(journal: Path, *words: object) -> None:
    """One line, in one write, so that lines of several processes do not mix."""
    descriptor = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    os.write(descriptor, (" ".join(map(str, words)) + "\n").encode())
    os.close(descriptor)


def claim(journal: str, gpus: str, seconds: str) -> None:
    """Claim devices and run one step on them, as a worker does."""
    with DeviceHost(tuple(range(DEVICES))).claimed(int(gpus)) as claimed:
        ended = run_apart(
            "tests.device_steps",
            ["step", journal, seconds],
            environment=claimed.environment(),
            descriptors=claimed.descriptors,
        )
    if ended.failure:
        sys.exit("\n".join(map(str, ended.output)))


def step(journal: str, seconds: str) -> None:
    """Work on the devices that are seen, for about so long."""
    path, devices = Path(journal), os.environ["CUDA_VISIBLE_DEVICES"].split(",")
    oracle = os.open(path.with_name("oracle"), os.O_RDWR | os.O_CREAT, 0o666)
    for device in devices:
        try:
            fcntl.lockf(oracle, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, int(device))
        except BlockingIOError:
            note(path, "SHARED", device, os.getpid())
            sys.exit(f"device {device} is in use")
    for device in devices:
        note(path, "start", device, os.getpid(), time.monotonic())
    time.sleep(float(seconds) * random.uniform(0.5, 1.5))
    for device in devices:
        note(path, "end", device, os.getpid(), time.monotonic())


def step_with_a_child(journal: str) -> None:
    """Start a process that inherits nothing, say who both are, and hang."""
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    note(Path(journal), os.getpid(), child.pid)
    time.sleep(600)


def hold(journal: str) -> None:
    """Claim one device of one, and run a step that hangs."""
    with DeviceHost((0,)).claimed(1) as claimed:
        run_apart(
            "tests.device_steps",
            ["step_with_a_child", journal],
            environment=claimed.environment(),
            descriptors=claimed.descriptors,
        )


if __name__ == "__main__":
    _, role, *arguments = sys.argv
    roles: dict[str, Callable[..., None]] = {
        "claim": claim,
        "step": step,
        "step_with_a_child": step_with_a_child,
        "hold": hold,
    }
    roles[role](*arguments)
