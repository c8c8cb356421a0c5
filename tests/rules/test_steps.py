"""What the steps of a run add up to, and that a history says the same again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.release import Act, parse_history
from ckptcore.rules.steps import StepTime, VerbTotal, totals, totals_of

TOTALS = st.dictionaries(
    st.text(min_size=1),
    st.builds(VerbTotal, st.integers(0, 10**6).map(float), st.integers(0, 2**60)),
    max_size=5,
)


def test_each_second_is_counted_once_for_the_innermost_step() -> None:
    steps = [
        StepTime("verify", 0.5, 2.0, 2.0),
        StepTime("detect", 0.0, 3.0, 1.0),
        StepTime("verify", 4.0, 1.0, 1.0, 5),
        StepTime("merge", 6.0, 4.0, 4.0, 100),
    ]
    spent = totals(steps)
    assert list(spent.items()) == [
        ("detect", VerbTotal(1.0, 0)),
        ("verify", VerbTotal(3.0, 5)),
        ("merge", VerbTotal(4.0, 100)),
    ]


@given(TOTALS)
def test_a_history_says_what_was_recorded(took: dict[str, VerbTotal]) -> None:
    act = Act("2024-05-01T00:00:00Z", "publish", "step-1_id-0_000000000000", took=took)
    assert parse_history(act.to_line()) == (act,)


def test_an_act_without_totals_reads_as_one_that_took_nothing() -> None:
    [act] = parse_history(b'{"at": "t", "act": "publish", "release": "r"}\n')
    assert act.took == {}


@given(
    st.recursive(
        st.none() | st.booleans() | st.floats() | st.integers() | st.text(),
        lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from(["merge", "seconds", "bytes"]), inner),
    )
)
def test_whatever_stands_there_is_totals_or_nothing(document: object) -> None:
    for total in totals_of(document).values():
        assert total.seconds >= 0
        assert total.size_bytes >= 0


def test_what_is_no_total_is_left_out() -> None:
    fine = VerbTotal(1.5, 7)
    wrong = [
        {"seconds": -1, "bytes": 0},
        {"seconds": True, "bytes": 0},
        {"seconds": 1e999, "bytes": 0},
        {"seconds": 1},
        3,
    ]
    document = {str(number): total for number, total in enumerate(wrong)} | {"merge": fine.to_json()}
    assert totals_of(document) == {"merge": fine}
