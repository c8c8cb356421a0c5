"""The options of the gates that a release must pass before an alias moves to it."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ckptcore.rules.gates import GateOptions, check_function


class OutputCheck(StrEnum):
    """What ``--check`` takes for an output, of which nobody knows any more what was selected."""

    GPU = "gpu"


class Check(StrEnum):
    """What ``--check`` takes."""

    GPU = "gpu"
    PADDLE = "paddle"


def _checked_function(text: str | None) -> str | None:
    try:
        return text if text is None else check_function(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


CheckOutput = Annotated[
    OutputCheck | None,
    typer.Option("--check", help="Load every tensor on the GPU with Paddle first; on the CPU where there is none."),
]
Checks = Annotated[
    list[Check] | None,
    typer.Option(
        "--check",
        help="gpu: load every tensor on the GPU with Paddle first, on the CPU where there is none; "
        "paddle: merge with Paddle's own loader there too, and compare; may be repeated.",
    ),
]
Smoke = Annotated[
    str | None,
    typer.Option(
        "--smoke",
        metavar="MODULE:FUNCTION",
        callback=_checked_function,
        help="A function of your own that must accept the release's directory first.",
    ),
]
SmokeTimeout = Annotated[int, typer.Option("--smoke-timeout", min=1, metavar="SECONDS", help="How long it may take.")]
SmokeGpus = Annotated[
    int, typer.Option("--smoke-gpus", min=0, metavar="N", help="How many devices it gets for itself; 0: it sees all.")
]
SignKey = Annotated[
    Path | None, typer.Option("--sign-key", metavar="KEY.PEM", help="Sign the release with this private key.")
]


def gate_options_of(
    checks: Sequence[str], smoke: str | None, smoke_timeout: int, smoke_gpus: int, sign_key: Path | None
) -> GateOptions:
    """The options as one value."""
    return GateOptions(
        check=Check.GPU in checks,
        engine=Check.PADDLE in checks,
        smoke=smoke,
        smoke_timeout_seconds=smoke_timeout,
        smoke_gpus=smoke_gpus,
        sign_key=None if sign_key is None else str(sign_key),
    )
