"""A release in the readers of others, unchanged: safetensors and huggingface_hub."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open

from ckptcore import Choice, run
from tests.builders import SavedCheckpoint, write_trainer_run

MATRIX = np.arange(48, dtype=np.float32).reshape(8, 6)
COUNTS = np.arange(5, dtype=np.int64)
HALF = np.arange(12, dtype=np.uint16).reshape(3, 4)


@pytest.fixture(params=["5GB", "100B"], ids=["one shard", "several shards"])
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    saved = SavedCheckpoint().tensor("w", MATRIX, grid=(2, 1)).tensor("n", COUNTS).tensor("h", HALF, dtype="bfloat16")
    source = write_trainer_run(tmp_path / "output", {1: saved})
    limit = 5_000_000_000 if request.param == "5GB" else 100
    return Path(run(Choice(str(source), max_shard_bytes=limit), tmp_path / "registry", "tiny").path)


def shards(release: Path) -> list[Path]:
    return sorted(release.glob("*.safetensors"))


def test_safetensors_reads_every_tensor(release: Path) -> None:
    found: dict[str, tuple[str, list[int]]] = {}
    values = {}
    for shard in shards(release):
        with safe_open(shard, "numpy") as file:
            for name in file.offset_keys():
                part = file.get_slice(name)
                found[name] = (part.get_dtype(), part.get_shape())
                if name != "h":  # numpy has no bfloat16
                    values[name] = file.get_tensor(name)
    assert found == {"w": ("F32", [8, 6]), "n": ("I64", [5]), "h": ("BF16", [3, 4])}
    np.testing.assert_array_equal(values["w"], MATRIX)
    np.testing.assert_array_equal(values["n"], COUNTS)


def test_huggingface_hub_reads_the_metadata(release: Path) -> None:
    hub = pytest.importorskip("huggingface_hub", minversion="1.0")
    metadata = hub.get_local_safetensors_metadata(release)
    assert metadata.sharded is (len(shards(release)) > 1)
    found = {key: (t.dtype, t.shape) for file in metadata.files_metadata.values() for key, t in file.tensors.items()}
    assert found == {"w": ("F32", [8, 6]), "n": ("I64", [5]), "h": ("BF16", [3, 4])}
    assert metadata.parameter_count == {"F32": 48, "I64": 5, "BF16": 12}
    if metadata.sharded:
        index = json.loads((release / "model.safetensors.index.json").read_text())
        assert metadata.weight_map == index["weight_map"]
