"""The cross-check with Paddle's own loader: where that is right, the release is what it gives; every byte counts."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, Selection, run
from ckptcore.cross_checking import cross_check
from ckptcore.errors import EngineFailed, MappingError, ReleaseInvalid, SourceChanged
from ckptcore.publishing import pass_gates, stage
from ckptcore.rules.gates import EngineCheck, GateOptions
from ckptcore.rules.output_layout import OutputLayout
from ckptcore.rules.tensors import TensorSpec
from tests.builders import Part, SavedCheckpoint, write_trainer_run
from tests.command import assert_refused, ckpt
from tests.corpus import LLAMA_RUN, Case

paddle = pytest.importorskip("paddle")

from ckptcore import paddle_loading  # noqa: E402 - refused where Paddle is not installed
from ckptcore.paddle import device_for_checks  # noqa: E402 - likewise
from tests.test_paddle import PADDLE_LOADS  # noqa: E402 - likewise

pytestmark = pytest.mark.paddle

DEVICE = device_for_checks()
MODEL = Selection(("model",))


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


def two_kinds() -> SavedCheckpoint:
    """What Paddle's prefix would mix: model and model_ema, with the same names beneath."""
    random = np.random.default_rng(5)
    saved = SavedCheckpoint()
    for group in ("model", "model_ema"):
        weight, bias = random.standard_normal((8, 6)).astype(np.float32), np.zeros(3, np.float32)
        saved = saved.tensor(f"{group}.w", weight, grid=(2, 1)).tensor(f"{group}.b", bias)
    return saved


@pytest.mark.parametrize("case", PADDLE_LOADS)
def test_a_release_is_what_paddle_loads(case: Case, registry: Path) -> None:
    staged = stage(Choice(str(case.checkpoint)).planned(), registry, "t")
    report = cross_check(staged.path)
    assert (report.device, report.issues) == (DEVICE, ())
    assert report.tensors == len(case.expected(*case.unique_ids))


def test_only_what_was_selected_is_compared_under_its_new_name(tmp_path: Path, registry: Path) -> None:
    source = str(write_trainer_run(tmp_path / "run", {1: two_kinds()}))
    for selection in (MODEL, Selection(("model_ema",)), Selection(("model",), keep_prefix=True), Selection()):
        staged = stage(Choice(source, selection=selection).planned(), registry, "t")
        report = cross_check(staged.path, selection)
        assert (report.tensors, report.issues) == (2 if selection.prefixes else 4, ())
    other = stage(Choice(source, selection=MODEL).planned(), registry, "t")
    found = cross_check(other.path, Selection(("model_ema",))).issues
    # Zeros are zeros in both.
    assert [(issue.where, issue.code) for issue in found] == [("tensor 'w'", "engine-bytes")]
    assert {issue.code for issue in cross_check(other.path).issues} == {"missing-tensor", "unexpected-tensor"}


def test_other_ids_in_the_directory_are_not_paddles_business(tmp_path: Path, registry: Path) -> None:
    directory = tmp_path / "ckpt"
    for unique_id in (1, 11, 21):
        saved = SavedCheckpoint().tensor("w", np.full((4, 4), unique_id, np.float32), grid=(2, 1))
        replace(saved, unique_id=unique_id).write(directory)
    for unique_id in (1, 11, 21):
        staged = stage(Choice(str(directory), unique_id=unique_id).planned(), registry, "t")
        assert cross_check(staged.path).issues == ()


def test_one_flipped_bit_is_found_where_it_is(registry: Path) -> None:
    staged = stage(Choice(str(LLAMA_RUN), selection=MODEL).planned(), registry, "t")
    shard = Path(staged.path) / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ReleaseInvalid, match="not what Paddle's own loader gives") as refusal:
        pass_gates(staged, [EngineCheck(MODEL)])
    [issue] = refusal.value.issues
    assert issue.code == "engine-bytes"
    assert issue.found.endswith("in model.safetensors")
    assert not Path(staged.path).exists()
    assert os.listdir(registry / "t" / "releases") == []


def test_what_paddle_leaves_alone_is_not_taken_for_zeros(tmp_path: Path) -> None:
    half = Part(0, (0, 0), (2, 4))
    SavedCheckpoint().tensor("w", np.zeros((4, 4), np.float32), parts=[half]).write(tmp_path)
    spec = TensorSpec("w", "float32", (4, 4))
    loaded = paddle_loading.load_tensors(str(tmp_path), 0, [spec], DEVICE)["w"]
    assert loaded.tolist() == [0] * 32 + [0xA5] * 32
    with pytest.raises(EngineFailed, match="cannot load 'absent'"):
        paddle_loading.load_tensors(str(tmp_path), 0, [replace(spec, key="absent")], DEVICE)


def test_tensors_go_in_groups_where_a_device_is_small(registry: Path) -> None:
    staged = stage(Choice(str(LLAMA_RUN), selection=MODEL).planned(), registry, "t")
    for room_bytes in (1, 40_000):
        report = cross_check(staged.path, MODEL, room_bytes=room_bytes)
        assert (report.tensors, report.issues) == (20, ())


def test_a_source_that_is_another_now_is_not_compared(tmp_path: Path, registry: Path) -> None:
    run_directory = write_trainer_run(tmp_path / "run", {1: two_kinds()})
    staged = stage(Choice(str(run_directory)).planned(), registry, "t")
    shutil.rmtree(run_directory)
    write_trainer_run(run_directory, {1: two_kinds().tensor("more", np.ones(3, np.float32))})
    with pytest.raises(SourceChanged, match="not the one that was merged"):
        pass_gates(staged, [EngineCheck()])
    assert Path(staged.path).exists()  # nothing is known against it


def test_what_paddle_cannot_load_is_no_verdict(tmp_path: Path, registry: Path) -> None:
    saved = SavedCheckpoint().tensor("w", np.ones((2, 2), np.uint8), dtype="float8_e4m3fn")
    saved.write(tmp_path / "ckpt")
    staged = stage(Choice(str(tmp_path / "ckpt")).planned(), registry, "t")
    with pytest.raises(EngineFailed, match="own loader cannot load 'w'"):
        pass_gates(staged, [EngineCheck()])
    assert Path(staged.path).exists()


def test_a_mapped_release_is_refused_before_it_is_merged(registry: Path, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(MappingError):
        GateOptions(engine=True).gates(keeps_tensors=OutputLayout(dtype="float16").keeps_tensors)
    arguments = ["run", LLAMA_RUN, registry, "--name", "t", "--check", "paddle", "--dtype", "bfloat16"]
    assert_refused(ckpt(capfd, *arguments), "leave out the map and dtype")
    assert not registry.exists()


def test_both_checks_by_the_command(registry: Path, capfd: pytest.CaptureFixture[str]) -> None:
    arguments = ["--check", "gpu", "--check", "paddle", "--prefix", "model"]
    outcome = ckpt(capfd, "run", LLAMA_RUN, registry, "--name", "t", *arguments)
    assert outcome.status == 0, outcome
    assert f"engine: 20 tensors, 263,424 bytes, are what Paddle's own loader gives on {DEVICE}" in outcome.stdout
    again = run(Choice(str(LLAMA_RUN), selection=MODEL), registry, "t", gates=[EngineCheck(MODEL)])
    assert again.gates == ()
