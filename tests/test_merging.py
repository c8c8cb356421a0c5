"""The merge: any sharding of any tensor comes out as it went in, whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file

from ckptcore import Choice, Selection, merge
from ckptcore.errors import InvalidName, NotEnoughSpace, OutputExists, SelectionError, SourceChanged, UnsupportedDtype
from ckptcore.storage import copier
from tests.builders import FLAVOURS, SavedCheckpoint

DTYPES = ["float32", "float64", "float16", "int8", "uint8", "int16", "int32", "int64", "bool", "complex64"]


def values_of(shape: tuple[int, ...], dtype: str, seed: int) -> np.ndarray[Any, Any]:
    """Random bits, NaN patterns included, so that anything but a copy of the bits shows."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, int(np.prod(shape)) * np.dtype(dtype).itemsize, dtype=np.uint8)
    return raw.view(dtype).reshape(shape)


@st.composite
def saved_tensors(draw: st.DrawFn) -> SavedCheckpoint:
    flavour = draw(st.sampled_from(FLAVOURS))
    saved = SavedCheckpoint(flavour=flavour, protocol=draw(st.sampled_from([2, 3, 4, 5])))
    for number in range(draw(st.integers(1, 4))):
        shape = tuple(draw(st.lists(st.integers(1, 9), max_size=4)))
        dtype = draw(st.sampled_from(DTYPES))
        values = values_of(shape, dtype, number)
        if draw(st.booleans()) and flavour in ("3.2", "3.3") and shape:
            saved = saved.tensor(f"t{number}", values, flat_parts=draw(st.integers(1, 5)))
            continue
        grid = tuple(draw(st.integers(1, extent)) for extent in shape)
        order: Literal["<", ">"] = draw(st.sampled_from(["<", ">"]))
        saved = saved.tensor(f"t{number}", values, grid=grid, fortran=draw(st.booleans()), byteorder=order)
    return saved


@settings(max_examples=60)
@given(saved_tensors(), st.integers(16, 400))
def test_any_sharding_merges_to_the_original(saved: SavedCheckpoint, shard_bytes: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        source = saved.write(Path(scratch) / "source")
        merge(Choice(str(source), max_shard_bytes=shard_bytes).planned(), Path(scratch) / "out")
        merged: dict[str, Any] = {}
        for shard in sorted((Path(scratch) / "out").glob("*.safetensors")):
            merged |= load_file(shard)
        expected = saved.expected()
        assert merged.keys() == expected.keys()
        for key, values in expected.items():
            assert merged[key].dtype == values.dtype
            assert merged[key].shape == values.shape
            assert merged[key].tobytes() == values.tobytes()


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of one page: a small tensor takes many blocks, gaps and cuts, as a large one does."""
    monkeypatch.setattr(copier, "MAX_BLOCK_BYTES", 4096)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("grid", [(1, 1), (4, 1), (1, 4), (3, 5)])
@pytest.mark.parametrize("fortran", [False, True])
def test_tensors_larger_than_the_buffers(tmp_path: Path, grid: tuple[int, int], fortran: bool) -> None:
    values = values_of((301, 203), "int16", 1)
    wide = values_of((2, 30_011), "int32", 2)
    saved = SavedCheckpoint().tensor("w", values, grid=grid, fortran=fortran).tensor("wide", wide, grid=(1, 3))
    saved = saved.tensor("flat", values_of((7, 11, 901), "float32", 3), flat_parts=5)
    merge(Choice(str(saved.write(tmp_path / "source"))).planned(), tmp_path / "out")
    merged = load_file(tmp_path / "out" / "model.safetensors")
    assert {key: value.tobytes() for key, value in merged.items()} == {
        key: value.tobytes() for key, value in saved.expected().items()
    }


@pytest.fixture
def source(tmp_path: Path) -> Path:
    saved = SavedCheckpoint().tensor("model.w", np.arange(64, dtype="f4").reshape(8, 8), grid=(2, 2))
    return saved.tensor("model_ema.w", np.ones(3)).tensor("step", np.int64(7)).write(tmp_path / "source")


def test_the_manifest_records_every_file_and_tensor(source: Path, tmp_path: Path) -> None:
    manifest = merge(Choice(str(source), max_shard_bytes=100).planned(), tmp_path / "out")
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes()) == manifest.to_json()
    on_disk = {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (tmp_path / "out").iterdir()}
    on_disk.pop("manifest.json")
    assert {record.name: record.sha256 for record in manifest.files} == on_disk
    assert {record.spec.key for record in manifest.tensors} == {"model.w", "model_ema.w", "step"}
    assert manifest.source.unique_id == 0


def test_the_same_merge_gives_the_same_bytes(source: Path, tmp_path: Path) -> None:
    first = merge(Choice(str(source)).planned(), tmp_path / "a")
    second = merge(Choice(str(source)).planned(), tmp_path / "b")
    assert (first.files, first.plan_digest, first.identity) == (second.files, second.plan_digest, second.identity)


def test_a_prefix_takes_its_own_keys_only(source: Path, tmp_path: Path) -> None:
    merge(Choice(str(source), selection=Selection(prefixes=("model",))).planned(), tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {"w"}


def test_names_that_collide_are_refused(source: Path) -> None:
    with pytest.raises(SelectionError, match=r"model_ema\.w"):
        Choice(str(source), selection=Selection(prefixes=("model", "model_ema"))).planned()


def test_complex128_is_refused_unless_excluded(tmp_path: Path) -> None:
    saved = SavedCheckpoint().tensor("z", np.zeros(3, "c16")).tensor("w", np.ones(2, "f4"))
    directory = str(saved.write(tmp_path / "source"))
    with pytest.raises(UnsupportedDtype, match=r"'z'.*complex128"):
        Choice(directory).planned()
    merge(Choice(directory, selection=Selection(exclude=("z",))).planned(), tmp_path / "out")
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == {"w"}


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_output_is_never_replaced(source: Path, tmp_path: Path, overwrite: bool) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "precious").write_text("keep")
    (tmp_path / "file").write_text("keep")
    (tmp_path / "link").symlink_to("out")
    planned = Choice(str(source)).planned()
    for name in ("out", "file", "link", "source"):
        with pytest.raises(OutputExists):
            merge(planned, tmp_path / name, overwrite=overwrite)
    assert os.listdir(tmp_path / "out") == ["precious"]
    assert sorted(os.listdir(tmp_path)) == ["file", "link", "out", "source"]


def test_an_existing_output_is_refused_unless_overwritten(source: Path, tmp_path: Path) -> None:
    planned = Choice(str(source)).planned()
    first = merge(planned, tmp_path / "out")
    with pytest.raises(OutputExists):
        merge(planned, tmp_path / "out")
    (tmp_path / "out" / "model.safetensors").write_bytes(b"older")
    merge(planned, tmp_path / "out", overwrite=True)
    assert (tmp_path / "out" / "model.safetensors").stat().st_size == first.files[0].size_bytes
    assert sorted(os.listdir(tmp_path / "out")) == ["manifest.json", "model.safetensors"]


@pytest.mark.parametrize("make", [Path.touch, os.mkfifo, lambda path: path.symlink_to("nowhere")])
def test_overwriting_replaces_no_file_or_device(source: Path, tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "out")
    before = (tmp_path / "out").lstat()
    with pytest.raises(OutputExists, match="is no directory"):
        merge(Choice(str(source)).planned(), tmp_path / "out", overwrite=True)
    assert os.path.samestat((tmp_path / "out").lstat(), before)
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


def test_an_output_with_a_nul_in_its_path_is_refused(source: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="NUL"):
        merge(Choice(str(source)).planned(), f"{tmp_path}/a\0b")


def test_what_was_killed_just_after_the_output_appeared_is_cleared(source: Path, tmp_path: Path) -> None:
    planned = Choice(str(source)).planned()
    merge(planned, tmp_path / "out")
    (tmp_path / ".out.staging.lock").touch()
    (tmp_path / ".out.staging").mkdir()
    with pytest.raises(OutputExists):
        merge(planned, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["out", "source"]


@pytest.mark.parametrize("change", ["overwritten", "deleted", "touched"])
def test_a_source_that_changed_since_it_was_verified_is_refused(source: Path, tmp_path: Path, change: str) -> None:
    planned = Choice(str(source)).planned()
    victim = source / "1_0.distcp"
    if change == "deleted":
        victim.unlink()
    elif change == "overwritten":
        victim.write_bytes(victim.read_bytes())
    else:
        os.utime(victim)
    with pytest.raises(SourceChanged, match=r"1_0\.distcp"):
        merge(planned, tmp_path / "out")
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_a_source_that_changes_during_the_merge_is_refused(source: Path, tmp_path: Path) -> None:
    """The trainer overwrites the same id while bytes move; the progress callback is the moment."""
    planned = Choice(str(source)).planned()
    with pytest.raises(SourceChanged, match=r"0_0\.distcp"):
        merge(planned, tmp_path / "out", on_progress=lambda size: os.utime(source / "0_0.distcp"))
    assert sorted(os.listdir(tmp_path)) == ["source"]


def test_a_failure_in_the_middle_leaves_nothing(source: Path, tmp_path: Path) -> None:
    def fail(size: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        merge(Choice(str(source)).planned(), tmp_path / "out", on_progress=fail)
    assert sorted(os.listdir(tmp_path)) == ["source"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_files_have_the_umasks_mode(source: Path, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        merge(Choice(str(source)).planned(), tmp_path / "out")
    finally:
        os.umask(before)
    assert {p.stat().st_mode & 0o777 for p in (tmp_path / "out").iterdir()} == {0o666 & ~mask}


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_is_refused_and_left_empty(source: Path, tmp_path: Path) -> None:
    big = SavedCheckpoint().tensor("w", values_of((1 << 20,), "uint8", 1)).write(tmp_path / "big")
    mount = tmp_path / "mount"
    mount.mkdir()
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {mount}"):
        pytest.skip("this machine does not mount a tmpfs")
    try:
        with pytest.raises(NotEnoughSpace, match="not enough disk space"):
            merge(Choice(str(big)).planned(), mount / "out")
        assert os.listdir(mount) == []
    finally:
        os.system(f"umount {mount}")
