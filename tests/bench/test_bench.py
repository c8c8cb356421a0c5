"""The benchmark runs, at its smallest, and says what it measured. How fast anything was is not this test's business."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
MERGED = {"ckpt merge", "ckpt merge --no-digests"}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, object], Path]:
    """What one run printed, what it wrote, and its scratch directory."""
    directory = tmp_path_factory.mktemp("bench")
    scratch = directory / "scratch"
    scratch.mkdir()
    results = directory / "results.json"
    command = [sys.executable, "-m", "tests.bench", "--quick", "--json", str(results), "--scratch", str(scratch)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout, json.loads(results.read_text()), scratch


@pytest.fixture
def results(bench: tuple[str, dict[str, object], Path]) -> list[dict[str, object]]:
    written = bench[1]["results"]
    assert isinstance(written, list)
    return written


def test_everything_that_needs_only_this_repository_was_measured(results: list[dict[str, object]]) -> None:
    failures = {result["name"]: result["failure"] for result in results if result["failure"]}
    assert not failures
    names = {result["name"] for result in results if result["checkpoint"] == "mixed"}
    assert names >= {"cp", "cp + sha256sum"} | MERGED
    laid_out = {result["name"] for result in results if result["checkpoint"] == "mixed, laid out"}
    assert laid_out == {
        "cp", "ckpt merge", "ckpt merge --map, all transposed", "ckpt merge --map, qkv and gate/up taken apart",
        "ckpt merge --dtype float16",
    }  # fmt: skip
    of_checkpoint = {result["checkpoint"] for result in results if result["name"] in MERGED}
    assert of_checkpoint == {
        "mixed", "mixed, laid out", "half of mixed", "all of mixed", "rows", "columns",
        "20 tensors in 4 files", "200 tensors in 4 files", "200 tensors in 40 files",
    }  # fmt: skip


def test_every_result_is_a_measurement(results: list[dict[str, object]]) -> None:
    for result in results:
        numbers = {name: value for name, value in result.items() if isinstance(value, int | float)}
        low, median, high = (numbers[f"seconds_{which}"] for which in ("min", "median", "max"))
        assert 0 < low <= median <= high
        assert numbers["runs"] >= 1
        assert numbers["cpu_seconds_median"] > 0
        assert numbers["gb_per_s"] == pytest.approx(numbers["size_bytes"] / median / 1e9)
        assert numbers["peak_mb"] > 1
        assert ("ratio_to_cp" in numbers) == (result["name"] != "cp")


def test_the_sizes_that_are_compared_differ_as_they_should(results: list[dict[str, object]]) -> None:
    size = {result["checkpoint"]: result["size_bytes"] for result in results}
    assert size["all of mixed"] == size["mixed"] == 2 * int(str(size["half of mixed"]))
    assert size["rows"] == size["columns"]
    assert (
        size["200 tensors in 40 files"]
        == size["200 tensors in 4 files"]
        == 10 * int(str(size["20 tensors in 4 files"]))
    )


def test_the_table_has_a_line_for_each_result(
    bench: tuple[str, dict[str, object], Path], results: list[dict[str, object]]
) -> None:
    lines = bench[0].splitlines()
    heads = ("checkpoint", "what", "runs", "median s", "min", "max", "cpu s", "call s", "GB/s", "x cp", "peak MB")
    assert tuple(re.split(" {2,}", lines[0])) == heads
    for result in results:
        assert any(str(result["checkpoint"]) in line and str(result["name"]) in line for line in lines)


def test_nothing_is_left_in_the_scratch_directory(bench: tuple[str, dict[str, object], Path]) -> None:
    assert list(bench[2].iterdir()) == []
