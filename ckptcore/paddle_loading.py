"""Paddle's own loader, called in the way in which it is right; written for 3.3, with its faults in mind.

Its ``load_merged_state_dict`` takes by a prefix what only begins with the same letters, and makes room for every
tensor. Its ``load_state_dict``, which does the work beneath, is given the tensors that are wanted and no others.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from ckptcore.errors import DeviceFailed, EngineFailed, PaddleMissing
from ckptcore.paddle import tensor_of
from ckptcore.rules.tensors import DTYPES, TensorSpec

try:
    import paddle
    import paddle.distributed
except ImportError as error:
    raise PaddleMissing(f"Paddle's own loader needs Paddle, which cannot be imported ({error})") from error

_CANARY = 0xA5
"""Fills what Paddle is to fill: it gives zeros for what it does not find, and many tensors are zeros."""
_SHARE_OF_DEVICE = 0.5
_NO_MEMORY = ("ResourceExhausted", "out of memory", "Out of memory", "std::bad_alloc")

Bytes = np.ndarray[tuple[int], np.dtype[np.uint8]]


def room_on(device: str) -> int | None:
    """How many bytes of tensors to have on the device at a time: half of its memory; None for all, in the host's."""
    if not device.startswith("gpu"):
        return None
    return int(paddle.device.cuda.get_device_properties(device).total_memory * _SHARE_OF_DEVICE)


def load_tensors(view: str, unique_id: int, specs: Sequence[TensorSpec], device: str) -> dict[str, Bytes]:
    """The raw bytes of each tensor, row by row, after Paddle loaded and merged it on ``device``.

    ``view`` must hold the files of the one version, and no others: Paddle matches ids by how names end, and remembers
    what it listed. Raises :class:`EngineFailed` and :class:`DeviceFailed`.
    """
    paddle.set_device(device)
    in_safetensors = any(name.endswith(".safetensors") for name in os.listdir(view))
    try:
        targets = {spec.key: _target(spec) for spec in specs}
        paddle.distributed.load_state_dict(
            targets,
            view,
            unique_id=unique_id,
            # What it reads stays in host memory; only the merged tensors are on the device.
            offload=True,
            # Else it takes an optimizer's tensor of another name for one that it does not find.
            mw_name_compatibility=False,
            safetensors=in_safetensors,
        )
        return {spec.key: _bytes_of(targets[spec.key], spec) for spec in specs}
    except Exception as error:  # Paddle raises whatever builtin fits
        told = " ".join(str(error).rpartition("Error Message Summary:")[2].lstrip("-\n").split())[:300]
        if isinstance(error, MemoryError) or any(text in str(error) for text in _NO_MEMORY):
            raise DeviceFailed(f"{device}: cannot hold what Paddle's own loader loads: {told}") from error
        what = f"Paddle {paddle.__version__}'s own loader cannot load {specs[0].key!r} and {len(specs) - 1:,} others"
        raise EngineFailed(f"{what}: {type(error).__name__}: {told}") from error


def _target(spec: TensorSpec) -> Any:
    stored = np.dtype(DTYPES[spec.dtype].stored)
    filler = 1 if spec.dtype == "bool" else _CANARY
    filled = np.full(spec.size_bytes, filler, np.uint8).view(stored).reshape(spec.shape)
    return tensor_of(filled, spec.dtype, on_host=False).contiguous()


def _bytes_of(tensor: Any, spec: TensorSpec) -> Bytes:
    found = str(tensor.dtype).removeprefix("paddle.")
    if found != spec.dtype:
        raise ValueError(f"{spec.key!r} came as {found} in place of {spec.dtype}")
    array = np.ascontiguousarray(tensor.numpy())
    return array.reshape(-1).view(np.uint8)
