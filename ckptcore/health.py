"""Health: what the values of a release say about it, tensor by tensor: NaN, infinities, the largest value, the norm.

Gather (headers), read every tensor of floating-point numbers in blocks on all cores, add up (``rules.health``). Values
are computed with in double precision, in bounded memory. Nothing is judged: whether a norm is right is for people.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from math import prod

from ckptcore.formats.element_values import vitals_of
from ckptcore.release_reader import OpenTensor, open_tensors
from ckptcore.rules.diff import has_values
from ckptcore.rules.health import HealthReport, Vitals, report_health
from ckptcore.rules.tensors import DTYPES
from ckptcore.storage.progress import OnProgress, ignore_progress

# A block's values, 8 bytes each in a few arrays, stay in a core's cache.
_BLOCK_ELEMENTS = 1 << 16
_PART_ELEMENTS = 1 << 23
"""How much of a tensor one thread takes at a time. The parts are added in order, whoever is first."""


def unwatched(_: int) -> OnProgress:
    """For those who do not look at progress."""
    return ignore_progress


@dataclass(frozen=True, slots=True)
class _Part:
    tensor: OpenTensor
    start: int
    stop: int


def health(directory: str | os.PathLike[str], *, on_start: Callable[[int], OnProgress] = unwatched) -> HealthReport:
    """The values of every floating-point tensor of ``directory``, a release or a merged output, added up.

    ``on_start`` is told how many bytes will be read and gives the callback that is told each block. Raises
    :class:`ReleaseNotFound`, :class:`ReleaseInvalid` and :class:`StorageError`.
    """
    with open_tensors(directory) as tensors:
        read = [tensor for tensor in tensors if has_values(tensor.spec.dtype)]
        on_progress = on_start(sum(tensor.spec.size_bytes for tensor in read))
        parts = [part for tensor in read for part in _parts(tensor)]
        found: dict[str, list[Vitals]] = {tensor.spec.key: [] for tensor in read}
        with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "ckpt-health") as pool:
            counted = pool.map(lambda part: Vitals.of(_blocks(part, on_progress)), parts)
            for part, vitals in zip(parts, counted, strict=True):
                found[part.tensor.spec.key].append(vitals)
        specs = [tensor.spec for tensor in tensors]
        return report_health(str(directory), specs, {key: Vitals.of(held) for key, held in found.items()})


def _parts(tensor: OpenTensor) -> Iterator[_Part]:
    elements = prod(tensor.spec.shape)
    for start in range(0, elements, _PART_ELEMENTS):
        yield _Part(tensor, start, min(start + _PART_ELEMENTS, elements))


def _blocks(part: _Part, on_progress: OnProgress) -> Iterator[Vitals]:
    spec = part.tensor.spec
    size = DTYPES[spec.dtype].itemsize
    buffer = memoryview(bytearray(min(_BLOCK_ELEMENTS, part.stop - part.start) * size))
    for start in range(part.start, part.stop, _BLOCK_ELEMENTS):
        data = buffer[: min(_BLOCK_ELEMENTS, part.stop - start) * size]
        part.tensor.read_into(start * size, data)
        yield vitals_of(data, spec.dtype)
        on_progress(len(data))
