"""``python -m tests.bench.scale``: what a run of very many ranks and tensors costs, stage by stage, beside the model.

Two runs of the same ranks and tensors: one of 1.5 TB whose payloads are holes in sparse files, as far as its plan and a
merge of a few tensors, and one of small payloads, whole, until its release is validated and published. An eighth of
each is measured first, and the model of ``docs/scale.md`` says what the whole should cost. Counted are CPU seconds of
the process, its threads and the kernel's work for it included, which say more than wall time on a busy machine.
Needs 10 GB of disk.
"""

from __future__ import annotations

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TypeVar

from ckptcore.detecting import list_versions
from ckptcore.header_scan import scan_metadata
from ckptcore.lifecycle import validate_staged
from ckptcore.merging import merge, plan
from ckptcore.publishing import publish_staged, stage
from ckptcore.rules.selection import Selection
from ckptcore.storage.local import Directories
from ckptcore.verifying import require_sound, verify
from tests.bench.contenders import REPOSITORY
from tests.bench.many_ranks import ManyRanks

T = TypeVar("T")

FULL = ManyRanks(1024, 150_000, 2500, 2000)
SMALL = ManyRanks(1024, 150_000, 16, 16)
PART = 8
"""What part of the run the constants of the model are taken from."""

SAMPLE = "model.layers.0.mlp.experts.[0-9].*"
"""Of the sparse run, 30 tensors of 10 MB."""


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage as it was measured; ``peak_bytes`` is the most that the process has held until its end."""

    name: str
    cpu_seconds: float
    seconds: float
    peak_bytes: int


class _Stages:
    """Runs stage after stage in this process."""

    def __init__(self) -> None:
        self.measured: list[Stage] = []

    def run(self, name: str, work: Callable[[], T]) -> T:
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.perf_counter()
        result = work()
        seconds, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_SELF)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        self.measured.append(Stage(name, cpu, seconds, after.ru_maxrss * 1024))
        print(json.dumps(asdict(self.measured[-1])), flush=True)
        return result


def measure(directory: Path, out: Path, *, is_sparse: bool) -> None:
    """Run the stages on one checkpoint, each printed as a line of JSON when it is done."""
    stages = _Stages()
    (version,) = list_versions(directory)
    listing = Directories().listing(version.directory)
    assert listing is not None
    stages.run("read metadata and index", lambda: scan_metadata(version, listing).finding)
    located = stages.run("verify", lambda: require_sound(verify(version)).checkpoint)
    if is_sparse:
        stages.run("plan", lambda: plan(located).digest)
        sample = plan(located, selection=Selection(include=(SAMPLE,)), max_shard_bytes=100_000_000)
        stages.run("merge of a sample", lambda: merge(sample, out / "sample").plan_digest)
        return
    planned = stages.run("plan", lambda: plan(located, max_shard_bytes=1_000_000))
    staged = stages.run("merge, digests and sync", lambda: stage(planned, out, "scale"))
    report = stages.run("validate", lambda: validate_staged(staged, ()))
    assert not report.issues
    stages.run("publish", lambda: publish_staged(staged))


def _child(arguments: Sequence[str]) -> list[Stage]:
    command = [sys.executable, "-m", "tests.bench.scale", *arguments]
    lines = subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True, text=True).stdout
    return [Stage(**json.loads(line)) for line in lines.splitlines()]


def _stages_of(run: ManyRanks, scratch: Path, *, is_sparse: bool) -> list[Stage]:
    directory = scratch / "run"
    print(f"writing {run}", file=sys.stderr, flush=True)
    sizes = [f"--{name}={value}" for name, value in asdict(run).items()]
    options = [*sizes, *(["--sparse"] if is_sparse else [])]
    writer = [sys.executable, "-m", "tests.bench.many_ranks", str(directory), *options]
    subprocess.run(writer, cwd=REPOSITORY, stdout=subprocess.DEVNULL, check=True)
    print("measuring", file=sys.stderr, flush=True)
    try:
        return _child(["--measure", str(directory), "--out", str(scratch), *(["--sparse"] if is_sparse else [])])
    finally:
        shutil.rmtree(directory)


def predicted(part: Stage, whole: ManyRanks, measured_on: ManyRanks) -> float:
    """CPU seconds of the same stage on the whole: every stage but the sample's is linear in pieces and rank files."""
    return part.cpu_seconds * (1 if "sample" in part.name else whole.tensors / measured_on.tensors)


def table(run: ManyRanks, part: Sequence[Stage], whole: Sequence[Stage], smaller: ManyRanks) -> str:
    """A line for each stage: CPU seconds of the part, predicted and measured of the whole, and the peak memory."""
    lines = [f"{'stage':<26}{'part':>10}{'predicted':>12}{'measured':>12}{'wall':>10}{'peak MB':>10}"]
    for one, all_of_it in zip(part, whole, strict=True):
        expected = predicted(one, run, smaller)
        lines.append(
            f"{one.name:<26}{one.cpu_seconds:>10.2f}{expected:>12.1f}{all_of_it.cpu_seconds:>12.1f}"
            f"{all_of_it.seconds:>10.1f}{all_of_it.peak_bytes / 1e6:>10,.0f}"
        )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.scale", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a hundredth of the ranks and tensors: does it run")
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"), metavar="DIR")
    parser.add_argument("--measure", type=Path, metavar="DIR", help="only the stages, on a checkpoint that is there")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where --measure puts what it merges")
    parser.add_argument("--sparse", action="store_true", help="that checkpoint's payloads are holes")
    arguments = parser.parse_args()
    if arguments.measure is not None:
        measure(arguments.measure, arguments.out, is_sparse=arguments.sparse)
        return
    share = 100 if arguments.quick else 1
    for run, is_sparse in ((FULL, True), (SMALL, False)):
        whole = ManyRanks(max(64, run.ranks // share), run.tensors // share, run.rows, run.columns)
        part = ManyRanks(max(64, whole.ranks // PART), whole.tensors // PART, run.rows, run.columns)
        with tempfile.TemporaryDirectory(prefix="ckptcore-scale-", dir=arguments.scratch) as scratch:
            of_part = _stages_of(part, Path(scratch), is_sparse=is_sparse)
        with tempfile.TemporaryDirectory(prefix="ckptcore-scale-", dir=arguments.scratch) as scratch:
            of_whole = _stages_of(whole, Path(scratch), is_sparse=is_sparse)
        print(whole, table(whole, of_part, of_whole, part), sep="\n", flush=True)


if __name__ == "__main__":
    main()
