"""Gate: let a staged release be checked on a device, tried by a function of the user's, and signed."""

from __future__ import annotations

from collections.abc import Sequence

from prefect.logging import get_run_logger

from ckptcore.publishing import Staged, pass_gates
from ckptcore.rules.gates import Gate, GateReport
from ckptcore.rules.release import DEFAULT_ALIAS
from tasks.artifacts import artifact_key, refusals_shown, show_table
from tasks.device_slots import device_host
from tasks.lifecycle_task import lifecycle_task


@lifecycle_task
def gate(
    staged: Staged, gates: Sequence[Gate], alias: str = DEFAULT_ALIAS, gpu_devices: tuple[int, ...] | None = None
) -> tuple[GateReport, ...]:
    """What each gate found; a release that one refuses is shown with every issue, and thrown away unless published.

    ``gpu_devices`` are those of this host, None for what NVML finds.
    """
    key = artifact_key("gates", staged.name)
    with refusals_shown(key):
        reports = pass_gates(staged, gates, alias=alias, host=device_host(gpu_devices))
    for report in reports:
        get_run_logger().info("%s@%s: %s: %s", staged.name, staged.release, report.gate, report.finding)
    rows = [{"kind": report.gate, "where": report.by, "finding": report.finding} for report in reports]
    show_table(key, rows, f"{staged.release} passed {len(reports)} gate(s)")
    return reports
