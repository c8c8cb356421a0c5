"""What the steps of a run took: when each began, how long it worked, what it read or wrote, and what refused it.

Pure data; ``ckptcore.steps`` measures. A step may work within another, as verify does within detect: each second is
counted once, for the innermost, so that the seconds of all steps add up.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

VERBS = ("detect", "verify", "plan", "merge", "validate", "gate", "publish")
"""The steps of the lifecycle, in their order."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """One step that is over. ``started_seconds`` counts from the start of the run, and ``own_seconds`` leaves out the
    steps within; ``size_bytes`` is 0 where the step moves no data, ``refusal`` the error's class or ""."""

    verb: str
    started_seconds: float
    seconds: float
    own_seconds: float
    size_bytes: int = 0
    refusal: str = ""


@dataclass(frozen=True, slots=True)
class VerbTotal:
    """All that the steps of one verb took."""

    seconds: float
    size_bytes: int

    def to_json(self) -> dict[str, object]:
        return {"seconds": round(self.seconds, 6), "bytes": self.size_bytes}


NOTHING_TOOK: Mapping[str, VerbTotal] = MappingProxyType({})


def totals(steps: Iterable[StepTime]) -> Mapping[str, VerbTotal]:
    """What each verb took, in the order in which the verbs first began."""
    sums: dict[str, VerbTotal] = {}
    for step in sorted(steps, key=lambda step: step.started_seconds):
        before = sums.get(step.verb, VerbTotal(0.0, 0))
        sums[step.verb] = VerbTotal(before.seconds + step.own_seconds, before.size_bytes + step.size_bytes)
    return sums


def totals_of(document: object) -> Mapping[str, VerbTotal]:
    """What :meth:`VerbTotal.to_json` wrote for each verb; what is no such total is left out."""
    if not isinstance(document, dict):
        return {}
    read = {}
    for verb, total in document.items():
        match total:
            case {"seconds": int() | float() as seconds, "bytes": int() as size_bytes}:
                # True is an int too.
                is_bool = isinstance(seconds, bool) or isinstance(size_bytes, bool)
                if not is_bool and 0 <= seconds < math.inf and size_bytes >= 0:
                    read[str(verb)] = VerbTotal(float(seconds), size_bytes)
    return read
