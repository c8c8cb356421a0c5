"""The whole lifecycle as one flow: detect, verify, plan, merge, validate, pass the gates, publish.

What each step does is ``ckptcore``'s, how it shows in Prefect is ``tasks``'s. The same without Prefect is
``ckptcore.lifecycle``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from ckptcore.devices import DeviceHost
from ckptcore.errors import Busy, CheckpointError, Superseded, VersionIncomplete
from ckptcore.expecting import read_expectations
from ckptcore.gates import require_ready
from ckptcore.pipeline import CheckSettings, RunnerSettings, SourceChoice
from ckptcore.pipeline_fields import Alias, DeviceIndexes, Name, Natural, PathText, Seconds
from ckptcore.publishing import Published
from ckptcore.reconciling import fingerprint_of
from ckptcore.rules.gates import GateReport, divided
from ckptcore.rules.pipeline import run_tags, version_key, version_tag
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.versions import Version
from ckptcore.storage.local import Directories
from tasks.detect import detect
from tasks.ending import ended_by, not_yet, superseded_by
from tasks.exclusively import alone_with
from tasks.gate import gate
from tasks.gate_elsewhere import gate_elsewhere
from tasks.merge import merge
from tasks.plan import plan
from tasks.publish import publish
from tasks.step_times import steps_shown
from tasks.superseding import turn_of
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
    runner: RunnerSettings = RunnerSettings(),
    gates_deployment: str | None = None,
    gpu_devices: DeviceIndexes | None = None,
    only_forward: bool = False,
    patience_seconds: Seconds = 0.0,
    superseded: Literal["finish", "stop"] = "finish",
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
        runner: Who writes its shards: this process, or those of a cluster.
        gates_deployment: A deployment of `pass-gates` for those that need a GPU; if not given, they are passed here.
        gpu_devices: How many GPUs this host has, or which; if not given, what NVML finds.
        only_forward: Leave the alias where it names a later version of the same run.
        patience_seconds: How long to wait for a version that is not whole yet; then the run ends well, as `NotYet`, and
            so does one that meets another run of the same version which takes longer than it waits.
        superseded: Whether to stop, as `Superseded`, where the source holds a newer version that is whole.
    """
    try:
        layout = source.layout()
        gates = checks.options().gates(source.selection, keeps_tensors=layout.keeps_tensors)
        elsewhere, here = ((), gates) if gates_deployment is None else divided(gates)
        require_ready(here, DeviceHost(gpu_devices))
        expectations = read_expectations(None if source.expectations is None else Path(source.expectations))
        with steps_shown("merge-and-publish", name) as record:
            version = detect(directory or source.path, source.component, step, unique_id, patience_seconds)
            _name_this_run(name, version)
            require_turn = turn_of(version, source.path, registry, name, superseded)
            with alone_with(version, name):
                require_turn()
                verify(version, checks.deep)
                planned = plan(version, source.selection, source.max_shard_bytes, layout)
                require_turn()
                staged = merge(planned, registry, name, source.attach, runner, require_turn)
                if not staged.already_published:
                    require_turn(staged)
                    validate(staged, expectations)
                    require_turn(staged)
                passed: tuple[GateReport, ...] = ()
                if elsewhere and gates_deployment is not None:
                    passed += gate_elsewhere(staged, checks, gates_deployment, source.selection, alias)
                if here:
                    passed += gate(staged, here, alias, gpu_devices)
                return publish(staged, alias, only_forward=only_forward, took=record.totals()).after(passed)
    except Superseded as newer:
        stopped: Published = superseded_by(newer)
        return stopped
    except (VersionIncomplete, Busy) as refusal:
        if patience_seconds:
            waiting: Published = not_yet(refusal)
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
