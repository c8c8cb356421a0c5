"""Show: what one release is, where it came from, and who published it, from its manifest and the history alone."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from ckptcore.registry import aliases_on, history_of, resolve, shelf_of
from ckptcore.rules.manifest import Manifest
from ckptcore.rules.release import Act, parse_reference
from ckptcore.rules.sizes import format_size
from ckptcore.validating import read_manifest


@dataclass(frozen=True, slots=True)
class ReleaseDescription:
    """One release: ``aliases`` name it now; ``acts`` are all that its name's history says of it, the oldest first."""

    name: str
    release: str
    path: str
    aliases: tuple[str, ...]
    manifest: Manifest
    acts: tuple[Act, ...]

    @property
    def size_bytes(self) -> int:
        """Of all files but the manifest."""
        return sum(record.size_bytes for record in self.manifest.files)

    def to_json(self) -> dict[str, object]:
        """The manifest without its tensor table, and what is known beside it."""
        document = self.manifest.to_json()
        tensors = self.manifest.tensors
        return {
            "name": self.name,
            "release": self.release,
            "path": self.path,
            "aliases": list(self.aliases),
            "size_bytes": self.size_bytes,
            "tensors": len(tensors),
            "dtypes": dict(sorted(Counter(record.spec.dtype for record in tensors).items())),
            **{key: value for key, value in document.items() if key not in ("schema", "tensors")},
            "history": [act.to_json() for act in self.acts],
        }

    def lines(self) -> Iterator[str]:
        """The description for people, without the acts."""
        manifest, source = self.manifest, self.manifest.source
        dtypes = Counter(record.spec.dtype for record in manifest.tensors)
        step = "" if source.step is None else f"step {source.step}, "
        yield f"{self.name}@{self.release}"
        yield f"  path      {self.path}"
        yield f"  aliases   {', '.join(self.aliases) or 'none'}"
        yield f"  source    {step}id {source.unique_id} of {source.path} (Paddle {source.paddle_format})"
        yield f"  made      {manifest.created_at} by {' '.join(f'{k} {v}' for k, v in manifest.software.items())}"
        if manifest.flow_run:
            yield f"  flow run  {manifest.flow_run}"
        counts = ", ".join(f"{count:,} {dtype}" for dtype, count in sorted(dtypes.items()))
        yield f"  tensors   {len(manifest.tensors):,}: {counts or 'none'}"
        yield f"  files     {len(manifest.files):,}, {format_size(self.size_bytes)}"
        width = max((len(record.name) for record in manifest.files), default=0)
        for record in manifest.files:
            yield f"    {record.name:<{width}}  {record.size_bytes:>15,}  {record.sha256}"


def describe_release(registry: str | os.PathLike[str], reference: str) -> ReleaseDescription:
    """The release that ``NAME``, ``NAME@alias`` or ``NAME@release`` means now.

    Raises :class:`ReleaseNotFound`, :class:`InvalidName` and :class:`ReleaseInvalid`.
    """
    path = resolve(registry, reference)
    shelf = shelf_of(registry, parse_reference(reference).name)
    return ReleaseDescription(
        name=shelf.name,
        release=path.name,
        path=str(path),
        aliases=tuple(alias for alias, release in aliases_on(shelf).items() if release == path.name),
        manifest=read_manifest(path),
        acts=tuple(act for act in history_of(shelf) if act.release == path.name),
    )
