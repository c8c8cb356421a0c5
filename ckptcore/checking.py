"""Check on a device: every tensor of a release goes through Paddle's memory, and must come back as it was.

What a tensor becomes on a device is ``paddle``'s. Memory is bounded whatever the tensors' sizes: one block at a time is
on the device.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from ckptcore.errors import PaddleMissing, ReleaseInvalid
from ckptcore.release_reader import OpenTensor, open_tensors
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.manifest import Manifest
from ckptcore.rules.shapes import compare_specs
from ckptcore.rules.tensors import DTYPES
from ckptcore.storage.progress import ignore_progress
from ckptcore.validating import read_manifest, reread

BLOCK_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What went through which device, and every tensor that came back otherwise or never was as promised."""

    path: str
    device: str
    tensors: int
    size_bytes: int
    issues: tuple[Issue, ...]


def require_device() -> None:
    """Raise :class:`PaddleMissing`, saying how to get it, where there is no Paddle to check with.

    Paddle itself is not imported: who asks may not use a device before one is lent to it.
    """
    if find_spec("paddle") is None:
        raise PaddleMissing(
            "the check on a device needs Paddle, which is not installed: "
            "pip install 'ckptcore[paddle]' for the CPU, see the README for GPUs"
        )


def check_on_device(path: str | os.PathLike[str], *, block_bytes: int = BLOCK_BYTES) -> DeviceReport:
    """Load a release on the GPU, the CPU where there is none, tensor by tensor, and compare what comes back.

    ``block_bytes`` is the most that is on the device at a time, a whole number of elements of every dtype (16 bytes).
    A tensor is held against its digest in the manifest. Where that has none, it is held against the bytes that were
    read, and its file against the file's digest. Raises :class:`PaddleMissing`, :class:`DeviceFailed`,
    :class:`ReleaseInvalid` where the release cannot be read, and :class:`StorageError`.
    """
    require_device()
    from ckptcore.paddle import device_for_checks, free_device_memory

    directory, device = Path(path), device_for_checks()
    manifest = read_manifest(directory)
    promised = {record.spec.key: record.sha256 for record in manifest.tensors}
    issues: list[Issue] = []
    with open_tensors(directory) as tensors:
        specs = tuple(tensor.spec for tensor in tensors)
        largest = max((spec.size_bytes for spec in specs), default=0)
        buffer = np.empty(min(block_bytes, largest), np.uint8)
        try:
            for tensor in tensors:
                issues += _changes(tensor, promised.get(tensor.spec.key, ""), device, buffer)
        finally:
            free_device_memory(device)
    issues += compare_specs(manifest.specs(), specs)
    issues += _unpromised(directory, manifest)
    return DeviceReport(str(directory), device, len(specs), sum(spec.size_bytes for spec in specs), in_order(issues))


def require_loaded(report: DeviceReport) -> None:
    """Raise :class:`ReleaseInvalid` with every issue of the report, if it has any."""
    if report.issues:
        message = f"{report.path}: {len(report.issues)} mismatch(es) in the check on {report.device}"
        raise ReleaseInvalid(message, report.issues)


def _changes(
    tensor: OpenTensor, promised: str, device: str, buffer: np.ndarray[tuple[int], np.dtype[np.uint8]]
) -> Iterator[Issue]:
    from ckptcore.paddle import through_device

    spec = tensor.spec
    stored = np.dtype(DTYPES[spec.dtype].stored).newbyteorder("<")
    given, returned = hashlib.sha256(), hashlib.sha256()
    for begin in range(0, spec.size_bytes, buffer.nbytes):
        block = buffer[: spec.size_bytes - begin]
        tensor.read_into(begin, block.data)
        if not promised:
            given.update(block.data)
        # A tensor of one block has its own shape on the device, one of several is a run of elements.
        shape = spec.shape if block.nbytes == spec.size_bytes else (-1,)
        back = through_device(block.view(stored).reshape(shape), spec.dtype, device)
        returned.update(np.ascontiguousarray(back).reshape(-1).view(np.uint8).data)
    expected = promised or given.hexdigest()
    if returned.hexdigest() != expected:
        what = f"SHA-256 of {tensor.file}'s tensor after {device}"
        yield Issue(f"tensor {spec.key!r}", what, expected, returned.hexdigest(), "device-digest")


def _unpromised(directory: Path, manifest: Manifest) -> Iterator[Issue]:
    """What is wrong with the files that hold a tensor of which the manifest has no digest."""
    files = {record.file for record in manifest.tensors if not record.sha256}
    for record in manifest.files:
        if record.name in files:
            yield from reread(directory, record, ignore_progress)
