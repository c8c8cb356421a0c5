"""Publish: make a staged release visible, then move the alias to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from prefect.logging import get_run_logger
from prefect.runtime import flow_run

from ckptcore.publishing import Published, Staged, publish_staged
from ckptcore.rules.manifest import Manifest
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.steps import NOTHING_TOOK, VerbTotal
from ckptcore.validating import read_manifest
from tasks.artifacts import MOST_ROWS, artifact_key, cell, show_page
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def publish(
    staged: Staged,
    alias: str = DEFAULT_ALIAS,
    reason: str = "",
    only_forward: bool = False,
    took: Mapping[str, VerbTotal] | None = None,
) -> Published:
    """The published release, shown as a page. Where it stands already, nothing is done; with ``only_forward`` the alias
    stays where it names a later version. What the steps before it ``took`` is recorded with it."""
    published = publish_staged(
        staged,
        alias=alias,
        flow_run=str(flow_run.id or ""),
        reason=reason,
        only_forward=only_forward,
        took=took or NOTHING_TOOK,
    )
    done = "published" if published.did_work else "is published already:"
    get_run_logger().info("%s %s@%s at %s", done, published.name, published.release, published.path)
    manifest = read_manifest(Path(published.path))
    show_page(
        artifact_key("release", published.name),
        list(release_page(published, manifest)),
        f"{published.name}@{published.release}",
    )
    return published


def release_page(published: Published, manifest: Manifest) -> Iterator[str]:
    """Where the release is, what it was made from, and each of its files."""
    source = manifest.source
    facts = {
        "path": published.path,
        "alias": published.alias or None,
        "made from": source.path,
        "step": source.step,
        "unique_id": source.unique_id,
        "component": source.component,
        "tensors": f"{len(manifest.tensors):,}",
        "bytes": f"{sum(record.size_bytes for record in manifest.files):,}",
        "plan": manifest.plan_digest,
        "source fingerprint": source.fingerprint,
        "made at": manifest.created_at,
        "flow run": manifest.flow_run or None,
    }
    yield f"# {cell(f'{published.name}@{published.release}')}"
    yield ""
    yield "| | |"
    yield "|---|---|"
    for fact, value in facts.items():
        if value is not None:
            yield f"| {fact} | {cell(value)} |"
    yield ""
    yield "| file | bytes | SHA-256 |"
    yield "|---|---:|---|"
    for record in manifest.files[:MOST_ROWS]:
        yield f"| {cell(record.name)} | {record.size_bytes:,} | {cell(record.sha256)} |"
    left_out = len(manifest.files) - MOST_ROWS
    if left_out > 0:
        yield f"| … and {left_out:,} more | | |"
