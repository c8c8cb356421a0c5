"""Pass gates: let a staged release through those gates that need a device, in a pool whose machines have some.

Started by ``merge_and_publish``, which waits for the verdict and does all the rest. Nothing becomes visible here.
"""

from __future__ import annotations

from prefect import flow

from ckptcore.errors import CheckpointError
from ckptcore.pipeline import CheckSettings
from ckptcore.pipeline_fields import Alias, DeviceIndexes
from ckptcore.publishing import Staged
from ckptcore.rules.gates import GateReport, divided
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.selection import Selection
from ckptcore.verdicts import passed, verdict_of
from tasks.artifacts import MOST_ROWS
from tasks.ending import not_passed
from tasks.gate import gate
from tasks.gate_elsewhere import tell_verdict


@flow(name="pass-gates", flow_run_name="{staged.name}: {staged.release}")
def pass_gates(
    staged: Staged,
    checks: CheckSettings,
    selection: Selection = Selection(),
    alias: Alias = DEFAULT_ALIAS,
    gpu_devices: DeviceIndexes | None = None,
) -> list[GateReport]:
    """Tell whether the release passes the gates that need a device; the flow that staged it goes on from there.

    Args:
        staged: The release as it is staged, in a directory that this machine sees too.
        checks: What the release must pass.
        selection: What the release holds of its source.
        alias: The alias that is to move to it.
        gpu_devices: How many devices each host has, or which; if not given, what NVML finds.
    """
    on_devices, _ = divided(checks.options().gates(selection))
    verdict = verdict_of(lambda: gate(staged, on_devices, alias, gpu_devices), most_issues=MOST_ROWS)
    tell_verdict(verdict)
    try:
        return list(passed(verdict))
    except CheckpointError as refusal:
        refused: list[GateReport] = not_passed(refusal)
        return refused
