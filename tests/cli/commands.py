"""The commands of the lifecycle and what their tests start from."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tests.builders import SavedCheckpoint
from tests.command import Outcome

Run = Callable[..., Outcome]
"""``ckpt`` with these arguments, in the test's directory."""

SAVED = (
    SavedCheckpoint()
    .tensor("model.w", np.arange(24, dtype="f4").reshape(6, 4), grid=(2, 2))
    .tensor("model.b", np.ones(6, "f4"), flat_parts=2)
    .tensor("model_ema.w", np.zeros(3, "f8"))
)
KEYS = ["model.b", "model.w", "model_ema.w"]

ON_A_SOURCE = [
    ("versions", "SOURCE"),
    ("latest", "SOURCE"),
    ("verify", "SOURCE"),
    ("plan", "SOURCE"),
    ("merge", "SOURCE", "merged"),
    ("run", "SOURCE", "registry", "--name", "tiny"),
]
ON_A_RESULT = [
    ("validate", "SOURCE"),
    ("expect", "SOURCE"),
    ("publish", "SOURCE", "registry", "--name", "tiny"),
    ("resolve", "SOURCE", "tiny"),
]


def command_id(command: tuple[str, ...]) -> str:
    return command[0]


def on(source: str, command: tuple[str, ...]) -> list[str]:
    return [source if word == "SOURCE" else word for word in command]
