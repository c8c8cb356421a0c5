"""What the marks of ``ckptcore.save_state_dict`` say of a version: still being saved, or finished and whole since.

Reads the marks and the sizes of the files that they promise; what they mean is ``rules.save_marks``'s.
"""

from __future__ import annotations

from ckptcore.errors import DamagedFile, StorageError
from ckptcore.rules.issues import Issue
from ckptcore.rules.save_marks import (
    LOST_FILE,
    Completion,
    check_completion,
    completion_mark_name,
    saving_mark_name,
)
from ckptcore.rules.versions import STILL_SAVING, Listing, Version
from ckptcore.storage.local import GONE, LocalReader, fingerprint


def save_issues(version: Version, listing: Listing) -> tuple[Issue, ...]:
    """Why the save of the version, whose directory is ``listing``, is not finished or not whole any more.

    Nothing where its writer leaves no such marks. Raises :class:`StorageError` where the mark cannot be read.
    """
    if version.unique_id in listing.reserved_ids:
        what = f"is still being saved, or its save failed: {saving_mark_name(version.unique_id)} exists"
        return (Issue(version.label, what, code=STILL_SAVING),)
    if version.unique_id not in listing.finished_ids:
        return ()
    name = completion_mark_name(version.unique_id)
    try:
        with LocalReader(version.directory, name) as reader:
            completion = Completion.from_json(reader.read_at(0, reader.size_bytes))
    except DamagedFile as error:
        return (Issue(name, error.message, code=LOST_FILE),)
    except StorageError as error:
        if error.errno in GONE:
            return ()  # the trainer is deleting the step
        raise
    found = fingerprint(version.directory, [file.name for file in completion.files])
    return check_completion(completion, {stamp.name: stamp.size_bytes for stamp in found.files})
