"""Many pipelines with many versions, out of one real save and one real release, whose files they share."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np

from ckptcore import Choice, run
from ckptcore.rules.layout import step_name
from ckptcore.rules.release import parse_release_name
from tests.builders import SavedCheckpoint, write_trainer_run

EVERY = 10


def crowd(directory: Path, pipelines: int, versions: int, *, published: bool = True) -> tuple[Path, list[Path]]:
    """A registry and a run for each pipeline: each step is a whole save, and where ``published`` a release too."""
    saved = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))
    pattern = directory / "patterns" / "first"
    write_trainer_run(pattern / "run", {0: saved})
    release = Path(run(Choice(str(pattern / "run")), pattern / "registry", "pattern").path)
    history = (pattern / "registry" / "pattern" / "history.jsonl").read_text()
    registry, runs = directory / "registry", list[Path]()
    for number in range(pipelines):
        name = f"model-{number:03}"
        # A file has 65,000 names at most on ext4: each pipeline links to a copy of its own.
        own = Path(shutil.copytree(pattern, directory / "patterns" / name, symlinks=True))
        runs.append(directory / "runs" / name)
        steps = [EVERY * (turn + 1) for turn in range(versions)]
        for step in steps:
            link_tree(own / "run" / step_name(0), runs[-1] / step_name(step))
        if published:
            _publish(registry / name, own / release.relative_to(pattern), json.loads(history.splitlines()[0]), steps)
    return registry, runs


def _publish(shelf: Path, release: Path, act: dict[str, str], steps: list[int]) -> None:
    parsed = parse_release_name(release.name)
    assert parsed is not None
    (shelf / "releases").mkdir(parents=True)
    lines = []
    for step in steps:
        name = release.name.replace(f"step-{parsed.step}_", f"step-{step}_")
        link_tree(release, shelf / "releases" / name)
        lines.append(json.dumps(act | {"release": name}))
    (shelf / "history.jsonl").write_text("\n".join(lines) + "\n")
    for alias, name in (("latest", lines[-1]), ("production", lines[0])):
        os.symlink(f"releases/{json.loads(name)['release']}", shelf / alias)


def link_tree(source: Path, target: Path) -> None:
    """The same directories, and the same files under a second name."""
    target.mkdir(parents=True)
    for entry in os.scandir(source):
        if entry.is_dir():
            link_tree(Path(entry.path), target / entry.name)
        else:
            os.link(entry.path, target / entry.name)
