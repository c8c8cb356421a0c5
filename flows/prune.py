"""Prune: remove what the pipeline's rules of retention do not keep."""

from __future__ import annotations

from collections.abc import Mapping

from prefect import flow

from ckptcore.errors import CheckpointError, ReleaseNotFound
from ckptcore.pipeline import Pipeline
from ckptcore.retaining import Pruned
from ckptcore.rules.retention import digest_of_dropped
from tasks.ending import ended_by
from tasks.prune import prune as prune_name


@flow(name="prune", flow_run_name="{pipeline.name}: prune")
def prune(pipeline: Pipeline, dry_run: bool = False, expect: Mapping[str, str] | None = None) -> dict[str, Pruned]:
    """Remove the releases that no rule keeps, of each name of the pipeline that has any.

    Args:
        pipeline: The pipeline as its file describes it.
        dry_run: Show what would go, and remove nothing.
        expect: The digest of what goes of each name, as a dry run shows it; a name that is left out loses nothing.
            Where anything else would go of a name by now, nothing of it does, and the run is refused.
    """
    pruned: dict[str, Pruned] = {}
    try:
        for name in pipeline.names:
            try:
                pruned[name] = prune_name(
                    pipeline.registry,
                    name,
                    pipeline.retention.rules(),
                    dry_run,
                    f"retention of {pipeline.name}",
                    None if expect is None else expect.get(name, digest_of_dropped(())),
                )
            except ReleaseNotFound:
                continue  # nothing is published yet
    except CheckpointError as refusal:
        refused: dict[str, Pruned] = ended_by(refusal)
        return refused
    return pruned
