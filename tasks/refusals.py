"""How a refusal looks in Prefect's logs: its sentence, without the stack trace that only a bug deserves."""

from __future__ import annotations

import logging

from ckptcore.errors import CheckpointError

_RUN_LOGGERS = ("prefect.flow_runs", "prefect.task_runs")


class _WithoutTrace(logging.Filter):
    """Takes the stack trace off records about a :class:`CheckpointError`; other exceptions keep theirs."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], CheckpointError):
            record.exc_info = record.exc_text = None
        return True


_FILTER = _WithoutTrace()


def log_refusals_without_trace() -> None:
    """Let the loggers of Prefect's runs, console and server alike, show a refusal as one line. Safe to call again."""
    for name in _RUN_LOGGERS:
        logging.getLogger(name).addFilter(_FILTER)
