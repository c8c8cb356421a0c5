"""safetensors headers: read as strictly as the reference reads them, and written so that it reads them."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
import safetensors
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import DamagedFile
from ckptcore.formats.reader import BytesReader
from ckptcore.formats.safetensors_file import (
    MAX_HEADER_BYTES,
    SafetensorsTensor,
    parse_safetensors,
    safetensors_rank_file,
)
from ckptcore.rules.shard_layout import header_of
from ckptcore.rules.stored import Segment, StoredArray
from ckptcore.rules.tensors import DTYPES, TensorSpec
from tests.formats.bytes_under_test import WatchedReader, damaged_copies

REFERENCE: Any = safetensors.deserialize  # it has no types

WRITABLE = sorted(name for name, dtype in DTYPES.items() if dtype.safetensors)

specs = st.builds(
    TensorSpec,
    st.text(st.characters(codec="utf-8"), max_size=12).filter(lambda key: key != "__metadata__"),
    st.sampled_from(WRITABLE),
    st.lists(st.integers(0, 5), max_size=4).map(tuple),
)


@given(st.lists(specs, max_size=6, unique_by=lambda spec: spec.key))
def test_reads_back_what_is_written_and_so_does_the_reference(tensors: list[TensorSpec]) -> None:
    head = header_of(tensors)
    data = head + bytes(sum(spec.size_bytes for spec in tensors))

    found = parse_safetensors(BytesReader(data), "f")
    assert found.metadata == {"format": "pt"}
    expected, at = [], len(head)
    for spec in tensors:
        dtype = DTYPES[spec.dtype].safetensors
        expected.append(SafetensorsTensor(spec.key, dtype, spec.shape, at, at + spec.size_bytes))
        at += spec.size_bytes
    assert sorted(found.tensors, key=lambda tensor: tensor.name) == sorted(expected, key=lambda tensor: tensor.name)

    reference = dict(REFERENCE(data))
    assert {name: (entry["dtype"], entry["shape"]) for name, entry in reference.items()} == {
        tensor.name: (tensor.dtype, list(tensor.shape)) for tensor in expected
    }


def test_rank_file_has_numpys_dtypes_and_keeps_what_they_mean() -> None:
    head = header_of([TensorSpec("w", "bfloat16", (2, 2)), TensorSpec("n", "int8", (1,))])
    found = safetensors_rank_file(BytesReader(head + bytes(9)), "0_0.safetensors")
    assert found.arrays == {
        "w": StoredArray((2, 2), "<u2", False, (Segment(len(head), 8),), means="bfloat16"),
        "n": StoredArray((1,), "|i1", False, (Segment(len(head) + 8, 1),)),
    }
    assert found.parameter_names == {}


def file_of(header: Any, payload: bytes = b"", *, length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + payload


def entry(dtype: Any = "U8", shape: Any = (2,), offsets: Any = (0, 2), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets} | more


TWO = bytes(2)
FAULTS: dict[str, bytes] = {
    "nothing": b"",
    "seven bytes": bytes(7),
    "no header": file_of(b""),
    "header past the end": file_of(b"{}", length=3),
    "header of 2**63 bytes": file_of(b"{}", length=2**63),
    "header above the limit": file_of(b"{}", length=MAX_HEADER_BYTES + 1),
    "no JSON": file_of(b"{nothing}"),
    "space before it": file_of(b" {}"),
    "a list": file_of(b"[]"),
    "no UTF-8": file_of(b'{"\xff":1}'),
    "half a surrogate pair": file_of(b'{"\\ud800":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}', TWO),
    "not a number": file_of(b'{"w":NaN}'),
    "a name twice": file_of(
        b'{"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},'
        b'"w":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}',
        TWO,
    ),
    "a field twice": file_of(b'{"w":{"dtype":"U8","dtype":"U8","shape":[2],"data_offsets":[0,2]}}', TWO),
    "nested too deep": file_of(b'{"w":' + b"[" * 200_000 + b"]" * 200_000 + b"}"),
    "metadata that is a list": file_of({"__metadata__": []}),
    "metadata of numbers": file_of({"__metadata__": {"step": 7}}),
    "tensor that is a number": file_of({"w": 7}),
    "tensor without shape": file_of({"w": {"dtype": "U8", "data_offsets": [0, 2]}}, TWO),
    "tensor with more": file_of({"w": entry(more=1)}, TWO),
    "dtype of another format": file_of({"w": entry("float32", (2,), (0, 8))}, bytes(8)),
    "dtype that is a number": file_of({"w": entry(7)}, TWO),
    "negative shape": file_of({"w": entry(shape=(-1, -2))}, TWO),
    "shape of floats": file_of({"w": entry(shape=(2.0,))}, TWO),
    "shape of booleans": file_of({"w": entry(shape=(2, True))}, TWO),
    "shape that is a number": file_of({"w": entry(shape=2)}, TWO),
    "offsets of three": file_of({"w": entry(offsets=(0, 1, 2))}, TWO),
    "offsets backwards": file_of({"w": entry(offsets=(2, 0))}, TWO),
    "offsets too near": file_of({"w": entry(offsets=(0, 1))}, b"1"),
    "gap at the start": file_of({"w": entry(offsets=(1, 3))}, bytes(3)),
    "gap": file_of({"v": entry(), "w": entry(offsets=(3, 5))}, bytes(5)),
    "overlap": file_of({"v": entry(), "w": entry(offsets=(1, 3))}, bytes(3)),
    "the same bytes twice": file_of({"v": entry(), "w": entry()}, TWO),
    "cut": file_of({"w": entry()}, b"1"),
    "bytes behind": file_of({"w": entry()}, bytes(3)),
    "bytes of no tensor": file_of({}, b"1"),
}  # fmt: skip


@pytest.mark.parametrize("data", FAULTS.values(), ids=FAULTS)
def test_refuses(data: bytes) -> None:
    with pytest.raises(DamagedFile) as refusal:
        parse_safetensors(WatchedReader(data), "f")
    assert {issue.where for issue in refusal.value.issues} == {"f"}


def test_reports_every_issue() -> None:
    with pytest.raises(DamagedFile) as refusal:
        parse_safetensors(
            BytesReader(file_of({"a": entry(7), "b": entry("X"), "__metadata__": 1, "c": entry()}, TWO)), "f"
        )
    assert [issue.what for issue in refusal.value.issues] == ["__metadata__", "tensor 'a'", "tensor 'b'"]


def test_empty_tensors_take_no_room() -> None:
    data = file_of(
        {"a": entry(shape=(0,), offsets=(0, 0)), "b": entry(), "c": entry(shape=(3, 0), offsets=(2, 2))}, TWO
    )
    assert [tensor.name for tensor in parse_safetensors(BytesReader(data), "f").tensors] == ["a", "b", "c"]


SAMPLE = file_of(
    {"__metadata__": {"format": "pt"}, "v": entry("F32", (2, 1), (0, 8)), "w": entry(offsets=(8, 10))}, bytes(10)
)


@given(data=damaged_copies(SAMPLE))
def test_damage_gives_tensors_inside_the_file_or_a_refusal(data: bytes) -> None:
    try:
        found = parse_safetensors(WatchedReader(data), "f")
    except DamagedFile:
        return
    assert sum(tensor.end - tensor.begin for tensor in found.tensors) <= len(data) - 8
    REFERENCE(data)  # the reference takes it too
