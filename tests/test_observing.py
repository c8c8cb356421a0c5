"""Look at real runs and registries again and again: what is seen, what it costs, and that nothing is touched."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, observing, pin, promote, prune, run
from ckptcore.observing import Observer
from ckptcore.rules.observed import PipelineSeen, Stage, Watched
from ckptcore.rules.retention import KeepEvery, KeepLast
from ckptcore.watched import watched_in_configs, watched_in_places
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY, everything_below
from tests.crowds import crowd

LONG_AGO = 3600.0


def saved(step: int) -> SavedCheckpoint:
    return SavedCheckpoint().tensor("w", np.arange(24, dtype=np.float32) + step, grid=(2,))


def write(source: Path, *steps: int, age_s: float = LONG_AGO, damaged: bool = False) -> None:
    for step in steps:
        save = saved(step)
        write_trainer_run(source, {step: save.truncated("1_0.distcp", at=90) if damaged else save}, signals=False)
        for path in (source / f"checkpoint-{step}").rglob("*"):
            at = path.stat().st_mtime - age_s
            os.utime(path, (at, at))


def watched(directory: Path) -> Watched:
    return Watched("tiny", "tiny", source=str(directory / "run"), registry=str(directory / "registry"))


def stages(seen: PipelineSeen) -> dict[int | None, Stage]:
    return {version.step: version.stage for version in seen.versions}


def look(observer: Observer) -> PipelineSeen:
    """What a look sees once nothing is left that was never looked into."""
    observer.look()
    while not observer.has_seen_all:
        observer.look()
    return observer.snapshot.pipelines[0]


def publish(directory: Path, step: int) -> str:
    return run(Choice(str(directory / "run"), step=step), directory / "registry", "tiny").release


def test_every_stage_is_told_apart(tmp_path: Path) -> None:
    source = tmp_path / "run"
    write(source, 100, 200, 300)
    write(source, 400, damaged=True)
    write_trainer_run(source, {500: saved(500).without_rank(1)}, signals=False)
    publish(tmp_path, 100)
    publish(tmp_path, 200)
    prune(tmp_path / "registry", "tiny", [KeepLast(1)])
    observer = Observer([watched(tmp_path)])
    seen = look(observer)
    assert stages(seen) == {
        100: Stage.RETIRED,
        200: Stage.PUBLISHED,
        300: Stage.COMPLETE,
        400: Stage.DAMAGED,
        500: Stage.WRITING,
    }
    assert seen.newest_complete is not None
    assert seen.newest_complete.step == 300
    assert seen.newest_published is not None
    assert seen.newest_published.step == 200
    assert [(alias.alias, alias.step, alias.exists) for alias in seen.aliases] == [("latest", 200, True)]
    assert seen.is_measured
    assert seen.used_bytes > 0
    assert observer.has_seen_all


def test_what_did_not_change_is_the_same_picture(tmp_path: Path) -> None:
    write(tmp_path / "run", 100)
    publish(tmp_path, 100)
    observer = Observer([watched(tmp_path)])
    look(observer)
    first = observer.snapshot
    again = observer.look()
    assert again.number == first.number
    assert again.pipelines[0].versions is first.pipelines[0].versions


def test_what_is_published_later_is_recognised_without_reading_it_again(tmp_path: Path) -> None:
    write(tmp_path / "run", 100, 200, 300, 400)
    observer = Observer([watched(tmp_path)])
    assert set(stages(look(observer)).values()) == {Stage.COMPLETE}
    publish(tmp_path, 100)
    assert stages(look(observer))[100] is Stage.PUBLISHED


def test_a_save_over_a_published_version_is_told_of(tmp_path: Path) -> None:
    source = tmp_path / "run"
    write(source, 100)
    publish(tmp_path, 100)
    observer = Observer([watched(tmp_path)])
    assert stages(look(observer)) == {100: Stage.PUBLISHED}
    shutil.rmtree(source / "checkpoint-100")
    write_trainer_run(source, {100: saved(999)}, signals=False)
    found = look(observer).versions[0]
    assert (found.stage, found.is_saved_again) == (Stage.COMPLETE, True)


def test_a_release_whose_source_is_gone_is_still_seen(tmp_path: Path) -> None:
    write(tmp_path / "run", 100, 200)
    publish(tmp_path, 100)
    observer = Observer([watched(tmp_path)])
    look(observer)
    shutil.rmtree(tmp_path / "run" / "checkpoint-100")
    found = look(observer).version(100, 0)
    assert found is not None
    assert (found.stage, found.changed_at) == (Stage.PUBLISHED, None)


def test_a_newest_version_that_was_pruned_does_not_wait(tmp_path: Path) -> None:
    write(tmp_path / "run", 100, 200)
    publish(tmp_path, 200)
    promote(tmp_path / "registry", f"tiny@{publish(tmp_path, 100)}", "latest")
    prune(tmp_path / "registry", "tiny", [KeepEvery(1000)])
    seen = look(Observer([watched(tmp_path)]))
    assert stages(seen) == {100: Stage.PUBLISHED, 200: Stage.RETIRED}
    assert seen.waits_seconds(time.time()) is None


def test_aliases_and_pins_are_followed(tmp_path: Path) -> None:
    write(tmp_path / "run", 100, 200)
    first, second = publish(tmp_path, 100), publish(tmp_path, 200)
    observer = Observer([watched(tmp_path)])
    look(observer)
    promote(tmp_path / "registry", f"tiny@{first}", "production")
    pin(tmp_path / "registry", f"tiny@{second}")
    seen = look(observer)
    assert {alias.alias: alias.release for alias in seen.aliases} == {"latest": second, "production": first}
    assert {release.name: release.is_pinned for release in seen.releases} == {first: False, second: True}
    shutil.rmtree(tmp_path / "registry" / "tiny" / "releases" / first)
    assert {alias.alias: alias.exists for alias in look(observer).aliases} == {"latest": True, "production": False}


def test_a_source_that_goes_and_comes_back(tmp_path: Path) -> None:
    write(tmp_path / "run", 100)
    observer = Observer([watched(tmp_path)])
    look(observer)
    (tmp_path / "run").rename(tmp_path / "away")
    gone = look(observer)
    assert any("No such file" in trouble for trouble in gone.troubles)
    assert stages(gone) == {100: Stage.COMPLETE}  # what was known is not forgotten
    (tmp_path / "away").rename(tmp_path / "run")
    assert not any("run" in trouble for trouble in look(observer).troubles)


def test_a_file_system_that_hangs_holds_up_its_own_pipeline_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hangs, answers = tmp_path / "hangs", tmp_path / "answers"
    for directory in (hangs, answers):
        write(directory / "run", 1)
        publish(directory, 1)
    observer = Observer([watched(hangs), watched(answers)])
    look(observer)
    is_there_again, statvfs = threading.Event(), os.statvfs

    def hanging(path: str) -> os.statvfs_result:
        if path.startswith(str(hangs)):
            is_there_again.wait(60)
        return statvfs(path)

    monkeypatch.setattr(os, "statvfs", hanging)
    monkeypatch.setattr(observing, "PATIENCE_SECONDS", 0.2)
    monkeypatch.setattr(observing, "_WAIT_SECONDS", 0.1)
    monkeypatch.setattr(observing, "BUDGET_SECONDS", 0.1)
    try:
        observer.look()
        for directory in (hangs, answers):
            write(directory / "run", 2)
        end = time.monotonic() + 30
        while True:
            held_up, fresh = observer.look().pipelines
            if held_up.troubles and len(fresh.versions) == 2:
                break
            assert time.monotonic() < end
        assert (stages(fresh), fresh.troubles) == ({1: Stage.PUBLISHED, 2: Stage.COMPLETE}, ())
        assert stages(held_up) == {1: Stage.PUBLISHED}
        [trouble] = held_up.troubles
        assert str(hangs / "run") in trouble
        number = observer.snapshot.number
        assert observer.look().number == number  # the same trouble is no news
    finally:
        is_there_again.set()
    end = time.monotonic() + 30
    while (seen := observer.look().pipelines[0]).troubles or len(seen.versions) < 2:
        assert time.monotonic() < end
    assert stages(seen) == stages(fresh)


def test_looking_changes_nothing(tmp_path: Path) -> None:
    write(tmp_path / "run", 100, 200)
    publish(tmp_path, 100)
    before = everything_below(tmp_path)
    observer = Observer([watched(tmp_path)])
    for _ in range(3):
        observer.look()
    assert everything_below(tmp_path) == before


def test_many_are_read_bit_by_bit_and_all_of_them_in_the_end(tmp_path: Path) -> None:
    registry, runs = crowd(tmp_path, 3, 40)
    observer = Observer([Watched(run.name, run.name, source=str(run), registry=str(registry)) for run in runs])
    first = observer.look()
    assert [seen.newest_published and seen.newest_published.step for seen in first.pipelines] == [400, 400, 400]
    while not observer.has_seen_all:
        observer.look()
    assert [seen.counts[Stage.PUBLISHED] for seen in observer.snapshot.pipelines] == [40, 40, 40]


def test_places_are_joined_by_what_releases_were_made_from(tmp_path: Path) -> None:
    write(tmp_path / "run", 100)
    publish(tmp_path, 100)
    (tmp_path / "other").mkdir()
    found = watched_in_places([str(tmp_path / "run"), str(tmp_path / "other")], [str(tmp_path / "registry")])
    assert [(each.key, Path(each.source).name, bool(each.registry)) for each in found] == [
        ("tiny", "run", True),
        ("other", "other", False),
    ]


def test_each_source_of_each_file_is_watched_under_a_key_of_its_own(tmp_path: Path) -> None:
    text = "name: llama\nregistry: registry\nstall: 1h\nsources: [{path: run}, {path: run, name: ema}]\n"
    for home in ("a", "b"):
        (tmp_path / home).mkdir()
        (tmp_path / home / "ckpt.yaml").write_text(text)
    found = watched_in_configs([tmp_path / home / "ckpt.yaml" for home in ("a", "b")])
    assert [each.key for each in found] == ["llama", "ema", "llama~2", "ema~2"]
    assert {each.pipeline for each in found} == {"llama"}
    assert found[0].stall_seconds == 3600


def test_the_small_llama_run(tmp_path: Path) -> None:
    source = shutil.copytree(REPOSITORY / "tests" / "data" / "llama-run", tmp_path / "run")
    seen = look(Observer([Watched("llama", "llama", source=str(source))]))
    assert stages(seen) == dict.fromkeys((9, 10, 100), Stage.COMPLETE)
