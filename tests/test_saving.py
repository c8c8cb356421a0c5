"""Saving from training: ids go up, nothing is overwritten, and the marks say what is finished. With Paddle itself."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from ckptcore import announcing, saving
from ckptcore.detecting import newest_complete
from ckptcore.errors import DamagedFile, InvalidName, OutputExists, StorageError
from ckptcore.rules.save_marks import Completion, WrittenFile, next_id, taken_ids
from ckptcore.verifying import verify
from tests.command import REPOSITORY

EXAMPLE = REPOSITORY / "docs" / "examples" / "plain_paddle.py"


# The rules, which need no Paddle.


def test_every_trace_of_an_id_takes_it() -> None:
    names = ["0_1.distcp", "3_2.safetensors", "4.metadata", "5.metadata.lock", "6.saving", "8.complete", "10.announced"]
    assert taken_ids(names) == {1, 2, 4, 5, 6, 8, 10}
    assert taken_ids(["01.saving", "1.saving.new", ".7.complete", "config.json", "0_1.distcp.tmp"]) == frozenset()


def test_ids_count_from_zero_and_go_up_by_one() -> None:
    assert [next_id(taken) for taken in ([], [0], [11, 2], [5])] == [0, 1, 12, 6]


def test_a_completion_mark_reads_back() -> None:
    completion = Completion(3, (WrittenFile("0_3.distcp", 12), WrittenFile("3.metadata", 5)))
    assert Completion.from_json(completion.to_json()) == completion


def test_a_completion_mark_sorts_its_files() -> None:
    files = [{"name": "3.metadata", "size_bytes": 5}, {"name": "0_3.distcp", "size_bytes": 12}]
    read = Completion.from_json(json.dumps({"schema": 1, "unique_id": 3, "files": files}).encode())
    assert [file.name for file in read.files] == ["0_3.distcp", "3.metadata"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[" * 10**5,
        b'{"schema": 2, "unique_id": 0, "files": []}',
        b'{"schema": 1, "unique_id": -1, "files": []}',
        b'{"schema": 1, "unique_id": true, "files": []}',
        b'{"schema": 1, "unique_id": 0, "files": [{"name": 1, "size_bytes": 1}]}',
        b'{"schema": 1, "unique_id": 0, "files": [{"name": "0_0.distcp", "size_bytes": "1"}]}',
    ],
    ids=range(10),
)
def test_what_is_no_completion_mark_is_refused(data: bytes) -> None:
    with pytest.raises(DamagedFile):
        Completion.from_json(data)


# The reservation, which needs a disk.


def test_of_many_jobs_each_gets_an_id_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "0_4.distcp").touch()
    with ThreadPoolExecutor(16) as pool:
        ids = list(pool.map(lambda _: saving._reserve(tmp_path, None), range(16)))
    assert sorted(ids) == list(range(5, 21))


def test_of_many_jobs_one_gets_the_id_they_ask_for(tmp_path: Path) -> None:
    def reserve(_: int) -> int | None:
        try:
            return saving._reserve(tmp_path, 7)
        except OutputExists:
            return None

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(reserve, range(16)), key=str).count(7) == 1


# Paddle on one process, and on two.


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.paddle
def test_one_process_saves_without_overwriting(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    directory = tmp_path / "checkpoint-10" / "model_state"
    ids = [saving.save_state_dict({"w": paddle.full([2, 3], value)}, directory) for value in (1.0, 2.0)]
    assert ids == [0, 1]
    assert announcing.flush(10)
    names = {f"{unique_id}.{mark}" for unique_id in ids for mark in ("metadata", "complete", "announced")}
    assert {entry.name for entry in directory.iterdir()} == names | {"0_0.distcp", "0_1.distcp"}
    completion = Completion.from_json((directory / "1.complete").read_bytes())
    sizes = {name: (directory / name).stat().st_size for name in ("0_1.distcp", "1.metadata")}
    assert {file.name: file.size_bytes for file in completion.files} == sizes
    newest = newest_complete(directory)
    assert (newest.unique_id, verify(newest).report.is_sound) == (1, True)
    # Paddle's own loader is not disturbed by the marks.
    target = {"w": paddle.zeros([2, 3])}
    paddle.distributed.load_state_dict(target, str(directory), unique_id=1)
    assert target["w"].tolist() == [[2.0] * 3] * 2


@pytest.mark.paddle
def test_one_process_refuses(tmp_path: Path) -> None:
    paddle = pytest.importorskip("paddle")
    weights = {"w": paddle.ones([2])}
    assert saving.save_state_dict(weights, tmp_path, 3) == 3
    before = {entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir() if "announced" not in entry.name}
    with pytest.raises(OutputExists):
        saving.save_state_dict(weights, tmp_path, 3)
    for unique_id in (-1, 10**18):
        with pytest.raises(InvalidName):
            saving.save_state_dict(weights, tmp_path, unique_id)
    assert announcing.flush(10)
    after = {entry.name: entry.stat().st_mtime_ns for entry in tmp_path.iterdir() if "announced" not in entry.name}
    assert after == before
    (tmp_path / "file").touch()
    with pytest.raises(StorageError):
        saving.save_state_dict(weights, tmp_path / "file" / "directory")


@pytest.mark.paddle
def test_what_paddle_refuses_is_raised_as_it_is_and_never_complete(tmp_path: Path) -> None:
    pytest.importorskip("paddle")
    with pytest.raises(ValueError, match="should be dict or paddle"):
        saving.save_state_dict({"w": 1}, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["0.saving"]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def run_two_ranks(script: Path, argument: Path, path: Path) -> None:
    """``script`` as two processes of one job, as Paddle's launcher would start them; both must succeed."""
    endpoints = [f"127.0.0.1:{free_port()}" for _ in range(2)]
    job = {
        "PADDLE_TRAINERS_NUM": "2",
        "PADDLE_TRAINER_ENDPOINTS": ",".join(endpoints),
        "PADDLE_MASTER": f"127.0.0.1:{free_port()}",
        "PADDLE_DISTRI_BACKEND": "gloo",
        "PYTHONPATH": str(path),
    }
    processes = [
        subprocess.Popen(
            [sys.executable, str(script), str(argument)],
            env=os.environ | job | {"PADDLE_TRAINER_ID": str(rank), "PADDLE_CURRENT_ENDPOINT": endpoint},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank, endpoint in enumerate(endpoints)
    ]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [process.returncode for process in processes] == [0, 0], "\n".join(outputs)


@pytest.mark.paddle
def test_two_ranks_save_and_refuse_together(tmp_path: Path) -> None:
    pytest.importorskip("paddle")
    run_two_ranks(REPOSITORY / "tests" / "saving_ranks.py", tmp_path, REPOSITORY)
    for unique_id in (0, 1, 7, 8):
        files = Completion.from_json((tmp_path / "run" / f"{unique_id}.complete").read_bytes()).files
        assert [file.name for file in files] == sorted(
            [f"0_{unique_id}.distcp", f"1_{unique_id}.distcp", f"{unique_id}.metadata"]
        )
        event = announcing.current_event(str(tmp_path / "run"), unique_id)
        assert event is not None
        assert event["payload"]["rank"] == 0
    assert newest_complete(tmp_path / "run").unique_id == 8
    assert not list((tmp_path / "run").glob("*.saving"))


@pytest.mark.paddle
def test_the_plain_example_saves_and_announces(tmp_path: Path) -> None:
    pytest.importorskip("paddle")
    shutil.copy(announcing.__file__, tmp_path / "announce.py")
    run_two_ranks(EXAMPLE, tmp_path / "output", tmp_path)
    newest = newest_complete(tmp_path / "output")
    assert (newest.step, newest.unique_id) == (200, 0)
    for step in (100, 200):
        assert announcing.current_event(str(tmp_path / f"output/checkpoint-{step}/model_state"), 0) is not None
