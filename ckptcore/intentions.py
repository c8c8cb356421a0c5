"""What a pipeline would do, told before anything is done."""

from __future__ import annotations

import os
from collections.abc import Iterator

from ckptcore.pipeline import Pipeline
from ckptcore.rules.gates import divided
from ckptcore.rules.pipeline import parse_interval
from ckptcore.rules.retention import format_age, parse_age


def intentions(pipeline: Pipeline) -> Iterator[str]:
    """What the pipeline would do, one sentence a line."""
    for source in pipeline.sources:
        found = "" if os.path.isdir(source.path) else " (not there yet)"
        what = f"every new version in {source.path}{found}"
        part = ", ".join(filter(None, [source.component or "", *(f"{prefix}.*" for prefix in source.prefixes)]))
        if source.map is not None:
            part = f"{part} laid out by {source.map if isinstance(source.map, str) else 'its statements'}".lstrip()
        if source.dtype is not None:
            part = f"{part} rounded to {source.dtype}".lstrip()
        target = f"{pipeline.name_of(source)}@{pipeline.alias_of(source)}"
        yield f"publish {what}{f', {part},' if part else ''} as {target} in {pipeline.registry}"
    gates = pipeline.checks.options().gates()
    yield f"let each release pass: verification, validation{''.join(f', {type(gate).__name__}' for gate in gates)}"
    if pipeline.gpu_work_pool is not None or divided(gates)[0]:
        yield from _on_devices(pipeline)
    for engine, place in pipeline.runner:
        if place is not None:
            whom = f"the cluster at {place}" if isinstance(place, str) else f"{place} processes on its own machine"
            yield f"have the shards of each release written by {engine.title()}: {whom}"
    for flow, when in pipeline.schedule:
        if when is not None:
            yield f"run {flow.replace('_', '-')} {_spoken(when)}"
    if pipeline.limits.superseded == "stop":
        yield "stop a merge when a newer version is whole, but let every third one finish"
    if pipeline.retention.rules():
        yield f"keep of the releases: {', '.join(map(str, pipeline.retention.rules()))}"
    if pipeline.stall is not None:
        age = format_age(parse_age(pipeline.stall))
        if any("stalled" in told.alerts for told in pipeline.notifications):
            yield f"alert where no version comes for {age}"
        else:
            yield f"warning: tell nobody where no version comes for {age}: stall needs notifications with stalled"
    for told in pipeline.notifications:
        yield f"tell {told.webhook or told.block} of: {', '.join(told.alerts)}"
    if (page := pipeline.dashboard) is not None:
        may = "and let operators act" if page.allow_actions else "which changes nothing"
        yield f"show a page for operators on {page.host}:{page.port}, {may}"
    server = pipeline.server
    yield f"use the server at {server.url}" if server.url else f"start a server on {server.host}:{server.port}"


def _on_devices(pipeline: Pipeline) -> Iterator[str]:
    pool, devices = pipeline.gpu_work_pool, pipeline.gpu_devices
    where = "where a release is merged" if pool is None else f"in the work pool {pool}, for which a worker must run"
    found = "what NVML finds" if devices is None else ", ".join(map(str, devices)) or "none, the CPU"
    yield f"pass what needs a GPU {where}; the GPUs of a host: {found}"


def _spoken(when: str) -> str:
    interval = parse_interval(when)
    return f"at {when!r}" if interval is None else f"every {format_age(interval)}"
