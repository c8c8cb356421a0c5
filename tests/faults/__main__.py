"""``python -m tests.faults``: every fault everywhere, on two processes, and the table in docs/reliability.md.

Needs root (for strace and for mounts). Exits with status 1 where anything did not hold.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from pathlib import Path

from tests.faults import report
from tests.faults.commands import REPOSITORY, Commands, can_trace
from tests.faults.interleaving import TRAINERS, rivals, same_command, trainer_acts
from tests.faults.occasions import OCCASIONS, at_stage
from tests.faults.scenarios import RIVALS, SCENARIOS, Rivals, Scenario
from tests.faults.sweep import FAULTS, Tally, Theatre, sweep

PROCESSES = 2
READS_THE_SOURCE = ("merge", "merge --overwrite", "run, a newer step")

Job = Callable[[Commands, Path], list[Tally]]


def _jobs() -> dict[str, Job]:
    jobs: dict[str, Job] = {}
    for scenario in SCENARIOS:
        jobs[scenario.name] = partial(_sweeps, scenario)
    for pair in RIVALS:
        jobs[pair.name] = partial(_rivals, pair)
    jobs["occasions"] = _occasions
    return jobs


def _sweeps(scenario: Scenario, commands: Commands, directory: Path) -> list[Tally]:
    theatre = Theatre(commands, directory, scenario)
    # What a file system lacks changes how things are moved into place, not what is read and written before.
    faults = FAULTS if not scenario.without else [fault for fault in FAULTS if fault.is_crash]
    tallies = [*(sweep(theatre, fault) for fault in faults), same_command(theatre)]
    if scenario.name in READS_THE_SOURCE:
        tallies += [trainer_acts(theatre, trainer) for trainer in TRAINERS]
    return tallies


def _rivals(pair: Rivals, commands: Commands, directory: Path) -> list[Tally]:
    return [rivals(commands, directory, pair)]


def _occasions(commands: Commands, directory: Path) -> list[Tally]:
    tallies = []
    for occasion in OCCASIONS:
        if not occasion.is_possible:
            continue
        tally = Tally("", occasion.name)
        try:
            tally.injected = occasion.happen(at_stage(commands, directory / "stage"))
        except AssertionError as error:
            tally.failures.append(f"{occasion.name}: {error}")
        tallies.append(tally)
    return tallies


def _done(name: str) -> list[Tally]:
    """One job, in a process and a directory of its own, which other users may enter."""
    directory = Path(tempfile.mkdtemp(prefix="ckptcore-faults-"))
    os.chmod(directory, 0o755)
    try:
        with Commands(directory / "scratch") as commands:
            return _jobs()[name](commands, directory)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def main() -> int:
    options = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    options.add_argument("--page", type=Path, default=REPOSITORY / "docs" / "reliability.md", metavar="FILE")
    page: Path = options.parse_args().page
    if not can_trace():
        sys.stderr.write("Needs root and strace (apt-get install strace).\n")
        return 2
    os.nice(10)
    started = time.monotonic()
    order = list(_jobs())
    finished: dict[str, list[Tally]] = {}
    with ProcessPoolExecutor(PROCESSES) as pool:
        futures = {pool.submit(_done, name): name for name in order}
        for future in as_completed(futures):
            name = futures[future]
            finished[name] = future.result()
            for tally in finished[name]:
                verdict = f"{len(tally.failures)} FAILURES" if tally.failures else "held"
                missed = f" ({tally.missed} not reached)" if tally.missed else ""
                print(f"{verdict:<12} {tally.injected:>5} × {tally.fault}: {tally.scenario}{missed}", flush=True)
                for failure in tally.failures:
                    print(f"  {failure}", flush=True)
    tallies = [tally for name in order for tally in finished[name]]
    report.write(page, tallies)
    injected, failures = sum(tally.injected for tally in tallies), sum(len(tally.failures) for tally in tallies)
    print(f"{injected:,} faults, {failures} failures, in {(time.monotonic() - started) / 60:.0f} minutes")
    return int(failures > 0)


if __name__ == "__main__":
    raise SystemExit(main())
