"""Slots for the devices of a host, on the server: who waits for a device is seen to wait, by everybody.

The locks on the host stand behind them, so that no two steps are ever on one device, whatever the server says.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ckptcore.devices import DeviceHost, host_name, no_slots
from ckptcore.rules.devices import Devices, device_limit
from tasks.artifacts import is_in_task_run
from tasks.slots import slots


def device_host(indexes: tuple[int, ...] | None) -> DeviceHost:
    """How steps get devices here. ``indexes`` are those that the host is said to have, None for what NVML finds."""
    return DeviceHost(indexes, _slots if is_in_task_run() else no_slots)


def _slots(devices: Devices, count: int) -> AbstractContextManager[None]:
    return slots(device_limit(host_name()), size=devices.slots, count=count)
