"""The journal of finished shards: whose it is, and which lines count."""

from __future__ import annotations

from ckptcore.rules.journal import FinishedShard, finished_shards, journal_head
from ckptcore.rules.manifest import FileRecord

HEAD = journal_head("plan-digest", "tensors")
FIRST = FinishedShard(FileRecord("model-00001-of-00002.safetensors", 10, "aa"), {"w": "bb", "é": "cc"})
SECOND = FinishedShard(FileRecord("model-00002-of-00002.safetensors", 20, "dd"), {})


def test_finished_shards_are_read_back_in_order() -> None:
    assert finished_shards(HEAD + SECOND.to_line() + FIRST.to_line(), HEAD) == (FIRST, SECOND)
    assert finished_shards(HEAD, HEAD) == ()


def test_a_line_that_a_crash_cut_is_no_finished_shard() -> None:
    for length in range(len(SECOND.to_line()) - 1):
        assert finished_shards(HEAD + FIRST.to_line() + SECOND.to_line()[:length], HEAD) == (FIRST,)


def test_what_is_no_record_is_no_finished_shard() -> None:
    for line in (
        b"[]\n",
        b'{"name": "x"}\n',
        b'{"name": "x", "size_bytes": "?", "sha256": "", "tensors": {}}\n',
        b"7\n",
    ):
        assert finished_shards(HEAD + line, HEAD) == ()


def test_the_journal_of_another_plan_is_not_gone_on_with() -> None:
    assert finished_shards(HEAD + FIRST.to_line(), journal_head("other", "tensors")) is None
    assert finished_shards(HEAD + FIRST.to_line(), journal_head("plan-digest", "shards")) is None
    assert finished_shards(HEAD[:-5], HEAD) is None
