"""How long the steps of publishing took for the last releases, as the server recorded the runs that made them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from ckptcore.dashboard.prefect_api import PrefectApi
from ckptcore.errors import CheckpointError
from ckptcore.registry import history_of, shelf_of
from ckptcore.rules.observed import PipelineSeen

_ORDER = ("detect", "verify", "plan", "merge", "validate", "gate", "publish")


@dataclass(frozen=True, slots=True)
class Row:
    """The run that made a release, and the seconds of each of its steps."""

    run: str
    steps: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Durations:
    """By the name of the release; ``newest`` is the last that was asked for, ``why`` says why nothing is known."""

    MOST: ClassVar[int] = 30
    rows: Mapping[str, Row] = field(default_factory=dict)
    newest: str = ""
    why: str = ""

    @property
    def names(self) -> tuple[str, ...]:
        """The steps that any run has, in the order in which they come."""
        there = {name for row in self.rows.values() for name in row.steps}
        return (*(name for name in _ORDER if name in there), *sorted(there - set(_ORDER)))


def durations_of(seen: PipelineSeen, api: PrefectApi | None) -> Durations:
    """Ask history and server; may take seconds. Raises nothing: ``why`` says what went wrong."""
    if not seen.releases:
        return Durations()
    newest = seen.releases[0].name
    wanted = {release.name for release in seen.releases[: Durations.MOST]}
    try:
        acts = history_of(shelf_of(seen.watched.registry, seen.watched.name))
        runs = {
            act.flow_run: act.release for act in acts if act.act == "publish" and act.flow_run and act.release in wanted
        }
        if api is None:
            return Durations(newest=newest, why="no Prefect server is configured")
        steps = api.step_seconds(list(runs))
    except CheckpointError as error:
        return Durations(newest=newest, why=error.message)
    rows = {runs[run]: Row(run, of_run) for run, of_run in steps.items() if run in runs}
    return Durations(
        rows, newest, "" if rows else "the releases were made without Prefect, or it has forgotten the runs"
    )
