"""Prune: remove the releases that no rule keeps, each taken out of sight before its files go.

Gather (what lies in ``releases/`` and who needs it), decide (``rules.retention``), act. Planning reads names, the
history and one lock a release, never a manifest, so that 10,000 releases are planned within a second.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ckptcore.clock import seconds_of
from ckptcore.pinning import pins_on
from ckptcore.registry import Shelf, existing_shelf, history_of, is_release, links_on, record
from ckptcore.rules.manifest import MANIFEST_NAME
from ckptcore.rules.release import Act, parse_release_name
from ckptcore.rules.retention import PRUNE, ListedRelease, RetentionPlan, Rule, Verdict, last_published, plan_retention
from ckptcore.storage.commit import locked
from ckptcore.storage.leases import alone, is_held
from ckptcore.storage.local import GONE
from ckptcore.storage.refusals import reported
from ckptcore.storage.trash import destroy, throw_away, thrown_away


@dataclass(frozen=True, slots=True)
class Pruned:
    """What a prune planned and did.

    ``removed`` is gone, ``spared`` was to go and is needed since, ``finished`` was left by a prune that was killed.
    """

    plan: RetentionPlan
    removed: tuple[str, ...] = ()
    spared: tuple[Verdict, ...] = ()
    finished: tuple[str, ...] = ()

    def to_json(self) -> dict[str, object]:
        return {
            "plan": [verdict.to_json() for verdict in self.plan.verdicts],
            "removed": list(self.removed),
            "spared": [verdict.to_json() for verdict in self.spared],
            "finished": list(self.finished),
        }


def unwatched(_: RetentionPlan) -> None:
    """For those who do not look at the plan first."""


def list_releases(registry: str | os.PathLike[str], name: str) -> tuple[ListedRelease, ...]:
    """Everything in ``releases/`` of ``name`` and who needs it now, in the order of publication.

    What the history does not know was published by a process that was killed before it could say so, and counts as
    newest, with its directory's time. Raises :class:`ReleaseNotFound` and :class:`StorageError`.
    """
    shelf = existing_shelf(registry, name)
    published = last_published(history_of(shelf))
    positions = {release: position for position, release in enumerate(published)}
    pins, named = pins_on(shelf), _aliases_by_release(shelf)
    with reported("cannot list", shelf.releases), os.scandir(shelf.releases) as entries:
        found = (_listed(entry, published.get(entry.name), pins, named) for entry in entries)
        listed = [release for release in found if release is not None]

    def order(release: ListedRelease) -> tuple[int, float, int, int, str]:
        step = -1 if release.step is None else release.step
        unknown = release.published_at if release.name not in positions else 0.0
        return positions.get(release.name, len(positions)), unknown, step, release.unique_id or 0, release.name

    return tuple(sorted(listed, key=order))


def plan_prune(registry: str | os.PathLike[str], name: str, rules: Sequence[Rule]) -> RetentionPlan:
    """What :func:`prune` would keep and drop now; nothing is changed."""
    return plan_retention(list_releases(registry, name), rules, time.time())


def prune(
    registry: str | os.PathLike[str],
    name: str,
    rules: Sequence[Rule],
    *,
    dry_run: bool = False,
    reason: str = "",
    flow_run: str = "",
    on_plan: Callable[[RetentionPlan], None] = unwatched,
) -> Pruned:
    """Remove the releases of ``name`` that no rule keeps; with ``dry_run`` only plan. ``on_plan`` is told the plan.

    Each release is looked at once more under the name's lock, so that one which was promoted, pinned or leased since is
    spared, and is renamed into ``.trash/`` before its files go. Killed anywhere, the next prune finishes what is left.
    A second prune of the name waits for the first. Raises :class:`InvalidRetention`, :class:`ReleaseNotFound` and
    :class:`StorageError`.
    """
    if dry_run:
        plan = plan_prune(registry, name, rules)
        on_plan(plan)
        return Pruned(plan)
    shelf = existing_shelf(registry, name)
    with locked(shelf.root / ".prune.lock", wait=True):
        plan = plan_prune(registry, name, rules)
        on_plan(plan)
        finished = _finish(shelf, reason, flow_run)
        removed, spared = list[str](), list[Verdict]()
        for release in plan.dropped:
            holders = _take_away(shelf, release, reason, flow_run)
            if holders:
                spared.append(Verdict(release, holders))
                continue
            destroy(shelf.trash, release)
            removed.append(release)
    return Pruned(plan, tuple(removed), tuple(spared), finished)


def _aliases_by_release(shelf: Shelf) -> Mapping[str, tuple[str, ...]]:
    """Which links lead to which release; one that names it by another path, which is no alias, keeps it as well."""
    named: dict[str, tuple[str, ...]] = {}
    for alias, text in links_on(shelf).items():
        release = os.path.basename(text)
        named[release] = (*named.get(release, ()), alias)
    return named


def _listed(
    entry: os.DirEntry[str], published: Act | None, pins: frozenset[str], named: Mapping[str, tuple[str, ...]]
) -> ListedRelease | None:
    """One entry, with the least that has to be asked of the file system; None where it was removed meanwhile."""
    name, manifest = entry.name, os.path.join(entry.path, MANIFEST_NAME)
    version = parse_release_name(name)
    is_recognised = version is not None and entry.is_dir(follow_symlinks=False) and os.path.isfile(manifest)
    published_at = seconds_of(published.at) if published is not None else None
    try:
        is_leased = is_recognised and is_held(manifest)
        if published_at is None:
            published_at = entry.stat(follow_symlinks=False).st_mtime
    except OSError as error:
        if error.errno in GONE:
            return None
        raise
    return ListedRelease(
        name=name,
        published_at=published_at,
        step=version.step if version is not None else None,
        unique_id=version.unique_id if version is not None else None,
        aliases=named.get(name, ()),
        is_pinned=name in pins,
        is_leased=is_leased,
        is_recognised=is_recognised,
    )


def _finish(shelf: Shelf, reason: str, flow_run: str) -> tuple[str, ...]:
    """Record and delete what a killed prune has taken out of sight."""
    left = thrown_away(shelf.trash)
    for release in left:
        with locked(shelf.lock, wait=True):
            # One that was published again since is not to be recorded as gone.
            if release in last_published(history_of(shelf)) and not is_release(shelf.release(release)):
                record(shelf, PRUNE, release, reason=reason, flow_run=flow_run)
        destroy(shelf.trash, release)
    return left


def _take_away(shelf: Shelf, release: str, reason: str, flow_run: str) -> tuple[str, ...]:
    """Make a release invisible, unless it is needed by now: then gives who needs it."""
    with locked(shelf.lock, wait=True):
        holders = (
            *(f"alias {alias}" for alias in _aliases_by_release(shelf).get(release, ())),
            *(["pinned"] if release in pins_on(shelf) else []),
        )
        if not is_release(shelf.release(release)):
            return ("gone already",)
        with alone(shelf.release(release) / MANIFEST_NAME) as is_free:
            if not is_free:
                holders = (*holders, "leased")
            if not holders:
                throw_away(shelf.release(release), shelf.trash)
                record(shelf, PRUNE, release, reason=reason, flow_run=flow_run)
    return holders
