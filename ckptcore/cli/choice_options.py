"""The options that choose a version, what of it, and how it is laid out: once, for every command that takes them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

from ckptcore.cli.app import Component, Source, Step, UniqueId

if TYPE_CHECKING:
    from ckptcore.lifecycle import Choice

Prefix = Annotated[
    list[str] | None,
    typer.Option("--prefix", metavar="P", help="Take the keys P.*, without the P.; may be repeated."),
]
KeepPrefix = Annotated[bool, typer.Option("--keep-prefix", help="Keep the prefix in the output's names.")]
Include = Annotated[
    list[str] | None, typer.Option("--include", metavar="GLOB", help="Take only keys that match; may be repeated.")
]
Exclude = Annotated[
    list[str] | None, typer.Option("--exclude", metavar="GLOB", help="Leave out keys that match; may be repeated.")
]
Map = Annotated[
    str | None,
    typer.Option("--map", metavar="FILE|PRESET", help="AOA statements (YAML or JSON), or a model family: llama, …"),
]
Hf = Annotated[
    Path | None,
    typer.Option(metavar="CONFIG_DIR", help="A Hugging Face model: its configuration and tokenizer go in."),
]
Dtype = Annotated[
    str | None, typer.Option(metavar="DTYPE", help="Round every float tensor: bfloat16, float16, float32, float64.")
]
KeepDtype = Annotated[
    list[str] | None, typer.Option("--keep-dtype", metavar="GLOB", help="But not these names; may be repeated.")
]
MaxShardSize = Annotated[str, typer.Option(metavar="SIZE", help="Largest shard: 500MB, 5GB, 2GiB.")]


def chooses(command: Callable[..., None]) -> Callable[..., None]:
    """``command(choice, …)`` as a command that takes SOURCE and all the options of a choice in place of ``choice``."""
    chosen = _parameters(_choice_of)
    own = [parameter for parameter in _parameters(command) if parameter.name != "choice"]

    @functools.wraps(command)
    def chosen_command(**values: Any) -> None:
        choice = _choice_of(**{parameter.name: values.pop(parameter.name) for parameter in chosen})
        command(choice=choice, **values)

    # Typer makes arguments and options of what a function's signature and annotations say.
    chosen_command.__signature__ = inspect.Signature([*chosen, *own])  # type: ignore[attr-defined]
    chosen_command.__annotations__ = {parameter.name: parameter.annotation for parameter in (*chosen, *own)}
    return chosen_command


def sharded(choice: Choice, max_shard_size: str) -> Choice:
    """``choice`` with the largest shard that the option says; a wrong size is a usage error."""
    from dataclasses import replace

    from ckptcore.rules.sizes import parse_size

    try:
        return replace(choice, max_shard_bytes=parse_size(max_shard_size))
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    # The type of a choice is known to type checkers alone: importing it would load what --help does not need.
    hints = get_type_hints(function, localns={"Choice": object}, include_extras=True)
    return [
        parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=hints[parameter.name])
        for parameter in inspect.signature(function).parameters.values()
    ]


def _choice_of(
    source: Source,
    component: Component = None,
    step: Step = None,
    unique_id: UniqueId = None,
    prefix: Prefix = None,
    keep_prefix: KeepPrefix = False,
    include: Include = None,
    exclude: Exclude = None,
    map_: Map = None,
    hf: Hf = None,
    dtype: Dtype = None,
    keep_dtype: KeepDtype = None,
) -> Choice:
    from ckptcore.lifecycle import Choice
    from ckptcore.rules.output_layout import OutputLayout
    from ckptcore.rules.selection import Selection

    layout_map = None
    if map_ is not None:
        from ckptcore.mappings import mapping

        layout_map = mapping(map_)
    return Choice(
        source,
        component,
        step,
        unique_id,
        selection=Selection(tuple(prefix or ()), keep_prefix, tuple(include or ()), tuple(exclude or ())),
        layout=OutputLayout(layout_map, None if hf is None else str(hf), dtype, tuple(keep_dtype or ())),
    )
