"""Random programs carried out by this package and by Paddle 3.3.1's own engine on the same tensors."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from ckptcore.errors import MappingError
from ckptcore.rules.mapping import compile_program, mapping_from_document
from ckptcore.rules.tensors import TensorSpec
from tests.rules.mapping.support import Array, Tensors, carried_out, rounded

pytestmark = [
    pytest.mark.paddle,
    pytest.mark.skipif(find_spec("paddle") is None, reason="Paddle is not installed"),
]

SOURCES: Mapping[str, tuple[str, tuple[int, ...], tuple[int, ...]]] = {
    # key: dtype, shape, pieces along each axis
    "a": ("float32", (4, 8), (1, 1)),
    "b": ("float32", (4, 8), (2, 1)),
    "g": ("float32", (4, 16), (1, 2)),
    "f": ("float32", (16, 8), (4, 1)),
    "h": ("bfloat16", (4, 8), (1, 1)),
    "v": ("float32", (16,), (2,)),
    "c": ("float32", (2, 4, 6), (1, 1, 1)),
    "s": ("float32", (), ()),
    "L.0.w": ("float32", (4, 8), (1, 2)),
    "L.1.w": ("float32", (4, 8), (1, 2)),
    "L.0.e.0.w": ("float32", (4, 4), (1, 1)),
    "L.0.e.1.w": ("float32", (4, 4), (1, 1)),
    "L.1.e.0.w": ("float32", (4, 4), (1, 1)),
    "L.1.e.1.w": ("float32", (4, 4), (1, 1)),
}

# Where this package refuses and Paddle does not; docs/decisions/aoa.md gives the reasons.
STRICTER = (
    "cannot be joined along axis",
    "passed through",
    "dropped here and read",
    "was dropped by",
    "is a source tensor and was assigned",
    "permute names",
    "made of parts of stored tensors",
)


def _source() -> Tensors:
    rng = np.random.default_rng(7)
    values: dict[str, Array] = {}
    for key, (dtype, shape, _) in SOURCES.items():
        array = np.asarray(rng.standard_normal(shape), np.float32)
        values[key] = rounded(array, "float32", dtype)
    starts = {
        key: tuple(tuple(range(0, n, n // count)) for n, count in zip(shape, pieces, strict=True))
        for key, (_, shape, pieces) in SOURCES.items()
    }
    specs = tuple(TensorSpec(key, dtype, shape) for key, (dtype, shape, _) in SOURCES.items())
    return Tensors(specs, values, starts)


SOURCE = _source()


def by_paddle(statements: Sequence[str], *, is_reversed: bool = False) -> dict[str, tuple[str, Array]] | None:
    """Paddle's outputs by key, or None where it refuses."""
    from paddle.distributed.flex_checkpoint.aoa.aoa_engine import AOAEngine
    from paddle.distributed.flex_checkpoint.dcp.full_param import BaseAssembler
    from paddle.distributed.flex_checkpoint.dcp.sharded_weight import ShardedWeightDesc

    info = {}
    for key, (dtype, shape, pieces) in SOURCES.items():
        local = tuple(n // count for n, count in zip(shape, pieces, strict=True))
        offsets = itertools.product(*(range(0, n, size) for n, size in zip(shape, local, strict=True)))
        info[key] = [ShardedWeightDesc(key, local, shape, offset, dtype) for offset in offsets]
    made = {}
    try:
        config: Any = {"aoa_statements": list(statements), "enable_traceback": False}
        config["aoa_config_reverse"] = is_reversed
        engine = AOAEngine(config, info, None)
        for key, var in engine.output_vars.items():
            shape, dtype = tuple(var.shape), BaseAssembler.infer_real_dtype(None, var)
            whole = np.zeros(shape, np.uint16 if dtype == "bfloat16" else dtype)
            for entry in engine.find_shard_sources(ShardedWeightDesc(key, shape, shape, (0,) * len(shape), dtype)):
                source, target = entry.source_slice, entry.target_slice
                part = SOURCE.values[source.key][_slices(source)]
                current = source.dtype
                for step in entry.postprocess_list or ():
                    if step.startswith("["):
                        part = part.transpose([int(axis) for axis in step.strip("[]").split(",") if axis.strip()])
                    else:
                        part, current = rounded(part, current, step), step
                assert current == dtype
                whole[_slices(target)] = part
            made[key] = (dtype, whole)
    except (AssertionError, AttributeError, IndexError, KeyError, RuntimeError, SyntaxError, TypeError, ValueError):
        return None
    return made


def _slices(desc: Any) -> tuple[slice, ...]:
    return tuple(slice(o, o + n) for o, n in zip(desc.global_offset, desc.local_shape, strict=True))


def by_us(statements: Sequence[str], *, is_reversed: bool = False) -> dict[str, tuple[str, Array]] | MappingError:
    try:
        program = mapping_from_document({"aoa_statements": [*statements], "aoa_config_reverse": is_reversed})
        outputs = compile_program(program, SOURCE.specs, SOURCE.starts).outputs
    except MappingError as error:
        return error
    values = carried_out(outputs, SOURCE)
    return {output.key: (output.dtype, values[output.key]) for output in outputs}


_NAME = st.sampled_from([*SOURCES, *SOURCES, "t0", "t1", "t2", "t3"])
# Of the sources only those that no statement below takes apart by rank: Paddle would count the source's pieces.
_NEW = st.sampled_from(["t0", "t1", "t2", "t3", "c", "h", "x.y"])
_READ = st.builds(lambda name, flip: name + "^T" * flip, _NAME, st.booleans())
_AXIS = st.integers(0, 2)


def _names(count: int, strategy: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(strategy, min_size=count, max_size=count, unique=True).map(", ".join)


_STATEMENT = st.one_of(
    st.builds("{} -> {}".format, _READ, _NEW),
    st.builds("{} -> {}, permute = '{}'".format, _READ, _NEW, st.sampled_from(["[]", "[1,0]", "[0, 1]", "[2,0,1]"])),
    st.builds(
        '{} -> {}, dtype="{}"'.format, _READ, _NEW, st.sampled_from(["float16", "bfloat16", "float32", "float64"])
    ),
    st.builds(
        '{} -> {}, src_dtype="float32", dst_dtype="{}"'.format, _READ, _NEW, st.sampled_from(["bfloat16", "float16"])
    ),
    st.integers(2, 4).flatmap(lambda n: st.builds("{} -> {}, axis={}".format, _READ, _names(n, _NEW), _AXIS)),
    st.builds("{} -> t[{}:{}], axis={}".format, _READ, st.just(0), st.integers(2, 4), _AXIS),
    st.integers(2, 4).flatmap(lambda n: st.builds("{} -> {}, axis={}".format, _names(n, _READ), _NEW, _AXIS)),
    st.builds("{} -> _".format, st.sampled_from([*SOURCES, "nowhere"])),
    st.builds("_ -> {}".format, _NEW),
    # Two pieces: with one, Paddle names the outputs after its own intermediate names.
    st.builds("{} -> {}, fused_ffn".format, st.sampled_from(["g", "L.0.w", "L.1.w"]), _names(2, _NEW)),
    st.builds("{} -> {}, fused_ffn, axis=0".format, st.sampled_from(["b", "v", "f"]), _names(2, _NEW)),
    st.builds("{}, axis=1, fused_ffn".format, st.builds("{} -> {}".format, st.just("g"), _NEW)),
    st.builds("{} -> {}, fused_ffn, axis={}".format, _names(2, _READ), _NEW, _AXIS),
    st.builds(
        "{} -> {}, fused_qkv, num_heads={}, num_key_value_groups={}, axis={}".format,
        _READ,
        _names(3, _NEW),
        st.sampled_from([4, 8]),
        st.sampled_from([2, 4]),
        _AXIS,
    ),
    st.builds(
        "{} -> {}, fused_qkv, num_heads=4, num_key_value_groups=2, axis={}".format, _names(3, _READ), _NEW, _AXIS
    ),
    st.builds(
        "{} -> {}, fused_qkv_old, num_heads={}, num_key_value_groups={}, axis={}".format,
        st.sampled_from(["g", "a"]),
        st.one_of(_NEW, _names(3, _NEW)),
        st.sampled_from([4, 8]),
        st.sampled_from([2, 4]),
        st.just(1),
    ),
    st.builds(
        "{} -> {}, fused_qkv_old, num_heads=4, num_key_value_groups=2, axis={}".format, _names(3, _READ), _NEW, _AXIS
    ),
    st.sampled_from(
        [
            "L.$LAYER_ID.w^T -> M.$LAYER_ID.w",
            "L.$LAYER_ID.e.$EXPERT_ID.w^T -> M.$LAYER_ID.$EXPERT_ID.w",
            "L.$LAYER_ID.e.$EXPERT_ID.w -> L.$LAYER_ID.e.$EXPERT_ID.gate, L.$LAYER_ID.e.$EXPERT_ID.up, axis=1",
            "L.0.e.*.w -> x.y, axis=0",
            "L.1.e.*.w, a -> x.y, axis=1",
            "N.$LAYER_ID.w -> M.$LAYER_ID.w",
            "N.*.w -> x.y, axis=0",
            "L.$LAYER_ID.w -> _",
            "L.$LAYER_ID.w -> L.w",
            "L.$LAYER_ID_OFFSET.w -> M.$LAYER_ID_OFFSET.w",
        ]
    ),
)


@given(st.lists(_STATEMENT, min_size=1, max_size=5))
@example(["a -> t0, dtype='bfloat16'", "t0^T -> t1", "t1 -> t2, t3, axis=0", "t3, t2 -> x.y, axis=1"])
@example(["h -> t0, dtype='float32'", "t0 -> t1, dtype='float16'"])
@example(["a, b -> t0, axis=0", "t0 -> t1, dtype='float16'", "t1 -> t2, t3, axis=0"])
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_programs_equal_paddle_or_both_refuse(statements: list[str]) -> None:
    ours, theirs = by_us(statements), by_paddle(statements)
    if isinstance(ours, MappingError):
        event("refused by both" if theirs is None else "refused here alone")
        assert theirs is None or any(reason in issue.what for issue in ours.issues for reason in STRICTER)
        return
    assert theirs is not None, "accepted here alone"
    event("equal")
    assert ours.keys() == theirs.keys()
    assert _bits(ours) == _bits(theirs)


def _bits(tensors: Mapping[str, tuple[str, Array]]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {key: (dtype, value.shape, value.tobytes()) for key, (dtype, value) in tensors.items()}


@pytest.mark.parametrize(
    "statements",
    [
        ["x -> a"],
        ["x^T -> a"],
        ["x -> c, permute='[1,2,0]'"],
        ["x, y -> a, axis=0"],
        ["x^T, y^T -> f, axis=0"],
        ["x -> a, b, axis=1"],
        ["x -> a, src_dtype='bfloat16', dst_dtype='float32'"],
        ["q, k, w -> g, fused_qkv, num_heads=4, num_key_value_groups=2"],
        ["y -> x", "x^T -> b"],
        ["M.$LAYER_ID.w^T -> L.$LAYER_ID.w"],
        ["M.$LAYER_ID.$EXPERT_ID -> L.$LAYER_ID.e.$EXPERT_ID.w"],
        ["x -> _", "_ -> a"],
        ["x -> a, dtype='float16'"],
        ["x, y -> g, fused_ffn, dtype='float16'"],
    ],
)
def test_reversed_programs_equal_paddle_or_both_refuse(statements: list[str]) -> None:
    ours, theirs = by_us(statements, is_reversed=True), by_paddle(statements, is_reversed=True)
    if isinstance(ours, MappingError):
        assert theirs is None or "fused_ffn" in statements[0]
    else:
        assert theirs is not None
        assert _bits(ours) == _bits(theirs)


def _differing(statements: list[str]) -> tuple[dict[str, tuple[str, Array]], dict[str, tuple[str, Array]]]:
    """What this package and Paddle make that the other does not, where both accept."""
    ours, theirs = by_us(statements), by_paddle(statements)
    assert not isinstance(ours, MappingError)
    assert theirs is not None
    mine, its = _bits(ours), _bits(theirs)
    return (
        {key: ours[key] for key in ours if its.get(key) != mine[key]},
        {key: theirs[key] for key in theirs if mine.get(key) != its[key]},
    )


def test_paddle_names_outputs_of_one_piece_after_its_own_intermediates() -> None:
    mine, its = _differing(["a -> x, axis=0"])
    assert (set(mine), set(its)) == ({"x"}, {"a"})
    mine, its = _differing(["a -> x, y, fused_ffn"])
    assert (set(mine), set(its)) == ({"x", "y"}, {"fused_ffn_tmp.GATE_0", "fused_ffn_tmp.UP_0"})


def test_paddle_loses_the_piece_count_behind_a_transpose() -> None:
    mine, its = _differing(["g^T -> x, y, fused_ffn, axis=0"])
    g = SOURCE.values["g"]
    assert np.array_equal(mine["x"][1], np.concatenate([g[:, 0:4], g[:, 8:12]], 1).T)
    assert np.array_equal(its["fused_ffn_tmp.GATE_0"][1], g[:, :8].T)


def test_paddle_counts_pieces_along_other_axes() -> None:
    mine, its = _differing(["b -> x, y, fused_ffn"])
    b = SOURCE.values["b"]
    assert np.array_equal(mine["x"][1], b[:, :4])
    assert np.array_equal(its["x"][1], np.concatenate([b[:, 0:2], b[:, 4:6]], 1))


def test_paddle_counts_the_pieces_of_a_source_of_the_same_name() -> None:
    mine, its = _differing(["f -> t0", "b -> _", "a^T -> f", "f -> x, y, fused_ffn, axis=0"])
    assert np.array_equal(mine["x"][1], SOURCE.values["a"].T[:4])
    assert np.array_equal(its["x"][1], SOURCE.values["a"].T[[0, 2, 4, 6]])


def test_paddle_drops_statements_with_ids_of_intermediate_names() -> None:
    mine, its = _differing(["L.$LAYER_ID.w -> M.$LAYER_ID.w", "M.$LAYER_ID.w^T -> N.$LAYER_ID.w"])
    assert (set(mine), set(its)) == ({"N.0.w", "N.1.w"}, {"M.0.w", "M.1.w"})


def test_paddle_keeps_an_intermediate_that_is_dropped() -> None:
    mine, its = _differing(["a -> x, y, axis=0", "y -> _"])
    assert (set(mine), set(its)) == (set(), {"y"})


@pytest.mark.parametrize(
    "statements",
    [
        ["a, g -> x, axis=0"],
        ["a -> b"],
        ["a -> x", "a -> _"],
        ["a -> _, x, axis=0"],
        ["a -> x, y, fused_ffn, dtype='float16'"],
        ["a -> x, y, z, fused_ffn"],
        ["a -> dtype"],
        ["a -> x$OTHER"],
    ],
)
def test_paddle_accepts_what_is_refused_here(statements: list[str]) -> None:
    assert isinstance(by_us(statements), MappingError)
    assert by_paddle(statements) is not None
