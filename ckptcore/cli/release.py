"""Commands on releases: validate an output, describe and publish it, find it again, and the whole lifecycle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcore.cli.app import (
    Alias,
    Attach,
    Component,
    Exclude,
    Expect,
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
)
from ckptcore.cli.source import choice_of

if TYPE_CHECKING:
    from ckptcore.publishing import Published

Registry = Annotated[Path, typer.Argument(metavar="REGISTRY", help="The directory that holds the releases.")]


@app.command()
def validate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A merged output or a release.")],
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Re-read OUT as a consumer would, and report every mismatch with its manifest, index and expectations."""
    from ckptcore.expecting import read_expectations
    from ckptcore.validating import validate as validate_output

    report = validate_output(out, expectations=read_expectations(expect))
    if as_json:
        print_json(report.to_json())
    else:
        verdict = "valid" if not report.issues else f"{len(report.issues)} mismatch(es)"
        typer.echo(f"{out}: {verdict}; {report.files} files, {report.tensors:,} tensors, {report.size_bytes:,} bytes")
        for note in report.notes:
            typer.echo(f"  note: {note}")
    for issue in report.issues:
        complain(str(issue))
    if report.issues:
        raise typer.Exit(1)


@app.command()
def expect(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A merged output or a release that is good.")],
    as_json: Json = False,
) -> None:
    """Print the expectations that OUT fulfils, as YAML for --expect."""
    from ckptcore.expecting import expectations_yaml
    from ckptcore.rules.shapes import describe
    from ckptcore.validating import specs_of

    document = describe(specs_of(out))
    if as_json:
        print_json(document)
    else:
        typer.echo(expectations_yaml(document), nl=False)


@app.command()
def publish(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory that ckpt merge wrote.")],
    registry: Registry,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name to publish under.")],
    alias: Alias = "latest",
    attach: Attach = None,
    as_json: Json = False,
) -> None:
    """Copy a merged output into REGISTRY as an immutable release and move the alias to it."""
    from ckptcore.publishing import publish as publish_output

    _show(publish_output(out, registry, name, alias=alias, attach=attach or ()), as_json)


@app.command()
def resolve(
    registry: Registry,
    reference: Annotated[str, typer.Argument(metavar="NAME[@ALIAS|@RELEASE]", help="What to look up.")],
    as_json: Json = False,
) -> None:
    """Print the directory that a serving job mounts."""
    from ckptcore.registry import resolve as resolve_reference

    path = resolve_reference(registry, reference)
    if as_json:
        print_json({"path": str(path), "release": path.name})
    else:
        typer.echo(str(path))


@app.command()
def run(
    source: Source,
    registry: Registry,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name to publish under.")],
    component: Component = None,
    step: Step = None,
    unique_id: UniqueId = None,
    prefix: Prefix = None,
    keep_prefix: KeepPrefix = False,
    include: Include = None,
    exclude: Exclude = None,
    max_shard_size: MaxShardSize = "5GB",
    alias: Alias = "latest",
    attach: Attach = None,
    expect: Expect = None,
    flow: Annotated[bool, typer.Option("--flow", help="Run it as the Prefect flow.")] = False,
    as_json: Json = False,
) -> None:
    """The whole lifecycle: detect, verify, merge, validate and publish, as one command."""
    from ckptcore.expecting import read_expectations

    choice = choice_of(source, component, step, unique_id, prefix, keep_prefix, include, exclude, max_shard_size)
    attached = tuple(attach or ())
    expectations = read_expectations(expect)
    if flow:
        from flows.running import run_as_flow

        _show(run_as_flow(choice, registry, name, alias=alias, attach=attached, expect=expect), as_json)
        return
    from ckptcore.cli.progress import Progress
    from ckptcore.lifecycle import run as run_lifecycle

    _show(
        run_lifecycle(
            choice,
            registry,
            name,
            alias=alias,
            attach=attached,
            expectations=expectations,
            on_plan=Progress,
        ),
        as_json,
    )


def _show(published: Published, as_json: bool) -> None:
    if as_json:
        print_json(published.to_json())
        return
    done = "published" if published.did_work else "is published already:"
    typer.echo(f"{done} {published.name}@{published.release}")
    typer.echo(f"  {published.alias} -> {published.path}")
