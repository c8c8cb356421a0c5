"""The options of the gates that a release must pass before an alias moves to it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ckptcore.rules.gates import GateOptions, check_function


class CheckedDevice(StrEnum):
    """What ``--check`` takes."""

    GPU = "gpu"


def _checked_function(text: str | None) -> str | None:
    try:
        return text if text is None else check_function(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


Check = Annotated[
    CheckedDevice | None,
    typer.Option("--check", help="Load every tensor on the GPU with Paddle first; on the CPU where there is none."),
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
SignKey = Annotated[
    Path | None, typer.Option("--sign-key", metavar="KEY.PEM", help="Sign the release with this private key.")
]


def gate_options_of(
    check: CheckedDevice | None, smoke: str | None, smoke_timeout: int, sign_key: Path | None
) -> GateOptions:
    """The options as one value."""
    return GateOptions(check is not None, smoke, smoke_timeout, None if sign_key is None else str(sign_key))
