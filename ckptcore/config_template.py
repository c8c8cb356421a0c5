"""The ``ckpt.yaml`` that ``ckpt init`` writes: commented, and filled with what one look at a source shows."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from ckptcore.detecting import list_versions
from ckptcore.errors import CheckpointError, OutputExists
from ckptcore.rules.layout import COMPONENTS
from ckptcore.rules.release import check_name
from ckptcore.storage.commit import write_file
from ckptcore.verifying import verify

_MOST_VERSIONS_ASKED = 3


@dataclass(frozen=True, slots=True)
class Look:
    """What a source holds: its components, and the first parts of the names of its newest version's tensors."""

    source: str
    versions: int
    components: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ()


def look_at(source: str) -> Look:
    """One look, headers only. Raises :class:`VersionNotFound` where there is no such directory."""
    versions = list_versions(source)
    components = tuple(name for name in COMPONENTS if any(_has(version.marks_directory, name) for version in versions))
    for version in versions[:_MOST_VERSIONS_ASKED]:
        try:
            located = verify(version).checkpoint
        except CheckpointError:
            continue  # a save under way says nothing yet
        prefixes = {tensor.spec.key.partition(".")[0] for tensor in located.tensors if "." in tensor.spec.key}
        return Look(source, len(versions), components, tuple(sorted(prefixes)))
    return Look(source, len(versions), components)


def _has(directory: str, component: str) -> bool:
    return os.path.isdir(os.path.join(directory, component))


def write_template(path: Path, source: str, registry: str, name: str) -> Look:
    """Write the file; relative paths are kept as they were given. Raises :class:`OutputExists`, and as
    :func:`look_at`."""
    check_name(name, "name")
    look = look_at(source)
    if os.path.lexists(path):
        raise OutputExists(f"{path} exists already; choose another file with --output")
    home = os.path.dirname(os.path.abspath(path))
    lines = template(look, os.path.relpath(source, home), os.path.relpath(registry, home), name)
    write_file(path, "".join(f"{line}\n" for line in lines).encode())
    return look


def template(look: Look, source: str, registry: str, name: str) -> Iterator[str]:
    """The lines of the file."""
    yield "# A pipeline, from a training run to releases that serving mounts. `ckpt check` says what it does,"
    yield "# `ckpt up` runs it. Relative paths are relative to this file; times are 90s, 5m, 2h, 7d or 2w."
    yield ""
    yield f"name: {_scalar(name)}                      # releases are published under this name …"
    yield f"registry: {_scalar(registry)}              # … in this directory"
    yield "alias: latest                    # what serving mounts; it only moves forward"
    yield ""
    yield "sources:"
    yield f"  - path: {_scalar(source)}              # {look.versions} version(s) when this was written"
    yield from _component_lines(look.components)
    yield from _prefix_lines(look.prefixes)
    yield "    # keep_prefix: true          # keep the prefix in the release's names"
    yield "    # include: ['*.weight']      # take only keys that match"
    yield "    # exclude: ['*.bias']        # leave out keys that match"
    yield "    # map: llama                 # a model family, a file of AOA statements, or the statements"
    yield "    # hf: config/llama           # configuration and tokenizer of this Hugging Face directory go in"
    yield "    # dtype: bfloat16            # round every float tensor"
    yield "    # keep_dtype: ['*.norm.*']   # but not these names"
    yield "    # expectations: shapes.yaml  # `ckpt expect` prints one from a release that is good"
    yield "    max_shard_size: 5GB"
    yield "    # attach: [LICENSE]          # configuration and tokenizer beside the checkpoint are found"
    yield f"  # - {{path: {_scalar(source)}, name: {_scalar(name + '-ema')}, prefixes: [ema]}}   # and a second release"
    yield ""
    yield "checks:                          # what a release must pass before anybody sees it"
    yield "  deep: false                    # read every payload of the source: replicas, NaN and Inf"
    yield "  gpu: false                     # load every tensor on a GPU, the CPU where there is none"
    # Not as the others: it does not go with the map above.
    yield "  ## engine: paddle              # without map and dtype: hold it against what Paddle's own loader makes"
    yield "  # smoke: my_tests:accepts      # your own function of the release's directory"
    yield "  # smoke_timeout: 10m"
    yield "  # smoke_gpus: 1                # GPUs that it gets for itself"
    yield "  # sign_key: key.pem"
    yield "# gpu_devices: 4                 # of each host, or [0, 2]; what NVML finds, unless it is said"
    yield "# gpu_work_pool: gpus            # its workers pass what needs a GPU; without, those that merge"
    yield ""
    yield "schedule:                        # a time, a cron line of five fields, or null for never"
    yield "  reconcile: 5m                  # publishes what no event has led to"
    yield "  # post_training: '0 6 * * *'   # the last step as `candidate`; or start it by hand at the end of a run"
    yield "  # prune: '0 3 * * *'           # needs retention"
    yield "  # audit: '0 4 * * 0'           # re-reads the registry, every byte"
    yield ""
    yield "# retention: {last: 5, every: 10000, newer_than: 7d}   # each rule keeps some, the rest goes"
    yield "# stall: 6h                      # no new version for so long raises an alert; needs notifications"
    yield "watch: {every: 5s, slowest: 1m, settle: 3}   # for trainers that announce nothing"
    yield "limits:"
    yield "  merges: 2                      # at a time"
    yield "  queued: 4                      # runs that reconcile lets wait"
    yield "  superseded: finish             # or stop a merge when a newer version is whole"
    yield ""
    yield "runner: threads                  # or Dask's processes write the shards: {dask: 'tcp://scheduler:8786'}"
    yield ""
    yield "# notifications:"
    yield "#   - webhook: https://example.org/hook"
    yield "#     alerts: [stalled, damaged, failed, refused, crashed]"
    yield ""
    yield "dashboard:                       # the page for operators; needs the extra: ckptcore[dashboard]"
    yield "  port: 4280"
    yield "  # allow_actions: true          # promote, roll back, pin, merge again, prune"
    yield "  # host: 0.0.0.0                # needs token_file or password_file"
    yield ""
    yield "# server:                        # without url, `ckpt up` starts one"
    yield "#   url: http://prefect.example.org:4200/api"
    yield "#   port: 4200"
    yield "#   state: .ckpt"


def _component_lines(components: Sequence[str]) -> Iterator[str]:
    if len(components) > 1:
        chosen = "model_state" if "model_state" in components else components[0]
        yield f"    component: {chosen}       # there are {', '.join(components)}"
    elif components:
        yield f"    component: {components[0]}"
    else:
        yield "    # component: model_state     # model_state where it exists"


def _prefix_lines(prefixes: Sequence[str]) -> Iterator[str]:
    if prefixes:
        shown = ", ".join(map(_scalar, prefixes))
        yield f"    # prefixes: [{shown}]   # take only the keys under one; without, all are taken"
    else:
        yield "    # prefixes: [model]          # take only the keys under it"


def _scalar(text: str) -> str:
    """The text as YAML spells it on one line."""
    return yaml.safe_dump([text], default_flow_style=True, allow_unicode=True, width=2**31).strip()[1:-1]
