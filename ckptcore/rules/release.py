"""Names in a registry: what a release is called, which names are allowed, and how ``NAME@ref`` is read.

A registry is ``REGISTRY/NAME/releases/RELEASE/`` with one relative symlink an alias, ``REGISTRY/NAME/ALIAS``, and the
record of all acts, ``REGISTRY/NAME/history.jsonl``. Entries that start with a dot are the registry's own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ckptcore.errors import InvalidName
from ckptcore.rules.json_documents import NotJson, parse_json
from ckptcore.rules.steps import VerbTotal, totals_of

RELEASES = "releases"
HISTORY = "history.jsonl"
DEFAULT_ALIAS = "latest"
_RELEASE = re.compile(r"(?:step-(0|[1-9][0-9]{0,17})_)?id-(0|[1-9][0-9]{0,17})_[0-9a-f]{12}")
_RESERVED = frozenset({RELEASES, HISTORY})
# File systems allow 255 bytes a name; staging and lock names add a few to it.
_MAX_NAME_BYTES = 200


def release_name(step: int | None, unique_id: int, identity: str) -> str:
    """The deterministic name of a release, ``step-10_id-0_3f2a91c0b7d4``; no step where the source has none."""
    version = f"id-{unique_id}" if step is None else f"step-{step}_id-{unique_id}"
    return f"{version}_{identity[:12]}"


@dataclass(frozen=True, slots=True)
class ReleaseName:
    """What the name of a release says of its source; ``step`` is None where the source has none."""

    step: int | None
    unique_id: int


def parse_release_name(name: str) -> ReleaseName | None:
    """A name that :func:`release_name` gives, taken apart, or None where it is no such name."""
    match = _RELEASE.fullmatch(name)
    return match and ReleaseName(int(match[1]) if match[1] else None, int(match[2]))


def check_name(name: str, what: str) -> str:
    """``name``, if it is safe as one directory entry and on a command line; else raises :class:`InvalidName`."""
    why = ""
    if not name:
        why = "is empty"
    elif name[0] in ".-":
        why = f"starts with {name[0]!r}"
    elif "/" in name or "@" in name or "\\" in name:
        why = "contains '/', '\\' or '@'"
    elif not name.isprintable():
        why = "contains a character that cannot be printed"
    elif name != name.strip():
        why = "starts or ends with a space"
    elif name in _RESERVED:
        why = "is reserved by the registry"
    elif len(name.encode(errors="surrogatepass")) > _MAX_NAME_BYTES:
        why = f"is longer than {_MAX_NAME_BYTES} bytes"
    if why:
        raise InvalidName(f"{what} {name!r} {why}")
    return name


def check_alias(alias: str) -> str:
    """``alias``, if it is a safe name and cannot be taken for a release's; else raises :class:`InvalidName`."""
    if parse_release_name(alias):
        raise InvalidName(f"alias {alias!r} has the form of a release's name")
    return check_name(alias, "alias")


def release_named_by(link: str) -> str:
    """The release that an alias with that text names; "" where the text is not ``releases/`` and a plain name."""
    place, _, release = link.partition("/")
    return release if place == RELEASES and "/" not in release and release not in (".", "..") else ""


@dataclass(frozen=True, slots=True)
class Reference:
    """``NAME``, ``NAME@alias`` or ``NAME@release``."""

    name: str
    ref: str


def parse_reference(text: str) -> Reference:
    """``NAME`` alone means its default alias. Raises :class:`InvalidName`."""
    name, at, ref = text.partition("@")
    return Reference(check_name(name, "name"), check_name(ref, "alias or release") if at else DEFAULT_ALIAS)


@dataclass(frozen=True, slots=True)
class Act:
    """One line of ``history.jsonl``: who did what to which release, and where an alias pointed before."""

    at: str
    act: str
    release: str
    alias: str = ""
    previous: str = ""
    user: str = ""
    host: str = ""
    flow_run: str = ""
    reason: str = ""
    source: str = ""
    """The fingerprint of what a published release was made from."""
    by: str = ""
    """Who asked for it, where that is not ``user``, whose process did it."""
    took: Mapping[str, VerbTotal] = field(default_factory=dict)
    """What the steps of the run took that published it."""

    def to_json(self) -> dict[str, object]:
        """The act as a JSON object, with every field."""
        took = {verb: total.to_json() for verb, total in self.took.items()}
        return {field: getattr(self, field) for field in self.__slots__} | {"took": took}

    @classmethod
    def of_json(cls, document: Mapping[str, object]) -> Act | None:
        """What :meth:`to_json` wrote; fields that were left out are empty. None for what is no act."""
        fields = [document.get(field, "") for field in _TEXTS]
        if not document.keys() >= {"at", "act", "release"} or set(map(type, fields)) != {str}:
            return None
        return cls(*fields, *[totals_of(document.get("took"))])  # type: ignore[arg-type]

    def to_line(self) -> bytes:
        document = {field: value for field, value in self.to_json().items() if value}
        # A reason may hold bytes that are no UTF-8; as escapes they stay one line of JSON.
        return (json.dumps(document, ensure_ascii=False) + "\n").encode(errors="backslashreplace")


*_TEXTS, _ = Act.__slots__  # all but the last, `took`, are texts


def parse_history(data: bytes) -> tuple[Act, ...]:
    """The acts in order.

    A line that a crash cut short is left out: its act is done again or was never reported. So is one that is no act.
    """
    acts = []
    for line in data.split(b"\n"):
        try:
            document = parse_json(line)
        except NotJson:
            continue
        act = Act.of_json(document) if isinstance(document, dict) else None
        if act is not None:
            acts.append(act)
    return tuple(acts)


def is_published(history: Sequence[Act], release: str, alias: str) -> bool:
    """Whether ``release`` was published under ``alias``, to the end of that act, and not pruned since."""
    for act in reversed(history):
        if act.release == release and act.act == "prune":
            return False
        if act.release == release and act.act == "publish" and act.alias == alias:
            return True
    return False
