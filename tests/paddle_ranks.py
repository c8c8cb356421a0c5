"""One of two ranks of a Paddle job on the CPU: saves with Paddle, fills with ckptcore. ``test_paddle`` starts it.

Not a test module: it runs in processes of its own, because Paddle's process group lives as long as its process.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import paddle
import paddle.distributed as dist
import pytest
from paddle.distributed import Replicate, Shard, ShardedWeight

import ckptcore
from ckptcore.errors import CheckpointError, RanksDisagree, TargetMismatch, VersionNotFound

W = np.arange(35, dtype=np.float32).reshape(7, 5)
M = np.arange(24, dtype=np.float32).reshape(4, 6)
ONE_ROW = np.array([[1, 2, 3]], np.float32)


def sharded(values: Any, placement: Any, ranks: tuple[int, ...] = (0, 1)) -> Any:
    tensor = values if isinstance(values, paddle.Tensor) else paddle.to_tensor(values)
    return dist.shard_tensor(tensor, dist.ProcessMesh(list(ranks)), [placement])


def flattened(start: int, stop: int, values: Any = None) -> Any:
    """The range ``start:stop`` of the whole of ``m``."""
    local = paddle.zeros([stop - start]) if values is None else paddle.to_tensor(values.reshape(-1)[start:stop])
    return ShardedWeight("m", local, M.shape, M.shape, (0, 0), is_flattened=True, flattened_range=slice(start, stop))


def save(path: Path, rank: int) -> None:
    weights = {
        "rows": sharded(W, Shard(0)),
        "columns": sharded(W.T.copy(), Shard(1)),
        "same": sharded(paddle.to_tensor(W).astype("bfloat16"), Replicate()),
        "one": sharded(ONE_ROW, Shard(0)),
        "stage1": sharded(W, Replicate(), ranks=(1,)),
    }
    dist.save_state_dict({"model": weights}, str(path / "tensors"), unique_id=3)
    # 15 of 24 elements: neither rank holds whole rows.
    start, stop = ((0, 15), (15, 24))[rank]
    dist.save_state_dict({"m": flattened(start, stop, M)}, str(path / "flattened"), unique_id=1)


def fill_other_placements(path: Path, rank: int) -> None:
    empty = np.zeros_like(W)
    rows = sharded(empty, Shard(1))
    plain = paddle.zeros(W.T.shape)
    low, high = ((0, 4), (4, 7))[rank]
    part = paddle.zeros([high - low, 5], dtype="bfloat16")  # Paddle's CPU kernels cannot cut bfloat16 by a placement
    same = ShardedWeight("same", part, part.shape, W.shape, (low, 0))
    one = sharded(np.zeros_like(ONE_ROW), Shard(0))
    stage = sharded(empty, Replicate(), ranks=(0,))
    model = {"rows": rows, "columns": plain, "same": same, "one": one, "stage1": stage}
    ckptcore.load_state_dict({"model": model}, path / "tensors")

    assert np.array_equal(rows._local_value().numpy(), (W[:, :3], W[:, 3:])[rank])
    assert np.array_equal(plain.numpy(), W.T)
    assert np.array_equal(part.astype("float32").numpy(), W[low:high])
    if rank == 0:
        assert np.array_equal(one._local_value().numpy(), ONE_ROW)
        assert np.array_equal(stage._local_value().numpy(), W)


def fill_other_ranges(path: Path, rank: int) -> None:
    start, stop = ((0, 8), (8, 24))[rank]
    ranged = flattened(start, stop)
    ckptcore.load_state_dict({"m": ranged}, path / "flattened", unique_id=1)
    assert np.array_equal(ranged.local_tensor.numpy(), M.reshape(-1)[start:stop])

    boxed = ShardedWeight("m", paddle.zeros([2, 6]), (2, 6), M.shape, (2 * rank, 0))
    ckptcore.load_state_dict({"m": boxed}, path / "flattened")
    assert np.array_equal(boxed.local_tensor.numpy(), M[2 * rank : 2 * rank + 2])


def refuse_together(path: Path, rank: int) -> None:
    untouched = paddle.zeros(M.shape)
    lacking = {"m": untouched} if rank == 0 else {"m": untouched, "gone": paddle.zeros([2])}
    with pytest.raises(RanksDisagree if rank == 0 else TargetMismatch, match="gone"):
        ckptcore.load_state_dict(lacking, path / "flattened")
    with pytest.raises(RanksDisagree if rank == 0 else VersionNotFound, match="no version with id 7"):
        ckptcore.load_state_dict({"m": untouched}, path / "flattened", unique_id=1 if rank == 0 else 7)
    dist.save_state_dict({"m": flattened(0, 24, M)}, str(path / "flattened"), unique_id=2)
    dist.barrier()
    with pytest.raises(RanksDisagree, match="unique_id 2") as refusal:
        ckptcore.load_state_dict({"m": untouched}, path / "flattened", unique_id=1 + rank)
    assert isinstance(refusal.value, CheckpointError)
    assert not untouched.any()


def main(path: Path) -> None:
    dist.init_parallel_env()
    rank = dist.get_rank()
    save(path, rank)
    dist.barrier()
    fill_other_placements(path, rank)
    fill_other_ranges(path, rank)
    refuse_together(path, rank)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
