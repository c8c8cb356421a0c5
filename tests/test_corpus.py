"""Every case of the corpus through the command: exact, bit for bit, or refused by name with nothing left."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.command import Outcome, ckpt, ckpt_process
from tests.corpus import SHIPPED, Case, Tensor, all_cases, case

DTYPE_NAMES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8",
    "BOOL": "bool", "C64": "complex64",
}  # fmt: skip
SHORTEST_MESSAGE = 15


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hostile checkpoint leaves its mark in the working directory, so each test has one of its own."""
    monkeypatch.chdir(tmp_path)


def merged_tensors(output: Path) -> dict[str, Tensor]:
    """What a release holds, read by the format's specification and none of our code."""
    tensors: dict[str, Tensor] = {}
    for file in sorted(output.rglob("*.safetensors")):
        data = file.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        for key, entry in json.loads(data[8:start]).items():
            if key != "__metadata__":
                assert key not in tensors, f"{key} is in two shards"
                first, last = entry["data_offsets"]
                tensors[key] = (DTYPE_NAMES[entry["dtype"]], tuple(entry["shape"]), data[start + first : start + last])
    return tensors


def assert_refused(outcome: Outcome) -> None:
    assert outcome.status == 1, outcome
    assert len(outcome.stderr.strip()) >= SHORTEST_MESSAGE, outcome
    assert "Traceback" not in outcome.stderr


def assert_exact(output: Path, expected: dict[str, Tensor]) -> None:
    merged = merged_tensors(output)
    for key, tensor in expected.items():
        assert merged[key] == tensor, f"{key!r}: {merged[key][:2]}, expected {tensor[:2]}"
    # Paddle does not save empty tensors; where the metadata names one, it may be in the release.
    assert [key for key in merged.keys() - expected.keys() if 0 not in merged[key][1]] == []


def assert_untouched(directory: Path, *expected_names: str) -> None:
    """Nothing ran (``PWNED``), and nothing lies about: no staging, no half output."""
    assert sorted(path.name for path in directory.iterdir()) == sorted(expected_names)


def test_latest(corpus_case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = ckpt(capfd, "latest", corpus_case.checkpoint, "--json")
    if corpus_case.verdict == "good":
        assert outcome.status == 0, outcome
        assert json.loads(outcome.stdout)["unique_id"] == corpus_case.newest_complete
    elif outcome.status:  # damage that only `verify` can see leaves the version complete for `latest`
        assert_refused(outcome)
    assert_untouched(tmp_path)


def test_verify(corpus_case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    outcome = ckpt(capfd, "verify", corpus_case.checkpoint)
    if corpus_case.verdict == "refuse":
        assert_refused(outcome)
    elif corpus_case.verdict == "good":
        assert outcome.status == 0, outcome
    assert_untouched(tmp_path)


def test_merge(corpus_case: Case, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if corpus_case.verdict == "refuse":
        assert_refused(ckpt(capfd, "merge", corpus_case.checkpoint, "out", "--json"))
        assert_untouched(tmp_path)
        return
    merged = []
    for unique_id in corpus_case.unique_ids:
        output = tmp_path / f"out-{unique_id}"
        outcome = ckpt(capfd, "merge", corpus_case.checkpoint, output, "--id", unique_id, "--json")
        if corpus_case.verdict == "either" and outcome.status:
            assert_refused(outcome)
            continue
        assert outcome.status == 0, outcome
        json.loads(outcome.stdout)
        assert_exact(output, corpus_case.expected(unique_id))
        merged.append(output.name)
    assert_untouched(tmp_path, *merged)


@pytest.mark.parametrize("name", ["b_evil_meta", "b_evil_rank", "b_path_escape", "b_rank_trunc_half"])
def test_a_refusal_as_a_shell_sees_it(name: str, tmp_path: Path) -> None:
    for arguments in (["verify"], ["merge", "out", "--json"]):
        verb, *rest = arguments
        assert_refused(ckpt_process(verb, case(name).checkpoint, *rest, cwd=tmp_path))
    assert_untouched(tmp_path)


@pytest.mark.parametrize("name", ["w4_ids", "w2_safetensors"])
def test_a_merge_as_a_shell_sees_it(name: str, tmp_path: Path) -> None:
    newest = case(name).newest_complete
    assert newest is not None
    outcome = ckpt_process("merge", case(name).checkpoint, "out", "--json", cwd=tmp_path)
    assert outcome.status == 0, outcome
    json.loads(outcome.stdout)  # one document on stdout, and nothing else
    assert_exact(tmp_path / "out", case(name).expected(newest))
    assert_untouched(tmp_path, "out")


def test_the_shipped_corpus_is_whole() -> None:
    """A clone has every kind of case, whatever lies beside it, so that the tests above cannot pass on nothing."""
    shipped = [case for case in all_cases() if case.directory.parent == SHIPPED]
    assert len(shipped) == 100
    assert {case.verdict for case in shipped} == {"good", "refuse", "either"}
    assert {case.name.split("_")[0].split("-")[0] for case in shipped} == {
        "b", "p2", "p3", "p5", "v2.6.2", "v3.0.0", "v3.1.1", "v3.2.2", "w1", "w2", "w4", "x",
    }  # fmt: skip
