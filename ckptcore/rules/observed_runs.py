"""What a Prefect server says of the runs of pipelines, as an operator wants it. Asking it is the dashboard's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ckptcore.rules.observed import Watched
from ckptcore.rules.pipeline import MERGE, pipeline_tag


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


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a merge is, as its run says; ``since`` is when it was first told."""

    percent: float
    text: str
    since: float

    def left_seconds(self, now: float) -> float | None:
        """How long it takes until the end at the speed that it had so far."""
        if not 0 < self.percent < 100 or now <= self.since:
            return None
        return (now - self.since) * (100 - self.percent) / self.percent


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


def last_failure(runs: Iterable[RunSeen]) -> RunSeen | None:
    """The last run that failed, unless a later one of the same flow went well."""
    well = dict[tuple[str, str], float]()
    ended = sorted((run for run in runs if run.ended_at is not None), key=lambda run: run.ended_at or 0.0, reverse=True)
    for run in ended:
        place = (run.flow, run.deployment)
        if run.kind is RunKind.DONE:
            well.setdefault(place, run.ended_at or 0.0)
        elif run.kind is RunKind.FAILED and place not in well:
            return run
    return None
