"""Validation: every way in which a finished output can differ from what it promises, and all of them at once."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

from ckptcore import Choice, merge, require_valid, validate
from ckptcore.errors import ReleaseInvalid, ReleaseNotFound
from ckptcore.rules.shapes import Expectation
from ckptcore.validating import read_manifest, source_path
from tests.builders import SavedCheckpoint

FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
INDEX = "model.safetensors.index.json"
Damage = Callable[[Path], object]


@pytest.fixture
def output(tmp_path: Path) -> Path:
    """A merged output of two shards: ``a`` in the first, ``b`` in the second."""
    saved = SavedCheckpoint().tensor("a", np.arange(8, dtype="f4")).tensor("b", np.ones((2, 4), "f4"), grid=(2, 1))
    merge(Choice(str(saved.write(tmp_path / "source")), max_shard_bytes=32).planned(), tmp_path / "out")
    return tmp_path / "out"


def texts_of(output: Path, *expectations: Expectation) -> list[str]:
    return [str(issue) for issue in validate(output, expectations=expectations).issues]


def flip_last_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)


def edit_json(path: Path, edit: Callable[[dict[str, dict[str, object]]], object]) -> None:
    document = json.loads(path.read_text())
    edit(document)
    path.write_text(json.dumps(document))


def rewrite_header(path: Path, old: bytes, new: bytes) -> None:
    """Change the header in place; both texts are of one length."""
    data = path.read_bytes()
    assert data.count(old) == 1
    assert len(old) == len(new)
    path.write_bytes(data.replace(old, new))


def test_a_good_output(output: Path) -> None:
    report = validate(output)
    assert (report.files, report.tensors, report.issues, report.notes) == (4, 2, (), ())
    assert report.size_bytes == sum(path.stat().st_size for path in output.iterdir())
    require_valid(report)


@pytest.mark.parametrize(
    ("damage", "expected"),
    [
        (lambda out: flip_last_byte(out / FIRST), [f"{FIRST}: SHA-256"]),
        (lambda out: (out / "stray").write_text("x"), ["stray: is not in the manifest"]),
        (lambda out: (out / "directory").mkdir(), ["directory: is no plain file"]),
        (lambda out: os.symlink(FIRST, out / "link"), ["link: is no plain file"]),
        (lambda out: (out / "manifest.json").write_text("{"), ["not a JSON document"]),
        (lambda out: (out / "manifest.json").write_text('{"schema": 99}'), ["schema version: expected 1, found 99"]),
        (lambda out: (out / "manifest.json").write_text('{"schema": 1}'), ["field 'files'", "field 'plan_digest'"]),
        (lambda out: os.truncate(out / FIRST, 100), [f"{FIRST}: size: expected", "tensor 'a'"]),
        (lambda out: os.truncate(out / FIRST, 4), [f"{FIRST}: size: expected", "tensor 'a'"]),
        (lambda out: os.truncate(out / FIRST, 0), [f"{FIRST}: size: expected", "tensor 'a'"]),
        (
            lambda out: (out / FIRST).unlink(),
            [f"{FIRST}: is missing", "tensor 'a': is missing", f"{INDEX}: tensor 'a'"],
        ),
        (lambda out: (out / INDEX).unlink(), [f"{INDEX}: is missing"]),
        (lambda out: (out / INDEX).write_text("[]"), [f"{INDEX}: is no index"]),
        (lambda out: (out / INDEX).write_text("[" * 100_000), [f"{INDEX}: is no index"]),
        (
            lambda out: edit_json(out / INDEX, lambda index: index["metadata"].update(total_size=1)),
            [f"{INDEX}: metadata.total_size: expected 64 bytes, found 1"],
        ),
        (
            lambda out: edit_json(out / INDEX, lambda index: index["weight_map"].update(a=SECOND, c=FIRST)),
            [f"{INDEX}: tensor 'a': expected {FIRST}, found {SECOND}", f"{INDEX}: tensor 'c': expected in no shard"],
        ),
        (
            lambda out: rewrite_header(out / SECOND, b'"b"', b'"a"'),
            [f"tensor 'a': is in {FIRST} and in {SECOND}", "tensor 'b': is missing"],
        ),
        (
            lambda out: rewrite_header(out / SECOND, b"[2,4]", b"[4,2]"),
            ["tensor 'b': its shape is not the expected one: expected [2, 4], found [4, 2]"],
        ),
        (
            lambda out: rewrite_header(out / SECOND, b"F32", b"I32"),
            ["tensor 'b': its dtype is not the expected one: expected float32, found int32"],
        ),
        (lambda out: rewrite_header(out / SECOND, b"F32", b"X32"), ["X32"]),
    ],
)
def test_what_is_damaged_is_named(output: Path, damage: Damage, expected: list[str]) -> None:
    damage(output)
    texts = texts_of(output)
    for part in expected:
        assert any(part in text for text in texts), texts
    with pytest.raises(ReleaseInvalid) as caught:
        require_valid(validate(output))
    assert [str(issue) for issue in caught.value.issues] == texts


def test_all_damages_at_once(output: Path) -> None:
    flip_last_byte(output / FIRST)
    (output / INDEX).unlink()
    (output / "stray").write_text("x")
    texts = texts_of(output, Expectation("*", dtype="bfloat16"))
    for part in (FIRST, INDEX, "stray", "tensor 'a'", "tensor 'b'"):
        assert any(text.startswith(f"{part}: ") for text in texts), texts


def test_the_registrys_own_files_are_no_strays(output: Path) -> None:
    (output / ".lock").write_text("")
    assert texts_of(output) == []


def test_without_a_manifest_headers_and_index_are_checked_and_it_is_noted(output: Path) -> None:
    (output / "manifest.json").unlink()
    report = validate(output)
    assert report.issues == ()
    assert [str(note) for note in report.notes] == [
        "manifest.json: is not here; digests and provenance are not checked"
    ]
    (output / FIRST).unlink()
    assert texts_of(output) == [
        f"{INDEX}: metadata.total_size: expected 32 bytes, found 64",
        f"{INDEX}: tensor 'a': expected in no shard, found {FIRST}",
    ]


def test_what_another_tool_wrote_is_read_as_well(tmp_path: Path) -> None:
    save_file({"w": np.ones((2, 3), "f2"), "b": np.zeros(0, "i8")}, tmp_path / "model.safetensors", {"format": "pt"})
    report = validate(tmp_path, expectations=(Expectation("w", (2, None), "float16"), Expectation("b", (0,), "int64")))
    assert (report.tensors, report.issues) == (2, ())


def test_there_must_be_a_directory_with_shards(tmp_path: Path) -> None:
    with pytest.raises(ReleaseNotFound):
        validate(tmp_path / "nothing")
    assert texts_of(tmp_path) == ["no safetensors file is here"]


def test_what_a_release_was_made_from_is_read_from_the_end_of_its_manifest(tmp_path: Path) -> None:
    hostile = tmp_path / 'a"source": {"path"\n'
    saved = SavedCheckpoint().tensor("w", [1.0]).tensor('\n "source": {"path": "elsewhere"}', [1.0])
    out = tmp_path / "out"
    merge(Choice(str(saved.write(hostile))).planned(), out)
    assert source_path(out) == read_manifest(out).source.path == str(hostile)
    manifest = out / "manifest.json"
    manifest.write_bytes(json.dumps(json.loads(manifest.read_bytes())).encode())  # laid out by somebody else
    assert source_path(out) == str(hostile)
    manifest.write_bytes(b'{}\n "source": {"path": 7}')
    with pytest.raises(ReleaseInvalid):
        source_path(out)
    manifest.unlink()
    with pytest.raises(ReleaseInvalid):
        source_path(out)
