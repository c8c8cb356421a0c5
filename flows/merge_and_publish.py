"""The whole lifecycle as one flow: detect, verify, plan, merge, validate, pass the gates, publish.

What each step does is ``ckptcore``'s, how it shows in Prefect is ``tasks``'s. The same without Prefect is
``ckptcore.lifecycle``.
"""

from __future__ import annotations

from pathlib import Path

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from ckptcore.errors import CheckpointError, VersionIncomplete
from ckptcore.expecting import read_expectations
from ckptcore.gates import require_ready
from ckptcore.pipeline import CheckSettings, SourceChoice
from ckptcore.pipeline_fields import Alias, Name, Natural, PathText, Seconds
from ckptcore.publishing import Published
from ckptcore.reconciling import fingerprint_of
from ckptcore.rules.pipeline import run_tags, version_key, version_tag
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.versions import Version
from ckptcore.storage.local import Directories
from tasks.detect import detect
from tasks.ending import ended_by, too_early
from tasks.exclusively import alone_with
from tasks.gate import gate
from tasks.merge import merge
from tasks.plan import plan
from tasks.publish import publish
from tasks.step_times import steps_shown
from tasks.validate import validate
from tasks.verify import verify


@flow(name="merge-and-publish", flow_run_name="{name}")
def merge_and_publish(
    source: SourceChoice,
    registry: PathText,
    name: Name,
    alias: Alias = DEFAULT_ALIAS,
    directory: PathText | None = None,
    step: Natural | None = None,
    unique_id: Natural | None = None,
    checks: CheckSettings = CheckSettings(),
    only_forward: bool = False,
    patience_seconds: Seconds = 0.0,
) -> Published:
    """Publish a version of a training run as a release of a name. Where that release stands already, nothing is done.

    Whatever refuses it fails the run, with every issue in its message, and leaves nothing visible that was not before.

    Args:
        source: A training run, what of a version to take, and in which layout.
        registry: The directory that holds the releases.
        name: The name to publish under.
        alias: The alias to move to the release.
        directory: Of the source only the versions in this directory of rank files or step; if not given, all.
        step: The training step; if not given, the newest that is complete.
        unique_id: Paddle's unique_id; if not given, the newest that is complete.
        checks: What the release must pass before the alias moves.
        only_forward: Leave the alias where it names a later version of the same run.
        patience_seconds: How long to wait for a version that is not whole yet; then the run ends well, as `NotYet`.
    """
    gates = checks.options().gates()
    try:
        require_ready(gates)
        expectations = read_expectations(None if source.expectations is None else Path(source.expectations))
        layout = source.layout()
        with steps_shown("merge-and-publish", name) as record:
            version = detect(directory or source.path, source.component, step, unique_id, patience_seconds)
            _name_this_run(name, version)
            with alone_with(version, name):
                verify(version, checks.deep)
                planned = plan(version, source.selection, source.max_shard_bytes, layout)
                staged = merge(planned, registry, name, source.attach)
                if not staged.already_published:
                    validate(staged, expectations)
                passed = gate(staged, gates, alias) if gates else ()
                return publish(staged, alias, only_forward=only_forward, took=record.totals()).after(passed)
    except VersionIncomplete as refusal:
        if patience_seconds:
            waiting: Published = too_early(refusal)
            return waiting
        raise
    except CheckpointError as refusal:
        refused: Published = ended_by(refusal)
        return refused


def _name_this_run(name: str, version: Version) -> None:
    """Name the flow run by its version, which is known only once it is detected, and tag it, to be found by it."""
    key = version_key(name, version.directory, version.unique_id, fingerprint_of(version, Directories()))
    tags = {*flow_run.tags, version_tag(key), *run_tags(name, version.step)}
    with get_client(sync_client=True) as client:
        client.update_flow_run(flow_run.id, name=f"{name}: {version.label}", tags=tags)
