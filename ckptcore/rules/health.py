"""The health of tensors by their values: how many are no numbers, how large the largest is, and the norm.

Owns what the counts of blocks add up to, and which tensor is sick. Reading is ``health``'s work.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ckptcore.rules.shard_layout import natural_key
from ckptcore.rules.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class Vitals:
    """What was counted over some elements of a tensor; ``largest`` and ``norm`` are over its finite elements.

    A complex element counts once, as NaN if either part is, and is as large as its magnitude. ``norm`` is the root of
    the sum of squares; infinite where no double holds it.
    """

    elements: int = 0
    nan: int = 0
    inf: int = 0
    largest: float = 0.0
    norm: float = 0.0

    @classmethod
    def of(cls, parts: Iterable[Vitals]) -> Vitals:
        """The parts of a tensor as one."""
        held = tuple(parts)
        return cls(
            sum(part.elements for part in held),
            sum(part.nan for part in held),
            sum(part.inf for part in held),
            max((part.largest for part in held), default=0.0),
            # It neither overflows on the way nor loses more than the last digit, however many there are.
            math.hypot(*(part.norm for part in held)),
        )


@dataclass(frozen=True, slots=True)
class TensorHealth:
    """One tensor of real or complex floating-point numbers. ``norm`` is None where no double holds it."""

    spec: TensorSpec
    nan: int
    inf: int
    absmax: float
    norm: float | None

    @classmethod
    def of(cls, spec: TensorSpec, vitals: Vitals) -> TensorHealth:
        norm = vitals.norm if math.isfinite(vitals.norm) else None
        return cls(spec, vitals.nan, vitals.inf, vitals.largest, norm)

    @property
    def is_sound(self) -> bool:
        return not self.nan and not self.inf

    def __str__(self) -> str:
        norm = "too large for a double" if self.norm is None else f"{self.norm:.6g}"
        return f"{self.spec.key}  {self.nan:,} NaN, {self.inf:,} Inf, absmax {self.absmax:.6g}, norm {norm}"

    def to_json(self) -> dict[str, object]:
        spec = self.spec
        place = {"key": spec.key, "dtype": spec.dtype, "shape": list(spec.shape)}
        return place | {"nan": self.nan, "inf": self.inf, "absmax": self.absmax, "norm": self.norm}


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The tensors of ``directory`` that hold floating-point numbers, in natural order; ``others`` counts the rest."""

    directory: str
    tensors: tuple[TensorHealth, ...]
    others: int

    @property
    def sick(self) -> tuple[TensorHealth, ...]:
        """Those with NaN or Inf."""
        return tuple(tensor for tensor in self.tensors if not tensor.is_sound)

    @property
    def norm(self) -> float | None:
        """Of all finite elements together; None where no double holds it."""
        norms = [tensor.norm for tensor in self.tensors]
        whole = math.hypot(*(norm for norm in norms if norm is not None))
        return None if None in norms or not math.isfinite(whole) else whole

    def lines(self) -> Iterator[str]:
        """The report for people: a line a tensor, then the sum."""
        for tensor in self.tensors:
            yield str(tensor)
        others = f", {self.others:,} of other dtypes not looked at" if self.others else ""
        yield f"{len(self.tensors):,} tensors read, {len(self.sick):,} with NaN or Inf{others}"

    def to_json(self) -> dict[str, object]:
        tensors = [tensor.to_json() for tensor in self.tensors]
        return {"directory": self.directory, "others": self.others, "norm": self.norm, "tensors": tensors}


def report_health(directory: str, specs: Sequence[TensorSpec], vitals: Mapping[str, Vitals]) -> HealthReport:
    """The report over ``specs``, of which those in ``vitals`` were read."""
    found = [TensorHealth.of(spec, vitals[spec.key]) for spec in specs if spec.key in vitals]
    found.sort(key=lambda tensor: (natural_key(tensor.spec.key), tensor.spec.key))
    return HealthReport(directory, tuple(found), len(specs) - len(found))
