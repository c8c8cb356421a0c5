"""Pass a release through a gate: on a device, under the user's own function, or to be signed.

Owns which module does which gate, and asking early whether it can. When gates stand open, and what becomes of a release
that fails, is ``publishing``'s.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import assert_never

from ckptcore.checking import require_device
from ckptcore.device_steps import pass_on_device
from ckptcore.devices import Claim, DeviceHost, require_devices
from ckptcore.rules.gates import DeviceCheck, EngineCheck, Gate, GateReport, Signature, SmokeTest, gpus_of
from ckptcore.signing import require_signer, sign
from ckptcore.smoke import run_smoke_test
from ckptcore.steps import tell, verb


def require_ready(gates: Iterable[Gate], host: DeviceHost = DeviceHost()) -> None:
    """Refuse now what would refuse every release, before one is written for hours.

    Raises :class:`PaddleMissing`, :class:`DevicesMissing`, :class:`SigningMissing` and :class:`SigningFailed`.
    """
    for gate in gates:
        match gate:
            case DeviceCheck() | EngineCheck():
                require_device()
            case Signature(private_key):
                require_signer(private_key)
            case SmokeTest():
                pass  # the function's module may need what only its own process sets up
            case _:
                assert_never(gate)
        if gpus_of(gate):
            require_devices(gpus_of(gate), host.indexes)


@verb("gate")
def pass_gate(gate: Gate, directory: Path, *, is_visible: bool, host: DeviceHost = DeviceHost()) -> GateReport:
    """What the gate says of the release in ``directory``. A visible one that is signed already is left as it is.

    A gate that needs devices gets them from ``host``, and waits for them. Raises :class:`ReleaseInvalid`,
    :class:`SmokeFailed` and :class:`SigningFailed`, and what the gate itself lacks.
    """
    tell(gate=type(gate).__name__, directory=str(directory))
    match gate:
        case DeviceCheck() | EngineCheck():
            with host.claimed(gpus_of(gate)) as claim:
                return pass_on_device(gate, directory, claim)
        case SmokeTest(function, timeout_seconds, gpus):
            devices: AbstractContextManager[Claim | None] = host.claimed(gpus) if gpus else nullcontext()
            with devices as lent:
                seconds = run_smoke_test(function, directory, timeout_seconds=timeout_seconds, claim=lent)
            return GateReport("smoke", function, f"{function} accepted it in {seconds:.1f} s{_on(lent)}")
        case Signature(private_key):
            was_made = sign(directory, private_key, anew=not is_visible)
            finding = "signed" if was_made else "was signed with this key already"
            return GateReport("sign", private_key, finding, changed=was_made)
        case _:
            assert_never(gate)


def _on(claim: Claim | None) -> str:
    return "" if claim is None else f" on {claim.told}"
