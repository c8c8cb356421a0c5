"""The record of a finished shard: whose it is, and what of it counts."""

from __future__ import annotations

import pytest

from ckptcore.rules.finished_shard import FinishedShard, finished_shard
from ckptcore.rules.manifest import FileRecord

NAME = "model-00001-of-00002.safetensors"
SHARD = FinishedShard(FileRecord(NAME, 10, "aa"), {"w": "bb", "é": "cc"}, {"w": 3})
RECORD = SHARD.to_bytes("plan", "tensors")


def test_a_record_is_read_back() -> None:
    assert finished_shard(RECORD, NAME, "plan", "tensors") == SHARD


def test_a_record_that_was_cut_is_none() -> None:
    for length in range(len(RECORD) - 1):
        assert finished_shard(RECORD[:length], NAME, "plan", "tensors") is None


@pytest.mark.parametrize(
    "record",
    [b"[]", b"7", b'{"plan": "plan"}', RECORD.replace(b": 10", b': "?"'), RECORD.replace(b'{"w": 3}', b"[3]")],
)
def test_what_is_no_record_is_no_finished_shard(record: bytes) -> None:
    assert finished_shard(record, NAME, "plan", "tensors") is None


def test_a_shard_of_another_plan_digest_or_name_is_not_gone_on_with() -> None:
    assert finished_shard(RECORD, NAME, "other", "tensors") is None
    assert finished_shard(RECORD, NAME, "plan", "shards") is None
    assert finished_shard(RECORD, "model-00002-of-00002.safetensors", "plan", "tensors") is None
