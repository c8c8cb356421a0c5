"""Prune and pins: what is dropped goes in one step, what somebody needs stays, and a killed prune is finished."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckptcore import KeepEvery, KeepLast, KeepNewerThan, lease, pin, promote, prune, unpin
from ckptcore.errors import InvalidName, InvalidRetention, ReleaseNotFound, StorageError
from ckptcore.pinning import pins_on
from ckptcore.registry import history_of, releases_on, shelf_of
from ckptcore.retaining import list_releases
from ckptcore.rules.release import Act
from ckptcore.rules.retention import RetentionPlan
from ckptcore.storage.trash import throw_away
from tests.command import REPOSITORY, ckpt
from tests.registries import NAME, acts, lease_holder, publish_steps


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    return publish_steps(tmp_path_factory.mktemp("published"), [10, 20, 30, 40])


@pytest.fixture
def shelf(published: tuple[Path, list[str]], tmp_path: Path) -> tuple[Path, list[str]]:
    return shutil.copytree(published[0], tmp_path / "registry", symlinks=True), published[1]


def left(registry: Path) -> set[str]:
    return set(os.listdir(registry / NAME / "releases"))


def test_a_prune_removes_what_no_rule_keeps_and_records_it(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third, fourth) = shelf
    pruned = prune(registry, NAME, [KeepLast(1), KeepEvery(20)], reason="weekly")
    assert (pruned.removed, pruned.spared, pruned.finished) == ((first, third), (), ())
    assert left(registry) == {second, fourth}
    assert os.listdir(registry / NAME / ".trash") == []
    assert acts(registry)[-2:] == [("prune", first, "", ""), ("prune", third, "", "")]
    assert history_of(shelf_of(registry, NAME))[-1].reason == "weekly"


def test_a_dry_run_changes_nothing(shelf: tuple[Path, list[str]]) -> None:
    registry, releases = shelf
    before = {path: path.lstat().st_mtime_ns for path in registry.rglob("*")}
    pruned = prune(registry, NAME, [KeepLast(1)], dry_run=True)
    assert pruned.plan.dropped == tuple(releases[:3])
    assert pruned.removed == ()
    assert {path: path.lstat().st_mtime_ns for path in registry.rglob("*")} == before


def test_what_somebody_needs_is_kept(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third, fourth) = shelf
    promote(registry, f"{NAME}@{first}", "production")
    pin(registry, f"{NAME}@{second}")
    with lease(registry, f"{NAME}@{third}"):
        pruned = prune(registry, NAME, [KeepNewerThan(0.001)])
    assert pruned.removed == ()
    assert [verdict.reasons for verdict in pruned.plan.verdicts] == [
        ("alias latest",),
        ("leased",),
        ("pinned",),
        ("alias production",),
    ]
    assert left(registry) == {first, second, third, fourth}


def test_what_is_not_a_release_of_ours_is_kept(shelf: tuple[Path, list[str]], tmp_path: Path) -> None:
    registry, (first, *_, fourth) = shelf
    releases = registry / NAME / "releases"
    (releases / first / "manifest.json").unlink()
    (releases / "step-1_id-0_0123456789ab").write_text("a file")
    (releases / "notes").mkdir()
    (releases / "notes" / "manifest.json").write_text("{}")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "manifest.json").write_text("{}")
    (releases / "step-2_id-0_0123456789ab").symlink_to(tmp_path / "elsewhere")
    prune(registry, NAME, [KeepLast(1)])
    assert left(registry) == {first, fourth, "step-1_id-0_0123456789ab", "step-2_id-0_0123456789ab", "notes"}
    assert (tmp_path / "elsewhere" / "manifest.json").exists()


def test_what_is_needed_since_the_plan_was_made_is_spared(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third, fourth) = shelf
    held = []

    def meanwhile(plan: RetentionPlan) -> None:
        assert plan.dropped == (first, second, third)
        promote(registry, f"{NAME}@{first}", "production")
        pin(registry, f"{NAME}@{second}")
        held.append(lease(registry, f"{NAME}@{third}"))
        held[0].__enter__()

    pruned = prune(registry, NAME, [KeepLast(1)], on_plan=meanwhile)
    held[0].__exit__(None, None, None)
    assert pruned.removed == ()
    assert [(verdict.release, verdict.reasons) for verdict in pruned.spared] == [
        (first, ("alias production",)),
        (second, ("pinned",)),
        (third, ("leased",)),
    ]
    assert left(registry) == {first, second, third, fourth}


def test_what_is_gone_since_the_plan_was_made_is_no_error(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third, _) = shelf
    pruned = prune(
        registry, NAME, [KeepLast(1)], on_plan=lambda _: shutil.rmtree(registry / NAME / "releases" / second)
    )
    assert pruned.removed == (first, third)
    assert [(verdict.release, verdict.reasons) for verdict in pruned.spared] == [(second, ("gone already",))]


def test_a_prune_that_was_killed_after_the_rename_is_recorded_and_finished(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, *_) = shelf
    place = shelf_of(registry, NAME)
    throw_away(place.release(first), place.trash)
    assert first not in releases_on(place)
    pruned = prune(registry, NAME, [KeepLast(3)])
    assert (pruned.finished, pruned.removed) == ((first,), ())
    assert not (place.trash / first).exists()
    assert acts(registry)[-1] == ("prune", first, "", "")
    assert second in left(registry)


def test_what_was_published_again_is_not_recorded_as_gone(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, *_) = shelf
    place = shelf_of(registry, NAME)
    shutil.copytree(place.release(first), place.trash / first)
    assert prune(registry, NAME, [KeepLast(4)]).finished == (first,)
    assert first in releases_on(place)
    assert acts(registry)[-1][0] == "publish"


def test_order_and_age_are_the_historys_not_the_file_systems(shelf: tuple[Path, list[str]]) -> None:
    """The clock was set back before the last publication, and a copy of the registry lost its times."""
    registry, (first, second, third, fourth) = shelf
    place = shelf_of(registry, NAME)
    days = (10, 20, 30, 2)
    lines = [
        Act(f"2020-01-{day:02}T00:00:00Z", "publish", release, "latest").to_line()
        for release, day in zip(shelf[1], days, strict=True)
    ]
    place.history.write_bytes(b"".join(lines))
    assert [release.name for release in list_releases(registry, NAME)] == [first, second, third, fourth]
    assert prune(registry, NAME, [KeepLast(1)], dry_run=True).plan.dropped == (first, second, third)
    os.unlink(place.alias("latest"))
    ancient = KeepNewerThan(86_400)
    assert prune(registry, NAME, [ancient], dry_run=True).plan.dropped == (first, second, third, fourth)


def test_what_the_history_does_not_know_is_the_newest(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, second, third, fourth) = shelf
    place = shelf_of(registry, NAME)
    lines = [line for line in place.history.read_bytes().splitlines(keepends=True) if second.encode() not in line]
    damaged = Act("not a time", "publish", third, "latest").to_line()
    place.history.write_bytes(b"".join([*lines, damaged]))
    assert [release.name for release in list_releases(registry, NAME)] == [first, fourth, third, second]
    assert prune(registry, NAME, [KeepNewerThan(86_400)], dry_run=True).plan.dropped == ()


def test_no_rule_is_refused_before_anything_is_done(shelf: tuple[Path, list[str]]) -> None:
    with pytest.raises(InvalidRetention):
        prune(shelf[0], NAME, [])
    assert left(shelf[0]) == set(shelf[1])
    with pytest.raises(ReleaseNotFound):
        prune(shelf[0], "other", [KeepLast(1)])
    with pytest.raises(InvalidName):
        prune(shelf[0], "..", [KeepLast(1)])


def test_two_prunes_at_once_remove_each_release_once(shelf: tuple[Path, list[str]]) -> None:
    registry, releases = shelf
    code = "import sys; from ckptcore import KeepLast, prune; print(*prune(*sys.argv[1:], [KeepLast(1)]).removed)"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(registry), NAME],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for _ in range(3)
    ]
    outputs = [process.communicate()[0].split() for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert sorted(release for output in outputs for release in output) == sorted(releases[:3])
    assert [release for act, release, *_ in acts(registry) if act == "prune"] == releases[:3]


def test_a_holder_that_was_killed_protects_nothing(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, *_) = shelf
    with lease_holder(registry, f"{NAME}@{first}") as process:
        assert prune(registry, NAME, [KeepLast(3)]).plan.dropped == ()
        process.kill()
        process.wait()
    assert prune(registry, NAME, [KeepLast(3)]).removed == (first,)


def test_a_pin_is_a_file_and_a_line(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, *_, fourth) = shelf
    assert pin(registry, f"{NAME}@{first}", reason="paper").did_work
    assert not pin(registry, f"{NAME}@{first}").did_work
    assert pin(registry, NAME).release == fourth
    assert pins_on(shelf_of(registry, NAME)) == {first, fourth}
    assert unpin(registry, f"{NAME}@{first}").did_work
    assert not unpin(registry, f"{NAME}@{first}").did_work
    assert [act[:2] for act in acts(registry)[-3:]] == [("pin", first), ("pin", fourth), ("unpin", first)]
    assert os.listdir(registry / NAME / ".pins") == [fourth]


def test_a_pin_that_was_killed_before_its_record_is_recorded_by_the_next_run(shelf: tuple[Path, list[str]]) -> None:
    registry, (first, *_) = shelf
    place = shelf_of(registry, NAME)
    place.pins.mkdir()
    (place.pins / first).touch()
    assert pin(registry, f"{NAME}@{first}").did_work
    (place.pins / first).unlink()
    assert unpin(registry, f"{NAME}@{first}").did_work
    assert [act[:2] for act in acts(registry)[-2:]] == [("pin", first), ("unpin", first)]


def test_only_a_release_that_exists_is_pinned_and_the_pin_of_a_lost_one_can_be_taken_off(
    shelf: tuple[Path, list[str]],
) -> None:
    registry, (first, *_) = shelf
    for change in (pin, unpin):
        with pytest.raises(ReleaseNotFound):
            change(registry, f"{NAME}@nothing")
    pin(registry, f"{NAME}@{first}")
    shutil.rmtree(registry / NAME / "releases" / first)
    assert unpin(registry, f"{NAME}@{first}").did_work
    assert not pins_on(shelf_of(registry, NAME))


def test_what_cannot_be_taken_away_is_refused_and_stays(shelf: tuple[Path, list[str]]) -> None:
    registry, releases = shelf
    (registry / NAME / ".trash").write_text("in the way")
    with pytest.raises(StorageError, match="cannot make"):
        prune(registry, NAME, [KeepLast(1)])
    assert left(registry) == set(releases)


def test_the_commands(shelf: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str]) -> None:
    registry, (first, second, third, fourth) = shelf
    assert ckpt(capfd, "pin", registry, f"{NAME}@{second}", "--reason", "x").stdout == f"{NAME}@{second}: pinned\n"
    again = ckpt(capfd, "pin", registry, f"{NAME}@{second}")
    assert again.stdout == f"{NAME}@{second}: pinned already; nothing was done\n"
    rules = ["--keep-last", 1, "--keep-every", 1000, "--keep-newer-than", "1s"]
    (registry / NAME / "history.jsonl").write_bytes(
        b"".join(Act("2020-01-01T00:00:00Z", "publish", release, "latest").to_line() for release in shelf[1])
    )
    plan = f"keep  {fourth}  alias latest, one of the last 1\ndrop  {third}\nkeep  {second}  pinned\ndrop  {first}\n"
    dry = ckpt(capfd, "prune", registry, NAME, *rules, "--dry-run")
    assert (dry.status, dry.stdout) == (0, f"{plan}2 to keep, 2 to drop\n")
    shutil.copytree(registry / NAME / "releases" / first, registry / NAME / ".trash" / "left")
    done = ckpt(capfd, "prune", registry, NAME, *rules)
    finished = "finished  left  left by a prune that was stopped\n"
    assert (done.status, done.stdout) == (0, f"{plan}2 to keep, 2 to drop\n{finished}removed 2\n")
    listed = ckpt(capfd, "releases", registry)
    assert listed.stdout == (
        f"{NAME}@{second}  2020-01-01T00:00:00Z  pinned\n{NAME}@{fourth}  2020-01-01T00:00:00Z  alias latest\n"
    )
    assert json.loads(ckpt(capfd, "releases", registry, NAME, "--json").stdout)[0] == {
        "name": NAME, "release": second, "step": 20, "unique_id": 0, "published_at": "2020-01-01T00:00:00Z",
        "aliases": [], "pinned": True, "leased": False, "recognised": True,
    }  # fmt: skip
    assert json.loads(ckpt(capfd, "unpin", registry, f"{NAME}@{second}", "--json").stdout)["is_pinned"] is False
    document = json.loads(ckpt(capfd, "prune", registry, NAME, "--keep-last", 1, "--json").stdout)
    assert document["removed"] == [second]
    assert [verdict["keep"] for verdict in document["plan"]] == [True, False]


@pytest.mark.parametrize(
    "options",
    [
        [],
        ["--keep-last", "0"],
        ["--keep-last", "-1"],
        ["--keep-every", "0"],
        ["--keep-newer-than", "0d"],
        ["--keep-newer-than", "-1d"],
        ["--keep-newer-than", "7"],
        ["--keep-last", "all"],
    ],
)
def test_numbers_that_keep_nothing_are_wrong_usage(
    shelf: tuple[Path, list[str]], capfd: pytest.CaptureFixture[str], options: list[str]
) -> None:
    assert ckpt(capfd, "prune", shelf[0], NAME, *options).status == 2
    assert left(shelf[0]) == set(shelf[1])
