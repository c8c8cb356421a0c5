"""Pass a release through a gate: on a device, under the user's own function, or to be signed.

Owns which module does which gate, and asking early whether it can. When gates stand open, and what becomes of a release
that fails, is ``publishing``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import assert_never

from ckptcore.checking import check_on_device, require_device, require_loaded
from ckptcore.rules.gates import DeviceCheck, Gate, GateReport, Signature, SmokeTest
from ckptcore.signing import require_signer, sign
from ckptcore.smoke import run_smoke_test
from ckptcore.steps import tell, verb


def require_ready(gates: Iterable[Gate]) -> None:
    """Refuse now what would refuse every release, before one is written for hours.

    Raises :class:`PaddleMissing`, :class:`SigningMissing` and :class:`SigningFailed`.
    """
    for gate in gates:
        match gate:
            case DeviceCheck():
                require_device()
            case Signature(private_key):
                require_signer(private_key)
            case SmokeTest():
                pass  # the function's module may need what only its own process sets up
            case _:
                assert_never(gate)


@verb("gate")
def pass_gate(gate: Gate, directory: Path, *, is_visible: bool) -> GateReport:
    """What the gate says of the release in ``directory``. A visible one that is signed already is left as it is.

    Raises :class:`ReleaseInvalid`, :class:`SmokeFailed` and :class:`SigningFailed`, and what the gate itself lacks.
    """
    tell(gate=type(gate).__name__, directory=str(directory))
    match gate:
        case DeviceCheck():
            report = check_on_device(directory)
            require_loaded(report)
            what = f"{report.tensors:,} tensors, {report.size_bytes:,} bytes"
            return GateReport("check", report.device, f"{what}, came back from {report.device} unchanged")
        case SmokeTest(function, timeout_seconds):
            seconds = run_smoke_test(function, directory, timeout_seconds=timeout_seconds)
            return GateReport("smoke", function, f"{function} accepted it in {seconds:.1f} s")
        case Signature(private_key):
            was_made = sign(directory, private_key, anew=not is_visible)
            finding = "signed" if was_made else "was signed with this key already"
            return GateReport("sign", private_key, finding, changed=was_made)
        case _:
            assert_never(gate)
