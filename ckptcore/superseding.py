"""Whether a source holds a version that is newer than one, and whole.

A look lists names; a version is verified when a look shows it for the first time, and then when it has changed and
changes no more, so that one which is being written is not read again and again. What becomes of the older one is the
flow's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace

from ckptcore.reconciling import fingerprint_of
from ckptcore.rules.layout import step_name
from ckptcore.rules.versions import Version, newest_first
from ckptcore.storage.local import Directories
from ckptcore.verifying import verify


class Lookout:
    """Looks for versions newer than ``version`` in ``source``, of the same component. Not for several threads at
    once."""

    def __init__(self, source: str, version: Version) -> None:
        self._version = version
        self._is_run = version.step is not None and os.path.realpath(source) == version.run
        self._seen: dict[tuple[str, int], str] = {}
        self._judged: dict[tuple[str, int], tuple[str, bool]] = {}

    def newer(self) -> Iterator[tuple[Version, str]]:
        """The newer versions that are whole, the newest first, each with the digest of its files. Raises
        :class:`StorageError` where the source cannot be read."""
        directories = Directories()
        for version in newest_first(self._listed(directories)):
            digest = fingerprint_of(version, directories)
            place = (version.directory, version.unique_id)
            is_settled = self._seen.get(place) == digest
            self._seen[place] = digest
            if place not in self._judged or (is_settled and self._judged[place][0] != digest):
                self._judged[place] = (digest, verify(version).report.state.is_complete)
            if self._judged[place] == (digest, True):
                yield version, digest

    def _listed(self, directories: Directories) -> Iterator[Version]:
        this = self._version
        here = directories.listing(this.directory)
        for unique_id in () if here is None else here.unique_ids:
            if unique_id > this.unique_id:
                yield replace(this, unique_id=unique_id)
        if this.step is None or not self._is_run:
            return
        run = directories.listing(this.run)
        for step in () if run is None else run.steps:
            if step <= this.step:
                continue
            place = os.path.join(this.run, step_name(step))
            files = place if this.component is None else os.path.join(place, this.component)
            marks, held = directories.listing(place), directories.listing(files)
            if marks is None or held is None:
                continue
            for unique_id in held.unique_ids:
                yield replace(
                    this, step=step, unique_id=unique_id, directory=files, marks=this.marks.with_those_of(marks)
                )
