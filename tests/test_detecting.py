"""What a source holds, and which of it is the newest that is whole: trainers' runs, plain directories, and trouble."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckptcore.detecting import (
    inspect,
    inspect_all,
    list_versions,
    newest_complete,
    newest_verified,
    version_to_judge,
)
from ckptcore.errors import StorageError, VersionDamaged, VersionIncomplete, VersionNotFound
from ckptcore.rules.versions import StateKind
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.corpus import LLAMA_RUN, Case

TWO_RANKS = SavedCheckpoint().tensor("model.w", np.arange(24, dtype="f4").reshape(6, 4), grid=(2, 1))


def with_id(unique_id: int) -> SavedCheckpoint:
    return SavedCheckpoint(unique_id).tensor("w", np.arange(4, dtype="f4"), grid=(2,))


def test_the_corpus(corpus_case: Case) -> None:
    if corpus_case.newest_complete is not None:
        try:
            assert newest_complete(corpus_case.checkpoint).unique_id == corpus_case.newest_complete
        except VersionNotFound:
            assert corpus_case.verdict == "either"
    else:
        with pytest.raises(VersionNotFound) as caught:
            newest_complete(corpus_case.checkpoint)
        assert caught.value.issues


def test_a_trainers_own_run() -> None:
    assert [version.step for version in list_versions(LLAMA_RUN)] == [100, 10, 9]
    newest = newest_complete(LLAMA_RUN)
    assert (newest.step, newest.unique_id, newest.component) == (100, 0, "model_state")
    assert newest.directory == str(LLAMA_RUN / "checkpoint-100" / "model_state")
    assert newest_complete(LLAMA_RUN, step=10).step == 10


def test_a_newer_step_with_a_missing_rank_file_is_listed_and_passed_over(tmp_path: Path) -> None:
    run = shutil.copytree(LLAMA_RUN, tmp_path / "run")
    half = shutil.copytree(run / "checkpoint-100", run / "checkpoint-101")
    (half / "model_state" / "1_0.distcp").unlink()
    assert [version.step for version in list_versions(run)] == [101, 100, 10, 9]
    assert newest_complete(run).step == 100
    state = inspect(list_versions(run)[0]).state
    assert state.kind is StateKind.INCOMPLETE
    assert [str(issue) for issue in state.reasons] == ["rank 1 of version 0 of step 101: 1_0.distcp is missing"]
    with pytest.raises(VersionIncomplete, match=r"1_0\.distcp is missing"):
        newest_complete(run, step=101)


def test_ids_are_compared_as_numbers(tmp_path: Path) -> None:
    for unique_id in (9, 10, 100, 1):
        with_id(unique_id).write(tmp_path)
    assert [version.unique_id for version in list_versions(tmp_path)] == [100, 10, 9, 1]
    assert newest_complete(tmp_path).unique_id == 100
    assert newest_complete(tmp_path, unique_id=1).unique_id == 1


@pytest.mark.parametrize(
    "half", [with_id(7).without_rank(1), with_id(7).without_metadata(), with_id(7).truncated("0_7.distcp", at=-1)]
)
def test_a_half_written_newer_id_is_passed_over(half: SavedCheckpoint, tmp_path: Path) -> None:
    with_id(3).write(tmp_path)
    half.write(tmp_path)
    assert [version.unique_id for version in list_versions(tmp_path)] == [7, 3]
    assert newest_complete(tmp_path).unique_id == 3


def test_what_was_passed_over_is_told(tmp_path: Path) -> None:
    with_id(3).truncated("0_3.distcp", at=20).write(tmp_path)
    with_id(7).without_rank(0).write(tmp_path)
    with pytest.raises(VersionNotFound) as caught:
        newest_complete(tmp_path)
    assert "version 7 is incomplete; version 3 is damaged" in caught.value.message
    assert "rank 0 of version 7: 0_7.distcp is missing" in str(caught.value)
    assert any(issue.where.startswith("rank 0 of version 3: 0_3.distcp") for issue in caught.value.issues)


def test_a_version_that_is_asked_for_says_why_it_is_refused(tmp_path: Path) -> None:
    with_id(3).truncated("0_3.distcp", at=20).write(tmp_path)
    with_id(7).without_rank(0).write(tmp_path)
    with_id(8).write(tmp_path)
    with pytest.raises(VersionDamaged):
        newest_complete(tmp_path, unique_id=3)
    with pytest.raises(VersionIncomplete):
        newest_complete(tmp_path, unique_id=7)
    with pytest.raises(VersionNotFound, match="no version with id 5; there are version 8, version 7, version 3"):
        newest_complete(tmp_path, unique_id=5)


class TestSignals:
    """A run that has ``saved_signal_*`` anywhere needs one for each rank of a step."""

    def test_a_step_without_its_signals_is_passed_over(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: TWO_RANKS})
        (run / "checkpoint-10" / "saved_signal_1").unlink()
        assert newest_complete(run).step == 5
        (run / "checkpoint-10" / "saved_signal_0").unlink()
        assert newest_complete(run).step == 5

    def test_it_is_judged_alike_whichever_path_leads_to_it(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: TWO_RANKS})
        for rank in (0, 1):
            (run / "checkpoint-10" / f"saved_signal_{rank}").unlink()
        for source in (run / "checkpoint-10", run / "checkpoint-10" / "model_state"):
            (version,) = list_versions(source)
            assert (version.step, version.component) == (10, "model_state")
            assert inspect(version).state.kind is StateKind.INCOMPLETE

    def test_a_run_without_signals_needs_none(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: TWO_RANKS}, signals=False)
        assert newest_complete(run).step == 10

    def test_a_rank_that_holds_nothing_needs_no_signal(self, tmp_path: Path) -> None:
        one_rank = SavedCheckpoint().tensor("w", np.zeros(2, "f4"))
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: one_rank})
        assert newest_complete(run).step == 10

    def test_a_step_that_is_still_saving_is_passed_over(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: TWO_RANKS})
        (run / "checkpoint-10" / "save_signal_TMP_1").touch()
        assert newest_complete(run).step == 5

    def test_the_done_mark_counts_where_any_step_has_it(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: TWO_RANKS})
        assert newest_complete(run).step == 10
        (run / "checkpoint-5" / ".checkpoint_done").touch()
        assert newest_complete(run).step == 5


class TestRuns:
    def test_steps_that_hold_the_files_themselves(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 20: TWO_RANKS}, component=None)
        newest = newest_complete(run)
        assert (newest.step, newest.component, newest.directory) == (20, None, str(run / "checkpoint-20"))

    def test_a_step_without_the_component_is_told_and_passed_over(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS})
        write_trainer_run(run, {10: TWO_RANKS}, component="optimizer_state")
        assert newest_complete(run).step == 5
        with pytest.raises(VersionIncomplete, match="checkpoint-10 holds no metadata and no rank files of model_state"):
            newest_complete(run, step=10)

    def test_an_older_trainers_component(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS}, component="dist_ckpt")
        assert newest_complete(run).component == "dist_ckpt"

    def test_a_choice_of_components_is_asked_for(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS}, component="optimizer_state")
        write_trainer_run(run, {5: TWO_RANKS}, component="master_weight")
        with pytest.raises(VersionNotFound, match="name a component; there: optimizer_state, master_weight"):
            list_versions(run)
        assert newest_complete(run, component="master_weight").component == "master_weight"

    def test_a_step_that_is_only_begun(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS})
        (run / "checkpoint-9" / "model_state").mkdir(parents=True)
        (run / "checkpoint-8").touch()
        assert [version.step for version in list_versions(run)] == [5]
        assert newest_complete(run).step == 5

    def test_a_step_that_is_deleted_after_the_listing(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS, 10: TWO_RANKS})
        oldest = list_versions(run)[-1]
        shutil.rmtree(run / "checkpoint-5")
        state = inspect(oldest).state
        assert state.kind is StateKind.INCOMPLETE
        assert "its directory is missing" in str(state.reasons[0])

    def test_a_link_named_latest_leads_to_its_step(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path / "run", {5: TWO_RANKS, 10: TWO_RANKS})
        (tmp_path / "latest").symlink_to(run / "checkpoint-5")
        assert newest_complete(tmp_path / "latest").step == 5

    def test_nothing_is_remembered_between_calls(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path, {5: TWO_RANKS})
        assert newest_complete(run).step == 5
        write_trainer_run(run, {6: TWO_RANKS})
        assert newest_complete(run).step == 6
        (run / "checkpoint-6" / "model_state" / "0_0.distcp").unlink()
        assert newest_complete(run).step == 5


class TestNoSource:
    def test_a_missing_directory(self, tmp_path: Path) -> None:
        with pytest.raises(VersionNotFound, match="no such directory"):
            list_versions(tmp_path / "absent")

    def test_a_file(self, tmp_path: Path) -> None:
        (tmp_path / "0.metadata").touch()
        with pytest.raises(VersionNotFound, match="is no directory"):
            newest_complete(tmp_path / "0.metadata")

    def test_an_empty_directory_holds_no_version(self, tmp_path: Path) -> None:
        assert list_versions(tmp_path) == ()
        with pytest.raises(VersionNotFound, match="holds no metadata and no rank files"):
            newest_complete(tmp_path)

    def test_rank_files_beside_steps_leave_a_choice(self, tmp_path: Path) -> None:
        write_trainer_run(tmp_path, {5: TWO_RANKS})
        TWO_RANKS.write(tmp_path)
        with pytest.raises(VersionNotFound, match="name one of the two"):
            list_versions(tmp_path)

    def test_a_component_that_a_plain_directory_does_not_have(self, tmp_path: Path) -> None:
        TWO_RANKS.write(tmp_path / "model_state")
        assert newest_complete(tmp_path / "model_state", component="model_state").component == "model_state"
        with pytest.raises(VersionNotFound, match="holds model_state, not ema_state"):
            list_versions(tmp_path / "model_state", component="ema_state")

    @pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root")
    def test_a_directory_that_may_not_be_read(self, tmp_path: Path) -> None:
        run = write_trainer_run(tmp_path / "run", {5: TWO_RANKS, 10: TWO_RANKS})
        for directory in (tmp_path, *tmp_path.parents[:3]):
            directory.chmod(directory.stat().st_mode | 0o055)
        (run / "checkpoint-10" / "model_state").chmod(0o700)
        with as_nobody(), pytest.raises(StorageError, match="Permission denied"):
            list_versions(run)
        (run / "checkpoint-10" / "model_state").chmod(0o755)
        (run / "checkpoint-10" / "model_state" / "1_0.distcp").chmod(0o600)
        with as_nobody():
            newest = list_versions(run)[0]
            # What cannot be read may well be whole: an older version instead would be a wrong answer.
            with pytest.raises(StorageError, match=r"1_0\.distcp: Permission denied"):
                newest_complete(run)
            with pytest.raises(StorageError):
                inspect(newest)


@contextmanager
def as_nobody() -> Iterator[None]:
    """The block runs as a user that owns nothing."""
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_many_entries_are_listed_by_name_alone(tmp_path: Path) -> None:
    # Empty files: a listing that opened them would refuse them.
    for rank in range(50):
        for unique_id in range(400):
            os.close(os.open(tmp_path / f"{rank}_{unique_id}.distcp", os.O_CREAT))
    assert [version.unique_id for version in list_versions(tmp_path)] == list(range(399, -1, -1))


def test_many_versions_of_one_directory_are_inspected_together(tmp_path: Path) -> None:
    for unique_id in range(3):
        with_id(unique_id).write(tmp_path)
    with_id(3).without_metadata().write(tmp_path)
    with_id(4).truncated("1_4.distcp", at=9).write(tmp_path)
    found = {inspected.version.unique_id: inspected.state.kind.value for inspected in inspect_all(tmp_path)}
    assert found == {4: "damaged", 3: "incomplete", 2: "complete", 1: "complete", 0: "complete"}
    assert list(found) == [4, 3, 2, 1, 0]


def test_the_version_to_judge_is_what_a_merge_would_take_or_the_newest(tmp_path: Path) -> None:
    with_id(3).without_rank(0).write(tmp_path)
    with_id(2).without_rank(0).write(tmp_path)
    assert version_to_judge(tmp_path).unique_id == 3
    with_id(1).write(tmp_path)
    assert version_to_judge(tmp_path).unique_id == 1
    assert version_to_judge(tmp_path, unique_id=2).unique_id == 2


def test_the_newest_comes_with_its_verification(tmp_path: Path) -> None:
    TWO_RANKS.write(tmp_path)
    verified = newest_verified(tmp_path)
    assert verified.report.version == newest_complete(tmp_path)
    assert [tensor.spec.key for tensor in verified.checkpoint.tensors] == ["model.w"]
