"""``ckpt.yaml``: the file that describes a pipeline. Every mistake in it is told at once, with its line."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from ckptcore.errors import CheckpointError, InvalidConfig
from ckptcore.expecting import read_expectations
from ckptcore.mappings import mapping
from ckptcore.pipeline import Pipeline
from ckptcore.pipeline_fields import ROOT
from ckptcore.rules.issues import Issue
from ckptcore.rules.output_layout import PRESETS
from ckptcore.storage.regular_files import read_document
from ckptcore.yaml_documents import NotYaml
from ckptcore.yaml_lines import LinedDocument, Place, read_lined


def read_config(path: str | os.PathLike[str]) -> Pipeline:
    """The pipeline that a file describes, its paths absolute. Raises :class:`InvalidConfig` with every mistake."""
    data = read_document(Path(path))
    name, root = os.path.basename(path), os.path.dirname(os.path.abspath(path))
    try:
        document = read_lined(data, name)
    except NotYaml as error:
        raise InvalidConfig(f"{os.fspath(path)}: not a YAML document: {error}") from error
    issues = list(document.issues)
    pipeline = None
    try:
        pipeline = Pipeline.model_validate(document.value, context={ROOT: root})
    except ValidationError as error:
        issues += _issues(error.errors(include_url=False), document, name)
    # What spans several values is looked at even where others are wrong, as far as the document has its shape.
    issues += _contradictions(document, name)
    issues += _unreadable_files(document, name, root)
    if issues or pipeline is None:
        refusal = InvalidConfig(f"{os.fspath(path)}: {len(set(issues))} mistake(s)", issues)
        refusal.issues = tuple(sorted(refusal.issues, key=_line_of))
        raise refusal
    # A default is no value of the file, so that validation leaves it as it is.
    server = pipeline.server.model_copy(update={"state": os.path.join(root, pipeline.server.state)})
    return pipeline.model_copy(update={"server": server})


def _line_of(issue: Issue) -> int:
    return int(issue.where.rpartition(":")[2])


def _issues(errors: Iterable[ErrorDetails], document: LinedDocument, name: str) -> Iterator[Issue]:
    for error in errors:
        place = _place(error["loc"], document.value)
        where = f"{name}:{document.line(place)}"
        dotted = ".".join(map(str, place)) or "the document"
        match error["type"]:
            case "too_short" if error["input"]:
                pass  # what is in it is wrong, and said already
            case "missing":
                yield Issue(where, f"{dotted} is missing", code="config-missing")
            case "extra_forbidden":
                known = _known_keys(place[:-1])
                near = difflib.get_close_matches(str(place[-1]), known, 1)
                hint = f"did you mean {near[0]}?" if near else f"known here: {', '.join(known)}"
                yield Issue(where, f"{dotted} is not known; {hint}", code="config-unknown")
            case _:
                what = f"{dotted}: {error['msg'].removeprefix('Value error, ')}"
                found = error["input"]
                shown = repr(found) if isinstance(found, (str, int, float, bool)) and repr(found) not in what else ""
                yield Issue(where, what, found=shown, code="config-value")


def _place(location: Iterable[str | int], value: object) -> Place:
    """pydantic's location without the names of the alternatives of a union, which are in no document."""
    place: list[str | int] = []
    for step in location:
        is_key = (isinstance(step, str) and isinstance(value, dict)) or (
            isinstance(step, int) and isinstance(value, list) and step < len(value)
        )
        if is_key:
            place.append(step)
            value = value.get(step) if isinstance(value, dict) else value[step]  # type: ignore[index]
    return tuple(place)


def _known_keys(place: Place) -> list[str]:
    """The keys of the section at ``place``."""
    section: Any = Pipeline
    for step in place:
        # A position in a tuple of sections, of which the annotation names the kind.
        section = section.model_fields[step].annotation if isinstance(step, str) else section.__args__[0]
    return sorted(section.model_fields)


def _contradictions(document: LinedDocument, name: str) -> Iterator[Issue]:
    if not isinstance(document.value, dict):
        return
    value = document.value
    schedule = value.get("schedule")
    first: dict[str, int] = {}
    for position, source in enumerate(_list(value, "sources")):
        published = source.get("name", value.get("name")) if isinstance(source, dict) else None
        if not isinstance(published, str):
            continue
        if published in first:
            what = f"sources.{position} publishes as {published!r}, as sources.{first[published]} does: give it a name"
            yield Issue(f"{name}:{document.line(('sources', position))}", what, code="config-name-twice")
        first.setdefault(published, position)
    yield from _uncomparable(document, name)
    if isinstance(schedule, dict) and schedule.get("prune") and not value.get("retention"):
        what = "schedule.prune: retention says of nothing that it is kept"
        yield Issue(f"{name}:{document.line(('schedule', 'prune'))}", what, code="config-retention")
    for position, target in enumerate(_list(value, "notifications")):
        if isinstance(target, dict) and ("webhook" in target) == ("block" in target):
            what = f"notifications.{position} needs one of webhook and block"
            yield Issue(f"{name}:{document.line(('notifications', position))}", what, code="config-target")


def _uncomparable(document: LinedDocument, name: str) -> Iterator[Issue]:
    checks = document.value.get("checks") if isinstance(document.value, dict) else None
    if not isinstance(checks, dict) or checks.get("engine") is None:
        return
    for position, source in enumerate(_list(document.value, "sources")):
        for key in ("map", "dtype"):
            if isinstance(source, dict) and source.get(key) is not None:
                what = f"checks.engine compares tensors as they were saved, and sources.{position}.{key} changes them"
                yield Issue(f"{name}:{document.line(('checks', 'engine'))}", what, code="config-engine")


def _unreadable_files(document: LinedDocument, name: str, root: str) -> Iterator[Issue]:
    """What the files that the sources name are refused for, and maps that are no file."""
    for position, source in enumerate(_list(document.value, "sources")):
        if not isinstance(source, dict):
            continue
        for key, read in (("expectations", _read_expectations), ("map", _read_map)):
            value = source.get(key)
            where = f"{name}:{document.line(('sources', position, key))}"
            try:
                read(value, root)
            except CheckpointError as error:
                yield Issue(where, f"sources.{position}.{key}: {error.message}", code=f"config-{key}")
                yield from (Issue(where, str(issue), code=issue.code) for issue in error.issues)


def _read_expectations(value: object, root: str) -> None:
    if isinstance(value, str):
        read_expectations(Path(root, os.path.expanduser(value)))


def _read_map(value: object, root: str) -> None:
    if isinstance(value, str) and value not in PRESETS:
        value = str(Path(root, os.path.expanduser(value)))
    if isinstance(value, (str, dict)) or (isinstance(value, list) and all(isinstance(line, str) for line in value)):
        mapping(value)


def _list(document: object, key: str) -> list[object]:
    found = document.get(key) if isinstance(document, dict) else None
    return found if isinstance(found, list) else []
