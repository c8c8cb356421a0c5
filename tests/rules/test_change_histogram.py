"""Layers and powers of ten."""

from __future__ import annotations

import math

import pytest

from ckptcore.rules.change_histogram import BUCKETS, HIGHEST, LOWEST, bucket_of, by_layer, layer_of


@pytest.mark.parametrize(
    ("key", "layer"),
    [
        ("model.layers.12.mlp.experts.7.weight", "model.layers.12"),
        ("layers.0.weight", "layers.0"),
        ("0.weight", "0"),
        ("lm_head.weight", "lm_head"),
        ("model.embed_tokens.weight", "model.embed_tokens"),
        ("weight", "weight"),
        ("layer.w2", "layer"),
        ("", ""),
    ],
)
def test_the_layer_of_a_tensor(key: str, layer: str) -> None:
    assert layer_of(key) == layer


@pytest.mark.parametrize("power", range(LOWEST, HIGHEST))
def test_a_power_of_ten_begins_its_own_column(power: int) -> None:
    exact = float(f"1e{power}")
    assert bucket_of(exact) == power - LOWEST
    assert bucket_of(math.nextafter(exact, math.inf)) == power - LOWEST
    assert bucket_of(9.99 * exact) == power - LOWEST
    if power > LOWEST:
        assert bucket_of(math.nextafter(exact, 0)) == power - LOWEST - 1


@pytest.mark.parametrize(
    ("relative", "bucket"), [(0.0, 0), (5e-324, 0), (1e-30, 0), (1.0, BUCKETS - 1), (1e300, BUCKETS - 1)]
)
def test_the_ends(relative: float, bucket: int) -> None:
    assert bucket_of(relative) == bucket


def test_tensors_are_counted_by_layer_in_natural_order() -> None:
    changes = [("l.10.a", 1e-3), ("l.2.a", 2e-3), ("l.2.b", 0.5), ("l.2.c", None), ("head.w", math.nan)]
    head, second, tenth = by_layer(changes)
    assert (head.layer, head.unmeasured, head.largest, head.tensor_count) == ("head", 1, None, 1)
    assert (second.layer, second.unmeasured, second.largest, second.tensor_count) == ("l.2", 1, 0.5, 3)
    assert second.counts[-3 - LOWEST] == 1
    assert second.counts[-1 - LOWEST] == 1
    assert tenth.layer == "l.10"
