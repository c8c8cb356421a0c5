"""Which devices a host has, which of them a step may use, and which it gets.

Pure arithmetic on names. A device is named as ``nvidia-smi`` counts it (``"0"``), a part of one as NVIDIA names it
(``"MIG-…"``). Where a host has none, its CPU stands in as its one device, so that nothing else has to know. Finding
devices out and claiming them is ``ckptcore.devices``' work.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

DEVICE_LIMITS = "gpu:"
"""How the names of the limits of all hosts begin."""
CPU = "cpu"
_PARTS = "MIG-"


@dataclass(frozen=True, slots=True)
class Devices:
    """``host`` are all devices of the host, ``visible`` those that this process may use, in its order of preference."""

    host: tuple[str, ...]
    visible: tuple[str, ...]

    @property
    def slots(self) -> int:
        """How many steps that ask for one device the host can hold at a time."""
        return max(1, len(self.host))

    @property
    def usable(self) -> tuple[str, ...]:
        """What a step can get: the visible devices, or the CPU where there is none."""
        return self.visible or (CPU,)

    def claims(self, gpus: int) -> int:
        """How many devices a step gets that asks for ``gpus``; the CPU stands in for any number.

        Raises ValueError where there are devices, and fewer than that.
        """
        if not self.visible:
            return 1
        if gpus > len(self.visible):
            raise ValueError(f"expected {gpus} devices, found {len(self.visible)}: {', '.join(self.visible)}")
        return gpus


def device_limit(host: str) -> str:
    """The global concurrency limit that has a slot for each device of ``host``."""
    return f"{DEVICE_LIMITS}{host}"


def devices_of(host: Sequence[str], named: str | None, uuids: Mapping[str, str]) -> Devices:
    """The devices of a host where ``CUDA_VISIBLE_DEVICES`` is ``named``, None where it is not set.

    As the driver reads it, the first entry that names no device ends the list, and a device is taken once. A UUID may
    be cut short where it is still of one device only; ``uuids`` gives the UUID of each device where it is known.
    """
    if named is None:
        return Devices(tuple(host), tuple(host))
    visible: list[str] = []
    for entry in named.split(","):
        device = _device(entry.strip(), host, uuids)
        if device is None or device in visible:
            break
        visible.append(device)
    return Devices(tuple(host), tuple(visible))


def _device(entry: str, host: Sequence[str], uuids: Mapping[str, str]) -> str | None:
    if entry.isdecimal():
        index = str(int(entry))
        return index if index in host else None
    if entry.startswith(_PARTS):
        return entry if uuids else None  # which devices have parts, only the driver knows
    matches = [device for device in host if entry and uuids.get(device, "").startswith(entry)]
    return matches[0] if len(matches) == 1 else None


def allotted(usable: Sequence[str], taken: Collection[str], wanted: int) -> tuple[str, ...]:
    """The first ``wanted`` of the devices that nobody has taken; fewer where there are fewer."""
    return tuple([device for device in usable if device not in taken][:wanted])
