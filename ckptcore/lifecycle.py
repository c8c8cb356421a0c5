"""The whole lifecycle in one call, without Prefect: detect, verify, plan, merge, validate, publish.

The flow in ``flows/merge_and_publish.py`` chains the same verbs as tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckptcore.detecting import newest_verified
from ckptcore.errors import CheckpointError
from ckptcore.gates import require_ready
from ckptcore.mappings import companions_of
from ckptcore.merging import plan
from ckptcore.publishing import Published, Staged, discard, pass_gates, publish_staged, settled, stage
from ckptcore.rules.gates import Gate
from ckptcore.rules.merge_plan import DEFAULT_MAX_SHARD_BYTES, MergePlan
from ckptcore.rules.output_layout import OutputLayout
from ckptcore.rules.release import DEFAULT_ALIAS, check_alias
from ckptcore.rules.selection import Selection
from ckptcore.rules.shapes import Expectation
from ckptcore.rules.validation import ValidationReport
from ckptcore.steps import recorded
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.validating import require_valid, validate
from ckptcore.verifying import Verified


@dataclass(frozen=True, slots=True)
class Choice:
    """Which version of a source to take, and what of it. ``step`` and ``unique_id`` None mean the newest complete."""

    source: str
    component: str | None = None
    step: int | None = None
    unique_id: int | None = None
    selection: Selection = Selection()
    max_shard_bytes: int = DEFAULT_MAX_SHARD_BYTES
    layout: OutputLayout = OutputLayout()

    def verified(self) -> Verified:
        return newest_verified(self.source, self.component, self.step, self.unique_id)

    def planned(self) -> MergePlan:
        """The plan for the chosen version, verified now."""
        return plan(
            self.verified().checkpoint,
            selection=self.selection,
            layout=self.layout,
            max_shard_bytes=self.max_shard_bytes,
        )


def unwatched(_: MergePlan) -> OnProgress:
    """For those who do not look at progress."""
    return ignore_progress


def run(
    choice: Choice,
    registry: str | os.PathLike[str],
    name: str,
    *,
    alias: str = DEFAULT_ALIAS,
    attach: Sequence[str | os.PathLike[str]] = (),
    expectations: Sequence[Expectation] = (),
    gates: Sequence[Gate] = (),
    on_plan: Callable[[MergePlan], OnProgress] = unwatched,
) -> Published:
    """Publish the chosen version as a release of ``name``; where that release stands already, nothing is done.

    The release must pass ``gates`` before it becomes visible or the alias moves to it. ``on_plan`` is told the plan
    and gives the callback that is told each written block.
    Raises a :class:`CheckpointError` leaf for whatever refuses it; then nothing is visible that was not before.
    """
    require_ready(gates)
    check_alias(alias)
    with recorded("run") as record:
        planned = choice.planned()
        companions = [*companions_of(planned.directory, choice.layout, attach), *attach]
        staged = stage(planned, registry, name, attach=companions, on_progress=on_plan(planned))
        if not staged.already_published:
            validate_staged(staged, expectations)
        passed = pass_gates(staged, gates, alias=alias)
        return publish_staged(staged, alias=alias, took=record.totals()).after(passed)


def validate_staged(staged: Staged, expectations: Sequence[Expectation]) -> ValidationReport:
    """Re-read a staged release; one that is not as promised is thrown away, so that the next run writes it anew.

    Where another process publishes it under the reading, it is read where it then lies.
    """
    try:
        report = validate(staged.path, expectations=expectations)
    except CheckpointError:
        moved = settled(staged)
        if moved == staged:
            raise
        return validate_staged(moved, expectations)
    if report.issues:
        moved = settled(staged)
        if moved != staged:
            return validate_staged(moved, expectations)
        discard(staged)
    require_valid(report)
    return report
