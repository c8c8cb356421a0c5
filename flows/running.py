"""Run the flow once from a command, with or without a Prefect server.

Without one, Prefect starts a temporary server for the run and keeps its records in ``PREFECT_HOME``. Prefect is
imported only after it was told to send nothing anywhere; an environment that says otherwise is left as it is.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ckptcore.errors import InvalidName, PrefectUnavailable
from ckptcore.rules.gates import GateOptions

if TYPE_CHECKING:
    from uuid import UUID

    from ckptcore.lifecycle import Choice
    from ckptcore.pipeline import SourceChoice
    from ckptcore.publishing import Published

_ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # Its first start makes a database, which takes a busy machine longer than the 20 seconds that Prefect waits for.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
}
_RECORDING_SECONDS = 10.0
_QUIET_SECONDS = 1.0
_POLL_SECONDS = 0.1


def run_as_flow(
    choice: Choice,
    registry: str | os.PathLike[str],
    name: str,
    *,
    alias: str,
    attach: Sequence[str | os.PathLike[str]] = (),
    expect: str | os.PathLike[str] | None = None,
    gates: GateOptions = GateOptions(),
) -> Published:
    """What :func:`ckptcore.run` does, as a run of the flow. Raises what refused it; the run is then failed."""
    _require_text(choice.source, registry, *attach, expect, choice.layout.hf, gates.sign_key)
    for setting, value in _ENVIRONMENT.items():
        os.environ.setdefault(setting, value)
    if home := os.environ.get("PREFECT_HOME"):
        # Prefect makes only the last directory of the path, and without its home it cannot start its server.
        os.makedirs(os.path.expanduser(home), exist_ok=True)
    from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

    from ckptcore.pipeline import CheckSettings
    from flows.merge_and_publish import merge_and_publish

    has_server = bool(PREFECT_API_URL.value())
    # Nobody watches for the heartbeats of a run whose server ends with it, and stopping them takes a second.
    settings = {} if has_server else {PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with temporary_settings(settings), _faults_of_the_server():
        state = merge_and_publish(
            source=_source(choice, attach, expect),
            registry=os.path.abspath(registry),
            name=name,
            alias=alias,
            step=choice.step,
            unique_id=choice.unique_id,
            checks=CheckSettings.of(
                replace(gates, sign_key=None if gates.sign_key is None else os.path.abspath(gates.sign_key))
            ),
            return_state=True,
        )
        if not has_server and state.state_details.flow_run_id is not None:
            _wait_until_recorded(state.state_details.flow_run_id)
    published: Published = state.result()
    return published


def _require_text(*paths: str | os.PathLike[str] | None) -> None:
    """Refuse what a server cannot keep: it holds the parameters of a run as JSON."""
    for path in [os.path.abspath(each) for each in paths if each is not None]:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise InvalidName(f"{path!r} is no UTF-8, which Prefect needs; without --flow it is published") from error


def _source(
    choice: Choice, attach: Sequence[str | os.PathLike[str]], expect: str | os.PathLike[str] | None
) -> SourceChoice:
    """The choice as the flow takes it, with absolute paths, so that a retry from elsewhere means the same."""
    from ckptcore.pipeline import SourceChoice

    selection, layout = choice.selection, choice.layout
    return SourceChoice(
        path=os.path.abspath(choice.source),
        component=choice.component,
        prefixes=selection.prefixes,
        keep_prefix=selection.keep_prefix,
        include=selection.include,
        exclude=selection.exclude,
        # The statements themselves, not their file.
        map=None if layout.map is None else layout.map.to_document(),
        hf=None if layout.hf is None else os.path.abspath(layout.hf),
        dtype=layout.dtype,
        keep_dtype=layout.keep_dtype,
        expectations=None if expect is None else os.path.abspath(expect),
        max_shard_size=str(choice.max_shard_bytes),
        attach=tuple(os.path.abspath(path) for path in attach),
    )


@contextmanager
def _faults_of_the_server() -> Iterator[None]:
    """What fails the flow is in its state; what comes out of the call is that Prefect has no server to run it with."""
    try:
        yield
    except RuntimeError as error:
        raise PrefectUnavailable(f"the flow was not run: {error}") from error


def _wait_until_recorded(flow_run_id: UUID) -> None:
    """Wait until the temporary server has written down the task runs, which it does a little after they are over.

    It is stopped when this process exits; what it has not recorded by then is lost, and it complains on the terminal.
    """
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
    from prefect.events.worker import EventsWorker

    EventsWorker.drain_all(at_exit=False)
    runs = FlowRunFilter(id=FlowRunFilterId(any_=[flow_run_id]))
    recorded, quiet_since, deadline = 0, time.monotonic(), time.monotonic() + _RECORDING_SECONDS
    with get_client(sync_client=True) as client:
        while time.monotonic() < min(deadline, quiet_since + _QUIET_SECONDS):
            found = client.read_task_runs(flow_run_filter=runs)
            if len(found) != recorded or not all(run.state is not None and run.state.is_final() for run in found):
                recorded, quiet_since = len(found), time.monotonic()
            time.sleep(_POLL_SECONDS)
