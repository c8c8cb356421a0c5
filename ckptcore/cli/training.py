"""Commands for the trainer: announce a version, and hand out the module that does so without this package."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcore.cli.app import Json, app, print_json


@app.command()
def announce(
    path: Annotated[
        Path | None, typer.Argument(metavar="PATH", help="The directory that holds {rank}_{unique_id}.distcp.")
    ] = None,
    unique_id: Annotated[int | None, typer.Argument(metavar="ID", min=0, help="Paddle's unique_id.")] = None,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="Prefect's API; default: PREFECT_API_URL; without, a mark alone.")
    ] = None,
    print_module: Annotated[
        bool, typer.Option("--print-module", help="Print the module to put beside a training script.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Say that a version is written.

    A durable mark is put beside its files, then an event is sent. Repeating it is harmless.
    """
    from ckptcore import announcing

    if print_module:
        typer.echo(Path(announcing.__file__).read_text(encoding="utf-8"), nl=False)
        return
    if path is None or unique_id is None:
        raise typer.BadParameter("PATH and ID are needed, or --print-module")
    from ckptcore.events import announce_now

    event, is_sent = announce_now(path, unique_id, url)
    if as_json:
        print_json({"id": event["id"], "is_sent": is_sent, "event": event})
    else:
        typer.echo(f"{event['id']}  {'sent' if is_sent else 'marked; no server is configured'}")
