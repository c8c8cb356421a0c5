"""How a run of the lifecycle ends that did not publish: refused for good, not yet, or stopped for a newer version.

The state's name says which, so that whoever is alerted and whoever tries again can tell it from a fault.
"""

from __future__ import annotations

from typing import Any

from prefect.states import Completed, Failed

from ckptcore.errors import CheckpointError
from ckptcore.rules.pipeline import REFUSED
from tasks.retrying import is_final

NOT_YET = "NotYet"
NOT_PASSED = "NotPassed"
SUPERSEDED = "Superseded"


def ended_by(refusal: CheckpointError) -> Any:
    """The failed state of a run that the refusal ends; raises it again where the same may be granted later.

    A flow returns it in the place of its value: who calls the flow gets the refusal raised, never the state.
    """
    if not is_final(refusal):
        raise refusal
    return Failed(name=REFUSED, message=f"{type(refusal).__name__}: {refusal}", data=refusal)


def not_passed(refusal: CheckpointError) -> Any:
    """The failed state of a run of gates alone. The flow that waits for it ends by the refusal, and alerts of that.

    A flow returns it in the place of its value.
    """
    return Failed(name=NOT_PASSED, message=f"{type(refusal).__name__}: {refusal}", data=refusal)


def not_yet(refusal: CheckpointError) -> Any:
    """The state of a run that an early announcement started, or the second run of a version: nothing is wrong, and
    reconcile comes back to the version unless it is published by then.

    A flow returns it in the place of its value, and who calls the flow gets None.
    """
    return Completed(name=NOT_YET, message=f"{refusal}\nreconcile comes back to it")


def superseded_by(newer: CheckpointError) -> Any:
    """The state of a run that stopped for a newer version: nothing is wrong, and nothing comes back to it.

    A flow returns it in the place of its value, and who calls the flow gets None.
    """
    return Completed(name=SUPERSEDED, message=str(newer))
