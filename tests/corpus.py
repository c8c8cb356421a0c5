"""The corpus: real checkpoint directories and the answers that they must give (see ``tests/data/README.md``)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

DATA = Path(__file__).parent / "data"
LLAMA_RUN = DATA / "llama-run"
SHIPPED = DATA / "corpus"
BESIDE_THE_REPOSITORY = Path(__file__).parents[2] / "shared" / "corpus"

Verdict = Literal["good", "refuse", "either"]
Tensor = tuple[str, tuple[int, ...], bytes]
"""Dtype by Paddle's name, global shape, little-endian bytes in row-major order."""


@dataclass(frozen=True)
class Case:
    """One case: ``directory`` holds ``ckpt/``, ``case.json`` and the expected arrays."""

    directory: Path

    @property
    def name(self) -> str:
        return self.directory.name

    @property
    def checkpoint(self) -> Path:
        return self.directory / "ckpt"

    @cached_property
    def _record(self) -> dict[str, Any]:
        record: dict[str, Any] = json.loads((self.directory / "case.json").read_text())
        return record

    @property
    def verdict(self) -> Verdict:
        verdict: Verdict = self._record["verdict"]
        return verdict

    @property
    def newest_complete(self) -> int | None:
        newest: int | None = self._record["newest_complete"]
        return newest

    @property
    def unique_ids(self) -> tuple[int, ...]:
        return tuple(sorted(int(unique_id) for unique_id in self._record["ids"]))

    def expected(self, unique_id: int) -> dict[str, Tensor]:
        """The unsharded tensors of one save, by key."""
        save = self._record["ids"][str(unique_id)]
        with np.load(self.directory / save["expected"]) as arrays:
            return {
                key: (spec["dtype"], tuple(spec["shape"]), arrays[spec["array"]].tobytes())
                for key, spec in save["keys"].items()
            }


def all_cases() -> tuple[Case, ...]:
    """The cases that ship with the tests, and those of a larger corpus beside the repository, each name once."""
    found: dict[str, Case] = {}
    for corpus in (SHIPPED, BESIDE_THE_REPOSITORY):
        if corpus.is_dir():
            for record in corpus.glob("*/case.json"):
                found.setdefault(record.parent.name, Case(record.parent))
    return tuple(found[name] for name in sorted(found))


def case(name: str) -> Case:
    """One case that ships with the tests."""
    return Case(SHIPPED / name)


def programs() -> tuple[Path, ...]:
    """The directories of the statement programs that ship with the tests, and of others beside, each name once."""
    found: dict[str, Path] = {}
    for corpus in (DATA / "aoa", BESIDE_THE_REPOSITORY.with_name("aoa")):
        for record in corpus.glob("*/case.json"):
            found.setdefault(record.parent.name, record.parent)
    return tuple(found[name] for name in sorted(found))
