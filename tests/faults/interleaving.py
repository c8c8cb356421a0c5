"""A command stopped at each of its calls in turn, while somebody else acts: another process, or the trainer."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from safetensors.numpy import load_file

from ckptcore.rules.manifest import MANIFEST_NAME
from tests.builders import Array
from tests.faults.commands import Commands, Ended, Running
from tests.faults.scenarios import Rivals, Scenario, saved
from tests.faults.sweep import Tally, Theatre, refusal_faults
from tests.faults.tracing import CHANGING, Point
from tests.faults.world import Look, differences, look

STOP = "signal=SIGSTOP"
OVERWRITTEN_WITH = 77
SAME_COMMAND = "another process of the same command"


def same_command(theatre: Theatre, *, every: int = 1) -> Tally:
    """The same command runs whole while the first is stopped: one of them wins, and the other says so."""
    tally = Tally(theatre.scenario.name, SAME_COMMAND)
    for point, first in _stopped(theatre, tally, every):
        second = theatre.stage.commands.forked(*theatre.command()).begin()
        both = _both(first, second)
        found = [*_outcomes(both), *theatre.visible_faults(), *theatre.faults_in_the_end()]
        tally.count(f"stopped at {point}", found)
    return tally


def rivals(commands: Commands, directory: Path, pair: Rivals, *, every: int = 1) -> Tally:
    """Two different commands: what they leave is what they leave one after the other, in one order or the other."""
    tally = Tally(pair.name, "another process of another command")
    theatre = Theatre(commands, directory, Scenario(pair.name, pair.command, pair.prepare))
    theatre.set_up()
    command, rival = theatre.command(), pair.rival(theatre.stage)
    orders = [_in_order(theatre, command, rival), _in_order(theatre, rival, command)]
    for point, first in _stopped(theatre, tally, every):
        second = commands.forked(*rival).begin()
        both = _both(first, second)
        for ended in both:
            if "another process" in ended.output:  # told to try again
                commands.run(*ended.arguments)
        end = look(theatre.stage.world)
        found = [*_outcomes(both), *end.faults]
        if all(any(differences(end, order)) for order in orders):
            found += [f"neither order leaves this: {text}" for text in differences(end, orders[0])]
        tally.count(f"stopped at {point}", found)
    return tally


@dataclass(frozen=True, slots=True)
class Trainer:
    """What a trainer does to the step that is being read; ``act`` gives the way to undo it, to the last stamp."""

    name: str
    act: Callable[[Path], Callable[[], None]]


def trainer_acts(theatre: Theatre, trainer: Trainer, *, every: int = 1) -> Tally:
    """The trainer acts while the command is stopped: all of the old step is taken, or nothing, or all of the new."""
    tally = Tally(theatre.scenario.name, trainer.name)
    step = theatre.stage.source / "checkpoint-10" / "model_state"
    for point, running in _stopped(theatre, tally, every):
        undo = trainer.act(step)
        ended = running.go_on().wait()
        found = list(refusal_faults(ended))
        # What the trainer wrote may have been verified, and then it is a release of its own, and whole.
        found += look(theatre.stage.world).faults
        found += _mixtures(theatre.stage.world)
        if ended.status:
            found += theatre.visible_faults()
        undo()
        theatre.recover()
        strange = differences(look(theatre.stage.world), theatre.reference, with_history=False)
        found += [f"in the end {text}" for text in strange if "/.staging" in text or text.startswith(".")]
        tally.count(f"stopped at {point}", found)
    return tally


def _deleted(step: Path) -> Callable[[], None]:
    aside = step.with_name("deleted")
    step.rename(aside)

    def undo() -> None:
        aside.rename(step)

    return undo


def _overwritten(step: Path) -> Callable[[], None]:
    """The same id once more, in place, as ``paddle.save`` opens its files: the same names, sizes and inodes."""
    stamps = {path: path.stat() for path in step.iterdir()}
    contents = {path: path.read_bytes() for path in stamps}
    saved(OVERWRITTEN_WITH).write(step)

    def undo() -> None:
        for path, data in contents.items():
            path.write_bytes(data)
            os.utime(path, ns=(stamps[path].st_atime_ns, stamps[path].st_mtime_ns))

    return undo


TRAINERS = (
    Trainer("the trainer deletes the step", _deleted),
    Trainer("the trainer overwrites the same id", _overwritten),
)


def _mixtures(world: Path) -> Iterator[str]:
    """Every output and release in the world that is of neither one save nor another."""
    whole = [_values(saved(seed).expected()) for seed in (9, 10, OVERWRITTEN_WITH)]
    for manifest in world.rglob(MANIFEST_NAME):
        found: dict[str, Array] = {}
        for shard in manifest.parent.glob("*.safetensors"):
            found |= load_file(shard)
        if ".staging" not in str(manifest.parent) and _values(found) not in whole:
            yield f"{manifest.parent} holds a mixture of two saves"


def _values(tensors: Mapping[str, Array]) -> dict[str, bytes]:
    return {key: values.tobytes() for key, values in tensors.items()}


def _stopped(theatre: Theatre, tally: Tally, every: int) -> Iterator[tuple[Point, Running]]:
    """The command in a new world for each point, stopped there."""
    for point in [point for point in theatre.points if point.call in CHANGING][::every]:
        running = theatre.disturbed(point, STOP)
        if running.stops():
            yield point, running
        else:
            running.wait()
            tally.missed += 1


def _both(first: Running, second: Running) -> tuple[Ended, Ended]:
    """The second ends while the first is stopped, unless it has to wait for it; then the first goes on."""
    second.rests()
    return first.go_on().wait(), second.wait()


def _outcomes(both: tuple[Ended, Ended]) -> Iterator[str]:
    for ended in both:
        yield from refusal_faults(ended)
    if all(ended.status for ended in both):
        yield f"nobody won: {both[0]}; {both[1]}"


def _in_order(theatre: Theatre, *lines: tuple[object, ...]) -> Look:
    theatre.set_up()
    for line in lines:
        theatre.stage.commands.run(*line)
    return look(theatre.stage.world)
