"""One fault at every call of a command in turn, and what each left: the exhaustive part."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.commands import Commands, Ended, Running
from tests.faults.scenarios import Scenario, Stage, write_source
from tests.faults.tracing import CHANGING, READING, Injection, Point, points
from tests.faults.world import differences, look, visible_faults

KILLED = -9
INJECTED = "(INJECTED)"


@dataclass(frozen=True, slots=True)
class Fault:
    """What happens at a call, and at which calls it can."""

    name: str
    effect: str
    calls: tuple[str, ...]

    @property
    def is_crash(self) -> bool:
        return "SIGKILL" in self.effect


_TAKING_SPACE = (
    "openat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "symlink", "write", "pwrite64", "fsync",
    "fallocate", "copy_file_range", "sendfile",
)  # fmt: skip
_BY_NAME = (
    "openat", "mkdir", "rename", "renameat2", "symlink", "unlink", "unlinkat", "rmdir", "newfstatat", "readlink",
    "statfs",
)  # fmt: skip

FAULTS: tuple[Fault, ...] = (
    Fault("kill -9", "signal=SIGKILL", (*CHANGING, *READING)),
    Fault("disk full (ENOSPC)", "error=ENOSPC", _TAKING_SPACE),
    Fault("quota used up (EDQUOT)", "error=EDQUOT", _TAKING_SPACE),
    Fault("I/O error (EIO)", "error=EIO", (*CHANGING, *READING)),
    Fault("permission denied (EACCES)", "error=EACCES", _BY_NAME),
    Fault("no locks (ENOLCK)", "error=ENOLCK", ("flock",)),
    Fault("file ends early (reads of 0 bytes)", "retval=0", ("read", "pread64", "preadv", "preadv2")),
)


@dataclass(slots=True)
class Tally:
    """How often a fault happened in a scenario, and whatever was wrong after one."""

    scenario: str
    fault: str
    injected: int = 0
    missed: int = 0
    failures: list[str] = field(default_factory=list)

    def count(self, what: str, found: Iterable[str]) -> None:
        self.injected += 1
        self.failures += [f"{self.scenario}: {what}: {text}" for text in found]


class Theatre:
    """The places of one scenario: its source, its world before, and what the undisturbed command makes of it."""

    def __init__(self, commands: Commands, directory: Path, scenario: Scenario) -> None:
        self.scenario = scenario
        source = directory / "source"
        if not source.exists():
            write_source(source)
        self._prepared = Stage(commands, source, directory / "prepared")
        self.stage = Stage(commands, source, directory / "world")
        # What a file system answers that does not know the flags of renameat2.
        self._lacking = tuple(Injection(call, "error=EINVAL") for call in scenario.without)
        _emptied(self.stage.world)
        scenario.prepare(self.stage)
        _emptied(self._prepared.world).rmdir()
        self.stage.world.rename(self._prepared.world)
        self.before = look(self.set_up())
        ended = commands.watched(*self.command(), injections=self._lacking, calls=(*CHANGING, *READING))
        if ended.status:
            raise AssertionError(str(ended))
        self.reference = look(self.stage.world)
        if self.stage.registry.exists():
            self.stage.ckpt("audit", self.stage.registry)
        places = (str(self.stage.world), str(self.stage.source))
        self.points = points(ended.trace, places, scenario.without)

    def set_up(self) -> Path:
        """The world as it is before the command; gives its directory."""
        shutil.rmtree(self.stage.world, ignore_errors=True)
        shutil.copytree(self._prepared.world, self.stage.world, symlinks=True)
        return self.stage.world

    def command(self) -> tuple[object, ...]:
        return self.scenario.command(self.stage)

    def disturbed(self, point: Point, effect: str) -> Running:
        """The command, begun in a new world, with ``effect`` to come at ``point``."""
        self.set_up()
        running = self.stage.commands.forked(*self.command())
        injections = (Injection(point.call, effect, str(point.number)), *self._lacking)
        running.attach(injections, paths=(point.path, *point.also))
        return running.begin()

    def recover(self) -> Ended:
        """The next command, undisturbed."""
        line = self.scenario.again or self.scenario.command
        return self.stage.commands.run(*line(self.stage))

    def visible_faults(self) -> Iterator[str]:
        now = look(self.stage.world)
        return visible_faults(self.before, now, self.reference, may_vanish=self.scenario.may_vanish)

    def faults_in_the_end(self) -> Iterator[str]:
        """Whatever is wrong after the next command: it must succeed, and leave what an undisturbed one leaves."""
        again = self.recover()
        was_finished = bool(self.scenario.finished) and self.scenario.finished in again.output
        if again.status and not was_finished:
            yield f"the next command did not succeed: {again}"
        with_history = not (was_finished and again.status)
        end = look(self.stage.world)
        yield from (f"in the end {text}" for text in differences(end, self.reference, with_history=with_history))


def sweep(theatre: Theatre, fault: Fault, *, every: int = 1) -> Tally:
    """``fault`` at every call (or every ``every``-th) where it can happen, each in a new world."""
    tally = Tally(theatre.scenario.name, fault.name)
    for point in [point for point in theatre.points if point.call in fault.calls][::every]:
        ended = theatre.disturbed(point, fault.effect).wait()
        if not _has_happened(fault, point, ended):
            tally.missed += 1  # threads took their blocks in another order, and none came that far
            continue
        found = [
            *refusal_faults(ended, is_crash=fault.is_crash),
            *theatre.visible_faults(),
            *theatre.faults_in_the_end(),
        ]
        tally.count(f"{fault.name} at {point}", found)
    return tally


def _has_happened(fault: Fault, point: Point, ended: Ended) -> bool:
    if fault.is_crash:
        return ended.status == KILLED
    return any(INJECTED in line and f" {point.call}" in line for line in ended.trace.splitlines())


def refusal_faults(ended: Ended, *, is_crash: bool = False) -> Iterator[str]:
    """A command does its work or says in a line why not, unless it was killed."""
    if ended.status not in ((KILLED,) if is_crash else (0, 1)):
        yield str(ended)
    if ended.status == 1 and not any(line.startswith("ckpt: ") for line in ended.output.splitlines()):
        yield f"refused without a reason: {ended}"


def _emptied(directory: Path) -> Path:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    return directory
