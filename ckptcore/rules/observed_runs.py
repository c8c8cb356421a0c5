"""What a Prefect server says of the runs of pipelines, as an operator wants it. Asking it is the dashboard's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ckptcore.rules.observed import Watched
from ckptcore.rules.pipeline import MERGE, pipeline_tag, step_of


class RunKind(StrEnum):
    """How a run stands, by the type of its state."""

    WAITING = "waiting"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    STOPPED = "stopped"


_KINDS = {
    "SCHEDULED": RunKind.WAITING,
    "PENDING": RunKind.WAITING,
    "PAUSED": RunKind.WAITING,
    "RUNNING": RunKind.RUNNING,
    "CANCELLING": RunKind.RUNNING,
    "COMPLETED": RunKind.DONE,
    "FAILED": RunKind.FAILED,
    "CRASHED": RunKind.FAILED,
    "CANCELLED": RunKind.STOPPED,
}


def kind_of_state(state_type: str) -> RunKind:
    """The kind of Prefect's type of a state; what is not known counts as running."""
    return _KINDS.get(state_type, RunKind.RUNNING)


_LEAST_PERCENT = 1.0
"""Less progress than this, as it was seen, says nothing of a speed."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a merge is, as its run says; at ``since`` it was first seen, and ``from_percent`` far.

    A merge that goes on after another begins far above nothing.
    """

    percent: float
    text: str
    since: float
    from_percent: float = 0.0

    def left_seconds(self, now: float) -> float | None:
        """How long it takes until the end at the speed that was seen; None where too little was."""
        made = self.percent - self.from_percent
        if made < _LEAST_PERCENT or self.percent >= 100 or now <= self.since:
            return None
        return (now - self.since) * (100 - self.percent) / made

    def after(self, first: Progress | None) -> Progress:
        """The same, where ``first`` was seen of it before; a run that begins anew falls behind that."""
        if first is None or first.from_percent > self.percent:
            return self
        return replace(self, since=first.since, from_percent=first.from_percent)


@dataclass(frozen=True, slots=True)
class RunSeen:
    """One flow run. ``deployment`` is the name of its deployment without the flow's, "" where there is none."""

    id: str
    name: str
    flow: str
    deployment: str
    state: str
    kind: RunKind
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None
    tags: frozenset[str] = frozenset()
    progress: Progress | None = None

    @property
    def step(self) -> int | None:
        """The training step of the version that it publishes, None where that is not known."""
        return step_of(self.tags)

    @property
    def sentence(self) -> str:
        """How it ended, in one line."""
        line = next((line.strip() for line in self.message.splitlines() if line.strip()), "")
        return f"{self.flow} {self.state.lower()}{f': {line}' if line else ''}"


@dataclass(frozen=True, slots=True)
class ServerSeen:
    """A server, whether it answers, and what it says. ``why`` says why it does not.

    ``runs`` are those at work and the last that ended, the youngest first; ``late_count`` waits beyond its time.
    ``deployments`` gives the id of each ``flow/name``.
    """

    url: str
    is_reachable: bool = False
    why: str = "was not asked yet"
    asked_at: float = 0.0
    runs: tuple[RunSeen, ...] = ()
    late_count: int = 0
    deployments: Mapping[str, str] = field(default_factory=dict)
    scheduled_count: int = 0
    """Runs whose time is yet to come."""

    def of(self, watched: Watched) -> tuple[RunSeen, ...]:
        """The runs that belong to what is watched: those that publish its name, and those for the whole pipeline."""
        tag = pipeline_tag(watched.pipeline)
        return tuple(
            run for run in self.runs if tag in run.tags and (run.flow != MERGE or run.deployment == watched.name)
        )


def current(runs: Iterable[RunSeen]) -> RunSeen | None:
    """The run that publishes now, else any other that is at work."""
    at_work = [run for run in runs if run.kind is RunKind.RUNNING]
    return next((run for run in at_work if run.flow == MERGE), next(iter(at_work), None))


def clears(success: RunSeen, failure: RunSeen) -> bool:
    """Whether a failure is over since a later run of the same deployment went well.

    Merges of one deployment are of many versions: an older one that goes well says nothing of a newer one that failed.
    """
    if success.kind is not RunKind.DONE or (success.flow, success.deployment) != (failure.flow, failure.deployment):
        return False
    if (success.ended_at or 0.0) < (failure.ended_at or 0.0):
        return False
    return success.step is None or failure.step is None or success.step >= failure.step


def standing_failures(runs: Iterable[RunSeen]) -> list[RunSeen]:
    """The failures that no later run clears, the last first."""
    well = dict[tuple[str, str], list[RunSeen]]()
    failed = list[RunSeen]()
    for run in runs:
        if run.ended_at is not None and run.kind is RunKind.DONE:
            well.setdefault((run.flow, run.deployment), []).append(run)
        elif run.ended_at is not None and run.kind is RunKind.FAILED:
            failed.append(run)
    failed.sort(key=lambda run: run.ended_at or 0.0, reverse=True)
    return [run for run in failed if not any(clears(one, run) for one in well.get((run.flow, run.deployment), ()))]


def last_failure(runs: Iterable[RunSeen]) -> RunSeen | None:
    """The last run that failed, unless a later one of the same deployment went well."""
    return next(iter(standing_failures(runs)), None)
