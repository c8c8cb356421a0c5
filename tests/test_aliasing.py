"""Promote and roll back: one step each, checked against what the mover expects, and recorded."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore import Choice, promote, resolve, rollback, run
from ckptcore.aliasing import Moved
from ckptcore.errors import AliasMoved, InvalidName, ReleaseInvalid, ReleaseNotFound, StorageError
from ckptcore.registry import history_of, shelf_of
from tests.command import REPOSITORY, ckpt
from tests.registries import NAME, acts, publish_steps


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    return publish_steps(tmp_path_factory.mktemp("published"), [10, 20, 30])


@pytest.fixture
def shelf(published: tuple[Path, list[str]], tmp_path: Path) -> tuple[Path, list[str]]:
    return shutil.copytree(published[0], tmp_path / "registry", symlinks=True), published[1]


def current(registry: Path, alias: str) -> str:
    return resolve(registry, f"{NAME}@{alias}").name


def test_a_promotion_is_one_link_and_one_line(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, _) = shelf
    assert promote(registry, f"{NAME}@{first}", "production") == Moved(NAME, "production", first, "")
    moved = promote(registry, f"{NAME}@{second}", "production", reason="evals passed", flow_run="run-1")
    assert moved == Moved(NAME, "production", second, first)
    assert os.readlink(registry / NAME / "production") == f"releases/{second}"
    assert acts(registry)[-2:] == [("promote", first, "production", ""), ("promote", second, "production", first)]
    act = history_of(shelf_of(registry, NAME))[-1]
    assert (act.reason, act.flow_run) == ("evals passed", "run-1")
    assert act.user
    assert act.host


def test_an_alias_is_promoted_as_the_release_that_it_names(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, _, third) = shelf
    assert promote(registry, NAME, "production").release == third
    assert promote(registry, f"{NAME}@production", "stable").release == third
    promote(registry, f"{NAME}@{first}", "latest")
    assert current(registry, "stable") == third


def test_promoting_again_does_nothing(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, *_) = shelf
    promote(registry, f"{NAME}@{first}", "production")
    before = acts(registry)
    assert not promote(registry, f"{NAME}@{first}", "production").did_work
    assert acts(registry) == before


def test_a_move_that_was_killed_before_its_record_is_recorded_by_the_next_run(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, _) = shelf
    promote(registry, f"{NAME}@{first}", "production")
    history = (registry / NAME / "history.jsonl").read_bytes()
    promote(registry, f"{NAME}@{second}", "production")
    (registry / NAME / "history.jsonl").write_bytes(history)
    assert promote(registry, f"{NAME}@{second}", "production").did_work
    assert acts(registry)[-1] == ("promote", second, "production", first)
    assert rollback(registry, NAME, "production").release == first


def test_rolling_back_twice_goes_back_twice(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third) = shelf
    assert rollback(registry, NAME, "latest", reason="bad") == Moved(NAME, "latest", second, third)
    assert rollback(registry, NAME, "latest") == Moved(NAME, "latest", first, second)
    assert acts(registry)[-2:] == [("rollback", second, "latest", third), ("rollback", first, "latest", second)]
    with pytest.raises(ReleaseNotFound, match="no earlier release"):
        rollback(registry, NAME, "latest")
    assert current(registry, "latest") == first


def test_what_was_rolled_back_is_not_put_back_by_publishing_it_again(tmp_path: Path) -> None:
    registry, (first, _) = publish_steps(tmp_path, [10, 20])
    rollback(registry, NAME, "latest")
    assert not run(Choice(str(tmp_path / "output")), registry, NAME).did_work
    assert current(registry, "latest") == first


def test_a_rollback_passes_over_what_is_gone(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third) = shelf
    shutil.rmtree(registry / NAME / "releases" / second)
    assert rollback(registry, NAME, "latest") == Moved(NAME, "latest", first, third, (second,))


def test_whoever_expects_something_else_is_refused(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third) = shelf
    with pytest.raises(AliasMoved, match=f"expected {first}, found {third}"):
        promote(registry, f"{NAME}@{second}", "latest", expect_current=first)
    with pytest.raises(AliasMoved, match=f"expected no such alias, found {third}"):
        promote(registry, f"{NAME}@{second}", "latest", expect_current="")
    with pytest.raises(AliasMoved, match=f"expected {first}, found no such alias"):
        promote(registry, f"{NAME}@{second}", "production", expect_current=first)
    with pytest.raises(AliasMoved):
        rollback(registry, NAME, "latest", expect_current=second)
    assert current(registry, "latest") == third
    assert promote(registry, f"{NAME}@{second}", "production", expect_current="").did_work
    assert rollback(registry, NAME, "latest", expect_current=third).release == second


def test_a_release_that_cannot_be_read_is_not_promoted(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third) = shelf
    for release in (first, second):
        (registry / NAME / "releases" / release / "manifest.json").write_text('{"schema": 1}')
    with pytest.raises(ReleaseInvalid, match=r"manifest\.json"):
        promote(registry, f"{NAME}@{first}", "production")
    with pytest.raises(ReleaseInvalid, match=r"manifest\.json"):
        rollback(registry, NAME, "latest")
    assert current(registry, "latest") == third
    assert not (registry / NAME / "production").is_symlink()


@pytest.mark.parametrize("reference", ["other", f"{NAME}@nothing", f"{NAME}@step-1_id-0_000000000000"])
def test_what_does_not_exist_is_not_promoted(shelf: tuple[Path, list[str]], reference: str) -> None:
    registry, _ = shelf
    before = acts(registry)
    with pytest.raises(ReleaseNotFound):
        promote(registry, reference, "production")
    assert sorted(os.listdir(registry)) == [NAME]
    assert acts(registry) == before


def test_only_an_alias_that_exists_is_rolled_back(shelf: tuple[Path, list[str]]) -> None:
    with pytest.raises(ReleaseNotFound, match="no alias 'production'"):
        rollback(shelf[0], NAME, "production")
    with pytest.raises(ReleaseNotFound, match="no such name"):
        rollback(shelf[0], "other", "latest")


@pytest.mark.parametrize("alias", ["", "..", "../up", ".hidden", "-x", "a/b", "a\0b", "releases", "history.jsonl"])
def test_an_alias_stays_in_its_place(shelf: tuple[Path, list[str]], alias: str) -> None:
    registry, releases = shelf
    before = sorted(os.listdir(registry / NAME))
    with pytest.raises(InvalidName):
        promote(registry, f"{NAME}@{releases[0]}", alias)
    with pytest.raises(InvalidName):
        rollback(registry, NAME, alias)
    assert sorted(os.listdir(registry / NAME)) == before


def test_an_alias_cannot_pass_for_a_release(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, _) = shelf
    with pytest.raises(InvalidName, match="form of a release's name"):
        promote(registry, f"{NAME}@{first}", second)


def test_a_file_in_the_aliass_place_is_left_alone(shelf: tuple[Path, list[str]]) -> None:
    registry, releases = shelf
    (registry / NAME / "production").mkdir()
    with pytest.raises(StorageError):
        promote(registry, f"{NAME}@{releases[0]}", "production")
    assert (registry / NAME / "production").is_dir()


def test_of_movers_at_once_that_expect_the_same_exactly_one_wins(shelf: tuple[Path, list[str]]) -> None:
    """Two promotions to different releases and a rollback, all from what they saw: the others are told."""
    registry, (first, second, third) = shelf
    promote(registry, f"{NAME}@{first}", "production")
    promote(registry, f"{NAME}@{third}", "production")
    moves = [
        ["promote", str(registry), f"{NAME}@{first}"],
        ["promote", str(registry), f"{NAME}@{second}"],
        ["rollback", str(registry), NAME],
    ]
    script = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", script, *move, "--alias", "production", "--expect-current", third, "--json"],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for move in moves
    ]
    outcomes = [(*process.communicate(), process.returncode) for process in processes]
    won = [json.loads(stdout) for stdout, _, status in outcomes if status == 0]
    assert len(won) == 1
    assert all(json.loads(stdout)["error"] == "AliasMoved" for stdout, _, status in outcomes if status)
    assert current(registry, "production") == won[0]["release"]
    history = acts(registry)
    assert len(history) == 6
    assert history[-1][1:] == (won[0]["release"], "production", third)


def test_unconditional_moves_at_once_leave_an_unbroken_history(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, _) = shelf
    code = "import sys; from ckptcore import promote; [promote(*sys.argv[1:3], 'production') for _ in range(20)]"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(registry), f"{NAME}@{release}"],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )
        for release in (first, second)
    ]
    assert [process.wait() for process in processes] == [0, 0]
    moves = [(act, *rest) for act, *rest in acts(registry) if act == "promote"]
    befores = ["", *(release for _, release, _, _ in moves[:-1])]
    assert [previous for _, _, _, previous in moves] == befores
    assert moves[-1][1] == current(registry, "production")


def test_the_commands(shelf: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]) -> None:
    registry, (first, second, third) = shelf
    promoted = ckpt(capfd, "promote", registry, f"{NAME}@{first}", "--alias", "production", "--reason", "a\nb")
    assert (promoted.status, promoted.stdout) == (0, f"{NAME}@production: nothing -> {first}\n")
    again = ckpt(capfd, "promote", registry, f"{NAME}@{first}", "--alias", "production")
    assert (again.status, again.stdout) == (0, f"{NAME}@production names {first} already; nothing was done\n")
    shutil.rmtree(registry / NAME / "releases" / second)
    back = ckpt(capfd, "rollback", registry, NAME, "--alias", "latest", "--json")
    assert json.loads(back.stdout) == {
        "name": NAME, "alias": "latest", "release": first, "previous": third, "skipped": [second], "did_work": True,
    }  # fmt: skip
    assert back.stderr == f"passed over {second}, which does not exist any more\n"
    shutil.rmtree(registry / NAME / "releases" / first)
    listed = ckpt(capfd, "aliases", registry)
    assert listed.stdout.splitlines() == [
        f"{NAME}@latest  {first}  does not exist",
        f"{NAME}@production  {first}  does not exist",
    ]
    documents = json.loads(ckpt(capfd, "aliases", registry, NAME, "--json").stdout)
    assert documents[0] == {"name": NAME, "alias": "latest", "release": first, "exists": False}
    lines = ckpt(capfd, "history", registry, NAME).stdout.splitlines()
    assert len(lines) == len(acts(registry)) == 5
    assert lines[3].endswith(r"'a\nb'")
    assert f"latest: {third} -> {first}" in lines[4]
    assert json.loads(ckpt(capfd, "history", registry, NAME, "--json").stdout)[3]["reason"] == "a\nb"


@pytest.mark.parametrize(
    "command",
    [
        ["promote", "REGISTRY", f"{NAME}@nothing", "--alias", "production"],
        ["promote", "REGISTRY", f"{NAME}@../../etc", "--alias", "production"],
        ["rollback", "REGISTRY", NAME, "--alias", "production"],
        ["history", "REGISTRY", "other"],
        ["aliases", "REGISTRY", "other"],
        ["aliases", "REGISTRY/missing"],
        ["releases", "REGISTRY", "../registry"],
    ],
)
def test_refusals_are_a_line_and_status_1(
    shelf: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str], command: list[str]
) -> None:
    refused = ckpt(capfd, *(word.replace("REGISTRY", str(shelf[0])) for word in command))
    assert (refused.status, refused.stdout) == (1, "")
    assert len(refused.stderr.splitlines()) == 1


def test_a_reason_in_any_bytes_is_kept(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, *_) = shelf
    reason = os.fsdecode(b"caf\xe9")
    promote(registry, f"{NAME}@{first}", "production", reason=reason)
    assert history_of(shelf_of(registry, NAME))[-1].reason == reason


def test_an_alias_to_nowhere_is_repaired_by_a_promotion(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, _, third) = shelf
    shutil.rmtree(registry / NAME / "releases" / third)
    assert promote(registry, f"{NAME}@{first}", "latest") == Moved(NAME, "latest", first, third)
