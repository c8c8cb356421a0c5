"""Pins: mark a release as one that no prune may remove, whatever its rules say.

A pin is an empty file ``.pins/RELEASE`` of the name; who pinned it and why is in the history.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass

from ckptcore.errors import ReleaseNotFound
from ckptcore.registry import Shelf, existing_shelf, history_of, is_release, pointed_to, record
from ckptcore.rules.release import Act, parse_reference
from ckptcore.storage.commit import locked, make_directory, remove_tree, sync_directory, write_file
from ckptcore.storage.refusals import reported

PIN = "pin"
UNPIN = "unpin"


@dataclass(frozen=True, slots=True)
class Pinned:
    """Whether ``release`` of ``name`` is pinned now; ``did_work`` is False where that was so before."""

    name: str
    release: str
    is_pinned: bool
    did_work: bool

    def to_json(self) -> dict[str, object]:
        return {field: getattr(self, field) for field in self.__slots__}


def pin(registry: str | os.PathLike[str], reference: str, *, reason: str = "", flow_run: str = "") -> Pinned:
    """Keep the release that ``reference`` means now until :func:`unpin`, and record it.

    Raises :class:`ReleaseNotFound`, :class:`InvalidName` and :class:`StorageError`.
    """
    return _set(registry, reference, True, reason, flow_run)


def unpin(registry: str | os.PathLike[str], reference: str, *, reason: str = "", flow_run: str = "") -> Pinned:
    """Undo :func:`pin`, and record it; a release that is not pinned stays as it is."""
    return _set(registry, reference, False, reason, flow_run)


def pins_on(shelf: Shelf) -> frozenset[str]:
    """The releases that are pinned now, whether they exist or not."""
    if not shelf.pins.is_dir():
        return frozenset()
    with reported("cannot list", shelf.pins):
        return frozenset(os.listdir(shelf.pins))


def _set(registry: str | os.PathLike[str], reference: str, wanted: bool, reason: str, flow_run: str) -> Pinned:
    asked = parse_reference(reference)
    shelf = existing_shelf(registry, asked.name)
    with locked(shelf.lock, wait=True):
        release = pointed_to(shelf, asked.ref) or asked.ref
        is_pinned = release in pins_on(shelf)
        if not is_release(shelf.release(release)) and (wanted or not is_pinned):
            raise ReleaseNotFound(f"{registry}: {reference}: no release or alias {asked.ref!r}")
        # A process that was killed in between has left the pin as it should be, and the act unrecorded.
        if is_pinned == wanted and _is_recorded(history_of(shelf), release, wanted):
            return Pinned(shelf.name, release, wanted, did_work=False)
        if is_pinned != wanted:
            _write(shelf, release, wanted)
        record(shelf, PIN if wanted else UNPIN, release, reason=reason, flow_run=flow_run)
    return Pinned(shelf.name, release, wanted, did_work=True)


def _write(shelf: Shelf, release: str, wanted: bool) -> None:
    if wanted:
        make_directory(shelf.pins)
        write_file(shelf.pins / release, b"")
    else:
        remove_tree(shelf.pins / release)
    sync_directory(shelf.pins)


def _is_recorded(history: Sequence[Act], release: str, wanted: bool) -> bool:
    acts = (act.act for act in reversed(history) if act.release == release and act.act in (PIN, UNPIN))
    return next(acts, UNPIN) == (PIN if wanted else UNPIN)
