"""The whole lifecycle in one call: what is chosen, what is told on the way, and what is left when it is refused."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, Selection, run
from ckptcore.errors import InvalidName, ReleaseInvalid, SelectionError, StorageError, VersionIncomplete
from ckptcore.lifecycle import validate_staged
from ckptcore.mappings import companions_of
from ckptcore.publishing import stage
from ckptcore.rules.merge_plan import MergePlan
from ckptcore.rules.shapes import Expectation
from ckptcore.storage.progress import OnProgress
from ckptcore.validating import read_manifest
from tests.builders import SavedCheckpoint, write_trainer_run

SAVED = (
    SavedCheckpoint().tensor("model.w", np.arange(24, dtype="f4").reshape(6, 4), grid=(2, 1)).tensor("b", [1.0, 2.0])
)


@pytest.fixture
def training(tmp_path: Path) -> Path:
    """Steps 9 and 10 are whole, step 11 lacks a rank file."""
    return write_trainer_run(tmp_path / "out", {9: SAVED, 10: SAVED, 11: SAVED.without_rank(1)})


def test_the_newest_complete_version_is_chosen_and_the_choice_narrows_it(training: Path) -> None:
    assert Choice(str(training)).planned().step == 10
    assert Choice(str(training), step=9).planned().step == 9
    with pytest.raises(VersionIncomplete, match=r"1_0\.distcp is missing"):
        Choice(str(training), step=11).planned()


def test_the_choice_says_which_tensors_and_how_large_the_shards(training: Path) -> None:
    planned = Choice(str(training), selection=Selection(prefixes=("model",)), max_shard_bytes=1).planned()
    assert [spec.key for spec in planned.specs()] == ["w"]
    assert len(Choice(str(training), max_shard_bytes=1).planned().shards) == 2


def test_progress_is_told_the_plan_and_then_every_byte(training: Path, tmp_path: Path) -> None:
    plans: list[MergePlan] = []
    sizes: list[int] = []

    def on_plan(plan: MergePlan) -> OnProgress:
        plans.append(plan)
        return sizes.append

    run(Choice(str(training)), tmp_path / "registry", "tiny", on_plan=on_plan)
    assert [plan.step for plan in plans] == [10]
    assert sum(sizes) == plans[0].bytes_in == 112


def test_configuration_and_tokenizer_beside_the_source_go_along(training: Path, tmp_path: Path) -> None:
    step = training / "checkpoint-10"
    (step / "config.json").write_text("{}")
    (step / "trainer_state.json").write_text("{}")
    (step / "model_state" / "tokenizer.json").write_text("{}")
    (training / "generation_config.json").write_text("{}")
    (tmp_path / "NOTES").write_text("notes")
    published = run(Choice(str(training)), tmp_path / "registry", "tiny", attach=[tmp_path / "NOTES"])
    attached = {record.name for record in read_manifest(Path(published.path)).attachments}
    assert attached == {"NOTES", "config.json", "tokenizer.json"}


def test_a_plain_directory_has_its_own_companions_only(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    plain = SAVED.write(tmp_path / "plain")
    assert companions_of(plain) == ()
    (plain / "config.json").write_text("{}")
    assert companions_of(plain) == (plain / "config.json",)


def test_companions_are_taken_from_inside_the_run_alone(training: Path, tmp_path: Path) -> None:
    step = training / "checkpoint-10"
    (training / "base.json").write_text("{}")
    (tmp_path / "secret").write_text("secret")
    (step / "tokenizer.json").symlink_to(training / "base.json")
    assert companions_of(step / "model_state") == (step / "tokenizer.json",)
    (step / "config.json").symlink_to(tmp_path / "secret")
    (step / "merges.txt").symlink_to("nowhere")
    (step / "vocab.txt").mkdir()
    os.mkfifo(step / "vocab.json")
    with pytest.raises(InvalidName, match="--attach") as refused:
        run(Choice(str(training)), tmp_path / "registry", "tiny")
    names = [Path(issue.where).name for issue in refused.value.issues]
    assert names == ["config.json", "merges.txt", "vocab.json", "vocab.txt"]
    assert not (tmp_path / "registry").exists()


def test_an_attached_file_takes_the_place_of_a_companion(training: Path, tmp_path: Path) -> None:
    (training / "checkpoint-10" / "config.json").symlink_to("/etc/hostname")
    (tmp_path / "base").mkdir()
    (tmp_path / "base" / "config.json").write_text("attached")
    (tmp_path / "config.json").symlink_to("base/config.json")
    published = run(Choice(str(training)), tmp_path / "registry", "tiny", attach=[tmp_path / "config.json"])
    assert (Path(published.path) / "config.json").read_text() == "attached"


@pytest.mark.parametrize("make", [os.mkfifo, lambda path: path.symlink_to("/dev/zero")])
def test_only_regular_files_are_attached(training: Path, tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "notes")
    with pytest.raises(StorageError, match=r"notes: is a .*, no regular file"):
        run(Choice(str(training)), tmp_path / "registry", "tiny", attach=[tmp_path / "notes"])
    assert not (tmp_path / "registry").exists()


def test_a_refused_choice_makes_no_registry(training: Path, tmp_path: Path) -> None:
    with pytest.raises(SelectionError):
        run(Choice(str(training), selection=Selection(include=("nothing",))), tmp_path / "registry", "tiny")
    assert os.listdir(tmp_path) == ["out"]


def test_a_staged_release_that_is_not_as_promised_is_thrown_away(training: Path, tmp_path: Path) -> None:
    planned = Choice(str(training)).planned()
    staged = stage(planned, tmp_path / "registry", "tiny")
    assert validate_staged(staged, ()).tensors == 2
    with pytest.raises(ReleaseInvalid, match=r"tensor 'b'"):
        validate_staged(staged, (Expectation("model.w"),))
    assert not Path(staged.path).exists()
    again = stage(planned, tmp_path / "registry", "tiny")
    shard = Path(again.path) / "model.safetensors"
    shard.write_bytes(shard.read_bytes()[:-1] + b"\x01")
    with pytest.raises(ReleaseInvalid, match=r"SHA-256"):
        validate_staged(again, ())
    assert not Path(again.path).exists()
