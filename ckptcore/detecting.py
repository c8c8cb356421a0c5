"""Which versions a source holds, in what state each is, and which is the newest that is complete.

A source is a directory of rank files, a ``checkpoint-<step>`` directory, or a run directory of such steps. Listing
goes by names alone and is cheap; the state of a version costs a scan of its headers, which is ``verifying``'s, so
versions are inspected from the newest on and only as far as needed. Nothing is remembered between calls.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ckptcore.errors import StorageError, VersionIncomplete, VersionNotFound
from ckptcore.rules.issues import Issue
from ckptcore.rules.layout import COMPONENTS, parse_step_name, step_name
from ckptcore.rules.versions import (
    Listing,
    RunMarks,
    Version,
    VersionState,
    choose_component,
    newest_first,
)
from ckptcore.steps import tell, verb
from ckptcore.storage.local import Directories
from ckptcore.verifying import Verified, require_sound, verify, verify_listed

EMPTY_STEP = "empty-step"
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class InspectedVersion:
    """A version and its state, as its headers and the trainer's marks show it."""

    version: Version
    state: VersionState


def list_versions(source: str | Path, component: str | None = None) -> tuple[Version, ...]:
    """Every version of the source by its names, the newest first, whole or not; empty where there is none.

    ``component`` defaults to ``model_state`` where any step has it, else to the files in no component, else to
    ``dist_ckpt``. Raises :class:`VersionNotFound` where the source is missing or leaves a choice, and
    :class:`StorageError` where it cannot be read.
    """
    return _Source(source, component).survey().versions


def inspect(version: Version) -> InspectedVersion:
    """The version's state now, with every reason. Raises :class:`StorageError` where it cannot be read."""
    return InspectedVersion(version, verify(version).report.state)


def inspect_all(source: str | Path, component: str | None = None) -> Iterator[InspectedVersion]:
    """What :func:`list_versions` gives, each with its state, one after the other; every directory is listed once."""
    asked = _Source(source, component)
    for version in asked.survey().versions:
        yield InspectedVersion(version, verify_listed(version, asked.directories).report.state)


def newest_complete(
    source: str | Path, component: str | None = None, step: int | None = None, unique_id: int | None = None
) -> Version:
    """The version of the highest step, then the highest id, that is complete; ``step`` and ``unique_id`` narrow it.

    Raises :class:`VersionNotFound` where there is no such version, or none is complete (with what was passed over,
    and why); where ``step`` or ``unique_id`` is given, an existing version that is not complete raises
    :class:`VersionIncomplete` or :class:`VersionDamaged` instead.
    """
    return newest_verified(source, component, step, unique_id).report.version


@verb("detect")
def newest_verified(
    source: str | Path, component: str | None = None, step: int | None = None, unique_id: int | None = None
) -> Verified:
    """What :func:`newest_complete` gives, with the verification that chose it, so that headers are read once."""
    asked = _Source(source, component)
    survey = asked.survey()
    *passed_over, last = _inspected(asked, survey, step, unique_id)
    if last.report.is_sound:
        tell(version=last.report.version.label, directory=last.report.version.directory)
        return last
    refused = [*passed_over, last]
    if step is not None or unique_id is not None:
        require_sound(refused[0])
    issues = [issue for verified in refused for issue in verified.report.issues]
    labels = "; ".join(f"{v.report.version.label} is {v.report.state.kind}" for v in refused)
    raise VersionNotFound(f"{source}: no complete version: {labels}", [*issues, *survey.empty_issues()])


def version_to_judge(
    source: str | Path, component: str | None = None, step: int | None = None, unique_id: int | None = None
) -> Version:
    """What a merge would take: :func:`newest_complete`, and where none is complete, the newest, to be told why."""
    asked = _Source(source, component)
    inspected = _inspected(asked, asked.survey(), step, unique_id)
    return (inspected[-1] if inspected[-1].report.is_sound else inspected[0]).report.version


def _inspected(asked: _Source, survey: _Survey, step: int | None, unique_id: int | None) -> list[Verified]:
    """The versions asked for from the newest on, verified, up to the first sound one; never empty."""
    wanted = [v for v in survey.versions if step in (None, v.step) and unique_id in (None, v.unique_id)]
    if not wanted:
        raise _nothing_there(survey, step, unique_id)
    inspected = []
    for version in wanted:
        inspected.append(verify_listed(version, asked.directories))
        if inspected[-1].report.is_sound:
            break
    return inspected


@dataclass(frozen=True, slots=True)
class _Survey:
    """What a walk over the source found; ``empty_steps`` hold no version of the component."""

    source: str
    component: str | None
    versions: tuple[Version, ...]
    empty_steps: tuple[int, ...] = ()

    @property
    def emptiness(self) -> str:
        return f"holds no metadata and no rank files{f' of {self.component}' if self.component else ''}"

    def empty_issues(self) -> list[Issue]:
        return [Issue(f"step {step}", self.emptiness, code=EMPTY_STEP) for step in self.empty_steps]


class _Source:
    """One walk over a source: what was asked for, and the directories met on the way."""

    def __init__(self, source: str | Path, component: str | None) -> None:
        self.asked = os.fspath(source)
        self.component = component
        self.directories = Directories()

    def survey(self) -> _Survey:
        # Links are followed once, here, so that all files of a version come from one directory, and a link named
        # ``latest`` leads to a step.
        root = os.path.realpath(self.asked)
        listing = self.directories.listing(root)
        if listing is None:
            what = "is no directory" if os.path.lexists(root) else "no such directory"
            raise VersionNotFound(f"{self.asked}: {what}")
        if not listing.steps:
            return self._survey_place(root, listing)
        if listing.unique_ids:
            newest = step_name(listing.steps[-1])
            raise VersionNotFound(f"{self.asked}: holds rank files and {newest} side by side; name one of the two")
        return self._survey_run(root, listing)

    def _survey_run(self, root: str, run: Listing) -> _Survey:
        """A run directory: every step that is still there when its turn comes (a trainer deletes the oldest)."""
        steps = dict(self._step_listings(root, run.steps))
        marks = RunMarks.of(steps.values())
        places = {place for listing in steps.values() for place in listing.places}
        chosen = choose_component(places, self.component, self.asked)
        versions, empty_steps = list[Version](), list[int]()
        for step, listing in steps.items():
            found = self._versions_of(os.path.join(root, step_name(step)), step, listing, chosen, marks)
            versions += found
            if not found:
                empty_steps.append(step)
        return _Survey(self.asked, chosen, newest_first(versions), tuple(sorted(empty_steps)))

    def _survey_place(self, root: str, listing: Listing) -> _Survey:
        """A single step, a component of one, or a directory of rank files: named by its own path."""
        parent, name = os.path.split(root)
        if name in COMPONENTS and not listing.components:
            if self.component not in (None, name):
                raise VersionNotFound(f"{self.asked}: holds {name}, not {self.component}")
            step = parse_step_name(os.path.basename(parent))
            marks = self._marks_around(parent, step)
            versions = [Version(self.asked, step, unique_id, name, root, marks) for unique_id in listing.unique_ids]
            return _Survey(self.asked, name, newest_first(versions))
        chosen = choose_component(listing.places, self.component, self.asked)
        step = parse_step_name(name)
        versions = self._versions_of(root, step, listing, chosen, self._marks_around(root, step))
        return _Survey(self.asked, chosen, newest_first(versions))

    def _versions_of(
        self, directory: str, step: int | None, listing: Listing, component: str | None, marks: RunMarks
    ) -> list[Version]:
        """The versions of one step directory, as far as they belong to ``component``."""
        held: Listing | None = listing
        if component is not None:
            directory = os.path.join(directory, component)
            held = self.directories.listing(directory) if component in listing.components else None
        unique_ids = () if held is None else held.unique_ids
        return [Version(self.asked, step, unique_id, component, directory, marks) for unique_id in unique_ids]

    def _marks_around(self, directory: str, step: int | None) -> RunMarks:
        """The marks of the run that a step belongs to, so that a step is judged alike whichever path led to it."""
        own = self.directories.listing(directory) or Listing()
        if step is None:
            return RunMarks.of([own])
        run_directory = os.path.dirname(directory)
        try:
            run = self.directories.listing(run_directory) or Listing()
        except StorageError as error:
            if error.errno not in (errno.EACCES, errno.EPERM):
                raise
            run = Listing()  # only the step was opened to us
        return RunMarks.of([own, *(listing for _, listing in self._step_listings(run_directory, run.steps))])

    def _step_listings(self, run_directory: str, steps: Iterable[int]) -> Iterator[tuple[int, Listing]]:
        for step in steps:
            listing = self.directories.listing(os.path.join(run_directory, step_name(step)))
            if listing is not None:
                yield step, listing


def _nothing_there(survey: _Survey, step: int | None, unique_id: int | None) -> VersionNotFound | VersionIncomplete:
    """The refusal where no version has the names that were asked."""
    empty = survey.empty_issues()
    if step is not None and step in survey.empty_steps:
        return VersionIncomplete(f"{survey.source}: {step_name(step)} {survey.emptiness}")
    if not survey.versions:
        return VersionNotFound(f"{survey.source}: {survey.emptiness}", empty)
    asked = " and ".join(f"{name} {value}" for name, value in (("step", step), ("id", unique_id)) if value is not None)
    there = ", ".join(version.label for version in survey.versions[:MOST_NAMED])
    more = len(survey.versions) - MOST_NAMED
    return VersionNotFound(
        f"{survey.source}: no version with {asked}; there are {there}{f' and {more} more' if more > 0 else ''}", empty
    )
