"""A ``{unique_id}.metadata`` file: one pickled ``Metadata``, as Paddle 2.6.2 to 3.3.1 and its develop branch write it.

Owns what the file must hold and of what type. Whether pieces, files and shapes fit together is ``rules.index``'s.
"""

from __future__ import annotations

from typing import Any, Final

from ckptcore.errors import DamagedFile
from ckptcore.formats.allowance import Allowance
from ckptcore.formats.metadata_records import KEY_CLASS, MODULES, PIECE_CLASS, RECORDS, Unfit, record_of
from ckptcore.formats.pickle_values import Global, Instance, Pairs, as_text, describe
from ckptcore.formats.pickles import read_pickle
from ckptcore.formats.reader import Reader
from ckptcore.formats.spelled_records import SpelledRecords
from ckptcore.rules.issues import Issue
from ckptcore.rules.metadata import Metadata, PieceKey, PieceRecord, PlaceKey, StoredPieces

GLOBALS: Final = frozenset(Global(module, name) for module in MODULES for name in ("Metadata", PIECE_CLASS, KEY_CLASS))


def parse_metadata(reader: Reader, name: str) -> Metadata:
    """What the metadata file ``name`` says. Fields that Paddle's releases lack or add are passed over.

    Raises DamagedFile with every issue found.
    """
    root = read_pickle(reader, name, GLOBALS, SpelledRecords())
    return _Findings(name, reader.size_bytes).metadata(root)


class _Findings:
    """The issues of one file, collected while its values are made into the domain's."""

    def __init__(self, name: str, size_bytes: int) -> None:
        self._name = name
        self._allowance = Allowance(name, size_bytes)
        self._issues: list[Issue] = []

    def _report(self, what: str, expected: str, found: str) -> None:
        self._issues.append(Issue(self._name, what, expected, found, code="metadata-field"))

    def metadata(self, root: Any) -> Metadata:
        fields = self._fields(root)
        tensors = self._tensors(self._entries(fields, "state_dict_metadata"))
        storage = self._storage(self._pairs(fields, "storage_metadata"))
        has_nesting = fields.get("flat_mapping") is not None
        nested_keys = self._nested_keys(self._entries(fields, "flat_mapping")) if has_nesting else {}
        if self._issues:
            raise DamagedFile(f"{self._name} is not the metadata of a checkpoint", self._issues)
        return Metadata(tensors, storage, nested_keys)

    def _fields(self, root: Any) -> dict[str, Any]:
        if type(root) is not Instance or root.cls.name != "Metadata" or type(root.state) is not Pairs:
            self._report("the file's one object", "Paddle's Metadata", describe(root))
            raise DamagedFile(f"{self._name} is not the metadata of a checkpoint", self._issues)
        return self._unique(root.state.entries(), "field")

    def _unique(self, entries: list[tuple[Any, Any]], kind: str) -> dict[str, Any]:
        """The entries by text; a key that is none or occurs twice is an issue."""
        found: dict[str, Any] = {}
        for key, value in entries:
            text = as_text(key)
            if text is None:
                self._report(f"a {kind}", "text", describe(key))
            elif text in found:
                self._report(f"{kind} {describe(text)}", "it once", "it twice")
            else:
                found[text] = value
        return found

    def _entries(self, fields: dict[str, Any], name: str) -> list[tuple[Any, Any]]:
        return self._pairs(fields, name).entries()

    def _pairs(self, fields: dict[str, Any], name: str) -> Pairs:
        value = fields.get(name)
        if type(value) is Pairs:
            return value
        self._report(name, "a dict", describe(value) if name in fields else "no such field")
        return Pairs()

    def _tensors(self, entries: list[tuple[Any, Any]]) -> dict[str, tuple[PieceRecord, ...]]:
        tensors: dict[str, tuple[PieceRecord, ...]] = {}
        lists_seen: set[int] = set()
        for key, records in self._unique(entries, "tensor").items():
            # A list under many keys would make a small file stand for any number of pieces.
            if type(records) is not list or id(records) in lists_seen:
                self._report(f"tensor {describe(key)}", "a list of its pieces", describe(records))
                continue
            lists_seen.add(id(records))
            if not set(map(type, records)) <= {PieceRecord}:
                where = f"tensor {describe(key)}, piece"
                records = [self._record(record, PIECE_CLASS, where, i) for i, record in enumerate(records)]
            tensors[key] = tuple(records)
        return tensors

    def _storage(self, entries: Pairs) -> dict[str, StoredPieces]:
        files: dict[str, str] = {}
        places_of: dict[str, list[PlaceKey]] = {}
        files_of: dict[str, list[str]] = {}
        characters = 0
        for i in range(0, len(entries), 2):
            key, file = entries[i], entries[i + 1]
            if type(key) is not PieceKey or type(file) is not str:
                key, file = self._record(key, KEY_CLASS, "storage_metadata, entry", i // 2), as_text(file)
                if file is None:
                    self._report(f"storage_metadata, entry {i // 2}", "a file's name", describe(entries[i + 1]))
                if key is None or file is None:
                    continue
            tensor_key, place = key
            characters += len(tensor_key) + len(file)
            if tensor_key not in places_of:
                places_of[tensor_key], files_of[tensor_key] = [], []
            places_of[tensor_key].append(place)
            files_of[tensor_key].append(files.setdefault(file, file))
        self._allowance.charge(characters=characters)
        return {key: StoredPieces(tuple(places), tuple(files_of[key])) for key, places in places_of.items()}

    def _record(self, value: Any, cls: str, where: str, number: int) -> Any:
        if type(value) is RECORDS[cls]:
            return value
        if type(value) is not Instance or value.cls.name != cls:
            self._report(f"{where} {number}", f"a {cls}", describe(value))
            return None
        if type(value.state) is Pairs:
            self._allowance.charge(values=len(value.state))
        try:
            return record_of(value)
        except Unfit as unfit:
            self._report(f"{where} {number}: {unfit.what}", unfit.expected, unfit.found)
            return None

    def _nested_keys(self, entries: list[tuple[Any, Any]]) -> dict[str, tuple[str, ...]]:
        nested: dict[str, tuple[str, ...]] = {}
        for key, path in self._unique(entries, "flat_mapping key").items():
            parts: list[str | None] = [None]
            if type(path) in (tuple, list) and len(path) <= 1_000:
                self._allowance.charge(values=len(path))
                parts = [as_text(part) for part in path]
            texts = tuple(part for part in parts if part is not None)
            self._allowance.charge(characters=sum(map(len, texts)))
            if len(texts) < len(parts):
                self._report(f"flat_mapping of {describe(key)}", "the nested keys", describe(path))
            nested[key] = texts
        return nested
