"""The names that Paddle and its trainers give to files and directories: parsed and formatted, whole or not at all.

Owns every file name of a checkpoint and the order of its components. A number is read from a whole name
and has one spelling only (``0`` or ASCII digits without a leading zero), so that no two names mean the same
rank, id or step: ``1_11.distcp`` is never id 1, and ``01_0.distcp`` is no rank file. What the names together
make is decided in ``versions``.

Names as written by ``paddle.distributed.save_state_dict`` (2.6.2 to 3.3.1) and PaddleFormers 1.2.0.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

RankFileSuffix = Literal["distcp", "safetensors"]

COMPONENTS = ("model_state", "optimizer_state", "master_weight", "ema_state", "dist_ckpt")
"""The directories of a step that hold rank files, in the order in which they are shown."""

DEFAULT_COMPONENT = "model_state"

NAMED_COMPONENTS = frozenset({"optimizer_state", "master_weight", "ema_state"})
"""What a trainer may write before the weights, or beside them: never taken unless it is asked for by name."""

CHECKPOINT_DONE = ".checkpoint_done"
"""The mark that some modes of PaddleFormers leave in a finished step."""

# 18 digits stay below 2**63, and keep int() away from the length limit that it puts on hostile strings.
_NUMBER = "(0|[1-9][0-9]{0,17})"
_RANK_FILE = re.compile(rf"{_NUMBER}_{_NUMBER}\.(distcp|safetensors)")
_METADATA = re.compile(rf"{_NUMBER}\.metadata")
_METADATA_LOCK = re.compile(rf"{_NUMBER}\.metadata\.lock")
_STEP = re.compile(rf"checkpoint-{_NUMBER}")
_SAVED_SIGNAL = re.compile(rf"saved_signal_{_NUMBER}")
_SAVING_SIGNAL = re.compile(rf"save_signal_TMP_{_NUMBER}")


@dataclass(frozen=True, slots=True, order=True)
class RankFileName:
    """What the name of a rank file says: who wrote it, for which save, and in which format."""

    rank: int
    unique_id: int
    suffix: RankFileSuffix = "distcp"

    def __str__(self) -> str:
        return f"{self.rank}_{self.unique_id}.{self.suffix}"


def parse_rank_file_name(name: str) -> RankFileName | None:
    """``{rank}_{unique_id}.distcp`` or ``.safetensors`` taken apart, or None where the name is no such name."""
    match = _RANK_FILE.fullmatch(name)
    if match is None:
        return None
    suffix: RankFileSuffix = "distcp" if match[3] == "distcp" else "safetensors"
    return RankFileName(int(match[1]), int(match[2]), suffix)


def parse_metadata_name(name: str) -> int | None:
    """The unique_id of ``{unique_id}.metadata``, or None."""
    return _number(_METADATA, name)


def parse_metadata_lock_name(name: str) -> int | None:
    """The unique_id of ``{unique_id}.metadata.lock``, or None."""
    return _number(_METADATA_LOCK, name)


def parse_step_name(name: str) -> int | None:
    """The step of ``checkpoint-<step>``, or None."""
    return _number(_STEP, name)


def parse_saved_signal(name: str) -> int | None:
    """The rank of ``saved_signal_<rank>``, which a trainer's rank writes last, or None."""
    return _number(_SAVED_SIGNAL, name)


def parse_saving_signal(name: str) -> int | None:
    """The rank of ``save_signal_TMP_<rank>``, which exists while that rank saves, or None."""
    return _number(_SAVING_SIGNAL, name)


def metadata_name(unique_id: int) -> str:
    return f"{unique_id}.metadata"


def metadata_lock_name(unique_id: int) -> str:
    return f"{unique_id}.metadata.lock"


def step_name(step: int) -> str:
    return f"checkpoint-{step}"


def saved_signal_name(rank: int) -> str:
    return f"saved_signal_{rank}"


def _number(pattern: re.Pattern[str], name: str) -> int | None:
    match = pattern.fullmatch(name)
    return None if match is None else int(match[1])
