"""Commands on a source: which versions it holds, whether one is whole, what a merge would do, and the merge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcore.cli.app import (
    Component,
    Exclude,
    Include,
    Json,
    KeepPrefix,
    MaxShardSize,
    Prefix,
    Source,
    Step,
    UniqueId,
    app,
    complain,
    print_json,
    size_in_bytes,
)
from ckptcore.cli.layout_options import Dtype, Hf, KeepDtype, Map, layout_of

if TYPE_CHECKING:
    from ckptcore.lifecycle import Choice
    from ckptcore.rules.output_layout import OutputLayout


def choice_of(
    source: str,
    component: str | None,
    step: int | None,
    unique_id: int | None,
    prefix: list[str] | None,
    keep_prefix: bool,
    include: list[str] | None,
    exclude: list[str] | None,
    max_shard_size: str,
    layout: OutputLayout,
) -> Choice:
    """The options that choose a version and what of it, as one value."""
    from ckptcore.lifecycle import Choice
    from ckptcore.rules.selection import Selection

    selection = Selection(tuple(prefix or ()), keep_prefix, tuple(include or ()), tuple(exclude or ()))
    return Choice(source, component, step, unique_id, selection, size_in_bytes(max_shard_size), layout)


@app.command()
def versions(source: Source, component: Component = None, as_json: Json = False) -> None:
    """List every version of SOURCE with its state, and why.

    The newest comes first. A version is complete, incomplete or damaged; the reasons stand below it.
    """
    from ckptcore.detecting import inspect_all

    documents, listed = [], 0
    for inspected in inspect_all(source, component):
        version, state = inspected.version, inspected.state
        if as_json:
            reasons = [reason.to_json() for reason in state.reasons]
            documents.append(version.to_json() | {"state": state.kind.value, "reasons": reasons})
            continue
        listed += 1
        print(f"{state.kind.value:<10}  {version.label}  {version.directory}")
        for reason in state.reasons:
            print(f"            {reason}")
    if as_json:
        print_json(documents)
    elif not listed:
        complain(f"{source}: holds no version")


@app.command()
def latest(source: Source, component: Component = None, as_json: Json = False) -> None:
    """Print the newest complete version of SOURCE."""
    from ckptcore.detecting import newest_complete

    version = newest_complete(source, component)
    if as_json:
        print_json(version.to_json())
    else:
        print(f"{version.label}  {version.directory}")


@app.command()
def verify(
    source: Source,
    component: Component = None,
    step: Step = None,
    unique_id: UniqueId = None,
    deep: Annotated[
        bool, typer.Option("--deep", help="Read the payloads too: replicas, NaN and Inf, SHA-256.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Prove that a version is whole, or say all that is wrong.

    Checked are every file, piece, shape and dtype. Headers alone are read, unless --deep. Without --step and --id it is
    the version that a merge would take; where none is complete, the newest.
    """
    from ckptcore.detecting import version_to_judge
    from ckptcore.verifying import verify as verify_version

    report = verify_version(version_to_judge(source, component, step, unique_id), deep=deep).report
    if as_json:
        print_json(report.to_json())
    else:
        for line in report.summary():
            print(line)
    for issue in report.issues:
        complain(str(issue))
    if not report.is_sound:
        raise typer.Exit(1)


@app.command()
def plan(
    source: Source,
    component: Component = None,
    step: Step = None,
    unique_id: UniqueId = None,
    prefix: Prefix = None,
    keep_prefix: KeepPrefix = False,
    include: Include = None,
    exclude: Exclude = None,
    max_shard_size: MaxShardSize = "5GB",
    map_: Map = None,
    hf: Hf = None,
    dtype: Dtype = None,
    keep_dtype: KeepDtype = None,
    as_json: Json = False,
) -> None:
    """Print what a merge would do, and write nothing.

    Every shard, tensor and copy is listed, with the bytes, the memory and the free disk that the merge needs.
    """
    layout = layout_of(map_, hf, dtype, keep_dtype)
    choice = choice_of(
        source, component, step, unique_id, prefix, keep_prefix, include, exclude, max_shard_size, layout
    )
    planned = choice.planned()
    if as_json:
        print_json(planned.to_json())
    else:
        for line in planned.lines():
            print(line)


@app.command()
def merge(
    source: Source,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; parents are made.")],
    component: Component = None,
    step: Step = None,
    unique_id: UniqueId = None,
    prefix: Prefix = None,
    keep_prefix: KeepPrefix = False,
    include: Include = None,
    exclude: Exclude = None,
    max_shard_size: MaxShardSize = "5GB",
    map_: Map = None,
    hf: Hf = None,
    dtype: Dtype = None,
    keep_dtype: KeepDtype = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT, at once, where it exists.")] = False,
    digests: Annotated[bool, typer.Option(help="Compute the SHA-256 of every shard on the way.")] = True,
    as_json: Json = False,
) -> None:
    """Verify a version and write its unsharded tensors to OUT.

    OUT gets safetensors shards, their index and a manifest. It appears whole, in one rename, or not at all.
    """
    from ckptcore.cli.progress import Progress
    from ckptcore.mappings import companions_of
    from ckptcore.merging import merge as merge_plan
    from ckptcore.rules.versions import version_label

    layout = layout_of(map_, hf, dtype, keep_dtype)
    choice = choice_of(
        source, component, step, unique_id, prefix, keep_prefix, include, exclude, max_shard_size, layout
    )
    planned = choice.planned()
    # A plain merge writes what it merged alone; what is to be loaded by its configuration carries it.
    attach = companions_of(planned.directory, layout) if layout.is_for_hf else ()
    manifest = merge_plan(
        planned, out, overwrite=overwrite, digests=digests, attach=attach, on_progress=Progress(planned)
    )
    if as_json:
        print_json({"path": str(out)} | manifest.to_json())
    else:
        size = sum(record.size_bytes for record in manifest.files)
        label = version_label(planned.step, planned.unique_id)
        print(f"merged {label}: {len(manifest.tensors):,} tensors, {size:,} bytes, into {out}")
