"""Health on real releases, held against numpy over the same values."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore import Choice, merge, run
from ckptcore.errors import ReleaseInvalid, ReleaseNotFound
from ckptcore.formats.element_values import values_of
from ckptcore.health import _PART_ELEMENTS, health
from ckptcore.release_reader import open_tensors
from ckptcore.rules.health import HealthReport, TensorHealth
from tests.builders import Part, SavedCheckpoint
from tests.command import ckpt
from tests.registries import NAME

LLAMA = Path(__file__).parent / "data" / "llama-run"


def merged(saved: SavedCheckpoint, directory: Path) -> Path:
    source = saved.write(directory / "source")
    merge(Choice(str(source)).planned(), directory / "out")
    return directory / "out"


def by_key(report: HealthReport) -> dict[str, TensorHealth]:
    return {tensor.spec.key: tensor for tensor in report.tensors}


def whole(path: Path, key: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    with open_tensors(path) as tensors:
        tensor = next(tensor for tensor in tensors if tensor.spec.key == key)
        data = bytearray(tensor.spec.size_bytes)
        tensor.read_into(0, memoryview(data))
    return values_of(memoryview(data), tensor.spec.dtype)


def test_a_real_release_is_what_numpy_says(tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    released = run(Choice(str(LLAMA)), registry, NAME)
    report = health(released.path)
    assert len(report.tensors) == 21
    assert not report.sick
    for tensor in report.tensors:
        values = whole(Path(released.path), tensor.spec.key)
        assert tensor.absmax == np.abs(values).max()
        assert tensor.norm == pytest.approx(math.sqrt(math.fsum(values * values)), rel=1e-13)
    squares = [tensor.norm**2 for tensor in report.tensors if tensor.norm is not None]
    assert report.norm == pytest.approx(math.sqrt(math.fsum(squares)), rel=1e-13)


def test_every_dtype_and_what_is_no_number(tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    half_bits = np.array([0x3F80, 0x7FC0, 0x7F80, 0xFF80, 0xC000], np.uint16)  # 1, NaN, Inf, -Inf, -2
    complexes = np.array([3 + 4j, complex(np.nan, np.inf), complex(np.inf, 0), -1j], np.complex64)
    saved = (
        SavedCheckpoint()
        .tensor("bf16", half_bits, dtype="bfloat16")
        .tensor("e4m3", np.array([0x38, 0x7F, 0xFE, 0x00], np.uint8), dtype="float8_e4m3fn")  # 1, NaN, -448, 0
        .tensor("e5m2", np.array([0x3C, 0x7C, 0x7E, 0xC0], np.uint8), dtype="float8_e5m2")  # 1, Inf, NaN, -2
        .tensor("f64", rng.standard_normal((37, 41)))
        .tensor("f16", np.array([65504, -1, np.inf], np.float16))
        .tensor("c64", complexes)
        .tensor("whole numbers", np.arange(4, dtype=np.int64))
        .tensor("empty", np.zeros((0, 3), np.float32), parts=[Part(0, (0, 0), (0, 3))])
    )
    report = health(merged(saved, tmp_path))
    found = by_key(report)
    counts: dict[str, tuple[object, ...]] = {
        key: (tensor.nan, tensor.inf, tensor.absmax, tensor.norm) for key, tensor in found.items()
    }
    assert counts["bf16"] == (1, 2, 2.0, pytest.approx(math.sqrt(5)))
    assert counts["e4m3"] == (1, 0, 448.0, pytest.approx(math.hypot(1, 448)))
    assert counts["e5m2"] == (1, 1, 2.0, pytest.approx(math.sqrt(5)))
    assert counts["f16"] == (0, 1, 65504.0, pytest.approx(math.hypot(65504, 1)))
    assert counts["c64"] == (1, 1, 5.0, pytest.approx(math.sqrt(26)))
    assert counts["empty"] == (0, 0, 0.0, 0.0)
    values = saved.expected()["f64"]
    assert counts["f64"] == (0, 0, np.abs(values).max(), pytest.approx(np.linalg.norm(values), rel=1e-13))
    assert report.others == 1
    assert {tensor.spec.key for tensor in report.sick} == {"bf16", "e4m3", "e5m2", "f16", "c64"}


def test_a_norm_neither_overflows_nor_vanishes_on_the_way(tmp_path: Path) -> None:
    saved = (
        SavedCheckpoint()
        .tensor("huge", np.array([3e200, 4e200]))
        .tensor("tiny", np.array([3e-200, 4e-200]))
        .tensor("beyond", np.full(16, 1.7e308))
    )
    report = health(merged(saved, tmp_path))
    found = by_key(report)
    assert found["huge"].norm == pytest.approx(5e200)
    assert found["tiny"].norm == pytest.approx(5e-200)
    assert found["beyond"].norm is None
    assert found["beyond"].absmax == 1.7e308
    assert report.norm is None


def test_a_tensor_of_several_parts_and_its_progress(tmp_path: Path) -> None:
    values = np.full(_PART_ELEMENTS + 70_001, 0x3C00, np.uint16).view(np.float16)
    values[-1] = np.nan
    told: list[int] = []
    totals: list[int] = []

    def watched(total: int) -> Any:
        totals.append(total)
        return told.append

    report = health(merged(SavedCheckpoint().tensor("w", values), tmp_path), on_start=watched)
    (tensor,) = report.tensors
    assert tensor.norm == pytest.approx(math.sqrt(values.size - 1), rel=1e-13)
    assert (tensor.nan, tensor.absmax) == (1, 1.0)
    assert totals == [values.nbytes]
    assert sum(told) == values.nbytes


def test_the_command(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = merged(SavedCheckpoint().tensor("w", np.array([1.0, np.nan, 2.0], np.float32)), tmp_path)
    told = ckpt(capfd, "health", out)
    assert told.status == 0
    assert told.stdout.splitlines()[-1] == "1 tensors read, 1 with NaN or Inf"
    assert told.stderr.strip().endswith("w  1 NaN, 0 Inf, absmax 2, norm 2.23607")
    document = json.loads(ckpt(capfd, "health", out, "--json").stdout)
    assert document["tensors"][0]["nan"] == 1
    assert ckpt(capfd, "health", tmp_path / "nothing").status == 1
    assert ckpt(capfd, "health").status == 2


def test_what_is_no_release_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReleaseNotFound):
        health(tmp_path / "nothing")
    out = merged(SavedCheckpoint().tensor("w", np.ones(4, np.float32)), tmp_path)
    cut = tmp_path / "cut"
    shutil.copytree(out, cut)
    (cut / "model.safetensors").write_bytes((out / "model.safetensors").read_bytes()[:-8])
    with pytest.raises(ReleaseInvalid):
        health(cut)
