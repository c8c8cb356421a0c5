"""Operate: move an alias, take it back, keep a release: what an operator asks for, each a run that can be looked up."""

from __future__ import annotations

from prefect import flow

from ckptcore.aliasing import Moved
from ckptcore.errors import CheckpointError
from ckptcore.pinning import Pinned
from ckptcore.pipeline_fields import Alias, Name, PathText
from tasks.ending import ended_by
from tasks.operate import move, pin_release, take_back


@flow(name="promote", flow_run_name="{name}@{alias} -> {release}")
def promote(
    registry: PathText, name: Name, release: Name, alias: Alias, expect_current: str | None = None, reason: str = ""
) -> Moved:
    """Point an alias to a release.

    Args:
        registry: The directory that holds the releases.
        name: A name in the registry.
        release: The release, or an alias that names it.
        alias: The alias to move.
        expect_current: Refuse unless the alias names this release now; empty for no such alias yet.
        reason: Why; kept in the history.
    """
    try:
        return move(registry, f"{name}@{release}", alias, expect_current, reason)
    except CheckpointError as refusal:
        refused: Moved = ended_by(refusal)
        return refused


@flow(name="rollback", flow_run_name="{name}@{alias}: rollback")
def rollback(
    registry: PathText, name: Name, alias: Alias, expect_current: str | None = None, reason: str = ""
) -> Moved:
    """Point an alias back to what it named before.

    Args:
        registry: The directory that holds the releases.
        name: A name in the registry.
        alias: The alias to move.
        expect_current: Refuse unless the alias names this release now.
        reason: Why; kept in the history.
    """
    try:
        return take_back(registry, name, alias, expect_current, reason)
    except CheckpointError as refusal:
        refused: Moved = ended_by(refusal)
        return refused


@flow(name="pin", flow_run_name="{name}@{release}: pin")
def pin(registry: PathText, name: Name, release: Name, keep: bool = True, reason: str = "") -> Pinned:
    """Keep a release, whatever the rules of a prune say, or let it go again.

    Args:
        registry: The directory that holds the releases.
        name: A name in the registry.
        release: The release, or an alias that names it.
        keep: Whether to keep it; otherwise a pin is taken off.
        reason: Why; kept in the history.
    """
    try:
        return pin_release(registry, f"{name}@{release}", keep, reason)
    except CheckpointError as refusal:
        refused: Pinned = ended_by(refusal)
        return refused
