"""Stop a flow's process inside a step, at a call that touches the file system, so that a kill hits the step for sure.

Python imports this module when it starts, where its directory is on PYTHONPATH. The directory ``CKPT_TEST_STOPS`` holds
a file for each step to stop in, named after its task. The first process that gets there renames the file to
``STEP.PID`` and waits until that is removed; others pass. What the file holds is how many calls pass before.
"""

from __future__ import annotations

import os
import sys
import time
from types import FrameType

STEPS = ("detect", "verify", "plan", "merge", "validate", "gate", "publish")
_CALLS = {"open", "os.listdir", "os.scandir", "os.mkdir", "os.rename", "os.remove", "fcntl.flock", "subprocess.Popen"}
_directory = os.environ.get("CKPT_TEST_STOPS", "")
_passed: dict[str, int] = {}
_is_looking = False


def _step_of(frame: FrameType | None) -> str | None:
    """The task whose function is being run."""
    while frame is not None:
        directory, name = os.path.split(frame.f_code.co_filename)
        if frame.f_code.co_name in STEPS and name == f"{frame.f_code.co_name}.py" and directory.endswith("/tasks"):
            return frame.f_code.co_name
        frame = frame.f_back
    return None


def _look(event: str, _: tuple[object, ...]) -> None:
    global _is_looking
    if event not in _CALLS or _is_looking:
        return
    _is_looking = True
    try:
        step = _step_of(sys._getframe(1))
        if step is not None and os.path.exists(f"{_directory}/{step}"):
            _stop(step)
    finally:
        _is_looking = False


def _stop(step: str) -> None:
    wanted, taken = f"{_directory}/{step}", f"{_directory}/{step}.{os.getpid()}"
    try:
        with open(wanted) as file:
            most = int(file.read() or 0)
        _passed[step] = _passed.get(step, 0) + 1
        if _passed[step] <= most:
            return
        os.rename(wanted, taken)
    except FileNotFoundError:
        return  # another process was quicker
    while os.path.exists(taken):
        time.sleep(0.05)


if _directory and "prefect.engine" in sys.orig_argv:
    sys.addaudithook(_look)
