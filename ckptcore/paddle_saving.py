"""What saving asks of Paddle: its writer, and one collective by which ranks agree.

With ``ckptcore.paddle`` one of the two modules that import it. Needs Paddle 3.0, whose writer takes a unique_id.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from ckptcore.errors import PaddleMissing

try:
    import paddle.distributed as dist
except ImportError as error:
    raise PaddleMissing(f"saving needs Paddle, which cannot be imported: {error}") from error

T = TypeVar("T")


def this_rank() -> int:
    return int(dist.get_rank())


def gather_from_all(value: T, /) -> tuple[T, ...]:
    """Every rank's ``value`` in the order of ranks, on every rank; a rank alone gets its own back.

    No rank returns before all have called. Sets up the default process group where training has not, as Paddle's own
    ``save_state_dict`` does.
    """
    if dist.get_world_size() < 2:
        return (value,)
    if not dist.is_initialized():
        dist.init_parallel_env()
    gathered: list[T] = []
    # The collective that Paddle's writer itself uses: wherever saving works, so does this.
    dist.all_gather_object(gathered, value)
    return tuple(gathered)


def write_rank_file(state_dict: Mapping[str, object], path: str, unique_id: int) -> None:
    """``paddle.distributed.save_state_dict`` on this rank; returns when this rank's file is written."""
    dist.save_state_dict(dict(state_dict), path, unique_id=unique_id)
