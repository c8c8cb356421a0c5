"""A YAML document, and the line on which each of its values stands, so that a mistake can be pointed at."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from ckptcore.rules.issues import Issue
from ckptcore.yaml_documents import faults_told

Place = tuple[str | int, ...]
"""Keys and positions from the document's root to a value."""


@dataclass(frozen=True, slots=True)
class LinedDocument:
    """``value`` is what ``yaml.safe_load`` gives; ``lines`` counts from 1, and a key's line is its value's."""

    value: object
    lines: Mapping[Place, int]
    issues: tuple[Issue, ...]
    """Keys that are given twice, of which YAML would silently take the last."""

    def line(self, place: Place) -> int:
        """The line of the value at ``place``, or of the nearest one around it that is there."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def read_lined(data: bytes, name: str) -> LinedDocument:
    """Parse ``data``; ``name`` stands in the issues. Raises :class:`NotYaml` where it is none."""
    with faults_told():
        return _parse(yaml.SafeLoader(data), name)


def _parse(loader: yaml.SafeLoader, name: str) -> LinedDocument:
    node = loader.get_single_node()
    if node is None:
        return LinedDocument(None, {}, ())
    value: Any = loader.construct_document(node)
    lines: dict[Place, int] = {}
    twice = tuple(_walk(loader, node, (), lines, name))
    return LinedDocument(value, lines, twice)


def _walk(
    loader: yaml.SafeLoader, node: yaml.Node, place: Place, lines: dict[Place, int], name: str
) -> Iterator[Issue]:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        for position, child in enumerate(node.value):
            yield from _walk(loader, child, (*place, position), lines, name)
    elif isinstance(node, yaml.MappingNode):
        seen: dict[Hashable, int] = {}
        for key_node, child in node.value:
            key, line = loader.construct_object(key_node), key_node.start_mark.line + 1
            if key in seen:
                yield Issue(f"{name}:{line}", f"{key} is given twice; first on line {seen[key]}", code="config-twice")
            seen.setdefault(key, line)
            lines[(*place, key)] = line
            yield from _walk(loader, child, (*place, key), lines, name)
