"""Commands on releases: validate an output, describe and publish it, find it again, and the whole lifecycle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ckptcore.cli.app import (
    Alias,
    Attach,
    Expect,
    Json,
    app,
    complain,
    print_json,
)
from ckptcore.cli.choice_options import MaxShardSize, chooses, sharded
from ckptcore.cli.gate_options import CheckOutput, Checks, SignKey, Smoke, SmokeGpus, SmokeTimeout, gate_options_of

if TYPE_CHECKING:
    from ckptcore.lifecycle import Choice
    from ckptcore.publishing import Published

Registry = Annotated[Path, typer.Argument(metavar="REGISTRY", help="The directory that holds the releases.")]


@app.command()
def validate(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A merged output or a release.")],
    expect: Expect = None,
    as_json: Json = False,
) -> None:
    """Re-read OUT as a consumer would: every mismatch at once.

    Every byte is hashed and held against the manifest, headers against the index, shapes and dtypes against the
    expectations.
    """
    from ckptcore.expecting import read_expectations
    from ckptcore.validating import validate as validate_output

    report = validate_output(out, expectations=read_expectations(expect))
    if as_json:
        print_json(report.to_json())
    else:
        verdict = f"not valid, {len(report.issues)} issue(s)" if report.issues else "valid"
        print(f"{out}: {verdict}; {report.files} files, {report.tensors:,} tensors, {report.size_bytes:,} bytes")
        for note in report.notes:
            print(f"  note: {note}")
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
        print(expectations_yaml(document), end="")


@app.command()
def publish(
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A directory that ckpt merge wrote.")],
    registry: Registry,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name to publish under.")],
    alias: Alias = "latest",
    attach: Attach = None,
    check: CheckOutput = None,
    smoke: Smoke = None,
    smoke_timeout: SmokeTimeout = 600,
    smoke_gpus: SmokeGpus = 0,
    sign_key: SignKey = None,
    as_json: Json = False,
) -> None:
    """Copy a merged output into REGISTRY and move an alias to it.

    The release is immutable and appears in one rename, the alias moves last. The same output is published once.
    """
    from ckptcore.publishing import publish as publish_output

    checks = () if check is None else (check,)
    gates = gate_options_of(checks, smoke, smoke_timeout, smoke_gpus, sign_key).gates()
    _show(publish_output(out, registry, name, alias=alias, attach=attach or (), gates=gates), as_json)


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
        print(path)


@app.command()
@chooses
def run(
    choice: Choice,
    registry: Registry,
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="The name to publish under.")],
    max_shard_size: MaxShardSize = "5GB",
    alias: Alias = "latest",
    attach: Attach = None,
    expect: Expect = None,
    check: Checks = None,
    smoke: Smoke = None,
    smoke_timeout: SmokeTimeout = 600,
    smoke_gpus: SmokeGpus = 0,
    sign_key: SignKey = None,
    flow: Annotated[bool, typer.Option("--flow", help="Run it as the Prefect flow.")] = False,
    as_json: Json = False,
) -> None:
    """All of it: detect, verify, merge, validate, publish.

    The tensors are written once, straight into the release. Where that release stands already, nothing is done.
    """
    from ckptcore.expecting import read_expectations

    choice = sharded(choice, max_shard_size)
    attached = tuple(attach or ())
    expectations = read_expectations(expect)
    gates = gate_options_of(check or (), smoke, smoke_timeout, smoke_gpus, sign_key)
    if flow:
        from flows.running import run_as_flow

        _show(run_as_flow(choice, registry, name, alias=alias, attach=attached, expect=expect, gates=gates), as_json)
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
            gates=gates.gates(choice.selection, keeps_tensors=choice.layout.keeps_tensors),
            on_plan=Progress,
        ),
        as_json,
    )


def _show(published: Published, as_json: bool) -> None:
    if as_json:
        print_json(published.to_json())
        return
    for report in published.gates:
        print(f"{report.gate}: {report.finding}")
    if published.did_work:
        print(f"published {published.name}@{published.release}")
        print(f"  {published.alias} -> {published.path}")
    else:
        # The alias may have been moved since, on purpose; it is not claimed to point here.
        print(f"{published.name}@{published.release} is published already; nothing was done")
        print(f"  {published.path}")
