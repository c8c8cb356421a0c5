"""Steps on a device: each in a process of its own, which sees the claimed devices and no others.

Nothing of the device's memory is left when a step is over, and a driver that brings its process down brings down no
more. ``python -m ckptcore.device_steps ANSWER STEP`` is that process; what a step does is the checks'.
"""

from __future__ import annotations

import json
import sys
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, assert_never

from ckptcore.apart import run_apart
from ckptcore.devices import Claim
from ckptcore.errors import DeviceFailed
from ckptcore.rules.gates import DeviceCheck, DeviceGate, EngineCheck, GateReport
from ckptcore.rules.selection import Selection
from ckptcore.verdicts import passed, verdict_of


def pass_on_device(gate: DeviceGate, directory: Path, claim: Claim) -> GateReport:
    """What the gate says of the release in ``directory``, on the claimed devices.

    Raises what the check raises, and :class:`DeviceFailed`, with the last lines of output, where its process dies.
    """
    step = json.dumps({"gate": type(gate).__name__, "settings": asdict(gate), "directory": str(directory)})
    with tempfile.TemporaryFile() as answer:
        ended = run_apart(
            "ckptcore.device_steps",
            [str(answer.fileno()), step],
            environment=claim.environment(),
            descriptors=(answer.fileno(), *claim.descriptors),
        )
        if ended.failure:
            raise DeviceFailed(f"{directory}: the check on {claim.told} {ended.failure}", ended.output)
        answer.seek(0)
        [report] = passed(json.load(answer))
    return report


def _report(gate: DeviceGate, directory: Path) -> GateReport:
    match gate:
        case DeviceCheck():
            from ckptcore.checking import check_on_device, require_loaded

            report = check_on_device(directory)
            require_loaded(report)
            what = f"{report.tensors:,} tensors, {report.size_bytes:,} bytes"
            return GateReport("check", report.device, f"{what}, came back from {report.device} unchanged")
        case EngineCheck(selection):
            from ckptcore.cross_checking import cross_check, require_same

            report = cross_check(directory, selection)
            require_same(report)
            what = f"{report.tensors:,} tensors, {report.size_bytes:,} bytes"
            finding = f"{what}, are what Paddle's own loader gives on {report.device}"
            return GateReport("engine", "paddle", finding)
        case _:
            assert_never(gate)


def _gate(step: dict[str, Any]) -> DeviceGate:
    if step["gate"] == DeviceCheck.__name__:
        return DeviceCheck()
    chosen = step["settings"]["selection"]
    return EngineCheck(
        Selection(tuple(chosen["prefixes"]), chosen["keep_prefix"], tuple(chosen["include"]), tuple(chosen["exclude"]))
    )


if __name__ == "__main__":
    answer, document = sys.argv[1:]
    step = json.loads(document)
    verdict = verdict_of(lambda: (_report(_gate(step), Path(step["directory"])),))
    with open(int(answer), "w", encoding="ascii") as told:
        json.dump(verdict, told)
