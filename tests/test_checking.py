"""The check on a device, with Paddle itself: on the CPU here, and on the GPU where there is one."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, merge, publish, run
from ckptcore.checking import check_on_device, require_loaded
from ckptcore.errors import DeviceFailed, ReleaseInvalid
from ckptcore.publishing import pass_gates, stage
from ckptcore.rules.gates import DeviceCheck
from ckptcore.validating import read_manifest
from tests.builders import Part, SavedCheckpoint, write_trainer_run
from tests.command import ckpt
from tests.corpus import LLAMA_RUN

paddle = pytest.importorskip("paddle")

from ckptcore.paddle import through_device  # noqa: E402 - refused where Paddle is not installed

pytestmark = pytest.mark.paddle

DEVICE = "gpu:0" if paddle.is_compiled_with_cuda() and paddle.device.cuda.device_count() else "cpu"
RAW = {"bfloat16": np.uint16, "float8_e4m3fn": np.uint8, "float8_e5m2": np.uint8}
DTYPES = (
    "float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int64", "int32", "int16", "int8",
    "uint8", "bool", "complex64",
)  # fmt: skip


def every_dtype() -> SavedCheckpoint:
    """Random bits, NaNs with their payloads among them, in shapes of 0 to 3 axes, one of them empty."""
    saved = SavedCheckpoint()
    random = np.random.default_rng(3)
    for dtype in DTYPES:
        kind = np.dtype(RAW.get(dtype, dtype))
        for shape in ((), (0, 3), (5,), (2, 3, 4)):
            size = int(np.prod(shape)) * kind.itemsize
            bits = random.integers(0, 2 if dtype == "bool" else 256, size, dtype=np.uint8)
            name = f"{dtype}.{'x'.join(map(str, shape)) or 'scalar'}"
            saved = saved.tensor(
                name, bits.view(kind).reshape(shape), dtype=dtype, parts=[Part(0, (0,) * len(shape), shape)]
            )
    return saved


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return write_trainer_run(tmp_path / "output", {1: every_dtype()})


@pytest.fixture
def registry(tmp_path: Path) -> Path:
    return tmp_path / "registry"


def flip(path: Path, offset: int = -1) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def test_every_dtype_comes_back_as_it_was(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "t")
    report = check_on_device(staged.path)
    manifest = read_manifest(Path(staged.path))
    assert (report.device, report.tensors, report.issues) == (DEVICE, 4 * len(DTYPES), ())
    assert report.size_bytes == sum(spec.size_bytes for spec in manifest.specs())
    assert all(record.sha256 for record in manifest.tensors)


def test_a_large_tensor_goes_in_blocks(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "t")
    assert check_on_device(staged.path, block_bytes=16).issues == ()
    flip(Path(staged.path) / "model.safetensors")
    assert check_on_device(staged.path, block_bytes=16).issues == check_on_device(staged.path).issues != ()


def test_a_flipped_byte_in_staging_stops_the_release(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "t")
    flip(Path(staged.path) / "model.safetensors")
    with pytest.raises(ReleaseInvalid) as refusal:
        pass_gates(staged, [DeviceCheck()])
    [issue] = refusal.value.issues
    assert DEVICE in refusal.value.message
    assert issue.code == "device-digest"
    assert not Path(staged.path).exists()
    assert os.listdir(registry / "t" / "releases") == []


def test_every_mismatch_is_reported_at_once(training: Path, registry: Path) -> None:
    staged = stage(Choice(str(training)).planned(), registry, "t")
    shard = Path(staged.path) / "model.safetensors"
    for offset in (-1, -30, -60, -90):
        flip(shard, offset)
    with pytest.raises(ReleaseInvalid) as refusal:
        require_loaded(check_on_device(staged.path))
    assert len(refusal.value.issues) > 1


def test_without_digests_of_tensors_the_files_digest_counts(training: Path, registry: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    merge(Choice(str(training)).planned(), out)
    assert not any(record.sha256 for record in read_manifest(out).tensors)
    assert check_on_device(out).issues == ()
    flip(out / "model.safetensors")
    assert [(issue.where, issue.code) for issue in check_on_device(out).issues] == [
        ("model.safetensors", "file-digest")
    ]


def test_tensors_that_the_manifest_does_not_know(training: Path, registry: Path) -> None:
    staged = Path(stage(Choice(str(training)).planned(), registry, "t").path)
    manifest = read_manifest(staged)
    (staged / "manifest.json").write_bytes(replace(manifest, tensors=manifest.tensors[1:]).to_bytes())
    assert manifest.tensors[0].spec.key in str(check_on_device(staged).issues)


def test_a_device_that_fails_is_a_refusal() -> None:
    with pytest.raises(DeviceFailed, match=r"gpu:4321: cannot take 12 bytes of float32"):
        through_device(np.zeros(3, np.float32), "float32", "gpu:4321")


def test_the_command_says_which_device_did_it(
    registry: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    outcome = ckpt(capfd, "run", LLAMA_RUN, registry, "--name", "llama", "--check", "gpu")
    assert outcome.status == 0, outcome
    assert f"came back from {DEVICE} unchanged" in outcome.stdout


def test_an_output_is_checked_in_the_registry(training: Path, registry: Path, tmp_path: Path) -> None:
    merge(Choice(str(training)).planned(), tmp_path / "out")
    [report] = publish(tmp_path / "out", registry, "t", gates=[DeviceCheck()]).gates
    assert (report.gate, report.by) == ("check", DEVICE)


def test_a_second_run_checks_nothing(training: Path, registry: Path) -> None:
    gates = [DeviceCheck()]
    assert [r.by for r in run(Choice(str(training)), registry, "t", gates=gates).gates] == [DEVICE]
    assert run(Choice(str(training)), registry, "t", gates=gates).gates == ()
