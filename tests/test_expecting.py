"""Expectation files: what is written is read back the same, and what cannot be read says where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import InvalidExpectations, StorageError
from ckptcore.expecting import expectations_yaml, read_expectations
from ckptcore.rules.shapes import Expectation, check_expectations, describe
from ckptcore.rules.tensors import TensorSpec


def read(tmp_path: Path, content: str | bytes) -> tuple[Expectation, ...]:
    path = tmp_path / "shapes.yaml"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return read_expectations(path)


def test_no_file_means_no_expectations() -> None:
    assert read_expectations(None) == ()


def test_a_file_is_read_in_its_own_order(tmp_path: Path) -> None:
    expectations = read(
        tmp_path,
        """
        # What serving needs.
        tensors:
          model.layers.*.q.weight: {shape: [64, '*'], dtype: bfloat16, count: 32}
          lm_head.weight: {dtype: float32}
          '*':
        """,
    )
    assert expectations == (
        Expectation("model.layers.*.q.weight", (64, None), "bfloat16", 32),
        Expectation("lm_head.weight", None, "float32", None),
        Expectation("*", None, None, None),
    )


# Names that YAML would read as something else, names with the characters of globs, and any other.
NAMES = st.one_of(
    st.sampled_from(
        ["1", "yes", "null", "~", "1.5", "2001-01-01", "a: b", "#x", "w[0]", "a*", "é", "- a", "'", '"', "&a"]
    ),
    st.text(min_size=1, max_size=8),
)
SPECS = st.builds(
    TensorSpec,
    NAMES,
    st.sampled_from(["float32", "bfloat16", "bool"]),
    st.lists(st.integers(0, 9), max_size=3).map(tuple),
)


@given(st.lists(SPECS, min_size=1, max_size=12, unique_by=lambda spec: spec.key))
def test_what_is_written_of_tensors_is_met_by_them(
    tmp_path_factory: pytest.TempPathFactory, specs: list[TensorSpec]
) -> None:
    written = expectations_yaml(describe(specs))
    assert check_expectations(specs, read(tmp_path_factory.getbasetemp(), written)) == ()


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        ("tensors: {w: [", r"line 1, column 15: .* found '<stream end>'"),
        ("tensors:\n  w: {shape: [1}\n", r"line 2, column 16: "),
        (b"\xff\xfe\x00", r"not a YAML document: "),
        ("tensors: 2001-99-99", r"month must be in 1\.\.12"),
        ("[" * 2000, r"recursion"),
        ("!!python/object/apply:os.system [echo]", r"could not determine a constructor"),
        ("tensors: *unknown", r"undefined alias"),
    ],
)
def test_what_is_no_yaml_says_where_on_one_line(tmp_path: Path, content: str | bytes, fault: str) -> None:
    with pytest.raises(InvalidExpectations, match=fault) as caught:
        read(tmp_path, content)
    assert caught.value.message.startswith(f"{tmp_path}/shapes.yaml: not a YAML document: ")
    assert "\n" not in caught.value.message


def test_every_mistake_is_told_with_the_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidExpectations) as caught:
        read(tmp_path, "tensors: {a: {shape: x, dtyp: 1}, b: {count: -1, dtype: int4}}")
    assert caught.value.message == f"{tmp_path}/shapes.yaml: the expectations cannot be read"
    assert [issue.where for issue in caught.value.issues] == [
        "tensors: 'a'",
        "tensors: 'a': shape",
        "tensors: 'b': count",
        "tensors: 'b': dtype",
    ]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="No such file"):
        read_expectations(tmp_path / "nothing.yaml")
    with pytest.raises(StorageError, match="is a directory, no regular file"):
        read_expectations(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(StorageError, match="is a FIFO, no regular file"):
        read_expectations(tmp_path / "fifo")


@pytest.mark.parametrize(
    "content", ["tensors:\n  w: {shape: [4]}\n  w: {shape: [1]}", "tensors:\n  w:\n    shape: [4]\n    'shape': [1]"]
)
def test_nothing_is_said_twice(tmp_path: Path, content: str) -> None:
    with pytest.raises(InvalidExpectations, match=r"line [34], column [35]: '(w|shape)' is given twice"):
        read(tmp_path, content)


def test_merged_mappings_are_no_repeats(tmp_path: Path) -> None:
    content = "tensors:\n  a: &a {shape: [4], dtype: float32}\n  b: {<<: *a, shape: [1]}"
    assert read(tmp_path, content)[1] == Expectation("b", (1,), "float32", None)
