"""Elements arrive where they belong, whatever lies in which order on either side."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.storage import moving
from ckptcore.storage.moving import Array, move


@given(st.data())
def test_any_order_to_any_order(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 7), max_size=4)))
    source_order = data.draw(st.permutations(range(len(shape))))
    target_order = data.draw(st.permutations(range(len(shape))))
    values = np.arange(int(np.prod(shape))).reshape(shape)
    source = values.transpose(source_order).copy().transpose(np.argsort(source_order).tolist())
    target = np.zeros([shape[axis] for axis in target_order], int).transpose(np.argsort(target_order).tolist())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(moving, "TILE_ELEMENTS", data.draw(st.integers(1, 40)))
        assert move(source, target) == 0
    assert (target == values).all()


@pytest.mark.parametrize("shape", [(), (1,), (300, 500), (3, 70, 400)])
def test_a_cast_sees_every_element_once(shape: tuple[int, ...]) -> None:
    seen = 0

    def cast(tile: Array) -> tuple[Array, int]:
        nonlocal seen
        seen += tile.size
        assert tile.size <= moving.TILE_ELEMENTS
        assert tile.flags.c_contiguous
        return tile.astype(np.float64) + 1, tile.size

    values = np.random.default_rng(0).integers(0, 9, shape[::-1]).astype(np.float32)
    target = np.zeros(shape)
    assert move(values.T, target, cast) == values.size == seen
    assert (target == values.T + 1).all()
