"""The ``ckpt`` command: each step of the lifecycle, and all of it, from a shell.

Exit status 0 done, 1 refused (the checkpoint, the release or the disk is at fault), 2 usage, 130 Ctrl-C. With
``--json`` stdout is one JSON document; people's text and the issues, one a line, go to stderr. Commands import what
they need when they run: ``ckpt --help`` loads neither numpy nor Prefect.
"""

from __future__ import annotations

import io
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ckptcore.cli import keys, release, source

# isort: split
# Commands are listed in the order in which their modules are loaded: the lifecycle, then what keeps a registry, and
# what runs it by itself.
from ckptcore.cli import dashboard, inspect, operate, pipeline, training
from ckptcore.cli.app import app, complain, print_json
from ckptcore.errors import CheckpointError

__all__ = ["app", "dashboard", "inspect", "keys", "main", "operate", "pipeline", "release", "source", "training"]


def main() -> None:
    """Run the command line. A refusal is printed, never raised."""
    _prepare_streams()
    try:
        with _interruptible():
            status = _status()
        sys.stdout.flush()
    except OSError as error:
        # What is left must go somewhere, or the interpreter's own last flush fails too.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if isinstance(error, BrokenPipeError):
            status = 128 + signal.SIGPIPE  # the reader has left, as in ``ckpt plan … | head``
        else:
            complain(f"ckpt: cannot write to stdout: {error.strerror}")
            status = 1
    raise SystemExit(status)


def _prepare_streams() -> None:
    """Whatever the shell and its locale: help and JSON are UTF-8, a path is its bytes, and a closed stream swallows."""
    sys.stdout = sys.stdout or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115 - for as long as the process lives
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")


class _Interrupted(BaseException):
    """A signal asks for the end. No KeyboardInterrupt, which typer would keep to itself."""

    def __init__(self, number: int) -> None:
        self.number = number


@contextmanager
def _interruptible() -> Iterator[None]:
    """Ctrl-C, a scheduler's SIGTERM and a terminal that closes unwind the command, so that it clears up.

    One that the shell has set to be ignored (``nohup``) stays so.
    """

    def interrupt(number: int, _: object) -> None:
        raise _Interrupted(number)

    asked = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in asked if signal.getsignal(number) != signal.SIG_IGN}
    for number in before:
        signal.signal(number, interrupt)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _status() -> int | str | None:
    try:
        app(prog_name="ckpt")
    except _Interrupted as stop:
        complain(f"ckpt: interrupted by {signal.Signals(stop.number).name}; what was not finished is not visible")
        return 128 + stop.number
    except SystemExit as stop:
        if isinstance(stop.__context__, BrokenPipeError):
            raise stop.__context__ from None  # typer turned it into status 1, which means a refusal here
        return stop.code
    except CheckpointError as error:
        _refuse(error)
    except BrokenPipeError:
        raise
    except OSError as error:
        # Whatever the storage layer did not foresee is still a sentence, not a stack trace.
        _refuse(CheckpointError(f"{error.filename or 'the system refused'}: {error.strerror or error}"))
    return 1


def _refuse(error: CheckpointError) -> None:
    if "--json" in sys.argv[1:]:
        issues = [issue.to_json() for issue in error.issues]
        print_json({"error": type(error).__name__, "message": error.message, "issues": issues})
    complain(f"ckpt: {error.message}")
    for issue in error.issues:
        complain(f"  {issue}")
