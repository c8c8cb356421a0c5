"""Cron lines: what is accepted, Prefect takes, and it comes true some day."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib import import_module
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.cron import cron_mistake

croniter: Any = import_module("prefect._vendor.croniter").croniter

VALUES = st.sampled_from([*"*?0157L", "23", "24", "29", "30", "31", "59", "60", "jan", "sun", "l5", "mon#2", "7#5"])
STEPS = st.sampled_from(["", "", "/1", "/5", "/0", "/70", "-5", "-31", "-sun", "-2/3"])
PARTS = st.builds(str.__add__, VALUES, STEPS)
FIELDS = st.one_of(st.just("*"), st.lists(PARTS, min_size=1, max_size=2).map(",".join))


@given(st.lists(FIELDS, min_size=5, max_size=5).map(" ".join))
def test_what_is_accepted_has_a_next_time_with_prefect(text: str) -> None:
    if cron_mistake(text) is None:
        assert croniter.is_valid(text)
        assert croniter(text, datetime(2026, 1, 1, tzinfo=UTC)).get_next(datetime)


@pytest.mark.parametrize(
    "text", ["0 3 * * *", "*/5 * * * *", "0 6-18/2 * jan-mar mon-fri", "0 0 L * *", "0 3 * * L5", "0 0 29 2 *"]
)
def test_right_lines(text: str) -> None:
    assert cron_mistake(text) is None


@pytest.mark.parametrize("text", ["61 3 * * *", "0 24 * * *", "0 0 0 * *", "0 0 * 13 *", "0 0 30 2 *", "*/0 * * * *"])
def test_wrong_lines(text: str) -> None:
    assert cron_mistake(text)
