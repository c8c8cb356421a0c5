"""Expected names, shapes and dtypes against those found, and the document that says what is expected."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import InvalidExpectations
from ckptcore.rules.shapes import Expectation, check_expectations, compare_specs, describe, parse_expectations
from ckptcore.rules.tensors import TensorSpec


def layer(number: int) -> list[TensorSpec]:
    return [
        TensorSpec(f"layers.{number}.norm", "float32", (8,)),
        TensorSpec(f"layers.{number}.mlp.w", "bfloat16", (8, 32)),
    ]


RELEASE = [
    TensorSpec("embed", "bfloat16", (100, 8)),
    *layer(0),
    *layer(1),
    *layer(10),
    TensorSpec("scale", "float32", ()),
]


def found(specs: list[TensorSpec], *expectations: Expectation) -> list[str]:
    return [str(issue) for issue in check_expectations(specs, expectations)]


def test_a_release_is_described_by_folding_its_layers() -> None:
    assert describe(RELEASE) == {
        "tensors": {
            "embed": {"shape": [100, 8], "dtype": "bfloat16"},
            "scale": {"shape": [], "dtype": "float32"},
            "layers.*.mlp.w": {"shape": [8, 32], "dtype": "bfloat16", "count": 3},
            "layers.*.norm": {"shape": [8], "dtype": "float32", "count": 3},
        }
    }
    assert list(describe(RELEASE)["tensors"]) == list(describe(RELEASE[::-1])["tensors"])


def test_a_layer_of_another_shape_is_written_out() -> None:
    odd = [TensorSpec("layers.2.norm", "float32", (9,))]
    rows = describe(RELEASE + odd)["tensors"]
    assert rows["layers.2.norm"] == {"shape": [9], "dtype": "float32"}
    assert rows["layers.*.norm"]["count"] == 3
    assert check_expectations(RELEASE + odd, parse_expectations(describe(RELEASE + odd))) == ()


def test_a_folded_name_never_judges_tensors_of_another() -> None:
    nested = [TensorSpec(f"a.{i}.w", "int8", (1,)) for i in range(9)]
    nested += [TensorSpec(f"a.{i}.b.{j}.w", "int8", (2,)) for i in range(2) for j in range(2)]
    assert list(describe(nested)["tensors"]) == ["a.*.b.*.w", "a.*.w"]
    assert check_expectations(nested, parse_expectations(describe(nested))) == ()

    # "*.*.b" also matches ".0.b", and neither pattern is the more specific.
    same = [TensorSpec(f"{i}.0.b", "int8", (1,)) for i in range(2)] + [
        TensorSpec(f".{i}.b", "int8", (2,)) for i in range(2)
    ]
    assert list(describe(same)["tensors"]) == [".0.b", ".1.b", "*.*.b"]
    assert check_expectations(same, parse_expectations(describe(same))) == ()

    numbers = [TensorSpec(str(i), "int8", (1,)) for i in range(3)]
    assert list(describe(numbers)["tensors"]) == ["0", "1", "2"]


PARTS = st.sampled_from(["a", "b", "*", "[", "?", "]", "0", "1", "12", "[*]", "٣", ""])
SPECS = st.lists(
    st.builds(
        TensorSpec,
        st.lists(PARTS, min_size=1, max_size=5).map(".".join),
        st.sampled_from(["float32", "int8"]),
        st.sampled_from([(), (1,), (2, 3)]),
    ),
    unique_by=lambda spec: spec.key,
    min_size=1,
    max_size=25,
)


@given(SPECS, st.data())
def test_a_release_meets_its_own_description_and_others_do_not(specs: list[TensorSpec], data: st.DataObject) -> None:
    expectations = parse_expectations(describe(specs))
    assert check_expectations(data.draw(st.permutations(specs)), expectations) == ()

    i = data.draw(st.integers(0, len(specs) - 1))
    others = specs[:i] + specs[i + 1 :]
    assert check_expectations(others, expectations)
    assert check_expectations([*others, TensorSpec(specs[i].key, specs[i].dtype, (5, 5))], expectations)
    assert check_expectations([*others, TensorSpec(specs[i].key, "bool", specs[i].shape)], expectations)
    assert check_expectations([*specs, TensorSpec("not.expected", "int8", ())], expectations)


def test_every_mismatch_is_named() -> None:
    assert found(
        RELEASE,
        Expectation("embed", (100, 16), "float32"),
        Expectation("layers.*.mlp.w", (8, None, 1)),
        Expectation("layers.*", (None,), None, 4),
        Expectation("lm_head"),
    ) == [
        "expectation 'layers.*': the number of tensors is not the expected one: expected 4, found 3",
        "expectation 'lm_head': no tensor matches it",
        "tensor 'embed': its dtype is not the expected one: expected float32, found bfloat16",
        "tensor 'embed': its shape is not the expected one: expected [100, 16], found [100, 8]",
        "tensor 'layers.0.mlp.w': its shape is not the expected one: expected [8, *, 1], found [8, 32]",
        "tensor 'layers.1.mlp.w': its shape is not the expected one: expected [8, *, 1], found [8, 32]",
        "tensor 'layers.10.mlp.w': its shape is not the expected one: expected [8, *, 1], found [8, 32]",
        "tensor 'scale': no expectation names it",
    ]


def test_wildcards_counts_and_the_catch_all() -> None:
    assert found(RELEASE, Expectation("layers.*.mlp.w", (None, 32), "bfloat16", 3), Expectation("*")) == []
    assert found(RELEASE[:1], Expectation("embed"), Expectation("*")) == []
    assert found(RELEASE[:1], Expectation("embed"), Expectation("*", count=1)) == [
        "expectation '*': the number of tensors is not the expected one: expected 1, found 0"
    ]
    assert found(RELEASE, Expectation("lm_head", count=0), Expectation("*")) == []
    assert found(RELEASE[:1], Expectation("embed", count=0)) != []


def test_the_first_pattern_that_matches_judges() -> None:
    specs = [TensorSpec("a.1", "int8", (1,)), TensorSpec("a.2", "int8", (2,))]
    assert found(specs, Expectation("a.2", (2,)), Expectation("a.?", (1,))) == []
    assert found(specs, Expectation("a.?", (1,)), Expectation("a.2", (2,))) == [
        "expectation 'a.2': no tensor matches it",
        "tensor 'a.2': its shape is not the expected one: expected [1], found [2]",
    ]
    assert found(specs, Expectation("a.[12]"), Expectation("*.[12]", count=0)) == []


def test_a_document_is_read_in_its_order() -> None:
    document = {"tensors": {"b.*": {"shape": [2, "*"], "dtype": "int8", "count": 0}, "a": None, "c": {}}}
    assert parse_expectations(document) == (
        Expectation("b.*", (2, None), "int8", 0),
        Expectation("a"),
        Expectation("c"),
    )


@pytest.mark.parametrize(
    "document",
    [None, [], "tensors", {}, {"tensors": None}, {"tensors": {}}, {"tensors": []}, {"tensors": {"a": {}}, "x": 1}],
)
def test_a_document_of_another_form_is_refused(document: object) -> None:
    with pytest.raises(InvalidExpectations, match="the one key 'tensors'"):
        parse_expectations(document)


def test_every_mistake_in_a_document_is_named() -> None:
    rows = {
        1: {},
        "list": [],
        "shape": {"shape": [1, -1], "dtype": "float33", "count": -1},
        "types": {"shape": "*", "dtype": ["float32"], "count": True},
        "extents": {"shape": [True, 1.5, None]},
        "unknown": {"shapes": [1]},
        "good": {"shape": [1]},
    }
    with pytest.raises(InvalidExpectations) as refusal:
        parse_expectations({"tensors": rows})
    assert [issue.where for issue in refusal.value.issues] == [
        "tensors: 'extents': shape",
        "tensors: 'list'",
        "tensors: 'shape': count",
        "tensors: 'shape': dtype",
        "tensors: 'shape': shape",
        "tensors: 'types': count",
        "tensors: 'types': dtype",
        "tensors: 'types': shape",
        "tensors: 'unknown'",
        "tensors: 1",
    ]


def test_two_lists_of_tensors_are_compared_exactly() -> None:
    assert compare_specs(RELEASE, RELEASE[::-1]) == ()
    other = [TensorSpec("embed", "float32", (8, 100)), *RELEASE[2:], TensorSpec("extra", "int8", ())]
    assert [str(issue) for issue in compare_specs(RELEASE, other)] == [
        "tensor 'embed': its dtype is not the expected one: expected bfloat16, found float32",
        "tensor 'embed': its shape is not the expected one: expected [100, 8], found [8, 100]",
        "tensor 'extra': is not expected",
        "tensor 'layers.0.norm': is missing",
    ]
