"""The registry: releases appear whole, aliases move last, and the same thing is published once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore import Choice, merge, publish, resolve, run
from ckptcore.errors import InvalidName, ReleaseInvalid, ReleaseNotFound, SourceChanged, VersionNotFound
from ckptcore.lifecycle import validate_staged
from ckptcore.publishing import publish_staged, stage
from ckptcore.rules.release import parse_history
from ckptcore.rules.shapes import Expectation
from ckptcore.validating import validate
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY


def saved(seed: int = 0, unique_id: int = 0) -> SavedCheckpoint:
    return SavedCheckpoint(unique_id=unique_id).tensor("w", [[seed, 1.5], [2, 3]], grid=(2, 1)).tensor("b", [1.0, seed])


@pytest.fixture
def training(tmp_path: Path) -> Path:
    source = write_trainer_run(tmp_path / "output", {9: saved(9), 10: saved(10)})
    (source / "checkpoint-10" / "config.json").write_text('{"model_type": "tiny"}')
    return source


def acts(registry: Path, name: str = "tiny") -> list[tuple[str, str, str, str]]:
    history = parse_history((registry / name / "history.jsonl").read_bytes())
    return [(act.act, act.release, act.alias, act.previous) for act in history]


def test_a_run_publishes_the_newest_version(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    published = run(Choice(str(training)), registry, "tiny")
    assert published.did_work
    assert published.release.startswith("step-10_id-0_")
    assert os.readlink(registry / "tiny" / "latest") == f"releases/{published.release}"
    assert resolve(registry, "tiny") == Path(published.path) == registry / "tiny" / "releases" / published.release
    assert sorted(os.listdir(published.path)) == ["config.json", "manifest.json", "model.safetensors"]
    manifest = json.loads((Path(published.path) / "manifest.json").read_bytes())
    assert manifest["source"]["step"] == 10
    assert manifest["source"]["paddle_format"] == "3.3"
    assert acts(registry) == [("publish", published.release, "latest", "")]
    assert not validate(published.path).issues


def test_a_second_run_does_nothing(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    first = run(Choice(str(training)), registry, "tiny")
    before = {p: p.lstat().st_mtime_ns for p in registry.rglob("*")}
    second = run(Choice(str(training)), registry, "tiny")
    assert (second.release, second.did_work) == (first.release, False)
    assert {p: p.lstat().st_mtime_ns for p in registry.rglob("*")} == before


def test_an_attached_file_makes_another_release(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    first = run(Choice(str(training)), registry, "tiny")
    (training / "checkpoint-10" / "config.json").write_text('{"model_type": "other"}')
    second = run(Choice(str(training)), registry, "tiny")
    assert second.did_work
    assert second.release != first.release
    assert acts(registry)[-1] == ("publish", second.release, "latest", first.release)
    assert resolve(registry, f"tiny@{first.release}") == Path(first.path)


def test_an_overwritten_version_is_a_new_release(training: Path, tmp_path: Path) -> None:
    first = run(Choice(str(training)), tmp_path / "registry", "tiny")
    saved(11).write(training / "checkpoint-10" / "model_state")
    assert run(Choice(str(training)), tmp_path / "registry", "tiny").release != first.release


def test_a_merged_output_is_the_same_release(training: Path, tmp_path: Path) -> None:
    merge(Choice(str(training)).planned(), tmp_path / "out")
    config = training / "checkpoint-10" / "config.json"
    published = publish(tmp_path / "out", tmp_path / "registry", "tiny", attach=[config])
    assert published.did_work
    again = run(Choice(str(training)), tmp_path / "registry", "tiny")
    assert (again.release, again.did_work) == (published.release, False)
    assert not validate(published.path).issues


def test_a_damaged_output_is_not_published(training: Path, tmp_path: Path) -> None:
    merge(Choice(str(training)).planned(), tmp_path / "out")
    shard = tmp_path / "out" / "model.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    with pytest.raises(ReleaseInvalid, match=r"model\.safetensors: SHA-256"):
        publish(tmp_path / "out", tmp_path / "registry", "tiny")
    assert not (tmp_path / "registry").exists()


def test_expectations_that_fail_publish_nothing_and_leave_nothing(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    wrong = (Expectation("*", shape=(4, 4), dtype="float32", count=None),)
    with pytest.raises(ReleaseInvalid):
        run(Choice(str(training)), registry, "tiny", expectations=wrong)
    assert not (registry / "tiny" / "latest").exists()
    assert os.listdir(registry / "tiny" / "releases") == []
    assert os.listdir(registry / "tiny" / ".staging") == []
    assert run(Choice(str(training)), registry, "tiny").did_work


def test_killed_between_rename_and_alias_the_next_run_finishes(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    published = run(Choice(str(training)), registry, "tiny")
    (registry / "tiny" / "latest").unlink()
    (registry / "tiny" / "history.jsonl").unlink()
    again = run(Choice(str(training)), registry, "tiny")
    assert (again.release, again.did_work) == (published.release, True)
    assert resolve(registry, "tiny") == Path(published.path)
    assert acts(registry) == [("publish", published.release, "latest", "")]


def test_killed_between_alias_and_record_the_next_run_records_what_was_before(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    first = run(Choice(str(training), step=9), registry, "tiny")
    history = registry / "tiny" / "history.jsonl"
    before = history.read_bytes()
    second = run(Choice(str(training)), registry, "tiny")
    history.write_bytes(before)
    assert run(Choice(str(training)), registry, "tiny").did_work
    assert acts(registry)[-1] == ("publish", second.release, "latest", first.release)


def test_an_alias_that_cannot_be_is_refused_before_anything_is_written(training: Path, tmp_path: Path) -> None:
    for alias in ("../x", "step-1_id-0_000000000000"):
        with pytest.raises(InvalidName):
            run(Choice(str(training)), tmp_path / "registry", "tiny", alias=alias)
    assert sorted(os.listdir(tmp_path)) == ["output"]


def test_a_registry_with_a_nul_in_its_path_is_refused(training: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidName, match="NUL"):
        run(Choice(str(training)), f"{tmp_path}/a\0b", "tiny")


def test_a_file_that_changed_after_its_release_was_named_is_refused(training: Path, tmp_path: Path) -> None:
    config = training / "checkpoint-10" / "config.json"
    planned = Choice(str(training)).planned()
    with pytest.raises(SourceChanged, match=r"config\.json"):
        stage(planned, tmp_path / "registry", "tiny", attach=[config], on_progress=lambda size: _append(config))
    assert os.listdir(tmp_path / "registry" / "tiny" / "releases") == []
    assert os.listdir(tmp_path / "registry" / "tiny" / ".staging") == []


def _append(path: Path) -> None:
    path.write_text(path.read_text() + " ")


def test_a_finished_staging_is_published_without_merging_again(training: Path, tmp_path: Path) -> None:
    registry, planned = tmp_path / "registry", Choice(str(training)).planned()
    staged = stage(planned, registry, "tiny")
    stamp = (Path(staged.path) / "model.safetensors").stat().st_mtime_ns
    assert stage(planned, registry, "tiny") == staged
    published = publish_staged(staged)
    assert (Path(published.path) / "model.safetensors").stat().st_mtime_ns == stamp
    assert ".lock" not in os.listdir(published.path)


def test_a_half_written_staging_is_cleared(training: Path, tmp_path: Path) -> None:
    registry, planned = tmp_path / "registry", Choice(str(training)).planned()
    staged = Path(stage(planned, registry, "tiny").path)
    (staged / "manifest.json").unlink()
    (staged / "model.safetensors").write_bytes(b"half")
    (staged / "leftover").write_bytes(b"x")
    published = publish_staged(stage(planned, registry, "tiny"))
    assert sorted(os.listdir(published.path)) == ["manifest.json", "model.safetensors"]
    assert not validate(published.path).issues


def test_two_publishers_of_one_release_both_end_well(training: Path, tmp_path: Path) -> None:
    """Both may report it, one of them did the work or met the other at it; there is one release and one act."""
    script = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"
    arguments = [sys.executable, "-c", script, "run", str(training), str(tmp_path / "registry"), "--name", "tiny"]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    runs = [subprocess.Popen(arguments, env=environment, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    outcomes = [(process.communicate()[1], process.returncode) for process in runs]
    for stderr, status in outcomes:
        assert status == 0 or "another process is writing the same output" in stderr
    assert any(status == 0 for _, status in outcomes)
    assert len(os.listdir(tmp_path / "registry" / "tiny" / "releases")) == 1
    assert len(acts(tmp_path / "registry")) == 1


def test_a_release_that_another_process_publishes_under_the_reading_is_read_where_it_lies(
    training: Path, tmp_path: Path
) -> None:
    registry, planned = tmp_path / "registry", Choice(str(training)).planned()
    staged = stage(planned, registry, "tiny")
    published = publish_staged(stage(planned, registry, "tiny"))
    assert validate_staged(staged, ()).path == published.path
    assert publish_staged(staged).did_work is False
    with pytest.raises(ReleaseInvalid):
        validate_staged(staged, (Expectation("*", shape=(4, 4), dtype="float32", count=None),))
    assert not validate(published.path).issues
    assert os.listdir(registry / "tiny" / ".staging") == []


def test_a_source_that_changes_publishes_nothing(training: Path, tmp_path: Path) -> None:
    planned = Choice(str(training)).planned()
    victim = training / "checkpoint-10" / "model_state" / "0_0.distcp"
    with pytest.raises(SourceChanged):
        stage(planned, tmp_path / "registry", "tiny", on_progress=lambda size: os.utime(victim))
    assert os.listdir(tmp_path / "registry" / "tiny" / "releases") == []


@pytest.mark.parametrize("name", ["../escape", "/abs", "", ".hidden", "a\0b"])
def test_names_stay_in_the_registry(training: Path, tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidName):
        run(Choice(str(training)), tmp_path / "registry", name)
    assert sorted(os.listdir(tmp_path)) == ["output"]


@pytest.mark.parametrize("reference", ["other", "tiny@production", "tiny@step-1_id-0_000000000000"])
def test_what_is_not_there_is_not_resolved(training: Path, tmp_path: Path, reference: str) -> None:
    run(Choice(str(training)), tmp_path / "registry", "tiny")
    with pytest.raises(ReleaseNotFound):
        resolve(tmp_path / "registry", reference)


def test_an_attachment_must_not_shadow_the_releases_own_files(training: Path, tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text("{}")
    with pytest.raises(InvalidName, match=r"manifest\.json"):
        run(Choice(str(training)), tmp_path / "registry", "tiny", attach=[tmp_path / "manifest.json"])


def test_a_source_without_a_complete_version_publishes_nothing(tmp_path: Path) -> None:
    saved().without_rank(1).write(tmp_path / "source")
    with pytest.raises(VersionNotFound):
        run(Choice(str(tmp_path / "source")), tmp_path / "registry", "tiny")
    assert not (tmp_path / "registry").exists()
