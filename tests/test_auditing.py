"""Audit on real registries that were really damaged: everything is found, under the release that it happened to."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ckptcore import Choice, run
from ckptcore.auditing import JOURNAL_NAME, PARTIAL_JOURNAL_NAME, audit
from ckptcore.errors import Busy, ReleaseNotFound
from ckptcore.publishing import stage
from ckptcore.rules.audit import AuditReport
from ckptcore.storage.audit_journal import journal_at
from ckptcore.storage.commit import locked
from ckptcore.storage.progress import OnProgress
from ckptcore.storage.staging import held
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.command import REPOSITORY, ckpt

LATER = datetime.now(UTC) + timedelta(days=1)
EARLIER = LATER - timedelta(days=2)


def saved(seed: int) -> SavedCheckpoint:
    weights = [[float(seed + row * 8 + column) for column in range(8)] for row in range(8)]
    return SavedCheckpoint().tensor("w", weights, grid=(2, 1)).tensor("b", [1.0, seed])


@pytest.fixture
def training(tmp_path: Path) -> Path:
    source = write_trainer_run(tmp_path / "output", {9: saved(9), 10: saved(10)})
    (source / "checkpoint-10" / "config.json").write_text('{"model_type": "tiny"}')
    return source


@pytest.fixture
def registry(training: Path, tmp_path: Path) -> Path:
    """Two releases of ``tiny``: the older one in two shards with an index, the newer one, ``latest``, in one."""
    run(Choice(str(training), step=9, max_shard_bytes=256), tmp_path / "registry", "tiny", alias="stable")
    run(Choice(str(training), step=10), tmp_path / "registry", "tiny")
    return tmp_path / "registry"


def sharded(registry: Path) -> Path:
    return (registry / "tiny" / "stable").resolve()


def newest(registry: Path) -> Path:
    return (registry / "tiny" / "latest").resolve()


def codes(report: AuditReport) -> set[str]:
    return {issue.code for issue in report.issues}


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x10
    path.write_bytes(data)


def test_a_sound_registry_is_clean_and_is_left_as_it_was(registry: Path) -> None:
    before = {p: (p.lstat().st_mtime_ns, p.lstat().st_size) for p in registry.rglob("*")}
    report = audit(registry)
    assert (report.names, report.releases, report.skipped) == (1, 2, 0)
    assert (report.issues, report.notes) == ((), ())
    files = [path for path in registry.rglob("*") if path.is_file() and path.suffix in (".safetensors", ".json")]
    listed = [path for path in files if path.name != "manifest.json"]
    assert report.files == len(listed) == 5
    assert report.size_bytes == sum(path.stat().st_size for path in listed)
    assert {p: (p.lstat().st_mtime_ns, p.lstat().st_size) for p in registry.rglob("*")} == before


def _cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size - 1)


def _wrong_index(release: Path) -> None:
    path = release / "model.safetensors.index.json"
    index = json.loads(path.read_bytes())
    index["weight_map"]["w"], index["weight_map"]["b"] = index["weight_map"]["b"], index["weight_map"]["w"]
    path.write_text(json.dumps(index))


def _other_header(release: Path) -> None:
    """Another name, as long as the right one: the same size, and a header that can be read."""
    path = release / "model-00001-of-00002.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"b"', b'"c"'))


def _manifest_without_a_tensor(release: Path) -> None:
    path = release / "manifest.json"
    manifest = json.loads(path.read_bytes())
    manifest["tensors"].pop()
    path.write_text(json.dumps(manifest))


DAMAGES: dict[str, tuple[Callable[[Path], object], set[str], str]] = {
    "a flipped byte of data": (
        lambda release: flip(release / "model-00002-of-00002.safetensors", -1),
        {"file-digest"},
        "model-00002-of-00002.safetensors: SHA-256",
    ),
    "a flipped byte of the index": (
        lambda release: flip(release / "model.safetensors.index.json", 0),
        {"file-digest", "index"},
        "model.safetensors.index.json: is no index",
    ),
    "a cut shard": (
        lambda release: _cut(release / "model-00001-of-00002.safetensors"),
        {"file-size", "safetensors", "index", "missing-tensor"},
        "model-00001-of-00002.safetensors: size: expected",
    ),
    "a missing shard": (
        lambda release: (release / "model-00001-of-00002.safetensors").unlink(),
        {"file-missing", "index", "missing-tensor"},
        "model-00001-of-00002.safetensors: is missing",
    ),
    "an extra file": (
        lambda release: (release / "notes.txt").write_text("hello"),
        {"file-extra"},
        "notes.txt: is not in the manifest",
    ),
    "a link in a file's place": (
        lambda release: (release / "config.json").symlink_to("/etc/passwd"),
        {"file-kind"},
        "config.json: is no plain file",
    ),
    "a wrong index": (_wrong_index, {"index", "file-size"}, "model.safetensors.index.json: tensor 'w'"),
    "a header that names another tensor": (
        _other_header,
        {"file-digest", "index", "missing-tensor", "unexpected-tensor"},
        "tensor 'c': is not expected",
    ),
    "a manifest that lacks a tensor": (_manifest_without_a_tensor, {"unexpected-tensor"}, "is not expected"),
    "a manifest that is no JSON": (
        lambda release: (release / "manifest.json").write_text("{"),
        {"manifest"},
        "manifest.json: ",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_damage_inside_a_release_is_found(registry: Path, damage: str) -> None:
    act, expected, text = DAMAGES[damage]
    release = sharded(registry)
    act(release)
    report = audit(registry)
    assert codes(report) == expected
    assert all(issue.where.startswith(f"tiny@{release.name}: ") for issue in report.issues)
    assert any(text in str(issue) for issue in report.issues)


def test_a_release_that_lost_its_manifest_is_no_release(registry: Path) -> None:
    (sharded(registry) / "manifest.json").unlink()
    report = audit(registry)
    assert codes(report) == {"no-manifest", "alias-dangling"}
    assert report.releases == 1


def test_all_damage_is_found_at_once(registry: Path) -> None:
    flip(newest(registry) / "model.safetensors", -1)
    flip(newest(registry) / "config.json", 3)
    (sharded(registry) / "model.safetensors.index.json").unlink()
    assert {"file-digest", "file-missing", "index"} == codes(audit(registry))
    assert sum(issue.code == "file-digest" for issue in audit(registry).issues) == 2


def test_an_alias_to_nowhere_or_out_of_the_releases(registry: Path) -> None:
    (registry / "tiny" / "production").symlink_to("releases/step-1_id-0_000000000000")
    (registry / "tiny" / "loop").symlink_to("loop")
    (registry / "tiny" / "abroad").symlink_to(newest(registry))
    report = audit(registry)
    found = {(issue.where, issue.code) for issue in report.issues}
    assert found == {
        ("tiny: alias 'production'", "alias-dangling"),
        ("tiny: alias 'loop'", "alias-outside"),
        ("tiny: alias 'abroad'", "alias-outside"),
    }


@pytest.mark.parametrize("damage", ["long ago", "no manifest", "no JSON"])
def test_a_staging_that_nobody_holds_was_left_behind(registry: Path, training: Path, damage: str) -> None:
    staged = stage(Choice(str(training), step=10, max_shard_bytes=256).planned(), registry, "tiny")
    where = f"tiny: .staging/{staged.release}"
    fresh = audit(registry)
    assert (fresh.issues, [(note.where, note.code) for note in fresh.notes]) == ((), [(where, "in-progress")])
    manifest = Path(staged.path) / "manifest.json"
    match damage:
        case "long ago":
            manifest.write_text(json.dumps(json.loads(manifest.read_bytes()) | {"created_at": "2020-01-01T00:00:00Z"}))
        case "no manifest":
            manifest.unlink()
        case _:
            manifest.write_text("{")
    left = audit(registry)
    assert ([(issue.where, issue.code) for issue in left.issues], left.notes) == ([(where, "staging-left")], ())


def test_a_staging_that_is_held_is_at_work(registry: Path) -> None:
    with held(registry / "tiny" / ".staging" / "step-11_id-0_000000000000"):
        report = audit(registry)
        assert not report.issues
        assert [note.code for note in report.notes] == ["in-progress"]
    assert codes(audit(registry)) == {"staging-left"}


def test_trash_is_left_behind_unless_a_prune_is_at_work(registry: Path) -> None:
    gone = newest(registry)
    trash = registry / "tiny" / ".trash"
    trash.mkdir()
    shutil.copytree(gone, trash / gone.name)
    with locked(registry / "tiny" / ".prune.lock", wait=False):
        assert [note.code for note in audit(registry).notes] == ["in-progress"]
    report = audit(registry)
    assert [(issue.where, issue.code) for issue in report.issues] == [(f"tiny: .trash/{gone.name}", "trash-left")]


def test_what_a_killed_move_of_an_alias_left(registry: Path) -> None:
    (registry / "tiny" / ".latest.new").symlink_to("releases/elsewhere")
    assert codes(audit(registry)) == {"alias-left"}
    with locked(registry / "tiny" / ".lock", wait=False):
        assert not audit(registry).issues


def test_strays_are_found(registry: Path) -> None:
    (registry / "tiny" / "README").write_text("x")
    (registry / "tiny" / "releases" / "half").mkdir()
    (registry / "tiny" / "releases" / "file").write_text("x")
    (registry / "lost+found").mkdir()
    report = audit(registry)
    assert {issue.where for issue in report.issues} == {"tiny: README", "tiny: releases/half", "tiny: releases/file"}
    assert [note.where for note in report.notes] == ["lost+found"]


def test_a_damaged_history_is_found_and_a_cut_line_is_noted(registry: Path) -> None:
    history = registry / "tiny" / "history.jsonl"
    whole = history.read_bytes()
    history.write_bytes(whole + whole[:50])
    report = audit(registry)
    assert (codes(report), [note.code for note in report.notes]) == (set(), ["history-cut"])
    history.write_bytes(whole + b"\0" * 20 + b"\n[]\n")
    assert [issue.where for issue in audit(registry).issues] == [
        "tiny: history.jsonl line 3",
        "tiny: history.jsonl line 4",
    ]
    history.unlink()
    assert {note.code for note in audit(registry).notes} == {"not-recorded"}


def test_only_one_name_is_audited_where_one_is_asked_for(registry: Path, training: Path) -> None:
    run(Choice(str(training)), registry, "other")
    flip(newest(registry) / "model.safetensors", -1)
    assert audit(registry).names == 2
    assert not audit(registry, "other").issues
    assert codes(audit(registry, "tiny")) == {"file-digest"}


def test_since_skips_what_is_older(registry: Path) -> None:
    flip(sharded(registry) / "model-00001-of-00002.safetensors", -1)
    skipping = audit(registry, since=LATER)
    assert (skipping.releases, skipping.skipped, skipping.files, skipping.issues) == (0, 2, 0, ())
    assert codes(audit(registry, since=EARLIER)) == {"file-digest"}
    (sharded(registry) / "manifest.json").write_text("{")
    assert audit(registry, since=LATER).releases == 1, "what cannot tell its age is audited"


@pytest.mark.parametrize("name", [None, "other"])
def test_nothing_to_audit_is_refused(tmp_path: Path, name: str | None) -> None:
    with pytest.raises(ReleaseNotFound):
        audit(tmp_path, name)


class _StopAfter:
    """An operator who ends the audit once so many bytes were read."""

    def __init__(self, size_bytes: int) -> None:
        self.left = size_bytes

    def start(self, total: int) -> OnProgress:
        return self

    def __call__(self, size_bytes: int) -> None:
        self.left -= size_bytes
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.fixture
def interrupted(registry: Path) -> Path:
    """A registry whose audit was interrupted after the largest file."""
    largest = max(path.stat().st_size for path in registry.rglob("*.safetensors"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "sched_getaffinity", lambda process: {0})
        with pytest.raises(KeyboardInterrupt):
            audit(registry, on_start=_StopAfter(largest).start)
    return registry


def test_an_interrupted_audit_goes_on(interrupted: Path) -> None:
    to_read: list[int] = []

    def start(total: int) -> OnProgress:
        to_read.append(total)
        return lambda size_bytes: None

    report = audit(interrupted, on_start=start)
    largest = newest(interrupted) / "model.safetensors"
    assert report.continued == 1
    assert report.continued_from
    assert to_read == [report.size_bytes - largest.stat().st_size]
    assert not report.issues
    assert not (interrupted / JOURNAL_NAME).exists()
    assert audit(interrupted).continued == 0, "the next audit reads everything again"


def test_what_changed_since_the_interruption_is_read_again(interrupted: Path) -> None:
    flip(newest(interrupted) / "model.safetensors", -1)
    report = audit(interrupted)
    assert report.continued == 0
    assert codes(report) == {"file-digest"}


def test_a_cut_journal_saves_what_it_can(interrupted: Path) -> None:
    journal = interrupted / JOURNAL_NAME
    journal.write_bytes(journal.read_bytes() + b'["tiny@x/model", "mod')
    assert audit(interrupted).continued == 1


@pytest.mark.parametrize("content", [b"", b"\0\0\0", b"{}", b'[1, 2]\n["a"]\n'])
def test_a_worthless_journal_is_started_over(registry: Path, content: bytes) -> None:
    (registry / JOURNAL_NAME).write_bytes(content)
    report = audit(registry)
    assert (report.continued, report.issues) == (0, ())
    assert not (registry / JOURNAL_NAME).exists()


def test_an_audit_of_the_newer_ones_leaves_the_journal_of_all(interrupted: Path) -> None:
    assert audit(interrupted, since=EARLIER).continued == 0
    assert not (interrupted / PARTIAL_JOURNAL_NAME).exists()
    assert audit(interrupted).continued == 1


def test_a_killed_audit_goes_on(registry: Path) -> None:
    """Killed at its second file: the first one is not read again."""
    script = (
        "import os, signal, sys\n"
        "from ckptcore.auditing import audit\n"
        "os.sched_getaffinity = lambda process: {0}\n"
        "class Watch:\n"
        "    blocks = 0\n"
        "    def __call__(self, size):\n"
        "        self.blocks += 1\n"
        "        while self.blocks == 2 and os.path.getsize(sys.argv[2]) < 60: pass\n"
        "        if self.blocks == 2: os.kill(os.getpid(), signal.SIGKILL)\n"
        "audit(sys.argv[1], on_start=lambda total: Watch())\n"
    )
    arguments = [sys.executable, "-c", script, str(registry), str(registry / JOURNAL_NAME)]
    done = subprocess.run(arguments, env=os.environ | {"PYTHONPATH": str(REPOSITORY)}, timeout=60)
    assert done.returncode == -9
    report = audit(registry)
    assert (report.continued, report.issues) == (1, ())


def test_two_audits_of_the_same_do_not_run_at_once(registry: Path) -> None:
    with journal_at(registry / JOURNAL_NAME), pytest.raises(Busy, match="another audit"):
        audit(registry)


def test_a_release_that_is_pruned_meanwhile_is_left_out(registry: Path) -> None:
    gone = sharded(registry)

    def start(total: int) -> OnProgress:
        gone.rename(registry / "away")
        return lambda size_bytes: None

    report = audit(registry, on_start=start)
    assert not report.issues
    assert [(note.where, note.code) for note in report.notes] == [(f"tiny@{gone.name}", "pruned")]


def test_a_file_that_goes_meanwhile_is_damage(registry: Path) -> None:
    gone = newest(registry) / "model.safetensors"

    def start(total: int) -> OnProgress:
        gone.unlink()
        return lambda size_bytes: None

    assert codes(audit(registry, on_start=start)) == {"unreadable"}


def test_the_command_exits_1_with_every_finding_on_a_line(registry: Path, capfd: pytest.CaptureFixture[str]) -> None:
    clean = ckpt(capfd, "audit", registry)
    assert (clean.status, clean.stderr) == (0, "")
    assert ": clean; 1 names, 2 releases, 5 files, " in clean.stdout
    flip(newest(registry) / "model.safetensors", -1)
    (registry / "tiny" / "production").symlink_to("releases/none")
    found = ckpt(capfd, "audit", registry, "tiny", "--since", "7d")
    assert found.status == 1
    assert "not clean, 2 issue(s)" in found.stdout
    assert len(found.stderr.splitlines()) == 2
    as_json = ckpt(capfd, "audit", registry, "--json")
    document = json.loads(as_json.stdout)
    assert (as_json.status, document["clean"], document["releases"]) == (1, False, 2)
    assert {issue["code"] for issue in document["issues"]} == {"file-digest", "alias-dangling"}


@pytest.mark.parametrize("since", ["7", "0d", "-1d", "2024-13-01", "yesterday", "9999999999999w"])
def test_a_wrong_since_is_wrong_usage(registry: Path, capfd: pytest.CaptureFixture[str], since: str) -> None:
    assert ckpt(capfd, "audit", registry, f"--since={since}").status == 2


def test_where_nothing_can_be_noted_the_audit_runs_all_the_same(registry: Path) -> None:
    (registry / JOURNAL_NAME).mkdir()
    report = audit(registry)
    assert (report.issues, [note.code for note in report.notes]) == ((), ["no-journal"])
    assert report.files == 5
