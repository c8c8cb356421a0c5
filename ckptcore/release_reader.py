"""Tensors of a finished output or release, read from its safetensors files: the headers first, bytes on demand.

Owns where the bytes of a tensor lie. What headers should say is ``validate``'s, what the bytes mean is the caller's.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ckptcore.errors import CheckpointError, ReleaseInvalid, ReleaseNotFound
from ckptcore.formats.safetensors_file import parse_safetensors
from ckptcore.rules.issues import Issue
from ckptcore.rules.tensors import DTYPES, TensorSpec
from ckptcore.rules.validation import FoundShard, names_given_twice
from ckptcore.storage.local import LocalReader
from ckptcore.storage.readers import ReaderPool
from ckptcore.storage.refusals import reported

_DTYPE_NAMES = {dtype.safetensors: dtype.name for dtype in DTYPES.values() if dtype.safetensors}


@dataclass(frozen=True, slots=True)
class HeldTensor:
    """A tensor as a header describes it: its file, and where in it the bytes begin, C-ordered and little-endian."""

    spec: TensorSpec
    file: str
    begin: int


@dataclass(frozen=True, slots=True)
class HeldShard:
    """A safetensors file and its tensors in the order of their bytes."""

    name: str
    tensors: tuple[HeldTensor, ...]

    def found(self) -> FoundShard:
        """The shard as the rules judge it."""
        return FoundShard(self.name, tuple(tensor.spec for tensor in self.tensors))


@dataclass(frozen=True, slots=True)
class OpenTensor:
    """A tensor whose bytes can be read, from any thread, for as long as its release is open."""

    spec: TensorSpec
    file: str
    _begin: int
    _pool: ReaderPool
    _position: int

    def read_into(self, offset: int, target: memoryview) -> None:
        """Fill ``target`` with the tensor's bytes from ``offset``. Raises :class:`ReleaseInvalid` where they end."""
        end = offset + len(target)
        if end > self.spec.size_bytes:
            raise ValueError(f"tensor {self.spec.key!r} has {self.spec.size_bytes:,} bytes; asked up to {end:,}")
        with self._pool.opened(self._position) as reader:
            count = reader.readinto_at(self._begin + offset, target)
            if count < len(target):
                found = self._begin + offset + count
                issue = Issue(self.file, f"ends inside tensor {self.spec.key!r}", found=f"{found:,} bytes", code="cut")
                raise ReleaseInvalid(f"{reader.path} was cut while it was being read", [issue])


@contextmanager
def open_tensors(directory: str | os.PathLike[str]) -> Iterator[tuple[OpenTensor, ...]]:
    """The tensors of a directory of safetensors files, sorted by key; a bounded number of its files is open at a time.

    Raises :class:`ReleaseNotFound` where there is no directory, :class:`ReleaseInvalid` with every issue where a
    header cannot be read or a name is given twice.
    """
    path = Path(directory)
    held = sorted(held_tensors(path), key=lambda tensor: tensor.spec.key)
    files = sorted({tensor.file for tensor in held})
    position = {name: number for number, name in enumerate(files)}
    with ReaderPool(path, files) as pool:
        yield tuple(OpenTensor(t.spec, t.file, t.begin, pool, position[t.file]) for t in held)


def held_tensors(directory: Path) -> tuple[HeldTensor, ...]:
    """The tensors of a directory of safetensors files, from their headers alone, in the order of files and bytes."""
    issues: list[Issue] = []
    shards = tuple(read_headers(directory, plain_files(directory, issues), issues))
    issues += names_given_twice(shard.found() for shard in shards)
    if issues or not shards:
        raise ReleaseInvalid(f"{directory}: no readable safetensors files", issues)
    return tuple(tensor for shard in shards for tensor in shard.tensors)


def plain_files(directory: Path, issues: list[Issue]) -> list[str]:
    """The names of the plain files, sorted; anything else than a file is an issue. Dot files are the registry's own.

    Raises :class:`ReleaseNotFound` where there is no directory.
    """
    if not directory.is_dir():
        raise ReleaseNotFound(f"{directory}: no such directory")
    names = []
    with reported("cannot list", directory), os.scandir(directory) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_file(follow_symlinks=False):
                names.append(entry.name)
            else:
                issues.append(Issue(entry.name, "is no plain file", code="file-kind"))
    return sorted(names)


def read_headers(directory: Path, names: Iterable[str], issues: list[Issue]) -> Iterator[HeldShard]:
    """The safetensors files among ``names``; one that cannot be read, or of which a tensor cannot, is an issue."""
    for name in names:
        if not name.endswith(".safetensors"):
            continue
        try:
            with LocalReader(directory, name) as reader:
                header = parse_safetensors(reader, name)
        except CheckpointError as error:
            issues += error.issues or (Issue(name, error.message, code="shard"),)
            continue
        tensors = []
        for tensor in header.tensors:
            dtype = _DTYPE_NAMES.get(tensor.dtype)
            if dtype is None:
                what = f"unknown dtype {tensor.dtype!r} in {name}"
                issues.append(Issue(f"tensor {tensor.name!r}", what, code="dtype"))
            else:
                tensors.append(HeldTensor(TensorSpec(tensor.name, dtype, tensor.shape), name, tensor.begin))
        yield HeldShard(name, tuple(tensors))
