"""Announcing: one mark and one event for each save, whoever calls, and no harm to the trainer whatever fails."""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import time
import types
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ckptcore import announcing
from ckptcore.announcing import announce, current_event, flush, write_mark
from ckptcore.detecting import newest_complete
from ckptcore.rules.layout import COMPONENTS
from ckptcore.rules.versions import Entry, read_listing
from ckptcore.storage.local import fingerprint
from ckptcore.verifying import verify
from tests.command import REPOSITORY
from tests.corpus import LLAMA_RUN
from tests.receiver import Receiver, receiving

MODULE = Path(announcing.__file__)
DOCS = REPOSITORY / "docs"
RANKS = 4
SHIPPED_PATIENCE_S = announcing._PATIENCE_S
PYENV = Path.home() / ".pyenv" / "versions"


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PREFECT_API_URL", "PADDLE_TRAINER_ID", "PADDLE_TRAINERS_NUM"):
        monkeypatch.delenv(name, raising=False)
    # A busy disk of the tests' is nothing that they are about.
    monkeypatch.setattr(announcing, "_PATIENCE_S", 10.0)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with receiving() as receiver:
        yield receiver
        flush(10)


@pytest.fixture
def version(tmp_path: Path) -> Path:
    """A directory in which four ranks saved unique_id 0."""
    directory = tmp_path / "run" / "checkpoint-100" / "model_state"
    directory.mkdir(parents=True)
    (directory / "0.metadata").write_bytes(b"metadata")
    save(directory)
    return directory


def save(directory: Path, ranks: int = RANKS) -> None:
    """As a save in place by Paddle 3.2 and later does: rank files anew, the metadata as it was."""
    for rank in range(ranks):
        path = directory / f"{rank}_0.distcp"
        before = path.stat().st_mtime_ns if path.exists() else 0
        path.write_bytes(b"tensors")
        os.utime(path, ns=(before + 10**9, before + 10**9 if before else time.time_ns()))


def announce_all(directory: Path, url: str | None = None) -> None:
    for rank in range(RANKS):
        assert announce(directory, 0, url=url, rank=rank)
    assert flush(10)


def test_the_mark_is_the_body_of_the_request(version: Path, receiver: Receiver) -> None:
    assert announce(version, 0, url=receiver.url, rank=1)
    assert flush(10)
    [(path, headers, body)] = receiver.requests
    assert (path, headers["Content-Type"]) == ("/api/events", "application/json")
    assert json.loads((version / "0.announced").read_bytes()) == body
    [event] = body
    assert event["event"] == "ckpt.version.written"
    assert event["resource"] == {
        "prefect.resource.id": f"ckpt.version.{version}/0",
        "prefect.resource.name": "version 0 of step 100",
        "ckpt.run": str(version.parents[1]),
        "ckpt.component": "model_state",
    }
    stamp = fingerprint(version, ["1_0.distcp"]).digest
    assert event["payload"] == {
        "path": str(version),
        "run": str(version.parents[1]),
        "step": 100,
        "component": "model_state",
        "unique_id": 0,
        "rank": 1,
        "stamp": stamp,
    }
    names = {entry.name for entry in version.iterdir()}
    assert names == {"0.metadata", "0.announced", *(f"{rank}_0.distcp" for rank in range(RANKS))}


def test_without_a_rank_the_stamp_is_the_fingerprint_of_all_files(version: Path) -> None:
    names = ["0.metadata", *(f"{rank}_0.distcp" for rank in range(RANKS))]
    (version / "1_00.distcp").write_bytes(b"of no version")
    (version / "0_10.distcp").write_bytes(b"of another version")
    event = write_mark(str(version), 0).event
    assert event["payload"]["rank"] is None
    assert event["payload"]["stamp"] == fingerprint(version, names).digest


@pytest.mark.parametrize(
    ("directory", "run", "step", "component"),
    [
        ("run/checkpoint-7/master_weight", "run", 7, "master_weight"),
        ("run/checkpoint-7", "run", 7, None),
        ("run/checkpoint-07", "run/checkpoint-07", None, None),
        ("run/ema_state", "run", None, "ema_state"),
        ("run", "run", None, None),
    ],
)
def test_what_the_path_says(tmp_path: Path, directory: str, run: str, step: int | None, component: str | None) -> None:
    (tmp_path / directory).mkdir(parents=True)
    (tmp_path / directory / "3_12.distcp").write_bytes(b"tensors")
    payload = write_mark(str(tmp_path / directory), 12, 3).event["payload"]
    assert (payload["run"], payload["step"], payload["component"]) == (str(tmp_path / run), step, component)


def test_links_and_relative_paths_make_the_same_event(
    version: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (version.parents[1] / "latest").symlink_to("checkpoint-100")
    monkeypatch.chdir(version.parents[1])
    assert announce("latest/model_state", 0, url=receiver.url, rank=0)
    monkeypatch.chdir("/")
    assert announce(version, 0, url=receiver.url, rank=0)
    assert flush(10)
    assert len(set(receiver.event_ids)) == 1


def test_ranks_announce_a_save_once_and_the_next_save_anew(version: Path, receiver: Receiver) -> None:
    announce_all(version, receiver.url)
    assert len(receiver.event_ids) == 1
    save(version)
    announce_all(version, receiver.url)
    assert len(set(receiver.event_ids)) == len(receiver.event_ids) == 2


def test_a_rank_that_is_early_in_the_next_save_does_not_hide_it(version: Path, receiver: Receiver) -> None:
    announce_all(version, receiver.url)
    early = version / "2_0.distcp"
    os.utime(early, ns=(0, 1))
    assert announce(version, 0, url=receiver.url, rank=2)  # rank 0, whose file the mark is of, is still at it
    assert flush(10)
    save(version)
    announce_all(version, receiver.url)
    assert len(set(receiver.event_ids)) == len(receiver.event_ids) == 2


def test_a_save_by_fewer_ranks_is_announced(version: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch) -> None:
    assert announce(version, 0, url=receiver.url, rank=3)
    assert flush(10)
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "2")
    save(version, ranks=2)  # the file of rank 3 stays as it was
    for rank in range(2):
        assert announce(version, 0, url=receiver.url, rank=rank)
        assert flush(10)
    assert len(set(receiver.event_ids)) == len(receiver.event_ids) == 2


def test_of_ranks_at_the_same_moment_one_wins(version: Path) -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in range(5):
            save(version)
            marks = list(pool.map(lambda rank: write_mark(str(version), 0, rank % RANKS), range(16)))
            assert [mark.is_new for mark in marks].count(True) == 1
            assert len({mark.event["id"] for mark in marks}) == 1
    assert sorted(entry.name for entry in version.iterdir() if "announced" in entry.name) == ["0.announced"]


def test_a_lock_that_a_killed_process_left_holds_up_nobody(version: Path) -> None:
    left = Path(announcing._lock_path(str(version), 0))
    left.touch()
    assert write_mark(str(version), 0).is_new
    assert not left.exists()


def test_who_announced_sends_again_when_it_calls_again(version: Path, receiver: Receiver) -> None:
    """Because a person who repeats the command does so since the event was lost."""
    for rank in (None, None, 1):
        assert announce(version, 0, url=receiver.url, rank=rank)
        assert flush(10)
    assert len(receiver.event_ids) == 2
    assert len(set(receiver.event_ids)) == 1


def test_the_environment_names_the_server_and_the_rank(
    version: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"{receiver.url}/")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "2")
    monkeypatch.setenv("PREFECT_API_KEY", "pnu_key")
    assert announce(version, 0)
    assert flush(10)
    monkeypatch.setenv("PREFECT_API_AUTH_STRING", "admin:secret")
    assert announce(version, 0)
    assert flush(10)
    (path, with_key, [event]), (_, with_password, _) = receiver.requests
    assert (path, event["payload"]["rank"]) == ("/api/events", 2)
    assert with_key["Authorization"] == "Bearer pnu_key"
    assert with_password["Authorization"] == "Basic YWRtaW46c2VjcmV0"


@pytest.mark.parametrize("statuses", [[503, 500, 429]])
def test_a_server_that_comes_back_gets_the_event(
    version: Path, statuses: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(announcing, "_PAUSES_S", (0.01, 0.02, 0.03))
    with receiving(statuses) as receiver:
        assert announce(version, 0, url=receiver.url)
        assert flush(10)
    assert len(receiver.event_ids) == 4


@pytest.mark.parametrize("status", [401, 403, 404, 422, 301, 307])
def test_a_refusal_is_final_and_no_redirect_is_followed(
    version: Path, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    with receiving([status]) as receiver:
        assert announce(version, 0, url=receiver.url)
        assert flush(10)
    assert len(receiver.requests) == 1
    assert f"HTTP {status}" in caplog.text


def test_without_a_server_there_is_only_the_mark(version: Path, caplog: pytest.LogCaptureFixture) -> None:
    announce(version, 0)
    assert flush(10)
    assert current_event(str(version), 0) is not None
    assert "PREFECT_API_URL is not set" in caplog.text


DAMAGED = [b"", b"[", b"[]", b"{}", b"[1]", b'[{"id": 1}]', b'[{"id": "x", "payload": {"rank": "1"}}]', b"[" * 10**5]


@pytest.mark.parametrize("data", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_mark_is_none_and_is_replaced(version: Path, data: bytes) -> None:
    (version / "0.announced").write_bytes(data)
    assert current_event(str(version), 0) is None
    assert write_mark(str(version), 0).is_new
    assert current_event(str(version), 0) is not None


def test_a_copied_mark_does_not_speak_for_the_copy(version: Path, tmp_path: Path) -> None:
    mark = write_mark(str(version), 0)
    shutil.copytree(version, tmp_path / "copy")
    assert current_event(str(version), 0) == mark.event
    assert current_event(str(tmp_path / "copy"), 0) is None


# Whatever fails, the trainer goes on, soon.


def closed_port() -> str:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{probe.getsockname()[1]}/api"


@pytest.fixture
def silent_server() -> Iterator[str]:
    """The URL of a server that accepts and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}/api"


@pytest.fixture
def read_only(version: Path, tmp_path: Path) -> Iterator[Path]:
    """``version`` where nothing can be written, for root neither."""
    if os.geteuid() != 0:
        version.chmod(0o500)
        yield version
        version.chmod(0o700)
        return
    mounted = tmp_path / "mounted"
    mounted.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], capture_output=True).returncode:
        pytest.skip("root may write anywhere, and may not mount here")
    try:
        copy = shutil.copytree(version, mounted / "model_state")
        subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
        yield copy
    finally:
        subprocess.run(["umount", str(mounted)], check=True)


def quickest(call: Callable[[], bool]) -> tuple[float, bool]:
    """The shortest of three calls, since other processes share the machine, and the last result."""
    durations = []
    for _ in range(3):
        start = time.perf_counter()
        result = call()
        durations.append(time.perf_counter() - start)
    return min(durations), result


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a trainer waits for: the tests of how long that is must have it as it is."""
    monkeypatch.setattr(announcing, "_PATIENCE_S", SHIPPED_PATIENCE_S)


@pytest.fixture
def one_try(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(announcing, "_PAUSES_S", ())
    monkeypatch.setattr(announcing, "_REQUEST_TIMEOUT_S", 0.3)


@pytest.mark.usefixtures("one_try")
def test_no_server_and_a_silent_one_cost_no_time(
    version: Path, silent_server: str, caplog: pytest.LogCaptureFixture
) -> None:
    for url in (closed_port(), silent_server, "http://127.0.0.2:9/api", "ftp://127.0.0.1/api", "http://[/", "nonsense"):
        duration, is_marked = quickest(lambda url=url: announce(version, 0, url=url))  # type: ignore[misc]
        assert is_marked, url
        assert duration < 0.5, url
        assert flush(10)
        assert "the event is not sent" in caplog.text, url
        caplog.clear()


@pytest.mark.usefixtures("one_try")
def test_a_directory_that_cannot_be_written_is_announced_by_one(
    read_only: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    for rank in range(RANKS):
        duration, is_marked = quickest(lambda rank=rank: announce(read_only, 0, url=receiver.url, rank=rank))  # type: ignore[misc]
        assert not is_marked
        assert duration < 0.5
    assert flush(10)
    assert len(set(receiver.event_ids)) == 1
    assert "no mark is written" in caplog.text


def test_what_is_not_there_is_not_announced(
    version: Path, receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    wrong: Any
    unique_id: Any
    for wrong, unique_id in [(version / "gone", 0), (version, 5), (version, -1), (version / "0.metadata", 0)]:
        duration, is_marked = quickest(lambda p=wrong, u=unique_id: announce(p, u, url=receiver.url))  # type: ignore[misc]
        assert not is_marked
        assert duration < 0.5
        caplog.clear()
        assert not announce(wrong, unique_id, url=receiver.url)
        assert flush(10)
        assert caplog.records[0].levelno == logging.WARNING
    for wrong, unique_id in [(None, 0), (version, "0"), (version, None), ("\udcff", 0), ("a\0b", 0)]:
        caplog.clear()
        assert not announce(wrong, unique_id, url=receiver.url)
        assert flush(10)
        assert caplog.records
    assert receiver.requests == []


@pytest.mark.usefixtures("patience")
def test_a_disk_that_hangs_costs_no_time(version: Path, receiver: Receiver) -> None:
    with announcing._locked(announcing._lock_path(str(version), 0)):
        duration, is_marked = quickest(lambda: announce(version, 0, url=receiver.url))
        assert not is_marked
        assert duration < 0.5
        assert not flush(0.05)
        assert receiver.requests == []
    assert flush(10)
    assert len(set(receiver.event_ids)) == 1
    assert current_event(str(version), 0) is not None


# The file alone, on the Pythons of training images.


def pythons() -> Iterator[Any]:
    """Those from 3.9 to 3.13 that are here, on the path or installed by pyenv."""
    for name in (f"python3.{minor}" for minor in range(9, 14)):
        for found in filter(None, (shutil.which(name), *map(str, PYENV.glob(f"*/bin/{name}")))):
            if subprocess.run([found, "-c", ""], capture_output=True).returncode == 0:  # a shim may lead nowhere
                yield pytest.param(found, id=name)
                break


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    """A directory with a copy of the file, and nothing else of the package."""
    directory = tmp_path / "training"
    directory.mkdir()
    shutil.copy(MODULE, directory / "announce.py")
    return directory


@pytest.mark.parametrize("python", list(pythons()))
def test_the_file_runs_alone(python: str, alone: Path, version: Path, receiver: Receiver) -> None:
    command = [python, "-W", "error", "announce.py", str(version), "0"]
    done = subprocess.run([*command, "--url", receiver.url], cwd=alone, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert receiver.event_ids == [done.stdout.strip()]
    program = "import sys, announce\nprint(announce.announce(sys.argv[1], 0, url=sys.argv[2]))"
    command = [python, "-W", "error", "-c", program, str(version), receiver.url]
    done = subprocess.run(command, cwd=alone, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert len(receiver.event_ids) == 2  # the interpreter waited for the answer


def test_the_script_fails_loudly(alone: Path, version: Path) -> None:
    for arguments in ([str(version), "5"], [str(version), "0", "--url", closed_port()]):
        done = subprocess.run([sys.executable, "announce.py", *arguments], cwd=alone, capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith("not announced: ")
        assert done.stderr.count("\n") == 1


def test_a_silent_server_holds_up_the_end_for_two_seconds_at_most(
    alone: Path, version: Path, silent_server: str
) -> None:
    program = (
        "import sys, time, announce\nannounce.announce(sys.argv[1], 0, url=sys.argv[2])\n"
        "end = time.monotonic()\nimport atexit\natexit._run_exitfuncs()\nprint(time.monotonic() - end)"
    )
    command = [sys.executable, "-c", program, str(version), silent_server]
    done = subprocess.run(command, cwd=alone, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert 1.5 < float(done.stdout) < 4
    assert "is not finished" in done.stderr
    assert current_event(str(version), 0) is not None


# What others rest on.


def test_the_names_are_those_of_the_rules() -> None:
    assert announcing._COMPONENTS == COMPONENTS
    marks = [Entry(".7.announced.0f", False), Entry(".7.announced.lock", False), Entry("7.announced", False)]
    assert read_listing(marks).unique_ids == ()


def test_a_mark_changes_nothing_for_detection(tmp_path: Path) -> None:
    run = shutil.copytree(LLAMA_RUN, tmp_path / "run")
    before = newest_complete(run)
    write_mark(before.directory, before.unique_id)
    after = newest_complete(run)
    assert after == before
    assert verify(after).report.is_sound


@pytest.mark.skipif(shutil.which("curl") is None, reason="needs curl")
@pytest.mark.parametrize("place", ["checkpoint-100/model_state", "checkpoint-100", "plain"])
def test_the_recipe_for_curl_makes_the_same_event(tmp_path: Path, receiver: Receiver, place: str) -> None:
    [recipe] = re.findall(r"```sh\n(.*?)```", (DOCS / "announce.md").read_text(), re.DOTALL)
    directory = tmp_path / place
    directory.mkdir(parents=True)
    (directory / "0_3.distcp").write_bytes(b"tensors")
    environment = os.environ | {"PREFECT_API_URL": receiver.url}
    command = ["sh", "-c", recipe, "announce.sh", str(directory), "3"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    [(path, _, [event])] = receiver.requests
    assert path == "/api/events"
    ours = announcing.event_of(str(directory), 3, 0)
    assert event | {"occurred": ""} == ours | {"occurred": ""}
    assert current_event(str(directory), 3) == event
    assert len(event["occurred"]) == len(ours["occurred"])


def test_the_callback_for_paddleformers(
    alone: Path, version: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a stand-in for the base class alone: PaddleFormers is not a dependency of these tests."""
    trainer = types.ModuleType("paddleformers.trainer")
    trainer.TrainerCallback = object  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "paddleformers", types.ModuleType("paddleformers"))
    monkeypatch.setitem(sys.modules, "paddleformers.trainer", trainer)
    monkeypatch.setitem(sys.modules, "announce", announcing)
    monkeypatch.setenv("PREFECT_API_URL", receiver.url)
    optimizer = shutil.copytree(version, version.parent / "optimizer_state")
    example: dict[str, Any] = {}
    exec((DOCS / "examples" / "paddleformers_callback.py").read_text(), example)
    args = types.SimpleNamespace(output_dir=str(version.parents[1]))
    for rank in range(RANKS):
        monkeypatch.setenv("PADDLE_TRAINER_ID", str(rank))
        example["AnnounceSaves"]().on_save(args, types.SimpleNamespace(global_step=100), None, model=None)
        assert flush(10)
    paths = [event["payload"]["path"] for _, _, [event] in receiver.requests]
    assert paths == [str(version), str(optimizer)]


# Prefect itself.


@pytest.fixture(scope="module")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The API of a server of its own, since an event needs one that listens."""
    home = tmp_path_factory.mktemp("prefect")
    url = closed_port()
    environment = os.environ | {"PREFECT_HOME": str(home), "PREFECT_SERVER_UI_ENABLED": "false"}
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1", "--port"]
    with (home / "log").open("wb") as log:
        server = subprocess.Popen([*command, url.split(":")[2].split("/")[0]], env=environment, stdout=log, stderr=log)
    try:
        end = time.monotonic() + 180
        while not answers(f"{url}/health"):
            assert server.poll() is None, (home / "log").read_text()
            assert time.monotonic() < end, (home / "log").read_text()
            time.sleep(0.5)
        yield url
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def post(url: str, document: object) -> Any:
    request = urllib.request.Request(url, json.dumps(document).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.loads(answer.read() or "null")


def stored(url: str, name: str) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = post(f"{url}/events/filter", {"filter": {"event": {"name": [name]}}})["events"]
    return events


@pytest.mark.prefect_server
def test_prefect_takes_the_event_once_and_a_trigger_matches_it(prefect_server: str, version: Path) -> None:
    trigger = {
        "type": "event",
        "posture": "Reactive",
        "expect": ["ckpt.version.written"],
        "match": {"prefect.resource.id": f"ckpt.version.{version.parents[1]}/*", "ckpt.component": "model_state"},
        "threshold": 1,
        "within": 0,
    }
    post(f"{prefect_server}/automations/", {"name": "merge", "trigger": trigger, "actions": [{"type": "do-nothing"}]})
    time.sleep(2)  # until the server's triggers know of it
    assert announce(version, 0, url=prefect_server, rank=0)
    assert flush(20)
    assert announce(version, 0, url=prefect_server, rank=0)  # the same event again
    assert flush(20)
    ours = current_event(str(version), 0)
    assert ours is not None
    end = time.monotonic() + 60
    while not (
        stored(prefect_server, "ckpt.version.written") and stored(prefect_server, "prefect.automation.triggered")
    ):
        assert time.monotonic() < end
        time.sleep(0.5)
    [event] = stored(prefect_server, "ckpt.version.written")
    assert (event["id"], event["payload"], event["resource"]) == (ours["id"], ours["payload"], ours["resource"])
    [triggered] = stored(prefect_server, "prefect.automation.triggered")
    assert ours["id"] in json.dumps(triggered)
