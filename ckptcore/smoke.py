"""Smoke test: call the user's own function on a release, in a process of its own, within a time.

Owns what the function is given and must leave alone; the process is ``apart``'s. What the function does is the user's.
"""

from __future__ import annotations

import os
import pkgutil
import sys
from pathlib import Path

from ckptcore.apart import run_apart
from ckptcore.devices import Claim
from ckptcore.errors import SmokeFailed
from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.issues import Issue
from ckptcore.storage.local import fingerprint
from ckptcore.storage.refusals import reported

RELEASE_VARIABLE = "CKPT_RELEASE_PATH"


def run_smoke_test(function: str, release: Path, *, timeout_seconds: float, claim: Claim | None = None) -> float:
    """Call ``function`` (``module:function``) with the directory ``release``; the seconds that it took.

    Modules are found as ``python -m`` finds them: in the working directory, ``PYTHONPATH`` and what is installed. With
    a ``claim`` it sees the claimed devices and no others. Raises :class:`SmokeFailed`, with the last lines of output as
    issues, where the function raises, returns False, ends the process with another status than 0, takes longer, or
    writes into the release. All that it started is killed.
    """
    before = _stamps(release)
    ended = run_apart(
        "ckptcore.smoke",
        [function, str(release)],
        environment={RELEASE_VARIABLE: str(release)} | ({} if claim is None else claim.environment()),
        descriptors=() if claim is None else claim.descriptors,
        timeout_seconds=timeout_seconds,
    )
    if ended.failure:
        raise SmokeFailed(f"smoke test {function} on {release} {ended.failure}", ended.output)
    written = set(before.files) ^ set(_stamps(release).files)
    if written:
        issues = [Issue(stamp.name, "was written, added or removed", code="smoke-wrote") for stamp in written]
        raise SmokeFailed(f"smoke test {function} wrote into {release}, which must stay as it was validated", issues)
    return ended.seconds


def _stamps(release: Path) -> Fingerprint:
    with reported("cannot list", release):
        names = os.listdir(release)
    return fingerprint(release, names)


def _call(function: str, release: str) -> None:
    result = pkgutil.resolve_name(function)(release)
    # numpy's bool of that name included; None, or a list of nothing wrong, is no refusal.
    if type(result).__name__ in ("bool", "bool_") and not result:
        sys.exit(f"{function} returned False")


if __name__ == "__main__":
    _call(*sys.argv[1:])
