"""The tensors that were expected against those that were found: every mismatch.

Owns expectations (name pattern, shape with wildcards, dtype, count), the plain document in which they are written,
and the exact comparison of two lists of tensors. The text of the document, YAML or JSON, is its reader's.

A document is ``{"tensors": {pattern: {"shape": [...], "dtype": ..., "count": ...}}}``, each of the three optional. A
pattern is a case-sensitive glob over the whole name whose ``*`` spans dots. Of several patterns that match a tensor
the first in the document judges it. A tensor that no pattern matches is a mismatch; the pattern ``*``, put last,
allows any, and is the only one that may match nothing without ``count: 0``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate

from ckptcore.errors import InvalidExpectations
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.shard_layout import natural_key
from ckptcore.rules.tensors import DTYPES, Shape, TensorSpec

CATCH_ALL = "*"
_GLOB_CHARACTER = re.compile(r"[*?[]")
_ESCAPED = re.compile(r"\[([*?[])\]")


@dataclass(frozen=True, slots=True)
class Expectation:
    """What the tensors of one pattern must be; None where anything will do, also for one extent of ``shape``."""

    pattern: str
    shape: tuple[int | None, ...] | None = None
    dtype: str | None = None
    count: int | None = None


def check_expectations(specs: Iterable[TensorSpec], expectations: Sequence[Expectation]) -> tuple[Issue, ...]:
    """Every tensor that is missing, too many, unexpected, or of another shape or dtype than expected."""
    first_match = _FirstMatch([expectation.pattern for expectation in expectations])
    counts = [0] * len(expectations)
    issues = []
    for spec in specs:
        position = first_match.of(spec.key)
        if position is None:
            issues.append(Issue(_where(spec), "no expectation names it", code="unexpected-tensor"))
        else:
            counts[position] += 1
            issues += _check_spec(spec, expectations[position])
    for expectation, count in zip(expectations, counts, strict=True):
        where = f"expectation {expectation.pattern!r}"
        if expectation.count is not None and count != expectation.count:
            what = "the number of tensors is not the expected one"
            issues.append(Issue(where, what, str(expectation.count), str(count), "tensor-count"))
        elif expectation.count is None and count == 0 and expectation.pattern != CATCH_ALL:
            issues.append(Issue(where, "no tensor matches it", code="missing-tensor"))
    return in_order(issues)


def compare_specs(expected: Iterable[TensorSpec], found: Iterable[TensorSpec]) -> tuple[Issue, ...]:
    """Every difference between two lists of tensors: missing, unexpected, other shape, other dtype."""
    wanted = {spec.key: spec for spec in expected}
    present = {spec.key: spec for spec in found}
    issues = [Issue(_where(wanted[key]), "is missing", code="missing-tensor") for key in wanted.keys() - present.keys()]
    issues += [
        Issue(_where(present[key]), "is not expected", code="unexpected-tensor")
        for key in present.keys() - wanted.keys()
    ]
    for key in wanted.keys() & present.keys():
        issues += _check_spec(present[key], Expectation(key, wanted[key].shape, wanted[key].dtype))
    return in_order(issues)


def describe(specs: Sequence[TensorSpec]) -> dict[str, dict[str, dict[str, object]]]:
    """A document that these tensors meet and no others do, up to the numbers in folded names.

    Names that differ only in numbers between dots, of one shape and dtype, are folded to a pattern with a count,
    ``layers.*.weight``. Names that cannot be folded come first, then patterns, the most specific first.
    """
    groups: dict[tuple[str, str, Shape], list[TensorSpec]] = {}
    for spec in specs:
        pattern = ".".join(CATCH_ALL if part.isdecimal() else _escaped(part) for part in spec.key.split("."))
        groups.setdefault((pattern, spec.dtype, spec.shape), []).append(spec)
    folded: dict[str, list[TensorSpec]] = {}
    literal: list[TensorSpec] = []
    for (pattern, _, _), members in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        # One pattern cannot stand for two shapes, and the lone "*" would name everything.
        if len(members) == 1 or pattern == CATCH_ALL or pattern in folded:
            literal += members
        else:
            folded[pattern] = members

    patterns = sorted(folded, key=lambda pattern: (pattern.count(CATCH_ALL) - len(pattern), natural_key(pattern)))
    first_match = _FirstMatch(patterns)
    rows: dict[str, dict[str, object]] = {}
    for position, pattern in enumerate(patterns):
        members = folded[pattern]
        if all(first_match.of(spec.key) == position for spec in members):
            rows[pattern] = {**_row(members[0]), "count": len(members)}
        else:
            # An earlier pattern would judge some of them; a name in full comes before every pattern.
            literal += members
    literal.sort(key=lambda spec: (natural_key(spec.key), spec.key))
    return {"tensors": {**{_escaped(spec.key): _row(spec) for spec in literal}, **rows}}


def parse_expectations(document: object) -> tuple[Expectation, ...]:
    """The expectations of a document, in its order. Raises ``InvalidExpectations`` with every mistake in it."""
    tensors = document.get("tensors") if isinstance(document, Mapping) and len(document) == 1 else None
    if not isinstance(tensors, Mapping) or not tensors:
        what = "the document must be a mapping with the one key 'tensors', which maps a pattern or more"
        raise InvalidExpectations("the expectations cannot be read", [Issue("", what)])
    rows = [_parse_row(pattern, row) for pattern, row in tensors.items()]
    issues = [issue for _, found in rows for issue in found]
    if issues:
        raise InvalidExpectations("the expectations cannot be read", issues)
    return tuple(expectation for expectation, _ in rows if expectation is not None)


def _parse_row(pattern: object, row: object) -> tuple[Expectation | None, list[Issue]]:
    where = f"tensors: {pattern!r}"
    known = ("shape", "dtype", "count")
    if not isinstance(pattern, str):
        return None, [Issue(where, "a pattern must be text", found=type(pattern).__name__)]
    row = {} if row is None else row
    if not isinstance(row, Mapping):
        return None, [Issue(where, "must be a mapping", ", ".join(known), repr(row))]
    shape, dtype, count = (row.get(key) for key in known)
    mistakes = [Issue(where, "unknown key", ", ".join(known), repr(key)) for key in row if key not in known]
    if shape is not None and not (isinstance(shape, list | tuple) and all(_is_extent(extent) for extent in shape)):
        mistakes.append(Issue(f"{where}: shape", "is not one", 'a list of whole numbers and "*"', repr(shape)))
    if dtype is not None and not (isinstance(dtype, str) and dtype in DTYPES):
        mistakes.append(Issue(f"{where}: dtype", "is not known", ", ".join(DTYPES), repr(dtype)))
    if count is not None and not _is_whole(count):
        mistakes.append(Issue(f"{where}: count", "is not one", "a whole number", repr(count)))
    if mistakes:
        return None, mistakes
    extents = None if shape is None else tuple(None if extent == "*" else extent for extent in shape)
    return Expectation(pattern, extents, dtype, count), mistakes


def _is_extent(value: object) -> bool:
    return value == "*" or _is_whole(value)


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


class _FirstMatch:
    """Which pattern of a list is the first to match a name: literals by lookup, globs by what precedes their first
    special character, so that many patterns do not mean as many tries for each name."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self._literals: dict[str, int] = {}
        self._globs: dict[str, list[tuple[int, re.Pattern[str]]]] = {}
        for position, pattern in enumerate(patterns):
            literal = _unescaped(pattern)
            if literal is not None:
                self._literals.setdefault(literal, position)
            else:
                head = _GLOB_CHARACTER.split(pattern, maxsplit=1)[0]
                self._globs.setdefault(head, []).append((position, re.compile(translate(pattern))))
        self._head_lengths = sorted({len(head) for head in self._globs})

    def of(self, name: str) -> int | None:
        """The position of the first pattern that matches."""
        found = [self._literals[name]] if name in self._literals else []
        for length in self._head_lengths:
            if length > len(name):
                break
            globs = self._globs.get(name[:length], ())
            found += [position for position, glob in globs if glob.match(name)][:1]
        return min(found, default=None)


def _escaped(name: str) -> str:
    """The pattern that matches only this name."""
    return _GLOB_CHARACTER.sub(r"[\g<0>]", name)


def _unescaped(pattern: str) -> str | None:
    """The only name that the pattern matches, or None where it may match several."""
    return _ESCAPED.sub(r"\1", pattern) if not _GLOB_CHARACTER.search(_ESCAPED.sub("", pattern)) else None


def _check_spec(spec: TensorSpec, expected: Expectation) -> Iterator[Issue]:
    if expected.shape is not None and not (
        len(spec.shape) == len(expected.shape)
        and all(want in (None, have) for want, have in zip(expected.shape, spec.shape, strict=True))
    ):
        shape = "[" + ", ".join("*" if extent is None else str(extent) for extent in expected.shape) + "]"
        yield Issue(_where(spec), "its shape is not the expected one", shape, str(list(spec.shape)), "tensor-shape")
    if expected.dtype not in (None, spec.dtype):
        yield Issue(_where(spec), "its dtype is not the expected one", expected.dtype, spec.dtype, "tensor-dtype")


def _row(spec: TensorSpec) -> dict[str, object]:
    return {"shape": list(spec.shape), "dtype": spec.dtype}


def _where(spec: TensorSpec) -> str:
    return f"tensor {spec.key!r}"
