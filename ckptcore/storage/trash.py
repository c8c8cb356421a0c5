"""Take a directory out of sight in one step, before its files go one by one.

What is in a trash directory has been given up: whoever empties it next finishes what a killed process left.
"""

from __future__ import annotations

import os
from pathlib import Path

from ckptcore.storage.commit import make_directory, remove_tree, sync_directory
from ckptcore.storage.refusals import reported


def throw_away(path: Path, trash: Path) -> None:
    """Move the directory ``path`` into ``trash`` (made where it is missing) under its own name, durably.

    Both lie on one file system, and ``trash`` holds nothing of that name: see :func:`thrown_away` and :func:`destroy`.
    """
    make_directory(trash)
    with reported("cannot take away", path):
        os.rename(path, trash / path.name)
    # Before any file goes: a crash of the machine must not bring back a directory that lacks some.
    sync_directory(trash)
    sync_directory(path.parent)


def thrown_away(trash: Path) -> tuple[str, ...]:
    """The names of what lies in the trash, sorted; none where there is no trash."""
    if not trash.is_dir():
        return ()
    with reported("cannot list", trash):
        return tuple(sorted(os.listdir(trash)))


def destroy(trash: Path, name: str) -> None:
    """Delete one thing in the trash for good."""
    remove_tree(trash / name)
