"""A listing of names becomes versions, and what is found about a version becomes its state.

Owns which names make a version, which of several is newest, which component is meant, what the trainer's signals
demand, and which findings mean that something is still missing rather than wrong. Listing directories is
``storage.local``'s work, walking them ``detect``'s, and what the files hold is ``verify``'s.
"""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from ckptcore.errors import VersionNotFound
from ckptcore.rules.fingerprint import SOURCE_CHANGED
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.layout import (
    CHECKPOINT_DONE,
    COMPONENTS,
    DEFAULT_COMPONENT,
    NAMED_COMPONENTS,
    parse_metadata_lock_name,
    parse_metadata_name,
    parse_rank_file_name,
    parse_saved_signal,
    parse_saving_signal,
    parse_step_name,
    saved_signal_name,
)
from ckptcore.rules.save_marks import COMPLETE, LOST_FILE, SAVING, parse_mark_name

MISSING_DIRECTORY = "missing-directory"
MISSING_METADATA = "missing-metadata"
MISSING_RANK_FILE = "missing-rank-file"
MISSING_SIGNAL = "missing-signal"
STILL_SAVING = "still-saving"

INCOMPLETE_CODES = frozenset(
    {MISSING_DIRECTORY, MISSING_METADATA, MISSING_RANK_FILE, MISSING_SIGNAL, STILL_SAVING, SOURCE_CHANGED}
)
"""Findings that another minute of saving may mend."""


class Entry(NamedTuple):
    """One entry of a directory. A tuple, because there may be 100,000 of them to sort."""

    name: str
    is_directory: bool


@dataclass(frozen=True, slots=True)
class Listing:
    """One directory's names, and what they say. Numbers are sorted, and so are the names under each."""

    names: frozenset[str] = frozenset()
    steps: tuple[int, ...] = ()
    components: tuple[str, ...] = ()
    unique_ids: tuple[int, ...] = ()
    rank_files: Mapping[int, tuple[str, ...]] = field(default_factory=dict)
    """The rank files of each unique_id."""
    saved_ranks: frozenset[int] = frozenset()
    saving_ranks: tuple[int, ...] = ()
    is_marked_done: bool = False
    reserved_ids: frozenset[int] = frozenset()
    """The saves that ``ckptcore.save_state_dict`` has begun and not finished."""
    finished_ids: frozenset[int] = frozenset()
    """… and those of which it says that every file is written."""
    strangers: tuple[str, ...] = ()
    """Names that say nothing about a checkpoint."""

    @property
    def places(self) -> tuple[str | None, ...]:
        """Where rank files may lie: the component directories, and None where they lie here."""
        return (*self.components, None) if self.unique_ids else self.components


def read_listing(entries: Iterable[Entry]) -> Listing:
    """The meaning of a directory's names, given sorted. A unique_id counts where any file of it exists, a lock
    included."""
    steps, unique_ids, saved, saving = list[int](), set[int](), set[int](), list[int]()
    names, components, strangers = list[str](), set[str](), list[str]()
    rank_files: dict[int, list[str]] = {}
    marked: dict[str, set[int]] = {}
    for name, is_directory in entries:
        names.append(name)
        if "0" <= name[0] <= "9":  # one look spares the many the other patterns
            if (rank_file := parse_rank_file_name(name)) is not None:
                rank_files.setdefault(rank_file.unique_id, []).append(name)
            elif (unique_id := _metadata_id(name)) is not None:
                unique_ids.add(unique_id)
            elif (mark := parse_mark_name(name)) is not None:
                marked.setdefault(mark.kind, set()).add(mark.unique_id)
            else:
                strangers.append(name)
        elif (rank := parse_saved_signal(name)) is not None:
            saved.add(rank)
        elif (rank := parse_saving_signal(name)) is not None:
            saving.append(rank)
        elif is_directory and (step := parse_step_name(name)) is not None:
            steps.append(step)
        elif is_directory and name in COMPONENTS:
            components.add(name)
        elif name != CHECKPOINT_DONE:
            strangers.append(name)
    unique_ids.update(rank_files)
    finished = frozenset(marked.get(COMPLETE, ()))
    return Listing(
        names=frozenset(names),
        steps=tuple(sorted(steps)),
        components=tuple(name for name in COMPONENTS if name in components),
        unique_ids=tuple(sorted(unique_ids)),
        rank_files={unique_id: tuple(held) for unique_id, held in rank_files.items()},
        saved_ranks=frozenset(saved),
        saving_ranks=tuple(sorted(saving)),
        is_marked_done=CHECKPOINT_DONE in names,
        reserved_ids=frozenset(marked.get(SAVING, ())) - finished,
        finished_ids=finished,
        strangers=tuple(strangers),
    )


def _metadata_id(name: str) -> int | None:
    unique_id = parse_metadata_name(name)
    return parse_metadata_lock_name(name) if unique_id is None else unique_id


@dataclass(frozen=True, slots=True)
class RunMarks:
    """Which marks of completion the run's trainer leaves: what one step has, every step needs."""

    saved_signals: bool = False
    checkpoint_done: bool = False

    @classmethod
    def of(cls, listings: Iterable[Listing]) -> RunMarks:
        """The marks that any of a run's steps has."""
        signals = done = False
        for listing in listings:
            signals = signals or bool(listing.saved_ranks)
            done = done or listing.is_marked_done
        return cls(signals, done)

    def with_those_of(self, listing: Listing) -> RunMarks:
        """These and the marks of one more step."""
        return RunMarks(self.saved_signals or bool(listing.saved_ranks), self.checkpoint_done or listing.is_marked_done)


@dataclass(frozen=True, slots=True)
class Version:
    """One save: a step and Paddle's ``unique_id``, its files in ``directory``.

    ``step`` is None where no directory is named ``checkpoint-<step>``, ``component`` None where the files lie in no
    component directory. ``source`` is the path that was asked; ``marks`` are what its run demands of a step.
    """

    source: str
    step: int | None
    unique_id: int
    component: str | None
    directory: str
    marks: RunMarks = field(default=RunMarks())

    @property
    def label(self) -> str:
        """The version for people: ``version 0 of step 100``."""
        return version_label(self.step, self.unique_id)

    def to_json(self) -> dict[str, object]:
        """The version as a JSON object."""
        return {
            "source": self.source,
            "path": self.directory,
            "step": self.step,
            "unique_id": self.unique_id,
            "component": self.component,
        }

    @property
    def run(self) -> str:
        """The directory above the steps, or, where there is no step, that of the files and their component."""
        place = self.marks_directory
        return place if self.step is None else posixpath.dirname(place)

    @property
    def marks_directory(self) -> str:
        """Where the trainer's signals of this version would lie."""
        return self.directory if self.component is None else posixpath.dirname(self.directory)


def version_label(step: int | None, unique_id: int) -> str:
    """A version for people: ``version 0 of step 100``, or ``version 0`` where its place names no step."""
    return f"version {unique_id}" if step is None else f"version {unique_id} of step {step}"


def newest_first(versions: Iterable[Version]) -> tuple[Version, ...]:
    """Sorted by step, then unique_id, the highest first; without a step counts as before every step."""
    return tuple(
        sorted(
            versions,
            key=lambda version: (-1 if version.step is None else version.step, version.unique_id),
            reverse=True,
        )
    )


def choose_component(available: Collection[str | None], wanted: str | None, where: str) -> str | None:
    """The component to read, out of those that exist; None is the files that lie in no component directory.

    ``wanted`` if given, else ``model_state`` where it exists, else the files that lie in no component, else
    ``dist_ckpt``. Any other must be named, since a trainer may write it before the weights. Raises
    :class:`VersionNotFound` where there is none of these. ``rules.pipeline.version_patterns`` says the same of events.
    """
    names = [component for component in COMPONENTS if component in available]
    there = f"there: {', '.join(names)}" if names else "there is no component directory"
    if wanted is not None:
        if wanted in names:
            return wanted
        raise VersionNotFound(f"{where}: no component {wanted!r}; {there}")
    if DEFAULT_COMPONENT in names:
        return DEFAULT_COMPONENT
    if None in available or not names:
        return None
    for name in names:
        if name not in NAMED_COMPONENTS:
            return name
    raise VersionNotFound(f"{where}: no {DEFAULT_COMPONENT}: name a component; {there}")


class StateKind(StrEnum):
    COMPLETE = "complete"
    INCOMPLETE = "incomplete"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class VersionState:
    """Whether a version can be merged, and every reason why not."""

    kind: StateKind
    reasons: tuple[Issue, ...] = ()

    @property
    def is_complete(self) -> bool:
        return self.kind is StateKind.COMPLETE


def state_of(issues: Iterable[Issue]) -> VersionState:
    """The state that findings make. While anything is missing the version is incomplete, whatever else is wrong:
    a save under way has cut files too, and only a finished one can be called damaged."""
    reasons = in_order(issues)
    if not reasons:
        return VersionState(StateKind.COMPLETE)
    codes = {issue.code for issue in reasons}
    if LOST_FILE in codes and not codes & {STILL_SAVING, SOURCE_CHANGED}:
        return VersionState(StateKind.DAMAGED, reasons)  # it was whole once: no minute of saving brings it back
    if any(issue.code in INCOMPLETE_CODES for issue in reasons):
        return VersionState(StateKind.INCOMPLETE, reasons)
    return VersionState(StateKind.DAMAGED, reasons)


def check_marks(version: Version, listing: Listing, ranks: Iterable[int]) -> tuple[Issue, ...]:
    """What the trainer's marks beside the version say against it.

    ``ranks`` are those that its metadata names. PaddleFormers 1.2.0 has ``save_signal_TMP_<rank>`` while a rank saves
    and writes ``saved_signal_<rank>`` last; ``.checkpoint_done`` only in some modes, and is demanded only there.
    """
    issues = [
        Issue(f"rank {rank} of {version.label}", f"is still saving: save_signal_TMP_{rank} exists", code=STILL_SAVING)
        for rank in listing.saving_ranks
    ]
    if version.marks.saved_signals:
        issues += [
            Issue(
                f"rank {rank} of {version.label}",
                f"{saved_signal_name(rank)} is missing, and other signals of the run exist",
                code=MISSING_SIGNAL,
            )
            for rank in sorted(set(ranks) - listing.saved_ranks)
        ]
    if version.marks.checkpoint_done and not listing.is_marked_done:
        what = f"{CHECKPOINT_DONE} is missing, and another step of the run has it"
        issues.append(Issue(version.label, what, code=MISSING_SIGNAL))
    return in_order(issues)
