"""Which file-system calls a command makes, and how one of them is made to kill it or to fail: strace's language."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

CHANGING = (
    "openat", "open", "creat", "mkdir", "mkdirat", "rename", "renameat", "renameat2", "link", "linkat", "symlink",
    "symlinkat", "unlink", "unlinkat", "rmdir", "write", "writev", "pwrite64", "pwritev", "pwritev2", "fsync",
    "fdatasync", "ftruncate", "truncate", "fallocate", "copy_file_range", "sendfile", "flock", "chmod", "fchmod",
    "fchmodat", "utimensat", "close",
)  # fmt: skip
"""The calls that change what is on disk, who holds a lock, or which file is open."""

READING = ("read", "pread64", "readv", "preadv", "preadv2", "getdents64", "readlink", "newfstatat", "fstatfs", "statfs")

_LINE = re.compile(r"(?P<thread>\d+) +(?P<call>\w+)\((?P<rest>.*)")
_PATH = re.compile(r'"(/[^"]*)"|<(/[^>]*)>')


@dataclass(frozen=True, slots=True)
class Point:
    """The ``number``-th call of that name on ``path`` in one thread of a command, from 1.

    ``also`` are more paths whose calls are counted with it, because strace has to watch them as well.
    """

    path: str
    call: str
    number: int
    also: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.call} {self.number} of {self.path}"


@dataclass(frozen=True, slots=True)
class Injection:
    """What strace does at a call: ``effect`` is ``signal=SIGKILL``, ``error=EIO``, …; ``when`` its expression."""

    call: str
    effect: str
    when: str = "1+"

    @property
    def option(self) -> str:
        return f"inject={self.call}:{self.effect}:when={self.when}"


def points(trace: str, places: Iterable[str], lacking: Collection[str] = ()) -> tuple[Point, ...]:
    """Every call of the trace on a path below one of ``places``, once each, in the order in which they come.

    strace counts the calls of each thread on its own, and so does this. ``lacking`` calls fail wherever they come, so
    that their paths are watched in every run; they are no points themselves.
    """
    wanted = tuple(places)
    lines = [(match, _paths(match, wanted)) for line in trace.splitlines() if (match := _LINE.match(line))]
    also = frozenset(path for match, paths in lines if match["call"] in lacking for path in paths)
    earlier: defaultdict[tuple[str, str], list[frozenset[str]]] = defaultdict(list)
    found: dict[Point, None] = {}
    for match, paths in lines:
        call, before = match["call"], earlier[match["thread"], match["call"]]
        before.append(frozenset(paths))
        if paths and call not in lacking:
            number = sum(paths[0] in seen or not also.isdisjoint(seen) for seen in before)
            found.setdefault(Point(paths[0], call, number, tuple(sorted(also - {paths[0]}))))
    return tuple(found)


def _paths(line: re.Match[str], places: tuple[str, ...]) -> tuple[str, ...]:
    """The paths below ``places`` that a call names, itself or by a descriptor, without what it returned."""
    named = [match[1] or match[2] for match in _PATH.finditer(line["rest"].partition(") = ")[0])]
    if line["call"] == "rename":
        del named[1:]  # strace 6.1 does not look at where it goes to
    return tuple(path for path in named if path.startswith(places))
