"""What a command may change: a directory with registries and outputs, looked at before, after a fault and in the end.

Two looks are compared whatever the command was: what is visible after a fault must be what was there before or what the
undisturbed command makes of it, part by part. Nothing here knows a verb.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ckptcore import validate
from ckptcore.rules.manifest import MANIFEST_NAME
from ckptcore.rules.release import HISTORY, RELEASES, parse_history

Act = tuple[str, str, str, str]

_valid: dict[str, str] = {}
"""What validation said of a directory's content, by its digest: the same bytes are validated once."""


@dataclass(frozen=True, slots=True)
class Look:
    """A world as a reader sees it, and ``everything`` that lies there. Times are left out, whatever wrote them.

    ``parts`` gives each release, alias, output and other visible entry by its path, as a digest of what it holds;
    ``faults`` says what of it no reader should ever see.
    """

    parts: Mapping[str, str]
    history: Mapping[str, tuple[Act, ...]]
    everything: Mapping[str, str]
    faults: tuple[str, ...]


def look(world: Path) -> Look:
    parts: dict[str, str] = {}
    history: dict[str, tuple[Act, ...]] = {}
    faults: list[str] = []
    for path in _parts(world):
        at = str(path.relative_to(world))
        if path.name == HISTORY:
            acts = parse_history(path.read_bytes())
            history[at] = tuple((act.act, act.release, act.alias, act.previous) for act in acts)
            continue
        parts[at] = _digest(path)
        if path.is_symlink():
            if not (path / MANIFEST_NAME).is_file():
                faults.append(f"{at} leads to {os.readlink(path)}, where no release is")
        elif path.is_dir():
            if not (path / MANIFEST_NAME).is_file():
                faults.append(f"{at} has no {MANIFEST_NAME}")
            elif said := _said_of(path, parts[at]):
                faults.append(f"{at}: {said}")
            faults += [f"{at} holds {entry.name}, which no reader should see" for entry in path.glob(".*")]
    everything = {str(path.relative_to(world)): _digest(path) for path in _walk(world) if not path.is_dir()}
    everything |= {str(path.relative_to(world)): "directory" for path in _walk(world) if path.is_dir()}
    return Look(parts, history, everything, tuple(faults))


def visible_faults(before: Look, now: Look, reference: Look, *, may_vanish: Sequence[str] = ()) -> Iterator[str]:
    """What of ``now`` is neither as it was before nor as the undisturbed command leaves it; half of anything is."""
    yield from now.faults
    for part in sorted({*before.parts, *now.parts, *reference.parts}):
        found = now.parts.get(part)
        if found not in (before.parts.get(part), reference.parts.get(part)) and not (
            found is None and part in may_vanish
        ):
            yield f"{part} is neither as before nor as an undisturbed command makes it"
    for history in sorted({*before.history, *now.history}):
        acts, done = now.history.get(history, ()), before.history.get(history, ())
        if acts[: len(done)] != done:
            yield f"{history} lost acts: {done} became {acts}"
        elif acts != reference.history.get(history, ())[: len(acts)]:
            yield f"{history} holds {acts[len(done) :]} where the undisturbed command writes {reference.history}"


def differences(now: Look, reference: Look, *, with_history: bool = True) -> Iterator[str]:
    """How a world in the end differs from one in which nothing went wrong; leftovers included."""
    for path in sorted({*now.everything, *reference.everything}):
        found, expected = now.everything.get(path), reference.everything.get(path)
        if found != expected:
            why = "is left behind" if expected is None else "is missing" if found is None else "differs"
            yield f"{path} {why}"
    if with_history and now.history != reference.history:
        yield f"history is {dict(now.history)} instead of {dict(reference.history)}"


def _parts(world: Path) -> Iterator[Path]:
    """The visible entries: each output, each release, and whatever else a name of a registry holds."""
    for top in _entries(world):
        if not _is_registry(top):
            yield top
            continue
        for shelf in _entries(top):
            for entry in _entries(shelf):
                if entry.name == RELEASES:
                    yield from _entries(entry)
                else:
                    yield entry


def _is_registry(path: Path) -> bool:
    return path.name.startswith("registry")


def _entries(directory: Path) -> Sequence[Path]:
    return sorted(entry for entry in directory.iterdir() if not entry.name.startswith("."))


def _walk(directory: Path) -> Iterator[Path]:
    for entry in sorted(directory.iterdir()):
        yield entry
        if entry.is_dir() and not entry.is_symlink():
            yield from _walk(entry)


def _digest(path: Path) -> str:
    """What lies at ``path``, as one digest, without the times that manifests and histories record."""
    if path.is_symlink():
        return f"-> {os.readlink(path)}"
    if path.is_dir():
        inside = [(str(entry.relative_to(path)), _digest(entry)) for entry in _walk(path) if not entry.is_dir()]
        return hashlib.sha256(repr(inside).encode()).hexdigest()
    data = path.read_bytes()
    if path.name == HISTORY:
        return "history"  # compared by its acts
    if path.name == MANIFEST_NAME:
        try:
            document = json.loads(data)
        except ValueError:
            return f"broken {hashlib.sha256(data).hexdigest()}"
        document.pop("created_at", None)
        data = json.dumps(document, sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def _said_of(directory: Path, digest: str) -> str:
    if digest not in _valid:
        _valid[digest] = "; ".join(map(str, validate(directory).issues))
    return _valid[digest]
