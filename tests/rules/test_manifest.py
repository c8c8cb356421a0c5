"""A manifest says what it must, or every field that does not is named."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from ckptcore.errors import ReleaseInvalid
from ckptcore.rules.manifest import FileRecord, Manifest, SourceRecord, TensorRecord, parse_manifest
from ckptcore.rules.tensors import TensorSpec

GOOD = Manifest(
    files=(FileRecord.of("model.safetensors", b"data"), FileRecord("other", 1, "")),
    tensors=(TensorRecord(TensorSpec("w", "float32", (2, 3)), "model.safetensors", "0" * 64),),
    source=SourceRecord("/run/checkpoint-10", None, 0, None, "f" * 64, "3.3"),
    plan_digest="a" * 64,
    software={"ckptcore": "1"},
    flow_run="",
    created_at="2024-05-01T12:00:00Z",
)


def test_a_good_one_comes_back() -> None:
    assert parse_manifest(GOOD.to_bytes(), "m") == GOOD


@pytest.mark.parametrize(
    ("edit", "issue"),
    [
        (lambda d: d["source"].update(step=-5), "field 'step'"),
        (lambda d: d["source"].update(step=10**400), "field 'step'"),
        (lambda d: d["source"].update(step=True), "field 'step'"),
        (lambda d: d["source"].pop("step"), "field 'step'"),
        (lambda d: d["source"].update(unique_id=-1), "field 'unique_id'"),
        (lambda d: d["source"].update(fingerprint="x" * 64), "field 'fingerprint'"),
        (lambda d: d["files"][0].update(size_bytes=-1), "field 'size_bytes'"),
        (lambda d: d["files"][0].update(sha256="0" * 63), "field 'sha256'"),
        (lambda d: d["files"][0].update(name="../x"), "file name"),
        (lambda d: d["tensors"][0].update(sha256="0" * 63 + "G"), "field 'sha256'"),
        (lambda d: d["tensors"][0].update(shape=[True]), "tensor"),
        (lambda d: d["software"].update(ckptcore=["1"]), "field 'ckptcore'"),
        (lambda d: d.update(plan_digest="../../x"), "field 'plan_digest'"),
        (lambda d: d.update(created_at="yesterday"), "field 'created_at'"),
        (lambda d: d.update(created_at="2024-05-01T12:00:00"), "field 'created_at'"),
    ],
)
def test_a_field_that_lies_is_named(edit: Callable[[Any], object], issue: str) -> None:
    document = json.loads(GOOD.to_bytes())
    edit(document)
    with pytest.raises(ReleaseInvalid) as caught:
        parse_manifest(json.dumps(document).encode(), "m")
    assert [found.what for found in caught.value.issues] == [issue]


@pytest.mark.parametrize("data", [b"", b"\xff", b"[" * 100_000, b"[]", b"null"])
def test_no_document(data: bytes) -> None:
    with pytest.raises(ReleaseInvalid, match=r"^m: "):
        parse_manifest(data, "m")
