"""The steps of a flow run, timed, and shown in Prefect when the run is over, however it ends."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ckptcore.rules.pictures import step_times
from ckptcore.rules.sizes import format_duration
from ckptcore.steps import StepRecord, recorded
from tasks.artifacts import artifact_key, show_picture


@contextmanager
def steps_shown(run: str, name: str) -> Iterator[StepRecord]:
    """Record the steps of the block as one ``run``, and show what they took as a picture of the flow run."""
    with recorded(run) as record:
        try:
            yield record
        finally:
            steps = record.steps
            if steps:
                seconds = max(step.started_seconds + step.seconds for step in steps)
                picture = step_times(f"{name}: what each step took", steps)
                show_picture(artifact_key("steps", name), picture, f"{format_duration(seconds)} in all")
