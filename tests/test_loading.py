"""Loading into memory, as numpy arrays: exact or refused, and only the bytes that are wanted."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import hypothesis.extra.numpy as arrays
import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import ckptcore
from ckptcore.detecting import newest_verified
from ckptcore.errors import CheckpointError, MappingError, SelectionError, SourceChanged
from ckptcore.loading import AHEAD_BYTES, RUN_BYTES, Array, load_parts
from ckptcore.rules.located import LocatedCheckpoint
from ckptcore.rules.regions import OutputTensor, passed_through
from ckptcore.rules.targets import Part
from ckptcore.rules.tensors import Box, Piece
from tests.builders import FLAVOURS, Flavour, SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY
from tests.corpus import Case


def merged(path: Path, **options: Any) -> dict[str, Array]:
    result: dict[str, Array] = ckptcore.load_merged_state_dict(path, return_numpy=True, **options)
    return result


def verified(path: Path) -> LocatedCheckpoint:
    return newest_verified(path).checkpoint


def outputs(checkpoint: LocatedCheckpoint) -> list[OutputTensor]:
    return [passed_through(tensor.spec, tensor.spec.key) for tensor in checkpoint.tensors]


def test_every_case_is_exact_or_refused(corpus_case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for unique_id in corpus_case.unique_ids or (None,):
        try:
            found = merged(corpus_case.checkpoint, unique_id=unique_id)
        except CheckpointError:
            if corpus_case.verdict == "good":
                raise
        else:
            assert corpus_case.verdict != "refuse"
            assert unique_id is not None
            expected = corpus_case.expected(unique_id)
            assert {key: (array.shape, array.tobytes()) for key, array in found.items()} == {
                key: (shape, data) for key, (_, shape, data) in expected.items()
            }
    assert not list(tmp_path.iterdir())  # nothing in the files was executed


@pytest.mark.parametrize("flavour", FLAVOURS)
def test_dtypes_are_those_of_paddles_own_numpy(flavour: Flavour, tmp_path: Path) -> None:
    bits = np.arange(6, dtype=np.uint16).reshape(2, 3)
    saved = SavedCheckpoint(flavour=flavour).tensor("bf16", bits, dtype="bfloat16").tensor("c", bits.astype("c16"))
    if flavour != "2.6":  # which does not record dtypes, so float8 cannot be told from int8
        saved = saved.tensor("f8", bits.astype("u1"), dtype="float8_e5m2")
    saved.tensor("big", bits.astype("f8"), byteorder=">").write(tmp_path)
    found = merged(tmp_path)
    expected = {"bf16": "uint16", "c": "complex128", "f8": "int8", "big": "float64"}
    assert {key: array.dtype.name for key, array in found.items()} == {key: expected[key] for key in found}
    assert all(array.dtype.isnative and np.array_equal(array, bits) for array in found.values())


def test_a_prefix_is_dotted_and_stripped(tmp_path: Path) -> None:
    one, two = np.ones(1), np.zeros(1)
    saved = SavedCheckpoint().tensor("model.w", one).tensor("model_ema.w", two).tensor("modelx", two)
    saved.write(tmp_path)
    for prefix in ("model", "model."):
        assert merged(tmp_path, prefix=prefix) == {"w": one}
    assert sorted(merged(tmp_path)) == sorted(merged(tmp_path, prefix="")) == ["model.w", "model_ema.w", "modelx"]
    with pytest.raises(SelectionError, match="optimizer"):
        merged(tmp_path, prefix="optimizer")


def test_ids_are_exact_and_none_is_the_newest_whole_one(tmp_path: Path) -> None:
    for unique_id in (1, 11, 21):
        saved = SavedCheckpoint(unique_id=unique_id).tensor("w", np.full(1, unique_id))
        (saved if unique_id < 21 else saved.truncated("0_21.distcp", at=-10)).write(tmp_path)
    assert [merged(tmp_path, unique_id=unique_id)["w"].item() for unique_id in (11, 1, None)] == [11, 1, 11]
    with pytest.raises(CheckpointError, match="21"):
        merged(tmp_path, unique_id=21)


def test_a_run_gives_its_newest_step(tmp_path: Path) -> None:
    steps = {step: SavedCheckpoint().tensor("w", np.full(1, step)) for step in (9, 10)}
    assert merged(write_trainer_run(tmp_path, steps))["w"].item() == 10


@given(data=st.data())
def test_any_box_and_any_range_of_any_sharding(data: st.DataObject, tmp_path_factory: pytest.TempPathFactory) -> None:
    shape = data.draw(arrays.array_shapes(max_dims=4, max_side=6))
    values = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    grid = [data.draw(st.integers(1, min(3, extent))) for extent in shape]
    saved = SavedCheckpoint().tensor("w", values, grid=grid)
    if data.draw(st.booleans()):
        saved = SavedCheckpoint().tensor("w", values, flat_parts=data.draw(st.integers(1, 5)))
    path = tmp_path_factory.mktemp("any")
    saved.write(path)
    low = [data.draw(st.integers(0, extent)) for extent in shape]
    high = [data.draw(st.integers(start, extent)) for start, extent in zip(low, shape, strict=True)]
    box = Box(tuple(low), tuple(stop - start for start, stop in zip(low, high, strict=True)))
    start = data.draw(st.integers(0, box.volume))
    stop = data.draw(st.integers(start, box.volume))

    checkpoint = verified(path)
    (output,) = outputs(checkpoint)
    ranged = Piece(box, "", flat=(start, stop))
    parts = [Part(output, box.shape, (box,)), Part(output, (stop - start,), tuple(ranged.boxes()))]
    of_box, of_range = load_parts(checkpoint, parts)
    expected = values[tuple(map(slice, low, high))]
    assert np.array_equal(of_box, expected)
    assert np.array_equal(of_range, expected.reshape(-1)[start:stop])


@pytest.mark.parametrize("grid", [(4, 1), (1, 4)], ids=["rows", "columns"])
def test_tensors_of_many_runs_come_whole_and_in_order(grid: tuple[int, int], tmp_path: Path) -> None:
    values = np.arange(3 * RUN_BYTES // 4 + 512, dtype=np.int32).reshape(-1, 512)
    saved = SavedCheckpoint()
    for number in range(3):
        saved = saved.tensor(f"w{number}", values + number, grid=grid)
    saved.write(tmp_path)
    found = merged(tmp_path)
    assert list(found) == ["w0", "w1", "w2"]
    assert all(np.array_equal(found[f"w{number}"], values + number) for number in range(3))


def bytes_read() -> int:
    counters = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counters["rchar"])


@pytest.mark.skipif(not os.access("/proc/self/io", os.R_OK), reason="this system does not count what is read")
def test_only_what_is_wanted_is_read(tmp_path: Path) -> None:
    values = np.zeros((4096, 1024), np.float32)
    SavedCheckpoint().tensor("w", values, grid=(2, 1)).tensor("other", values).write(tmp_path)
    checkpoint = verified(tmp_path)
    output = outputs(checkpoint)[1]
    box = Box((2040, 0), (16, 1024))
    before = bytes_read()
    (found,) = load_parts(checkpoint, [Part(output, box.shape, (box,))])
    assert found.nbytes <= bytes_read() - before < found.nbytes + 16_384


def test_what_is_read_ahead_is_bounded(tmp_path: Path) -> None:
    values = np.zeros(AHEAD_BYTES // 16, np.uint8)
    saved = SavedCheckpoint()
    for number in range(40):
        saved = saved.tensor(f"w{number:02}", values)
    saved.write(tmp_path)
    checkpoint = verified(tmp_path)
    loading = load_parts(checkpoint, [Part.whole(output) for output in outputs(checkpoint)])
    before = bytes_read()
    next(loading)
    loading.close()  # type: ignore[attr-defined]  # a generator, which its type need not promise
    assert bytes_read() - before < AHEAD_BYTES + 2 * values.nbytes


def test_a_source_that_changes_meanwhile_is_refused(tmp_path: Path) -> None:
    SavedCheckpoint().tensor("a", np.zeros(AHEAD_BYTES, np.uint8)).tensor("b", np.zeros(8, np.uint8)).write(tmp_path)
    checkpoint = verified(tmp_path)
    loading = load_parts(checkpoint, [Part.whole(output) for output in outputs(checkpoint)])
    next(loading)
    os.utime(tmp_path / "0_0.distcp", (1, 1))
    with pytest.raises(SourceChanged, match="1 file") as refusal:
        list(loading)
    assert refusal.value.issues[0].where == "0_0.distcp"


def test_layout_maps_act_on_the_stripped_names(tmp_path: Path) -> None:
    values = np.arange(24, dtype="f4").reshape(4, 6)
    SavedCheckpoint().tensor("model.w", values, grid=(2, 2)).tensor("model.v", values).write(tmp_path)
    statements = {"aoa_statements": ["w^T -> a, b, axis=0", 'v -> v, dtype="float16"']}
    found = merged(tmp_path, prefix="model", aoa_config=statements)
    assert {key: (array.dtype.name, array.tolist()) for key, array in found.items()} == {
        "a": ("float32", values.T[:3].tolist()),
        "b": ("float32", values.T[3:].tolist()),
        "v": ("float16", values.tolist()),
    }
    with pytest.raises(MappingError, match="no source tensor"):
        merged(tmp_path, aoa_config=statements)


def test_a_layout_map_for_given_tensors_is_refused_rather_than_ignored(tmp_path: Path) -> None:
    with pytest.raises(MappingError, match="aoa_config"):
        ckptcore.load_state_dict({}, tmp_path, aoa_config={"aoa_statements": ["w^T -> w"]})


WITHOUT_PADDLE = """
import sys
sys.modules["paddle"] = None  # as if it were not installed
import ckptcore
from ckptcore.errors import PaddleMissing
print(ckptcore.load_merged_state_dict(sys.argv[1], return_numpy=True)["w"].tolist())
for call in (ckptcore.load_merged_state_dict, lambda path: ckptcore.load_state_dict({}, path)):
    try:
        call(sys.argv[1])
    except PaddleMissing as refusal:
        assert isinstance(refusal, ImportError)
        print(refusal)
"""


def test_without_paddle_numpy_works_and_the_rest_says_what_to_install(tmp_path: Path) -> None:
    SavedCheckpoint().tensor("w", np.ones(2)).write(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PADDLE, tmp_path],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        check=True,
    )
    numbers, *refusals = done.stdout.splitlines()
    assert numbers == "[1.0, 1.0]"
    assert len(refusals) == 2
    assert all("pip install 'ckptcore[paddle]'" in line and "return_numpy=True" in line for line in refusals)
