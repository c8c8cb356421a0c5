"""Verification names every fault of a version at once, in the words of the file, and passes what is whole."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.detecting import list_versions
from ckptcore.errors import CheckpointError, SourceChanged, VersionDamaged, VersionIncomplete
from ckptcore.rules.verification import FileState, NonFinite
from ckptcore.rules.versions import StateKind
from ckptcore.verifying import Verified, require_sound, verify
from tests.builders import FLAVOURS, Flavour, Part, PickledMetadata, SavedCheckpoint
from tests.corpus import Case

WEIGHTS = np.arange(24, dtype="f4").reshape(6, 4)
SAVED = (
    SavedCheckpoint(unique_id=11)
    .tensor("w", WEIGHTS, grid=(2, 2))
    .tensor("bias", np.arange(4, dtype=np.uint16), dtype="bfloat16")
    .tensor("moment", WEIGHTS, flat_parts=3)
)


def verified(saved: SavedCheckpoint, directory: Path, **options: Any) -> Verified:
    (version,) = list_versions(saved.write(directory))
    return verify(version, **options)


def texts(result: Verified) -> list[str]:
    return [str(issue) for issue in result.report.issues]


def test_the_corpus(corpus_case: Case) -> None:
    sound = {version.unique_id: verify(version).report.is_sound for version in list_versions(corpus_case.checkpoint)}
    if corpus_case.verdict == "good":
        assert all(sound[unique_id] for unique_id in corpus_case.unique_ids)
    elif corpus_case.verdict == "refuse":
        assert not any(sound.values())


@pytest.mark.parametrize("flavour", FLAVOURS)
@pytest.mark.parametrize("protocol", [2, 4, 5])
def test_a_whole_version_of_every_release(flavour: Flavour, protocol: int, tmp_path: Path) -> None:
    saved = (
        SavedCheckpoint(flavour=flavour, protocol=protocol).tensor("w", WEIGHTS, grid=(2, 2)).tensor("s", np.float32(3))
    )
    if flavour in ("3.2", "3.3"):
        saved = saved.tensor("moment", WEIGHTS, flat_parts=3)
    result = verified(saved, tmp_path)
    assert texts(result) == []
    checkpoint = require_sound(result).checkpoint
    assert checkpoint.paddle_format == flavour
    assert [(tensor.spec.dtype, tensor.spec.shape) for tensor in checkpoint.tensors if tensor.spec.key == "w"] == [
        ("float32", (6, 4))
    ]
    assert bool(result.report.notes) == (flavour in ("2.6", "3.0"))  # shapes inferred before 3.2


def test_a_whole_version_of_safetensors_rank_files(tmp_path: Path) -> None:
    saved = replace(SAVED, suffix="safetensors")
    result = verified(saved, tmp_path, deep=True)
    assert texts(result) == []
    assert {found.state for found in result.report.files} == {FileState.SOUND}


def test_where_the_bytes_of_a_whole_version_lie(tmp_path: Path) -> None:
    checkpoint = require_sound(verified(SAVED, tmp_path)).checkpoint
    assert [tensor.spec.key for tensor in checkpoint.tensors] == ["bias", "moment", "w"]
    assert [stamp.name for stamp in checkpoint.fingerprint.files] == sorted(path.name for path in tmp_path.iterdir())
    rebuilt = np.zeros_like(WEIGHTS)
    for located in checkpoint.tensors[2].pieces:
        (segment,) = located.array.segments
        data = (tmp_path / located.piece.file).read_bytes()[segment.offset :][: segment.length]
        box = tuple(slice(low, high) for low, high in zip(located.piece.box.offset, located.piece.box.end, strict=True))
        rebuilt[box] = np.frombuffer(data, "<f4").reshape(located.piece.box.shape)
    assert np.array_equal(rebuilt, WEIGHTS)


def test_every_fault_is_named_in_one_go(tmp_path: Path) -> None:
    def hole(metadata: PickledMetadata) -> None:
        metadata.storage = [(key, file) for key, file in metadata.storage if key["tensor_key"] != "bias"]

    result = verified(SAVED.without_rank(3).truncated("1_11.distcp", at=30).edited(hole), tmp_path)
    found = texts(result)
    assert "rank 3 of version 11: 3_11.distcp is missing" in found
    assert any(text.startswith("rank 1 of version 11: 1_11.distcp") for text in found)
    assert any(text.startswith("tensor 'bias'") for text in found)
    states = {finding.name: finding.state for finding in result.report.files}
    assert states["3_11.distcp"] is FileState.MISSING
    assert states["1_11.distcp"] is FileState.DAMAGED
    assert states["2_11.distcp"] is FileState.SOUND
    with pytest.raises(VersionIncomplete) as caught:
        require_sound(result)
    assert list(caught.value.issues) == list(result.report.issues)
    with pytest.raises(VersionIncomplete):
        _ = result.checkpoint


def test_a_missing_metadata_file_says_what_is_there(tmp_path: Path) -> None:
    result = verified(SAVED.without_metadata().with_file("11.metadata.lock"), tmp_path)
    (text,) = texts(result)
    assert text.startswith("version 11: 11.metadata is missing: found 4 rank files of it and 11.metadata.lock")
    assert result.report.state.kind is StateKind.INCOMPLETE


@pytest.mark.parametrize("name", ["11.metadata", "2_11.distcp"])
@pytest.mark.parametrize(
    ("make", "what"),
    [
        (Path.mkdir, "is no regular file: found a directory"),
        (os.mkfifo, "is no regular file: found a FIFO"),
        (lambda path: path.symlink_to("/etc/hostname"), "is a link that leads out of its directory"),
    ],
    ids=["directory", "fifo", "link"],
)
def test_a_name_that_is_no_file_of_the_version(
    name: str, make: Callable[[Path], None], what: str, tmp_path: Path
) -> None:
    result = verified(SAVED.instead_of(name, make), tmp_path)
    (text,) = texts(result)
    assert name in text
    assert what in text
    with pytest.raises(VersionDamaged):
        require_sound(result)


def test_a_link_inside_the_directory_is_a_file_like_any(tmp_path: Path) -> None:
    SAVED.write(tmp_path)
    (tmp_path / "2_11.distcp").rename(tmp_path / "elsewhere")
    (tmp_path / "2_11.distcp").symlink_to("elsewhere")
    (version,) = list_versions(tmp_path)
    assert texts(verify(version)) == []


@pytest.mark.parametrize(
    ("rank", "key", "values"),
    [
        (0, "w", np.zeros((3, 3), "f4")),
        (0, "w", np.zeros((3, 2), "f8")),
        (0, "bias", np.zeros(4, "f2")),
        (1, "moment", np.zeros(9, "f4")),
    ],
)
def test_an_array_that_is_not_the_piece(rank: int, key: str, values: Any, tmp_path: Path) -> None:
    (text,) = texts(verified(SAVED.holding(rank, key, values), tmp_path))
    assert text.startswith(f"rank {rank} of version 11: tensor {key!r} in {rank}_11.distcp: ")
    assert "expected" in text


def test_what_nobody_will_read_is_noted(tmp_path: Path) -> None:
    saved = SAVED.with_file("9_11.distcp", b"x").with_file("11.metadata.lock").holding(0, "extra", np.zeros(1))
    result = verified(saved, tmp_path / "ema_state")
    assert result.report.is_sound
    assert [note.code for note in result.report.notes] == ["unclaimed-keys", "stale-lock", "stale-rank-file"]


def test_a_tensor_that_the_metadata_does_not_name_is_of_another_save(tmp_path: Path) -> None:
    """Paddle 3.2 keeps the metadata of the first save when an id is saved again: what is new in the second is lost."""
    (text,) = texts(verified(SAVED.holding(0, "new", np.zeros(1)), tmp_path))
    assert "tensor 'new' in 0_11.distcp: the metadata does not name this tensor" in text


def test_a_save_without_tensors_is_no_whole_version(tmp_path: Path) -> None:
    (text,) = texts(verified(SavedCheckpoint(), tmp_path))
    assert "its metadata names no tensor" in text


def test_strangers_in_a_components_directory_are_noted(tmp_path: Path) -> None:
    (version,) = list_versions(SAVED.with_file("core.1234").write(tmp_path / "model_state"))
    assert [note.found for note in verify(version).report.notes] == ["core.1234"]


def test_a_file_that_is_written_during_verification(tmp_path: Path) -> None:
    (version,) = list_versions(SAVED.write(tmp_path))
    result = verify(version, on_progress=lambda _: os.utime(tmp_path / "0_11.distcp", ns=(1, 1)))
    assert texts(result) == ["version 11: 0_11.distcp: was written to while it was being read"]
    with pytest.raises(SourceChanged):
        require_sound(result)


class TestDeep:
    def test_digests_and_what_is_not_finite(self, tmp_path: Path) -> None:
        floats = np.array([[1.0, np.nan, np.inf], [-np.inf, -np.nan, 0.0]], "f4")
        saved = (
            SavedCheckpoint()
            .tensor("f4", floats, grid=(2, 1))
            .tensor("f2", floats.astype("f2"), flat_parts=2)
            .tensor("f8", floats.astype("f8"), fortran=True, byteorder=">")
            .tensor("c8", np.array([1, complex(np.nan, np.inf), complex(0, np.inf)], "c8"))
            .tensor("bf16", np.array([0x3F80, 0x7FC0, 0x7F80, 0xFF80, 0xFF81], np.uint16), dtype="bfloat16")
            .tensor("e4m3", np.array([0x7F, 0xFF, 0x7E, 0x7C], np.uint8), dtype="float8_e4m3fn")
            .tensor("e5m2", np.array([0x7C, 0xFC, 0x7D, 0xFF, 0x7B], np.uint8), dtype="float8_e5m2")
            .tensor("finite", np.ones(3, "f4"))
            .tensor("i4", np.full(3, 0x7F800000, np.int32))
        )
        report = verified(saved, tmp_path, deep=True).report
        assert report.is_sound
        assert report.deep is not None
        assert report.deep.floats_checked == 8
        assert report.deep.non_finite == (
            NonFinite("bf16", 2, 2), NonFinite("c8", 1, 1), NonFinite("e4m3", 2, 0), NonFinite("e5m2", 2, 2),
            NonFinite("f2", 2, 2), NonFinite("f4", 2, 2), NonFinite("f8", 2, 2),
        )  # fmt: skip
        assert {found.name: found.sha256 for found in report.files} == {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in tmp_path.iterdir()
        }

    def test_payloads_of_many_blocks(self, tmp_path: Path) -> None:
        values = np.zeros((3, 1 << 20), "f8")  # 24 MiB, six blocks
        values[2, -1] = np.nan
        report = verified(SavedCheckpoint().tensor("big", values), tmp_path, deep=True).report
        assert report.deep is not None
        assert report.deep.non_finite == (NonFinite("big", 1, 0),)
        assert report.files[1].sha256 == hashlib.sha256((tmp_path / "0_0.distcp").read_bytes()).hexdigest()

    def replicated(self) -> SavedCheckpoint:
        parts = [Part(rank, (0, 0), WEIGHTS.shape, replica=rank) for rank in range(3)]
        return SavedCheckpoint().tensor("w", WEIGHTS, parts=parts)

    def test_equal_replicas(self, tmp_path: Path) -> None:
        swapped = self.replicated().holding(2, "w", WEIGHTS.astype(">f4"))
        report = verified(swapped, tmp_path, deep=True).report
        assert report.is_sound
        assert report.deep is not None
        assert report.deep.replicas_compared == 2

    def test_a_replica_that_differs_in_one_bit(self, tmp_path: Path) -> None:
        other = WEIGHTS.copy()
        other[4, 1] = np.nextafter(other[4, 1], np.float32(1e9))
        saved = self.replicated().holding(2, "w", other)
        assert verified(saved, tmp_path / "shallow").report.is_sound
        (text,) = texts(verified(saved, tmp_path / "deep", deep=True))
        assert (
            text
            == "tensor 'w': the replica of [0:6, 0:4] in 2_0.distcp differs from 0_0.distcp, first at stored element 17"
        )

    def test_a_replica_in_another_memory_order_is_said_not_to_be_compared(self, tmp_path: Path) -> None:
        report = verified(self.replicated().holding(1, "w", np.asfortranarray(WEIGHTS)), tmp_path, deep=True).report
        assert report.is_sound
        assert [note.code for note in report.notes] == ["replica-not-compared"]
        assert report.deep is not None
        assert report.deep.replicas_compared == 1

    def test_a_damaged_version_is_read_as_far_as_it_goes(self, tmp_path: Path) -> None:
        report = verified(SAVED.without_rank(3).truncated("2_11.distcp", at=-1), tmp_path, deep=True).report
        assert not report.is_sound
        digests = {found.name: found.sha256 for found in report.files}
        assert digests["3_11.distcp"] == ""
        assert digests["2_11.distcp"] == hashlib.sha256((tmp_path / "2_11.distcp").read_bytes()).hexdigest()

    def test_progress_counts_bytes(self, tmp_path: Path) -> None:
        seen: list[int] = []
        verified(SAVED, tmp_path, deep=True, on_progress=seen.append)
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        assert sum(seen) == 2 * sum(sizes.values()) - sizes["11.metadata"]


def test_the_report_is_json_and_lines(tmp_path: Path) -> None:
    report = verified(SAVED.without_rank(3), tmp_path, deep=True).report
    document = json.loads(json.dumps(report.to_json()))
    assert (document["state"], document["unique_id"], document["is_sound"]) == ("incomplete", 11, False)
    assert [issue["text"] for issue in document["issues"]] == [str(issue) for issue in report.issues]
    lines = list(report.lines())
    assert lines[0] == f"version 11 in {tmp_path}: incomplete"
    assert "  issue: rank 3 of version 11: 3_11.distcp is missing" in lines


def test_the_report_tells_what_payloads_showed(tmp_path: Path) -> None:
    saved = SavedCheckpoint().tensor("w", np.array([np.nan, np.inf, 1], "f4")).with_file("0.metadata.lock")
    report = verified(saved, tmp_path, deep=True).report
    assert report.to_json()["deep"] == {
        "floats_checked": 1,
        "non_finite": [{"key": "w", "nan": 1, "inf": 1}],
        "replicas_compared": 0,
    }
    lines = list(report.lines())
    assert f"  {report.files[1].sha256}  0_0.distcp" in lines
    assert "  tensor 'w': 1 NaN, 1 Inf" in lines
    assert any(line.startswith("  note: version 0: 0.metadata.lock") for line in lines)


def test_many_rank_files_and_tensors(tmp_path: Path) -> None:
    one = np.zeros(2, "f4")
    tensors = [
        SavedCheckpoint().tensor(f"layer.{t}", one, parts=[Part(t % 300, (0,), (2,))]).tensors[0] for t in range(3000)
    ]
    saved = replace(SavedCheckpoint(), tensors=tuple(tensors), ranks=300)
    result = verified(saved, tmp_path)
    assert len(require_sound(result).checkpoint.tensors) == 3000


def test_random_damage_to_headers_is_refused_or_harmless(tmp_path: Path) -> None:
    SAVED.write(tmp_path)
    random = np.random.default_rng(0)
    (version,) = list_versions(tmp_path)
    for name in ("11.metadata", "0_11.distcp"):
        path = tmp_path / name
        whole = path.read_bytes()
        for _ in range(150):
            data = bytearray(whole)
            data[random.integers(len(data))] ^= 1 << random.integers(8)
            path.write_bytes(bytes(data))
            result = verify(version)
            if not result.report.is_sound:
                with pytest.raises(CheckpointError):
                    require_sound(result)
        path.write_bytes(whole)
    assert verify(version).report.is_sound
