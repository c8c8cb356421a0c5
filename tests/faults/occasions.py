"""Faults that are no single call: full disks, permissions, modes, names, clocks, and crowds of processes.

Each of :data:`OCCASIONS` gives how often it happened and raises AssertionError where something was wrong after it.
"""

from __future__ import annotations

import itertools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ckptcore.rules.release import parse_history
from tests.faults.commands import REPOSITORY, Commands, Ended
from tests.faults.scenarios import SHARDS, Stage, run_of, write_source
from tests.faults.sweep import refusal_faults
from tests.faults.tracing import Injection
from tests.faults.world import differences, look

NOBODY = 65534
ROUNDS = 5

_SCRIPT = "import sys; from ckptcore.cli import main; sys.argv[0] = 'ckpt'; main()"

Command = tuple[object, ...]
Happen = Callable[[Stage], int]


@dataclass(frozen=True, slots=True)
class Occasion:
    name: str
    happen: Happen
    program: str = ""
    """What it needs beside strace, if anything."""

    @property
    def is_possible(self) -> bool:
        return not self.program or shutil.which(self.program) is not None


def at_stage(commands: Commands, directory: Path) -> Stage:
    """A new, empty world in ``directory``, and a source, both for everybody to read."""
    source, world = directory / "source", directory / "world"
    shutil.rmtree(directory, ignore_errors=True)
    world.mkdir(parents=True)
    os.chmod(directory, 0o755)
    return Stage(commands, write_source(source), world)


def _full_disk(stage: Stage) -> int:
    """A file system of so many pages, for every number up to one that is enough."""
    times = 0
    for pages in itertools.count(1):
        with _mounted("-t", "tmpfs", "-o", f"size={pages * 4}k", "tmpfs", at=stage.world):
            ended = stage.commands.run(*run_of(stage, 10))
            _require_refused_well(ended)
            _require_nothing_half(stage)
            if not ended.status:
                assert times > 3, "the smallest disk was large enough"
                return times
            times += 1
            assert "space" in ended.output, ended
            staging = stage.registry / "tiny" / ".staging"
            assert not staging.exists() or not os.listdir(staging), f"{os.listdir(staging)} fills a full disk"
            subprocess.run(["mount", "-o", "remount,size=4m", stage.world], check=True)
            _require_success(stage.commands.run(*run_of(stage, 10)))
    return times


def _short_writes(stage: Stage) -> int:
    """No file may grow beyond so many bytes: the write that would is cut short, the next one refused."""
    times = 0
    for limit in (500, 700, 900, 1200, 1600, 2000):
        ended = stage.commands.run(*run_of(stage, 10), file_size=limit)
        _require_refused_well(ended)
        _require_nothing_half(stage)
        times += bool(ended.status)
    assert times
    _require_success(stage.commands.run(*run_of(stage, 10)))
    _require_nothing_left(stage)
    return times


def _read_only(stage: Stage) -> int:
    stage.publish_step(9)
    before = look(stage.world)
    with _mounted("--bind", stage.world, at=stage.world):
        subprocess.run(["mount", "-o", "remount,ro,bind", stage.world], check=True)
        prune = ("prune", stage.registry, "tiny", "--keep-last", 1)
        lines: tuple[Command, ...] = (run_of(stage, 10), ("merge", stage.source, stage.out), prune)
        for line in lines:
            ended = stage.commands.run(*line)
            _require_refused_well(ended)
            assert ended.status == 1, ended
            assert "Read-only file system" in ended.output, ended
        _require_success(stage.commands.run("resolve", stage.registry, "tiny"))
        _require_success(stage.commands.run("audit", stage.registry))
    assert not list(differences(look(stage.world), before))
    _require_success(stage.commands.run(*run_of(stage, 10)))
    return len(lines)


def _no_permission(stage: Stage) -> int:
    """Another user may read the registry, and neither write it nor read one of the source's files."""
    stage.publish_step(9)
    before = look(stage.world)
    secret = stage.source / "checkpoint-10" / "model_state" / "1_0.distcp"
    secret.chmod(0o600)
    outside = stage.world / "of-nobody"
    outside.mkdir()
    os.chown(outside, NOBODY, NOBODY)
    lines = (
        run_of(stage, 9),
        (*run_of(stage, 9), "--alias", "other"),
        run_of(stage, 10),
        ("merge", stage.source, stage.out, "--step", 9),
        ("merge", stage.source, outside / "out", "--step", 10),
        ("promote", stage.registry, "tiny@latest", "--alias", "production"),
        ("prune", stage.registry, "tiny", "--keep-last", 1),
    )
    for line in lines:
        ended = stage.commands.run(*line, uid=NOBODY)
        _require_refused_well(ended)
        assert ended.status == 1, ended
        assert "ermission" in ended.output, ended
    assert os.listdir(outside) == []
    outside.rmdir()
    _require_success(stage.commands.run("resolve", stage.registry, "tiny", uid=NOBODY))
    assert not list(differences(look(stage.world), before))
    return len(lines)


def _umasks(stage: Stage) -> int:
    masks = (0o077, 0o002, 0o027)
    for mask in masks:
        registry, out = stage.world / f"registry-{mask:o}", stage.world / f"out-{mask:o}"
        _require_success(stage.commands.run("run", stage.source, registry, "--name", "tiny", *SHARDS, umask=mask))
        _require_success(stage.commands.run("merge", stage.source, out, *SHARDS, umask=mask))
        for path in (registry, *registry.rglob("*"), out, *out.rglob("*")):
            expected = (0o777 if path.is_dir() else 0o666) & ~mask
            mode = stat.S_IMODE(path.lstat().st_mode)
            assert path.is_symlink() or mode == expected, f"{path} has mode {mode:o} under umask {mask:o}"
    return len(masks)


def _crowd_of_one_release(stage: Stage) -> int:
    for number in range(ROUNDS):
        line = ("run", stage.source, stage.registry, "--name", f"tiny-{number}", *SHARDS)
        _crowd(stage, [line] * 4)
        _require_nothing_half(stage)
        assert len(os.listdir(stage.registry / f"tiny-{number}" / "releases")) == 1
        assert len(_acts(stage, f"tiny-{number}")) == 1
    _require_nothing_left(stage)
    return 4 * ROUNDS


def _crowd_of_releases(stage: Stage) -> int:
    """Publishers of different releases wait for each other; the alias is with the last in the history."""
    for number in range(ROUNDS):
        name = f"tiny-{number}"
        lines = [
            ("run", stage.source, stage.registry, "--name", name, "--step", step, "--exclude", left_out)
            for step in (9, 10)
            for left_out in ("a", "b")
        ]
        ended = _crowd(stage, lines)
        assert not any(one.status for one in ended), "\n".join(map(str, ended))
        _require_in_order(stage, name, "latest", acts=len(lines))
    _require_nothing_left(stage)
    return 4 * ROUNDS


def _crowd_of_movers(stage: Stage) -> int:
    """Promotions and rollbacks at once: each is recorded, in the order in which it happened."""
    stage.publish_step(9)
    stage.publish_step(10)
    older, newer = sorted(path.name for path in (stage.registry / "tiny" / "releases").iterdir())
    for release in (older, newer, older, newer):
        stage.ckpt("promote", stage.registry, f"tiny@{release}", "--alias", "production")
    for _ in range(ROUNDS):
        _crowd(
            stage,
            [
                ("promote", stage.registry, f"tiny@{older}", "--alias", "production"),
                ("promote", stage.registry, f"tiny@{newer}", "--alias", "production"),
                ("rollback", stage.registry, "tiny", "--alias", "production"),
                ("prune", stage.registry, "tiny", "--keep-last", 1),
            ],
        )
        _require_nothing_half(stage)
        _require_in_order(stage, "tiny", "production")
    return 4 * ROUNDS


def _crowd_of_expecting_movers(stage: Stage) -> int:
    """Of movers that all expect the same release under the alias, exactly one wins."""
    stage.publish_step(9)
    stage.publish_step(10)
    older, newer = sorted(path.name for path in (stage.registry / "tiny" / "releases").iterdir())
    stage.ckpt("promote", stage.registry, f"tiny@{older}", "--alias", "production")
    for current, wanted in itertools.islice(itertools.cycle([(older, newer), (newer, older)]), ROUNDS):
        line = ("promote", stage.registry, f"tiny@{wanted}", "--alias", "production", "--expect-current", current)
        ended = _crowd(stage, [line] * 4)
        assert sum(one.status == 0 for one in ended) == 1, "\n".join(map(str, ended))
    _require_in_order(stage, "tiny", "production", acts=ROUNDS + 1)
    return 4 * ROUNDS


def _crowd_of_merges(stage: Stage) -> int:
    for _ in range(ROUNDS):
        shutil.rmtree(stage.out, ignore_errors=True)
        ended = _crowd(stage, [("merge", stage.source, stage.out, *SHARDS)] * 4)
        assert sum(one.status == 0 for one in ended) == 1, "\n".join(map(str, ended))
        _crowd(stage, [("merge", stage.source, stage.out, *SHARDS, "--overwrite")] * 4)
        _require_nothing_half(stage)
        assert os.listdir(stage.world) == ["out"]
    return 8 * ROUNDS


CONFINED = ("with space", "模型", "ü" * 100, "name,with;signs&%$#!", "-".join("abc"), "latest", "a..b", "~", "*", "CON")
REFUSED = (
    "", ".", "..", ".hidden", "-dash", "--help", "../escape", "a/b", "/absolute", "a\\b", "a@b", "a\nb", "a\tb", "a\0b",
    " a", "a ", "\ud800", "x" * 201, "ü" * 101, "releases", "history.jsonl", "\u202eevil",
)  # fmt: skip


def _names(stage: Stage) -> int:
    """Every name stays one entry of the registry, or is refused before anything is written."""
    for name in CONFINED:
        taken = ("run", stage.source, stage.registry, "--name", name, "--alias", name, *SHARDS)
        _require_success(stage.commands.run(*taken))
        resolved = Path(stage.commands.run("resolve", stage.registry, f"{name}@{name}").output.strip())
        assert resolved.parent == stage.registry / name / "releases"
    assert sorted(os.listdir(stage.registry)) == sorted(CONFINED)
    before = look(stage.world)
    for name in REFUSED:
        lines: tuple[Command, ...] = (
            ("run", stage.source, stage.registry, f"--name={name}", *SHARDS),
            ("run", stage.source, stage.registry, "--name", "tiny", f"--alias={name}", *SHARDS),
            ("resolve", stage.registry, "--", f"{name}@x"),
            ("promote", stage.registry, "模型@模型", f"--alias={name}"),
        )
        for line in lines:
            ended = stage.commands.run(*line)
            _require_refused_well(ended)
            assert ended.status, f"{name!r} was taken: {ended}"
        assert not list(differences(look(stage.world), before)), f"{name!r} left something"
    return len(CONFINED) + len(REFUSED)


def _outputs(stage: Stage) -> int:
    """Outputs may lie anywhere and be called anything that the file system takes."""
    taken = ("with space", "模型", "-dash", ".dot", "a\nb", "x" * 240)
    for name in taken:
        _require_success(stage.commands.run("merge", stage.source, *SHARDS, "--", stage.world / name))
    assert sorted(os.listdir(stage.world)) == sorted(taken)
    refused = ("/", stage.source, stage.source / "checkpoint-10", stage.world / ("x" * 300))
    for out in refused:
        for overwrite in ((), ("--overwrite",)):
            ended = stage.commands.run("merge", stage.source, out, *overwrite)
            _require_refused_well(ended)
            assert ended.status, ended
    assert sorted(os.listdir(stage.world)) == sorted(taken)
    assert (stage.source / "checkpoint-10" / "model_state").is_dir()
    return len(taken) + len(refused)


def _symlinked_registry(stage: Stage) -> int:
    (stage.world / "registry-real").mkdir()
    stage.registry.symlink_to("registry-real")
    stage.publish_step(9)
    stage.publish_step(10)
    for line in (
        ("promote", stage.registry, "tiny@latest", "--alias", "production"),
        ("rollback", stage.registry, "tiny", "--alias", "latest"),
        ("audit", stage.registry),
        ("resolve", stage.world / "registry-real", "tiny@production"),
        ("prune", stage.registry, "tiny", "--keep-last", 1),
    ):
        _require_success(stage.commands.run(*line))
    assert stage.registry.is_symlink()
    _require_nothing_half(stage)
    return 1


def _clock_goes_back(stage: Stage) -> int:
    """Step 10 is published days before step 9, by the clock; the history, rollback and prune go by order."""
    stage.publish_step(9)
    stage.publish_step(9, "production")
    command = [sys.executable, "-c", _SCRIPT, *map(str, run_of(stage, 10)), "--alias"]
    for alias in ("latest", "production"):
        back = ["faketime", "-f", "-9d", *command, alias]
        done = subprocess.run(back, cwd=REPOSITORY, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    acts = parse_history((stage.registry / "tiny" / "history.jsonl").read_bytes())
    assert acts[-1].at < acts[0].at, "the clock did not go back"
    _require_in_order(stage, "tiny", "latest")
    stage.ckpt("prune", stage.registry, "tiny", "--keep-last", 1, "--dry-run")
    stage.ckpt("rollback", stage.registry, "tiny", "--alias", "production")
    assert "step-9" in os.readlink(stage.registry / "tiny" / "production")
    stage.ckpt("promote", stage.registry, "tiny@latest", "--alias", "production")
    stage.ckpt("prune", stage.registry, "tiny", "--keep-last", 1)
    (left,) = os.listdir(stage.registry / "tiny" / "releases")
    assert left.startswith("step-10_"), left
    return 2


def _late_rename(stage: Stage) -> int:
    """A network file system says for a while that what an alias names is not there yet."""
    stage.publish_step(10)
    release = (stage.registry / "tiny" / "latest").resolve()
    for looks in (1, 2, 3):
        ended = stage.commands.watched(
            "resolve", stage.registry, "tiny",
            injections=[Injection("newfstatat", "error=ENOENT", f"1..{looks}")], paths=[str(release / "manifest.json")],
        )  # fmt: skip
        assert ended.trace.count("(INJECTED)") == looks, ended
        _require_success(ended)
    return 3


OCCASIONS: tuple[Occasion, ...] = (
    Occasion("full disk (tmpfs of every size up to enough)", _full_disk),
    Occasion("writes cut short (file size limit)", _short_writes),
    Occasion("read-only file system", _read_only),
    Occasion("another user: no permission", _no_permission),
    Occasion("umask 077, 002, 027", _umasks),
    Occasion("four processes publish one release at once", _crowd_of_one_release),
    Occasion("four processes publish different releases at once", _crowd_of_releases),
    Occasion("promotions, a rollback and a prune at once", _crowd_of_movers),
    Occasion("four promotions that expect the same release", _crowd_of_expecting_movers),
    Occasion("four merges into one output at once", _crowd_of_merges),
    Occasion("names of every kind", _names),
    Occasion("outputs of every kind", _outputs),
    Occasion("symlinked registry", _symlinked_registry),
    Occasion("clock goes backwards", _clock_goes_back, program="faketime"),
    Occasion("a rename is seen late", _late_rename),
)


@contextmanager
def _mounted(*options: object, at: Path) -> Iterator[None]:
    subprocess.run(["mount", *map(str, options), str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", str(at)], check=True)


def _crowd(stage: Stage, lines: Sequence[Command]) -> list[Ended]:
    """All of the commands at once; each does its work or gives way, and one of them does it."""
    running = [stage.commands.forked(*line) for line in lines]
    for one in running:
        one.begin()
    ended = [one.wait() for one in running]
    for each in ended:
        _require_refused_well(each)
    assert any(each.status == 0 for each in ended), "\n".join(map(str, ended))
    return ended


def _acts(stage: Stage, name: str) -> tuple[tuple[str, str, str, str], ...]:
    return look(stage.world).history[f"registry/{name}/history.jsonl"]


def _require_in_order(stage: Stage, name: str, alias: str, *, acts: int | None = None) -> None:
    """Each move of the alias starts where the one before it ended, and the last is where the alias stands."""
    moves = [(release, previous) for _, release, moved, previous in _acts(stage, name) if moved == alias]
    assert acts in (None, len(moves)), moves
    for (before, _), (_, previous) in itertools.pairwise(moves):
        assert before == previous, moves
    assert Path(os.readlink(stage.registry / name / alias)).name == moves[-1][0]


def _require_refused_well(ended: Ended) -> None:
    found = [text for text in refusal_faults(ended) if ended.status != 2]
    assert not found, found


def _require_success(ended: Ended) -> None:
    assert ended.status == 0, str(ended)


def _require_nothing_half(stage: Stage) -> None:
    faults = look(stage.world).faults
    assert not faults, faults


def _require_nothing_left(stage: Stage) -> None:
    for shelf in stage.registry.iterdir():
        assert os.listdir(shelf / ".staging") == []
        assert set(os.listdir(shelf)) >= {".lock", ".staging", "history.jsonl", "releases"}
