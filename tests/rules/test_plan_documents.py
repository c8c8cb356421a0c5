"""A plan that was written as documents is read back the same, whatever Paddle wrote and whatever becomes of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, OutputLayout, mapping
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.plan_documents import PlanHead, head_document, parse_head, parse_shard, shard_document
from tests.builders import FLAVOURS, Flavour, SavedCheckpoint
from tests.corpus import DATA, LLAMA_RUN, Case


def require_same(plan: MergePlan) -> None:
    shards = tuple(parse_shard(shard_document(shard)) for shard in plan.shards)
    assert shards == plan.shards
    head = PlanHead(plan, {shard.name: "aa" for shard in shards}, "tensors", True, "1.0")
    read = parse_head(head_document(head))
    assert replace(read.plan, shards=shards, index=plan.index, notes=plan.notes) == plan
    assert replace(read, plan=plan) == head


def test_the_corpus(corpus_case: Case) -> None:
    if corpus_case.verdict != "good":
        pytest.skip("there is no plan for what is refused")
    for unique_id in corpus_case.unique_ids:
        require_same(Choice(str(corpus_case.checkpoint), unique_id=unique_id, max_shard_bytes=64).planned())


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("protocol", [2, 5])
def test_every_spelling_of_arrays(tmp_path: Path, flavour: Flavour, protocol: int) -> None:
    saved = SavedCheckpoint(flavour=flavour, protocol=protocol).tensor("wé", np.ones((5, 7)), grid=(2, 2), fortran=True)
    saved = saved.tensor("long", np.zeros(600_000, "f4")).tensor("scalar", np.int64(7)).tensor("empty", np.ones((0, 3)))
    require_same(Choice(str(saved.write(tmp_path)), max_shard_bytes=100).planned())


def test_transposes_and_casts() -> None:
    layout = OutputLayout(mapping("llama"), str(DATA / "llama-hf"), "float16")
    require_same(Choice(str(LLAMA_RUN), layout=layout, max_shard_bytes=100_000).planned())
