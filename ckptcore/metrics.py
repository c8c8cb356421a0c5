"""What is observed, as metrics for Prometheus: made for each scrape from the last look, never by a look of its own.

Owns names, labels and units. Base units, one meaning a metric; every label is bounded by what is configured, by what
lies in a registry, or by a list of this package. Gathering is ``observing``'s and, of runs, the dashboard's; a server
that does not answer takes its own metrics away and no others.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib import metadata

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.exposition import choose_encoder
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ckptcore import errors
from ckptcore.errors import CheckpointError
from ckptcore.rules.addresses import public_address
from ckptcore.rules.observed import PipelineSeen, Snapshot, Stage
from ckptcore.rules.observed_runs import RunKind, RunSeen, ServerSeen, last_failure
from ckptcore.rules.pipeline import AUDIT, MERGE, PIN, POST_TRAINING, PROMOTE, PRUNE, RECONCILE, REFUSED, ROLLBACK
from ckptcore.rules.steps import VERBS

LABELS = ("pipeline", "name")
RECENT_SECONDS = 24 * 3600.0
"""Runs that ended longer ago are not counted as recent."""
MOST_ALIASES = 50
"""Of one name: whoever makes an alias for each release must not fill the memory of Prometheus."""
OTHER = "other"
"""What is in no list of this package."""
_FLOWS = frozenset({MERGE, RECONCILE, POST_TRAINING, PRUNE, AUDIT, PROMOTE, ROLLBACK, PIN})
_REFUSALS = frozenset(
    name for name, found in vars(errors).items() if isinstance(found, type) and issubclass(found, CheckpointError)
)


class SeenCollector(Collector):
    """The collector of what was seen last: everything that is watched, and each server by its address."""

    def __init__(self, snapshot: Snapshot, servers: Mapping[str, ServerSeen]) -> None:
        self._snapshot = snapshot
        self._servers = servers

    def collect(self) -> Iterator[Metric]:
        snapshot, servers, now = self._snapshot, self._servers, time.time()
        build = InfoMetricFamily("ckpt_build", "The version of ckptcore that is asked.")
        build.add_metric((), {"version": metadata.version("ckptcore")})
        yield build
        looked = GaugeMetricFamily("ckpt_snapshot_age_seconds", "How long ago sources and registries were looked at.")
        if snapshot.at:
            looked.add_metric((), max(0.0, now - snapshot.at))
        yield looked
        yield from _of_sources(snapshot.pipelines, now)
        yield from _of_registries(snapshot.pipelines)
        yield from _of_work(snapshot.pipelines)
        yield from _of_aliases(snapshot.pipelines, now)
        yield from _of_disks(snapshot.pipelines)
        yield from _of_servers(servers.values())
        yield from _of_runs(snapshot.pipelines, servers, now)


def exposition(snapshot: Snapshot, servers: Mapping[str, ServerSeen], accept: str) -> tuple[bytes, str]:
    """All metrics in the format that ``accept`` asks for, and its content type."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(SeenCollector(snapshot, servers))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _of_sources(pipelines: Iterable[PipelineSeen], now: float) -> Iterator[Metric]:
    info = InfoMetricFamily("ckpt_pipeline", "What is watched, and where.", labels=LABELS)
    versions = _gauge("ckpt_versions", "Versions of the source by state.", "state")
    step = _gauge("ckpt_newest_step", "Training step of the newest version in each state.", "state")
    age = _gauge("ckpt_newest_age_seconds", "Time since the newest version in each state last changed.", "state")
    quiet = _gauge("ckpt_quiet_seconds", "Time since any version last changed: the stall clock.")
    limit = _gauge("ckpt_stall_limit_seconds", "How long the stall clock may run, where that is configured.")
    stalled = _gauge("ckpt_stalled", "1 where the stall clock has run for longer than it may.")
    lag = _gauge("ckpt_publication_lag_seconds", "How long the newest complete version has waited for its release.")
    delay = _gauge("ckpt_publication_delay_seconds", "From the last byte of the newest published version on.")
    troubles = _gauge("ckpt_troubles", "Things of the source or the registry that cannot be read.")
    for seen in pipelines:
        labels = _labels(seen)
        watched = seen.watched
        where = {"source": watched.source, "registry": watched.registry, "alias": watched.alias}
        info.add_metric(labels, {key: _text(value) for key, value in where.items()})
        for state in Stage:
            versions.add_metric((*labels, state.value), seen.counts.get(state, 0))
            newest = next((version for version in seen.versions if version.stage is state), None)
            if newest is not None and newest.step is not None:
                step.add_metric((*labels, state.value), newest.step)
            if newest is not None and newest.seen_at is not None:
                age.add_metric((*labels, state.value), max(0.0, now - newest.seen_at))
        _add(quiet, labels, seen.quiet_seconds(now))
        _add(limit, labels, watched.stall_seconds)
        if watched.stall_seconds is not None:
            stalled.add_metric(labels, seen.is_stalled(now))
        if seen.newest_complete is not None:
            lag.add_metric(labels, seen.waits_seconds(now) or 0.0)
        _add(delay, labels, seen.took_seconds)
        troubles.add_metric(labels, len(seen.troubles))
    yield from (info, versions, step, age, quiet, limit, stalled, lag, delay, troubles)


def _of_registries(pipelines: Iterable[PipelineSeen]) -> Iterator[Metric]:
    releases = _gauge("ckpt_releases", "Releases that lie in the registry.")
    size = _gauge("ckpt_registry_bytes", "Bytes of the releases of a name, once all of them were measured.")
    for seen in pipelines:
        if seen.watched.registry:
            releases.add_metric(_labels(seen), len(seen.releases))
            if seen.is_measured:
                size.add_metric(_labels(seen), seen.used_bytes)
    yield from (releases, size)


def _of_work(pipelines: Iterable[PipelineSeen]) -> Iterator[Metric]:
    publications = _counter("ckpt_publications", "Releases that were published, as the history says.")
    seconds = _counter("ckpt_step_seconds", "Time that the steps of publishing took, as the history says.", "verb")
    moved = _counter("ckpt_step_bytes", "Bytes that the steps of publishing read or wrote.", "verb")
    last = _gauge("ckpt_last_step_seconds", "Time that each step of the last publication took.", "verb")
    rate = _gauge("ckpt_last_step_bytes_per_second", "Throughput of each step of the last publication.", "verb")
    for seen in pipelines:
        if not seen.watched.registry:
            continue
        labels, work = _labels(seen), seen.work
        publications.add_metric(labels, work.publications)
        for verb in VERBS:
            if (total := work.total.get(verb)) is not None:
                seconds.add_metric((*labels, verb), total.seconds)
                moved.add_metric((*labels, verb), total.size_bytes)
            if (one := work.last.get(verb)) is not None:
                last.add_metric((*labels, verb), one.seconds)
                if one.size_bytes and one.seconds:
                    rate.add_metric((*labels, verb), one.size_bytes / one.seconds)
    yield from (publications, seconds, moved, last, rate)


def _of_aliases(pipelines: Iterable[PipelineSeen], now: float) -> Iterator[Metric]:
    step = _gauge("ckpt_alias_step", "Training step of the release that an alias names.", "alias")
    age = _gauge("ckpt_alias_age_seconds", "Time since an alias last moved.", "alias")
    broken = _gauge("ckpt_alias_broken", "1 where an alias names a release that does not exist.", "alias")
    for seen in pipelines:
        for alias in seen.aliases[:MOST_ALIASES]:
            labels = (*_labels(seen), _text(alias.alias))
            _add(step, labels, alias.step)
            _add(age, labels, None if alias.since is None else max(0.0, now - alias.since))
            broken.add_metric(labels, not alias.exists)
    yield from (step, age, broken)


def _of_disks(pipelines: Iterable[PipelineSeen]) -> Iterator[Metric]:
    total = GaugeMetricFamily("ckpt_disk_size_bytes", "The file system of a registry.", labels=("registry",))
    free = GaugeMetricFamily("ckpt_disk_free_bytes", "… and what is free of it.", labels=("registry",))
    grows = GaugeMetricFamily(
        "ckpt_disk_growth_bytes_per_second",
        "What publishing adds, net of what is pruned.",
        labels=("registry",),
    )
    disks = {seen.watched.registry: seen.disk for seen in pipelines if seen.disk is not None}
    for registry, disk in disks.items():
        total.add_metric((_text(registry),), disk.total_bytes)
        free.add_metric((_text(registry),), disk.free_bytes)
        grows.add_metric((_text(registry),), disk.grows_bytes_a_second)
    yield from (total, free, grows)


def _of_servers(servers: Iterable[ServerSeen]) -> Iterator[Metric]:
    up = GaugeMetricFamily("ckpt_prefect_up", "1 where Prefect's server answers.", labels=("server",))
    late = GaugeMetricFamily("ckpt_prefect_late_runs", "Runs that wait beyond their time.", labels=("server",))
    scheduled = GaugeMetricFamily("ckpt_prefect_scheduled_runs", "Runs whose time is yet to come.", labels=("server",))
    for server in servers:
        address = (_text(public_address(server.url)),)
        up.add_metric(address, server.is_reachable)
        if server.is_reachable:
            late.add_metric(address, server.late_count)
            scheduled.add_metric(address, server.scheduled_count)
    yield from (up, late, scheduled)


def _of_runs(pipelines: Iterable[PipelineSeen], servers: Mapping[str, ServerSeen], now: float) -> Iterator[Metric]:
    """Runs that publish a name count for it, those for a whole pipeline for the name ""."""
    queue = _gauge("ckpt_prefect_runs", "Flow runs that a worker has taken: waiting or running.", "flow", "state")
    ended = _gauge("ckpt_prefect_recent_runs", "Flow runs that ended within a day, by outcome.", "flow", "state")
    refused = _gauge("ckpt_prefect_recent_refusals", "Flow runs that were refused within a day, by kind.", "kind")
    failing = _gauge("ckpt_prefect_failing", "1 where a run failed and no later one went well.", "flow")
    for labels, runs in _runs_by_name(pipelines, servers):
        flows = {_flow(run) for run in runs} | ({MERGE} if labels[1] else set())
        recent = [run for run in runs if run.ended_at is not None and now - run.ended_at <= RECENT_SECONDS]
        for flow in sorted(flows):
            mine = [run for run in runs if _flow(run) == flow]
            for state in (RunKind.WAITING, RunKind.RUNNING):
                queue.add_metric((*labels, flow, state.value), sum(run.kind is state for run in mine))
            for state in (RunKind.DONE, RunKind.FAILED, RunKind.STOPPED):
                count = sum(run.kind is state for run in recent if _flow(run) == flow)
                ended.add_metric((*labels, flow, state.value), count)
            failing.add_metric((*labels, flow), last_failure(mine) is not None)
        for kind, count in sorted(Counter(filter(None, map(_refusal_of, recent))).items()):
            refused.add_metric((*labels, kind), count)
    yield from (queue, ended, refused, failing)


def _runs_by_name(
    pipelines: Iterable[PipelineSeen], servers: Mapping[str, ServerSeen]
) -> Iterator[tuple[tuple[str, str], list[RunSeen]]]:
    """The runs of each name, and of each pipeline, whose server answers."""
    told = set[str]()
    for seen in pipelines:
        watched = seen.watched
        server = servers.get(watched.server)
        if server is None or not server.is_reachable or not watched.pipeline:
            continue
        runs = server.of(watched)
        yield _labels(seen), [run for run in runs if run.flow == MERGE]
        if watched.pipeline not in told:
            told.add(watched.pipeline)
            yield (_text(watched.pipeline), ""), [run for run in runs if run.flow != MERGE]


def _flow(run: RunSeen) -> str:
    return run.flow if run.flow in _FLOWS else OTHER


def _refusal_of(run: RunSeen) -> str:
    """The class of the refusal that ended the run, "" where it was none; Prefect's own words may stand before it."""
    if run.kind is not RunKind.FAILED:
        return ""
    words = run.message.partition("\n")[0].split(": ")[:2]
    return next((word for word in words if word in _REFUSALS), OTHER if run.state == REFUSED else "")


def _labels(seen: PipelineSeen) -> tuple[str, str]:
    return _text(seen.watched.pipeline), _text(seen.key)


def _text(text: str) -> str:
    """A path may hold bytes that are no UTF-8, which no label can; quotes and line ends are the library's to escape."""
    return text.encode(errors="backslashreplace").decode()


def _gauge(name: str, help_text: str, *more: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, help_text, labels=(*LABELS, *more))


def _counter(name: str, help_text: str, *more: str) -> CounterMetricFamily:
    return CounterMetricFamily(name, help_text, labels=(*LABELS, *more))


def _add(metric: GaugeMetricFamily, labels: tuple[str, ...], value: float | None) -> None:
    if value is not None:
        metric.add_metric(labels, value)
