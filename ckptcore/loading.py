"""Load a verified checkpoint into memory: whole tensors merged, or the parts of them that a process holds.

Gather (the newest verified version), decide (``rules.targets``), act: rank files are read straight into each array, by
several threads, and only the bytes that are wanted. What arrays become as Paddle tensors is ``paddle``'s, which is
imported only where Paddle tensors are asked for.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from ckptcore.detecting import newest_verified
from ckptcore.errors import MappingError, SourceChanged
from ckptcore.mappings import mapping
from ckptcore.rules.blocks import Fill
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.output_layout import OutputLayout, laid_out
from ckptcore.rules.selection import Selection
from ckptcore.rules.targets import Part
from ckptcore.rules.tensors import DTYPES
from ckptcore.storage.gather import fill
from ckptcore.storage.local import fingerprint
from ckptcore.storage.readers import ReaderPool

Array = np.ndarray[Any, np.dtype[Any]]

RUN_BYTES = 4 << 20
# Arrays that are read before the consumer asks: what it copies to a device meanwhile costs no waiting.
AHEAD_BYTES = 64 << 20
MAX_THREADS = 16


def load_merged_state_dict(
    path: str | os.PathLike[str],
    prefix: str | None = None,
    unique_id: int | None = None,
    offload: bool = False,
    safetensors: bool = False,  # noqa: ARG001 - the metadata says which kind of rank files it names
    *,
    aoa_config: Mapping[str, Sequence[str]] | None = None,
    return_numpy: bool = False,
) -> dict[str, Any]:
    """The unsharded tensors of a checkpoint, by flat key; in place of ``paddle.distributed.load_merged_state_dict``.

    ``path`` is a directory of rank files, a ``checkpoint-<step>`` or a run of such steps. ``unique_id`` None takes the
    newest complete version. ``prefix`` is a dotted group and is stripped: ``model`` takes ``model.*``, never
    ``model_ema.*``. ``aoa_config`` is a layout map in Paddle's words, which sees the stripped names. The values are
    Paddle tensors on Paddle's current device, in host memory with ``offload``; with ``return_numpy`` they are numpy
    arrays and Paddle is not needed. As in Paddle's own ``Tensor.numpy()``, bfloat16 is then raw ``uint16`` and float8
    raw ``int8``.

    Raises a :class:`CheckpointError` leaf where Paddle 3.3.1 would return zeros, another id, or fewer tensors:
    :class:`VersionNotFound`, :class:`VersionIncomplete`, :class:`VersionDamaged`, :class:`SelectionError`,
    :class:`SourceChanged`, :class:`MappingError`, :class:`UnsupportedDtype`, :class:`PaddleMissing`.
    """
    layout = OutputLayout(mapping(aoa_config) if aoa_config else None)
    if not return_numpy:
        # Before anything is read: whoever lacks Paddle learns it at once.
        from ckptcore.paddle import tensor_of
    checkpoint = newest_verified(os.fspath(path), unique_id=unique_id).checkpoint
    selection = Selection(prefixes=(prefix,) if prefix else ())
    parts = [Part.whole(output) for output in laid_out(checkpoint.tensors, selection, layout, None).outputs]
    merged: dict[str, Any] = {}
    for part, array in zip(parts, load_parts(checkpoint, parts), strict=True):
        merged[part.output.key] = array if return_numpy else tensor_of(array, part.output.dtype, on_host=offload)
    return merged


def load_state_dict(
    state_dict: Mapping[str, Any],
    path: str | os.PathLike[str],
    process_group: Any = None,
    coordinator_rank: int = 0,  # noqa: ARG001 - no rank coordinates others
    unique_id: int | None = None,
    offload: bool = False,  # noqa: ARG001 - one tensor at a time passes through host memory, always
    mw_name_compatibility: bool = True,
    aoa_config: Mapping[str, Sequence[str]] | None = None,
    safetensors: bool = False,  # noqa: ARG001 - the metadata says which kind of rank files it names
    worker_groups: Sequence[Any] | None = None,  # noqa: ARG001 - no tensor is sent between ranks
    comm_method: str = "broadcast",  # noqa: ARG001 - no tensor is sent between ranks
) -> None:
    """Fill the given Paddle tensors in place from a checkpoint; in place of ``paddle.distributed.load_state_dict``.

    ``state_dict`` may be nested; its values are tensors, sharded ones (any mesh; this rank's part is filled) or
    ``ShardedWeight`` (flattened ones too), in any mixture. ``path`` and ``unique_id`` are as in
    :func:`load_merged_state_dict`. Each rank reads the bytes of its own parts and nothing else; the ranks talk once, to
    make sure that all chose the same version and that none of them refused. Tensors of the checkpoint that
    ``state_dict`` does not name are left alone. The arguments of Paddle's function that steer its communication are
    taken and have no effect.

    Nothing is filled where anything is refused: :class:`TargetMismatch` with every missing key and every shape and
    dtype that differs (nothing is cast), :class:`RanksDisagree`, and those of :func:`load_merged_state_dict`. After
    :class:`SourceChanged`, :class:`DamagedFile` or :class:`StorageError` in the midst of reading, the tensors hold old
    and new values.
    """
    refuse_layout_map(aoa_config)
    if isinstance(process_group, int):
        # Paddle's third argument is the group; an integer there can only be meant as the id.
        process_group, unique_id = None, process_group
    from ckptcore.paddle import fill_state_dict

    fill_state_dict(
        state_dict,
        path,
        process_group=process_group,
        unique_id=unique_id,
        master_weight_names=mw_name_compatibility,
    )


def refuse_layout_map(aoa_config: Mapping[str, Sequence[str]] | None) -> None:
    """Raise :class:`MappingError` where a layout map is asked for: ignoring it would give the wrong layout."""
    if aoa_config:
        raise MappingError("aoa_config: load_state_dict applies no layout statements; leave it out")


def load_parts(checkpoint: LocatedCheckpoint, parts: Sequence[Part]) -> Iterator[Array]:
    """The array of each part, in order, with the dtype in which Paddle stores it.

    Memory is bounded by the arrays that the caller keeps, the next one (or 64 MiB of them), and 4 MiB a thread. Raises
    :class:`SourceChanged` after the last array where a file was touched meanwhile.
    """
    sources = {tensor.spec.key: tensor for tensor in checkpoint.tensors}
    used = {region.source for part in parts for region in part.output.regions}
    names = tuple(sorted({located.piece.file for key in used for located in sources[key].pieces}))
    number = {name: position for position, name in enumerate(names)}
    threads = max(2, min(MAX_THREADS, len(os.sched_getaffinity(0))))
    scratches = SimpleQueue[memoryview]()
    for _ in range(threads):
        scratches.put(memoryview(bytearray(RUN_BYTES)))
    with (
        ReaderPool(Path(checkpoint.directory), names) as readers,
        ThreadPoolExecutor(threads, thread_name_prefix="load") as pool,
    ):
        started = deque[_Started]()
        ahead = 0
        try:
            for part in parts:
                while started and ahead + part.size_bytes > AHEAD_BYTES:
                    ahead -= started[0].part.size_bytes
                    yield started.popleft().finished()
                fills = part.fills(sources, number, max_bytes=RUN_BYTES)
                data = np.empty(part.size_bytes, np.uint8)
                futures = [pool.submit(_read, readers, wanted, data.data, scratches) for wanted in fills]
                started.append(_Started(part, data, futures))
                ahead += part.size_bytes
            while started:
                yield started.popleft().finished()
        except BaseException:
            # A refusal, Ctrl-C, or a consumer that wants no more: what has not begun need not be read.
            pool.shutdown(wait=True, cancel_futures=True)
            raise
    _require_unchanged(checkpoint)


@dataclass(frozen=True, slots=True)
class _Started:
    """An array that is being read."""

    part: Part
    data: Array
    futures: Sequence[Future[None]]

    def finished(self) -> Array:
        for future in self.futures:
            future.result()
        dtype = np.dtype(DTYPES[self.part.output.dtype].stored).newbyteorder("<")
        return self.data.view(dtype).reshape(self.part.shape)


def _read(readers: ReaderPool, wanted: Fill, data: memoryview, scratches: SimpleQueue[memoryview]) -> None:
    scratch = scratches.get()
    try:
        fill(readers, wanted, data, scratch)
    finally:
        scratches.put(scratch)


def _require_unchanged(checkpoint: LocatedCheckpoint) -> None:
    names = [stamp.name for stamp in checkpoint.fingerprint.files]
    changes = checkpoint.fingerprint.changes_to(fingerprint(checkpoint.directory, names))
    if changes:
        raise SourceChanged(f"{checkpoint.directory}: {len(changes)} file(s) changed since they were verified", changes)
