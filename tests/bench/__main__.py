"""``make bench``: how fast ``ckpt merge`` is, beside ``cp``, ``sha256sum``, Paddle and torch, in one run.

Prints one table and writes it, with every single run, as JSON. Exits with status 1 where a ``ckpt merge`` failed;
nothing fails because something was slow.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.bench import contenders as to
from tests.bench.contenders import REPOSITORY, Source
from tests.bench.measuring import Contender, Measured, contest
from tests.bench.report import document, reaches, row, table


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured. A slow contender is one that takes many times as long as ``cp``."""

    hidden: int
    layers: int
    matrices: int
    tensors: int
    rank_files: int
    rounds: int
    slow_rounds: int


FULL = Scale(hidden=2560, layers=12, matrices=18, tensors=10_000, rank_files=1_000, rounds=5, slow_rounds=2)
QUICK = Scale(hidden=256, layers=2, matrices=4, tensors=200, rank_files=40, rounds=1, slow_rounds=1)

_WRITER = [sys.executable, "-m", "tests.bench.checkpoints"]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small sizes, one round: does it run, not how fast it is")
    parser.add_argument("--json", type=Path, default=Path("bench-results.json"), metavar="PATH")
    parser.add_argument("--scratch", type=Path, default=Path("/var/tmp"), metavar="DIR", help="on a disk, 10 GB free")
    parser.add_argument(
        "--python", type=Path, action="append", default=[], metavar="PATH",
        help="one more interpreter to look for Paddle and torch in; may be repeated",
    )  # fmt: skip
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))  # so that the scratch is deleted
    scratch = Path(tempfile.mkdtemp(prefix="ckptcore-bench-", dir=arguments.scratch))
    try:
        scale = QUICK if arguments.quick else FULL
        measured, linear = _measure(scale, scratch, to.known_interpreters(arguments.python))
    finally:
        shutil.rmtree(scratch)
    reached = reaches(measured, ("columns", "rows"), linear)
    about = {"quick": arguments.quick, "machine": _machine(), "scratch": str(arguments.scratch)}
    arguments.json.write_text(json.dumps(document(measured, reached, about), indent=2) + "\n")
    print(table([row(one) for one in measured]))
    if not arguments.quick:  # the time of small sizes is start-up, which compares with nothing
        print("", *reached, sep="\n")
    print(f"\nwritten to {arguments.json}")
    if any(one.failure for one in measured if one.contender.name in (to.MERGE, to.MERGE_WITHOUT_DIGESTS)):
        raise SystemExit(1)


def _measure(
    scale: Scale, scratch: Path, interpreters: Sequence[Path]
) -> tuple[list[Measured], list[tuple[str, str, str, float]]]:
    """All measurements, and which checkpoints differ in one way only. Each is deleted when it is done with."""
    measured: list[Measured] = []

    def race(*racing: Contender, rounds: int = scale.rounds) -> None:
        _tell(f"measuring {', '.join(dict.fromkeys(f'{c.checkpoint}: {c.name}' for c in racing))}")
        measured.extend(contest(racing, scratch, rounds=rounds, warm_up=scale is FULL))

    mixed = _generate("mixed", "mixed", scale.hidden, scale.layers, scratch)
    ours = [to.merge(mixed, digests=False), to.merge(mixed, digests=True)]
    others = [to.cp_and_sha256sum(mixed), *_rivals(mixed, scale, scratch, interpreters)]
    race(*ours, *others)
    race(
        to.merge(_named(mixed, "mixed, laid out"), digests=True),
        *(
            to.laid_out(_named(mixed, "mixed, laid out"), name, scale.hidden // 64, scratch)
            for name in (to.TRANSPOSED, to.FUSED, to.CAST)
        ),
    )
    half = _generate("half of mixed", "mixed", scale.hidden, scale.layers // 2, scratch)
    whole = _named(mixed, "all of mixed")
    race(to.merge(half, digests=True), to.merge(whole, digests=True))
    _delete(mixed, half)

    rows, columns = (_generate(name, name, scale.hidden, scale.matrices, scratch) for name in ("rows", "columns"))
    race(to.merge(rows, digests=False), to.merge(columns, digests=False))
    _delete(rows, columns)

    tensors, files = scale.tensors, scale.rank_files
    few_tensors, few_files, most = (
        _generate(f"{t:,} tensors in {f:,} files", "many", t, f, scratch)
        for t, f in ((tensors // 10, files // 10), (tensors, files // 10), (tensors, files))
    )
    race(*(to.merge(source, digests=True) for source in (few_tensors, few_files, most)))
    _delete(few_tensors, few_files, most)
    return measured, [
        ("bytes", whole.name, half.name, 2.0),
        ("tensors", few_files.name, few_tensors.name, 10.0),
        ("rank files", most.name, few_files.name, 10.0),
    ]


def _rivals(source: Source, scale: Scale, scratch: Path, interpreters: Sequence[Path]) -> list[Contender]:
    """Paddle's and torch's merge, each where an interpreter has it."""
    rivals = []
    with_paddle = to.interpreter_with(["paddle"], interpreters)
    if with_paddle is not None:
        rivals.append(to.paddle_merge(source, with_paddle, most_rounds=scale.slow_rounds))
    with_torch = to.interpreter_with(["torch", "safetensors"], interpreters)
    if with_torch is not None:
        shards = scratch / "torch"
        _write("mixed", scale.hidden, scale.layers, shards, "--for", "torch")
        rivals.append(to.torch_consolidate(source, shards, with_torch, most_rounds=scale.slow_rounds))
    for rival, interpreter in ((to.PADDLE, with_paddle), (to.TORCH, with_torch)):
        _tell(f"{rival}: {interpreter or 'not measured, since no interpreter has it'}")
    return rivals


def _generate(name: str, layout: str, first: int, second: int, scratch: Path) -> Source:
    directory = scratch / name.replace(" ", "-").replace(",", "")
    _tell(f"generating {name}")
    return Source(name, directory, **json.loads(_write(layout, first, second, directory)))


def _write(layout: str, first: int, second: int, directory: Path, *options: str) -> bytes:
    # In a process of its own: numpy here would count into the peak memory of every child.
    command = [*_WRITER, layout, str(first), str(second), str(directory), *options]
    return subprocess.run(command, cwd=REPOSITORY, stdout=subprocess.PIPE, check=True).stdout


def _named(source: Source, name: str) -> Source:
    """The same checkpoint under another name in the table, for another comparison."""
    return Source(name, source.directory, source.size_bytes, source.tensors, source.pieces, source.rank_files)


def _delete(*sources: Source) -> None:
    for source in sources:
        shutil.rmtree(source.directory)


def _machine() -> dict[str, object]:
    return {
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),  # much more than 1 says that other work was measured too
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
