"""A ``{rank}_{unique_id}.distcp`` file: one pickled dict of tensor key to ndarray, as ``paddle.save`` writes it.

Owns the dict's special entries and which arrays a tensor is joined from. Reads headers only, except that protocol 2
spells payloads as text whose length takes reading it.
"""

from __future__ import annotations

from typing import Any, Final

from ckptcore.errors import DamagedFile
from ckptcore.formats.allowance import Allowance
from ckptcore.formats.ndarrays import GLOBALS, ArrayReader, NoArray
from ckptcore.formats.pickle_values import Pairs, as_extents, as_text, describe
from ckptcore.formats.pickles import read_pickle
from ckptcore.formats.reader import Reader
from ckptcore.rules.issues import Issue
from ckptcore.rules.stored import RankFile, StoredArray

PARAMETER_NAMES: Final = "StructuredToParameterName@@"

SLICED: Final = "UnpackBigParamInfor@@"
"""At protocols 2 and 3 ``paddle.save`` cuts the flattening of a tensor over 1 GiB into entries of their own, which this
entry lists: ``{key: {"OriginShape": shape, "slices": [entry, …]}}`` (``_unpack_saved_dict`` of Paddle 2.0 to 3.3)."""


def parse_rank_file(reader: Reader, name: str) -> RankFile:
    """The arrays in the rank file ``name``, in file order, and the parameter names that it records.

    Raises DamagedFile with every issue found.
    """
    root = read_pickle(reader, name, GLOBALS)
    return _Findings(reader, name).rank_file(root)


class _Findings:
    """The issues of one file, collected while its values are made into the domain's."""

    def __init__(self, reader: Reader, name: str) -> None:
        self._name = name
        self._allowance = Allowance(name, reader.size_bytes)
        self._arrays = ArrayReader(reader, name)
        self._issues: list[Issue] = []

    def _report(self, what: str, expected: str, found: str) -> None:
        self._issues.append(Issue(self._name, what, expected, found, code="rank-file"))

    def rank_file(self, root: Any) -> RankFile:
        arrays: dict[str, StoredArray] = {}
        names: dict[str, str] = {}
        sliced: dict[str, Any] = {}
        for key, value in self._entries("the file's one object", root).items():
            if key == PARAMETER_NAMES and type(value) is Pairs:
                names = self._parameter_names(value)
            elif key == SLICED and type(value) is Pairs:
                sliced = self._entries(SLICED, value)
            else:
                try:
                    arrays[key] = self._arrays.array(value)
                except NoArray as no:
                    self._report(f"tensor {describe(key)}: {no.what}", no.expected, no.found)
        if not self._issues:
            self._join(arrays, sliced)
        if self._issues:
            raise DamagedFile(f"{self._name} is no rank file that can be used", self._issues)
        return RankFile(arrays, names)

    def _entries(self, what: str, value: Any) -> dict[str, Any]:
        """The dict's entries by text; a key that is none or occurs twice is an issue."""
        if type(value) is not Pairs:
            self._report(what, "a dict", describe(value))
            return {}
        self._allowance.charge(values=len(value))
        found: dict[str, Any] = {}
        for key, entry in value.entries():
            text = as_text(key)
            if text is None:
                self._report(f"{what}: a key", "text", describe(key))
            elif text in found:
                self._report(f"{what}: key {describe(text)}", "it once", "it twice")
            else:
                found[text] = entry
        return found

    def _parameter_names(self, value: Pairs) -> dict[str, str]:
        names: dict[str, str] = {}
        for key, entry in self._entries(PARAMETER_NAMES, value).items():
            text = as_text(entry)
            if text is None:
                self._report(f"{PARAMETER_NAMES} of {describe(key)}", "a parameter's name", describe(entry))
            else:
                self._allowance.charge(characters=len(text))
                names[key] = text
        return names

    def _join(self, arrays: dict[str, StoredArray], sliced: dict[str, Any]) -> None:
        """Put each sliced tensor in the place of its slices."""
        for key, value in sliced.items():
            what = f"sliced tensor {describe(key)}"
            fields = self._entries(what, value)
            shape, slices = as_extents(fields.get("OriginShape")), fields.get("slices")
            if shape is None or type(slices) is not list or not slices:
                named = ", ".join(map(describe, [*fields][:8]))
                self._report(what, "its OriginShape and its slices", named or "nothing")
                continue
            self._allowance.charge(values=len(slices))
            entries = [as_text(entry) for entry in slices]
            parts = [arrays.pop(entry, None) if entry is not None else None for entry in entries]
            whole = _joined(shape, [part for part in parts if part is not None and len(part.shape) == 1])
            if whole is None or None in parts or key in arrays:
                self._report(what, "its slices, each once, 1-D and as long together as its shape says", "others")
            else:
                arrays[key] = whole


def _joined(shape: tuple[int, ...], parts: list[StoredArray]) -> StoredArray | None:
    """The tensor whose flattening the 1-D ``parts`` are; None where they are not all of it or differ in dtype."""
    if len({part.dtype for part in parts}) != 1:
        return None
    segments = tuple(segment for part in parts for segment in part.segments)
    whole = StoredArray(shape, parts[0].dtype, False, segments)
    return whole if whole.payload_bytes == whole.expected_bytes else None
