"""The options that say how a release is laid out, and the value that they make."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ckptcore.rules.output_layout import OutputLayout

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


def layout_of(map_: str | None, hf: Path | None, dtype: str | None, keep_dtype: list[str] | None) -> OutputLayout:
    """The four options as one value; a map is read now."""
    from ckptcore.rules.output_layout import OutputLayout

    layout_map = None
    if map_ is not None:
        from ckptcore.mappings import mapping

        layout_map = mapping(map_)
    return OutputLayout(layout_map, None if hf is None else str(hf), dtype, tuple(keep_dtype or ()))
