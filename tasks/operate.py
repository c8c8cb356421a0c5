"""Operate: what moves an alias or keeps a release, one call each."""

from __future__ import annotations

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ckptcore.aliasing import Moved, promote, rollback
from ckptcore.pinning import Pinned, pin, unpin
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def move(registry: str, reference: str, alias: str, expect_current: str | None = None, reason: str = "") -> Moved:
    """What the alias names now, and named before."""
    moved = promote(
        registry, reference, alias, expect_current=expect_current, reason=reason, flow_run=str(flow_run.id or "")
    )
    return _told(moved)


@lifecycle_task
def take_back(registry: str, name: str, alias: str, expect_current: str | None = None, reason: str = "") -> Moved:
    """What the alias names now, which it named before."""
    moved = rollback(
        registry, name, alias, expect_current=expect_current, reason=reason, flow_run=str(flow_run.id or "")
    )
    return _told(moved)


@lifecycle_task
def pin_release(registry: str, reference: str, keep: bool = True, reason: str = "") -> Pinned:
    """Whether the release is pinned now."""
    act = pin if keep else unpin
    pinned = act(registry, reference, reason=reason, flow_run=str(flow_run.id or ""))
    get_run_logger().info("%s@%s is %s", pinned.name, pinned.release, "pinned" if pinned.is_pinned else "not pinned")
    return pinned


def _told(moved: Moved) -> Moved:
    get_run_logger().info("%s@%s: %s -> %s", moved.name, moved.alias, moved.previous or "nothing", moved.release)
    return moved
