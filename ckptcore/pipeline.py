"""A pipeline: from which training runs, through which checks, to which releases, and who is told.

Models of pydantic, so that Prefect's interface shows a form where a flow takes one; with ``config``, which reads them
from ``ckpt.yaml``, the only module of the library that imports pydantic.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from ckptcore.errors import CheckpointError
from ckptcore.rules.gates import GateOptions, check_function
from ckptcore.rules.layout import COMPONENTS
from ckptcore.rules.pipeline import parse_interval
from ckptcore.rules.release import DEFAULT_ALIAS, check_alias, check_name
from ckptcore.rules.retention import KeepEvery, KeepLast, KeepNewerThan, Rule, format_age, parse_age
from ckptcore.rules.selection import Selection
from ckptcore.rules.sizes import parse_size

ROOT = "root"
"""The key of the validation context under which the directory stands that relative paths start from."""

Alert = Literal["stalled", "damaged", "failed", "refused", "crashed"]
ALERTS: tuple[Alert, ...] = ("stalled", "damaged", "failed", "refused", "crashed")


def _absolute(path: str, info: ValidationInfo) -> str:
    """Relative paths of a file are relative to the file, not to who reads it."""
    root = (info.context or {}).get(ROOT)
    return path if root is None else os.path.normpath(os.path.join(root, os.path.expanduser(path)))


def _text(value: object) -> object:
    # YAML reads `60` as a number and `5m` as a text; both are times.
    return f"{value}s" if isinstance(value, int) and not isinstance(value, bool) else value


def _age(text: str) -> str:
    parse_age(text)
    return text


def _when(text: str) -> str:
    parse_interval(text)
    return text


def _size(text: str) -> str:
    parse_size(text)
    return text


def _name(text: str) -> str:
    return _refused(lambda: check_name(text, "name"))


def _alias(text: str) -> str:
    return _refused(lambda: check_alias(text))


def _refused(check: Callable[[], str]) -> str:
    try:
        return check()
    except CheckpointError as error:
        raise ValueError(error.message) from error


def _component(text: str) -> str:
    if text not in COMPONENTS:
        raise ValueError(f"is none of {', '.join(COMPONENTS)}")
    return text


def _web_address(text: str) -> str:
    if not text.startswith(("http://", "https://")):
        raise ValueError("is no http:// or https:// address")
    return text


PathText = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]
Duration = Annotated[str, BeforeValidator(_text), AfterValidator(_age)]
When = Annotated[str, BeforeValidator(_text), AfterValidator(_when)]
Size = Annotated[str, AfterValidator(_size)]
Name = Annotated[str, AfterValidator(_name)]
Alias = Annotated[str, AfterValidator(_alias)]
Component = Annotated[str, AfterValidator(_component)]
Function = Annotated[str, AfterValidator(check_function)]
Address = Annotated[str, AfterValidator(_web_address)]
Positive = Annotated[int, Field(gt=0)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ServerSettings(_Section):
    """Prefect's server: one that runs already, or the one that `ckpt up` starts."""

    url: Address | None = Field(
        default=None, description="The API of a server that runs already: http://host:4200/api."
    )
    host: str = Field(default="127.0.0.1", description="Where a server that is started here listens.")
    port: int = Field(default=4200, ge=1, le=65535, description="Its port.")
    state: PathText = Field(default=".ckpt", description="Its directory: database, settings and logs.")


class SourceSettings(_Section):
    """A training run, and what of each of its versions goes into a release."""

    path: PathText = Field(description="A directory of rank files, a step, or a run of checkpoint-<step>/ directories.")
    name: Name | None = Field(default=None, description="The name to publish under, where it is not the pipeline's.")
    alias: Alias | None = Field(default=None, description="The alias to move, where it is not the pipeline's.")
    component: Component | None = Field(
        default=None, description="model_state where it exists, unless another is named."
    )
    prefixes: tuple[str, ...] = Field(default=(), description="Take only the keys under these dotted prefixes.")
    keep_prefix: bool = Field(default=False, description="Keep the prefix in the names of the release.")
    include: tuple[str, ...] = Field(default=(), description="Take only keys that match one of these globs.")
    exclude: tuple[str, ...] = Field(default=(), description="Leave out keys that match one of these globs.")
    expectations: PathText | None = Field(
        default=None, description="A YAML of expected names, shapes, dtypes and counts."
    )
    max_shard_size: Size = Field(default="5GB", description="The largest shard.")
    attach: tuple[PathText, ...] = Field(default=(), description="Files to put into each release.")

    @property
    def selection(self) -> Selection:
        return Selection(self.prefixes, self.keep_prefix, self.include, self.exclude)


class CheckSettings(_Section):
    """What a release must pass before it becomes visible."""

    deep: bool = Field(default=False, description="Read every payload of the source too: replicas, NaN and Inf.")
    gpu: bool = Field(
        default=False, description="Load every tensor on a GPU, the CPU where there is none, and compare."
    )
    smoke: Function | None = Field(default=None, description="Your own function, module:function, that must accept it.")
    smoke_timeout: Duration = Field(default="10m", description="How long that function may take.")
    sign_key: PathText | None = Field(
        default=None, description="A PEM file with the private key that signs each release."
    )

    def options(self) -> GateOptions:
        return GateOptions(self.gpu, self.smoke, parse_age(self.smoke_timeout), self.sign_key)


class ScheduleSettings(_Section):
    """When what runs by itself: a time such as 5m, a cron line, or nothing for never."""

    reconcile: When | None = Field(default="5m", description="Publish what no event has led to.")
    post_training: When | None = Field(default=None, description="Publish the last step as candidate, prune, report.")
    prune: When | None = Field(default=None, description="Remove releases by the rules of retention.")
    audit: When | None = Field(default=None, description="Re-read the registry, every byte.")


class WatchSettings(_Section):
    """How sources are watched for trainers that announce nothing."""

    every: Duration = Field(default="5s", description="The pause between two looks at a source.")
    slowest: Duration = Field(default="1m", description="The longest pause, after long idleness.")
    settle: Positive = Field(
        default=3, description="Looks in which nothing may change before a version counts as written."
    )


class LimitSettings(_Section):
    """Back-pressure."""

    merges: Positive = Field(default=2, description="Merges at a time on one worker.")
    queued: Positive = Field(default=4, description="Runs that reconcile lets wait or run at a time.")


class RetentionSettings(_Section):
    """Which releases a prune keeps, beside those that an alias names or somebody pinned or leases."""

    last: Positive | None = Field(default=None, description="The last so many.")
    every: Positive | None = Field(default=None, description="Those whose step is a multiple of this.")
    newer_than: Duration | None = Field(default=None, description="Those younger than this.")

    def rules(self) -> tuple[Rule, ...]:
        """The rules of ``ckptcore.prune``; empty where none is given."""
        return (
            *([] if self.last is None else [KeepLast(self.last)]),
            *([] if self.every is None else [KeepEvery(self.every)]),
            *([] if self.newer_than is None else [KeepNewerThan(parse_age(self.newer_than))]),
        )


class NotificationSettings(_Section):
    """Somebody to tell, and what of: one of `webhook` and `block`."""

    webhook: Address | None = Field(default=None, description="An address that gets each alert as JSON, by POST.")
    block: str | None = Field(
        default=None, description="A notification block of the server, TYPE/NAME: slack-webhook/team."
    )
    alerts: tuple[Alert, ...] = Field(default=ALERTS, min_length=1, description="What to tell of.")


class Pipeline(_Section):
    """A pipeline from a training run to releases that serving mounts."""

    name: Name = Field(description="The pipeline, and the name that its releases are published under.")
    registry: PathText = Field(description="The directory that holds the releases.")
    alias: Alias = Field(default=DEFAULT_ALIAS, description="The alias that each new release gets.")
    sources: tuple[SourceSettings, ...] = Field(min_length=1, description="The training runs.")
    work_pool: str = Field(default="ckpt", min_length=1, description="The work pool whose workers run the flows.")
    server: ServerSettings = ServerSettings()
    checks: CheckSettings = CheckSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    stall: Duration | None = Field(default=None, description="No new version for so long raises the alert `stalled`.")
    watch: WatchSettings = WatchSettings()
    limits: LimitSettings = LimitSettings()
    retention: RetentionSettings = RetentionSettings()
    notifications: tuple[NotificationSettings, ...] = ()

    def name_of(self, source: SourceSettings) -> str:
        return source.name or self.name

    def alias_of(self, source: SourceSettings) -> str:
        return source.alias or self.alias

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the pipeline publishes under, in the order of its sources."""
        return tuple(self.name_of(source) for source in self.sources)


def intentions(pipeline: Pipeline) -> Iterator[str]:
    """What the pipeline would do, one sentence a line."""
    for source in pipeline.sources:
        found = "" if os.path.isdir(source.path) else " (not there yet)"
        what = f"every new version in {source.path}{found}"
        part = ", ".join(filter(None, [source.component or "", *(f"{prefix}.*" for prefix in source.prefixes)]))
        target = f"{pipeline.name_of(source)}@{pipeline.alias_of(source)}"
        yield f"publish {what}{f', {part},' if part else ''} as {target} in {pipeline.registry}"
    gates = [type(gate).__name__ for gate in pipeline.checks.options().gates()]
    yield f"let each release pass: verification, validation{''.join(f', {gate}' for gate in gates)}"
    for flow, when in pipeline.schedule:
        if when is not None:
            yield f"run {flow.replace('_', '-')} {_spoken(when)}"
    if pipeline.retention.rules():
        yield f"keep of the releases: {', '.join(map(str, pipeline.retention.rules()))}"
    if pipeline.stall is not None:
        yield f"alert where no version comes for {format_age(parse_age(pipeline.stall))}"
    for told in pipeline.notifications:
        yield f"tell {told.webhook or told.block} of: {', '.join(told.alerts)}"
    server = pipeline.server
    yield f"use the server at {server.url}" if server.url else f"start a server on {server.host}:{server.port}"


def _spoken(when: str) -> str:
    interval = parse_interval(when)
    return f"at {when!r}" if interval is None else f"every {format_age(interval)}"


def as_document(pipeline: Pipeline) -> Mapping[str, Any]:
    """The pipeline as a JSON object, every default written out."""
    return pipeline.model_dump(mode="json")
