"""Where the rank files of one step lie, where the marks of its trainer, and how a version there looks right now."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass

from ckptcore.rules.fingerprint import Fingerprint
from ckptcore.rules.layout import COMPONENTS, metadata_name
from ckptcore.rules.versions import Listing, choose_component
from ckptcore.rules.watching import Sighting
from ckptcore.storage.local import Directories, fingerprint


@dataclass(frozen=True, slots=True)
class Place:
    """The component, its directory with its listing, and the listing that holds the marks."""

    component: str | None
    directory: str
    listing: Listing
    marks: Listing


def place_of(directory: str, component: str | None, directories: Directories) -> Place | None:
    """The place in a step, a component of one, or a directory of rank files; None where there is nothing yet.

    Raises :class:`StorageError` where it cannot be read, and :class:`VersionNotFound` where it leaves a choice.
    """
    listing = directories.listing(directory)
    if listing is None:
        return None
    parent, name = os.path.split(directory)
    if name in COMPONENTS and not listing.components:
        return Place(name, directory, listing, directories.listing(parent) or Listing())
    if component is not None and component not in listing.components:
        return None
    chosen = choose_component(listing.places, component, directory)
    if chosen is None:
        return Place(None, directory, listing, listing)
    files = os.path.join(directory, chosen)
    return Place(chosen, files, directories.listing(files) or Listing(), listing)


def sighted(place: Place, unique_id: int) -> tuple[Sighting, Fingerprint]:
    """The version as it is now, its marks included, and the stamps of its files alone. Raises StorageError."""
    listing, marks = place.listing, place.marks
    files = fingerprint(place.directory, [*listing.rank_files.get(unique_id, ()), metadata_name(unique_id)])
    record = hashlib.sha256(files.digest.encode())
    said = (sorted(marks.saved_ranks), marks.saving_ranks, marks.is_marked_done, unique_id in listing.reserved_ids)
    record.update(repr((said, unique_id in listing.finished_ids)).encode())
    by_signals = (bool(marks.saved_ranks) or marks.is_marked_done) and not marks.saving_ranks
    return Sighting(record.hexdigest(), by_signals or unique_id in listing.finished_ids), files
