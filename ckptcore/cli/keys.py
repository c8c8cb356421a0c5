"""``ckpt keys``: the tensors of a version, and what a release would make of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckptcore.cli.app import Json, app, complain, print_json
from ckptcore.cli.choice_options import chooses

if TYPE_CHECKING:
    from ckptcore.lifecycle import Choice
    from ckptcore.rules.regions import OutputTensor
    from ckptcore.rules.tensors import TensorSpec


@app.command()
@chooses
def keys(choice: Choice, as_json: Json = False) -> None:
    """List the tensors before and after a layout map.

    Those of SOURCE come first, then those of a release, each with what it is made of. Reads headers only.
    """
    from ckptcore.merging import lay_out

    checkpoint = choice.verified().checkpoint
    before = [tensor.spec for tensor in checkpoint.tensors]
    after = lay_out(checkpoint, selection=choice.selection, layout=choice.layout)
    if as_json:
        print_json(
            {
                "before": [_document(spec) for spec in before],
                "after": [_document(output.spec) | {"sources": _sources(output)} for output in after.outputs],
                "notes": [note.to_json() for note in after.notes],
            }
        )
        return
    print(f"before, {len(before):,} tensors:")
    for spec in before:
        print(f"  {_line(spec)}")
    print(f"after, {len(after.outputs):,} tensors:")
    for output in after.outputs:
        print(f"  {_line(output.spec)} ← {', '.join(_sources(output))}")
    for note in after.notes:
        complain(f"note: {note}")


def _sources(output: OutputTensor) -> list[str]:
    """The source tensors in the order in which they are read, each once."""
    return list(dict.fromkeys(region.source for region in output.regions))


def _line(spec: TensorSpec) -> str:
    return f"{spec.key}  {spec.dtype} {list(spec.shape)}"


def _document(spec: TensorSpec) -> dict[str, object]:
    return {"key": spec.key, "dtype": spec.dtype, "shape": list(spec.shape)}
