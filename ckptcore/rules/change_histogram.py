"""How much the tensors of each layer changed, counted by the powers of ten of their relative change."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from ckptcore.rules.shard_layout import natural_key

LOWEST, HIGHEST = -8, 0
"""The powers of ten that have a column of their own; the first is of what is less too, the last of 1 and more."""
BUCKETS = HIGHEST - LOWEST + 1
_EDGES = [float(f"1e{power}") for power in range(LOWEST + 1, HIGHEST + 1)]
_LAYER = re.compile(r"(?:^|.*?\.)[0-9]+(?=\.)")


@dataclass(frozen=True, slots=True)
class LayerChange:
    """One layer: how many of its tensors changed by each power of ten, and how many in no way that a number tells.

    ``counts[i]`` is of relative changes from ``10 ** (LOWEST + i)`` on; smaller ones are in the first.
    """

    layer: str
    counts: tuple[int, ...]
    unmeasured: int
    largest: float | None

    @property
    def tensor_count(self) -> int:
        return sum(self.counts) + self.unmeasured


def layer_of(key: str) -> str:
    """The layer of a tensor: up to the first number in its name, else all but the last part of it.

    ``model.layers.3`` of ``model.layers.3.mlp.experts.7.weight``, ``lm_head`` of ``lm_head.weight``.
    """
    numbered = _LAYER.match(key)
    return numbered[0] if numbered else key.rpartition(".")[0] or key


def bucket_of(relative: float) -> int:
    """The column of a relative change that is not less than 0."""
    return bisect_right(_EDGES, relative)


def by_layer(changes: Iterable[tuple[str, float | None]]) -> tuple[LayerChange, ...]:
    """The layers in natural order. Each change is a tensor's key and its relative change, None where there is none."""
    counts: dict[str, list[int]] = {}
    unmeasured: dict[str, int] = {}
    largest: dict[str, float] = {}
    for key, relative in changes:
        layer = layer_of(key)
        held = counts.setdefault(layer, [0] * BUCKETS)
        if relative is None or math.isnan(relative):
            unmeasured[layer] = unmeasured.get(layer, 0) + 1
        else:
            held[bucket_of(relative)] += 1
            largest[layer] = max(relative, largest.get(layer, 0.0))
    return tuple(
        LayerChange(layer, tuple(counts[layer]), unmeasured.get(layer, 0), largest.get(layer))
        for layer in sorted(counts, key=lambda layer: (natural_key(layer), layer))
    )
