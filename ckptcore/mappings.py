"""Layout maps and Hugging Face configurations from files: read and decoded. What they mean is ``rules``'."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ckptcore.errors import InvalidName, MappingError
from ckptcore.rules.issues import Issue
from ckptcore.rules.json_documents import NotJson, parse_json
from ckptcore.rules.mapping import mapping_from_document
from ckptcore.rules.output_layout import PRESETS, LayoutMap, OutputLayout
from ckptcore.storage.regular_files import lies_at, read_document

CONFIG_NAME = "config.json"
# What a serving engine wants beside the weights, by Hugging Face's names.
COMPANION_FILES = (
    CONFIG_NAME,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer.model",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "merges.txt",
    "chat_template.jinja",
    "preprocessor_config.json",
)


def mapping(what: str | os.PathLike[str] | Sequence[str] | Mapping[str, object]) -> LayoutMap:
    """A layout map: the name of a preset, a YAML or JSON file, a list of AOA statements, or Paddle's ``aoa_config``.

    A file holds such a list or ``aoa_config``. Raises :class:`MappingError` with every statement that cannot be read.
    """
    if isinstance(what, str) and what in PRESETS:
        return LayoutMap(preset=what)
    document: object = what
    if isinstance(what, str | os.PathLike):
        document = _document(Path(what))
    elif isinstance(what, Mapping):
        document = {key: list(lines) if isinstance(lines, tuple) else lines for key, lines in what.items()}
    else:
        document = list(what)
    return _map_of(document)


def _map_of(document: object) -> LayoutMap:
    mapping_from_document(document)  # for its refusals; the statements themselves travel
    if isinstance(document, dict):
        return LayoutMap("", tuple(document["aoa_statements"]), bool(document.get("aoa_config_reverse", False)))
    assert isinstance(document, list)
    return LayoutMap("", tuple(document))


def _document(path: Path) -> object:
    if not path.is_file():
        raise MappingError(f"{path}: neither a preset nor a file; the presets are {', '.join(PRESETS)}")
    data = read_document(path)
    # Not above: most merges read no map, and importing a YAML reader costs a tenth of their start-up.
    from ckptcore.yaml_documents import NotYaml, parse_yaml

    try:
        return parse_yaml(data)
    except NotYaml as error:
        raise MappingError(f"{path}: not a YAML or JSON document: {error}") from error


def companions_of(
    directory: str | os.PathLike[str],
    layout: OutputLayout = OutputLayout(),
    attached: Iterable[str | os.PathLike[str]] = (),
) -> tuple[Path, ...]:
    """The configuration and tokenizer files of ``layout.hf``; without it those beside a version, in its directory or,
    for a component, in its step's. One that has the name of an ``attached`` file is left out for it.

    Nobody named those beside a version, so that none may lead out of the trainer's run: raises :class:`InvalidName`
    with all that are no regular files inside it; :class:`MappingError` where ``layout.hf`` has no ``config.json``.
    """
    wanted = sorted(set(COMPANION_FILES) - {Path(path).name for path in attached})
    here = Path(directory)
    places = (here, here.parent) if here.parent.name.startswith("checkpoint-") else (here,)
    if layout.hf is not None:
        places = (Path(layout.hf),)
        if not (places[0] / CONFIG_NAME).is_file():
            raise MappingError(f"{layout.hf}: has no {CONFIG_NAME}")
    found = {path.name: path for place in places for name in wanted if lies_at(path := place / name)}
    step = places[-1]
    run = os.path.realpath(step.parent if step.name.startswith("checkpoint-") else step)
    confined = None if layout.hf is not None else run
    issues = [issue for path in found.values() if (issue := _companion_issue(path, confined)) is not None]
    if issues:
        raise InvalidName(
            f"{here}: {len(issues)} companion file(s) are not taken; name such a file with --attach", issues
        )
    return tuple(found[name] for name in wanted if name in found)


def _companion_issue(path: Path, confined: str | None) -> Issue | None:
    real = os.path.realpath(path)
    if not path.is_file():
        return Issue(str(path), "is no regular file", code="companion")
    if confined is not None and os.path.commonpath([real, confined]) != confined:
        return Issue(str(path), "is a link that leads out of the run", f"inside {confined}", real, "companion")
    return None


def config_of(directory: str | os.PathLike[str], layout: OutputLayout) -> Mapping[str, object] | None:
    """The decoded ``config.json`` among the companions, where the layout needs one and there is one."""
    if not layout.is_for_hf:
        return None
    path = next((path for path in companions_of(directory, layout) if path.name == CONFIG_NAME), None)
    if path is None:
        return None
    try:
        document = parse_json(read_document(path))
    except NotJson as error:
        raise MappingError(f"{path}: not a JSON document: {error}") from error
    if not isinstance(document, dict):
        raise MappingError(f"{path}: expected an object, found {type(document).__name__}")
    return document
