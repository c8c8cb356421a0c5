"""Expectation files: the YAML of expected names, shapes, dtypes and counts, read and written."""

from __future__ import annotations

from pathlib import Path

import yaml

from ckptcore.errors import InvalidExpectations
from ckptcore.rules.shapes import Expectation, parse_expectations
from ckptcore.storage.refusals import reported


def read_expectations(path: Path | None) -> tuple[Expectation, ...]:
    """The expectations in a YAML file; none without a file. Raises :class:`InvalidExpectations`, with every mistake."""
    if path is None:
        return ()
    with reported("cannot read", path):
        data = path.read_bytes()
    try:
        return parse_expectations(yaml.safe_load(data))
    except yaml.YAMLError as error:
        raise InvalidExpectations(f"{path}: not a YAML document: {error}") from error


def expectations_yaml(document: object) -> str:
    """The document of :func:`~ckptcore.rules.shapes.describe` as YAML, in its own order."""
    return yaml.safe_dump(document, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
