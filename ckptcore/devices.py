"""Claim devices of this host: no two steps on one, whatever becomes of a server's slots or of who claimed them.

A claim is a kernel lock on a file for each device. Its descriptors are inherited by the step's process, so that a
device is free when both the claimer and the step are gone, however they went. Whoever waits longest for several
devices is not overtaken: one at a time gathers, the others wait behind. Which device is whose is ``rules.devices``'.
"""

from __future__ import annotations

import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path

from ckptcore.errors import Busy, DevicesMissing, StorageError
from ckptcore.rules.devices import CPU, Devices, allotted, devices_of
from ckptcore.storage.refusals import reported

LOCKS_VARIABLE = "CKPT_DEVICE_LOCKS"
"""Names the directory of the lock files, for containers that share devices and no other directory."""
HOST_VARIABLE = "CKPT_HOST"
"""Names this host on a server, where containers have names of their own."""
PATIENCE_SECONDS = 6 * 3600.0
"""Longer than any step takes: then somebody holds a device who does not work on it."""
_QUEUE = "queue"
_LOCKS_NAME = "ckpt-devices"
_POLL_SECONDS = 0.1
_VISIBLE = "CUDA_VISIBLE_DEVICES"
_DRIVER = Path("/proc/driver/nvidia/gpus")

Slots = Callable[[Devices, int], AbstractContextManager[None]]
"""What is held around a claim of so many devices: the slots of a server, say."""


def no_slots(devices: Devices, count: int) -> AbstractContextManager[None]:  # noqa: ARG001 - a Slots
    """For those who have no server."""
    return nullcontext()


@dataclass(frozen=True, slots=True)
class DeviceHost:
    """How steps get devices here. ``indexes`` are those that the host is said to have, None for what NVML finds."""

    indexes: tuple[int, ...] | None = None
    slots: Slots = no_slots

    @contextmanager
    def claimed(self, gpus: int) -> Iterator[Claim]:
        """Hold ``gpus`` devices, or the CPU in their place where there is none, while the block runs.

        Raises :class:`DevicesMissing` where there are fewer, and :class:`Busy` where none becomes free for hours.
        """
        devices = devices_here(self.indexes)
        count = _count(devices, gpus)
        with self.slots(devices, count), _held(devices.usable, count, PATIENCE_SECONDS) as claim:
            yield claim


@dataclass(frozen=True, slots=True)
class Claim:
    """Devices that are held until ``descriptors`` are closed, here and in every process that inherited them."""

    devices: tuple[str, ...]
    descriptors: tuple[int, ...]

    @property
    def told(self) -> str:
        """The devices, for people."""
        return CPU if CPU in self.devices else f"device {' and '.join(self.devices)}"

    def environment(self) -> dict[str, str]:
        """What lets a process see these devices and no others."""
        shown = ",".join(device for device in self.devices if device != CPU)
        return {_VISIBLE: shown, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}


def host_name() -> str:
    """What this host is called on a server."""
    return os.environ.get(HOST_VARIABLE) or socket.gethostname()


def devices_here(indexes: Sequence[int] | None = None) -> Devices:
    """The devices of this host: ``indexes`` where given, else what NVML finds; ``CUDA_VISIBLE_DEVICES`` hides some.

    Raises :class:`DevicesMissing` where there is a driver that cannot be asked.
    """
    uuids: dict[str, str] = {}
    if indexes is None:
        uuids = _asked()
    host = tuple(uuids) if indexes is None else tuple(str(index) for index in indexes)
    return devices_of(host, os.environ.get(_VISIBLE), uuids)


def require_devices(gpus: int, indexes: Sequence[int] | None) -> None:
    """Raise :class:`DevicesMissing` where this host has some devices, and fewer than ``gpus``."""
    _count(devices_here(indexes), gpus)


def _count(devices: Devices, gpus: int) -> int:
    try:
        return devices.claims(gpus)
    except ValueError as error:
        raise DevicesMissing(f"{host_name()} has too few devices: {error}") from error


def _asked() -> dict[str, str]:
    """The UUID of each device by its index, in the order of the bus; empty where there is no driver."""
    try:
        import pynvml
    except ImportError as error:
        if _DRIVER.is_dir() and any(_DRIVER.iterdir()):
            message = (
                "this host has NVIDIA devices, which cannot be counted: pip install nvidia-ml-py, or set gpu_devices"
            )
            raise DevicesMissing(message) from error
        return {}
    try:
        pynvml.nvmlInit()
    except (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded):
        return {}
    except pynvml.NVMLError as error:
        raise DevicesMissing(f"the NVIDIA driver cannot be asked for its devices: {error}") from error
    try:
        handles = [pynvml.nvmlDeviceGetHandleByIndex(index) for index in range(pynvml.nvmlDeviceGetCount())]
        return {str(index): str(pynvml.nvmlDeviceGetUUID(handle)) for index, handle in enumerate(handles)}
    except pynvml.NVMLError as error:
        raise DevicesMissing(f"the NVIDIA driver cannot be asked for its devices: {error}") from error
    finally:
        pynvml.nvmlShutdown()


def locks_directory() -> Path:
    """Where the lock files of this host lie, for every user of it: under ``/run/lock`` where all may write there."""
    named = os.environ.get(LOCKS_VARIABLE)
    if named:
        return Path(named)
    shared = Path("/run/lock")
    try:
        mode = shared.stat().st_mode
    except OSError:
        mode = 0
    # The choice must not depend on who asks, or two users would look in two places.
    for_all = stat.S_ISVTX | stat.S_IWOTH
    return (shared if mode & for_all == for_all else Path("/tmp")) / _LOCKS_NAME  # noqa: S108 - made safely below


@contextmanager
def _held(usable: Sequence[str], count: int, patience_s: float) -> Iterator[Claim]:
    """Hold ``count`` of the devices. Raises :class:`Busy` where they are not free in time."""
    directory = _made(locks_directory())
    end = time.monotonic() + patience_s
    with ExitStack() as gathered:
        with ExitStack() as turn:
            _wait(end, lambda: _lock(turn, directory / _QUEUE) is not None, directory)
            held: dict[str, int] = {}

            def gather() -> bool:
                # Who has the turn keeps what it gets: nobody else gathers, so that nobody can wait for it in a circle.
                for device in allotted(usable, held, len(usable)):
                    descriptor = _lock(gathered, directory / device.replace("/", "-"))
                    if descriptor is not None:
                        held[device] = descriptor
                    if len(held) == count:
                        return True
                return False

            _wait(end, gather, directory)
        in_order = sorted(held, key=usable.index)
        yield Claim(tuple(in_order), tuple(held[device] for device in in_order))


def _wait(end: float, is_done: Callable[[], bool], directory: Path) -> None:
    while not is_done():
        if time.monotonic() > end:
            raise Busy(f"no device became free; `fuser {directory}/*` tells who holds them")
        time.sleep(_POLL_SECONDS)


def _made(directory: Path) -> Path:
    with reported("cannot make", directory):
        try:
            directory.mkdir(parents=True)
            directory.chmod(0o1777)
        except FileExistsError:
            pass
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise StorageError(f"{directory} is in the way: expected a directory")
    return directory


def _lock(holder: ExitStack, path: Path) -> int | None:
    """The descriptor of the file's lock, closed by ``holder``; None where another process has it."""
    with reported("cannot lock", path):
        descriptor = _opened(path)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return None
        except BaseException:
            os.close(descriptor)
            raise
    holder.callback(os.close, descriptor)
    return descriptor


def _opened(path: Path) -> int:
    """The file at ``path``, made if missing, and never removed: removing a lock file races.

    A kernel may forbid to open another user's file in such a directory with the flag that would make it.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    while True:
        try:
            return os.open(path, flags)
        except FileNotFoundError:
            try:
                descriptor = os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                continue
            # Whatever the umask: other users open it to lock it.
            os.fchmod(descriptor, 0o644)
            return descriptor
