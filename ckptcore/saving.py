"""Save from training so that nothing is overwritten, and a finished save can be told from one under way.

For training code, on every rank: Paddle's own writer between a reservation and a completion mark, then the
announcement. Which id and which marks is decided in ``rules.save_marks``; what happens to a version afterwards is the
business of all other verbs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol, TypeVar, cast

from ckptcore.announcing import announce
from ckptcore.errors import CheckpointError, InvalidName, OutputExists, RanksDisagree, VersionIncomplete
from ckptcore.rules.issues import Issue
from ckptcore.rules.layout import RankFileName, metadata_name, parse_metadata_name
from ckptcore.rules.save_marks import (
    Completion,
    WrittenFile,
    completion_mark_name,
    next_id,
    saving_mark_name,
    taken_ids,
)
from ckptcore.storage.commit import sync_directory, write_file
from ckptcore.storage.refusals import reported

T = TypeVar("T")

MISSING_ON_FIRST_RANK = "not-on-first-rank"


class Gather(Protocol):
    """Every rank's value on every rank, once all have called."""

    def __call__(self, value: T, /) -> tuple[T, ...]: ...


def save_state_dict(
    state_dict: Mapping[str, object], path: str | os.PathLike[str], unique_id: int | None = None
) -> int:
    """``paddle.distributed.save_state_dict`` to a unique_id that is free: the one given, or one above the highest.

    Call it on all ranks with the same ``path``, on a file system that all share, and the same ``unique_id``. Every
    rank gets the id back when every file is on disk and ``{unique_id}.complete`` says so; rank 0 announces the version.
    Or every rank raises: :class:`OutputExists` where the id is taken, :class:`InvalidName` where it is none,
    :class:`RanksDisagree` where ranks differ, :class:`StorageError` where the file system refuses, and
    :class:`VersionIncomplete` where rank 0 does not see what another rank wrote. Anything else that Paddle's writer
    raises on one rank is :class:`RanksDisagree` on the others; but a rank that fails inside the writer's collectives,
    or dies, leaves the others waiting, as with Paddle's own function.
    """
    from ckptcore.paddle_saving import gather_from_all, this_rank, write_rank_file

    directory, rank = Path(os.path.abspath(path)), this_rank()
    _require_agreement(directory, gather_from_all(unique_id))

    def reserve() -> int | None:
        return _reserve(directory, unique_id) if rank == 0 else None

    chosen = _together(gather_from_all, reserve, "reserving an id")[0]
    assert chosen is not None

    def write() -> WrittenFile:
        name = str(RankFileName(rank, chosen))
        with reported("cannot write", directory / name):
            write_rank_file(state_dict, str(directory), chosen)
            return _synced(directory, name)

    files = _together(gather_from_all, write, f"writing version {chosen} to {directory}")

    def complete() -> None:
        if rank == 0:
            _complete(directory, chosen, files)

    _together(gather_from_all, complete, f"completing version {chosen} in {directory}")
    if rank == 0:
        announce(directory, chosen, rank=rank)
    return chosen


def _require_agreement(directory: Path, asked: tuple[int | None, ...]) -> None:
    if len(set(asked)) > 1:
        raise RanksDisagree(f"{directory}: ranks ask for different unique_ids: {', '.join(map(str, asked))}")
    if asked[0] is not None and parse_metadata_name(metadata_name(asked[0])) is None:
        raise InvalidName(f"{directory}: {asked[0]!r} is no unique_id")


def _together(gather: Gather, work: Callable[[], T], doing: str) -> tuple[T, ...]:
    """Every rank's result of ``work``, on every rank; where one failed, every rank raises, and none waits for it."""
    failure: Exception | None = None
    value: T | None = None
    try:
        value = work()
    except Exception as error:  # noqa: BLE001 - raised below, when the others know of it
        failure = error
    # Paddle's and the system's exceptions need not survive the journey to another process; refusals and texts do.
    told = failure if failure is None or isinstance(failure, CheckpointError) else repr(failure)
    outcomes = gather((value, told))
    if failure is not None:
        raise failure
    for rank, (_, refusal) in enumerate(outcomes):
        if isinstance(refusal, CheckpointError):
            raise refusal
        if refusal is not None:
            raise RanksDisagree(f"{doing}: rank {rank} failed: {refusal}")
    return tuple(cast("T", result) for result, _ in outcomes)


def _reserve(directory: Path, wanted: int | None) -> int:
    """Take ``wanted``, or the next id, in a way that no other process can take it too."""
    with reported("cannot reserve an id in", directory):
        directory.mkdir(parents=True, exist_ok=True)
        while True:
            taken = taken_ids(os.listdir(directory))
            if wanted in taken:
                raise OutputExists(f"{directory}: unique_id {wanted} is taken; the next free one is {next_id(taken)}")
            chosen = next_id(taken) if wanted is None else wanted
            mark = directory / saving_mark_name(chosen)
            try:
                os.close(os.open(mark, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666))
            except FileExistsError:
                continue  # another process was quicker: its mark is seen in the next listing
            # One that does not reserve, or finished between the listing and the mark, is seen now.
            if chosen not in taken_ids(set(os.listdir(directory)) - {mark.name}):
                return chosen
            mark.unlink()


def _complete(directory: Path, unique_id: int, files: tuple[WrittenFile, ...]) -> None:
    """The completion mark, after a look at what all ranks wrote; then the reservation is no longer needed."""
    with reported(f"cannot look at version {unique_id} in", directory):
        issues = [issue for file in files for issue in _unseen(directory, file)]
    if issues:
        raise VersionIncomplete(f"{directory}: rank 0 does not see what every rank wrote", issues)
    with reported(f"cannot complete version {unique_id} in", directory):
        metadata = _synced(directory, metadata_name(unique_id))
        sync_directory(directory)
        completion = Completion(unique_id, tuple(sorted((*files, metadata))))
        mark = directory / completion_mark_name(unique_id)
        staged = mark.with_name(f".{mark.name}")
        write_file(staged, completion.to_json())
        os.replace(staged, mark)
        (directory / saving_mark_name(unique_id)).unlink()
        sync_directory(directory)


def _unseen(directory: Path, file: WrittenFile) -> list[Issue]:
    try:
        size_bytes = os.stat(directory / file.name).st_size
    except FileNotFoundError:
        what = "was written by its rank and is not here: is the directory on a file system that all ranks share?"
        return [Issue(file.name, what, code=MISSING_ON_FIRST_RANK)]
    if size_bytes == file.size_bytes:
        return []
    expected, found = f"{file.size_bytes:,} bytes", f"{size_bytes:,} bytes"
    return [Issue(file.name, "has another size than its rank wrote", expected, found, MISSING_ON_FIRST_RANK)]


def _synced(directory: Path, name: str) -> WrittenFile:
    """The file, once its bytes are on disk; Paddle's writer leaves them to the page cache."""
    descriptor = os.open(directory / name, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        return WrittenFile(name, os.fstat(descriptor).st_size)
    finally:
        os.close(descriptor)
