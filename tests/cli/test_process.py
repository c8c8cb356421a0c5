"""The command as a process: what it imports, where its streams may lead, and its line of progress."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.builders import SavedCheckpoint
from tests.cli.commands import SAVED, Run
from tests.command import REPOSITORY, ckpt_process

# Runs each of the argument lists on stdin, and says on stderr which modules that has imported.
IMPORTS = """
import json, sys
from ckptcore.cli import main
for arguments in json.load(sys.stdin):
    sys.argv = ["ckpt", *arguments]
    try:
        main()
    except SystemExit as stop:
        assert not stop.code, arguments
print(*sorted({name.partition(".")[0] for name in sys.modules}), file=sys.stderr)
"""


def imported_by(commands: list[list[str]], cwd: Path) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS],
        input=json.dumps(commands),
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    return set(done.stderr.split())


def test_looking_at_a_source_imports_no_numpy(run: Run, merged: Path) -> None:
    assert run("publish", "merged", "registry", "--name", "tiny").status == 0
    imported = imported_by(
        [
            ["--version"],
            ["--help"],
            ["merge", "--help"],
            ["versions", "out"],
            ["latest", "out"],
            ["verify", "out"],
            ["resolve", "registry", "tiny"],
        ],
        merged.parent,
    )
    assert "ckptcore" in imported
    assert imported & {"numpy", "prefect", "yaml", "rich", "pydantic", "safetensors", "asyncio"} == set()


def test_only_the_flow_imports_prefect(run: Run, merged: Path) -> None:
    (merged.parent / "shapes.yaml").write_text(run("expect", "merged").stdout)
    imported = imported_by(
        [
            ["verify", "out", "--deep"],
            ["plan", "out"],
            ["merge", "out", "again"],
            ["validate", "merged", "--expect", "shapes.yaml"],
            ["expect", "merged"],
            ["publish", "merged", "registry", "--name", "tiny"],
            ["run", "out", "registry", "--name", "other"],
        ],
        merged.parent,
    )
    assert "numpy" in imported
    assert imported & {"prefect", "rich", "pydantic", "safetensors", "asyncio", "flows", "tasks"} == set()


def start(*arguments: str, cwd: Path, **streams: Any) -> subprocess.Popen[bytes]:
    """``ckpt ARGUMENTS`` as a process whose streams are ``streams``, inherited where not said."""
    script = "from ckptcore.cli import main; main()"
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)} | streams.pop("env", {})
    return subprocess.Popen([sys.executable, "-c", script, *arguments], cwd=cwd, env=environment, **streams)


class TestStreams:
    @pytest.mark.parametrize("command", ["plan out", "plan out --json", "plan --help", "versions nothing --json"])
    def test_a_reader_that_left_is_no_stack_trace(self, run: Run, tmp_path: Path, command: str) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        process = start(*command.split(), cwd=tmp_path, stdout=writer, stderr=subprocess.PIPE)
        os.close(writer)
        stderr = process.communicate(timeout=60)[1]
        assert process.returncode == 141  # as of any program that SIGPIPE ended
        assert b"Traceback" not in stderr
        assert b"BrokenPipe" not in stderr

    def test_the_first_line_is_enough(self, run: Run, tmp_path: Path) -> None:
        """As in ``ckpt plan many | head -n 1``, with more text than a pipe holds."""
        whole = SavedCheckpoint()
        for number in range(800):
            whole = whole.tensor(f"layers.{number}.weight", np.zeros(2, "f4"))
        whole.write(tmp_path / "many")
        process = start("plan", "many", cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().decode() == f"source       {tmp_path}/many (version 0)\n"
        process.stdout.close()
        assert (process.wait(timeout=60), process.stderr.read()) == (141, b"")
        process.stderr.close()

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="Linux's /dev/full")
    def test_a_stdout_that_takes_nothing_is_told(self, run: Run, tmp_path: Path) -> None:
        with open("/dev/full", "wb") as full:
            process = start("latest", "out", cwd=tmp_path, stdout=full, stderr=subprocess.PIPE)
        stderr = process.communicate(timeout=60)[1]
        assert process.returncode == 1
        assert b"No space left on device" in stderr
        assert b"Traceback" not in stderr

    @pytest.mark.parametrize(
        ("command", "status"),
        [("merge out merged >&-", 0), ("latest out <&- >&- 2>&-", 0), ("latest nothing 2>&-", 1)],
    )
    def test_closed_streams(self, run: Run, tmp_path: Path, command: str, status: int) -> None:
        script = "from ckptcore.cli import main; main()"
        line = f"'{sys.executable}' -c '{script}' {command}"
        environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
        assert subprocess.run(["sh", "-c", line], cwd=tmp_path, env=environment, timeout=60).returncode == status

    def test_any_name_can_be_printed_in_any_locale(self, run: Run, tmp_path: Path) -> None:
        name = os.fsdecode(b"caf\xc3\xa9-\xff")
        SAVED.write(tmp_path / name)
        ascii_only = {"PYTHONIOENCODING": "ascii"}
        text = start("latest", name, cwd=tmp_path, stdout=subprocess.PIPE, env=ascii_only)
        assert text.communicate(timeout=60)[0] == b"version 0  " + os.fsencode(tmp_path / name) + b"\n"
        document = start("latest", name, "--json", cwd=tmp_path, stdout=subprocess.PIPE, env=ascii_only)
        assert json.loads(document.communicate(timeout=60)[0])["path"] == str(tmp_path / name)
        published = start("run", name, "registry", "--name", "w", "--json", cwd=tmp_path, stdout=subprocess.PIPE)
        release = Path(json.loads(published.communicate(timeout=60)[0])["path"])
        assert json.loads((tmp_path / release / "manifest.json").read_bytes())["source"]["path"] == str(tmp_path / name)
        again = ckpt_process("run", name, "registry", "--name", "w", cwd=tmp_path)
        assert "published already" in again.stdout
        as_flow = ckpt_process("run", name, "registry", "--name", "v", "--flow", cwd=tmp_path)
        assert (as_flow.status, "Prefect" in as_flow.stderr, as_flow.stderr.count("\n")) == (1, True, 1)
        explained = start("versions", "--help", cwd=tmp_path, stdout=subprocess.PIPE, env=ascii_only)
        assert "optimizer_state, …" in explained.communicate(timeout=60)[0].decode()


def test_progress_on_a_terminal_and_only_there(run: Run, tmp_path: Path) -> None:
    primary, secondary = pty.openpty()
    try:
        process = start("merge", "out", "merged", "--json", cwd=tmp_path, stdout=subprocess.PIPE, stderr=secondary)
        assert json.loads(process.communicate(timeout=60)[0])["path"] == "merged"
        shown = os.read(primary, 10_000).decode()
    finally:
        os.close(primary)
        os.close(secondary)
    assert shown.endswith("s left\r\n")
    assert "\r\x1b[K100% of 3 tensors  144 B of 144 B  " in shown
    assert ckpt_process("merge", "out", "again", cwd=tmp_path).stderr == ""
