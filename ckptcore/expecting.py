"""Expectation files: the YAML of expected names, shapes, dtypes and counts, read and written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from ckptcore.errors import InvalidExpectations
from ckptcore.rules.shapes import Expectation, parse_expectations
from ckptcore.storage.regular_files import read_document


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


def read_expectations(path: Path | None) -> tuple[Expectation, ...]:
    """The expectations in a YAML file; none without a file. Raises :class:`InvalidExpectations`, with every mistake."""
    if path is None:
        return ()
    data = read_document(path)
    try:
        document = yaml.load(data, _WithoutRepeats)  # noqa: S506 - it is a SafeLoader
    # Beside its own errors, PyYAML lets out those of impossible dates and of nesting without end.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise InvalidExpectations(f"{path}: not a YAML document: {_fault(error)}") from error
    try:
        return parse_expectations(document)
    except InvalidExpectations as error:
        raise InvalidExpectations(f"{path}: {error.message}", error.issues) from error


def _fault(error: Exception) -> str:
    """What is wrong, on one line, and where in the file."""
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def expectations_yaml(document: object) -> str:
    """The document of :func:`~ckptcore.rules.shapes.describe` as YAML, in its own order.

    Characters beyond ASCII are escaped: PyYAML reads some of its own unescaped ones (U+0085, say) back as spaces.
    """
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
