"""How the tensors of a release are laid out: a map, a preset, a dtype, and in which order these act on a selection.

First the selection takes source tensors and strips prefixes; statements and presets see the names that are left. Then
every tensor is rounded that is to be. ``--include`` and ``--exclude`` so mean source tensors, ``--keep-dtype`` those
of the release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ckptcore.errors import MappingError, SelectionError, UnsupportedDtype
from ckptcore.rules.casts import cast_issues, cast_to
from ckptcore.rules.families import FAMILIES, release_issues
from ckptcore.rules.issues import Issue
from ckptcore.rules.located import LocatedTensor
from ckptcore.rules.mapping import PieceStarts, Program, compile_program, mapping_from_document, piece_starts
from ckptcore.rules.presets import preset_program
from ckptcore.rules.regions import OutputTensor
from ckptcore.rules.selection import Selection, check_name, select
from ckptcore.rules.tensors import IndexedTensor, TensorSpec

PRESETS = tuple(sorted(FAMILIES))


@dataclass(frozen=True, slots=True)
class LayoutMap:
    """Either the name of a preset, or statements, to be read from right to left where ``is_reversed``."""

    preset: str = ""
    statements: tuple[str, ...] = ()
    is_reversed: bool = False

    def to_document(self) -> str | dict[str, object]:
        """What :func:`ckptcore.mapping` makes the same map of."""
        if self.preset:
            return self.preset
        return {"aoa_statements": list(self.statements), "aoa_config_reverse": self.is_reversed}

    def program(self) -> Program:
        """The statements, parsed. Raises :class:`MappingError` with each that cannot be."""
        return mapping_from_document(self.to_document())


@dataclass(frozen=True, slots=True)
class OutputLayout:
    """What becomes of the selected tensors.

    ``hf`` is the directory of the Hugging Face model whose configuration and tokenizer go into the release; None takes
    what lies beside the source. ``dtype`` rounds every tensor of a floating dtype (float8 not counted) but those whose
    names match ``keep_dtype``.
    """

    map: LayoutMap | None = None
    hf: str | None = None
    dtype: str | None = None
    keep_dtype: tuple[str, ...] = ()

    @property
    def keeps_tensors(self) -> bool:
        """Whether the release holds the selected tensors as they were saved."""
        return self.map is None and self.dtype is None

    @property
    def is_for_hf(self) -> bool:
        """Whether the release is meant to be loaded by its ``config.json``, and must hold what that implies."""
        return self.hf is not None or (self.map is not None and bool(self.map.preset))


@dataclass(frozen=True, slots=True)
class LaidOut:
    """The tensors of the release in natural order, and notes on what may surprise."""

    outputs: tuple[OutputTensor, ...]
    notes: tuple[Issue, ...]


def laid_out(
    tensors: Sequence[LocatedTensor],
    selection: Selection,
    layout: OutputLayout,
    config: Mapping[str, object] | None,
) -> LaidOut:
    """What a release of ``tensors`` holds. ``config`` is the decoded ``config.json`` that it is to carry, if any.

    Raises :class:`SelectionError`, :class:`MappingError` (also where the release would lack what the config implies),
    and :class:`UnsupportedDtype` with every tensor that cannot be cast.
    """
    outputs = select([tensor.spec for tensor in tensors], selection)
    notes: tuple[Issue, ...] = ()
    if layout.map is not None:
        outputs, notes = _mapped(outputs, tensors, layout.map, config)
    if layout.dtype is not None:
        outputs = cast_to(outputs, layout.dtype, layout.keep_dtype)
    elif layout.keep_dtype:
        raise SelectionError("--keep-dtype says what --dtype leaves alone; give both")
    uncastable = cast_issues(outputs, {tensor.spec.key: tensor.spec.dtype for tensor in tensors})
    if uncastable:
        raise UnsupportedDtype(f"{len(uncastable)} tensor(s) cannot be cast", uncastable)
    if layout.is_for_hf and config is not None:
        _require_loadable(layout, config, [output.spec for output in outputs])
    return LaidOut(outputs, notes)


def _mapped(
    selected: Sequence[OutputTensor],
    tensors: Sequence[LocatedTensor],
    layout_map: LayoutMap,
    config: Mapping[str, object] | None,
) -> tuple[tuple[OutputTensor, ...], tuple[Issue, ...]]:
    source_of = {output.key: output.regions[0].source for output in selected}
    specs = [output.spec for output in selected]
    starts = _starts({tensor.spec.key: tensor for tensor in tensors}, source_of)
    program = _program(layout_map, config, specs)
    compiled = compile_program(program, specs, starts)
    outputs = tuple(
        replace(output, regions=tuple(replace(region, source=source_of[region.source]) for region in output.regions))
        for output in compiled.outputs
    )
    issues = [issue for output in outputs for issue in check_name(output.key, f"tensor {output.key!r}")]
    if not outputs:
        issues.append(Issue("", "the statements leave no tensor", code="empty"))
    if issues:
        raise MappingError("the layout map does not make a release", issues)
    # What a preset does not mention it means to keep.
    return outputs, () if layout_map.preset else compiled.notes


def _starts(tensors: Mapping[str, LocatedTensor], source_of: Mapping[str, str]) -> dict[str, PieceStarts]:
    starts = {}
    for name, key in source_of.items():
        spec = tensors[key].spec
        pieces = tuple(located.piece for located in tensors[key].pieces)
        starts[name] = piece_starts(IndexedTensor(key, spec.dtype, spec.shape, pieces))
    return starts


def _program(layout_map: LayoutMap, config: Mapping[str, object] | None, specs: Iterable[TensorSpec]) -> Program:
    if not layout_map.preset:
        return layout_map.program()
    if config is None:
        raise MappingError(f"preset {layout_map.preset} needs the model's config.json: name its directory with --hf")
    found = config.get("model_type")
    if found != layout_map.preset and found in FAMILIES:
        raise MappingError(f"config.json: model_type: expected {layout_map.preset!r}, as the preset, found {found!r}")
    return preset_program(layout_map.preset, config, specs)


def _require_loadable(layout: OutputLayout, config: Mapping[str, object], specs: Sequence[TensorSpec]) -> None:
    family = layout.map.preset if layout.map is not None and layout.map.preset else str(config.get("model_type"))
    if family not in FAMILIES:
        return
    issues = release_issues(family, config, specs)
    if issues:
        raise MappingError(f"the release would not load as {family}: {len(issues)} tensor(s)", issues)
