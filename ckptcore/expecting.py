"""Expectation files: the YAML of expected names, shapes, dtypes and counts, read and written."""

from __future__ import annotations

from pathlib import Path

import yaml

from ckptcore.errors import InvalidExpectations
from ckptcore.rules.shapes import Expectation, parse_expectations
from ckptcore.storage.regular_files import read_document
from ckptcore.yaml_documents import NotYaml, parse_yaml


def read_expectations(path: Path | None) -> tuple[Expectation, ...]:
    """The expectations in a YAML file; none without a file. Raises :class:`InvalidExpectations`, with every mistake."""
    if path is None:
        return ()
    data = read_document(path)
    try:
        document = parse_yaml(data)
    except NotYaml as error:
        raise InvalidExpectations(f"{path}: not a YAML document: {error}") from error
    try:
        return parse_expectations(document)
    except InvalidExpectations as error:
        raise InvalidExpectations(f"{path}: {error.message}", error.issues) from error


def expectations_yaml(document: object) -> str:
    """The document of :func:`~ckptcore.rules.shapes.describe` as YAML, in its own order.

    Characters beyond ASCII are escaped: PyYAML reads some of its own unescaped ones (U+0085, say) back as spaces.
    """
    return yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=120)
