"""Shards, their headers and the index: names, sizes, order and alignment."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.shard_layout import header_of, index_document, lay_out, natural_key
from ckptcore.rules.tensors import DTYPES, TensorSpec

WRITABLE = sorted(name for name, dtype in DTYPES.items() if dtype.safetensors)
SPECS = st.lists(
    st.builds(
        TensorSpec, st.text(max_size=6), st.sampled_from(WRITABLE), st.lists(st.integers(0, 5), max_size=3).map(tuple)
    ),
    unique_by=lambda spec: spec.key,
    max_size=12,
)


@given(SPECS, st.integers(1, 200))
def test_every_tensor_is_in_one_shard_aligned_and_without_gaps(specs: list[TensorSpec], limit: int) -> None:
    shards = lay_out(specs, max_shard_bytes=limit)
    placed = [spec for shard in shards for spec in shard.tensors]
    assert sorted(placed, key=lambda spec: spec.key) == sorted(specs, key=lambda spec: spec.key)
    for shard in shards:
        position = len(shard.header)
        for spec, offset in zip(shard.tensors, shard.offsets, strict=True):
            assert offset == position
            assert offset % DTYPES[spec.dtype].itemsize == 0
            position += spec.size_bytes
        assert shard.size_bytes == position
        assert len(shard.tensors) <= 1 or position - len(shard.header) <= limit


@given(SPECS)
def test_the_header_says_what_the_format_asks(specs: list[TensorSpec]) -> None:
    header = header_of(specs)
    assert len(header) % 8 == 0
    assert int.from_bytes(header[:8], "little") == len(header) - 8
    entries = json.loads(header[8:])
    assert entries.pop("__metadata__") == {"format": "pt"}
    assert list(entries) == [spec.key for spec in specs]


def test_layers_come_in_the_order_of_their_numbers() -> None:
    names = ["layers.10.w", "layers.2.w", "layers.1.w", "embed"]
    assert sorted(names, key=natural_key) == ["embed", "layers.1.w", "layers.2.w", "layers.10.w"]


def test_names_and_index_are_hugging_faces() -> None:
    specs = [TensorSpec(f"w{i}", "float32", (4,)) for i in range(3)]
    assert [shard.name for shard in lay_out(specs, max_shard_bytes=1000)] == ["model.safetensors"]
    shards = lay_out(specs, max_shard_bytes=32)
    assert [shard.name for shard in shards] == ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]
    index = index_document(shards)
    assert index is not None
    assert json.loads(index) == {
        "metadata": {"total_size": 48},
        "weight_map": {"w0": shards[0].name, "w1": shards[0].name, "w2": shards[1].name},
    }


def test_a_single_shard_needs_no_index() -> None:
    assert index_document(lay_out([], max_shard_bytes=1)) is None
