"""What verification found: pure data, printable, JSON. The checks are in ``index``, ``coverage`` and ``agreement``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

from ckptcore.rules.issues import Issue
from ckptcore.rules.versions import Version, VersionState, state_of


class FileState(StrEnum):
    """``missing`` where nothing has the name, ``damaged`` where what has it is no regular file or is at fault."""

    SOUND = "sound"
    MISSING = "missing"
    DAMAGED = "damaged"


@dataclass(frozen=True, slots=True)
class FileFinding:
    """One file that the version needs. ``size_bytes`` is None where it is missing or no file; ``sha256`` of the
    whole file is empty where payloads were not read."""

    name: str
    state: FileState
    size_bytes: int | None = None
    sha256: str = ""

    def to_json(self) -> dict[str, object]:
        return {
            "name": self.name,
            "state": self.state.value,
            "size_bytes": self.size_bytes,
            "sha256": self.sha256 or None,
        }


@dataclass(frozen=True, slots=True)
class NonFinite:
    """How many elements of a float or complex tensor are no numbers or infinite."""

    key: str
    nan_count: int
    inf_count: int

    def to_json(self) -> dict[str, object]:
        return {"key": self.key, "nan": self.nan_count, "inf": self.inf_count}


@dataclass(frozen=True, slots=True)
class DeepFindings:
    """What reading every payload showed: tensors with NaN or Inf, sorted by key, and how many tensors and replicas were
    looked at. Replicas that differ are issues of the report."""

    non_finite: tuple[NonFinite, ...]
    floats_checked: int
    replicas_compared: int

    def to_json(self) -> dict[str, object]:
        return {
            "floats_checked": self.floats_checked,
            "non_finite": [found.to_json() for found in self.non_finite],
            "replicas_compared": self.replicas_compared,
        }


@dataclass(frozen=True, slots=True)
class VerificationReport:
    """All that is known about one version. ``issues`` refuse it, ``notes`` do not.

    ``tensor_count`` is what the metadata names, ``tensor_bytes`` the unsharded size of those that were found whole.
    ``deep`` is None where only headers were read.
    """

    version: Version
    files: tuple[FileFinding, ...]
    tensor_count: int
    tensor_bytes: int
    issues: tuple[Issue, ...]
    notes: tuple[Issue, ...]
    deep: DeepFindings | None = None

    @property
    def is_sound(self) -> bool:
        return not self.issues

    @property
    def state(self) -> VersionState:
        return state_of(self.issues)

    def to_json(self) -> dict[str, object]:
        """The report as a JSON document."""
        return self.version.to_json() | {
            "state": self.state.kind.value,
            "is_sound": self.is_sound,
            "tensors": self.tensor_count,
            "tensor_bytes": self.tensor_bytes,
            "files": [found.to_json() for found in self.files],
            "issues": [issue.to_json() for issue in self.issues],
            "notes": [note.to_json() for note in self.notes],
            "deep": None if self.deep is None else self.deep.to_json(),
        }

    def lines(self) -> Iterator[str]:
        """The report for people: :meth:`summary`, then the issues."""
        yield from self.summary()
        for issue in self.issues:
            yield f"  issue: {issue}"

    def summary(self) -> Iterator[str]:
        """The verdict, counts and bytes, what payloads showed, and the notes."""
        file_bytes = sum(found.size_bytes or 0 for found in self.files)
        yield f"{self.version.label} in {self.version.directory}: {self.state.kind.value}"
        yield f"  {self.tensor_count:,} tensors, {self.tensor_bytes:,} bytes"
        yield f"  {len(self.files):,} files, {file_bytes:,} bytes"
        for found in self.files:
            if found.sha256:
                yield f"  {found.sha256}  {found.name}"
        if self.deep is not None:
            yield (
                f"  {self.deep.floats_checked:,} float tensors read, {len(self.deep.non_finite):,} with NaN or Inf; "
                f"{self.deep.replicas_compared:,} replicas compared"
            )
            for tensor in self.deep.non_finite:
                yield f"  tensor {tensor.key!r}: {tensor.nan_count:,} NaN, {tensor.inf_count:,} Inf"
        for note in self.notes:
            yield f"  note: {note}"
