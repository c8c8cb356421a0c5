"""A registry that somebody else wrote into: each command ends at once, with a line and no stack trace."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from ckptcore.registry import releases_on, shelf_of
from tests.cli.commands import Run
from tests.command import assert_refused

ON_THE_NAME = [
    ("history", "registry", "tiny"),
    ("releases", "registry"),
    ("rollback", "registry", "tiny", "--alias", "latest"),
    ("show", "registry", "tiny"),
    ("audit", "registry", "tiny"),
    ("prune", "registry", "tiny", "--keep-last", "5"),
]
DEEP = b"[" * 100_000


@pytest.fixture
def shelf(run: Run, tmp_path: Path) -> Path:
    for step in (9, 10):
        assert run("run", "out", "registry", "--name", "tiny", "--step", step).status == 0
    return tmp_path / "registry" / "tiny"


@pytest.mark.parametrize(
    "line",
    [
        DEEP,
        b'{"at":' * 100_000 + b"}",
        b'{"at": "\\ud800", "act": "publish", "release": "\\ud800"}',
        b'{"at": [1], "act": "publish", "release": null}',
    ],
)
def test_a_line_of_the_history_that_is_no_act_is_left_out_and_reported(run: Run, shelf: Path, line: bytes) -> None:
    known = run("history", "registry", "tiny")
    with open(shelf / "history.jsonl", "ab") as file:
        file.write(line + b"\n")
    assert run("history", "registry", "tiny") == known
    assert (run("releases", "registry").status, run("show", "registry", "tiny").status) == (0, 0)
    assert "history.jsonl line 3: is no act" in run("audit", "registry").stderr
    assert run("rollback", "registry", "tiny", "--alias", "latest").status == 0


@pytest.mark.parametrize("make", [os.mkfifo, Path.mkdir, lambda path: path.symlink_to("/dev/zero")])
@pytest.mark.parametrize("command", ON_THE_NAME, ids=lambda command: command[0])
def test_a_history_that_is_no_file(
    run: Run, shelf: Path, make: Callable[[Path], object], command: tuple[str, ...]
) -> None:
    (shelf / "history.jsonl").unlink()
    make(shelf / "history.jsonl")
    outcome = run(*command)
    assert (outcome.status, "history.jsonl: is" in outcome.stderr) == (1, True)
    before = os.readlink(shelf / "latest")
    assert_refused(
        run("promote", "registry", f"tiny@{releases_on(shelf_of('registry', 'tiny'))[0]}", "--alias", "latest")
    )
    assert os.readlink(shelf / "latest") == before


@pytest.mark.parametrize("data", [DEEP, b"\xff\xfe", b"[]"])
@pytest.mark.parametrize(
    "command",
    [
        ("show", "registry", "tiny"),
        ("audit", "registry"),
        ("validate", "registry/tiny/latest"),
        ("publish", "registry/tiny/latest", "elsewhere", "--name", "x"),
        ("promote", "registry", "tiny", "--alias", "production"),
        ("diff", "registry", "tiny", "tiny@stable"),
    ],
    ids=lambda command: command[0],
)
def test_a_manifest_that_is_none(run: Run, shelf: Path, command: tuple[str, ...], data: bytes) -> None:
    assert (
        run("promote", "registry", f"tiny@{releases_on(shelf_of('registry', 'tiny'))[0]}", "--alias", "stable").status
        == 0
    )
    (shelf / "latest" / "manifest.json").write_bytes(data)
    outcome = run(*command)
    assert (outcome.status, "manifest.json" in outcome.stderr) == (1, True)


@pytest.mark.parametrize("special", ["lock", "audit.jsonl"])
def test_a_fifo_in_the_place_of_what_the_registry_keeps_for_itself(run: Run, shelf: Path, special: str) -> None:
    path = shelf / f".{special}"
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert run("audit", "registry", "tiny").status == 0


def test_a_link_in_the_place_of_the_audits_journal_is_not_written_through(run: Run, shelf: Path) -> None:
    other = shelf.parent.parent / "other"
    other.write_text("precious\n")
    (shelf / ".audit.jsonl").symlink_to(other)
    outcome = run("audit", "registry", "tiny")
    assert (outcome.status, "an interrupted audit starts over" in outcome.stdout) == (0, True)
    assert other.read_text() == "precious\n"


def test_an_alias_that_leads_elsewhere_is_none(run: Run, shelf: Path) -> None:
    release = Path(os.readlink(shelf / "latest")).name
    for name, text in {"far": f"/elsewhere/{release}", "up": f"releases/../{release}", "all": "releases/"}.items():
        (shelf / name).symlink_to(text)
        for command in ("resolve", "show", "pin"):
            assert_refused(run(command, "registry", f"tiny@{name}"), "is no alias", repr(text))
        assert f"alias {name!r}: leads out of the releases" in run("audit", "registry").stderr
        listed = run("aliases", "registry", "--json")
        assert [alias["alias"] for alias in json.loads(listed.stdout)] == ["latest"]
        assert f"tiny@{name} is no alias: it leads to {text!r}" in listed.stderr
        assert_refused(run("promote", "registry", "tiny", "--alias", name), "is no alias")


def test_a_link_that_names_a_release_by_another_path_still_keeps_it(run: Run, shelf: Path) -> None:
    older = releases_on(shelf_of("registry", "tiny"))[-1]
    (shelf / "by-hand").symlink_to(shelf / "releases" / older)
    assert run("prune", "registry", "tiny", "--keep-last", "1").status == 0
    assert older in os.listdir(shelf / "releases")


def test_a_release_that_is_a_link_is_none(run: Run, shelf: Path) -> None:
    release = releases_on(shelf_of("registry", "tiny"))[0]
    name = "step-7_id-0_aaaaaaaaaaaa"
    (shelf / "releases" / release).rename(shelf.parent.parent / "outside")
    (shelf / "releases" / name).symlink_to(shelf.parent.parent / "outside")
    assert_refused(run("resolve", "registry", f"tiny@{name}"), "is no release")
    assert name not in releases_on(shelf_of("registry", "tiny"))
