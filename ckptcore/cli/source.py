"""Commands on a source: which versions it holds, whether one is whole, what a merge would do, and the merge."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcore.cli.app import Component, Json, Source, Step, UniqueId, app, complain, print_json
from ckptcore.cli.choice_options import MaxShardSize, chooses, sharded

if TYPE_CHECKING:
    from ckptcore.lifecycle import Choice


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
@chooses
def plan(
    choice: Choice,
    max_shard_size: MaxShardSize = "5GB",
    as_json: Json = False,
) -> None:
    """Print what a merge would do, and write nothing.

    Every shard, tensor and copy is listed, with the bytes, the memory and the free disk that the merge needs.
    """
    planned = sharded(choice, max_shard_size).planned()
    if as_json:
        print_json(planned.to_json())
    else:
        for line in planned.lines():
            print(line)


@app.command()
@chooses
def merge(
    choice: Choice,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The directory to write; parents are made.")],
    max_shard_size: MaxShardSize = "5GB",
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

    planned = sharded(choice, max_shard_size).planned()
    # A plain merge writes what it merged alone; what is to be loaded by its configuration carries it.
    attach = companions_of(planned.directory, choice.layout) if choice.layout.is_for_hf else ()
    manifest = merge_plan(
        planned, out, overwrite=overwrite, digests=digests, attach=attach, on_progress=Progress(planned)
    )
    if as_json:
        print_json({"path": str(out)} | manifest.to_json())
    else:
        size = sum(record.size_bytes for record in manifest.files)
        label = version_label(planned.step, planned.unique_id)
        print(f"merged {label}: {len(manifest.tensors):,} tensors, {size:,} bytes, into {out}")
