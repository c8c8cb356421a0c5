"""What is refused, and what is no command: status 1 and 2, a line an issue, and nothing written."""

from __future__ import annotations

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.cli.commands import ON_A_RESULT, ON_A_SOURCE, Run, command_id, on
from tests.command import Outcome, assert_refused, everything_below


class TestRefusals:
    @pytest.mark.parametrize("command", ON_A_SOURCE + ON_A_RESULT, ids=command_id)
    def test_a_missing_place_is_one_document_and_status_1(
        self, run: Run, tmp_path: Path, command: tuple[str, ...]
    ) -> None:
        outcome = run(*on("nothing", command), "--json")
        document = json.loads(outcome.stdout)
        assert outcome.status == 1
        assert document["error"] in {"VersionNotFound", "ReleaseNotFound"}
        assert document["message"].startswith("nothing: ")
        assert document["issues"] == []
        assert outcome.stderr == f"ckpt: {document['message']}\n"
        assert os.listdir(tmp_path) == ["out"]

    @pytest.mark.parametrize("command", ON_A_SOURCE, ids=command_id)
    def test_a_file_is_no_source(self, run: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
        rank_file = "out/checkpoint-10/model_state/0_0.distcp"
        assert_refused(run(*on(rank_file, command)), f"{rank_file}: is no directory")
        assert os.listdir(tmp_path) == ["out"]

    def test_issues_are_in_the_document_and_on_stderr(self, run: Run) -> None:
        outcome = run("merge", "out", "merged", "--step", 11, "--json")
        document = json.loads(outcome.stdout)
        assert (outcome.status, document["error"]) == (1, "VersionIncomplete")
        assert document["issues"][0]["code"] == "missing-rank-file"
        assert outcome.stderr.splitlines()[1:] == [f"  {issue['text']}" for issue in document["issues"]]

    @pytest.mark.parametrize(
        "content",
        [b"tensors: {w: [", b"\xff\xfe\x00", b"- w", b"tensors: {w: {shape: x}}", b"tensors: 2001-99-99", b"[" * 2000],
    )
    @pytest.mark.parametrize(
        "command", [("validate", "merged"), ("run", "out", "registry", "--name", "tiny")], ids=command_id
    )
    def test_expectations_that_cannot_be_read(
        self, run: Run, merged: Path, command: tuple[str, ...], content: bytes
    ) -> None:
        (merged.parent / "shapes.yaml").write_bytes(content)
        assert_refused(run(*command, "--expect", "shapes.yaml"), "ckpt: shapes.yaml: ")
        assert not (merged.parent / "registry").exists()

    def test_expectations_that_are_not_there(self, run: Run, merged: Path) -> None:
        assert_refused(run("validate", "merged", "--expect", "nothing.yaml"), "cannot read nothing.yaml")
        assert_refused(run("validate", "merged", "--expect", "merged"), "cannot read merged: is a directory")

    def test_a_name_cannot_write_lines_of_its_own(self, run: Run, tmp_path: Path) -> None:
        outcome = run("latest", "evil\nckpt: all is well\x1b[2J")
        assert outcome.stderr == "ckpt: evil\\nckpt: all is well\\x1b[2J: no such directory\n"


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user, which needs root")
class TestWithoutPermission:
    @pytest.fixture
    def run_as_nobody(self, run: Run, merged: Path, tmp_path: Path) -> Run:
        for directory in (tmp_path, *tmp_path.parents[:3]):
            directory.chmod(directory.stat().st_mode | 0o055)

        def call(*arguments: object) -> Outcome:
            os.seteuid(65534)
            try:
                return run(*arguments)
            finally:
                os.seteuid(0)

        return call

    @pytest.mark.parametrize("command", ON_A_SOURCE, ids=command_id)
    def test_to_read_the_source(self, run_as_nobody: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
        (tmp_path / "out" / "checkpoint-10" / "model_state").chmod(0o700)
        outcome = run_as_nobody(*on("out", command))
        assert outcome.status == 1
        assert "checkpoint-10/model_state: Permission denied\n" in outcome.stderr

    @pytest.mark.parametrize(
        "command",
        [
            ("merge", "out", "elsewhere"),
            ("run", "out", "registry", "--name", "tiny"),
            ("publish", "merged", "registry", "--name", "tiny"),
        ],
        ids=command_id,
    )
    def test_to_write_the_result(self, run_as_nobody: Run, tmp_path: Path, command: tuple[str, ...]) -> None:
        before = everything_below(tmp_path)
        assert_refused(run_as_nobody(*command), str(tmp_path), "Permission denied")
        assert everything_below(tmp_path) == before


class TestUsage:
    @pytest.mark.parametrize(
        "arguments",
        [
            (),
            ("merg", "out", "merged"),
            ("versions",),
            ("merge", "out"),
            ("merge", "out", "merged", "more"),
            ("merge", "out", "merged", "--force"),
            ("merge", "out", "merged", "--step", "ten"),
            ("merge", "out", "merged", "--step", "-1"),
            ("merge", "out", "merged", "--id", "-1"),
            ("merge", "out", "merged", "--max-shard-size", "5 apples"),
            ("plan", "out", "--max-shard-size", "0"),
            ("run", "out", "registry"),
            ("run", "out", "registry", "--name", "tiny", "--max-shard-size", ""),
            ("publish", "out", "registry"),
        ],
        ids=" ".join,
    )
    def test_wrong_usage_is_status_2_and_does_nothing(
        self, run: Run, tmp_path: Path, arguments: tuple[str, ...]
    ) -> None:
        before = everything_below(tmp_path)
        outcome = run(*arguments)
        assert outcome.status == 2
        assert "Usage: ckpt" in outcome.stdout + outcome.stderr
        assert everything_below(tmp_path) == before

    def test_the_version(self, run: Run) -> None:
        assert run("--version") == Outcome(0, f"ckpt {version('ckptcore')}\n", "")

    @pytest.mark.parametrize("command", ON_A_SOURCE + ON_A_RESULT, ids=command_id)
    def test_every_command_explains_itself(self, run: Run, command: tuple[str, ...]) -> None:
        overview, explained = run("--help"), run(command[0], "--help")
        assert (explained.status, explained.stderr) == (0, "")
        [line] = [line for line in overview.stdout.splitlines() if line.startswith(f"  {command[0]} ")]
        assert line.endswith(".")
        assert not line.endswith("...")  # cut short
        assert "--json" in explained.stdout
