"""The executor: write the shards of a plan, block by block, hashing each byte while it is in cache.

Workers take blocks in file order, fill them from the rank files and write them at their place; each shard's blocks
are hashed in order by whichever worker finds the next one finished. Memory is a fixed set of buffers whatever the size
of the checkpoint, a tensor or a shard. Staging, names and commit are ``commit``'s.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from pathlib import Path
from queue import SimpleQueue

from ckptcore.errors import StorageError
from ckptcore.rules.blocks import Block, blocks
from ckptcore.rules.finished_shard import FinishedShard
from ckptcore.rules.manifest import FileRecord
from ckptcore.rules.merge_plan import MergePlan, PlannedShard
from ckptcore.rules.tensors import TensorSpec
from ckptcore.storage.gather import fill
from ckptcore.storage.progress import OnProgress
from ckptcore.storage.readers import ReaderPool
from ckptcore.storage.refusals import reported, storage_error

OnShard = Callable[[FinishedShard], None]
PathOf = Callable[[str], Path]

# All buffers of one merge together, so that more cores do not mean more memory.
BUFFER_BUDGET_BYTES = 40 << 20
# About a core's second-level cache, where a block stays between reading, hashing and writing: with 4 MiB the kernel's
# share of the time more than doubled, with 512 KiB the number of calls began to show.
MAX_BLOCK_BYTES = 2 << 20
# Where a tensor is transposed: enough for a whole piece of most, which is then read and written in one call each.
TURNING_BUDGET_BYTES = 84 << 20
MAX_TURNED_BLOCK_BYTES = 14 << 20
REREAD_BYTES = 1 << 20
MAX_THREADS = 16


@dataclass(frozen=True, slots=True)
class _Sizes:
    threads: int
    buffers: int
    block_bytes: int
    lanes: int


def _sizes(shards: int, is_turned: bool) -> _Sizes:
    """One block in work and one scratch for each thread, and spare blocks that wait for their turn to be hashed."""
    threads = max(2, min(MAX_THREADS, len(os.sched_getaffinity(0))))
    buffers = 2 * threads
    most, budget = MAX_BLOCK_BYTES, BUFFER_BUDGET_BYTES
    if is_turned:
        most, budget = MAX_TURNED_BLOCK_BYTES, TURNING_BUDGET_BYTES
    block = min(most, budget // (buffers + threads)) & ~4095
    # A shard is hashed by one thread at a time; filling and hashing cost about the same, so two threads a shard.
    return _Sizes(threads, buffers, block, max(1, min(shards, threads // 2)))


class Digests(StrEnum):
    """What is hashed on the way: nothing, each shard, or each shard and each tensor in it."""

    NONE = "none"
    SHARDS = "shards"
    TENSORS = "tensors"


class _Hashes:
    """The SHA-256 of one shard, and of its tensors, fed its bytes in file order."""

    def __init__(self, shard: PlannedShard, digests: Digests) -> None:
        self.is_idle = digests is Digests.NONE
        self._shard = sha256(shard.header)
        self._with_tensors = digests is Digests.TENSORS
        self._tensor, self._rest = sha256(), 0
        empty = [tensor.spec.key for tensor in shard.tensors if not tensor.spec.size_bytes]
        self._tensors = dict.fromkeys(empty, sha256().hexdigest()) if self._with_tensors else {}

    def update(self, block: Block, data: memoryview) -> None:
        self._shard.update(data)
        for part in block.fills:
            self._update_tensor(part.spec, data[part.start : part.start + part.size_bytes])

    def update_of(self, spec: TensorSpec, data: memoryview) -> None:
        """As ``update``, of bytes that all belong to one tensor."""
        self._shard.update(data)
        self._update_tensor(spec, data)

    def _update_tensor(self, spec: TensorSpec, data: memoryview) -> None:
        if not self._with_tensors:
            return
        if not self._rest:
            self._tensor, self._rest = sha256(), spec.size_bytes
        self._tensor.update(data)
        self._rest -= len(data)
        if not self._rest:
            self._tensors[spec.key] = self._tensor.hexdigest()

    def written(self, shard: PlannedShard, overflows: Mapping[str, int]) -> FinishedShard:
        digest = "" if self.is_idle else self._shard.hexdigest()
        return FinishedShard(FileRecord(shard.name, shard.size_bytes, digest), self._tensors, overflows)


class _Lane:
    """One shard being written: its descriptor, its blocks to come, and its hashes over the blocks done so far."""

    def __init__(self, shard: PlannedShard, path: Path, block_bytes: int, digests: Digests) -> None:
        self.shard, self.path = shard, path
        self.blocks = enumerate(blocks(shard, max_bytes=block_bytes))
        with reported("cannot create", path):
            self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        _reserve(self.descriptor, shard.size_bytes, path)
        self.hashes = _Hashes(shard, digests)
        self.taken = self.finished = self.next_to_hash = 0
        self.exhausted = False
        self.overflows: dict[str, int] = {}
        self._waiting: dict[int, tuple[Block, memoryview | None]] = {}
        self._mutex = threading.Lock()
        self._hashing = False
        _write_all(self.descriptor, memoryview(shard.header), 0, path)

    def finish(self, number: int, block: Block, buffer: memoryview, free: SimpleQueue[memoryview]) -> None:
        """Hash block ``number`` when its turn comes, with all that follow and are ready, and free their buffers.

        A tile is no run of bytes: its buffer is free at once, and its band is read back when it is whole.
        """
        is_kept = block.band is None and not self.hashes.is_idle
        if not is_kept:
            free.put(buffer)
        if self.hashes.is_idle:
            return
        with self._mutex:
            self._waiting[number] = (block, buffer if is_kept else None)
            if self._hashing:
                return
            self._hashing = True
        while True:
            with self._mutex:
                ready = self._waiting.pop(self.next_to_hash, None)
                if ready is None:
                    self._hashing = False
                    return
                self.next_to_hash += 1
            block, kept = ready
            if kept is not None:
                self.hashes.update(block, kept[: block.size_bytes])
                free.put(kept)
            elif block.band is not None:
                self._hash_band(block.fills[0].spec, *block.band)

    def _hash_band(self, spec: TensorSpec, offset: int, size: int) -> None:
        buffer = memoryview(bytearray(min(size, REREAD_BYTES)))
        end = offset + size
        while offset < end:
            with reported("cannot read back", self.path):
                count = os.preadv(self.descriptor, [buffer[: end - offset]], offset)
            if not count:
                raise StorageError(f"{self.path}: ends while it is being written")
            self.hashes.update_of(spec, buffer[:count])
            offset += count

    def count_overflows(self, key: str, count: int) -> None:
        if count:
            with self._mutex:
                self.overflows[key] = self.overflows.get(key, 0) + count


class _Writer:
    """The state that the workers of one merge share."""

    def __init__(
        self,
        plan: MergePlan,
        shards: Sequence[PlannedShard],
        path_of: PathOf,
        readers: ReaderPool,
        digests: Digests,
        fsync: bool,
        on_progress: OnProgress,
        on_shard: OnShard,
    ) -> None:
        self.plan, self.path_of, self.readers = plan, path_of, readers
        self.digests, self.fsync = digests, fsync
        self.on_progress, self.on_shard = on_progress, on_shard
        self.sizes = _sizes(len(shards), plan.is_turned)
        self.stopped = threading.Event()
        self._pending = iter(shards)
        self._lanes: list[_Lane] = []
        self._unclosed: set[_Lane] = set()
        self._turn = 0
        self._mutex = threading.Lock()
        self._telling = threading.Lock()
        self.free: SimpleQueue[memoryview] = SimpleQueue()
        for _ in range(self.sizes.buffers):
            self.free.put(memoryview(bytearray(self.sizes.block_bytes)))

    def take(self) -> tuple[_Lane, int, Block] | None:
        """The next block, the open shards in turn; opens the next shard where one has no blocks left."""
        while True:
            with self._mutex:
                lane = self._open_lane()
                if lane is None:
                    return None
                taken = next(lane.blocks, None)
                if taken is not None:
                    lane.taken += 1
                    return lane, *taken
                lane.exhausted = True
                self._lanes.remove(lane)
                is_done = lane.finished == lane.taken
            if is_done:
                self._close(lane)

    def _open_lane(self) -> _Lane | None:
        while len(self._lanes) < self.sizes.lanes and (shard := next(self._pending, None)) is not None:
            lane = _Lane(shard, self.path_of(shard.name), self.sizes.block_bytes, self.digests)
            self._lanes.append(lane)
            self._unclosed.add(lane)
        self._turn += 1
        return self._lanes[self._turn % len(self._lanes)] if self._lanes else None

    def finished(self, lane: _Lane) -> None:
        with self._mutex:
            lane.finished += 1
            is_done = lane.exhausted and lane.finished == lane.taken
        if is_done:
            self._close(lane)

    def _close(self, lane: _Lane) -> None:
        """The shard is whole: by whoever finished its last block, with no lock held while the disk works."""
        if self.fsync:
            with reported("cannot sync", lane.path):
                os.fsync(lane.descriptor)
        with self._mutex:
            self._unclosed.remove(lane)
        os.close(lane.descriptor)
        with self._telling:
            self.on_shard(lane.hashes.written(lane.shard, lane.overflows))

    def work(self) -> None:
        scratch = memoryview(bytearray(self.sizes.block_bytes))
        try:
            while not self.stopped.is_set():
                # The buffer comes first: then a block that is taken never waits, and the blocks before it finish.
                buffer = self.free.get()
                taken = self.take()
                if taken is None or self.stopped.is_set():
                    self.free.put(buffer)
                    return
                lane, number, block = taken
                data = buffer[: block.size_bytes]
                for wanted in block.fills:
                    lane.count_overflows(wanted.spec.key, fill(self.readers, wanted, data, scratch))
                run = block.size_bytes // block.rows
                for row in range(block.rows):
                    start = row * run
                    _write_all(lane.descriptor, data[start : start + run], block.offset + row * block.pitch, lane.path)
                lane.finish(number, block, buffer, self.free)
                self.finished(lane)
                self.on_progress(block.size_bytes)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        self.stopped.set()
        # Wake the workers that wait for a buffer: they see the stop and return.
        for _ in range(self.sizes.threads):
            self.free.put(memoryview(b""))

    def close_all(self) -> None:
        for lane in self._unclosed:
            os.close(lane.descriptor)


def write_shards(
    plan: MergePlan,
    shards: Sequence[PlannedShard],
    path_of: PathOf,
    *,
    digests: Digests,
    fsync: bool,
    on_progress: OnProgress,
    on_shard: OnShard,
) -> None:
    """Write ``shards`` of ``plan``, each as a new file at the path of its name; tell ``on_shard`` what is finished.

    Deterministic: the same plan over the same source gives the same bytes. With ``fsync`` a shard is on disk before it
    counts as finished. ``on_progress`` is told the bytes of each finished block; both are called from any thread,
    ``on_shard`` never twice at once. Raises :class:`NotEnoughSpace`, :class:`StorageError` or :class:`DamagedFile`;
    partial files are left for the caller, whose paths they are.
    """
    with ReaderPool(Path(plan.directory), plan.inputs) as readers:
        writer = _Writer(plan, shards, path_of, readers, digests, fsync, on_progress, on_shard)
        try:
            with ThreadPoolExecutor(writer.sizes.threads, thread_name_prefix="merge") as pool:
                futures = [pool.submit(writer.work) for _ in range(writer.sizes.threads)]
                try:
                    wait(futures)
                except BaseException:
                    # Ctrl-C in this thread: the workers end at their next block instead of finishing the merge.
                    writer.stop()
                    raise
            for future in futures:
                future.result()
        finally:
            writer.close_all()


def _reserve(descriptor: int, size_bytes: int, path: Path) -> None:
    """Have the file system set the blocks aside, where it can: a full disk is known at once, and writing costs less.

    Not ``os.posix_fallocate``: where the file system cannot, that one writes to every block instead.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.fallocate(descriptor, 0, ctypes.c_int64(0), ctypes.c_int64(size_bytes))
    code = ctypes.get_errno()
    if failed and code in (errno.ENOSPC, errno.EDQUOT):
        raise storage_error(f"cannot reserve {size_bytes:,} bytes for", path, OSError(code, os.strerror(code)))


def _write_all(descriptor: int, data: memoryview, offset: int, path: Path) -> None:
    while data:
        with reported("cannot write", path):
            written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written
