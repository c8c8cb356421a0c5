"""One rank of a Paddle job on the CPU that saves with ckptcore. ``test_saving`` starts two of them.

Not a test module: it runs in processes of its own, because Paddle's process group lives as long as its process.
"""

from __future__ import annotations

import resource
import signal
import sys
from pathlib import Path
from typing import Any

import paddle
import paddle.distributed as dist
import pytest

from ckptcore.errors import CheckpointError, InvalidName, OutputExists, RanksDisagree, VersionIncomplete
from ckptcore.saving import save_state_dict


def weights(value: float) -> dict[str, Any]:
    tensor = paddle.full([4, 6], value)
    return {"model": {"w": dist.shard_tensor(tensor, dist.ProcessMesh([0, 1]), [dist.Shard(0)])}}


def saved(directory: Path) -> list[str]:
    """Without the announcement, which rank 0 may still be writing."""
    return sorted(entry.name for entry in directory.iterdir() if "announced" not in entry.name)


def ids_go_up(directory: Path) -> None:
    assert [save_state_dict(weights(value), directory) for value in (1.0, 2.0)] == [0, 1]
    assert save_state_dict(weights(3.0), directory, 7) == 7
    assert save_state_dict(weights(4.0), directory) == 8


def all_ranks_refuse_together(directory: Path, rank: int) -> None:
    before = saved(directory)
    with pytest.raises(OutputExists, match="unique_id 7 is taken; the next free one is 9"):
        save_state_dict(weights(5.0), directory, 7)
    with pytest.raises(RanksDisagree, match="different unique_ids: 20, 21"):
        save_state_dict(weights(5.0), directory, 20 + rank)
    with pytest.raises(InvalidName):
        save_state_dict(weights(5.0), directory, -1)
    assert saved(directory) == before


def one_rank_cannot_write(directory: Path, rank: int) -> None:
    """Rank 1 may write no file of more than 4 KiB, so its disk is full in the middle of its file."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    large = {"big": dist.shard_tensor(paddle.zeros([200, 100]), dist.ProcessMesh([0, 1]), [dist.Shard(0)])}
    if rank == 1:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, unlimited[1]))
    with pytest.raises(CheckpointError, match="File too large"):
        save_state_dict(large, directory)
    resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    assert (directory / "0.saving").exists()
    assert not (directory / "0.complete").exists()
    assert save_state_dict(large, directory) == 1


def ranks_see_different_directories(directory: Path, rank: int) -> None:
    with pytest.raises(VersionIncomplete, match=r"1_0\.distcp: was written by its rank and is not here"):
        save_state_dict(weights(1.0), directory / f"disk-of-{rank}")


if __name__ == "__main__":
    base, this_rank = Path(sys.argv[1]), dist.get_rank()
    ids_go_up(base / "run")
    all_ranks_refuse_together(base / "run", this_rank)
    one_rank_cannot_write(base / "full", this_rank)
    ranks_see_different_directories(base, this_rank)
