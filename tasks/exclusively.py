"""One flow at a time merges a version, on any machine that works for the same server.

A slot of a global concurrency limit of the version's own. The registry's lock stands behind it, so that a server which
loses its slots costs a wait and no second merge.
"""

from __future__ import annotations

from contextlib import AbstractContextManager

from ckptcore.rules.pipeline import merge_limit
from ckptcore.rules.versions import Version
from tasks.slots import slots


def alone_with(version: Version, name: str) -> AbstractContextManager[None]:
    """Hold the slot of merging the version for ``name`` while the block runs."""
    return slots(merge_limit(name, version.directory, version.unique_id), size=1)
