"""The ``ckpt`` command: each step of the lifecycle, and all of it, from a shell.

Exit status 0 done, 1 refused (the checkpoint, the release or the disk is at fault), 2 usage. With ``--json`` stdout
is one JSON document; people's text and the issues, one a line, go to stderr. Commands import what they need when they
run: ``ckpt --help`` loads neither numpy nor Prefect.
"""

from __future__ import annotations

import json
import sys

from ckptcore.cli import release, source
from ckptcore.cli.app import app
from ckptcore.errors import CheckpointError

__all__ = ["app", "main", "release", "source"]


def main() -> None:
    """Run the command line. A refusal is printed, never raised."""
    try:
        app(prog_name="ckpt")
    except CheckpointError as error:
        _refuse(error)
    except OSError as error:
        # Whatever the storage layer did not foresee is still a sentence, not a stack trace.
        _refuse(CheckpointError(f"{error.filename or 'ckpt'}: {error.strerror or error}"))


def _refuse(error: CheckpointError) -> None:
    if "--json" in sys.argv[1:]:
        issues = [issue.to_json() for issue in error.issues]
        print(json.dumps({"error": type(error).__name__, "message": error.message, "issues": issues}))
    print(f"ckpt: {error.message}", file=sys.stderr)
    for issue in error.issues:
        print(f"  {issue}", file=sys.stderr)
    raise SystemExit(1)
