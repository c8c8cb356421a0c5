"""What has no release yet is found, oldest first; and what is published late does not take the place of the newest."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, resolve
from ckptcore.aliasing import rollback
from ckptcore.lifecycle import run
from ckptcore.publishing import publish_staged, stage
from ckptcore.reconciling import outstanding
from ckptcore.registry import history_of, shelf_of
from ckptcore.rules.release import parse_history
from ckptcore.rules.versions import StateKind
from tests.builders import SavedCheckpoint, write_trainer_run

SAVED = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))


@pytest.fixture
def training(tmp_path: Path) -> Path:
    return write_trainer_run(tmp_path / "run", dict.fromkeys((1, 2, 3), SAVED))


def steps_left(training: Path, registry: Path) -> list[int | None]:
    return [found.version.step for found in outstanding(str(training), None, registry, "w")]


def test_the_oldest_comes_first_and_what_is_published_does_not_come(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    assert steps_left(training, registry) == [1, 2, 3]
    run(Choice(str(training), step=2), registry, "w")
    assert steps_left(training, registry) == [1, 3]
    assert [found.version.step for found in outstanding(str(training), None, registry, "other")] == [1, 2, 3]


def test_a_pruned_release_is_not_missed(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    published = run(Choice(str(training), step=2), registry, "w")
    shutil.rmtree(published.path)
    assert steps_left(training, registry) == [1, 3]


def test_releases_that_no_history_tells_of(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    for step in (1, 2):
        run(Choice(str(training), step=step), registry, "w")
    (registry / "w" / "history.jsonl").unlink()
    assert steps_left(training, registry) == [3]  # the alias has come to the second, and gone past the first
    (registry / "w" / "latest").unlink()
    assert steps_left(training, registry) == [1, 2, 3]  # nobody lived to move it


def test_a_release_whose_publisher_was_killed_before_the_alias_moved(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    run(Choice(str(training), step=1), registry, "w")
    history = (registry / "w" / "history.jsonl").read_bytes()
    run(Choice(str(training), step=2), registry, "w")
    (registry / "w" / "history.jsonl").write_bytes(history)
    (registry / "w" / "latest").unlink()
    (registry / "w" / "latest").symlink_to(f"releases/{parse_history(history)[-1].release}")
    assert steps_left(training, registry) == [2, 3]
    again = publish_staged(stage(Choice(str(training), step=2).planned(), registry, "w"), only_forward=True)
    assert (again.alias, again.did_work) == ("latest", True)
    assert steps_left(training, registry) == [3]


@pytest.mark.parametrize("only_newer", [False, True])
def test_a_candidate_is_not_published_under_another_alias(training: Path, tmp_path: Path, only_newer: bool) -> None:
    registry = tmp_path / "registry"

    def left() -> list[int | None]:
        found = outstanding(str(training), None, registry, "w", only_newer=only_newer)
        return [each.version.step for each in found]

    for step, alias in ((1, "candidate"), (2, "latest"), (3, "candidate")):
        run(Choice(str(training), step=step), registry, "w", alias=alias)
    assert left() == [3]  # the alias does not go back to the first
    publish_staged(stage(Choice(str(training), step=3).planned(), registry, "w"), only_forward=True)
    assert left() == []
    rollback(registry, "w", "latest", reason="worse")
    assert resolve(registry, "w").name.startswith("step-2_")
    assert left() == []


def test_a_version_that_was_overwritten_is_a_new_one(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    run(Choice(str(training), step=2), registry, "w")
    before = next(f for f in outstanding(str(training), None, registry, "w") if f.version.step == 3)
    for step in (2, 3):
        SAVED.tensor("v", [1.0]).write(training / f"checkpoint-{step}" / "model_state")
    found = {f.version.step: f for f in outstanding(str(training), None, registry, "w")}
    assert list(found) == [1, 2, 3]
    assert found[3].key != before.key


def test_a_file_of_another_save_does_not_hide_a_release(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    run(Choice(str(training), step=2), registry, "w")
    (training / "checkpoint-2" / "model_state" / "7_0.distcp").write_bytes(b"left by more ranks")
    assert steps_left(training, registry) == [1, 3]


def test_states_come_with_what_is_left(tmp_path: Path) -> None:
    source = write_trainer_run(tmp_path / "run", {1: SAVED.truncated("1_0.distcp", at=99), 2: SAVED.without_rank(0)})
    found = outstanding(str(source), None, tmp_path / "registry", "w")
    assert [each.state.kind for each in found] == [StateKind.DAMAGED, StateKind.INCOMPLETE]


def test_only_forward_keeps_the_alias_at_the_newest(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    for step in (3, 1, 1, 2):
        staged = stage(Choice(str(training), step=step).planned(), registry, "w")
        published = publish_staged(staged, only_forward=True)
        assert (published.alias, Path(published.path).is_dir()) == ("latest" if step == 3 else "", True)
    assert resolve(registry, "w").name.startswith("step-3_")
    acts = history_of(shelf_of(registry, "w"))
    assert [(act.release.partition("_")[0], act.alias) for act in acts] == [
        ("step-3", "latest"),
        ("step-1", ""),
        ("step-2", ""),
    ]
    assert all(act.source for act in parse_history((registry / "w" / "history.jsonl").read_bytes()))
    again = publish_staged(stage(Choice(str(training), step=2).planned(), registry, "w"), only_forward=True)
    assert not again.did_work


def test_only_forward_moves_from_another_run(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    run(Choice(str(training), step=3), registry, "w")
    other = write_trainer_run(tmp_path / "other", {1: SAVED})
    publish_staged(stage(Choice(str(other)).planned(), registry, "w"), only_forward=True)
    assert resolve(registry, "w").name.startswith("step-1_")


def test_only_forward_does_not_rest_on_a_release_that_is_gone(training: Path, tmp_path: Path) -> None:
    registry = tmp_path / "registry"
    shutil.rmtree(run(Choice(str(training), step=3), registry, "w").path)
    assert os.path.islink(registry / "w" / "latest")
    publish_staged(stage(Choice(str(training), step=1).planned(), registry, "w"), only_forward=True)
    assert resolve(registry, "w").name.startswith("step-1_")
