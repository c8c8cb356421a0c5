"""The commands on what was merged: validate, expect, publish and resolve; and run, which does it all."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.commands import Run
from tests.command import Outcome, assert_refused, document_of


class TestValidateAndExpect:
    def test_a_good_output(self, run: Run, merged: Path) -> None:
        size = sum(path.stat().st_size for path in merged.iterdir())
        expected = f"merged: valid; 2 files, 3 tensors, {size:,} bytes\n"
        assert run("validate", "merged") == Outcome(0, expected, "")
        document = document_of(run("validate", "merged", "--json"))
        assert (document["valid"], document["tensors"], document["issues"]) == (True, 3, [])

    def test_what_expect_writes_is_met(self, run: Run, merged: Path) -> None:
        written = run("expect", "merged")
        assert (written.status, written.stderr) == (0, "")
        (merged.parent / "shapes.yaml").write_text(written.stdout)
        assert run("validate", "merged", "--expect", "shapes.yaml").status == 0
        (merged.parent / "shapes.json").write_text(run("expect", "merged", "--json").stdout)
        assert run("validate", "merged", "--expect", "shapes.json").status == 0

    def test_all_mismatches_at_once(self, run: Run, merged: Path) -> None:
        (merged.parent / "shapes.yaml").write_text(
            "tensors:\n"
            "  model.w: {shape: [6, 5], dtype: bfloat16}\n"
            "  model.b: {shape: ['*'], count: 2}\n"
            "  lm_head.*: {}\n"
        )
        shard = merged / "model.safetensors"
        data = bytearray(shard.read_bytes())
        data[-1] ^= 1
        shard.write_bytes(data)
        outcome = run("validate", "merged", "--expect", "shapes.yaml")
        assert outcome.status == 1
        assert outcome.stdout.startswith("merged: not valid, 6 issue(s); ")
        texts = outcome.stderr.splitlines()
        assert [text.split(": expected")[0] for text in texts] == [
            "expectation 'lm_head.*': no tensor matches it",
            "expectation 'model.b': the number of tensors is not the expected one",
            "model.safetensors: SHA-256",
            "tensor 'model.w': its dtype is not the expected one",
            "tensor 'model.w': its shape is not the expected one",
            "tensor 'model_ema.w': no expectation names it",
        ]
        as_json = run("validate", "merged", "--expect", "shapes.yaml", "--json")
        assert (as_json.status, as_json.stderr) == (1, outcome.stderr)
        assert [issue["text"] for issue in json.loads(as_json.stdout)["issues"]] == texts

    @pytest.mark.parametrize("command", ["validate", "expect"])
    @pytest.mark.parametrize("place", ["nothing", "out/checkpoint-10/saved_signal_0"])
    def test_there_must_be_a_directory(self, run: Run, command: str, place: str) -> None:
        assert_refused(run(command, place), place)

    def test_a_directory_without_shards(self, run: Run) -> None:
        outcome = run("validate", "out/checkpoint-10/model_state")
        assert (outcome.status, outcome.stderr) == (1, "no safetensors file is here\n")
        assert_refused(run("expect", "out/checkpoint-10/model_state"), "no readable safetensors files")


class TestPublishAndResolve:
    def test_a_release_is_published_once_and_found_by_all_its_names(self, run: Run, merged: Path) -> None:
        (merged.parent / "config.json").write_text("{}")
        command = ("publish", "merged", "registry", "--name", "tiny", "--attach", "config.json")
        first = run(*command)
        [release] = os.listdir("registry/tiny/releases")
        path = f"{merged.parent}/registry/tiny/releases/{release}"
        assert first == Outcome(0, f"published tiny@{release}\n  latest -> {path}\n", "")
        again = run(*command)
        assert again == Outcome(0, f"tiny@{release} is published already; nothing was done\n  {path}\n", "")
        document = document_of(run(*command, "--json"))
        assert (document["release"], document["path"], document["did_work"]) == (release, path, False)
        for reference in ("tiny", "tiny@latest", f"tiny@{release}"):
            assert run("resolve", "registry", reference) == Outcome(0, f"{path}\n", "")
        assert document_of(run("resolve", "registry", "tiny", "--json")) == {"path": path, "release": release}
        assert sorted(os.listdir(path)) == ["config.json", "manifest.json", "model.safetensors"]

    def test_an_alias_of_ones_own(self, run: Run, merged: Path) -> None:
        assert run("publish", "merged", "registry", "--name", "tiny", "--alias", "candidate").status == 0
        assert run("resolve", "registry", "tiny@candidate").status == 0
        assert_refused(run("resolve", "registry", "tiny"), "no release or alias 'latest'")

    @pytest.mark.parametrize(
        "arguments",
        [
            ("nothing", "registry", "--name", "tiny"),
            ("out/checkpoint-10/model_state", "registry", "--name", "tiny"),
            ("merged", "registry", "--name", "../tiny"),
            ("merged", "registry", "--name", "tiny", "--alias", "releases"),
            ("merged", "registry", "--name", "tiny", "--attach", "nothing"),
            ("merged", "registry", "--name", "tiny", "--attach", "merged"),
            ("merged", "merged/manifest.json", "--name", "tiny"),
        ],
    )
    def test_what_cannot_be_published(self, run: Run, merged: Path, arguments: tuple[str, ...]) -> None:
        assert_refused(run("publish", *arguments))
        assert not list(merged.parent.glob("registry/*/releases/*"))

    @pytest.mark.parametrize("reference", ["other", "tiny@other", "../tiny", "tiny@../../out", ""])
    def test_what_cannot_be_resolved(self, run: Run, merged: Path, reference: str) -> None:
        assert run("publish", "merged", "registry", "--name", "tiny").status == 0
        assert_refused(run("resolve", "registry", reference))


class TestRun:
    def test_the_whole_lifecycle(self, run: Run, tmp_path: Path) -> None:
        first = run("run", "out", "registry", "--name", "tiny", "--prefix", "model")
        [release] = os.listdir("registry/tiny/releases")
        path = f"{tmp_path}/registry/tiny/releases/{release}"
        assert first == Outcome(0, f"published tiny@{release}\n  latest -> {path}\n", "")
        assert run("validate", path).status == 0
        document = document_of(run("run", "out", "registry", "--name", "tiny", "--prefix", "model", "--json"))
        assert (document["release"], document["path"], document["did_work"]) == (release, path, False)
        assert (document["registry"], document["name"], document["alias"]) == (f"{tmp_path}/registry", "tiny", "latest")

    def test_expectations_that_are_not_met_publish_nothing(self, run: Run, tmp_path: Path) -> None:
        (tmp_path / "shapes.yaml").write_text("tensors: {'*': {dtype: float32}}")
        outcome = run("run", "out", "registry", "--name", "tiny", "--expect", "shapes.yaml")
        assert_refused(outcome, "tensor 'model_ema.w': its dtype is not the expected one")
        assert_refused(run("resolve", "registry", "tiny"))
