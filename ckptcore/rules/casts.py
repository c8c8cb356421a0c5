"""Which tensors of a release are rounded to another dtype, and which casts there are.

Owns ``--dtype`` and ``--keep-dtype``, and the refusal of casts that have no single meaning: those from or to integers,
bool, complex and float8. What a cast does to the bits is ``storage.casting``'s.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ckptcore.errors import SelectionError
from ckptcore.rules.issues import Issue
from ckptcore.rules.regions import OutputTensor, Region
from ckptcore.rules.selection import matching

CAST_DTYPES = ("float64", "float32", "float16", "bfloat16")


def cast_to(outputs: Sequence[OutputTensor], dtype: str, keep: Sequence[str]) -> tuple[OutputTensor, ...]:
    """The outputs with every tensor of a dtype in ``CAST_DTYPES`` rounded to ``dtype``, but for those whose name
    matches one of the globs in ``keep``.

    Raises :class:`SelectionError` for a dtype that nothing can be cast to, and for a glob that matches nothing.
    """
    issues = []
    if dtype not in CAST_DTYPES:
        issues.append(Issue("dtype", "is none to cast to", ", ".join(CAST_DTYPES), repr(dtype), "dtype"))
    kept: set[str] = set()
    for glob in keep:
        found = matching(glob, [output.key for output in outputs])
        if not found:
            issues.append(Issue(f"keep-dtype {glob!r}", "no tensor matches it", code="keep-dtype-matches-nothing"))
        kept |= found
    if issues:
        raise SelectionError("the tensors cannot be cast", issues)
    return tuple(output if output.key in kept else _cast(output, dtype) for output in outputs)


def _cast(output: OutputTensor, dtype: str) -> OutputTensor:
    if output.dtype not in CAST_DTYPES or output.dtype == dtype:
        return output

    def one(region: Region) -> Region:
        return replace(region, casts=(*region.casts, dtype))

    return replace(output, dtype=dtype, regions=tuple(map(one, output.regions)))


def cast_issues(outputs: Iterable[OutputTensor], dtypes: Mapping[str, str]) -> tuple[Issue, ...]:
    """One issue for each output that is cast from or to a dtype that casts are not defined for.

    ``dtypes`` are those of the source tensors by key.
    """
    issues = []
    for output in outputs:
        used = {dtype for region in output.regions if region.casts for dtype in (dtypes[region.source], *region.casts)}
        if unsupported := sorted(used - {*CAST_DTYPES}):
            what = "casts are between floating dtypes alone"
            found = ", ".join(unsupported)
            issues.append(Issue(f"tensor {output.key!r}", what, ", ".join(CAST_DTYPES), found, "cast-dtype"))
    return tuple(issues)
