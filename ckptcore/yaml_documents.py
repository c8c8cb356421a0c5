"""YAML documents, read strictly: no repeated keys, and one line of text where something is wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import yaml


class NotYaml(ValueError):
    """The bytes are no YAML document; the message is one line, and says where."""


class _WithoutRepeats(yaml.SafeLoader):
    """PyYAML takes the last of the values that a mapping gives one key, and drops the others without a word."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                if (key.tag, key.value) in seen:
                    raise yaml.MarkedYAMLError(problem=f"{key.value!r} is given twice", problem_mark=key.start_mark)
                seen.add((key.tag, key.value))
        return node


def parse_yaml(data: bytes) -> object:
    """The one document in ``data``, as plain values. Raises :class:`NotYaml`, also where a key is given twice."""
    with faults_told():
        return yaml.load(data, _WithoutRepeats)  # noqa: S506 - it is a SafeLoader


@contextmanager
def faults_told() -> Iterator[None]:
    """Turns what PyYAML raises inside the block into :class:`NotYaml`."""
    try:
        yield
    # Beside its own errors, PyYAML lets out those of impossible dates and of nesting without end.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise NotYaml(_fault(error)) from error


def _fault(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())
