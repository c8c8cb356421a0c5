"""The marks of ``ckptcore.save_state_dict`` decide whether a version is whole; to other eyes they are no strangers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ckptcore.detecting import inspect, list_versions, newest_complete
from ckptcore.errors import VersionDamaged, VersionIncomplete
from ckptcore.rules.save_marks import LOST_FILE, Completion, WrittenFile
from ckptcore.rules.versions import STILL_SAVING, StateKind, Version
from ckptcore.verifying import verify
from tests.builders import SavedCheckpoint, write_trainer_run

SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


@pytest.fixture
def version(tmp_path: Path) -> Version:
    [found] = list_versions(write_trainer_run(tmp_path / "run", {1: SAVED}))
    return found


def complete(version: Version) -> Path:
    directory = Path(version.directory)
    files = (WrittenFile(p.name, p.stat().st_size) for p in directory.iterdir() if p.suffix in (".distcp", ".metadata"))
    mark = directory / f"{version.unique_id}.complete"
    mark.write_bytes(Completion(version.unique_id, tuple(sorted(files))).to_json())
    return mark


def codes(version: Version) -> set[str]:
    return {reason.code for reason in inspect(version).state.reasons}


def test_a_save_that_is_reserved_and_not_finished_is_incomplete(version: Version) -> None:
    (Path(version.directory) / "0.saving").touch()
    assert (inspect(version).state.kind, codes(version)) == (StateKind.INCOMPLETE, {STILL_SAVING})
    with pytest.raises(VersionIncomplete, match=r"0\.saving exists"):
        newest_complete(version.source, step=1)
    complete(version)
    assert inspect(version).state.is_complete


def test_the_mark_of_another_id_says_nothing(version: Version) -> None:
    (Path(version.directory) / "1.saving").touch()
    assert [found.unique_id for found in list_versions(version.source)] == [0]
    assert inspect(version).state.is_complete


def test_a_finished_save_that_lost_a_file_is_damaged(version: Version) -> None:
    complete(version)
    (Path(version.directory) / "1_0.distcp").unlink()
    assert inspect(version).state.kind is StateKind.DAMAGED
    with pytest.raises(VersionDamaged, match=r"1_0\.distcp: was written, and is gone"):
        newest_complete(version.source, step=1)


@pytest.mark.parametrize("lost", ["0.metadata", "0_0.distcp"])
def test_a_finished_save_with_a_file_of_another_size_is_damaged(version: Version, lost: str) -> None:
    complete(version)
    with (Path(version.directory) / lost).open("ab") as file:
        file.write(b"more")
    assert inspect(version).state.kind is StateKind.DAMAGED
    assert LOST_FILE in codes(version)


def test_an_unreadable_mark_is_damage(version: Version) -> None:
    complete(version).write_text("{")
    assert codes(version) == {LOST_FILE}


def test_marks_are_no_strangers(version: Version) -> None:
    complete(version)
    (Path(version.directory) / "0.announced").touch()
    assert verify(version).report.notes == ()
