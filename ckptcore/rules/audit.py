"""Is one name of a registry in order: its aliases, its history, and nothing there that should not be.

Takes what was listed as data; listing it is ``audit``'s work. What is inside a release is ``validation``'s to judge.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

from ckptcore.rules.issues import Issue
from ckptcore.rules.json_documents import NotJson, parse_json
from ckptcore.rules.release import HISTORY, RELEASES, parse_history, release_named_by
from ckptcore.rules.retention import parse_age

STAGINGS = ".staging"
TRASH = ".trash"
PUBLICATION_TIME = timedelta(days=1)
"""How long a finished staging may wait, held by nobody, for a flow that validates and publishes it."""
_ALIAS_ASIDE = re.compile(r"\.(.+)\.new")
_NUL = b"\0"
_LEFT = {
    STAGINGS: ("is left of a publication that did not end; the same publication finishes or clears it", "staging-left"),
    TRASH: ("is left of a prune that did not end; the next prune deletes it", "trash-left"),
}


@dataclass(frozen=True, slots=True, order=True)
class FoundEntry:
    """An entry of a directory. ``kind`` is ``file``, ``directory``, ``link`` or ``something else``."""

    name: str
    kind: str


@dataclass(frozen=True, slots=True)
class FoundAlias:
    """A symlink beside the releases: its text, and whether a finished release is where it leads."""

    name: str
    target: str
    leads_to_release: bool


@dataclass(frozen=True, slots=True)
class FoundLeftover:
    """What lies in the ``place`` of a name for stagings or for trash, and whether a live process is at it.

    ``finished_at`` is when the manifest of a staging was written, or "" where it has none.
    """

    place: str
    name: str
    is_held: bool
    finished_at: str = ""


@dataclass(frozen=True, slots=True)
class FoundShelf:
    """One name of a registry as it was listed.

    ``entries`` are those beside ``releases/``, ``releases`` what lies in it whole, ``unfinished`` what lies in it
    otherwise. ``is_locked`` says that a live process is changing the name at this moment.
    """

    name: str
    entries: tuple[FoundEntry, ...]
    releases: tuple[str, ...]
    unfinished: tuple[FoundEntry, ...]
    aliases: tuple[FoundAlias, ...]
    leftovers: tuple[FoundLeftover, ...]
    history: bytes
    is_locked: bool


@dataclass(frozen=True, slots=True)
class Findings:
    """What is wrong, and what is only worth knowing."""

    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...]


@dataclass(frozen=True, slots=True)
class AuditReport:
    """What an audit read and found. ``files`` and ``size_bytes`` count those whose digests were compared.

    ``continued`` of these files were read by an earlier audit, begun at ``continued_from``, that was interrupted;
    ``skipped`` releases are older than was asked for.
    """

    registry: str
    names: int
    releases: int
    skipped: int
    files: int
    size_bytes: int
    continued: int
    continued_from: str
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...]

    def to_json(self) -> dict[str, object]:
        return {
            "registry": self.registry,
            "clean": not self.issues,
            "names": self.names,
            "releases": self.releases,
            "skipped": self.skipped,
            "files": self.files,
            "size_bytes": self.size_bytes,
            "continued": self.continued,
            "continued_from": self.continued_from,
            "issues": [issue.to_json() for issue in self.issues],
            "notes": [note.to_json() for note in self.notes],
        }


def check_shelf(found: FoundShelf, now: datetime) -> Findings:
    """Everything about a name that is not inside one of its releases."""
    issues = [*_aliases(found), *_unfinished(found), *_strays(found)]
    notes: list[Issue] = []
    for leftover in found.leftovers:
        where = f"{leftover.place}/{leftover.name}"
        if leftover.is_held:
            notes.append(Issue(where, "a live process is at work on it", code="in-progress"))
        elif leftover.finished_at and is_newer(leftover.finished_at, now - PUBLICATION_TIME):
            what = f"was finished at {leftover.finished_at}, and is to be validated and published"
            notes.append(Issue(where, what, code="in-progress"))
        else:
            what, code = _LEFT[leftover.place]
            issues.append(Issue(where, what, code=code))
    for issue, is_damage in _history(found):
        (issues if is_damage else notes).append(issue)
    return Findings(within(found.name, issues), within(found.name, notes))


def within(where: str, issues: Iterable[Issue]) -> tuple[Issue, ...]:
    """The issues of a part, as issues of the whole that ``where`` is a part of."""
    return tuple(replace(issue, where=f"{where}: {issue.where}" if issue.where else where) for issue in issues)


def parse_since(text: str, now: datetime) -> datetime:
    """The time that a date, a date with a time (UTC where it names no zone) or an age such as ``7d`` means.

    Raises ValueError with what is wrong.
    """
    if not re.match(r"[0-9]{4}-", text):
        try:
            return now - timedelta(seconds=parse_age(text))
        except OverflowError as error:
            raise ValueError(f"{text!r} is before the first year") from error
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def is_newer(created_at: str, since: datetime) -> bool:
    """Whether a manifest's time is ``since`` or later; one that cannot be read is not known to be older."""
    try:
        created = datetime.fromisoformat(created_at)
        return created >= since
    except (ValueError, TypeError):  # TypeError: it names no time zone
        return True


def _aliases(found: FoundShelf) -> Iterator[Issue]:
    for alias in found.aliases:
        release = release_named_by(alias.target)
        if not release:
            expected = f"{RELEASES}/ and a release's name"
            yield Issue(f"alias {alias.name!r}", "leads out of the releases", expected, alias.target, "alias-outside")
        elif not alias.leads_to_release:
            yield Issue(f"alias {alias.name!r}", "leads to nowhere", "a release", release, "alias-dangling")


def _unfinished(found: FoundShelf) -> Iterator[Issue]:
    for entry in found.unfinished:
        where = f"{RELEASES}/{entry.name}"
        if entry.kind == "directory":
            yield Issue(where, "is no release: it has no manifest", code="no-manifest")
        else:
            yield Issue(where, "is no release", "a directory", f"a {entry.kind}", "stray")


def _strays(found: FoundShelf) -> Iterator[Issue]:
    expected_kinds = {RELEASES: "directory", HISTORY: "file"}
    for entry in found.entries:
        expected = expected_kinds.get(entry.name)
        if entry.kind == expected:
            continue
        if expected is not None:
            yield Issue(entry.name, "is not what it should be", f"a {expected}", f"a {entry.kind}", "stray")
        elif entry.name.startswith("."):
            aside = _ALIAS_ASIDE.fullmatch(entry.name)
            if aside and entry.kind == "link" and not found.is_locked:
                what = f"was left by a killed move of the alias {aside[1]!r}; its next move removes it"
                yield Issue(entry.name, what, code="alias-left")
        elif entry.kind != "link":
            yield Issue(entry.name, f"is no part of a registry: a {entry.kind}", code="stray")


def _history(found: FoundShelf) -> Iterator[tuple[Issue, bool]]:
    """What is to say about the history, each with whether it is damage."""
    for number, line in enumerate(found.history.split(b"\n"), start=1):
        if not line or parse_history(line):
            continue
        where = f"{HISTORY} line {number}"
        if _is_cut(line):
            yield Issue(where, "was cut short by a crash; its act was not reported as done", code="history-cut"), False
        else:
            shown = line[:60].decode(errors="backslashreplace")
            yield Issue(where, "is no act", "a JSON object with at, act and release", repr(shown), "history"), True
    published = {act.release for act in parse_history(found.history) if act.act == "publish"}
    for release in sorted(set(found.releases) - published):
        what = "is visible, and its history does not say that it was published to the end"
        yield Issue(release, what, code="not-recorded"), False


def _is_cut(line: bytes) -> bool:
    """Whether it begins as an act does and ends before that act could have ended. In doubt it is damage."""
    try:
        parse_json(line)
    except NotJson:
        return line.startswith(b"{") and not line.rstrip().endswith(b"}") and _NUL not in line
    return False
