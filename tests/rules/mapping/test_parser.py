from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import MappingError
from ckptcore.rules.mapping import compile_program, mapping_from_document, parse_statements
from ckptcore.rules.mapping.statements import (
    AlongAxis,
    Cast,
    FusedFfn,
    FusedQkv,
    FusedQkvByRank,
    Operand,
    Permute,
    Rename,
    Statement,
)
from ckptcore.rules.tensors import TensorSpec


def parsed(text: str) -> Statement:
    (statement,) = parse_statements([text]).statements
    return statement


@pytest.mark.parametrize(
    ("text", "operation"),
    [
        ("a -> b", Rename()),
        ("a->b", Rename()),
        ("a, b -> c, axis=0", AlongAxis(0)),
        ("a -> b, c, axis = 2", AlongAxis(2)),
        ("a -> b, axis=1", AlongAxis(1)),
        ('a -> b, permute="[2, 0,1]"', Permute((2, 0, 1))),
        ("a -> b, permute='[]'", Permute(())),
        ('a -> b, dtype="bfloat16"', Cast("bfloat16")),
        ("a -> b, src_dtype='float32', dst_dtype='float16'", Cast("float16", "float32")),
        ("a -> q, k, v, fused_qkv, num_heads=8, num_key_value_groups=2", FusedQkv(8, 2, 1)),
        ("q, k, v -> a, axis=0, fused_qkv, num_heads=8, num_key_value_groups=2", FusedQkv(8, 2, 0)),
        ("a -> b, fused_qkv_old, num_heads=8, num_key_value_groups=2", FusedQkvByRank(8, 2, 1)),
        ("a -> g, u, fused_ffn, axis=0", FusedFfn(0)),
        ("a -> b, fused_ffn", FusedFfn(1)),
    ],
)
def test_operations(text: str, operation: object) -> None:
    assert parsed(text).operation == operation


def test_names() -> None:
    statement = parsed("layers.$LAYER_ID.w^T, x[2:4], y.*.z -> c, axis=0")
    assert statement.left == (
        Operand("layers.$LAYER_ID.w", is_transposed=True),
        Operand("x_2"),
        Operand("x_3"),
        Operand("y.*.z"),
    )
    assert str(statement.left[0]) == "layers.$LAYER_ID.w^T"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "expected a tensor name, found the end"),
        ("a => b", "unexpected character '>' at position 3"),
        ("a -> b;", "unexpected character ';' at position 6"),
        ("0 -> b", "expected a tensor name, found '0' at position 0"),
        ("a = b", "expected `->`, found '=' at position 2"),
        ("a -> b,", "expected a tensor name, found the end"),
        ("a -> b c", "unexpected 'c' at position 7"),
        ("a -> b -> c", "unexpected '->' at position 7"),
        ("a -> b^T", "b^T is a view and cannot be assigned"),
        ("a -> b.*.c", "b.*.c on the right needs the target's names"),
        ("a -> b.w_0", "b.w_0 names an optimizer state"),
        ("a -> b.w[0:2], axis=0", "b.w_0 names an optimizer state"),
        ("a -> b[1:1]", "b[1:1] names nothing"),
        ("a -> b[0:1000000000], axis=0", "the number at position 9 has more than 6 digits"),
        ("a^T[0:2] -> b, axis=0", "^T cannot be combined with an array"),
        ("axis -> b", "axis is a word of the language"),
        ("a -> fused_ffn", "fused_ffn is a word of the language"),
        ("a, b -> c", "a split or a join needs axis="),
        ("a.*.b -> c", "a split or a join needs axis="),
        ("a, b -> c, d, axis=0", "several names on both sides"),
        ("a, b -> c, axis='0'", "axis must be a number: found '0'"),
        ("a, b -> c, permute='[1,0]'", "a split or a join takes axis alone; found permute"),
        ("a -> b, axis=0, axis=0", "attribute axis is given twice"),
        ("a -> b, order=1", "there is no attribute order"),
        ("a -> b, dtype='float16', c", "a name follows an attribute"),
        ("a -> b, dtype='float16', permute='[1,0]'", "found dtype, permute"),
        ("a -> b, src_dtype='float16'", "found src_dtype"),
        ("a -> b, dtype='float64'", "dtype must be one of float16, float32, bfloat16: found 'float64'"),
        ("a -> b, dtype=16", "dtype must be one of"),
        ("a -> b, dtype=float16", "expected a number or a quoted value, found 'float16'"),
        ("a -> b, permute='[1,1]'", "a list of the axes, each once"),
        ("a -> b, permute='[-1,0]'", "a list of the axes, each once"),
        ("a -> b, permute='(1,0)'", "a list of the axes, each once"),
        ("a -> b, permute='[1,0'", "a list of the axes, each once"),
        ("a -> b, permute='[True, False]'", "a list of the axes, each once"),
        ("a -> b, permute=1", "a list of the axes, each once"),
        ("a -> b, c, d, fused_ffn", "fused_ffn maps 1 -> 1 or 1 -> 2 or 2 -> 1 names; found 1 -> 3"),
        ("a -> b, fused_qkv, num_heads=4, num_key_value_groups=2", "fused_qkv maps 1 -> 3 or 3 -> 1 names"),
        ("a -> _, fused_ffn", "fused_ffn needs a tensor on both sides"),
        ("a -> b, c, fused_ffn, dtype='float16'", "fused_ffn ignores dtype"),
        ("a -> b, fused_ffn, fused_qkv", "more than one of"),
        ("a -> q, k, v, fused_qkv, num_heads=8", "num_key_value_groups=… is missing"),
        ("a -> q, k, v, fused_qkv, num_heads=8, num_key_value_groups=3", "no positive multiple"),
        ("a -> q, k, v, fused_qkv, num_heads=0, num_key_value_groups=1", "no positive multiple"),
        ("a -> _, b, axis=0", "_ stands for no tensor and must be alone"),
    ],
)
def test_what_is_no_statement(text: str, why: str) -> None:
    with pytest.raises(MappingError) as refusal:
        parse_statements([text])
    (issue,) = refusal.value.issues
    assert issue.where == f"statement 1 `{text}`"
    assert why in issue.what


_SPELLINGS = (
    "a b a.w.1 x$LAYER_ID y.* z^T _ -> , = : [ ] 0 3 99999999 # axis dtype permute fused_qkv fused_qkv_old fused_ffn "
    "num_heads num_key_value_groups 'float16' '[1,0]'"
)
_WORDS = st.sampled_from([*_SPELLINGS.split(), "\n"])
_TEXTS = st.one_of(st.text(), st.lists(_WORDS).map(" ".join), st.text().map(lambda text: f"a -> b, permute='[{text}]'"))


@given(_TEXTS)
def test_any_text_is_a_program_or_refused(text: str) -> None:
    specs = [TensorSpec("a", "float32", (4, 4)), TensorSpec("a.w.1", "float32", (4,))]
    try:
        compile_program(parse_statements([text]), specs, {})
    except MappingError as error:
        refusal = error
    else:
        return
    assert refusal.issues


def test_every_line_is_reported_with_its_number() -> None:
    with pytest.raises(MappingError) as refusal:
        parse_statements(["a => b", "a -> b", "b"])
    assert [issue.where for issue in refusal.value.issues] == ["statement 1 `a => b`", "statement 3 `b`"]


def test_a_line_may_hold_several_statements() -> None:
    program = parse_statements(["a -> b\n\nb -> c\n", "c -> d"])
    assert [(each.number, each.text) for each in program.statements] == [(1, "a -> b"), (1, "b -> c"), (2, "c -> d")]


@pytest.mark.parametrize("document", [["a -> b"], {"aoa_statements": ["a -> b"], "enable_traceback": False}])
def test_documents(document: object) -> None:
    assert mapping_from_document(document) == parse_statements(["a -> b"])


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("a -> b", "must be a list of statements"),
        (None, "must be a list of statements"),
        ([1], "must be a list of statements"),
        ({}, "has no aoa_statements"),
        ({"aoa_statements": "a -> b"}, "must be a list of statements"),
        ({"aoa_statements": [], "statements": []}, "unknown keys in the mapping: statements"),
        ({"aoa_statements": [], "aoa_config_reverse": "yes"}, "must be true or false: found 'yes'"),
    ],
)
def test_what_is_no_document(document: object, why: str) -> None:
    with pytest.raises(MappingError, match=why):
        mapping_from_document(document)
