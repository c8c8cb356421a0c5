"""Paddle tensors from a checkpoint: merged ones made of arrays, given ones filled in place, sharded or not.

With ``paddle_loading`` and ``paddle_saving`` all that imports Paddle; written for 3.3. Owns what of a global tensor
lives on this rank, and the agreement of all ranks on one version. Which bytes that needs is ``rules.targets``'s,
reading them ``loading``'s.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ckptcore.detecting import newest_verified
from ckptcore.errors import CheckpointError, DeviceFailed, PaddleMissing, RanksDisagree, TargetMismatch
from ckptcore.loading import Array, load_parts
from ckptcore.rules.issues import Issue
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.targets import Part, Target, fit
from ckptcore.rules.tensors import Box, Shape

try:
    import paddle
    import paddle.distributed
except ImportError as error:
    raise PaddleMissing(
        f"Paddle tensors need Paddle, which cannot be imported ({error}): pip install 'ckptcore[paddle]' for the CPU, "
        "see the README for GPUs, or ask for numpy arrays with return_numpy=True"
    ) from error


def tensor_of(array: Array, dtype: str, *, on_host: bool) -> Any:
    """A Paddle tensor of the dtype whose raw elements ``array`` holds, on the current device or in host memory.

    A tensor in host memory shares the array's: the caller must not keep the array.
    """
    tensor = paddle.Tensor(array, zero_copy=True)  # uint16 becomes bfloat16, as everywhere in Paddle
    if dtype.startswith("float8"):
        tensor = tensor.view(dtype)
    return tensor if on_host else tensor.to(paddle.get_device())


def device_for_checks() -> str:
    """The device that tensors are checked on: Paddle's current one, its first GPU, or ``cpu`` where it has neither."""
    current: str = paddle.get_device()
    if current == "cpu" and paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count():
        return "gpu:0"  # somebody set the CPU for their own work
    return current


def through_device(array: Array, dtype: str, device: str) -> Array:
    """The raw elements of ``array`` after they were a tensor of ``dtype`` on ``device``, in memory of their own.

    Raises :class:`DeviceFailed`.
    """
    try:
        tensor = tensor_of(array, dtype, on_host=True)
        # In host memory it shares the array's, and a tensor that never moved would prove nothing.
        placed = tensor.clone() if device == "cpu" else tensor.to(device)
        returned: Array = placed.numpy()
    except Exception as error:  # Paddle raises whatever builtin fits: MemoryError, OSError, SystemError, …
        told = " ".join(str(error).rpartition("Error Message Summary:")[2].lstrip("-\n").split())[:300]
        what = f"{array.nbytes:,} bytes of {dtype}"
        raise DeviceFailed(f"{device}: cannot take {what} and give them back: {told}") from error
    return returned


def free_device_memory(device: str) -> None:
    """Give back what Paddle keeps of the device's memory for later, so that other processes can have it."""
    if device.startswith("gpu"):
        paddle.device.cuda.empty_cache()


def fill_state_dict(
    state_dict: Mapping[str, Any],
    path: str | os.PathLike[str],
    *,
    process_group: Any,
    unique_id: int | None,
    master_weight_names: bool,
) -> None:
    """What :func:`ckptcore.load_state_dict` says, with its refusals."""
    try:
        places, checkpoint, parts = _plan(state_dict, path, unique_id, master_weight_names)
    except CheckpointError as refusal:
        # The others must not wait in the agreement for a rank that has left.
        _agree(process_group, "", str(refusal))
        raise
    _agree(process_group, f"step {checkpoint.step}, unique_id {checkpoint.unique_id}", "")
    wanted = [(place, part) for place, part in zip(places, parts, strict=True) if part is not None and part.size_bytes]
    for (place, part), array in zip(wanted, load_parts(checkpoint, [part for _, part in wanted]), strict=True):
        _write(place.local, array.reshape(place.target.held), part.output.dtype)


def _plan(
    state_dict: Mapping[str, Any], path: str | os.PathLike[str], unique_id: int | None, master_weight_names: bool
) -> tuple[list[_Place], LocatedCheckpoint, tuple[Part | None, ...]]:
    places = _places(state_dict)
    checkpoint = newest_verified(os.fspath(path), unique_id=unique_id).checkpoint
    specs = [tensor.spec for tensor in checkpoint.tensors]
    parts = fit(specs, [place.target for place in places], master_weight_names=master_weight_names)
    return places, checkpoint, parts


def _write(local: Any, array: Array, dtype: str) -> None:
    source = tensor_of(array, dtype, on_host=True).to(local.place)
    with paddle.no_grad():
        # Copies into the memory that the tensor has, strided views included.
        paddle.assign(source, local)


@dataclass(frozen=True, slots=True)
class _Place:
    """A target and the tensor of this process that holds it."""

    target: Target
    local: Any


def _places(state_dict: Mapping[str, Any]) -> list[_Place]:
    """Where each tensor's elements go on this rank. Raises :class:`TargetMismatch` with all that cannot be filled."""
    places: list[_Place] = []
    issues: list[Issue] = []
    for key, value in _flattened(state_dict, ()):
        try:
            places.append(_place(key, value))
        except TargetMismatch as refusal:
            issues += refusal.issues
    if issues:
        raise TargetMismatch(f"{len(issues)} given tensor(s) cannot be filled", issues)
    return places


def _flattened(state_dict: Mapping[str, Any], above: tuple[str, ...]) -> Iterator[tuple[str, Any]]:
    """Each value with its key; the keys of nested dicts are joined by dots, as Paddle's saver does."""
    for key, value in state_dict.items():
        if isinstance(value, Mapping):
            yield from _flattened(value, (*above, str(key)))
        else:
            yield ".".join((*above, str(key))), value


def _place(key: str, value: Any) -> _Place:
    match value:
        case paddle.distributed.ShardedWeight():
            box = Box(tuple(value.global_offset), tuple(value.local_shape))
            flat = (value.flattened_range.start, value.flattened_range.stop) if value.is_flattened else None
            return _held(key, value.local_tensor, tuple(value.global_shape), box, flat)
        case paddle.Tensor() if value.is_dist():
            return _sharded_place(key, value)
        case paddle.Tensor():
            shape = tuple(value.shape)
            return _held(key, value, shape, Box.whole(shape), None)
        case _:
            raise _unfillable(key, f"is no Paddle tensor but {type(value).__name__}")


def _held(key: str, local: Any, shape: Shape, box: Box, flat: tuple[int, int] | None) -> _Place:
    # An empty tensor has no memory either, and needs none.
    if box.volume and not local._is_initialized():  # noqa: SLF001 - Paddle has no public name for it
        raise _unfillable(key, "is not initialised: there is no memory to fill")
    return _Place(Target(key, _dtype(local), shape, box, flat, tuple(local.shape)), local)


def _sharded_place(key: str, tensor: Any) -> _Place:
    shape = tuple(tensor.shape)
    box = _local_box(key, shape, tensor.process_mesh, tensor.placements)
    if box is None:
        # A tensor of another pipeline stage: its name and shape are checked all the same.
        return _Place(Target(key, _dtype(tensor), shape, Box.whole(shape), (0, 0), (0,)), None)
    if not box.volume:
        return _Place(Target(key, _dtype(tensor), shape, box, None, box.shape), None)
    return _held(key, tensor._local_value(), shape, box, None)  # noqa: SLF001 - as above


def _local_box(key: str, shape: Shape, mesh: Any, placements: Sequence[Any]) -> Box | None:
    """The box of a sharded tensor on this rank; None where its mesh does not have this rank.

    A mesh axis of n cuts a tensor axis into n runs of the same length, rounded up, the last ones shorter; mesh axes
    that cut the same tensor axis do so in turn, in their co-shard order (``balanced_split`` of Paddle 3.3.1).
    """
    if any(placement.is_partial() for placement in placements):
        raise _unfillable(key, "is partial: its value is a sum over ranks, and no rank holds a part of it")
    shards = [(placement, mesh_axis) for mesh_axis, placement in enumerate(placements) if placement.is_shard()]
    if any(placement.get_split_factor() > 1 for placement, _ in shards):
        raise _unfillable(key, "is sharded with a split factor, so that its part is no box")
    rank = paddle.distributed.get_rank()
    if rank not in mesh.process_ids:
        return None
    coordinates = _coordinates(mesh.process_ids.index(rank), mesh.shape)
    offset, extent = [0] * len(shape), list(shape)
    for placement, mesh_axis in sorted(shards, key=lambda shard: shard[0].get_co_shard_order()):
        axis = placement.get_dim()
        run = -(-extent[axis] // mesh.shape[mesh_axis])
        low = min(run * coordinates[mesh_axis], extent[axis])
        offset[axis] += low
        extent[axis] = min(run, extent[axis] - low)
    return Box(tuple(offset), tuple(extent))


def _coordinates(position: int, shape: Sequence[int]) -> tuple[int, ...]:
    """Where the process at ``position`` of the flattened mesh stands in it."""
    coordinates = []
    for extent in reversed(shape):
        position, at = divmod(position, extent)
        coordinates.append(at)
    return tuple(reversed(coordinates))


def _dtype(tensor: Any) -> str:
    return str(tensor.dtype).removeprefix("paddle.")


def _unfillable(key: str, what: str) -> TargetMismatch:
    where = f"tensor {key!r}"
    return TargetMismatch(f"{where} {what}", [Issue(where, what, code="unfillable")])


def _agree(process_group: Any, choice: str, refusal: str) -> None:
    """Tell all ranks what this one chose, or why it refused. Raises :class:`RanksDisagree` where they cannot go on."""
    if paddle.distributed.get_world_size() <= 1:
        return
    if process_group is None and not paddle.distributed.is_initialized():
        paddle.distributed.init_parallel_env()
    gathered: list[tuple[str, str]] = []
    paddle.distributed.all_gather_object(gathered, (choice, refusal), process_group)
    if refusal:
        return  # this rank has its own refusal to raise
    refused = [Issue(f"rank {rank}", text, code="rank-refused") for rank, (_, text) in enumerate(gathered) if text]
    if refused:
        raise RanksDisagree(f"{len(refused)} rank(s) refused to load; no rank loads", refused)
    if len({chosen for chosen, _ in gathered}) > 1:
        chosen = [Issue(f"rank {rank}", f"chose {text}", code="rank-choice") for rank, (text, _) in enumerate(gathered)]
        raise RanksDisagree("the ranks chose different versions; name one with unique_id", chosen)
