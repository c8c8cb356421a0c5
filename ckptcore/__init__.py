"""Turn what Paddle's distributed training writes into what serving loads.

The walk of the data, one verb a step::

    from ckptcore import newest_complete, verify, require_sound, plan, merge, validate, publish

    version = newest_complete("output")              # detect: the newest version that is whole
    verified = require_sound(verify(version))        # verify: every file, piece, shape and dtype, headers only
    todo = plan(verified.checkpoint)                 # pure data: print it before a byte moves
    merge(todo, "merged")                            # one streaming pass, whole or not at all
    report = validate("merged")                      # re-read as a consumer would
    publish("merged", "registry", "llama")           # an immutable release, then the alias

:func:`run` is all of it in one call, straight into the registry. :func:`load_merged_state_dict` and
:func:`load_state_dict` stand in for Paddle's functions of those names. Training
code calls :func:`announce`, or :func:`save_state_dict`, which saves without overwriting. Names load when they are first
used: importing this package imports neither numpy nor Paddle nor Prefect.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckptcore.aliasing import promote, rollback
    from ckptcore.announcing import announce
    from ckptcore.auditing import audit
    from ckptcore.detecting import inspect, list_versions, newest_complete
    from ckptcore.differing import diff
    from ckptcore.errors import CheckpointError
    from ckptcore.leasing import is_leased, lease
    from ckptcore.lifecycle import Choice, run
    from ckptcore.loading import load_merged_state_dict, load_state_dict
    from ckptcore.mappings import mapping
    from ckptcore.merging import merge, plan
    from ckptcore.pinning import pin, unpin
    from ckptcore.publishing import publish
    from ckptcore.registry import resolve
    from ckptcore.retaining import prune
    from ckptcore.rules.output_layout import OutputLayout
    from ckptcore.rules.retention import KeepEvery, KeepLast, KeepNewerThan
    from ckptcore.rules.selection import Selection
    from ckptcore.saving import save_state_dict
    from ckptcore.validating import require_valid, validate
    from ckptcore.verifying import require_sound, verify

_HOMES = {
    "CheckpointError": "errors",
    "Choice": "lifecycle",
    "KeepEvery": "rules.retention",
    "KeepLast": "rules.retention",
    "KeepNewerThan": "rules.retention",
    "OutputLayout": "rules.output_layout",
    "Selection": "rules.selection",
    "announce": "announcing",
    "audit": "auditing",
    "diff": "differing",
    "inspect": "detecting",
    "is_leased": "leasing",
    "lease": "leasing",
    "list_versions": "detecting",
    "load_merged_state_dict": "loading",
    "load_state_dict": "loading",
    "mapping": "mappings",
    "merge": "merging",
    "newest_complete": "detecting",
    "pin": "pinning",
    "plan": "merging",
    "promote": "aliasing",
    "prune": "retaining",
    "publish": "publishing",
    "require_sound": "verifying",
    "require_valid": "validating",
    "resolve": "registry",
    "rollback": "aliasing",
    "run": "lifecycle",
    "save_state_dict": "saving",
    "unpin": "pinning",
    "validate": "validating",
    "verify": "verifying",
}

__all__ = [
    "CheckpointError",
    "Choice",
    "KeepEvery",
    "KeepLast",
    "KeepNewerThan",
    "OutputLayout",
    "Selection",
    "announce",
    "audit",
    "diff",
    "inspect",
    "is_leased",
    "lease",
    "list_versions",
    "load_merged_state_dict",
    "load_state_dict",
    "mapping",
    "merge",
    "newest_complete",
    "pin",
    "plan",
    "promote",
    "prune",
    "publish",
    "require_sound",
    "require_valid",
    "resolve",
    "rollback",
    "run",
    "save_state_dict",
    "unpin",
    "validate",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return __all__
