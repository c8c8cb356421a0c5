"""Claims of devices on one host: never two steps on one, whoever is killed, and every device free in the end."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path

import pytest

from ckptcore import devices
from ckptcore.devices import DeviceHost, devices_here, host_name, locks_directory, require_devices
from ckptcore.errors import Busy, DevicesMissing, StorageError
from ckptcore.rules.devices import CPU, Devices
from ckptcore.storage.commit import is_locked
from tests.command import REPOSITORY
from tests.device_steps import DEVICES

SIMULATED = DeviceHost(tuple(range(DEVICES)))
STEPS = 12


Start = Callable[..., subprocess.Popen[bytes]]


@pytest.fixture(autouse=True)
def own_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CKPT_DEVICE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return tmp_path / "locks"


@pytest.fixture
def start(own_locks: Path) -> Iterator[Start]:
    """Starts processes that claim devices, and leaves none behind."""
    started = []

    def starting(*arguments: object) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.device_steps", *map(str, arguments)],
            cwd=REPOSITORY,
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        )
        started.append(process)
        return process

    yield starting
    for process in started:
        process.kill()
        process.wait()


def eventually(holds: Callable[[], object], *, within_s: float = 30) -> None:
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def group_of(leader: int) -> set[int]:
    """Who is in the process group, by /proc."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(fields[2]) == leader:
            found.add(int(entry.name))
    return found


def test_steps_of_many_processes_share_no_device_whoever_is_killed(start: Start, tmp_path: Path) -> None:
    journal, chance = tmp_path / "journal", random.Random(11)
    wanted = [1 + number % 3 for number in range(STEPS)]
    waiting, running, kills = list(wanted), list[tuple[subprocess.Popen[bytes], int]](), 0
    while waiting or running:
        while waiting and len(running) < 6:
            gpus = waiting.pop()
            running.append((start("claim", journal, gpus, 0.4), gpus))
        time.sleep(chance.uniform(0.1, 0.3))
        if kills < 8 and running:
            victim, _ = chance.choice(running)
            if victim.poll() is None:
                victim.send_signal(signal.SIGKILL)
                kills += 1
        for process, gpus in list(running):
            if process.poll() is not None:
                running.remove((process, gpus))
                if process.returncode:
                    assert process.returncode == -signal.SIGKILL
                    waiting.append(gpus)
    assert kills == 8
    lines = [line.split() for line in journal.read_text().splitlines()]
    assert not [line for line in lines if line[0] == "SHARED"]
    spans: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for _, device, pid, began in (line for line in lines if line[0] == "start"):
        ends = [float(line[3]) for line in lines if line[:3] == ["end", device, pid]]
        spans[device] += [(float(began), end) for end in ends]
    assert sum(map(len, spans.values())) >= sum(wanted)
    assert set(spans) == {str(index) for index in range(DEVICES)}
    for each in spans.values():
        each.sort()
        assert all(end <= began for (_, end), (began, _) in pairwise(each))
    with SIMULATED.claimed(DEVICES) as everything:  # nobody kept anything
        assert len(everything.devices) == DEVICES


def test_who_is_killed_takes_the_step_and_all_it_started_along(start: Start, tmp_path: Path) -> None:
    holder = start("hold", tmp_path / "pids")
    eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
    step, child = map(int, (tmp_path / "pids").read_text().split())
    holder.kill()
    holder.wait()
    eventually(lambda: not is_alive(step) and not is_alive(child))
    with DeviceHost((0,)).claimed(1):
        pass


def test_a_step_that_outlives_everybody_keeps_its_device(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    holder = start("hold", tmp_path / "pids")
    eventually(lambda: (tmp_path / "pids").exists() and (tmp_path / "pids").read_text())
    step, child = map(int, (tmp_path / "pids").read_text().split())
    [keeper] = group_of(step) - {step, child}
    os.kill(keeper, signal.SIGKILL)
    eventually(lambda: not is_alive(keeper))
    holder.kill()
    holder.wait()
    assert is_alive(step)
    with monkeypatch.context() as impatient:
        impatient.setattr(devices, "PATIENCE_SECONDS", 0.0)
        with pytest.raises(Busy, match="no device became free"), DeviceHost((0,)).claimed(1):
            pass
    os.killpg(step, signal.SIGKILL)
    with DeviceHost((0,)).claimed(1):
        assert not is_alive(step)


def test_who_waits_for_all_is_not_overtaken_for_ever(own_locks: Path) -> None:
    order: list[str] = []

    def take(name: str, gpus: int) -> None:
        with SIMULATED.claimed(gpus):
            order.append(name)

    with SIMULATED.claimed(1):
        large = threading.Thread(target=take, args=("large", DEVICES))
        large.start()
        eventually(
            lambda: (own_locks / "queue").exists() and is_locked(own_locks / "queue") and is_locked(own_locks / "3")
        )
        small = threading.Thread(target=take, args=("small", 1))
        small.start()
        time.sleep(0.5)  # long enough to be overtaken in
        assert order == []
    large.join()
    small.join()
    assert order == ["large", "small"]


def test_what_a_step_sees(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,1")
    assert devices_here(range(DEVICES)) == Devices(("0", "1", "2", "3"), ("3", "1"))
    with SIMULATED.claimed(1) as first, SIMULATED.claimed(1) as second:
        assert first.environment() == {"CUDA_VISIBLE_DEVICES": "3", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        assert second.devices == ("1",)
    with pytest.raises(DevicesMissing, match=rf"{host_name()} has too few devices: expected 3 devices, found 2: 3, 1"):
        require_devices(3, range(DEVICES))


def test_without_a_driver_the_cpu_stands_in() -> None:
    pytest.importorskip("pynvml")
    if Path("/proc/driver/nvidia").exists():
        pytest.skip("here is a driver")
    assert devices_here() == Devices((), ())
    for gpus in (1, 8):
        require_devices(gpus, None)
        with DeviceHost().claimed(gpus) as claimed:
            assert (claimed.devices, claimed.environment()["CUDA_VISIBLE_DEVICES"]) == ((CPU,), "")


def test_slots_are_held_around_a_claim_and_given_back_after_a_failure(own_locks: Path) -> None:
    seen: list[object] = []

    @contextmanager
    def slots(found: Devices, count: int) -> Iterator[None]:
        seen.append((found.slots, count))
        try:
            yield
        finally:
            seen.append("back")

    with pytest.raises(ZeroDivisionError), DeviceHost((0, 1, 2), slots).claimed(2):
        raise ZeroDivisionError
    assert seen == [(3, 2), "back"]


def test_locks_lie_where_every_user_looks(own_locks: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with SIMULATED.claimed(2):
        assert sorted(entry.name for entry in own_locks.iterdir()) == ["0", "1", "queue"]
    assert own_locks.stat().st_mode & 0o7777 == 0o1777
    assert {entry.stat().st_mode & 0o777 for entry in own_locks.iterdir()} == {0o644}
    monkeypatch.delenv("CKPT_DEVICE_LOCKS")
    assert locks_directory().name == "ckpt-devices"


def test_a_link_in_the_place_of_the_locks_is_refused(own_locks: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    own_locks.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError, match="is in the way"), SIMULATED.claimed(1):
        pass
