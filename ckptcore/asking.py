"""On whose behalf something is done, where that is not who runs the process: recorded with each act."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PERSON = ContextVar("ckpt_asked_by", default="")


def asked_by() -> str:
    """Who asked for what is done now, "" where nobody did."""
    return _PERSON.get()


@contextmanager
def asked_for(person: str) -> Iterator[None]:
    """While the block runs, every act is recorded as asked for by ``person``."""
    token = _PERSON.set(person)
    try:
        yield
    finally:
        _PERSON.reset(token)
