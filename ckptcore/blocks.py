"""Blocks of Prefect for flows of one's own: a registry and a source, by name, as the server's users configured them.

Registered with the package (entry point ``prefect.collections``). The only module of the library that imports Prefect.
"""

from __future__ import annotations

from pathlib import Path

from prefect.blocks.core import Block
from pydantic import Field

from ckptcore.detecting import list_versions, newest_complete
from ckptcore.registry import names_in, resolve
from ckptcore.rules.versions import Version


class CheckpointRegistry(Block):
    """A directory of releases. In a flow: `CheckpointRegistry.load("models").resolve("llama@latest")`."""

    _block_type_name = "Checkpoint Registry"
    _block_type_slug = "checkpoint-registry"

    path: str = Field(description="The directory that holds the releases, as the workers see it.")

    def names(self) -> tuple[str, ...]:
        """The names that have releases. Raises :class:`StorageError`."""
        return names_in(self.path)

    def resolve(self, reference: str) -> Path:
        """The directory of `NAME`, `NAME@alias` or `NAME@release`. Raises :class:`ReleaseNotFound`."""
        return resolve(self.path, reference)


class CheckpointSource(Block):
    """A training run. In a flow: `CheckpointSource.load("llama-run").newest_complete()`."""

    _block_type_name = "Checkpoint Source"
    _block_type_slug = "checkpoint-source"

    path: str = Field(description="Rank files, a step, or a run of checkpoint-<step>/, as the workers see it.")
    component: str | None = Field(default=None, description="model_state where it exists, unless another is named.")

    def versions(self) -> tuple[Version, ...]:
        """Every version by its names, the newest first, whole or not. Raises :class:`VersionNotFound`."""
        return list_versions(self.path, self.component)

    def newest_complete(self) -> Version:
        """The newest version that is whole. Raises :class:`VersionNotFound`."""
        return newest_complete(self.path, self.component)
