"""Cross-check: merge the same version with Paddle's own loader, and hold every byte of a release against it.

Two programs that share no code for it, and the same bytes. How Paddle's loader must be called to be right is
``paddle_loading``'s; which tensors the release holds of its source, and under which names, is ``rules.selection``'s.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from ckptcore.checking import DeviceReport, require_device
from ckptcore.detecting import newest_verified
from ckptcore.errors import ReleaseInvalid, SourceChanged
from ckptcore.release_reader import OpenTensor, open_tensors
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.layout import metadata_name
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.manifest import SourceRecord
from ckptcore.rules.selection import Selection, select
from ckptcore.rules.shapes import compare_specs
from ckptcore.rules.tensors import TensorSpec
from ckptcore.storage.leases import held_if_possible
from ckptcore.storage.refusals import reported
from ckptcore.validating import read_manifest

_BLOCK_BYTES = 16 << 20


def cross_check(
    path: str | os.PathLike[str], selection: Selection = Selection(), *, room_bytes: int | None = None
) -> DeviceReport:
    """Compare a release with what Paddle makes of the version that it was made from.

    ``selection`` is what the release holds of it, and ``room_bytes`` the most that is on the device at a time, or the
    largest tensor; half of the device, if not given. Each time Paddle reads the rank files anew, and needs host memory
    for all of them at once. Raises :class:`PaddleMissing`, :class:`EngineFailed` where Paddle cannot load the
    version, :class:`DeviceFailed`, :class:`SourceChanged` where the version is not there any more as it was merged,
    :class:`ReleaseInvalid` where the release cannot be read, and what verifying a version raises.
    """
    require_device()
    from ckptcore.paddle import device_for_checks, free_device_memory
    from ckptcore.paddle_loading import load_tensors, room_on

    directory, device = Path(path), device_for_checks()
    room = room_on(device) if room_bytes is None else room_bytes
    source = read_manifest(directory).source
    issues: list[Issue] = []
    with held_if_possible(Path(source.path) / metadata_name(source.unique_id)):
        checkpoint = _as_it_was(source)
        selected = select([tensor.spec for tensor in checkpoint.tensors], selection)
        key_of = {output.key: output.regions[0].source for output in selected}
        with open_tensors(directory) as tensors, _view_of(checkpoint) as view:
            specs = [tensor.spec for tensor in tensors]
            issues += compare_specs([output.spec for output in selected], specs)
            # What differs in shape or dtype, or is there once only, is said already.
            expected = {output.key: output.spec for output in selected}
            common = {tensor.spec.key: tensor for tensor in tensors if expected.get(tensor.spec.key) == tensor.spec}
            wanted = [TensorSpec(key_of[name], each.spec.dtype, each.spec.shape) for name, each in common.items()]
            by_source = {key_of[name]: each for name, each in common.items()}
            try:
                for group in _in_groups(wanted, room):
                    loaded = load_tensors(view, source.unique_id, group, device)
                    for spec in group:
                        issues += _difference(by_source[spec.key], loaded.pop(spec.key))
            finally:
                free_device_memory(device)
        _as_it_was(source)
    return DeviceReport(str(directory), device, len(common), sum(spec.size_bytes for spec in wanted), in_order(issues))


def require_same(report: DeviceReport) -> None:
    """Raise :class:`ReleaseInvalid` with every issue of the report, if it has any."""
    if report.issues:
        message = f"{report.path}: {len(report.issues)} tensor(s) are not what Paddle's own loader gives"
        raise ReleaseInvalid(message, report.issues)


def _in_groups(specs: Sequence[TensorSpec], room_bytes: int | None) -> Iterator[Sequence[TensorSpec]]:
    group: list[TensorSpec] = []
    filled = 0
    for spec in specs:
        if group and room_bytes is not None and filled + spec.size_bytes > room_bytes:
            yield group
            group, filled = [], 0
        group.append(spec)
        filled += spec.size_bytes
    if group:
        yield group


def _as_it_was(source: SourceRecord) -> LocatedCheckpoint:
    checkpoint = newest_verified(source.path, unique_id=source.unique_id).checkpoint
    if checkpoint.fingerprint.digest != source.fingerprint:
        raise SourceChanged(f"{source.path}: version {source.unique_id} is not the one that was merged any more")
    return checkpoint


@contextmanager
def _view_of(checkpoint: LocatedCheckpoint) -> Iterator[str]:
    """A directory with links to this version's files and nothing else: Paddle takes what else ends like its names."""
    with tempfile.TemporaryDirectory(prefix="ckpt-view-") as view:
        with reported("cannot make links in", view):
            for stamp in checkpoint.fingerprint.files:
                os.symlink(os.path.abspath(os.path.join(checkpoint.directory, stamp.name)), Path(view, stamp.name))
        yield view


def _difference(held: OpenTensor, loaded: np.ndarray[tuple[int], np.dtype[np.uint8]]) -> Sequence[Issue]:
    """The first byte in which the release differs, if there is one."""
    spec, where = held.spec, f"tensor {held.spec.key!r}"
    if loaded.nbytes != spec.size_bytes:
        expected, found = f"{loaded.nbytes:,} bytes", f"{spec.size_bytes:,} bytes"
        return [Issue(where, "Paddle's own loader gives another size", expected, found, "engine-size")]
    buffer = np.empty(min(_BLOCK_BYTES, spec.size_bytes), np.uint8)
    for begin in range(0, spec.size_bytes, _BLOCK_BYTES):
        block = buffer[: spec.size_bytes - begin]
        held.read_into(begin, block.data)
        wrong = np.flatnonzero(block != loaded[begin : begin + block.nbytes])
        if wrong.size:
            at = int(wrong[0])
            expected, found = f"{loaded[begin + at]:#04x} as Paddle gives", f"{block[at]:#04x} in {held.file}"
            return [Issue(where, f"byte {begin + at:,}", expected, found, "engine-bytes")]
    return ()
