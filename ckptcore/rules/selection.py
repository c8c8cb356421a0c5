"""Which tensors go into a release, and under which names.

Owns dotted prefixes, their stripping, globs, and collisions of the names that come out. Layout maps, which change
what is inside a tensor, are ``mapping``'s.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import translate

from ckptcore.errors import SelectionError
from ckptcore.rules.issues import Issue
from ckptcore.rules.regions import OutputTensor, passed_through
from ckptcore.rules.shard_layout import natural_key
from ckptcore.rules.tensors import TensorSpec

RESERVED_NAME = "__metadata__"
"""The one key of a safetensors header that names no tensor."""


@dataclass(frozen=True, slots=True)
class Selection:
    """What to take: the tensors under any of ``prefixes`` (all where there is none) that match any of ``include``
    (all where there is none) and none of ``exclude``.

    A prefix is a dotted group: ``model``, or ``model.``, takes ``model.*``, never ``model_ema.*``, ``modelx`` or a
    tensor named ``model``. It is stripped from the name unless ``keep_prefix``; of prefixes within each other the
    longest that fits is. Globs are case-sensitive, match the whole source key, and their ``*`` spans dots. A prefix
    or glob that matches no tensor is refused, in ``exclude`` too: a misspelt one would publish what it should not.
    """

    prefixes: tuple[str, ...] = ()
    keep_prefix: bool = False
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()


def select(specs: Sequence[TensorSpec], selection: Selection) -> tuple[OutputTensor, ...]:
    """The selected tensors under their output names, in natural order (``layers.2`` before ``layers.10``).

    Raises ``SelectionError`` with every prefix or glob that matches nothing, every name that two tensors would
    share, and every name that the output cannot hold; and where nothing at all is selected.
    """
    # Longest first, so that the first that fits is the most specific.
    prefixes = sorted({prefix.removesuffix(".") + "." for prefix in selection.prefixes}, key=lambda p: (-len(p), p))
    prefixed = {spec.key: _prefix_of(spec.key, prefixes) for spec in specs}
    issues = [
        Issue(
            f"prefix {prefix.removesuffix('.')!r}", f"no tensor begins with {prefix!r}", code="prefix-matches-nothing"
        )
        for prefix in prefixes
        if not any(key.startswith(prefix) for key in prefixed)
    ]
    keys = [key for key, prefix in prefixed.items() if prefix is not None or not prefixes]
    universe = "tensor under the prefixes" if prefixes else "tensor"
    matches = {
        (option, glob): matching(glob, keys)
        for option, globs in (("include", selection.include), ("exclude", selection.exclude))
        for glob in globs
    }
    issues += [
        Issue(f"{option} {glob!r}", f"no {universe} matches it", code=f"{option}-matches-nothing")
        for (option, glob), found in matches.items()
        if not found
    ]
    included = {key for glob in selection.include for key in matches["include", glob]}
    excluded = {key for glob in selection.exclude for key in matches["exclude", glob]}
    chosen = (included if selection.include else set(keys)) - excluded

    sources: dict[str, list[TensorSpec]] = {}
    for spec in specs:
        if spec.key in chosen:
            strip = "" if selection.keep_prefix else prefixed[spec.key] or ""
            sources.setdefault(spec.key[len(strip) :], []).append(spec)
    if not sources and not issues:
        issues.append(Issue("", "no tensor is left to select", found=f"{len(specs)} in the source", code="empty"))
    for name, taken in sources.items():
        where = f"tensor {taken[0].key!r}"
        if len(taken) > 1:
            found = ", ".join(repr(spec.key) for spec in taken)
            issues.append(Issue(f"output {name!r}", "several tensors would get this name", "one", found, "collision"))
        if not name and taken[0].key:
            issues.append(Issue(where, "stripping its prefix leaves no name", code="empty-name"))
        issues += check_name(name, where)
    if issues:
        raise SelectionError("the selection cannot be made", issues)
    return tuple(
        passed_through(sources[name][0], name) for name in sorted(sources, key=lambda name: (natural_key(name), name))
    )


def _prefix_of(key: str, prefixes: Iterable[str]) -> str | None:
    return next((prefix for prefix in prefixes if key.startswith(prefix)), None)


def matching(glob: str, keys: Iterable[str]) -> set[str]:
    """The keys that a glob matches whole; its ``*`` spans dots."""
    matches = re.compile(translate(glob)).match
    return {key for key in keys if matches(key)}


def check_name(name: str, where: str) -> list[Issue]:
    """What keeps a safetensors file from holding a tensor of that name."""
    issues = []
    if name == RESERVED_NAME:
        issues.append(Issue(where, f"safetensors reserves the name {name!r}", code="reserved-name"))
    if not _is_text(name):
        issues.append(Issue(where, "its name is no Unicode text, which safetensors needs", code="unencodable-name"))
    return issues


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
