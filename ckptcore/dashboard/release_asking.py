"""What the page of one release asks to be read, in other processes, and what is known of it by now.

The manifest, the history and a comparison by digests are asked for as soon as the page opens; values are read when
somebody asks.
"""

from __future__ import annotations

from typing import Any

from ckptcore.dashboard.context import Context
from ckptcore.dashboard.jobs import Job, JobState, result_of
from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import shown
from ckptcore.dashboard.results import ChangesRead, HealthRead, HistoryRead, ReleaseRead
from ckptcore.rules.observed import PipelineSeen, ReleaseSeen

MOST_BEFORE = 9
"""So many releases before this one are read at one press of a button."""
MOST_POINTS = 60
"""So many of the newest releases have a point in the line of norms."""


class AskedOfRelease:
    """The readings of one release for one browser; ``read`` and the others are None until they are asked for."""

    def __init__(self, context: Context, key: str, release: str, query: Query) -> None:
        self._context, self._key, self._name, self._query = context, key, release, query
        self.read: Job[ReleaseRead] | None = None
        self.history: Job[HistoryRead] | None = None
        self.compared: Job[ChangesRead] | None = None
        self.measured: Job[ChangesRead] | None = None
        self.health: Job[HealthRead] | None = None
        self.ask()

    def seen(self) -> tuple[PipelineSeen | None, ReleaseSeen | None]:
        """The pipeline and the release, as far as they are still there."""
        seen = self._context.refresher.snapshot.pipeline(self._key)
        return seen, None if seen is None else seen.release(self._name)

    def ask(self) -> None:
        """Begin what the page needs and nobody has to press a button for."""
        seen, found = self.seen()
        if seen is None or found is None:
            return
        jobs = self._context.jobs
        self.read = jobs.ask(release_request(seen, found), ReleaseRead)
        if self.history is None or not self.history.is_open:
            self.history = jobs.ask(_history_request(seen), HistoryRead)
        request = self._diff_request("comparison")
        self.compared = None if request is None else jobs.ask(request, ChangesRead)
        request = self._diff_request("diff")
        self.measured = None if request is None else jobs.known(request)
        self.health = jobs.known(_health_request(seen, found))

    def jobs(self) -> tuple[Job[Any] | None, ...]:
        """Every reading that the page shows something of, after what it needs was asked for."""
        self.ask()
        return self.read, self.history, self.compared, self.measured, self.health, *self.healths()

    def against(self) -> str:
        """The alias, as it is shown, or the release that was chosen, else the release published just before."""
        seen, found = self.seen()
        if seen is None or found is None:
            return ""
        chosen = self._query.get("against")
        if chosen and (seen.release(chosen) is not None or any(shown(each.alias) == chosen for each in seen.aliases)):
            return chosen
        before = [each for each in seen.releases if each.published_at < found.published_at]
        others = before or [each for each in seen.releases if each.name != self._name]
        return others[0].name if others else ""

    def other(self) -> ReleaseSeen | None:
        """The release that this one is compared with."""
        seen, _ = self.seen()
        if seen is None:
            return None
        against = self.against()
        named = next((each.release for each in seen.aliases if shown(each.alias) == against), against)
        return seen.release(named) if named != self._name else None

    def changed(self) -> ChangesRead | None:
        """What is known of the differences: with values where they were measured, else by digests."""
        return result_of(self.measured) or result_of(self.compared)

    def before(self) -> list[ReleaseSeen]:
        """The releases just before this one whose values are not read or being read, as many as are read at once."""
        seen, found = self.seen()
        if seen is None or found is None:
            return []
        before = [each for each in seen.releases if each.published_at < found.published_at][:MOST_BEFORE]
        known = {each: self._context.jobs.known(_health_request(seen, each)) for each in before}
        return [each for each, job in known.items() if job is None or job.state in (JobState.STOPPED, JobState.FAILED)]

    def healths(self) -> list[Job[HealthRead]]:
        """The readings of values of the releases that the line of norms shows."""
        seen, _ = self.seen()
        if seen is None:
            return []
        known = (self._context.jobs.known(_health_request(seen, each)) for each in seen.releases[:MOST_POINTS])
        return [job for job in known if job is not None]

    def norm(self, release: ReleaseSeen, key: str) -> float | None:
        """The norm of the tensor ``key`` of a release, or of all of it for an empty key; None where it is not known."""
        seen, _ = self.seen()
        job: Job[HealthRead] | None
        job = None if seen is None else self._context.jobs.known(_health_request(seen, release))
        read = result_of(job)
        if read is None:
            return None
        return read.norm_of(key) if key else read.norm

    def read_again(self) -> None:
        seen, found = self.seen()
        if seen is not None and found is not None:
            self._context.jobs.forget(release_request(seen, found))

    def read_history_again(self) -> None:
        seen, _ = self.seen()
        if seen is not None:
            self._context.jobs.forget(_history_request(seen))

    def measure(self) -> None:
        """Read the values of this release and the other one, to tell by how much they differ."""
        if (request := self._diff_request("diff")) is not None:
            self._context.jobs.ask(request, ChangesRead, reads_values=True)

    def stop_measuring(self) -> None:
        if self.measured is not None:
            self._context.jobs.stop(self.measured)

    def compare_again(self) -> None:
        """What failed is tried again: the measuring where there was one, else the comparison by digests."""
        what = "comparison" if self.measured is None else "diff"
        if (request := self._diff_request(what)) is not None:
            self._context.jobs.forget(request)
        if self.measured is not None:
            self.measure()

    def read_values(self, *, again: bool = False, and_before: bool = False) -> None:
        """Read the values of this release, and of those ``before`` it where that is wanted."""
        seen, found = self.seen()
        if seen is None or found is None:
            return
        before = self.before() if and_before else []
        for release in (*([found] if again else ()), *before):
            self._context.jobs.forget(_health_request(seen, release))
        for release in (found, *before):
            self._context.jobs.ask(_health_request(seen, release), HealthRead, reads_values=True)

    def stop_reading_values(self) -> None:
        for job in self.healths():
            self._context.jobs.stop(job)

    def _diff_request(self, what: str) -> dict[str, object] | None:
        (seen, found), other = self.seen(), self.other()
        if seen is None or found is None or other is None:
            return None
        sides = {"a": other.name, "b": self._name, "stamp": [other.published_at, found.published_at]}
        return {"what": what, **_place(seen), **sides}


def _place(seen: PipelineSeen) -> dict[str, object]:
    return {"registry": seen.watched.registry, "name": seen.watched.name}


def release_request(seen: PipelineSeen, release: ReleaseSeen) -> dict[str, object]:
    """What asks for the manifest; one that was published anew under its name is another."""
    return {"what": "release", "release": release.name, "stamp": release.published_at, **_place(seen)}


def _history_request(seen: PipelineSeen) -> dict[str, object]:
    """What asks for the history, which tells of nothing that does not show in aliases, releases and pins."""
    stamp = [[each.alias, each.release, each.since] for each in seen.aliases]
    stamp += [[each.name, each.is_pinned, None] for each in seen.releases]
    return {"what": "history", "stamp": stamp, **_place(seen)}


def _health_request(seen: PipelineSeen, release: ReleaseSeen) -> dict[str, object]:
    return {"what": "health", "release": release.name, "stamp": release.published_at, **_place(seen)}
