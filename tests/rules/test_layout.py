"""Names are read whole or not at all, and every name that is read is written back the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules import layout
from ckptcore.rules.layout import RankFileName, parse_rank_file_name

NUMBERS = st.integers(min_value=0, max_value=10**18 - 1)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("0_0.distcp", RankFileName(0, 0)),
        ("1_11.distcp", RankFileName(1, 11)),
        ("11_1.distcp", RankFileName(11, 1)),
        ("1023_24000.safetensors", RankFileName(1023, 24000, "safetensors")),
    ],
)
def test_a_rank_file_name(name: str, expected: RankFileName) -> None:
    assert parse_rank_file_name(name) == expected


@pytest.mark.parametrize(
    "name",
    [
        "", "0_0", "0_0.distcp ", " 0_0.distcp", "0_0.distcp\n", "0_0.distcp.tmp", "0_0.DISTCP", "x0_0.distcp",
        "_0.distcp", "0_.distcp", "0.distcp", "0_0_0.distcp", "-1_0.distcp", "+1_0.distcp", "01_0.distcp",
        "0_00.distcp", "1_1_1.distcp",
        "٣_0.distcp", "²_0.distcp", "1e3_0.distcp", "1,0_0.distcp", "0x1_0.distcp", "../0_0.distcp", "a/0_0.distcp",
        "0_0.safetensors.index.json", "0_0.distcp\0", f"{'9' * 19}_0.distcp", f"0_{'1' * 5000}.distcp",
    ],
)  # fmt: skip
def test_no_rank_file_name(name: str) -> None:
    assert parse_rank_file_name(name) is None


@given(rank=NUMBERS, unique_id=NUMBERS, suffix=st.sampled_from(["distcp", "safetensors"]))
def test_rank_file_names_round_trip(rank: int, unique_id: int, suffix: layout.RankFileSuffix) -> None:
    name = RankFileName(rank, unique_id, suffix)
    assert parse_rank_file_name(str(name)) == name


@given(st.from_regex(r"[0-9٠-٩]{1,4}_[0-9]{1,4}\.(distcp|safetensors)", fullmatch=True))
def test_no_two_names_mean_one_rank_file(name: str) -> None:
    parsed = parse_rank_file_name(name)
    assert parsed is None or str(parsed) == name


@given(NUMBERS)
def test_the_other_names_round_trip(number: int) -> None:
    assert layout.parse_metadata_name(layout.metadata_name(number)) == number
    assert layout.parse_metadata_lock_name(layout.metadata_lock_name(number)) == number
    assert layout.parse_step_name(layout.step_name(number)) == number
    assert layout.parse_saved_signal(layout.saved_signal_name(number)) == number
    assert layout.parse_saving_signal(f"save_signal_TMP_{number}") == number


@pytest.mark.parametrize("number", ["", "01", "-1", "1 ", "1\n", "١", "1.0", "latest", "9" * 19])
def test_other_names_that_hold_no_number(number: str) -> None:
    assert layout.parse_metadata_name(f"{number}.metadata") is None
    assert layout.parse_metadata_lock_name(f"{number}.metadata.lock") is None
    assert layout.parse_step_name(f"checkpoint-{number}") is None
    assert layout.parse_saved_signal(f"saved_signal_{number}") is None
    assert layout.parse_saving_signal(f"save_signal_TMP_{number}") is None


def test_a_name_of_one_kind_is_of_no_other() -> None:
    parsers = [
        layout.parse_metadata_name,
        layout.parse_metadata_lock_name,
        layout.parse_step_name,
        layout.parse_saved_signal,
        layout.parse_saving_signal,
    ]
    names = ["7.metadata", "7.metadata.lock", "checkpoint-7", "saved_signal_7", "save_signal_TMP_7"]
    for kind, name in enumerate(names):
        assert [parse(name) for parse in parsers] == [7 if i == kind else None for i in range(len(names))]
        assert parse_rank_file_name(name) is None
