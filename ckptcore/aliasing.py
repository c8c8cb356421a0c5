"""Move an alias of a registry: to a release that is named, or back to what the alias named before.

Each move is one rename of a symlink, checked against what the mover expects and recorded, all under the name's lock.
Which release is the earlier one is decided in ``rules.aliases``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

from ckptcore.errors import AliasMoved, ReleaseNotFound
from ckptcore.registry import Shelf, existing_shelf, history_of, move_alias, pointed_to, releases_on, resolve
from ckptcore.rules.aliases import PROMOTE, ROLLBACK, earlier, is_recorded, trail_of
from ckptcore.rules.manifest import MANIFEST_NAME, parse_manifest
from ckptcore.rules.release import check_alias, parse_reference
from ckptcore.storage.commit import locked
from ckptcore.storage.regular_files import read_document


@dataclass(frozen=True, slots=True)
class Moved:
    """``alias`` of ``name`` names ``release`` now and named ``previous`` before ("" where there was no such alias).

    ``skipped`` are earlier releases that a rollback passed over because they are gone; ``did_work`` is False where the
    alias stood there already.
    """

    name: str
    alias: str
    release: str
    previous: str
    skipped: tuple[str, ...] = ()
    did_work: bool = True

    def to_json(self) -> dict[str, object]:
        return {field: getattr(self, field) for field in self.__slots__} | {"skipped": list(self.skipped)}


def promote(
    registry: str | os.PathLike[str],
    reference: str,
    alias: str,
    *,
    expect_current: str | None = None,
    reason: str = "",
    flow_run: str = "",
) -> Moved:
    """Point ``alias`` to what ``reference`` (``NAME@RELEASE`` or ``NAME@ALIAS``) means now.

    With ``expect_current``, only if the alias names that release ("": if there is no such alias yet). Raises
    :class:`AliasMoved` otherwise, :class:`ReleaseNotFound`, and :class:`ReleaseInvalid` where the release's manifest
    cannot be read.
    """
    check_alias(alias)
    shelf = existing_shelf(registry, parse_reference(reference).name)
    with locked(shelf.lock, wait=True):
        release = resolve(registry, reference).name
        current = _expected(shelf, alias, expect_current)
        _require_readable(shelf, release)
        if current == release and is_recorded(history_of(shelf), alias, release):
            return Moved(shelf.name, alias, release, current, did_work=False)
        move_alias(shelf, PROMOTE, alias, release, flow_run=flow_run, reason=reason)
    return Moved(shelf.name, alias, release, current)


def rollback(
    registry: str | os.PathLike[str],
    name: str,
    alias: str,
    *,
    expect_current: str | None = None,
    reason: str = "",
    flow_run: str = "",
) -> Moved:
    """Point ``alias`` of ``name`` to what it named before; called again, it goes further back.

    Releases that are gone are passed over and reported. Raises :class:`ReleaseNotFound` where nothing earlier is left,
    and otherwise as :func:`promote` does.
    """
    check_alias(alias)
    shelf = existing_shelf(registry, name)
    with locked(shelf.lock, wait=True):
        current = _expected(shelf, alias, expect_current)
        if not current:
            raise ReleaseNotFound(f"{registry}: {name} has no alias {alias!r}")
        target = earlier(trail_of(history_of(shelf), alias, current), releases_on(shelf))
        if target is None:
            raise ReleaseNotFound(f"{registry}: {name}@{alias}: no earlier release than {current} is left")
        _require_readable(shelf, target.release)
        move_alias(shelf, ROLLBACK, alias, target.release, flow_run=flow_run, reason=reason)
    return Moved(shelf.name, alias, target.release, current, target.skipped)


def _expected(shelf: Shelf, alias: str, expect_current: str | None) -> str:
    """The release that the alias names, "" for none, where the mover expects that one or does not say."""
    current = pointed_to(shelf, alias)
    if expect_current not in (None, current):
        expected, found = (release or "no such alias" for release in (expect_current or "", current))
        raise AliasMoved(f"{shelf.name}@{alias} was moved: expected {expected}, found {found}")
    return current


def _require_readable(shelf: Shelf, release: str) -> None:
    path = shelf.release(release) / MANIFEST_NAME
    parse_manifest(read_document(path), str(path))
