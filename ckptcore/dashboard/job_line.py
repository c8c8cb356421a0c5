"""What a page says of a reading that is not done: it waits, how far it is, why it was refused, how to try again."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from nicegui import ui

from ckptcore.dashboard.jobs import Job, JobState
from ckptcore.dashboard.markup import Markup, joined, shown, tag
from ckptcore.dashboard.words import since, size

LOOK_SECONDS = 0.4
_MOST_ISSUES = 8


def job_line(job: Job[Any] | None, what: str, *, can_stop: bool = False) -> Markup:
    """One or a few lines, empty where it is done. ``what`` is what is read: ``the manifest``.

    Buttons do ``stop`` and ``again``.
    """
    if job is None or job.is_done:
        return Markup("")
    stop = tag("button", "Stop", data_do="stop", class_="plain") if can_stop else None
    again = tag("button", "Try again", data_do="again", class_="plain")
    match job.state:
        case JobState.WAITING:
            text = f"Waiting to read {what}: something else is being read"
            told = tag("span", text, _since(job, ", for ") or ".", class_="muted")
            return tag("div", told, stop, class_="job", role="status")
        case JobState.RUNNING:
            hangs = _since(job, "Still waiting for the file system, since ")
            line = tag("span", hangs, class_="level-waiting") if hangs else None
            return tag("div", _progress(job, what), line, stop, class_="job", role="status")
        case JobState.STOPPED:
            return tag("div", tag("span", "Stopped.", class_="muted"), again, class_="job", role="status")
        case JobState.REFUSED:
            found = [tag("li", shown(str(issue))) for issue in job.issues[:_MOST_ISSUES]]
            more = len(job.issues) - len(found)
            found += [tag("li", f"and {more:,} more", class_="muted")] if more > 0 else []
            listed = tag("ul", *found) if found else None
            return tag("div", tag("p", shown(job.message), class_="failure"), listed, again, class_="job", role="alert")
        case _:
            told = tag("p", f"Reading {what} did not work: {shown(job.message)}.", class_="failure")
            return tag("div", told, again, class_="job", role="alert")


def _since(job: Job[Any], words: str) -> Markup:
    """For how long nothing was heard of it, after the words; empty where something was."""
    now = time.time()
    return joined([words, since(now - job.quiet_seconds, now)]) if job.is_quiet else Markup("")


def _progress(job: Job[Any], what: str) -> Markup:
    share = job.share
    if share is None:
        return tag("span", f"Reading {what} …", class_="muted")
    far = f"{size(job.done_bytes)} of {size(job.total_bytes)}"
    bar = tag("div", tag("span", style=f"width:{share * 100:.1f}%"), class_="meter")
    told = tag("span", f"Reading {what}: {share:.0%}, {far}", class_="muted")
    return joined([told, bar])


class Following:
    """Looks at the readings of one page, and calls back where something is new."""

    def __init__(self, jobs: Callable[[], tuple[Job[Any] | None, ...]], refresh: Callable[[], None]) -> None:
        self._jobs, self._refresh = jobs, refresh
        self._seen: tuple[tuple[int, int, bool], ...] = ()
        ui.timer(LOOK_SECONDS, self.look)

    def look(self) -> None:
        seen = tuple((id(job), job.ticks, job.is_open and job.is_quiet) for job in self._jobs() if job is not None)
        if seen != self._seen:
            self._seen = seen
            self._refresh()
