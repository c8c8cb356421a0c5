"""Given tensors against a checkpoint: what each of them holds, and every reason why one cannot be filled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ckptcore.errors import TargetMismatch
from ckptcore.rules.targets import Target, fit
from ckptcore.rules.tensors import Box, TensorSpec

SPECS = [
    TensorSpec("linear.w", "float32", (4, 6)),
    TensorSpec("scalar", "bfloat16", ()),
    TensorSpec("linear.w_fp32_master_0", "float32", (2,)),
    TensorSpec("block.master_weights.b", "float32", (3,)),
]
BOX = Box((1, 2), (2, 3))


def target(key: str = "linear.w", *, dtype: str = "float32", shape: tuple[int, ...] = (4, 6)) -> Target:
    """A target that holds the whole tensor."""
    return Target(key, dtype, shape, Box.whole(shape), None, shape)


def box_target() -> Target:
    return replace(target(), box=BOX, held=BOX.shape)


def codes(*targets: Target) -> list[str]:
    with pytest.raises(TargetMismatch) as refusal:
        fit(SPECS, targets, master_weight_names=True)
    return sorted(issue.code for issue in refusal.value.issues)


def test_a_whole_tensor_a_box_and_a_range_of_a_box() -> None:
    flat = replace(target(), box=BOX, flat=(1, 5), held=(4,))
    whole, box, ranged = fit(SPECS, [target(), box_target(), flat], master_weight_names=False)
    assert whole is not None
    assert box is not None
    assert ranged is not None
    assert (whole.shape, whole.boxes) == ((4, 6), (Box((0, 0), (4, 6)),))
    assert (box.shape, box.boxes) == ((2, 3), (BOX,))
    assert (ranged.shape, ranged.boxes) == ((4,), (Box((1, 3), (1, 2)), Box((2, 2), (1, 2))))
    assert [part.size_bytes for part in (whole, box, ranged)] == [96, 24, 16]


def test_a_scalar() -> None:
    (part,) = fit(SPECS, [target("scalar", dtype="bfloat16", shape=())], master_weight_names=False)
    assert part is not None
    assert (part.shape, part.size_bytes) == ((), 2)


def test_an_empty_tensor_is_in_no_checkpoint_of_paddle() -> None:
    assert fit(SPECS, [target("empty", shape=(0, 3))], master_weight_names=False) == (None,)


def test_nothing_of_a_tensor_lives_here() -> None:
    (part,) = fit(SPECS, [replace(target(), flat=(0, 0), held=(0,))], master_weight_names=False)
    assert part is not None
    assert (part.boxes, part.size_bytes) == ((), 0)


@pytest.mark.parametrize(
    ("asked", "saved", "shape"),
    [
        ("linear.master_weights.w", "linear.w_fp32_master_0", (2,)),
        ("block.b_fp32_master_0", "block.master_weights.b", (3,)),
    ],
)
def test_master_weights_go_by_either_name(asked: str, saved: str, shape: tuple[int, ...]) -> None:
    wanted = target(asked, shape=shape)
    (part,) = fit(SPECS, [wanted], master_weight_names=True)
    assert part is not None
    assert part.output.regions[0].source == saved
    with pytest.raises(TargetMismatch, match="has no such tensor"):
        fit(SPECS, [wanted], master_weight_names=False)


def test_every_reason_is_told_at_once() -> None:
    assert codes(
        target("gone"),
        target("gone too.master_weights"),
        target(dtype="float16", shape=(6, 4)),
        replace(box_target(), box=Box((3, 2), (2, 3))),
        replace(box_target(), box=Box((1,), (2,))),
        replace(box_target(), held=(3, 2)),
        replace(box_target(), flat=(2, 7), held=(5,)),
        replace(box_target(), flat=(4, 2), held=(2,)),
        replace(box_target(), flat=(2, 5), held=(4,)),
    ) == ["box", "box", "dtype", "flat", "flat", "held", "held", "missing-key", "missing-key", "shape"]
