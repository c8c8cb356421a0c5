"""Fused attention and gate/up weights: how their parts lie in the fused tensor, and taking them apart or together.

Owns the three fused layouts of Paddle 3.3.1's macros. In two of them every tensor-parallel rank holds its own
query, key and value (or gate and up) side by side, so that the whole tensor alternates by rank: the number of
ranks is the number of pieces along the fused axis, which ``pieces`` reads off the source. What this package writes
is unsharded, one piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

from ckptcore.rules.mapping.images import Image, cut, joined, split
from ckptcore.rules.mapping.lexer import StatementError
from ckptcore.rules.mapping.statements import FusedFfn, FusedQkv, FusedQkvByRank

Fused = FusedQkv | FusedQkvByRank | FusedFfn


def taken_apart(fused: Image, operation: Fused, pieces: int) -> tuple[Image, ...]:
    """Query, key and value, or gate and up, of a fused tensor that lies in ``pieces`` pieces along its axis."""
    rounds, weights = _layout(operation, pieces)
    axis = operation.axis
    total = rounds * sum(weights)
    extent = fused.extent(axis)
    if extent % total:
        raise StatementError(
            f"axis {axis} of shape {list(fused.shape)} does not divide into {total} equal parts"
            + (f" over {pieces} pieces" if pieces > 1 else "")
        )
    unit = extent // total
    starts = [0, *accumulate(weights)]
    return tuple(
        joined([cut(fused, axis, (turn * starts[-1] + start) * unit, weight * unit) for turn in range(rounds)], axis)
        for start, weight in zip(starts, weights, strict=False)
    )


def put_together(parts: Sequence[Image], operation: Fused) -> Image:
    """The fused tensor of query, key and value, or of gate and up, in one piece."""
    axis = operation.axis
    if isinstance(operation, FusedQkv):
        query, key, value = (split(part, axis, operation.groups) for part in parts)
        if query[0].shape[axis] % (operation.heads // operation.groups):
            raise StatementError(
                f"axis {axis} of shape {list(parts[0].shape)} does not divide into {operation.heads} heads"
            )
        return joined([part for group in zip(query, key, value, strict=True) for part in group], axis)
    whole = joined(parts, axis)
    _, weights = _layout(operation, 1)
    if whole.shape[axis] % sum(weights):
        raise StatementError(
            f"axis {axis} of shape {list(whole.shape)} does not divide into {sum(weights)} equal parts"
        )
    return whole


def _layout(operation: Fused, pieces: int) -> tuple[int, tuple[int, ...]]:
    """How often the parts alternate along the axis, and how many equal units of each come in turn."""
    match operation:
        case FusedFfn():
            return pieces, (1, 1)
        case FusedQkv(heads, groups, _):
            return groups, (heads // groups, 1, 1)
        case FusedQkvByRank(heads, groups, _):
            if heads % pieces or groups % pieces:
                raise StatementError(
                    f"{heads} heads and {groups} key/value heads do not divide among the {pieces} pieces"
                )
            return pieces, (heads // pieces, groups // pieces, groups // pieces)
