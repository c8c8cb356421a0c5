"""What is to be observed: the sources and names of pipelines' files, or of directories that somebody names."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from ckptcore.config import read_config
from ckptcore.errors import CheckpointError, InvalidConfig
from ckptcore.pipeline import Pipeline
from ckptcore.registry import existing_shelf, names_in, releases_on
from ckptcore.rules.observed import Watched
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.retention import parse_age
from ckptcore.validating import source_path


def watched_in_configs(configs: Sequence[str | os.PathLike[str]]) -> tuple[Watched, ...]:
    """One for each source of each pipeline. Raises :class:`InvalidConfig` with the mistakes of every file."""
    pipelines, refusals = dict[str, Pipeline](), list[CheckpointError]()
    for config in configs:
        try:
            pipelines[os.path.abspath(os.fspath(config))] = read_config(config)
        except CheckpointError as refusal:
            refusals.append(refusal)
    if refusals:
        issues = [issue for refusal in refusals for issue in refusal.issues]
        raise InvalidConfig("; ".join(refusal.message for refusal in refusals), issues)
    return _with_keys(watched for config, pipeline in pipelines.items() for watched in watched_in(pipeline, config))


def watched_in(pipeline: Pipeline, config: str = "") -> Iterator[Watched]:
    """One for each source of the pipeline; ``config`` is the file that it was read from."""
    configured = pipeline.server.url or os.environ.get("PREFECT_API_URL")
    server = (configured or f"http://{pipeline.server.host}:{pipeline.server.port}/api").rstrip("/")
    for source in pipeline.sources:
        name = pipeline.name_of(source)
        yield Watched(
            key=name,
            name=name,
            pipeline=pipeline.name,
            source=source.path,
            component=source.component,
            registry=pipeline.registry,
            alias=pipeline.alias_of(source),
            stall_seconds=None if pipeline.stall is None else parse_age(pipeline.stall),
            server=server,
            has_retention=bool(pipeline.retention.rules()),
            config=config,
        )


def watched_in_places(sources: Sequence[str], registries: Sequence[str]) -> tuple[Watched, ...]:
    """Each name of each registry with the source that its newest release was made from, and each other source alone."""
    server = (os.environ.get("PREFECT_API_URL") or "").rstrip("/")
    places = [os.path.abspath(source) for source in sources]
    left = dict.fromkeys(places)
    watched = list[Watched]()
    for registry in map(os.path.abspath, registries):
        for name in names_in(registry):
            made_from = _made_from(registry, name)
            source = next((place for place in places if _lies_in(made_from, place)), "")
            left.pop(source, None)
            watched.append(Watched(name, name, source=source, registry=registry, alias=DEFAULT_ALIAS, server=server))
    watched += [Watched(os.path.basename(place) or place, os.path.basename(place), source=place) for place in left]
    return _with_keys(watched)


def _made_from(registry: str, name: str) -> str:
    """The source of the newest release, "" where that cannot be told."""
    try:
        shelf = existing_shelf(registry, name)
        releases = releases_on(shelf)
        newest = max(releases, key=lambda release: os.stat(shelf.release(release)).st_mtime, default=None)
        return "" if newest is None else source_path(shelf.release(newest))
    except (CheckpointError, OSError):
        return ""


def _lies_in(path: str, place: str) -> bool:
    roots = (place, os.path.realpath(place))
    return any(path == root or path.startswith(f"{root}{os.sep}") for root in roots)


def _with_keys(watched: Iterable[Watched]) -> tuple[Watched, ...]:
    """Each with a key of its own that an address can carry: names may repeat, and need be no text at all."""
    keys = set[str]()
    keyed = list[Watched]()
    for each in watched:
        text = "".join(character if character.isprintable() and character != "/" else "-" for character in each.name)
        key, number = text or "-", 2
        while key in keys:
            key, number = f"{text}~{number}", number + 1
        keys.add(key)
        keyed.append(replace(each, key=key))
    return tuple(keyed)
