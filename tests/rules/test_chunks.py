"""Chunks hold every name once, are few, and are about as large as each other."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.chunks import chunks

SIZES = st.dictionaries(st.text("abc", min_size=1), st.integers(1, 1000), max_size=40)


@given(SIZES, st.integers(1, 8))
def test_every_name_is_dealt_once_into_few_chunks_of_like_size(sizes: dict[str, int], most: int) -> None:
    dealt = chunks(sizes, most=most)
    assert sorted(name for names in dealt for name in names) == sorted(sizes)
    assert len(dealt) == min(most, len(sizes))
    assert all(dealt)
    totals = [sum(sizes[name] for name in names) for names in dealt]
    assert totals == sorted(totals, reverse=True)
    assert all(total <= min(totals) + max(sizes.values()) for total in totals)


def test_shards_of_like_size_are_spread_evenly() -> None:
    sizes = {f"model-{number:05d}": 5_000_000_000 for number in range(316)}
    assert sorted(map(len, chunks(sizes, most=100))) == [3] * 84 + [4] * 16
