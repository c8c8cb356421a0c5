"""A pipeline: from which training runs, through which checks, to which releases, and who is told.

Models of pydantic, so that Prefect's interface shows a form where a flow takes one; with ``config``, which reads them
from ``ckpt.yaml``, the only module of the library that imports pydantic.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ckptcore.mappings import mapping
from ckptcore.pipeline_fields import (
    Address,
    Alias,
    BlockName,
    Component,
    Dask,
    DeviceIndexes,
    Dtype,
    Duration,
    Function,
    Map,
    Natural,
    PathText,
    Pool,
    Positive,
    Ray,
    ServedName,
    Size,
    StallDuration,
    When,
)
from ckptcore.rules.gates import GateOptions
from ckptcore.rules.output_layout import OutputLayout
from ckptcore.rules.release import DEFAULT_ALIAS
from ckptcore.rules.retention import KeepEvery, KeepLast, KeepNewerThan, Rule, parse_age
from ckptcore.rules.selection import Selection
from ckptcore.rules.sizes import parse_size

Alert = Literal["stalled", "damaged", "failed", "refused", "crashed"]
ALERTS: tuple[Alert, ...] = ("stalled", "damaged", "failed", "refused", "crashed")


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


class SourceChoice(_Section):
    """A training run, what of each of its versions goes into a release, and in which layout."""

    path: PathText = Field(description="A directory of rank files, a step, or a run of checkpoint-<step>/ directories.")
    component: Component | None = Field(
        default=None, description="model_state where it exists, unless another is named."
    )
    prefixes: tuple[str, ...] = Field(default=(), description="Take only the keys under these dotted prefixes.")
    keep_prefix: bool = Field(default=False, description="Keep the prefix in the names of the release.")
    include: tuple[str, ...] = Field(default=(), description="Take only keys that match one of these globs.")
    exclude: tuple[str, ...] = Field(default=(), description="Leave out keys that match one of these globs.")
    map: Map | None = Field(
        default=None, description="A preset (a model family), a file of AOA statements, or the statements."
    )
    hf: PathText | None = Field(
        default=None,
        description="The directory of the Hugging Face model whose configuration and tokenizer go into each release.",
    )
    dtype: Dtype | None = Field(default=None, description="Round every float tensor to this dtype.")
    keep_dtype: tuple[str, ...] = Field(
        default=(), description="But not the tensors whose names match one of these globs."
    )
    expectations: PathText | None = Field(
        default=None, description="A YAML of expected names, shapes, dtypes and counts."
    )
    max_shard_size: Size = Field(default="5GB", description="The largest shard.")
    attach: tuple[PathText, ...] = Field(
        default=(),
        description="Files to put into each release; configuration and tokenizer beside the source are found.",
    )

    @model_validator(mode="after")
    def _only_what_is_cast_can_be_kept(self) -> SourceChoice:
        if self.keep_dtype and self.dtype is None:
            raise ValueError("keep_dtype says what dtype leaves alone; give both")
        return self

    @property
    def selection(self) -> Selection:
        return Selection(self.prefixes, self.keep_prefix, self.include, self.exclude)

    @property
    def max_shard_bytes(self) -> int:
        return parse_size(self.max_shard_size)

    def layout(self) -> OutputLayout:
        """The layout, its map read from its file. Raises :class:`MappingError` for one that cannot be read."""
        return OutputLayout(None if self.map is None else mapping(self.map), self.hf, self.dtype, self.keep_dtype)


class SourceSettings(SourceChoice):
    """A source of a pipeline, and where its releases go if not to where the pipeline says."""

    name: ServedName | None = Field(
        default=None, description="The name to publish under, where it is not the pipeline's."
    )
    alias: Alias | None = Field(default=None, description="The alias to move, where it is not the pipeline's.")

    @property
    def choice(self) -> SourceChoice:
        """The source alone, as a flow takes it."""
        return SourceChoice.model_validate(self.model_dump(exclude={"name", "alias"}))


class CheckSettings(_Section):
    """What a release must pass before it becomes visible."""

    deep: bool = Field(default=False, description="Read every payload of the source too: replicas, NaN and Inf.")
    gpu: bool = Field(
        default=False, description="Load every tensor on a GPU, the CPU where there is none, and compare."
    )
    engine: Literal["paddle"] | None = Field(
        default=None, description="Merge with Paddle's own loader on a GPU too, and compare every byte."
    )
    smoke: Function | None = Field(default=None, description="Your own function, module:function, that must accept it.")
    smoke_timeout: Duration = Field(default="10m", description="How long that function may take.")
    smoke_gpus: Natural = Field(default=0, description="How many GPUs it gets for itself; 0: it sees all.")
    sign_key: PathText | None = Field(
        default=None, description="A PEM file with the private key that signs each release."
    )

    def options(self) -> GateOptions:
        return GateOptions(
            check=self.gpu,
            engine=self.engine is not None,
            smoke=self.smoke,
            smoke_timeout_seconds=parse_age(self.smoke_timeout),
            smoke_gpus=self.smoke_gpus,
            sign_key=self.sign_key,
        )

    @classmethod
    def of(cls, options: GateOptions) -> CheckSettings:
        """The settings that give these options, times rounded up to seconds."""
        return cls(
            gpu=options.check,
            engine="paddle" if options.engine else None,
            smoke=options.smoke,
            smoke_timeout=f"{math.ceil(options.smoke_timeout_seconds)}s",
            smoke_gpus=options.smoke_gpus,
            sign_key=options.sign_key,
        )


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

    merges: Positive = Field(default=2, description="Merges at a time, whatever room workers have.")
    queued: Positive = Field(default=4, description="Runs that reconcile lets wait or run at a time.")
    superseded: Literal["finish", "stop"] = Field(
        default="finish",
        description="What a merge does when a newer version is whole; every third one finishes in any case.",
    )


class RunnerSettings(_Section):
    """Who writes the shards of a release: the threads of the flow's process, or other processes."""

    dask: Dask | None = Field(
        default=None,
        description="Workers of Dask: tcp://host:8786, the scheduler of a cluster, or how many to start here.",
    )
    ray: Ray | None = Field(
        default=None, description="Or of Ray: ray://host:10001, a cluster's address, or how many to start here."
    )

    @model_validator(mode="before")
    @classmethod
    def _threads_are_the_default(cls, value: Any) -> Any:
        if value == "threads":
            return {}
        if not isinstance(value, (Mapping, cls)):
            raise ValueError("is neither `threads` nor `{dask: …}` nor `{ray: …}`")
        return value

    @model_validator(mode="after")
    def _only_one(self) -> RunnerSettings:
        if self.dask is not None and self.ray is not None:
            raise ValueError("names two; give one of dask and ray")
        return self

    @property
    def is_threads(self) -> bool:
        return self.dask is None and self.ray is None


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
    block: BlockName | None = Field(
        default=None, description="A notification block of the server, TYPE/NAME: slack-webhook/team."
    )
    alerts: tuple[Alert, ...] = Field(default=ALERTS, min_length=1, description="What to tell of.")


class DashboardSettings(_Section):
    """The page for operators that `ckpt up` runs."""

    host: str = Field(default="127.0.0.1", description="Where it listens; elsewhere it needs a secret.")
    port: int = Field(default=4280, ge=1, le=65535, description="Its port.")
    allow_actions: bool = Field(default=False, description="Let it promote, roll back, pin, merge again and prune.")
    token_file: PathText | None = Field(default=None, description="Ask for the token in this file.")
    password_file: PathText | None = Field(default=None, description="Ask for the NAME:PASSWORD in this file.")


class Pipeline(_Section):
    """A pipeline from a training run to releases that serving mounts."""

    name: ServedName = Field(description="The pipeline, and the name that its releases are published under.")
    registry: PathText = Field(description="The directory that holds the releases.")
    alias: Alias = Field(default=DEFAULT_ALIAS, description="The alias that each new release gets.")
    sources: tuple[SourceSettings, ...] = Field(min_length=1, description="The training runs.")
    work_pool: Pool = Field(default="ckpt", description="The work pool whose workers run the flows.")
    gpu_work_pool: Pool | None = Field(
        default=None, description="The work pool whose workers pass the gates that need a GPU."
    )
    gpu_devices: DeviceIndexes | None = Field(
        default=None, description="How many GPUs each host has, or which; what NVML finds, unless it is said."
    )
    server: ServerSettings = ServerSettings()
    checks: CheckSettings = CheckSettings()
    schedule: ScheduleSettings = ScheduleSettings()
    stall: StallDuration | None = Field(
        default=None, description="No new version for so long raises the alert `stalled`."
    )
    watch: WatchSettings = WatchSettings()
    limits: LimitSettings = LimitSettings()
    runner: RunnerSettings = RunnerSettings()
    retention: RetentionSettings = RetentionSettings()
    notifications: tuple[NotificationSettings, ...] = ()
    dashboard: DashboardSettings | None = Field(default=None, description="The page for operators; none if not given.")

    def name_of(self, source: SourceSettings) -> str:
        return source.name or self.name

    def alias_of(self, source: SourceSettings) -> str:
        return source.alias or self.alias

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the pipeline publishes under, in the order of its sources."""
        return tuple(self.name_of(source) for source in self.sources)


def as_document(pipeline: Pipeline) -> Mapping[str, Any]:
    """The pipeline as a JSON object, every default written out."""
    return pipeline.model_dump(mode="json")
