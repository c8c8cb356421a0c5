"""The commands on a source: versions, latest, verify, plan and merge."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.builders import write_trainer_run
from tests.cli.commands import KEYS, SAVED, Run
from tests.command import Outcome, assert_refused, document_of, everything_below


class TestVersionsAndLatest:
    def test_every_version_with_its_state_and_why(self, run: Run, tmp_path: Path) -> None:
        outcome = run("versions", "out")
        assert (outcome.status, outcome.stderr) == (0, "")
        assert outcome.stdout.splitlines() == [
            f"incomplete  version 0 of step 11  {tmp_path}/out/checkpoint-11/model_state",
            "            rank 1 of version 0 of step 11: 1_0.distcp is missing",
            f"complete    version 0 of step 10  {tmp_path}/out/checkpoint-10/model_state",
            f"complete    version 0 of step 9  {tmp_path}/out/checkpoint-9/model_state",
        ]

    def test_versions_as_json(self, run: Run) -> None:
        documents = document_of(run("versions", "out", "--json"))
        assert [(found["step"], found["state"]) for found in documents] == [
            (11, "incomplete"),
            (10, "complete"),
            (9, "complete"),
        ]
        assert [reason["text"] for reason in documents[0]["reasons"]] == [
            "rank 1 of version 0 of step 11: 1_0.distcp is missing"
        ]

    def test_a_source_without_versions_is_said_to_be_so(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        assert run("versions", "empty") == Outcome(0, "", "empty: holds no version\n")
        assert document_of(run("versions", "empty", "--json")) == []
        assert_refused(run("latest", "empty"), "empty: holds no metadata and no rank files")

    def test_latest_passes_over_the_half_written_step(self, run: Run, tmp_path: Path) -> None:
        place = f"{tmp_path}/out/checkpoint-10/model_state"
        assert run("latest", "out") == Outcome(0, f"version 0 of step 10  {place}\n", "")
        assert document_of(run("latest", "out", "--json")) == {
            "source": "out",
            "path": place,
            "step": 10,
            "unique_id": 0,
            "component": "model_state",
        }

    def test_nothing_complete_is_told_with_every_reason(self, run: Run, tmp_path: Path) -> None:
        write_trainer_run(tmp_path / "bad", {1: SAVED.without_rank(0), 2: SAVED.truncated("1_0.distcp", at=30)})
        assert_refused(
            run("latest", "bad"),
            "ckpt: bad: no complete version: version 0 of step 2 is damaged; version 0 of step 1 is incomplete\n",
            "\n  rank 0 of version 0 of step 1: 0_0.distcp is missing\n",
            "\n  rank 1 of version 0 of step 2: 1_0.distcp",
        )

    def test_a_component_is_chosen(self, run: Run, tmp_path: Path) -> None:
        write_trainer_run(tmp_path / "out", {9: SAVED}, component="optimizer_state")
        assert document_of(run("latest", "out", "--component", "optimizer_state", "--json"))["step"] == 9
        assert document_of(run("latest", "out", "--json"))["component"] == "model_state"


class TestVerify:
    def test_a_whole_version(self, run: Run, tmp_path: Path) -> None:
        outcome = run("verify", "out")
        assert (outcome.status, outcome.stderr) == (0, "")
        assert outcome.stdout.splitlines()[:2] == [
            f"version 0 of step 10 in {tmp_path}/out/checkpoint-10/model_state: complete",
            "  3 tensors, 144 bytes",
        ]

    def test_a_damaged_version_each_issue_on_one_line_of_stderr_and_nowhere_else(self, run: Run) -> None:
        outcome = run("verify", "out", "--step", 11)
        assert outcome.status == 1
        assert outcome.stderr.splitlines()[0] == "rank 1 of version 0 of step 11: 1_0.distcp is missing"
        for line in outcome.stderr.splitlines():
            assert line not in outcome.stdout
        as_json = run("verify", "out", "--step", 11, "--json")
        document = json.loads(as_json.stdout)
        assert (as_json.status, document["state"], document["is_sound"]) == (1, "incomplete", False)
        assert [issue["text"] for issue in document["issues"]] == as_json.stderr.splitlines()

    def test_payloads_too(self, run: Run) -> None:
        document = document_of(run("verify", "out", "--step", 9, "--deep", "--json"))
        assert document["step"] == 9
        assert document["deep"] == {"floats_checked": 3, "non_finite": [], "replicas_compared": 0}
        for found in document["files"]:
            assert f"  {found['sha256']}  {found['name']}\n" in run("verify", "out", "--deep").stdout

    def test_an_id_that_is_not_there(self, run: Run) -> None:
        outcome = run("verify", "out", "--id", 7)
        assert_refused(outcome, "no version with id 7; there are version 0 of step 11, version 0 of step 10")


class TestPlan:
    def test_the_plan_is_printed_and_nothing_is_written(self, run: Run, tmp_path: Path) -> None:
        before = everything_below(tmp_path)
        outcome = run("plan", "out")
        assert (outcome.status, outcome.stderr) == (0, "")
        lines = outcome.stdout.splitlines()
        assert lines[0] == f"source       {tmp_path}/out/checkpoint-10/model_state (version 0 of step 10)"
        assert "copies       7 into 3 tensors" in lines
        assert any(line.startswith("  model.w  float32 [6, 4] at byte ") for line in lines)
        assert any(line.startswith("    [3:6, 2:4] <- 3_0.distcp byte ") for line in lines)
        assert everything_below(tmp_path) == before

    def test_as_json(self, run: Run) -> None:
        document = document_of(run("plan", "out", "--json"))
        assert document["inputs"] == [f"{rank}_0.distcp" for rank in range(4)]
        assert document["bytes_in"] == 144
        assert f"plan         {document['digest']}\n" in run("plan", "out").stdout

    @pytest.mark.parametrize(
        ("options", "expected"),
        [
            ((), KEYS),
            (("--prefix", "model"), ["b", "w"]),
            (("--prefix", "model", "--keep-prefix"), ["model.b", "model.w"]),
            (("--prefix", "model", "--prefix", "model_ema", "--keep-prefix"), KEYS),
            (("--include", "*.w"), ["model.w", "model_ema.w"]),
            (("--include", "*.w", "--include", "*.b", "--exclude", "*ema*"), ["model.b", "model.w"]),
            (("--prefix", "model", "--exclude", "*.b"), ["w"]),
        ],
    )
    def test_options_choose_keys(self, run: Run, options: tuple[str, ...], expected: list[str]) -> None:
        document = document_of(run("plan", "out", "--json", *options))
        assert sorted(tensor["key"] for shard in document["shards"] for tensor in shard["tensors"]) == expected

    def test_a_selection_that_cannot_be_made(self, run: Run) -> None:
        assert_refused(run("plan", "out", "--prefix", "mode"), "prefix 'mode': no tensor begins with 'mode.'")
        assert_refused(run("plan", "out", "--prefix", "model", "--prefix", "model_ema"), "model.w", "model_ema.w")

    def test_the_size_of_shards(self, run: Run) -> None:
        document = document_of(run("plan", "out", "--max-shard-size", "0.1kB", "--json"))
        assert [(shard["name"], [tensor["key"] for tensor in shard["tensors"]]) for shard in document["shards"]] == [
            ("model-00001-of-00003.safetensors", ["model.b"]),
            ("model-00002-of-00003.safetensors", ["model.w"]),
            ("model-00003-of-00003.safetensors", ["model_ema.w"]),
        ]


class TestMerge:
    def test_what_was_merged_is_told(self, run: Run, tmp_path: Path) -> None:
        outcome = run("merge", "out", "merged")
        size = (tmp_path / "merged" / "model.safetensors").stat().st_size
        expected = f"merged version 0 of step 10: 3 tensors, {size:,} bytes, into merged\n"
        assert outcome == Outcome(0, expected, "")

    def test_as_json_it_is_the_manifest(self, run: Run, tmp_path: Path) -> None:
        document = document_of(run("merge", "out", "merged", "--step", 9, "--prefix", "model", "--json"))
        assert document.pop("path") == "merged"
        assert document == json.loads((tmp_path / "merged" / "manifest.json").read_text())
        assert [tensor["key"] for tensor in document["tensors"]] == ["b", "w"]
        assert document["source"]["step"] == 9

    def test_without_digests(self, run: Run) -> None:
        document = document_of(run("merge", "out", "merged", "--no-digests", "--json"))
        assert [record["sha256"] for record in document["files"]] == [""]

    def test_an_output_that_exists_is_kept_without_overwrite(self, run: Run, merged: Path) -> None:
        before = everything_below(merged)
        assert_refused(run("merge", "out", "merged"), f"{merged} exists already", "--overwrite")
        assert everything_below(merged) == before
        assert document_of(run("merge", "out", "merged", "--step", 9, "--overwrite", "--json"))["source"]["step"] == 9

    def test_parents_of_the_output_are_made(self, run: Run, tmp_path: Path) -> None:
        assert run("merge", "out", "a/b/merged").status == 0
        assert os.listdir(tmp_path / "a" / "b") == ["merged"]

    @pytest.mark.parametrize(
        "target", ["out", "out/checkpoint-10", "out/checkpoint-10/model_state", ".", "/", "link/.."]
    )
    def test_the_source_is_never_overwritten(self, run: Run, tmp_path: Path, target: str) -> None:
        (tmp_path / "link").symlink_to(tmp_path / "out" / "checkpoint-10")
        before = everything_below(tmp_path)
        assert_refused(run("merge", "out", target, "--overwrite"), "holds the source")
        assert everything_below(tmp_path) == before

    def test_an_output_below_a_file(self, run: Run, merged: Path) -> None:
        assert_refused(run("merge", "out", "merged/manifest.json/x"), f"cannot make {merged}/manifest.json: ")

    def test_a_damaged_version_leaves_no_output(self, run: Run, tmp_path: Path) -> None:
        assert_refused(run("merge", "out", "a/merged", "--step", 11), "1_0.distcp is missing")
        assert os.listdir(tmp_path) == ["out"]
