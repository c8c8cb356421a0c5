"""Gates: what a release must pass before it becomes visible or an alias moves to it.

Pure data: which gates there are, and what one reports. Passing one is ``ckptcore.gates``' work, and when is
``publishing``'s.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

DEFAULT_SMOKE_SECONDS = 600.0
_FUNCTION = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """Every tensor goes through the GPU, the CPU where there is none, and comes back with the manifest's digest."""


@dataclass(frozen=True, slots=True)
class SmokeTest:
    """``function``, as ``module:function``, accepts the release's directory in time, in a process of its own."""

    function: str
    timeout_seconds: float = DEFAULT_SMOKE_SECONDS


@dataclass(frozen=True, slots=True)
class Signature:
    """The release carries a signature made with the key in the PEM file ``private_key``."""

    private_key: str


Gate = DeviceCheck | SmokeTest | Signature


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


@dataclass(frozen=True, slots=True)
class GateOptions:
    """Which gates somebody asks for, as the options of a command or the parameters of a flow say it."""

    check: bool = False
    smoke: str | None = None
    smoke_timeout_seconds: float = DEFAULT_SMOKE_SECONDS
    sign_key: str | None = None

    def gates(self) -> tuple[Gate, ...]:
        """The gates in the order in which they are passed: what fails a check is never signed."""
        smoke = self.smoke and SmokeTest(self.smoke, self.smoke_timeout_seconds)
        sign = self.sign_key and Signature(self.sign_key)
        return tuple(gate for gate in (DeviceCheck() if self.check else None, smoke, sign) if gate)


def check_function(text: str) -> str:
    """``text``, if it reads ``module:function``, either part dotted or not. Raises ValueError."""
    if not _FUNCTION.fullmatch(text):
        raise ValueError(f"not a function: expected module:function, found {text!r}")
    return text
