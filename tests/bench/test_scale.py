"""The run of very many ranks at a size for every day: what its files are, and that every value of it arrives."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.detecting import list_versions
from ckptcore.lifecycle import validate_staged
from ckptcore.merging import merge, plan
from ckptcore.publishing import publish_staged, stage
from ckptcore.rules.selection import Selection
from ckptcore.verifying import Verified, require_sound, verify
from tests.bench.many_ranks import ManyRanks, write
from tests.builders import Array

RUN = ManyRanks(ranks=64, tensors=2_000, rows=16, columns=16)
TERABYTES = ManyRanks(ranks=64, tensors=300, rows=2_500, columns=2_000)


def verified(directory: Path) -> Verified:
    (version,) = list_versions(directory)
    return require_sound(verify(version))


def tensors_in(shard: Path) -> Iterator[tuple[str, Array]]:
    """The tensors of a safetensors file, read here without the reader under test."""
    data = shard.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    for key, entry in json.loads(data[8:start]).items():
        if key != "__metadata__":
            low, high = entry["data_offsets"]
            assert entry["dtype"] == "BF16"
            yield key, np.frombuffer(data[start + low : start + high], np.uint16).reshape(entry["shape"])


def test_every_value_arrives(tmp_path: Path) -> None:
    size = write(RUN, tmp_path / "run", sparse=False)
    assert (size.tensors, size.rank_files, size.pieces) == (2_000, 64, 18_660)
    found = verified(tmp_path / "run")
    assert found.report.tensor_count == 2_000
    assert found.report.tensor_bytes == size.size_bytes == 2_000 * 16 * 16 * 2
    planned = plan(found.checkpoint, max_shard_bytes=100_000)
    assert sum(len(tensor.copies) for tensor in planned.tensors()) >= size.pieces
    staged = stage(planned, tmp_path / "registry", "scale")
    assert validate_staged(staged, ()).issues == ()
    published = publish_staged(staged)
    shards = sorted(Path(published.path).glob("*.safetensors"))
    assert len(shards) == len(planned.shards) == 11
    number_of = {RUN.key(number): number for number in range(RUN.tensors)}
    for shard in shards:
        for key, values in tensors_in(shard):
            assert np.array_equal(values, RUN.values_of(number_of.pop(key))), key
    assert number_of == {}


@pytest.fixture(scope="module")
def terabytes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("sparse")
    write(TERABYTES, directory, sparse=True)
    return directory


def test_holes_take_no_disk_and_are_verified_and_planned_as_payloads_are(terabytes: Path) -> None:
    files = [path.stat() for path in terabytes.glob("*.distcp")]
    assert sum(status.st_size for status in files) > 3_000_000_000
    assert sum(512 * status.st_blocks for status in files) < 60_000_000
    found = verified(terabytes)
    assert found.report.tensor_bytes == 3_000_000_000
    assert plan(found.checkpoint).bytes_in == 3_000_000_000


def test_holes_are_zeros_to_a_merge(terabytes: Path, tmp_path: Path) -> None:
    selection = Selection(include=("model.layers.0.mlp.experts.[0-1].*",))
    merge(plan(verified(terabytes).checkpoint, selection=selection), tmp_path / "merged")
    found = dict(tensors_in(tmp_path / "merged" / "model.safetensors"))
    assert len(found) == 6
    assert all(values.shape == (2_500, 2_000) and not values.any() for values in found.values())


def test_a_sparse_file_is_what_pickle_writes_of_zeros(tmp_path: Path) -> None:
    run = ManyRanks(ranks=16, tensors=3, rows=1024, columns=512)
    write(run, tmp_path, sparse=True)
    for path in tmp_path.glob("*.distcp"):
        data = path.read_bytes()
        content: dict[str, Any] = pickle.loads(data)
        names = content["StructuredToParameterName@@"]
        assert list(content) == [*names, "StructuredToParameterName@@"]
        arrays: dict[str, Any] = {key: np.zeros(content[key].shape, np.uint16) for key in names}
        assert pickle.dumps(arrays | {"StructuredToParameterName@@": {**names}}, protocol=4) == data
