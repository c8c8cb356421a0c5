"""Which tensors differ and how, decided from tables and sums alone."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.diff import Difference, Sums, ValueChange, compare_tables, report_diff
from ckptcore.rules.manifest import TensorRecord
from ckptcore.rules.tensors import DTYPES, Shape, TensorSpec

DTYPE_NAMES = sorted(name for name, dtype in DTYPES.items() if dtype.safetensors)
RECORDS = st.builds(
    TensorRecord,
    st.builds(
        TensorSpec,
        st.sampled_from(["a", "b", "layers.2.w", "layers.10.w"]),
        st.sampled_from(["float32", "bfloat16", "float8_e4m3fn", "int32", "complex64"]),
        st.sampled_from([(), (4,), (2, 2), (0,)]),
    ),
    st.just("model.safetensors"),
    st.sampled_from(["", "d1", "d2"]),
)
TABLES = st.lists(RECORDS, unique_by=lambda record: record.spec.key)
NUMBERS = st.floats(min_value=0, allow_nan=False, allow_infinity=True)
COUNTS = st.integers(0, 1000)
SUMS = st.builds(Sums, COUNTS, COUNTS, COUNTS, NUMBERS, NUMBERS, st.floats(min_value=0, allow_infinity=False))


def shape_and_dtype(spec: TensorSpec | None) -> tuple[Shape, str]:
    assert spec is not None
    return spec.shape, spec.dtype


@given(TABLES, TABLES, st.data())
def test_every_tensor_is_told_of_once(a: list[TensorRecord], b: list[TensorRecord], data: st.DataObject) -> None:
    compared = compare_tables(a, b)
    measured = {old.key: data.draw(SUMS) for old, _ in compared.pairs}
    report = report_diff("a", "b", compared, measured)
    keys = [change.key for change in report.changes]
    assert len(set(keys)) == len(keys)
    assert len(keys) + report.unchanged == len({record.spec.key for record in [*a, *b]})
    before, after = ({record.spec.key: record.spec for record in table} for table in (a, b))
    for change in report.changes:
        old, new = before.get(change.key), after.get(change.key)
        assert (change.before, change.after) == (old, new)
        match change.difference:
            case Difference.ADDED:
                assert old is None
            case Difference.REMOVED:
                assert new is None
            case Difference.RESHAPED:
                assert shape_and_dtype(old)[0] != shape_and_dtype(new)[0]
            case Difference.RECAST:
                assert shape_and_dtype(old)[0] == shape_and_dtype(new)[0]
                assert shape_and_dtype(old)[1] != shape_and_dtype(new)[1]
            case Difference.CHANGED:
                assert old == new
                assert change.values is not None
                assert change.values.differing
    json.dumps(report.to_json(), allow_nan=False)
    assert len(list(report.lines())) == len(keys) + 1


@given(TABLES, TABLES)
def test_the_order_of_the_tables_does_not_matter(a: list[TensorRecord], b: list[TensorRecord]) -> None:
    assert compare_tables(a, b).pairs == compare_tables(a[::-1], b[::-1]).pairs
    assert set(compare_tables(a, b).changes) == set(compare_tables(a[::-1], b[::-1]).changes)


@given(TABLES)
def test_a_table_with_digests_equals_itself_without_reading(table: list[TensorRecord]) -> None:
    digested = [TensorRecord(record.spec, record.file, "d") for record in table]
    compared = compare_tables(digested, digested)
    assert (compared.changes, compared.pairs, compared.equal) == ((), (), len(table))


@pytest.mark.parametrize(("a", "b"), [("", ""), ("d", ""), ("", "d"), ("d1", "d2")])
def test_without_two_equal_digests_the_bytes_are_read(a: str, b: str) -> None:
    spec = TensorSpec("w", "float32", (2,))
    assert compare_tables([TensorRecord(spec, "f", a)], [TensorRecord(spec, "g", b)]).pairs == ((spec, spec),)


@pytest.mark.parametrize("old", DTYPE_NAMES)
@pytest.mark.parametrize("new", DTYPE_NAMES)
def test_only_real_numbers_are_compared_across_dtypes(old: str, new: str) -> None:
    tables = [[TensorRecord(TensorSpec("w", dtype, (2,)), "f")] for dtype in (old, new)]
    compared = compare_tables(*tables)
    assert bool(compared.pairs) == (old == new or ("float" in old and "float" in new))


@given(SUMS, SUMS)
def test_sums_of_parts_add_up(a: Sums, b: Sums) -> None:
    both = a + b
    assert (both.elements, both.differing) == (a.elements + b.elements, a.differing + b.differing)
    assert both.largest == max(a.largest, b.largest)
    assert a + Sums() == a


def change(**sums: float) -> ValueChange:
    return ValueChange.of(Sums(elements=4, differing=1, **sums), is_float=True)  # type: ignore[arg-type]


def test_the_relative_change_is_a_quotient_of_norms() -> None:
    assert change(squares=100.0, difference_squares=1.0, largest=1.0).relative == 0.1
    assert change(squares=100.0).relative == 0.0, "minus zero became zero"


@pytest.mark.parametrize(
    "sums",
    [
        {"squares": 0.0, "difference_squares": 1.0, "largest": 1.0},
        {"squares": math.inf, "difference_squares": 1.0, "largest": 1.0},
        {"squares": 1.0, "difference_squares": math.inf, "largest": 1e300},
        {"squares": 1.0, "difference_squares": 0.0, "largest": 1e-200},
        {"squares": 1.0, "not_finite": 1},
        {"squares": 1.0, "difference_squares": 1.0, "largest": 1.0, "not_finite": 1},
    ],
)
def test_where_no_number_says_it_there_is_none(sums: dict[str, float]) -> None:
    assert change(**sums).relative is None


def test_the_largest_change_comes_first_and_what_no_number_says_before_it() -> None:
    specs = [TensorSpec(key, "float32", (4,)) for key in ("small", "large", "nan", "zero", "gone")]
    a, b = ([TensorRecord(spec, "f") for spec in table] for table in (specs, specs[:-1]))
    measured = {
        "small": Sums(4, 1, 0, 1.0, 0.01, 0.1),
        "large": Sums(4, 1, 0, 1.0, 0.25, 0.5),
        "nan": Sums(4, 1, 1, 1.0, 0.0, 0.0),
        "zero": Sums(4, 0, 0, 1.0, 0.0, 0.0),
    }
    report = report_diff("a", "b", compare_tables(a, b), measured)
    assert [change.key for change in report.changes] == ["gone", "nan", "large", "small"]
    assert list(report.lines())[-1] == "1 removed, 0 added, 0 reshaped, 0 recast, 3 changed, 1 unchanged"
