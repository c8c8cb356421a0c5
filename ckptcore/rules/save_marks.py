"""Which unique_id a save takes, and the two marks that tell a save under way from a finished one.

Owns the marks' names, the document in the second, and the choice of the id. Paddle's own choice is to overwrite the
newest save in place (3.0 to 3.3.1, where no id is given), which this exists to prevent.

``{unique_id}.saving`` is made before the first byte is written, and with it the id is taken; ``{unique_id}.complete``
after the last rank's last byte is on disk, and then the first mark goes. A save that fails leaves the first: its
version will never be complete.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ckptcore.errors import DamagedFile
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.json_documents import parse_json
from ckptcore.rules.layout import parse_metadata_lock_name, parse_metadata_name, parse_rank_file_name

COMPLETION_SCHEMA = 1
LOST_FILE = "lost-file"
"""A file of a save that was finished is gone, or no longer what was written."""

# A number has one spelling, as in `layout`.
_MARK = re.compile(r"(0|[1-9][0-9]{0,17})\.(saving|complete|announced)")


SAVING = "saving"
COMPLETE = "complete"


class MarkName(NamedTuple):
    """What the name of a mark says: of which save, and what about it (``saving``, ``complete``, ``announced``)."""

    unique_id: int
    kind: str


def parse_mark_name(name: str) -> MarkName | None:
    """``{unique_id}.saving``, ``.complete`` or ``.announced`` taken apart, or None."""
    mark = _MARK.fullmatch(name)
    return None if mark is None else MarkName(int(mark[1]), mark[2])


def saving_mark_name(unique_id: int) -> str:
    return f"{unique_id}.saving"


def completion_mark_name(unique_id: int) -> str:
    return f"{unique_id}.complete"


def taken_ids(names: Iterable[str]) -> frozenset[int]:
    """The unique_ids of which a directory's names tell anything: a file, a lock or a mark."""
    return frozenset(unique_id for unique_id in map(_unique_id, names) if unique_id is not None)


def next_id(taken: Iterable[int]) -> int:
    """One above the highest id that is taken; 0 where none is."""
    return max(taken, default=-1) + 1


def _unique_id(name: str) -> int | None:
    rank_file = parse_rank_file_name(name)
    if rank_file is not None:
        return rank_file.unique_id
    mark = parse_mark_name(name)
    if mark is not None:
        return mark.unique_id
    metadata = parse_metadata_name(name)
    return parse_metadata_lock_name(name) if metadata is None else metadata


@dataclass(frozen=True, slots=True, order=True)
class WrittenFile:
    """A file of a finished save, by its plain name."""

    name: str
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Completion:
    """What ``{unique_id}.complete`` says: every file of the save, sorted by name, and how large each was."""

    unique_id: int
    files: tuple[WrittenFile, ...]

    def to_json(self) -> bytes:
        files = [{"name": file.name, "size_bytes": file.size_bytes} for file in self.files]
        document = {"schema": COMPLETION_SCHEMA, "unique_id": self.unique_id, "files": files}
        return json.dumps(document, indent=1).encode() + b"\n"

    @classmethod
    def from_json(cls, data: bytes) -> Completion:
        """Raises :class:`DamagedFile` where ``data`` is no such document."""
        try:
            document: Any = parse_json(data)
            if document["schema"] != COMPLETION_SCHEMA:
                raise ValueError(f"schema {document['schema']!r}, expected {COMPLETION_SCHEMA}")
            files = [WrittenFile(_text(file["name"]), _count(file["size_bytes"])) for file in document["files"]]
            return cls(_count(document["unique_id"]), tuple(sorted(files)))
        except (ValueError, KeyError, TypeError) as error:
            raise DamagedFile(f"is no completion mark: {error!r}") from error


def check_completion(completion: Completion, found: Mapping[str, int | None]) -> tuple[Issue, ...]:
    """What a finished save has lost: ``found`` is the size of each file that is here now."""
    issues = []
    for file in completion.files:
        size_bytes = found.get(file.name)
        expected = f"{file.size_bytes:,} bytes"
        if size_bytes is None:
            issues.append(Issue(file.name, "was written, and is gone", expected, code=LOST_FILE))
        elif size_bytes != file.size_bytes:
            what = "is not as large as it was written"
            issues.append(Issue(file.name, what, expected, f"{size_bytes:,} bytes", LOST_FILE))
    return in_order(issues)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise TypeError(f"{value!r} is no count")
    return value
