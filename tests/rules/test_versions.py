"""Names become versions; the newest is the highest number, and every reason against one is given."""

from __future__ import annotations

import random

import pytest

from ckptcore.errors import VersionNotFound
from ckptcore.rules.issues import Issue
from ckptcore.rules.versions import (
    INCOMPLETE_CODES,
    MISSING_RANK_FILE,
    Entry,
    Listing,
    RunMarks,
    StateKind,
    Version,
    check_marks,
    choose_component,
    newest_first,
    read_listing,
    state_of,
)


def listing(*files: str, directories: tuple[str, ...] = ()) -> Listing:
    return read_listing([*(Entry(name, False) for name in files), *(Entry(name, True) for name in directories)])


def version(step: int | None = 100, unique_id: int = 0, *, marks: RunMarks = RunMarks()) -> Version:
    return Version("run", step, unique_id, "model_state", f"run/checkpoint-{step}/model_state", marks)


def test_ids_are_whole_numbers_of_whole_names() -> None:
    found = listing(
        "0_1.distcp", "1_11.distcp", "11.metadata", "21.metadata.lock", "3_4.safetensors", "05.metadata", "x_6.distcp"
    )
    assert found.unique_ids == (1, 4, 11, 21)


def test_steps_and_components_are_directories_only() -> None:
    found = listing(
        "checkpoint-5",
        "model_state",
        directories=("checkpoint-9", "checkpoint-10", "checkpoint-010", "dist_ckpt", "ema_state"),
    )
    assert found.steps == (9, 10)
    assert found.components == ("ema_state", "dist_ckpt")
    assert found.places == found.components


def test_a_step_may_hold_the_files_itself() -> None:
    found = listing("0.metadata", "0_0.distcp", directories=("optimizer_state",))
    assert found.places == ("optimizer_state", None)


def test_marks_of_a_trainer() -> None:
    found = listing("saved_signal_0", "saved_signal_10", "save_signal_TMP_3", ".checkpoint_done", "saved_signal_x")
    assert found.saved_ranks == {0, 10}
    assert found.saving_ranks == (3,)
    assert found.is_marked_done


def test_newest_is_the_highest_step_then_the_highest_id() -> None:
    ordered = [version(100, 2), version(100, 0), version(10, 11), version(10, 9), version(9, 99), version(None, 1000)]
    shuffled = random.Random(0).sample(ordered, len(ordered))
    assert list(newest_first(shuffled)) == ordered


@pytest.mark.parametrize(
    ("available", "wanted", "chosen"),
    [
        (["model_state", "optimizer_state"], None, "model_state"),
        (["model_state", "optimizer_state"], "optimizer_state", "optimizer_state"),
        (["ema_state"], "ema_state", "ema_state"),
        (["dist_ckpt"], None, "dist_ckpt"),
        (["optimizer_state", "dist_ckpt"], None, "dist_ckpt"),
        ([None], None, None),
        ([None, "optimizer_state"], None, None),
        ([None, "model_state"], None, "model_state"),
        ([], None, None),
    ],
)
def test_the_component(available: list[str | None], wanted: str | None, chosen: str | None) -> None:
    assert choose_component(available, wanted, "run") == chosen


@pytest.mark.parametrize(
    ("available", "wanted", "message"),
    [
        (["optimizer_state", "master_weight"], None, "optimizer_state, master_weight"),
        (["optimizer_state"], None, "name a component; there: optimizer_state"),  # the weights may be yet to come
        (["model_state"], "ema_state", "no component 'ema_state'; there: model_state"),
        ([None], "model_state", "there is no component directory"),
        (["model_state"], "../model_state", "no component '../model_state'"),
    ],
)
def test_no_component(available: list[str | None], wanted: str | None, message: str) -> None:
    with pytest.raises(VersionNotFound) as refusal:
        choose_component(available, wanted, "run")
    assert message in str(refusal.value)


def test_a_version_without_findings_is_complete() -> None:
    assert state_of([]).is_complete
    assert check_marks(version(), listing(), ranks=[0, 1]) == ()


def test_something_missing_makes_a_version_incomplete_whatever_else_is_wrong() -> None:
    missing = Issue("rank 1", "1_0.distcp is missing", code=MISSING_RANK_FILE)
    wrong = Issue("tensor 'w'", "nobody saved [0:1]", code="hole")
    assert state_of([wrong]).kind is StateKind.DAMAGED
    both = state_of([wrong, missing, wrong])
    assert both.kind is StateKind.INCOMPLETE
    assert both.reasons == (missing, wrong)
    assert not both.is_complete


def test_each_rank_that_the_metadata_names_needs_its_signal_where_the_run_has_signals() -> None:
    of_a_run = version(marks=RunMarks(saved_signals=True))
    found = check_marks(of_a_run, listing("saved_signal_0", "saved_signal_2"), ranks=[2, 1, 0, 3])
    assert [issue.where for issue in found] == ["rank 1 of version 0 of step 100", "rank 3 of version 0 of step 100"]
    assert {issue.code for issue in found} <= INCOMPLETE_CODES
    assert check_marks(of_a_run, listing("saved_signal_0", "saved_signal_2"), ranks=[0, 2]) == ()
    assert check_marks(version(), listing(), ranks=[0, 2]) == ()


def test_a_rank_that_is_still_saving_is_never_passed_over() -> None:
    found = check_marks(version(), listing("saved_signal_0", "save_signal_TMP_0"), ranks=[0])
    assert [str(issue) for issue in found] == [
        "rank 0 of version 0 of step 100: is still saving: save_signal_TMP_0 exists"
    ]


def test_the_done_mark_is_demanded_only_where_the_run_has_it() -> None:
    marked = RunMarks.of([listing("saved_signal_0"), listing(".checkpoint_done"), listing()])
    assert marked == RunMarks(saved_signals=True, checkpoint_done=True)
    found = check_marks(version(marks=RunMarks(checkpoint_done=True)), listing("saved_signal_0"), ranks=[0])
    assert [issue.what for issue in found] == [".checkpoint_done is missing, and another step of the run has it"]
    assert check_marks(version(marks=marked), listing("saved_signal_0", ".checkpoint_done"), ranks=[0]) == ()


def test_where_the_marks_lie() -> None:
    assert version().marks_directory == "run/checkpoint-100"
    assert Version("d", None, 3, None, "d").marks_directory == "d"
    assert Version("d", None, 3, None, "d").label == "version 3"
