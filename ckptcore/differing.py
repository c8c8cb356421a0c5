"""Diff: what changed from one release to another, tensor by tensor.

Gather (headers, and the manifests' digests), decide which pairs have to be read (``rules.diff``), read those in blocks
on all cores. Digests are taken at their word: whether the bytes are still what they say is ``audit``'s to find.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import reduce
from math import prod
from operator import add
from pathlib import Path

from ckptcore.formats.element_values import difference, is_same
from ckptcore.release_reader import OpenTensor, open_tensors
from ckptcore.rules.diff import Comparison, DiffReport, Sums, compare_tables, report_diff
from ckptcore.rules.manifest import MANIFEST_NAME, TensorRecord
from ckptcore.rules.tensors import DTYPES
from ckptcore.storage.progress import OnProgress, ignore_progress
from ckptcore.validating import read_manifest

# A block's values, 8 bytes each in a few arrays, stay in a core's cache.
_BLOCK_ELEMENTS = 1 << 16
_PART_ELEMENTS = 1 << 23
"""How much of a tensor one thread takes at a time. The sums of the parts are added in order, whoever is first."""


@dataclass(frozen=True, slots=True)
class _Part:
    """A run of elements of a tensor of A and its namesake in B."""

    a: OpenTensor
    b: OpenTensor
    start: int
    stop: int

    @property
    def key(self) -> str:
        return self.a.spec.key


def unwatched(_: int) -> OnProgress:
    """For those who do not look at progress."""
    return ignore_progress


def diff(
    a: str | os.PathLike[str], b: str | os.PathLike[str], *, on_start: Callable[[int], OnProgress] = unwatched
) -> DiffReport:
    """How the tensors of the directory ``b`` differ from those of ``a``; each is a release or a merged output.

    Tensors with the same digest in both manifests are not read. ``on_start`` is told how many bytes there are to
    compare, at most twice each, and gives the callback that is told each block. Raises :class:`ReleaseNotFound`,
    :class:`ReleaseInvalid` and :class:`StorageError`.
    """
    with ExitStack() as stack:
        old = {tensor.spec.key: tensor for tensor in stack.enter_context(open_tensors(a))}
        new = {tensor.spec.key: tensor for tensor in stack.enter_context(open_tensors(b))}
        compared = compare_tables(_table(Path(a), old), _table(Path(b), new))
        pairs = [(old[spec.key], new[spec.key]) for spec, _ in compared.pairs]
        return report_diff(str(a), str(b), compared, _measured(pairs, on_start))


def compare(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> Comparison:
    """What headers and digests alone show of :func:`diff`: no value is read. Raises as that does."""
    tables = []
    for directory in map(Path, (a, b)):
        with open_tensors(directory) as tensors:
            tables.append(_table(directory, {tensor.spec.key: tensor for tensor in tensors}))
    return compare_tables(*tables)


def _table(directory: Path, tensors: Mapping[str, OpenTensor]) -> tuple[TensorRecord, ...]:
    """The tensors as their headers say, each with the digest that a manifest has for just such a tensor."""
    digests = {}
    if (directory / MANIFEST_NAME).is_file():
        digests = {record.spec: record.sha256 for record in read_manifest(directory).tensors}
    return tuple(TensorRecord(t.spec, t.file, digests.get(t.spec, "")) for t in tensors.values())


def _measured(
    pairs: Sequence[tuple[OpenTensor, OpenTensor]], on_start: Callable[[int], OnProgress]
) -> Mapping[str, Sums]:
    """The sums of each pair by its key. Values are computed only where some bytes differ, which is found out first."""
    parts = [part for a, b in pairs for part in _parts(a, b)]
    on_progress = on_start(2 * sum(map(_bytes_of, parts)))

    def differs(part: _Part) -> bool:
        found = _differs(part)
        on_progress(_bytes_of(part))
        return found

    def measure(part: _Part) -> Sums:
        found = _measure(part)
        on_progress(_bytes_of(part))
        return found

    with ThreadPoolExecutor(len(os.sched_getaffinity(0)), "ckpt-diff") as pool:
        differing = {part.key for part, found in zip(parts, pool.map(differs, parts), strict=True) if found}
        changed = [part for part in parts if part.key in differing]
        on_progress(sum(_bytes_of(part) for part in parts if part.key not in differing))
        found: dict[str, Sums] = {a.spec.key: Sums() for a, _ in pairs}
        for part, sums in zip(changed, pool.map(measure, changed), strict=True):
            found[part.key] += sums
    return found


def _bytes_of(part: _Part) -> int:
    sizes = (DTYPES[tensor.spec.dtype].itemsize for tensor in (part.a, part.b))
    return (part.stop - part.start) * sum(sizes)


def _parts(a: OpenTensor, b: OpenTensor) -> list[_Part]:
    elements = prod(a.spec.shape)
    starts = range(0, elements, _PART_ELEMENTS)
    return [_Part(a, b, start, min(start + _PART_ELEMENTS, elements)) for start in starts]


def _differs(part: _Part) -> bool:
    return part.a.spec.dtype != part.b.spec.dtype or not all(is_same(a, b) for a, b in _blocks(part))


def _measure(part: _Part) -> Sums:
    a, b = part.a.spec.dtype, part.b.spec.dtype
    return reduce(add, (difference(a_data, a, b_data, b) for a_data, b_data in _blocks(part)), Sums())


def _blocks(part: _Part) -> Iterator[tuple[memoryview, memoryview]]:
    """The data of the part in A and in B, as many elements of each; the next block overwrites the last."""
    a_size, b_size = (DTYPES[tensor.spec.dtype].itemsize for tensor in (part.a, part.b))
    a_buffer, b_buffer = (memoryview(bytearray(_BLOCK_ELEMENTS * size)) for size in (a_size, b_size))
    for start in range(part.start, part.stop, _BLOCK_ELEMENTS):
        count = min(_BLOCK_ELEMENTS, part.stop - start)
        a_data, b_data = a_buffer[: count * a_size], b_buffer[: count * b_size]
        part.a.read_into(start * a_size, a_data)
        part.b.read_into(start * b_size, b_data)
        yield a_data, b_data
