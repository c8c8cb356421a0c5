"""Faults on the real thing, as far as a minute goes: `make faults` makes every one of them everywhere."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.commands import Commands, can_trace
from tests.faults.interleaving import TRAINERS, Trainer, rivals, same_command, trainer_acts
from tests.faults.occasions import OCCASIONS, Occasion, at_stage
from tests.faults.report import BEGIN, END, write
from tests.faults.scenarios import RIVALS, SCENARIOS, Rivals, Scenario
from tests.faults.sweep import FAULTS, Fault, Tally, Theatre, sweep
from tests.faults.tracing import Point, points

traced = pytest.mark.skipif(not can_trace(), reason="needs root and strace")
NEWER = next(scenario for scenario in SCENARIOS if scenario.name == "run, a newer step")


@pytest.fixture(scope="module")
def directory() -> Iterator[Path]:
    """A directory that another user may enter, which pytest's own is not."""
    path = Path(tempfile.mkdtemp(prefix="ckptcore-faults-"))
    os.chmod(path, 0o755)
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def commands(directory: Path) -> Iterator[Commands]:
    with Commands(directory / "scratch") as server:
        yield server


@pytest.fixture(scope="module")
def newer(commands: Commands, directory: Path) -> Theatre:
    return Theatre(commands, directory / "newer", NEWER)


def require_held(tally: Tally) -> None:
    assert tally.injected > 0
    assert not tally.failures, "\n".join(tally.failures)


@traced
@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda scenario: scenario.name)
def test_killed_at_any_call(commands: Commands, directory: Path, scenario: Scenario) -> None:
    require_held(sweep(Theatre(commands, directory / "any", scenario), FAULTS[0], every=41))


@traced
@pytest.mark.parametrize("fault", FAULTS[1:], ids=lambda fault: fault.name)
def test_an_error_of_any_call(newer: Theatre, fault: Fault) -> None:
    require_held(sweep(newer, fault, every=31 if len(fault.calls) > 5 else 5))


@traced
def test_another_process_of_the_same_command(newer: Theatre) -> None:
    require_held(same_command(newer, every=41))


@traced
@pytest.mark.parametrize("trainer", TRAINERS, ids=lambda trainer: trainer.name)
def test_a_trainer_that_acts_meanwhile(newer: Theatre, trainer: Trainer) -> None:
    require_held(trainer_acts(newer, trainer, every=41))


@traced
@pytest.mark.parametrize("pair", RIVALS, ids=lambda pair: pair.name)
def test_another_process_of_another_command(commands: Commands, directory: Path, pair: Rivals) -> None:
    require_held(rivals(commands, directory / "rivals", pair, every=29))


@traced
@pytest.mark.parametrize("occasion", OCCASIONS, ids=lambda occasion: occasion.name)
def test_occasion(commands: Commands, directory: Path, occasion: Occasion) -> None:
    if not occasion.is_possible:
        pytest.skip(f"needs {occasion.program}")
    assert occasion.happen(at_stage(commands, directory / "stage")) > 0


TRACE = """\
7 openat(AT_FDCWD</>, "/lib/x", O_RDONLY) = 3</lib/x>
7 openat(AT_FDCWD</>, "/w/a", O_RDONLY <unfinished ...>
8 openat(AT_FDCWD</>, "/w/a", O_RDONLY) = 4</w/a>
7 <... openat resumed>) = 3</w/a>
7 write(3</w/a>, "x"..., 1) = 1
7 write(3</w/a>, "x"..., 1) = 1
7 renameat2(AT_FDCWD</>, "/w/a", AT_FDCWD</>, "/w/b", 0) = 0
7 write(1</w/elsewhere>, "x"..., 1) = 1
7 unlinkat(4</w>, "b", 0) = 0
7 +++ exited with 0 +++
"""


def test_points_are_the_calls_on_our_paths_as_strace_counts_them() -> None:
    assert points(TRACE, ["/w/a", "/w/b"]) == (
        Point("/w/a", "openat", 1), Point("/w/a", "write", 1), Point("/w/a", "write", 2), Point("/w/a", "renameat2", 1),
    )  # fmt: skip


def test_what_a_file_system_lacks_is_watched_everywhere_and_is_no_point() -> None:
    renamed = ("/w/a", "/w/b")
    found = points(TRACE, ["/w/"], lacking=["renameat2"])
    assert Point("/w/elsewhere", "write", 3, renamed) in found
    assert "renameat2" not in {point.call for point in found}


def test_the_table_says_what_did_not_hold(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    write(page, [Tally("merge", "kill -9", 1200), Tally("run", "kill -9", 34), Tally("run", "EIO", 5, 0, ["bad"])])
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| kill -9 | merge; run | 1,234 | held |" in text
    assert "| EIO | run | 5 | **1 failures** |" in text
    assert "| **all** |  | 1,239 | **1 failures** |" in text
