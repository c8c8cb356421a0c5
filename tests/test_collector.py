"""Python's search for cycles is paused for as long as anybody needs it paused, and runs again afterwards."""

from __future__ import annotations

import gc
from threading import Event, Thread

import pytest

from ckptcore.collector import collector_paused


def test_it_runs_again_when_the_last_block_ends() -> None:
    assert gc.isenabled()
    with collector_paused():
        with collector_paused():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()


def test_it_runs_again_after_an_error() -> None:
    with pytest.raises(ValueError, match="x"), collector_paused():
        raise ValueError("x")
    assert gc.isenabled()


def test_threads_do_not_end_each_others_pauses() -> None:
    inside, leave = Event(), Event()

    def hold() -> None:
        with collector_paused():
            inside.set()
            leave.wait()

    thread = Thread(target=hold)
    thread.start()
    inside.wait()
    with collector_paused():
        pass
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_who_has_it_off_keeps_it_off() -> None:
    gc.disable()
    try:
        with collector_paused():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()
