"""Gates: what a release must pass before it becomes visible or an alias moves to it.

Pure data: which gates there are, and what one reports. Passing one is ``ckptcore.gates``' work, and when is
``publishing``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from ckptcore.errors import MappingError
from ckptcore.rules.selection import Selection

DEFAULT_SMOKE_SECONDS = 600.0
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """Every tensor goes through the GPU, the CPU where there is none, and comes back with the manifest's digest."""


@dataclass(frozen=True, slots=True)
class EngineCheck:
    """Paddle's own loader, on a device, makes of the source and ``selection`` what is in the release, byte for byte.

    Tensors that a map or a cast changed have no counterpart in what Paddle loads.
    """

    selection: Selection = Selection()


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """``function``, as ``module:function``, accepts the release's directory in time, in a process of its own.

    With ``gpus`` it sees so many devices, which nobody else has, and without it those that its caller sees.
    """

    function: str
    timeout_seconds: float = DEFAULT_SMOKE_SECONDS
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Signature:
    """The release carries a signature made with the key in the PEM file ``private_key``."""

    private_key: str


DeviceGate = DeviceCheck | EngineCheck
Gate = DeviceGate | SmokeTest | Signature


def gpus_of(gate: Gate) -> int:
    """How many devices the gate needs for itself."""
    match gate:
        case DeviceCheck() | EngineCheck():
            return 1
        case SmokeTest():
            return gate.gpus
        case Signature():
            return 0
        case _:
            assert_never(gate)


def divided(gates: Iterable[Gate]) -> tuple[tuple[Gate, ...], tuple[Gate, ...]]:
    """The gates that need devices of their own, and the others, both in order; the former come first."""
    needing, others = list[Gate](), list[Gate]()
    for gate in gates:
        (needing if gpus_of(gate) else others).append(gate)
    return tuple(needing), tuple(others)


@dataclass(frozen=True, slots=True)
class GateReport:
    """A gate that was passed. ``by`` is the device, the function or the key that decided, ``finding`` one sentence.

    ``changed`` says that the release has a file more than before.
    """

    gate: str
    by: str
    finding: str
    changed: bool = False

    def to_json(self) -> dict[str, object]:
        return {"gate": self.gate, "by": self.by, "finding": self.finding, "changed": self.changed}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> GateReport:
        """What :meth:`to_json` gave."""
        return cls(**document)


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Which gates somebody asks for, as the options of a command or the parameters of a flow say it."""

    check: bool = False
    engine: bool = False
    smoke: str | None = None
    smoke_timeout_seconds: float = DEFAULT_SMOKE_SECONDS
    smoke_gpus: int = 0
    sign_key: str | None = None

    def gates(self, selection: Selection = Selection(), *, keeps_tensors: bool = True) -> tuple[Gate, ...]:
        """The gates in the order in which they are passed: what fails a check is never signed.

        ``selection`` is what the release holds of its source. Raises :class:`MappingError` where it does not hold it
        as it was and is to be compared.
        """
        if self.engine and not keeps_tensors:
            raise MappingError(
                "the check with Paddle's own loader compares tensors as they were saved: leave out the map and dtype, "
                "or the check"
            )
        wanted: tuple[Gate | None, ...] = (
            DeviceCheck() if self.check else None,
            EngineCheck(selection) if self.engine else None,
            SmokeTest(self.smoke, self.smoke_timeout_seconds, self.smoke_gpus) if self.smoke else None,
            Signature(self.sign_key) if self.sign_key else None,
        )
        return tuple(gate for gate in wanted if gate is not None)


def check_function(text: str) -> str:
    """``text``, if it reads ``module:function``, either part dotted or not. Raises ValueError."""
    if not _FUNCTION.fullmatch(text):
        raise ValueError(f"not a function: expected module:function, found {text!r}")
    return text
