"""The tasks without Prefect's server: what each gives and refuses, what it would show, what is tried again."""

from __future__ import annotations

import errno
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from prefect.client.schemas.objects import State, TaskRun
from prefect.logging import disable_run_logger
from prefect.states import Failed

from ckptcore import errors
from ckptcore.errors import CheckpointError, ReleaseInvalid, SourceChanged, StorageError, VersionIncomplete
from ckptcore.publishing import Published
from ckptcore.registry import resolve
from ckptcore.rules.manifest import FileRecord, Manifest, SourceRecord
from ckptcore.rules.shapes import Expectation
from ckptcore.verifying import verify as verify_version
from tasks.artifacts import MOST_ROWS, artifact_key, cell, show_table
from tasks.detect import detect
from tasks.merge import merge
from tasks.plan import plan
from tasks.publish import publish, release_page
from tasks.retrying import is_io_fault, retry_io_faults
from tasks.validate import validate
from tasks.verify import report_rows, verify
from tests.builders import SavedCheckpoint, write_trainer_run
from tests.corpus import LLAMA_RUN

LEAVES = [found for found in vars(errors).values() if isinstance(found, type) and issubclass(found, CheckpointError)]
NAMES = st.text(min_size=1) | st.text("aA-_.", min_size=1, max_size=3)  # the latter collide often
BUG = ValueError("a bug")
REFUSAL = StorageError("refused")


@pytest.fixture(autouse=True)
def outside_of_a_run() -> Iterator[None]:
    with disable_run_logger():
        yield


@pytest.fixture
def small_run(tmp_path: Path) -> Path:
    saved = SavedCheckpoint().tensor("w", np.arange(48, dtype=np.float32).reshape(8, 6), grid=(2, 1))
    return write_trainer_run(tmp_path / "run", {1: saved, 2: saved})


def test_the_steps_in_their_order(tmp_path: Path) -> None:
    registry = str(tmp_path / "registry")
    version = detect.fn(str(LLAMA_RUN))
    assert (version.step, version.unique_id) == (100, 0)
    assert verify.fn(version).is_sound
    planned = plan.fn(version)
    staged = merge.fn(planned, registry, "llama")
    assert not staged.already_published
    assert validate.fn(staged).tensors == 21
    published = publish.fn(staged)
    assert resolve(registry, "llama") == Path(published.path)

    again = merge.fn(planned, registry, "llama")
    assert again.already_published
    assert not publish.fn(again).did_work


def test_verify_refuses_with_every_issue(small_run: Path) -> None:
    version = detect.fn(str(small_run), step=2)
    for rank in (0, 1):
        (Path(version.directory) / f"{rank}_0.distcp").unlink()
    with pytest.raises(VersionIncomplete) as refusal:
        verify.fn(version)
    assert "0_0.distcp" in str(refusal.value)
    assert "1_0.distcp" in str(refusal.value)


def test_a_report_is_shown_with_what_refuses_it_first(small_run: Path) -> None:
    version = detect.fn(str(small_run), step=2)
    (Path(version.directory) / "1_0.distcp").unlink()
    rows = list(report_rows(verify_version(version).report))
    kinds = [row["kind"] for row in rows]
    assert kinds[0] == "issue"
    assert kinds == sorted(kinds, key=["issue", "note", "file"].index)
    assert {row["where"] for row in rows if row["kind"] == "file"} == {"0.metadata", "0_0.distcp", "1_0.distcp"}
    assert len({frozenset(row) for row in rows}) == 1  # one set of columns


def test_merge_refuses_what_was_not_planned(small_run: Path, tmp_path: Path) -> None:
    planned = plan.fn(detect.fn(str(small_run)))
    rank_file = Path(planned.version.directory) / "1_0.distcp"
    rank_file.write_bytes(rank_file.read_bytes())  # saved again in place
    with pytest.raises(SourceChanged, match=planned.digest):
        merge.fn(planned, str(tmp_path / "registry"), "small")
    assert not (tmp_path / "registry").exists()


def test_merge_attaches_what_lies_beside_the_source_and_what_is_asked(small_run: Path, tmp_path: Path) -> None:
    (small_run / "checkpoint-2" / "config.json").write_text("{}")
    (tmp_path / "NOTES").write_text("notes")
    planned = plan.fn(detect.fn(str(small_run)))
    staged = merge.fn(planned, str(tmp_path / "registry"), "small", attach=[str(tmp_path / "NOTES")])
    assert {"config.json", "NOTES"} <= set(os.listdir(staged.path))


def test_validate_throws_an_unexpected_release_away(small_run: Path, tmp_path: Path) -> None:
    staged = merge.fn(plan.fn(detect.fn(str(small_run))), str(tmp_path / "registry"), "small")
    with pytest.raises(ReleaseInvalid, match="expectation 'v'"):
        validate.fn(staged, [Expectation("w"), Expectation("v")])
    assert not Path(staged.path).exists()


@pytest.mark.parametrize("leaf", LEAVES, ids=lambda leaf: leaf.__name__)
def test_no_refusal_is_tried_again(leaf: type[CheckpointError]) -> None:
    assert is_io_fault(leaf("refused")) is (leaf is StorageError)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (OSError(errno.EIO, "I/O error"), True),
        (TimeoutError("no answer"), True),
        (ValueError("a bug"), False),
        (KeyError("a bug"), False),
    ],
    ids=repr,
)
def test_other_errors(error: Exception, expected: bool) -> None:
    state: State[object] = Failed(data=error)
    assert retry_io_faults(merge, TaskRun(task_key="merge", dynamic_key="0"), state) is expected


@pytest.mark.parametrize("logger", ["prefect.flow_runs", "prefect.task_runs"])
@pytest.mark.parametrize(("error", "has_trace"), [(REFUSAL, False), (BUG, True)], ids=repr)
def test_a_refusal_is_logged_without_a_stack_trace(logger: str, error: Exception, has_trace: bool) -> None:
    record = logging.LogRecord(logger, logging.ERROR, __file__, 1, "failed", (), (type(error), error, None))
    assert logging.getLogger(logger).filter(record)
    assert bool(record.exc_info) is has_trace


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("llama", "release-llama"),
        ("llama-3", "release-llama-3"),
        ("Llama_3.1", r"release-llama-3-1-[0-9a-f]{8}"),
        ("模型", r"release-[0-9a-f]{8}"),
        ("-", r"release-[0-9a-f]{8}"),
        ("a" * 200, r"release-a{60}-[0-9a-f]{8}"),
    ],
)
def test_artifact_keys(name: str, key: str) -> None:
    assert re.fullmatch(key, artifact_key("release", name))


@given(NAMES, NAMES)
def test_every_name_has_a_key_that_prefect_takes_and_its_own(name: str, other: str) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", artifact_key("merge", name))
    assert (artifact_key("merge", name) == artifact_key("merge", other)) is (name == other)


def test_nothing_is_shown_outside_of_a_task_run() -> None:
    rows: Iterator[dict[str, str]] = iter(())
    show_table("nobody", rows, "would ask Prefect's server, and there is none")


def test_the_page_of_a_release_tells_what_it_is_made_of() -> None:
    source = SourceRecord("/runs/a|b", None, 3, None, "f" * 64, "3.2")
    files = tuple(FileRecord(f"model-{i:05}.safetensors", i, f"{i:064x}") for i in range(MOST_ROWS + 2))
    manifest = Manifest(files, (), source, "d" * 64, {}, "", "2030-01-01T00:00:00Z")
    published = Published("/registry", "llama", "id-3_abc", "/registry/llama/releases/id-3_abc", "latest", True)
    page = list(release_page(published, manifest))
    text = "\n".join(page)
    for expected in ("llama@id-3_abc", r"`/runs/a\|b`", "f" * 64, "d" * 64, files[7].sha256, "… and 2 more"):
        assert expected in text
    assert "| step |" not in text  # there was none
    assert "| flow run |" not in text
    assert all(line.count("|") - line.count(r"\|") in (3, 4) for line in page if line.startswith("|"))


def test_a_cell_cannot_leave_its_table() -> None:
    assert cell("a|b`c\nd") == r"`a\|b�c�d`"
