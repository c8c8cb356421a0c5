"""Steps of the lifecycle, measured where they happen: ``@verb("merge")`` on a function times it, and traces it too.

Each verb is marked once, and so the tasks, ``ckpt run`` and whoever calls the library tell the same story. A verb says
with :func:`tell` what it deals with; :func:`recorded` is the run around them, which keeps the times. What they add
up to is ``rules.steps``', how spans leave is ``tracing``'s.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ckptcore import tracing
from ckptcore.rules.steps import StepTime, VerbTotal, totals

if TYPE_CHECKING:
    from opentelemetry.trace import Span

_BYTES = "bytes"


class StepRecord:
    """The steps of one run that are over, from whichever thread they came."""

    def __init__(self) -> None:
        self._start = time.perf_counter()
        self._steps = list[StepTime]()
        self._mutex = threading.Lock()

    @property
    def steps(self) -> tuple[StepTime, ...]:
        with self._mutex:
            return tuple(self._steps)

    def totals(self) -> Mapping[str, VerbTotal]:
        """What each verb took until now."""
        return totals(self.steps)

    def add(self, opened: _Open, seconds: float, refusal: str) -> None:
        time_taken = StepTime(
            verb=opened.verb,
            started_seconds=opened.start - self._start,
            seconds=seconds,
            own_seconds=max(0.0, seconds - opened.within_seconds),
            size_bytes=int(opened.facts.get(_BYTES, 0)),
            refusal=refusal,
        )
        with self._mutex:
            self._steps.append(time_taken)


@dataclass(slots=True)
class _Open:
    verb: str
    start: float
    span: Span | None
    within_seconds: float = 0.0
    facts: dict[str, str | int | float] = field(default_factory=dict)


_open: ContextVar[_Open | None] = ContextVar("ckptcore_step", default=None)
_record: ContextVar[StepRecord | None] = ContextVar("ckptcore_record", default=None)


@contextmanager
def recorded(run: str) -> Iterator[StepRecord]:
    """Keep the times of the steps within the block, which are then the parts of one span, ``run``."""
    record = StepRecord()
    token = _record.set(record)
    try:
        with _opened(run):
            yield record
    finally:
        _record.reset(token)


@contextmanager
def verb(name: str) -> Iterator[None]:
    """Measure the block, or as a decorator each call of the function, as a step of whatever run is recorded."""
    refusal = ""
    outer = _open.get()
    with _opened(name) as opened:
        try:
            yield
        except BaseException as error:
            refusal = type(error).__name__
            raise
        finally:
            seconds = time.perf_counter() - opened.start
            if outer is not None:
                outer.within_seconds += seconds
            record = _record.get()
            if record is not None:
                record.add(opened, seconds, refusal)


def tell(**facts: str | int | float | None) -> None:
    """Say what the innermost step that goes on deals with; ``bytes`` are what it read or wrote. None says nothing."""
    opened = _open.get()
    if opened is not None:
        opened.facts |= {fact: value for fact, value in facts.items() if value is not None}


@contextmanager
def _opened(name: str) -> Iterator[_Open]:
    outer = _open.get()
    opened = _Open(name, time.perf_counter(), tracing.begin(f"ckpt.{name}", None if outer is None else outer.span))
    token = _open.set(opened)
    ended_by: BaseException | None = None
    try:
        yield opened
    except BaseException as error:
        ended_by = error
        raise
    finally:
        _open.reset(token)
        if opened.span is not None:
            tracing.end(opened.span, opened.facts, ended_by)
