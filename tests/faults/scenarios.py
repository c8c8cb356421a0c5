"""The commands that faults are injected into: one line of :data:`SCENARIOS` each.

A scenario says what lies there before, which command is disturbed, and how the next one ends what was begun. What must
hold in between is the same for all of them and ``world``'s.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.builders import SavedCheckpoint, write_trainer_run
from tests.faults.commands import Commands

SHARDS = ("--max-shard-size", "300")
"""Three shards of the tiny checkpoint."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Where a scenario plays: the trainer's run, which no command changes, and the world, which the command does."""

    commands: Commands
    source: Path
    world: Path

    @property
    def registry(self) -> Path:
        return self.world / "registry"

    @property
    def out(self) -> Path:
        return self.world / "out"

    def ckpt(self, *arguments: object) -> None:
        """A command of the preparation, which must succeed."""
        ended = self.commands.run(*arguments)
        if ended.status:
            raise AssertionError(str(ended))

    def publish_step(self, step: int, alias: str = "latest") -> None:
        self.ckpt(*run_of(self, step), "--alias", alias)


Line = Callable[[Stage], tuple[object, ...]]
Prepare = Callable[[Stage], None]


@dataclass(frozen=True, slots=True)
class Scenario:
    """``command`` is disturbed in what ``prepare`` made; ``again`` (default: the same) then runs undisturbed.

    ``finished`` is what ``again`` may say instead of succeeding, where the disturbed command was finished already; then
    its act may be missing in the history. ``without`` are calls that the file system lacks, as some network ones do,
    and ``may_vanish`` the parts that are not there for an instant because of that.
    """

    name: str
    command: Line
    prepare: Prepare
    again: Line | None = None
    finished: str = ""
    without: tuple[str, ...] = ()
    may_vanish: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rivals:
    """Two commands of different processes at once, which must leave what one after the other leaves, either first."""

    name: str
    command: Line
    rival: Line
    prepare: Prepare


def write_source(directory: Path) -> Path:
    """A run of two steps, two ranks each, with a configuration beside the newer one; gives ``directory``."""
    source = write_trainer_run(directory, {step: saved(step) for step in (9, 10)})
    (source / "checkpoint-10" / "config.json").write_text('{"model_type": "tiny"}')
    return source


def saved(seed: int) -> SavedCheckpoint:
    rows = np.arange(64, dtype="f4").reshape(8, 8) + seed
    tiny = SavedCheckpoint().tensor("a", rows, grid=(2, 1)).tensor("b", rows + 1, grid=(1, 2))
    return tiny.tensor("c", np.arange(48, dtype="f4") * seed, flat_parts=2)


def run_of(stage: Stage, step: int) -> tuple[object, ...]:
    return ("run", stage.source, stage.registry, "--name", "tiny", "--step", step, *SHARDS)


def _nothing(stage: Stage) -> None:
    """An empty world."""


def _older_release(stage: Stage) -> None:
    stage.publish_step(9)


def _both_releases(stage: Stage) -> None:
    stage.publish_step(9)
    stage.publish_step(10)


def _older_output(stage: Stage) -> None:
    stage.ckpt("merge", stage.source, stage.out, "--step", 9, *SHARDS)


def _promoted(stage: Stage) -> None:
    """Production went from step 9 to step 10."""
    stage.publish_step(9, "production")
    stage.publish_step(10, "production")
    stage.publish_step(10)


def _promoted_before(stage: Stage) -> None:
    """Production is at step 9, and step 10 is the latest."""
    stage.publish_step(9, "production")
    stage.publish_step(10)


def _pinned(stage: Stage) -> None:
    _both_releases(stage)
    stage.ckpt(*_pin(stage))


def _output(stage: Stage) -> None:
    stage.publish_step(9)
    stage.ckpt("merge", stage.source, stage.out, "--step", 10, *SHARDS)


def _merge(stage: Stage) -> tuple[object, ...]:
    return ("merge", stage.source, stage.out, "--step", 10, *SHARDS)


def _overwrite(stage: Stage) -> tuple[object, ...]:
    return (*_merge(stage), "--overwrite")


def _run(stage: Stage) -> tuple[object, ...]:
    return run_of(stage, 10)


def _publish(stage: Stage) -> tuple[object, ...]:
    return ("publish", stage.out, stage.registry, "--name", "tiny")


def _run_older(stage: Stage) -> tuple[object, ...]:
    return run_of(stage, 9)


def _promote(stage: Stage) -> tuple[object, ...]:
    return ("promote", stage.registry, "tiny@latest", "--alias", "production")


def _roll_back(stage: Stage) -> tuple[object, ...]:
    """From the release that ``latest`` names, so that a second one goes no further back."""
    current = (stage.registry / "tiny" / "latest").readlink().name
    return ("rollback", stage.registry, "tiny", "--alias", "production", "--expect-current", current)


def _roll_back_freely(stage: Stage) -> tuple[object, ...]:
    return ("rollback", stage.registry, "tiny", "--alias", "production")


def _promote_older(stage: Stage) -> tuple[object, ...]:
    (older,) = (stage.registry / "tiny" / "releases").glob("step-9_*")
    return ("promote", stage.registry, f"tiny@{older.name}", "--alias", "production")


def _prune(stage: Stage) -> tuple[object, ...]:
    return ("prune", stage.registry, "tiny", "--keep-last", 1)


def _pin(stage: Stage) -> tuple[object, ...]:
    return ("pin", stage.registry, "tiny@latest")


def _unpin(stage: Stage) -> tuple[object, ...]:
    return ("unpin", stage.registry, "tiny@latest")


SCENARIOS: tuple[Scenario, ...] = (
    Scenario("merge", _merge, _nothing, finished="exists already"),
    Scenario("merge --overwrite", _overwrite, _older_output),
    Scenario("run, the first of a name", _run, _nothing),
    Scenario("run, a newer step", _run, _older_release),
    Scenario("run, published already", _run, _both_releases),
    Scenario("publish", _publish, _output),
    Scenario("promote", _promote, _promoted_before),
    Scenario("rollback", _roll_back, _promoted, finished="was moved"),
    Scenario("prune", _prune, _both_releases),
    Scenario("pin", _pin, _both_releases),
    Scenario("unpin", _unpin, _pinned),
    Scenario("merge, no renameat2", _merge, _nothing, finished="exists already", without=("renameat2",)),
    Scenario("merge --overwrite, no renameat2", _overwrite, _older_output, without=("renameat2",), may_vanish=("out",)),
    Scenario("run, no renameat2", _run, _older_release, without=("renameat2",)),
)

RIVALS: tuple[Rivals, ...] = (
    Rivals("run against run of another step", _run, _run_older, _nothing),
    Rivals("promote against rollback", _promote_older, _roll_back_freely, _promoted),
    Rivals("rollback against promote", _roll_back_freely, _promote_older, _promoted),
    Rivals("prune against promote of what it drops", _prune, _promote_older, _both_releases),
    Rivals("promote against prune of what it names", _promote_older, _prune, _both_releases),
    Rivals("run against prune", _run, _prune, _older_release),
    Rivals("prune against run", _prune, _run, _older_release),
)
