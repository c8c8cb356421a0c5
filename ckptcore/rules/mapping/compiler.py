"""Statements and source tensors to output tensors: which boxes of which sources make each of them.

Owns the meaning of statements and which programs are refused; no value is seen here. As in Paddle 3.3.1: statements
act in order; a name means what was assigned to it last, else the source tensor; what was assigned and read by no
later statement is an output, and so is every source tensor that no statement reads or drops. Where Paddle gives a
wrong value, loses one, or its two loaders disagree, the program is refused or done right; docs/decisions/aoa.md
lists these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ckptcore.errors import MappingError
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.mapping import images
from ckptcore.rules.mapping.expansion import expanded
from ckptcore.rules.mapping.fused import put_together, taken_apart
from ckptcore.rules.mapping.images import Image
from ckptcore.rules.mapping.lexer import StatementError
from ckptcore.rules.mapping.pieces import PieceStarts, pieces_along
from ckptcore.rules.mapping.statements import (
    NOTHING,
    AlongAxis,
    Cast,
    FusedQkv,
    Operand,
    Permute,
    Program,
    Rename,
    Statement,
)
from ckptcore.rules.mapping.states import Parameter, outputs_of, parameters_of, split_suffix
from ckptcore.rules.regions import OutputTensor, passed_through
from ckptcore.rules.tensors import TensorSpec


@dataclass(frozen=True, slots=True)
class CompiledMapping:
    """The outputs sorted by key, and notes on what is allowed and may surprise: sources read twice or passed
    through, values overwritten, statements that matched nothing."""

    outputs: tuple[OutputTensor, ...]
    notes: tuple[Issue, ...]


def compile_program(
    program: Program, sources: Iterable[TensorSpec], starts: Mapping[str, PieceStarts]
) -> CompiledMapping:
    """What ``program`` makes of ``sources``.

    ``starts`` says for a source's key where its stored pieces begin along each axis (``piece_starts``); a key that
    is missing there is in one piece. Raises MappingError with every issue, each with its statement.
    """
    workspace = _Workspace(tuple(sources), starts)
    for statement in program.statements:
        workspace.carry_out(statement)
    outputs = workspace.outputs()
    if workspace.issues:
        count = len(set(workspace.issues))
        raise MappingError(f"the layout map does not fit the checkpoint: {count} issue(s)", workspace.issues)
    return CompiledMapping(tuple(sorted(outputs, key=lambda output: output.key)), in_order(workspace.notes))


@dataclass(slots=True)
class _Binding:
    """What a name stands for. ``image`` is None where making it failed, so that one mistake gives one issue."""

    image: Image | None
    where: str = ""
    read_by: str = ""
    is_dropped: bool = False


class _Workspace:
    """Names, and what they stand for, while statements act one after another."""

    def __init__(self, sources: tuple[TensorSpec, ...], starts: Mapping[str, PieceStarts]) -> None:
        self.issues: list[Issue] = []
        self.notes: list[Issue] = []
        self._parameters, self._loose = parameters_of(sources)
        self._shapes = {name: parameter.shape for name, parameter in self._parameters.items()}
        self._starts = {
            name: tuple(starts[key] for key in parameter.shaped_keys() if key in starts)
            for name, parameter in self._parameters.items()
        }
        self._sources = {name: _Binding(_image_of(parameter)) for name, parameter in self._parameters.items()}
        self._assigned: dict[str, _Binding] = {}

    def carry_out(self, statement: Statement) -> None:
        try:
            concrete = expanded(statement, self._sources.keys(), self._assigned)
        except StatementError as error:
            self._refuse(statement, str(error))
            return
        if not concrete:
            self._note(statement, f"no tensor fits {statement.left[0]}; the statement does nothing", "no-match")
        for each in concrete:
            try:
                self._act(each)
            except StatementError as error:
                self._refuse(each, str(error))
                for operand in each.right:
                    self._assigned[operand.name] = _Binding(None, each.where)

    def outputs(self) -> list[OutputTensor]:
        """The tensors that the names stand for in the end, each key once."""
        found = [passed_through(spec, spec.key) for spec in self._loose]
        passed = {split_suffix(spec.key)[0] for spec in self._loose}
        for name, binding in self._sources.items():
            if binding.is_dropped:
                if binding.read_by:
                    self._issue(binding.where, f"{name} is dropped here and read by {binding.read_by}", "dropped-read")
            elif not binding.read_by:
                found += self._parameters[name].as_it_is()
                passed.add(name)
                what = "no statement mentions it; passed through"
                self.notes.append(Issue(name, what, code="mapping-passed-through"))
        for name, binding in self._assigned.items():
            if binding.image is None or binding.read_by or binding.is_dropped:
                continue
            if name in passed:
                what = f"{name} is a source tensor that is passed through: expected one of the two renamed or dropped"
                self._issue(binding.where, what, "collision")
                continue
            outputs, issues, notes = outputs_of(name, binding.image, self._parameters, binding.where)
            found += outputs
            self.issues += issues
            self.notes += notes
        return found

    def _act(self, statement: Statement) -> None:
        left, right = statement.left, statement.right
        if right[0].name == NOTHING:
            self._drop(statement, left[0])
        elif left[0].name == NOTHING:
            self._note(statement, f"{right[0]} is not in the checkpoint and is not made", "added")
        else:
            operands = [self._read(operand, statement) for operand in left]
            values = [value for value in operands if value is not None]
            results = self._results(statement, values) if len(values) == len(operands) else [None] * len(right)
            for operand, value in zip(right, results, strict=True):
                if value is not None and operand.is_transposed:
                    value = images.transposed(value)
                self._assign(operand.name, value, statement)

    def _results(self, statement: Statement, values: list[Image]) -> list[Image | None]:
        operation, count = statement.operation, len(statement.right)
        match operation:
            case Rename():
                return [values[0]]
            case AlongAxis(axis) if count == 1:
                return [values[0] if len(values) == 1 else images.joined(values, axis)]
            case AlongAxis(axis):
                return [*images.split(values[0], axis, count)]
            case Permute(order):
                return [_permuted(values[0], order)]
            case Cast(dtype, source):
                if source and not values[0].dtypes() <= {source, ""}:
                    found = ", ".join(sorted(values[0].dtypes()))
                    self._note(statement, f"the values are {found}, not {source}", "source-dtype")
                return [images.cast(values[0], dtype)]
            case fused if len(values) > 1:
                return [put_together(values, fused)]
            case fused:
                pieces = 1 if isinstance(fused, FusedQkv) else self._pieces(values[0], fused.axis)
                parts = taken_apart(values[0], fused, pieces)
                return [*parts] if count > 1 else [images.joined(parts, fused.axis)]

    def _pieces(self, image: Image, axis: int) -> int:
        return pieces_along(image, axis, self._shapes, self._starts)

    def _read(self, operand: Operand, statement: Statement) -> Image | None:
        binding = self._assigned.get(operand.name) or self._sources.get(operand.name)
        if binding is None:
            hint = ""
            if split_suffix(operand.name)[1] and split_suffix(operand.name)[0] in self._sources:
                hint = f"; an optimizer state follows its parameter, {split_suffix(operand.name)[0]}"
            raise StatementError(f"{operand.name} is no source tensor and assigned by no statement before{hint}")
        if binding.is_dropped and binding is not self._sources.get(operand.name):
            raise StatementError(f"{operand.name} was dropped by {binding.where}")
        if binding.read_by and binding.read_by != statement.where:
            self._note(statement, f"{operand.name} was read before, by {binding.read_by}", "read-twice")
        binding.read_by = statement.where
        return images.transposed(binding.image) if binding.image and operand.is_transposed else binding.image

    def _assign(self, name: str, image: Image | None, statement: Statement) -> None:
        before = self._assigned.get(name)
        if before is not None and before.image is not None and not before.read_by and not before.is_dropped:
            self._note(statement, f"{name} was assigned before, by {before.where}; that value is lost", "overwritten")
        self._assigned[name] = _Binding(image, statement.where)

    def _drop(self, statement: Statement, operand: Operand) -> None:
        assigned, source = self._assigned.get(operand.name), self._sources.get(operand.name)
        if assigned is not None and source is not None:
            assigned.is_dropped = True
            raise StatementError(f"{operand} is a source tensor and was assigned: expected a name that is one of them")
        binding = assigned or source
        if binding is None:
            self._note(statement, f"{operand} is not there; the statement does nothing", "no-match")
        else:
            binding.is_dropped, binding.where = True, statement.where

    def _refuse(self, statement: Statement, what: str) -> None:
        self._issue(statement.where, what, "statement")

    def _issue(self, where: str, what: str, code: str) -> None:
        self.issues.append(Issue(where, what, code=f"mapping-{code}"))

    def _note(self, statement: Statement, what: str, code: str) -> None:
        self.notes.append(Issue(statement.where, what, code=f"mapping-{code}"))


def _image_of(parameter: Parameter) -> Image:
    return images.whole_of(parameter.name, parameter.shape, parameter.dtype)


def _permuted(image: Image, order: tuple[int, ...]) -> Image:
    if not order:
        return images.transposed(image)
    if len(order) != len(image.shape):
        raise StatementError(f"permute names {len(order)} axes of a tensor of shape {list(image.shape)}")
    return images.permuted(image, order)
