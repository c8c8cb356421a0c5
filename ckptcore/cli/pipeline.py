"""Commands for a pipeline: write its file, check it, watch its sources, deploy it, and run all of it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcore.cli.app import Json, app, print_json

Config = Annotated[Path, typer.Argument(metavar="[FILE]", help="The file that describes the pipeline.")]
DEFAULT_CONFIG = Path("ckpt.yaml")


@app.command()
def init(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="A run of checkpoint-<step>/, a step, or rank files.")
    ],
    registry: Annotated[str, typer.Option(metavar="DIRECTORY", help="Where releases go.")] = "registry",
    name: Annotated[str | None, typer.Option(metavar="NAME", help="Default: the source's own name.")] = None,
    output: Annotated[Path, typer.Option(metavar="FILE", help="The file to write.")] = DEFAULT_CONFIG,
    as_json: Json = False,
) -> None:
    """Write a commented ckpt.yaml from one look at SOURCE."""
    from ckptcore.config_template import write_template

    look = write_template(output, source, registry, name or Path(source).resolve().name)
    if as_json:
        document = {"versions": look.versions, "components": look.components, "prefixes": look.prefixes}
        print_json({"path": str(output), "source": look.source} | document)
    else:
        typer.echo(f"wrote {output}: {look.versions} version(s) of {', '.join(look.components) or 'plain rank files'}")
        typer.echo(f"  next: ckpt check {output}, then ckpt up {output}")


@app.command()
def check(config: Config = DEFAULT_CONFIG, as_json: Json = False) -> None:
    """Say what a ckpt.yaml would do, or all that is wrong in it."""
    from ckptcore.config import read_config
    from ckptcore.intentions import intentions
    from ckptcore.pipeline import as_document

    pipeline = read_config(config)
    if as_json:
        print_json({"pipeline": as_document(pipeline), "intentions": list(intentions(pipeline))})
        return
    typer.echo(f"{config}: the pipeline {pipeline.name} would")
    for line in intentions(pipeline):
        typer.echo(f"  {line}")


@app.command()
def watch(
    config: Config = DEFAULT_CONFIG,
    once: Annotated[
        bool, typer.Option("--once", help="Look until all that is there is judged, then end; for a cron job.")
    ] = False,
) -> None:
    """Announce each version of the sources once it is whole.

    For trainers that announce nothing. Marks and events are those of ckpt announce; ckpt up watches by itself.
    """
    import signal
    import threading

    from ckptcore.config import read_config
    from ckptcore.pipeline_watching import watch_pipeline

    pipeline, stop = read_config(config), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    watch_pipeline(pipeline, stop, tell=typer.echo, once=once)


@app.command()
def deploy(
    config: Config = DEFAULT_CONFIG,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove the pipeline from the server; releases and records of runs stay.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make the server have what a ckpt.yaml says.

    These are deployments, schedules, triggers, alerts and limits. Called again it changes nothing.
    Workers of the pool run it: prefect worker start --pool ckpt.
    """
    from ckptcore.config import read_config

    pipeline = read_config(config)
    from flows.configuring import configure, configured_url

    configure(pipeline)
    from flows.deploying import deploy as deploy_pipeline
    from flows.deploying import undeploy
    from flows.unavailable import told_of_server

    working_directory = str(config.resolve().parent)
    with told_of_server(configured_url(pipeline) or ""):
        deployed = undeploy(pipeline.name) if remove else deploy_pipeline(pipeline, working_directory)
    if as_json:
        print_json(deployed.to_json())
        return
    for what, names in deployed.to_json().items():
        for name in names:
            typer.echo(f"{what:<8} {name}")
    if deployed.is_unchanged:
        typer.echo("nothing to change")


@app.command()
def up(config: Config = DEFAULT_CONFIG) -> None:
    """Run the pipeline of a ckpt.yaml until Ctrl-C.

    That is the server, the deployments, a worker and the watcher. Without server.url and PREFECT_API_URL it
    starts Prefect's server, on SQLite, in a directory that it prints. Nothing
    is sent anywhere.
    """
    from ckptcore.config import read_config
    from flows.up import up as run_pipeline

    run_pipeline(read_config(config), config, lambda line: typer.echo(line))
