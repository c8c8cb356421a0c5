from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ckptcore.errors import MappingError
from ckptcore.rules.issues import Issue
from ckptcore.rules.mapping import PieceStarts, compile_program, inverse_of, parse_statements, piece_starts
from ckptcore.rules.regions import OutputTensor, Region
from ckptcore.rules.tensors import Box, IndexedTensor, Piece, TensorSpec
from tests.rules.mapping.support import Array, Tensors, carried_out, tensors


def grid(*shape: int) -> Array:
    return np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)


def made(source: Tensors, *lines: str) -> dict[str, Array]:
    return carried_out(compile_program(parse_statements(lines), source.specs, source.starts).outputs, source)


def notes(source: Tensors, *lines: str) -> list[Issue]:
    return [
        note
        for note in compile_program(parse_statements(lines), source.specs, source.starts).notes
        if note.code != "mapping-passed-through"
    ]


def refused(source: Tensors, *lines: str) -> list[str]:
    with pytest.raises(MappingError) as refusal:
        compile_program(parse_statements(lines), source.specs, source.starts)
    return [f"{issue.where.split(' `')[0]}: {issue.what}" for issue in refusal.value.issues]


def sharded(source: Tensors, **starts: PieceStarts) -> Tensors:
    return Tensors(source.specs, source.values, starts)


def same(found: dict[str, Array], **expected: Array) -> bool:
    return found.keys() == expected.keys() and all(np.array_equal(found[key], value) for key, value in expected.items())


def test_nothing_is_moved_that_no_statement_mentions() -> None:
    source = tensors(a=grid(2, 3), s=grid())
    whole = Box((0, 0), (2, 3))
    compiled = compile_program(parse_statements([]), source.specs, {})
    assert compiled.outputs[0] == OutputTensor("a", "float32", (2, 3), (Region(whole, "a", whole, (0, 1)),))
    assert [str(note) for note in compiled.notes] == [
        "a: no statement mentions it; passed through",
        "s: no statement mentions it; passed through",
    ]


def test_regions_are_boxes_of_the_source() -> None:
    source = tensors(a=grid(4, 6))
    (output,) = compile_program(
        parse_statements(["a^T -> t", "t -> x, y, axis=0", "y, x -> z, axis=0"]), source.specs, {}
    ).outputs
    assert output == OutputTensor(
        "z",
        "float32",
        (6, 4),
        (
            Region(Box((0, 0), (3, 4)), "a", Box((0, 3), (4, 3)), (1, 0)),
            Region(Box((3, 0), (3, 4)), "a", Box((0, 0), (4, 3)), (1, 0)),
        ),
    )


def test_parts_that_come_together_again_are_one_region() -> None:
    source = tensors(a=grid(4, 6))
    lines = ["a -> p, q, r, axis=1", "p, q, r -> b, axis=1"]
    (output,) = compile_program(parse_statements(lines), source.specs, {}).outputs
    assert output.regions == (Region(Box((0, 0), (4, 6)), "a", Box((0, 0), (4, 6)), (0, 1)),)
    lines = ["a^T -> p, q, r, axis=0", "p, q, r -> b, axis=0"]
    (output,) = compile_program(parse_statements(lines), source.specs, {}).outputs
    assert output.regions == (Region(Box((0, 0), (6, 4)), "a", Box((0, 0), (4, 6)), (1, 0)),)


def test_casts_are_kept_in_order_and_a_cast_to_the_same_dtype_is_none() -> None:
    source = tensors(a=grid(4), b=grid(4))
    lines = [
        "a -> c, dtype='float16'",
        "c -> d, dtype='bfloat16'",
        "d -> a, dtype='float32'",
        "b -> e, dtype='float32'",
    ]
    outputs = {output.key: output for output in compile_program(parse_statements(lines), source.specs, {}).outputs}
    assert outputs["a"].regions[0].casts == ("float16", "bfloat16", "float32")
    assert outputs["a"].dtype == "float32"
    assert outputs["e"].regions[0].casts == ()


def test_fused_weights_alternate_by_the_pieces_along_their_axis() -> None:
    gate, up = grid(3, 8), -grid(3, 8)
    fused = np.concatenate([gate[:, :4], up[:, :4], gate[:, 4:], up[:, 4:]], 1)
    source = sharded(tensors(w=fused), w=((0,), (0, 8)))
    assert same(made(source, "w -> g, u, fused_ffn"), g=gate, u=up)
    assert same(made(source, "w -> plain, fused_ffn"), plain=np.concatenate([gate, up], 1))
    # Paddle loses the count behind ^T and halves the tensor.
    assert same(made(source, "w^T -> g, u, fused_ffn, axis=0"), g=gate.T, u=up.T)
    assert same(made(source, "w -> x", "x -> t, permute='[]'", "t -> g, u, fused_ffn, axis=0"), g=gate.T, u=up.T)
    # Pieces along the other axis say nothing about the fused one; Paddle counts them.
    rows = sharded(tensors(w=np.concatenate([gate, up], 1)), w=((0, 2), (0,)))
    assert same(made(rows, "w -> g, u, fused_ffn"), g=gate, u=up)


def test_fused_attention_by_rank() -> None:
    query, key, value = grid(2, 16), -grid(2, 8), grid(2, 8) + 100
    ranks = [np.split(part, 2, 1) for part in (query, key, value)]
    by_rank = [part[rank] for rank in range(2) for part in ranks]
    source = sharded(tensors(w=np.concatenate(by_rank, 1)), w=((0,), (0, 16)))
    heads = "fused_qkv_old, num_heads=4, num_key_value_groups=2"
    assert same(made(source, f"w -> q, k, v, {heads}"), q=query, k=key, v=value)
    assert same(made(source, f"w -> x, {heads}"), x=np.concatenate([query, key, value], 1))
    assert refused(source, "w -> q, k, v, fused_qkv_old, num_heads=1, num_key_value_groups=1") == [
        "statement 1: 1 heads and 1 key/value heads do not divide among the 2 pieces"
    ]


def test_one_head_or_one_piece_is_still_named_as_the_statement_says() -> None:
    # Paddle's full-parameter path gives `fused_ffn_tmp.GATE_0` and `x` here.
    source = tensors(x=grid(2, 4))
    assert same(made(source, "x -> g, u, fused_ffn"), g=grid(2, 4)[:, :2], u=grid(2, 4)[:, 2:])
    assert same(made(source, "x -> y, axis=0"), y=grid(2, 4))


def test_ids_are_found_among_names_that_statements_made() -> None:
    # Paddle looks at the source alone and drops the second statement.
    source = tensors(**{"L.0.w": grid(2, 4), "L.1.w": grid(2, 4) + 8})
    lines = ["L.$LAYER_ID.w -> M.$LAYER_ID.a, M.$LAYER_ID.b, axis=1", "M.$LAYER_ID.a^T -> M.$LAYER_ID.a"]
    found = made(source, *lines)
    assert np.array_equal(found["M.1.a"], (grid(2, 4) + 8)[:, :2].T)
    assert np.array_equal(found["M.1.b"], (grid(2, 4) + 8)[:, 2:])


def test_stars_count_as_numbers_do() -> None:
    source = tensors(**{f"e.{index}.w": grid(1) + index for index in (10, 2, 0)}, **{"e.x.w": grid(1)})
    assert same(made(source, "e.*.w -> w, axis=0"), **{"w": np.array([0, 2, 10], np.float32), "e.x.w": grid(1)})


def test_layer_offsets() -> None:
    source = tensors(**{"L.1.w": grid(2), "L.2.w": grid(3)})
    assert same(made(source, "L.$LAYER_ID_OFFSET.w -> M.$LAYER_ID_OFFSET.w"), **{"M.0.w": grid(2), "M.1.w": grid(3)})
    early = tensors(**{"L.0.w": grid(2)})
    assert refused(early, "L.$LAYER_ID_OFFSET.w -> M.$LAYER_ID_OFFSET.w") == [
        "statement 1: M.$LAYER_ID_OFFSET.w has no layer before layer 0"
    ]


@pytest.mark.parametrize(
    ("lines", "why"),
    [
        (["n -> x"], "n is no source tensor and assigned by no statement before"),
        (["a.w_0 -> x"], "a.w_0 is no source tensor and assigned by no statement before"),
        (["a, c -> x, axis=0"], "tensors of shapes [4, 6] and [4, 8] cannot be joined along axis 0"),
        (["a, v -> x, axis=0"], "tensors of shapes [4, 6] and [6] cannot be joined along axis 0"),
        (["a, h -> x, axis=0"], "tensors of dtypes float32 and bfloat16 cannot be joined"),
        (["v -> x, y, axis=1"], "the tensor of shape [6] has no axis 1"),
        (["s, s -> x, axis=0"], "a joined tensor of shape [] has no axis 0"),
        (["a -> x, y, z, axis=0"], "axis 0 of shape [4, 6] does not divide into 3 equal parts"),
        (["v -> x, permute='[1,0]'"], "permute names 2 axes of a tensor of shape [6]"),
        (["a -> g, u, fused_ffn, axis=2"], "the tensor of shape [4, 6] has no axis 2"),
        (
            ["c -> q, k, w, fused_qkv, num_heads=1, num_key_value_groups=1"],
            "axis 1 of shape [4, 8] does not divide into 3 equal parts",
        ),
        (["a, c, c -> x, fused_qkv, axis=1, num_heads=4, num_key_value_groups=2"], "does not divide into 4 heads"),
        (
            ["a, c, c -> x, fused_qkv_old, axis=1, num_heads=4, num_key_value_groups=2"],
            "[4, 22] does not divide into 8",
        ),
        (["a -> v"], "v is a source tensor that is passed through"),
        (["a -> x", "a -> _"], "a is dropped here and read by statement 1 `a -> x`"),
        (["a -> x", "x -> _", "x -> y"], "x was dropped by statement 2 `x -> _`"),
        (["a -> v", "v -> _"], "v is a source tensor and was assigned"),
        (["a -> x, dtype='float16'", "x, a -> y, axis=0"], "y is joined of different dtypes"),
        (["L.$LAYER_ID.w -> x"], "every name of a statement must carry the same id macros"),
        (["L.$LAYER_ID.w -> _"], "every name of a statement must carry the same id macros"),
        (["L.$LAYER_ID.$LAYER_ID -> M.$LAYER_ID"], "L.$LAYER_ID.$LAYER_ID has a macro twice"),
        (["L.$DEPTH.w -> M.$DEPTH.w"], "L.$DEPTH.w has an unknown macro"),
        (["L.$LAYER_ID.$LAYER_ID_OFFSET -> M.$LAYER_ID.$LAYER_ID_OFFSET"], "cannot be combined"),
        (["L.*.w^T -> x, axis=0"], "L.*.w^T: ^T cannot be combined with `*`"),
        (["L.*.*.w -> x, axis=0"], "L.*.*.w has more than one `*`"),
        (["N.*.w -> x, axis=0"], "no source tensor fits N.*.w"),
    ],
)
def test_what_does_not_fit_is_refused(lines: list[str], why: str) -> None:
    half = np.zeros((4, 6), np.uint16)
    source = tensors(a=grid(4, 6), c=grid(4, 8), v=grid(6), s=grid(), h=half, **{"L.0.w": grid(2)})
    issues = refused(source, *lines)
    assert len(issues) == 1
    assert why in issues[0]


def test_all_mistakes_are_found_and_one_mistake_is_told_once() -> None:
    assert refused(tensors(a=grid(4)), "n -> x", "x -> y", "x, y -> z, axis=0", "a -> b, c, d, axis=0", "b^T -> e") == [
        "statement 1: n is no source tensor and assigned by no statement before",
        "statement 4: axis 0 of shape [4] does not divide into 3 equal parts",
    ]


@pytest.mark.parametrize(
    ("starts", "why"),
    [
        (((0,), (0, 4)), "the pieces of w are unequal: they begin at [0, 4] of 12"),
        (((0,), (4, 8)), "the pieces of w are unequal: they begin at [4, 8] of 12"),
    ],
)
def test_unequal_pieces_cannot_tell_how_a_fused_weight_lies(starts: PieceStarts, why: str) -> None:
    source = sharded(tensors(w=grid(2, 12)), w=starts)
    assert refused(source, "w -> g, u, fused_ffn") == [f"statement 1: {why}"]


def test_a_state_in_other_pieces_than_its_parameter_cannot_tell_either() -> None:
    source = sharded(tensors(w=grid(2, 8), **{"w.w_0": grid(2, 8)}), **{"w": ((0,), (0, 4)), "w.w_0": ((0,), (0,))})
    assert refused(source, "w -> g, u, fused_ffn") == [
        "statement 1: w and its optimizer states lie in different numbers of pieces"
    ]


def test_parts_of_a_sharded_tensor_cannot_tell_either() -> None:
    source = sharded(tensors(w=grid(2, 16)), w=((0,), (0, 8)))
    (issue,) = refused(source, "w -> a, b, axis=1", "a -> g, u, fused_ffn")
    assert issue.startswith("statement 2: the tensor is made of parts of stored tensors")
    assert same(
        made(tensors(w=grid(2, 16)), "w -> a, b, axis=1", "a -> g, u, fused_ffn", "b -> _"),
        g=grid(2, 16)[:, :4],
        u=grid(2, 16)[:, 4:8],
    )


@pytest.mark.parametrize(
    ("lines", "note"),
    [
        (["a -> x", "a -> y"], "a was read before, by statement 1 `a -> x`"),
        (["a -> x", "b -> x"], "x was assigned before, by statement 1 `a -> x`; that value is lost"),
        (["L.$LAYER_ID.w -> M.$LAYER_ID.w"], "no tensor fits L.$LAYER_ID.w; the statement does nothing"),
        (["n -> _"], "n is not there; the statement does nothing"),
        (["_ -> n"], "n is not in the checkpoint and is not made"),
        (["a -> x, src_dtype='float16', dst_dtype='bfloat16'"], "the values are float32, not float16"),
    ],
)
def test_what_may_surprise_is_noted(lines: list[str], note: str) -> None:
    (found,) = notes(tensors(a=grid(2), b=grid(2)), *lines)
    assert (found.where, found.what) == (f"statement {len(lines)} `{lines[-1]}`", note)


def test_the_last_assignment_is_what_a_name_means() -> None:
    source = tensors(a=grid(2), b=grid(2) + 5)
    assert same(made(source, "a -> x", "b -> x"), x=grid(2) + 5)
    assert same(made(source, "a -> t", "b -> a", "t -> b"), a=grid(2) + 5, b=grid(2))
    assert same(made(source, "a -> t", "b -> a", "a -> c"), t=grid(2), c=grid(2) + 5)


def test_dropped_tensors_are_gone() -> None:
    source = tensors(a=grid(2), b=grid(4))
    assert same(made(source, "a -> _", "b -> x, y, axis=0", "y -> _"), x=grid(4)[:2])


def _with_states() -> Tensors:
    keys = ("", ".w_0", ".moment1_0", ".moment2_0")
    values = {f"p{suffix}": grid(2, 4) + index for index, suffix in enumerate(keys)}
    values |= {f"r{suffix}": grid(2, 4) - index for index, suffix in enumerate(keys)}
    counters = {f"{name}.beta1_pow_acc_0": np.full(1, 0.9, np.float32) for name in ("p", "r")}
    return tensors(**values, **counters)


def test_optimizer_states_follow_their_parameter_in_their_own_dtype() -> None:
    source = _with_states()
    found = made(source, "p^T -> q, dtype='bfloat16'", "r -> a, b, axis=1")
    assert sorted(found) == sorted(
        f"{name}{suffix}"
        for name in ("q", "a", "b")
        for suffix in ("", ".w_0", ".moment1_0", ".moment2_0", ".beta1_pow_acc_0")
    )
    assert found["q"].dtype == np.uint16
    # Paddle puts bfloat16 bits into the float32 master weight.
    assert np.array_equal(found["q.w_0"], source.values["p.w_0"].T)
    assert np.array_equal(found["b.moment2_0"], source.values["r.moment2_0"][:, 2:])
    assert np.array_equal(found["b.beta1_pow_acc_0"], source.values["r.beta1_pow_acc_0"])


def test_joined_parameters_share_one_counter_and_it_is_said() -> None:
    source = _with_states()
    assert made(source, "p, r -> q, axis=0")["q.w_0"].shape == (4, 4)
    assert [note.what for note in notes(source, "p, r -> q, axis=0")] == [
        "q.beta1_pow_acc_0 is that of p, one of 2 parameters joined"
    ]


def test_dropping_a_parameter_drops_its_states() -> None:
    assert sorted(made(_with_states(), "p -> _", "r -> _")) == []


def test_states_alone_are_mapped_under_the_parameter_name() -> None:
    source = tensors(**{"p.moment1_0": grid(2, 4), "p.w_0": grid(2, 4), "p.beta1_pow_acc_0": grid(1)})
    lines = ["p^T -> t", "t -> q, src_dtype='float32', dst_dtype='bfloat16'"]
    assert notes(source, *lines) == []
    found = made(source, *lines)
    assert same(found, **{"q.moment1_0": grid(2, 4).T, "q.w_0": grid(2, 4).T, "q.beta1_pow_acc_0": grid(1)})


@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"p.w_0": grid(2, 4)}, "statement 1: q.w_0 is made of p.w_0 and r.w_0, which is not there"),
        ({"p.w_0": grid(8), "r.w_0": grid(2, 4)}, "p.w_0: an optimizer state has another shape than its parameter"),
        (
            {"p.w_0": grid(2, 4), "r.w_0": np.zeros((2, 4), np.uint16)},
            "statement 1: q.w_0 is joined of different dtypes",
        ),
    ],
)
def test_states_that_do_not_match_are_refused(extra: dict[str, Array], why: str) -> None:
    assert refused(tensors(p=grid(2, 4), r=grid(2, 4), **extra), "p, r -> q, axis=0") == [why]


def test_counters_without_a_parameter_pass_through_and_their_name_is_taken() -> None:
    source = tensors(**{"p.beta1_pow_acc_0": grid(1), "q": grid(2)})
    assert sorted(made(source)) == ["p.beta1_pow_acc_0", "q"]
    assert refused(source, "q -> p") == [
        "statement 1: p is a source tensor that is passed through: expected one of the two renamed or dropped"
    ]


ROUND_TRIPS: dict[str, list[str]] = {
    "rename": ["a -> x"],
    "transpose": ["a^T -> x"],
    "permute": ["c -> x, permute='[2,0,1]'"],
    "split": ["a -> x, y, axis=1"],
    "join": ["a, b -> x, axis=0"],
    "transposed parts": ["a^T, b^T -> x, axis=1", "x -> y, z, axis=0"],
    "grouped qkv": ["a -> q, k, w, fused_qkv, num_heads=4, num_key_value_groups=2"],
    "qkv by rank": ["a -> q, k, w, fused_qkv_old, num_heads=4, num_key_value_groups=2"],
    "gate and up": ["a^T -> g, u, fused_ffn, axis=0", "g^T -> g2"],
    "joined gate and up": ["a, b -> x, fused_ffn"],
    "ids": ["L.$LAYER_ID.w^T -> M.$LAYER_ID.w"],
    "offsets": ["L.$LAYER_ID_OFFSET.w -> M.$LAYER_ID_OFFSET.w"],
    "exact cast": ["a -> x, src_dtype='float32', dst_dtype='bfloat16'", "b -> y"],
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_a_map_and_its_inverse_give_the_source_back(name: str) -> None:
    source = tensors(a=grid(4, 8), b=grid(4, 8) + 40, c=grid(2, 3, 4), **{"L.1.w": grid(2), "L.2.w": grid(3)})
    program = parse_statements(ROUND_TRIPS[name])
    there = compile_program(program, source.specs, {}).outputs
    assert {output.key for output in there} != source.values.keys()
    middle = Tensors(tuple(output.spec for output in there), carried_out(there, source))
    back = carried_out(compile_program(inverse_of(program), middle.specs, {}).outputs, middle)
    assert same(back, **source.values)


def test_an_inverse_reads_the_pieces_of_what_it_takes_apart() -> None:
    gate, up = grid(2, 4), -grid(2, 4)
    fused = np.concatenate([gate[:, :2], up[:, :2], gate[:, 2:], up[:, 2:]], 1)
    source = sharded(tensors(w=fused), w=((0,), (0, 4)))
    program = inverse_of(parse_statements(["g, u -> w, fused_ffn"]))
    assert same(carried_out(compile_program(program, source.specs, source.starts).outputs, source), g=gate, u=up)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("a -> b, dtype='float16'", "a cast is undone only where it says src_dtype and dst_dtype"),
        ("a.*.w -> b, axis=0", "`*` has no inverse: name the tensors"),
    ],
)
def test_what_has_no_inverse(line: str, why: str) -> None:
    with pytest.raises(MappingError) as refusal:
        inverse_of(parse_statements([line]))
    assert [issue.what for issue in refusal.value.issues] == [why]


def test_piece_starts_are_those_of_the_metadata() -> None:
    pieces = tuple(
        Piece(Box((row, column), (2, 4)), f"{rank}_0.distcp", flat)
        for rank, (row, column, flat) in enumerate([(0, 0, None), (0, 4, (0, 4)), (0, 4, (4, 8)), (0, 4, None)])
    )
    assert piece_starts(IndexedTensor("w", "float32", (2, 8), pieces)) == ((0,), (0, 4))


def test_many_layers_and_experts_compile_in_a_moment() -> None:
    specs = tuple(
        TensorSpec(f"L.{layer}.e.{expert}.w", "bfloat16", (8, 4)) for layer in range(40) for expert in range(100)
    )
    lines = ["L.$LAYER_ID.e.$EXPERT_ID.w^T -> L.$LAYER_ID.e.$EXPERT_ID.g, L.$LAYER_ID.e.$EXPERT_ID.u, axis=0"]
    outputs: Any = compile_program(parse_statements(lines), specs, {}).outputs
    assert len(outputs) == 8000
