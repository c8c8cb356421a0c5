"""Plan: what a merge will do, made known by its digest. The plan itself, which can be large, does not travel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from prefect.logging import get_run_logger

from ckptcore.errors import SourceChanged
from ckptcore.merging import plan as plan_merge
from ckptcore.rules.merge_plan import DEFAULT_MAX_SHARD_BYTES, MergePlan
from ckptcore.rules.output_layout import OutputLayout
from ckptcore.rules.selection import Selection
from ckptcore.rules.sizes import format_size
from ckptcore.rules.versions import Version
from ckptcore.verifying import verify as verify_version
from tasks.artifacts import Row, artifact_key, issue_rows, refusals_shown, show_table
from tasks.lifecycle_task import lifecycle_task


@dataclass(frozen=True, slots=True)
class PlannedMerge:
    """A plan by its digest, and the choices that make it again wherever the source can be read."""

    version: Version
    selection: Selection
    max_shard_bytes: int
    layout: OutputLayout
    digest: str

    def again(self) -> MergePlan:
        """The same plan, from the headers as they are now. Raises :class:`SourceChanged` where it is not the same."""
        made = _plan(self.version, self.selection, self.max_shard_bytes, self.layout)
        if made.digest != self.digest:
            raise SourceChanged(
                f"{self.version.directory}: {self.version.label} is not what was planned: "
                f"expected plan {self.digest}, found {made.digest}"
            )
        return made


@lifecycle_task
def plan(
    version: Version,
    selection: Selection = Selection(),
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES,
    layout: OutputLayout = OutputLayout(),
) -> PlannedMerge:
    """What a merge of the version will write. Refuses a selection or layout that cannot be made; nothing is written."""
    key = artifact_key("plan", version.source)
    with refusals_shown(key):
        made = _plan(version, selection, max_shard_bytes, layout)
    size = format_size(made.bytes_out)
    get_run_logger().info("plan %s: %d shard(s), %s to write", made.digest, len(made.shards), size)
    description = f"{version.label}: {sum(1 for _ in made.tensors()):,} tensors, {size}, plan {made.digest}"
    show_table(key, [*_shard_rows(made), *issue_rows("note", made.notes)], description)
    return PlannedMerge(version, selection, max_shard_bytes, layout, made.digest)


def _plan(version: Version, selection: Selection, max_shard_bytes: int, layout: OutputLayout) -> MergePlan:
    checkpoint = verify_version(version).checkpoint
    return plan_merge(checkpoint, selection=selection, layout=layout, max_shard_bytes=max_shard_bytes)


def _shard_rows(made: MergePlan) -> Iterator[Row]:
    for shard in made.shards:
        content = f"{len(shard.tensors):,} tensors, {shard.size_bytes:,} bytes"
        yield {"kind": "shard", "where": shard.name, "finding": content}
