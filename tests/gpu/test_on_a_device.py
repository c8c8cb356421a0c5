"""What is worth a machine with a GPU, in some minutes: counting, slots, both checks and a smoke test, on real devices.

Where there is none, all of it runs on the CPU.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from ckptcore import Choice, Selection, run
from ckptcore.apart import run_apart
from ckptcore.devices import DeviceHost, devices_here, host_name
from ckptcore.rules.devices import CPU
from ckptcore.rules.gates import GateOptions
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY
from tests.corpus import LLAMA_RUN

paddle = pytest.importorskip("paddle")

pytestmark = pytest.mark.gpu

HOST = devices_here()
HAS_GPU = bool(HOST.visible) and paddle.is_compiled_with_cuda()
DEVICE = "gpu:0" if HAS_GPU else "cpu"
MIB_EACH, TENSORS = 64, 4


def used_bytes() -> dict[str, int]:
    """The memory of each device that is in use, by any process; empty without devices."""
    if not HOST.host:
        return {}
    import pynvml

    pynvml.nvmlInit()
    try:
        handles = {device: pynvml.nvmlDeviceGetHandleByIndex(int(device)) for device in HOST.host}
        return {device: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used) for device, handle in handles.items()}
    finally:
        pynvml.nvmlShutdown()


def test_devices_are_counted() -> None:
    print(f"\n{host_name()}: host {HOST.host}, visible {HOST.visible}, Paddle {paddle.__version__} on {DEVICE}")
    listed = Path("/proc/driver/nvidia/gpus")
    assert len(HOST.host) == (len(list(listed.iterdir())) if listed.is_dir() else 0)
    for device in HOST.host:
        told = subprocess.run(
            [sys.executable, "-c", "from ckptcore.devices import devices_here; print(*devices_here().visible)"],
            env=os.environ | {"CUDA_VISIBLE_DEVICES": device, "PYTHONPATH": str(REPOSITORY)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert told.stdout.split() == [device]


@pytest.mark.parametrize("prefixes", [(), ("model",)], ids=["all", "model"])
def test_both_checks_on_the_llama_run(prefixes: tuple[str, ...], tmp_path: Path) -> None:
    selection = Selection(prefixes)
    gates = GateOptions(check=True, engine=True).gates(selection)
    published = run(Choice(str(LLAMA_RUN), selection=selection), tmp_path / "registry", "llama", gates=gates)
    check, engine = published.gates
    assert (check.by, engine.finding.split(" on ")[-1]) == (DEVICE, DEVICE)


def test_both_checks_on_tensors_that_take_time_and_leave_no_memory_behind(tmp_path: Path) -> None:
    random, saved = np.random.default_rng(0), SavedCheckpoint()
    for number in range(TENSORS):
        bits = random.integers(0, 2**16, (MIB_EACH * 512, 1024), dtype=np.uint16)
        saved = saved.tensor(f"layers.{number}.weight", bits, dtype="bfloat16", grid=(2, 1))
    source = str(write_trainer_run(tmp_path / "run", {1: saved}))
    before = used_bytes()
    for name, options in (("check", GateOptions(check=True)), ("engine", GateOptions(engine=True))):
        began = time.monotonic()
        [report] = run(Choice(source), tmp_path / "registry", name, gates=options.gates()).gates
        print(f"\n{name}: {report.finding}, with the merge {time.monotonic() - began:.1f} s")
    assert f"{TENSORS} tensors, {TENSORS * MIB_EACH << 20:,} bytes" in report.finding
    # Others may work on the devices meanwhile; ours would have left half a GiB or more.
    assert all(used - before[device] < 256 << 20 for device, used in used_bytes().items())


def sees_its_device(path: str) -> None:
    """Called as a smoke test: Paddle has just the one device, and can work on it."""
    count = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    assert count == (1 if os.environ["CUDA_VISIBLE_DEVICES"] else 0), count
    assert (paddle.ones([64, 64]) @ paddle.ones([64, 64])).sum().item() == 64**3


def test_a_smoke_test_sees_the_device_that_it_was_lent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    gates = GateOptions(smoke="tests.gpu.test_on_a_device:sees_its_device", smoke_gpus=1).gates()
    [report] = run(Choice(str(LLAMA_RUN)), tmp_path / "registry", "llama", gates=gates).gates
    assert report.finding.endswith(f"on {CPU if not HOST.visible else f'device {HOST.visible[0]}'}")


def test_more_steps_than_devices_share_none(tmp_path: Path) -> None:
    journal = tmp_path / "journal"

    def step(_: int) -> str:
        with DeviceHost().claimed(1) as claim:
            # The CPU has no number, and the oracle of the step wants one.
            environment = claim.environment() | ({} if HOST.visible else {"CUDA_VISIBLE_DEVICES": "0"})
            arguments = ["step", str(journal), "0.5"]
            return run_apart(
                "tests.device_steps", arguments, environment=environment, descriptors=claim.descriptors
            ).failure

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(step, range(2 * HOST.slots + 2))) == {""}
    assert "SHARED" not in journal.read_text()
    assert journal.read_text().count("start") == 2 * HOST.slots + 2
