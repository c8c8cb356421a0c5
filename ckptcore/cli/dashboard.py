"""The command for who watches: the operators' page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ckptcore.cli.app import app


@app.command()
def dashboard(
    config: Annotated[
        list[Path] | None, typer.Option("--config", metavar="FILE", help="A ckpt.yaml; may be repeated.")
    ] = None,
    source: Annotated[
        list[str] | None, typer.Option("--source", metavar="DIR", help="A training run; may be repeated.")
    ] = None,
    registry: Annotated[
        list[str] | None, typer.Option("--registry", metavar="DIR", help="A registry; may be repeated.")
    ] = None,
    host: Annotated[str, typer.Option(metavar="HOST", help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="PORT", help="Its port.")] = 4280,
    allow_actions: Annotated[
        bool, typer.Option("--allow-actions", help="Let it promote, roll back, pin, merge again and prune.")
    ] = False,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask for the token in FILE, or in CKPT_DASHBOARD_TOKEN.")
    ] = None,
    password_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Ask for the name and the password in FILE: NAME:PASSWORD.")
    ] = None,
) -> None:
    """Show what pipelines do on a page for operators.

    Without --config, --source and --registry it shows the ckpt.yaml here. It writes nothing. To listen
    anywhere but on this machine it needs a token or a password.
    """
    from ckptcore.dashboard.starting import credentials_from, require_free, require_installed

    require_installed()
    from ckptcore.dashboard.app import serve
    from ckptcore.dashboard.auth import require_safe
    from ckptcore.watched import watched_in_configs, watched_in_places

    configs = config or ([] if source or registry else [Path("ckpt.yaml")])
    watched = (*watched_in_configs(configs), *watched_in_places(source or [], registry or []))
    credentials = credentials_from(token_file, password_file)
    require_safe(host, credentials)
    require_free(host, port)
    typer.echo(f"http://{host}:{port}")
    serve(watched, host=host, port=port, credentials=credentials, allows_actions=allow_actions)
