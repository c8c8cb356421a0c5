"""Registries as real runs leave them, small enough to make one a test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from ckptcore import Choice, run
from ckptcore.registry import history_of, shelf_of
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY

NAME = "tiny"
_HOLD = "import sys; from ckptcore import lease\nwith lease(*sys.argv[1:]): print('held', flush=True); sys.stdin.read()"


def publish_steps(directory: Path, steps: Sequence[int]) -> tuple[Path, list[str]]:
    """A registry in which each of the steps was published under ``latest``, in that order; its releases too."""
    saves = {step: SavedCheckpoint().tensor("w", [float(step), 1.5]) for step in steps}
    source = write_trainer_run(directory / "output", saves)
    registry = directory / "registry"
    return registry, [run(Choice(str(source), step=step), registry, NAME).release for step in steps]


def acts(registry: Path, name: str = NAME) -> list[tuple[str, str, str, str]]:
    """The history: what was done to which release, and for an alias which one and where it pointed before."""
    return [(act.act, act.release, act.alias, act.previous) for act in history_of(shelf_of(registry, name))]


@contextmanager
def lease_holder(registry: Path, reference: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the release by now, and until it ends."""
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, str(registry), reference],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
