"""Devices on paper: what a host has, what an environment hides, and who gets which."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.rules.devices import CPU, Devices, allotted, device_limit, devices_of

HOSTS = st.integers(0, 9).map(lambda count: tuple(map(str, range(count))))
UUIDS = {"0": "GPU-aa11", "1": "GPU-ab22", "2": "GPU-bb33"}


@pytest.mark.parametrize(
    ("named", "visible"),
    [
        (None, ("0", "1", "2")),
        ("", ()),
        ("2,0", ("2", "0")),
        (" 1 , 02", ("1", "2")),
        ("1,-1,0", ("1",)),
        ("0,7,1", ("0",)),
        ("0,0,1", ("0",)),
        ("NoDevFiles", ()),
        ("GPU-bb33,GPU-aa", ("2", "0")),
        ("GPU-a", ()),
        ("GPU-cc", ()),
        ("1,,2", ("1",)),
        ("MIG-77,MIG-88", ("MIG-77", "MIG-88")),
    ],
)
def test_what_the_environment_hides(named: str | None, visible: tuple[str, ...]) -> None:
    assert devices_of(("0", "1", "2"), named, UUIDS) == Devices(("0", "1", "2"), visible)


def test_names_that_only_a_driver_knows_are_none_of_simulated_devices() -> None:
    assert devices_of(("0", "1"), "GPU-aa11,0", {}).visible == ()
    assert devices_of(("0", "1"), "1,MIG-77", {}).visible == ("1",)


@given(HOSTS, st.text("0123456789,- GPUMIG", max_size=20))
def test_nothing_is_visible_twice_or_not_there(host: tuple[str, ...], named: str) -> None:
    devices = devices_of(host, named, {})
    assert len(set(devices.visible)) == len(devices.visible)
    assert set(devices.visible) <= set(host)
    assert devices.slots == max(1, len(host))


@given(HOSTS, st.integers(1, 12))
def test_a_step_gets_what_it_asks_for_or_is_refused(host: tuple[str, ...], gpus: int) -> None:
    devices = Devices(host, host)
    if not host:
        assert (devices.claims(gpus), devices.usable) == (1, (CPU,))
    elif gpus > len(host):
        with pytest.raises(ValueError, match=f"expected {gpus} devices, found {len(host)}"):
            devices.claims(gpus)
    else:
        assert (devices.claims(gpus), devices.usable) == (gpus, host)


@given(HOSTS, st.sets(st.integers(0, 9).map(str)), st.integers(0, 10))
def test_whoever_comes_next_gets_none_that_is_taken(host: tuple[str, ...], taken: set[str], wanted: int) -> None:
    given = allotted(host, taken, wanted)
    assert not set(given) & taken
    assert len(given) == min(wanted, len(set(host) - taken))
    assert list(given) == [device for device in host if device in given]


@given(HOSTS, st.lists(st.tuples(st.integers(1, 3), st.booleans()), max_size=30))
def test_any_order_of_coming_and_going_keeps_every_device_with_one(
    host: tuple[str, ...], events: list[tuple[int, bool]]
) -> None:
    held: list[tuple[str, ...]] = []
    for wanted, leaves in events:
        if leaves and held:
            held.pop(wanted % len(held))
        taken = [device for each in held for device in each]
        given = allotted(host, taken, wanted)
        if len(given) == wanted:
            held.append(given)
        everything = [device for each in held for device in each]
        assert len(everything) == len(set(everything)) <= len(host)


def test_limits_are_named_after_their_host() -> None:
    assert device_limit("node-7") == "gpu:node-7"
