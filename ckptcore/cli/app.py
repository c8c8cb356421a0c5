"""The command line's frame: the application, the options that several commands share, and how results are printed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

# Plain help: rich's would cost a third of the start-up time that is allowed.
app = typer.Typer(
    name="ckpt",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib import metadata

        print(f"ckpt {metadata.version('ckptcore')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Turn Paddle's distributed checkpoints into verified, merged, published releases.

    Exit status: 0 done; 1 refused, with every issue on a line of stderr; 2 wrong usage.
    """


Source = Annotated[
    str, typer.Argument(metavar="SOURCE", help="A directory of rank files, a step, or a run of checkpoint-<step>/.")
]
Component = Annotated[
    str | None, typer.Option(metavar="NAME", help="model_state (default where it exists), optimizer_state, …")
]
Step = Annotated[int | None, typer.Option(min=0, metavar="N", help="The training step; default: the newest complete.")]
UniqueId = Annotated[int | None, typer.Option("--id", min=0, metavar="N", help="Paddle's unique_id.")]
Alias = Annotated[str, typer.Option(metavar="ALIAS", help="The alias to move to the release.")]
Attach = Annotated[
    list[Path] | None, typer.Option("--attach", metavar="FILE", help="A file to put into the release; may be repeated.")
]
Expect = Annotated[
    Path | None, typer.Option("--expect", metavar="FILE", help="A YAML of expected names, shapes, dtypes and counts.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


def print_json(document: object) -> None:
    """Print one JSON document; bytes of a path that are no UTF-8 are escaped, as ``os.fsencode`` reads them."""
    text = json.dumps(document, ensure_ascii=False, indent=2)
    print(text.encode(errors="backslashreplace").decode())


def complain(text: str) -> None:
    """Print one line for people to stderr, over a line of progress that stands there unfinished.

    What could move the cursor or start another line, in a file's name say, is escaped.
    """
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
    print("\r\x1b[K" + line if sys.stderr.isatty() else line, file=sys.stderr)
