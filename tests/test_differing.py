"""Diff and show on real releases, and on outputs that were never published."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, merge, publish, run
from ckptcore.aliasing import promote
from ckptcore.differing import _PART_ELEMENTS, compare, diff
from ckptcore.errors import ReleaseInvalid, ReleaseNotFound
from ckptcore.release_reader import open_tensors
from ckptcore.rules.diff import Difference, DiffReport, TensorChange
from tests.builders import Part, SavedCheckpoint
from tests.command import ckpt


def merged(saved: SavedCheckpoint, directory: Path) -> Path:
    source = saved.write(directory / "source")
    merge(Choice(str(source)).planned(), directory / "out")
    return directory / "out"


def by_key(report: DiffReport) -> dict[str, TensorChange]:
    return {change.key: change for change in report.changes}


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    ones = np.ones((4, 4), np.float32)
    same = SavedCheckpoint().tensor("same", ones, grid=(2, 2))
    same = same.tensor("empty", np.zeros((0, 3), np.float32), parts=[Part(0, (0, 0), (0, 3))])
    a = (
        same.tensor("gone", ones)
        .tensor("shape", ones)
        .tensor("cast", np.full(4, 0x3F80, np.uint16), dtype="bfloat16")
        .tensor("renumbered", np.arange(4, dtype=np.int64))
        .tensor("half", np.full(4, 0x4000, np.uint16), dtype="bfloat16")
        .tensor("eighth", np.array([0x38, 0x38], np.uint8), dtype="float8_e4m3fn")
        .tensor("weights", ones, grid=(2, 1))
        .tensor("broken", ones)
    )
    changed, broken = ones.copy(), ones.copy()
    changed[1, 2], broken[0, 0] = 1.5, np.nan
    b = (
        same.tensor("new", ones)
        .tensor("shape", ones.reshape(2, 8))
        .tensor("cast", np.array([1, 1, 1, 1.25], np.float32))
        .tensor("renumbered", np.array([0, 1, 2, 9], np.int64))
        .tensor("half", np.array([0x4000, 0x4000, 0x4000, 0x4040], np.uint16), dtype="bfloat16")
        .tensor("eighth", np.array([0x38, 0x40], np.uint8), dtype="float8_e4m3fn")
        .tensor("weights", changed, grid=(1, 2))
        .tensor("broken", broken)
    )
    return merged(a, tmp_path / "a"), merged(b, tmp_path / "b")


def test_every_kind_of_difference(pair: tuple[Path, Path]) -> None:
    report = diff(*pair)
    found = by_key(report)
    assert {key: change.difference for key, change in found.items()} == {
        "gone": Difference.REMOVED,
        "new": Difference.ADDED,
        "shape": Difference.RESHAPED,
        "cast": Difference.RECAST,
        "renumbered": Difference.CHANGED,
        "half": Difference.CHANGED,
        "eighth": Difference.CHANGED,
        "weights": Difference.CHANGED,
        "broken": Difference.CHANGED,
    }
    assert report.unchanged == 2


def test_headers_and_digests_alone_tell_what_must_be_read(pair: tuple[Path, Path]) -> None:
    compared = compare(*pair)
    assert {change.key: change.difference.value for change in compared.changes} == {
        "gone": "removed",
        "new": "added",
        "shape": "reshaped",
    }
    # Merged outputs have no digests of tensors: everything else has to be read.
    read = {spec.key for spec, _ in compared.pairs}
    assert read == {"same", "empty", "cast", "renumbered", "half", "eighth", "weights", "broken"}


def test_progress_counts_each_pair_twice(pair: tuple[Path, Path]) -> None:
    totals, told = list[int](), list[int]()

    def watched(total: int) -> Callable[[int], None]:
        totals.append(total)
        return told.append

    assert diff(*pair, on_start=watched) == diff(*pair)
    (total,) = totals
    assert sum(told) == total
    assert total == 2 * sum(a.size_bytes + b.size_bytes for a, b in compare(*pair).pairs)


def test_how_much_each_changed(pair: tuple[Path, Path]) -> None:
    values = {key: change.values for key, change in by_key(diff(*pair)).items()}
    told = {
        key: (value.differing, value.elements, value.not_finite, value.relative, value.largest)
        for key, value in values.items()
        if value is not None
    }
    assert told == {
        "cast": (1, 4, 0, 0.125, 0.25),
        "renumbered": (1, 4, 0, None, None),
        "half": (1, 4, 0, 0.25, 1.0),  # 2, 2, 2, 2 and 2, 2, 2, 3
        "eighth": (1, 2, 0, pytest.approx(2**-0.5), 1.0),  # 1, 1 and 1, 2
        "weights": (1, 16, 0, 0.125, 0.5),
        "broken": (1, 16, 1, None, 0.0),
    }


def test_tensors_of_equal_digests_are_not_read(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """The copy's data is damaged, and the digests are taken at their word."""
    manifest = json.loads((pair[0] / "manifest.json").read_bytes())
    for number, tensor in enumerate(manifest["tensors"]):
        tensor["sha256"] = f"{number:064}"
    (pair[0] / "manifest.json").write_text(json.dumps(manifest))
    copy = shutil.copytree(pair[0], tmp_path / "copy")
    data = bytearray((copy / "model.safetensors").read_bytes())
    data[-1] ^= 0x40
    (copy / "model.safetensors").write_bytes(data)
    report = diff(pair[0], copy)
    assert (report.changes, report.unchanged) == ((), 10)
    (copy / "manifest.json").unlink()
    assert [change.difference for change in diff(pair[0], copy).changes] == [Difference.CHANGED]


def test_without_manifests_the_bytes_decide(pair: tuple[Path, Path]) -> None:
    wanted = diff(*pair)
    for directory in pair:
        (directory / "manifest.json").unlink()
    assert diff(*pair) == wanted


def test_a_tensor_of_more_than_one_part(tmp_path: Path) -> None:
    length = _PART_ELEMENTS + 100_003
    values = np.ones(length, np.uint8)
    changed = values.copy()
    changed[[0, _PART_ELEMENTS - 1, _PART_ELEMENTS, -1]] = 2
    paths = [
        merged(SavedCheckpoint().tensor("w", data, dtype="float8_e5m2"), tmp_path / name)
        for name, data in (("a", values), ("b", changed))
    ]
    (change,) = diff(*paths).changes
    assert change.values is not None
    assert (change.values.elements, change.values.differing) == (length, 4)
    assert change.values.relative == pytest.approx((4 / length) ** 0.5, rel=1e-12)


def test_a_recast_of_the_same_bytes_is_measured_all_the_same(tmp_path: Path) -> None:
    zeros = np.zeros(5, np.uint16)
    paths = [
        merged(SavedCheckpoint().tensor("w", zeros.view(stored), dtype=dtype), tmp_path / dtype)
        for stored, dtype in ((np.uint16, "bfloat16"), (np.float16, "float16"))
    ]
    (change,) = diff(*paths).changes
    assert change.values is not None
    assert (change.values.elements, change.values.differing, change.values.relative) == (5, 0, 0.0)


def test_a_cut_shard_and_no_directory_are_refused(pair: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(ReleaseNotFound):
        diff(pair[0], tmp_path / "nowhere")
    shard = pair[1] / "model.safetensors"
    os.truncate(shard, shard.stat().st_size - 1)
    with pytest.raises(ReleaseInvalid):
        diff(*pair)


def test_a_shard_that_is_cut_while_it_is_read_is_refused(pair: tuple[Path, Path]) -> None:
    shard = pair[0] / "model.safetensors"
    with open_tensors(pair[0]) as tensors:
        os.truncate(shard, shard.stat().st_size - 1)
        last = max((tensor for tensor in tensors if tensor.spec.size_bytes), key=lambda tensor: tensor._begin)
        with pytest.raises(ReleaseInvalid, match=r"model\.safetensors"):
            last.read_into(0, memoryview(bytearray(last.spec.size_bytes)))
        with pytest.raises(ValueError, match="asked up to"):
            last.read_into(1, memoryview(bytearray(last.spec.size_bytes)))


def test_the_command_takes_releases_or_directories(
    pair: tuple[Path, Path], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    registry = tmp_path / "registry"
    first = publish(pair[0], registry, "tiny")
    publish(pair[1], registry, "tiny")
    by_name = ckpt(capfd, "diff", registry, f"tiny@{first.release}", "tiny@latest")
    by_path = ckpt(capfd, "diff", *pair)
    assert by_name == by_path
    assert by_name.status == 0
    assert by_name.stdout.splitlines()[-1] == "1 removed, 1 added, 1 reshaped, 1 recast, 5 changed, 2 unchanged"
    document = json.loads(ckpt(capfd, "diff", *pair, "--json").stdout)
    assert document["unchanged"] == 2
    weights = next(change for change in document["changes"] if change["key"] == "weights")
    assert weights["values"] == {"elements": 16, "differing": 1, "not_finite": 0, "relative": 0.125, "largest": 0.5}
    assert ckpt(capfd, "diff", registry).status == 2
    assert ckpt(capfd, "diff", registry, "tiny", "tiny@nothing").status == 1


def test_show_tells_what_a_release_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source = SavedCheckpoint().tensor("w", np.ones((4, 4), np.float32), grid=(2, 1)).tensor("n", [3])
    path = source.write(tmp_path / "source")
    (path / "config.json").write_text("{}")
    published = run(Choice(str(path)), tmp_path / "registry", "tiny")
    promote(tmp_path / "registry", "tiny", "production", reason="it is good")
    shown = ckpt(capfd, "show", tmp_path / "registry", "tiny@production")
    assert shown.status == 0
    assert f"tiny@{published.release}\n" in shown.stdout
    assert "aliases   latest, production\n" in shown.stdout
    assert "tensors   2: 1 float32, 1 int64\n" in shown.stdout
    assert "'it is good'" in shown.stdout
    document = json.loads(ckpt(capfd, "show", tmp_path / "registry", "tiny", "--json").stdout)
    assert document["aliases"] == ["latest", "production"]
    assert document["source"]["path"] == str(path)
    assert [record["name"] for record in document["files"]] == ["config.json", "model.safetensors"]
    assert [act["act"] for act in document["history"]] == ["publish", "promote"]
    assert document["dtypes"] == {"float32": 1, "int64": 1}
    (Path(published.path) / "manifest.json").write_text("{")
    assert ckpt(capfd, "show", tmp_path / "registry", "tiny").status == 1
