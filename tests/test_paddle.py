"""Against Paddle itself: what it saves, what it loads, and what its own loader says where that is right."""

from __future__ import annotations

import gc
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ckptcore
from ckptcore.errors import CheckpointError, TargetMismatch
from tests.builders import SavedCheckpoint
from tests.command import REPOSITORY
from tests.corpus import Case, all_cases

paddle = pytest.importorskip("paddle")
dist = pytest.importorskip("paddle.distributed")

from ckptcore.paddle import _local_box  # noqa: E402 - refused where Paddle is not installed

pytestmark = pytest.mark.paddle

DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64", "complex128",
)  # fmt: skip

PADDLE_FAILS = {
    "w1_safetensors": "bfloat16 in safetensors rank files",
    "w2_safetensors": "bfloat16 in safetensors rank files",
    "w1_dtype_float8_e4m3fn": "float8, which comes out as int8 with offload",
    "w1_dtype_float8_e5m2": "float8, which comes out as int8 with offload",
    "w2_dtype_float8_e4m3fn": "float8",
    "w2_flattened_one_rank_none": "loses elements",
    "w2_ids": "several ids in one directory",
    "w4_ids": "several ids in one directory",
}
"""Good cases of Paddle 3.3.1's own that its ``load_merged_state_dict`` does not load, and why."""


def written_by_this_paddle(case: Case) -> bool:
    return bool(json.loads((case.directory / "case.json").read_text()).get("paddle") == "3.3.1")


PADDLE_LOADS = [
    pytest.param(case, id=case.name)
    for case in all_cases()
    if case.verdict == "good" and case.name not in PADDLE_FAILS and written_by_this_paddle(case)
]


def raw(tensor: Any) -> tuple[str, tuple[int, ...], bytes]:
    return str(tensor.dtype).removeprefix("paddle."), tuple(tensor.shape), tensor.numpy().tobytes()


def raw_dict(tensors: dict[str, Any]) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    return {key: raw(tensor) for key, tensor in tensors.items()}


def of_dtype(dtype: str) -> Any:
    """A tensor of random bits; of zeros and ones where not all bits are values."""
    bits = np.random.default_rng(7).integers(0, 2 if dtype == "bool" else 256, (3, 32), dtype=np.uint8)
    return paddle.to_tensor(bits).view(dtype)


def paddles_own(path: Path, **options: Any) -> dict[str, Any]:
    merged: dict[str, Any] = dist.load_merged_state_dict(str(path), **options)
    return merged


@pytest.mark.parametrize("case", PADDLE_LOADS)
def test_equal_to_paddles_own_where_that_is_right(case: Case) -> None:
    (unique_id,) = case.unique_ids
    assert raw_dict(ckptcore.load_merged_state_dict(case.checkpoint)) == raw_dict(
        paddles_own(case.checkpoint, unique_id=unique_id, offload=True)
    )


@pytest.mark.parametrize("name", sorted(PADDLE_FAILS))
def test_tensors_that_paddles_own_loader_does_not_give(name: str) -> None:
    case = next((case for case in all_cases() if case.name == name), None)
    if case is None:
        pytest.skip("not among the cases that are here")
    for unique_id in case.unique_ids:
        merged = ckptcore.load_merged_state_dict(case.checkpoint, unique_id=unique_id)
        assert raw_dict(merged) == case.expected(unique_id)


def test_what_paddle_saves_comes_back(tmp_path: Path) -> None:
    nested = {"a": {dtype: of_dtype(dtype) for dtype in DTYPES}, "b": {"scalar": paddle.to_tensor(3.5)}}
    nested["b"]["transposed"] = paddle.arange(12.0).reshape([3, 4]).t()
    dist.save_state_dict(nested, str(tmp_path))
    merged = ckptcore.load_merged_state_dict(tmp_path)
    expected = {f"{group}.{name}": tensor for group, tensors in nested.items() for name, tensor in tensors.items()}
    assert raw_dict(merged) == raw_dict(expected)
    assert raw_dict(ckptcore.load_merged_state_dict(tmp_path, prefix="a")) == raw_dict(nested["a"])
    as_numpy = ckptcore.load_merged_state_dict(tmp_path, return_numpy=True)
    assert {key: (array.dtype, array.shape, array.tobytes()) for key, array in as_numpy.items()} == {
        key: (tensor.numpy().dtype, tuple(tensor.shape), tensor.numpy().tobytes()) for key, tensor in expected.items()
    }


@pytest.mark.parametrize("offload", [False, True])
def test_tensors_are_ones_to_work_with(offload: bool, tmp_path: Path) -> None:
    SavedCheckpoint().tensor("w", np.ones((256, 256), np.float32)).tensor("z", np.float32(2)).write(tmp_path)
    merged = ckptcore.load_merged_state_dict(tmp_path, offload=offload)
    gc.collect()
    noise = [np.full((256, 256), 7, np.float32) for _ in range(8)]  # takes the memory that is free
    assert all(tensor.stop_gradient for tensor in merged.values())
    assert str(merged["w"].place) == ("Place(cpu)" if offload else str(paddle.to_tensor(0).place))
    assert (merged["w"] * merged["z"]).sum().item() == 2 * 256 * 256, noise
    layer = paddle.nn.Linear(256, 256, bias_attr=False)
    layer.set_state_dict({"weight": merged["w"]})
    assert layer.weight.sum().item() == 256 * 256


def test_a_release_loads_in_paddle_and_in_safetensors(tmp_path: Path) -> None:
    from safetensors import safe_open
    from safetensors.paddle import load_file

    saved = {dtype: of_dtype(dtype) for dtype in DTYPES if dtype != "complex128"}  # which safetensors lacks
    dist.save_state_dict(saved, str(tmp_path / "source"))
    ckptcore.merge(ckptcore.Choice(str(tmp_path / "source")).planned(), tmp_path / "out")
    release = tmp_path / "out" / "model.safetensors"
    assert raw_dict(load_file(release)) == raw_dict(saved)
    assert raw_dict(paddle.load(str(release), safetensors=True)) == raw_dict(saved)
    with safe_open(release, framework="np") as file:
        assert sorted(file.keys()) == sorted(saved)
        for dtype in saved.keys() - {"bfloat16", "float8_e4m3fn", "float8_e5m2"}:  # which numpy lacks
            array = file.get_tensor(dtype)
            assert (array.dtype.name, array.shape, array.tobytes()) == raw(saved[dtype])


def test_given_tensors_are_filled_in_place(tmp_path: Path) -> None:
    saved = {dtype: of_dtype(dtype) for dtype in DTYPES} | {"scalar": paddle.to_tensor(3.5), "w": paddle.eye(4)}
    dist.save_state_dict(saved, str(tmp_path))
    layer = paddle.nn.Linear(4, 4)
    whole = paddle.zeros([6, 4])
    given = {dtype: paddle.zeros_like(saved[dtype].view("uint8")).view(dtype) for dtype in DTYPES}
    addresses = {dtype: tensor.data_ptr() for dtype, tensor in given.items()}
    scalar = paddle.zeros([])
    empty = paddle.zeros([0, 3])
    ckptcore.load_state_dict(given | {"scalar": scalar, "w": layer.weight, "empty": empty}, tmp_path)
    assert raw_dict(given) == {dtype: raw(saved[dtype]) for dtype in DTYPES}
    assert addresses == {dtype: tensor.data_ptr() for dtype, tensor in given.items()}
    assert (scalar.item(), empty.shape) == (3.5, [0, 3])
    assert raw(layer.weight) == raw(saved["w"])
    assert not layer.weight.stop_gradient
    ckptcore.load_state_dict({"w": whole[1:5]}, tmp_path)
    assert whole.sum(1).tolist() == [0, 1, 1, 1, 1, 0]
    transposed = paddle.zeros([4, 4]).t()
    ckptcore.load_state_dict({"w": transposed}, tmp_path)
    assert raw(transposed) == raw(saved["w"])


def test_sharded_weights_beside_plain_tensors(tmp_path: Path) -> None:
    values = np.arange(24, dtype=np.int64).reshape(4, 6)
    SavedCheckpoint().tensor("w", values, grid=(2, 3)).tensor("v", values, flat_parts=5).write(tmp_path)
    box = dist.ShardedWeight("w", paddle.zeros([2, 3], "int64"), (2, 3), (4, 6), (1, 2))
    flat = dist.ShardedWeight("v", paddle.zeros([5], "int64"), (2, 6), (4, 6), (2, 0), True, slice(4, 9))
    plain = paddle.zeros([4, 6], "int64")
    ckptcore.load_state_dict({"w": box, "v": plain}, tmp_path)
    ckptcore.load_state_dict({"v": flat}, tmp_path)
    assert np.array_equal(box.local_tensor.numpy(), values[1:3, 2:5])
    assert np.array_equal(flat.local_tensor.numpy(), values[2:4].reshape(-1)[4:9])
    assert np.array_equal(plain.numpy(), values)


def test_ids_in_one_process(tmp_path: Path) -> None:
    for unique_id in (1, 11, 21):
        dist.save_state_dict({"w": paddle.full([2], unique_id)}, str(tmp_path), unique_id=unique_id)
    given = paddle.zeros([2])
    asked: list[tuple[int | None, int]] = [(11, 11), (21, 21), (1, 1), (None, 21)]
    for choice, expected in asked:
        ckptcore.load_state_dict({"w": given}, tmp_path, unique_id=choice)
        assert given.tolist() == [expected] * 2
        assert ckptcore.load_merged_state_dict(tmp_path, unique_id=choice)["w"].tolist() == [expected] * 2


def test_nothing_is_filled_where_anything_does_not_fit(tmp_path: Path) -> None:
    SavedCheckpoint().tensor("w", np.ones((2, 2), np.float32)).tensor("s", np.ones(3, np.float32)).write(tmp_path)
    fits = paddle.zeros([2, 2])
    misfits = {"s": paddle.zeros([4]), "gone": paddle.zeros([1]), "group": {"gone": paddle.zeros([1])}}
    with pytest.raises(TargetMismatch) as refusal:
        ckptcore.load_state_dict({"w": fits, **misfits}, tmp_path)
    assert [issue.where for issue in refusal.value.issues] == ["tensor 'gone'", "tensor 'group.gone'", "tensor 's'"]
    with pytest.raises(TargetMismatch, match="expected float16, found float32"):
        ckptcore.load_state_dict({"w": paddle.zeros([2, 2], "float16")}, tmp_path)
    with pytest.raises(TargetMismatch) as refusal:
        ckptcore.load_state_dict({"w": fits, "s": [1, 2, 3], "step": 5}, tmp_path)
    assert [issue.where for issue in refusal.value.issues] == ["tensor 's'", "tensor 'step'"]
    partial = dist.shard_tensor(paddle.zeros([2, 2]), dist.ProcessMesh([0]), [dist.Partial()])
    with pytest.raises(TargetMismatch, match="partial"):
        ckptcore.load_state_dict({"w": partial}, tmp_path)
    with pytest.raises(CheckpointError, match="no version with id 8"):
        ckptcore.load_state_dict({"w": fits}, tmp_path, unique_id=8)
    assert not fits.any()


@pytest.mark.parametrize("rank", range(4))
def test_the_part_of_a_rank_is_where_paddle_puts_it(rank: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from paddle.distributed.flex_checkpoint.dcp.utils import compute_local_shape_and_global_offset

    monkeypatch.setenv("PADDLE_TRAINER_ID", str(rank))
    mesh = dist.ProcessMesh([[0, 1], [2, 3]])
    first, last = dist.Shard(0), dist.Shard(1)
    for placements in (
        [first, last],
        [last, first],
        [first, first],
        [dist.Shard(0, shard_order=1), dist.Shard(0, shard_order=0)],
        [dist.Replicate(), last],
    ):
        box = _local_box("w", (7, 5), mesh, placements)
        assert box is not None
        assert (box.shape, box.offset) == compute_local_shape_and_global_offset([7, 5], mesh, placements)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_ranks(count: int, argument: Path) -> None:
    """``paddle_ranks.py`` in ``count`` processes of one job, as Paddle's launcher starts them; all must succeed."""
    endpoints = [f"127.0.0.1:{free_port()}" for _ in range(count)]
    job = {
        "PADDLE_TRAINERS_NUM": str(count),
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_MASTER": f"127.0.0.1:{free_port()}",
        "PADDLE_DISTRI_BACKEND": "gloo",
        "PYTHONPATH": str(REPOSITORY),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(REPOSITORY / "tests" / "paddle_ranks.py"), str(argument)],
            env=os.environ | job | {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoint},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, endpoint in enumerate(endpoints)
    ]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0] * count, "\n".join(outputs)


def test_two_ranks_save_fill_and_refuse_together(tmp_path: Path) -> None:
    run_ranks(2, tmp_path)
    merged = ckptcore.load_merged_state_dict(tmp_path / "tensors", prefix="model")
    w = np.arange(35, dtype=np.float32).reshape(7, 5)
    assert {key: tensor.astype("float32").numpy().tolist() for key, tensor in merged.items()} == {
        "rows": w.tolist(),
        "columns": w.T.tolist(),
        "same": w.tolist(),
        "one": [[1, 2, 3]],
        "stage1": w.tolist(),
    }
    assert raw_dict(merged) == raw_dict(paddles_own(tmp_path / "tensors", prefix="model", unique_id=3))
    flat = ckptcore.load_merged_state_dict(tmp_path / "flattened", unique_id=1)
    assert flat["m"].tolist() == np.arange(24.0).reshape(4, 6).tolist()
