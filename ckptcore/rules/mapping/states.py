"""Parameters and the optimizer states that follow them.

Owns the five suffixes of Paddle 3.3.1's optimizer keys. Statements speak of parameters; ``x -> y`` makes ``y.w_0``
of ``x.w_0`` with the same boxes. States keep their own dtype: a cast of the parameter must not round its master
weight. The step counters (``.beta1_pow_acc_0``, …) have one element whatever the parameter's shape.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from ckptcore.rules.issues import Issue
from ckptcore.rules.mapping.images import Image
from ckptcore.rules.regions import OutputTensor, passed_through
from ckptcore.rules.tensors import Shape, TensorSpec

_SHAPED = (".w_0", ".moment1_0", ".moment2_0")
_COUNTERS = (".beta1_pow_acc_0", ".beta2_pow_acc_0")


@dataclass(frozen=True, slots=True)
class Parameter:
    """What the checkpoint holds of one parameter: tensors by suffix, the parameter itself under ``""``."""

    name: str
    shape: Shape
    dtype: str
    tensors: Mapping[str, TensorSpec]

    def shaped_keys(self) -> tuple[str, ...]:
        return tuple(spec.key for suffix, spec in sorted(self.tensors.items()) if suffix not in _COUNTERS)

    def as_it_is(self) -> tuple[OutputTensor, ...]:
        return tuple(passed_through(spec, spec.key) for spec in self.tensors.values())


def split_suffix(key: str) -> tuple[str, str]:
    """The parameter's name and the suffix, ``""`` for a parameter."""
    for suffix in (*_SHAPED, *_COUNTERS):
        if key.endswith(suffix):
            return key.removesuffix(suffix), suffix
    return key, ""


def parameters_of(sources: Iterable[TensorSpec]) -> tuple[dict[str, Parameter], tuple[TensorSpec, ...]]:
    """The parameters by name, and the step counters of parameters that are not there, which no statement can name."""
    groups: dict[str, dict[str, TensorSpec]] = {}
    for spec in sorted(sources, key=lambda spec: spec.key):
        name, suffix = split_suffix(spec.key)
        groups.setdefault(name, {})[suffix] = spec
    parameters: dict[str, Parameter] = {}
    loose: list[TensorSpec] = []
    for name, tensors in groups.items():
        shaped = [spec for suffix, spec in sorted(tensors.items()) if suffix not in _COUNTERS]
        if not shaped:
            loose += tensors.values()
            continue
        dtype = tensors[""].dtype if "" in tensors else ""
        parameters[name] = Parameter(name, shaped[0].shape, dtype, tensors)
    return parameters, tuple(loose)


def outputs_of(
    name: str, image: Image, parameters: Mapping[str, Parameter], where: str
) -> tuple[list[OutputTensor], list[Issue], list[Issue]]:
    """The tensor ``name`` that ``image`` is, with its states; what forbids it; and what is worth knowing."""
    outputs: list[OutputTensor] = []
    issues: list[Issue] = []
    notes: list[Issue] = []
    held = [parameters[source] for source in image.sources]
    for suffix in sorted({suffix for parameter in held for suffix in parameter.tensors}):
        key = name + suffix
        if missing := [parameter.name for parameter in held if suffix not in parameter.tensors]:
            found = next(parameter.name for parameter in held if suffix in parameter.tensors)
            issues.append(
                Issue(
                    where,
                    f"{key} is made of {found}{suffix} and {missing[0]}{suffix}, which is not there",
                    code="mapping-state-missing",
                )
            )
            continue
        specs = {parameter.name: parameter.tensors[suffix] for parameter in held}
        if suffix in _COUNTERS:
            outputs.append(passed_through(specs[image.sources[0]], key))
            if len(specs) > 1:
                notes.append(
                    Issue(
                        where,
                        f"{key} is that of {image.sources[0]}, one of {len(specs)} parameters joined",
                        code="mapping-counter-chosen",
                    )
                )
            continue
        issues += (
            Issue(
                spec.key,
                "an optimizer state has another shape than its parameter",
                str(list(parameters[source].shape)),
                str(list(spec.shape)),
                code="mapping-state-shape",
            )
            for source, spec in specs.items()
            if spec.shape != parameters[source].shape
        )
        dtypes = image.dtypes() if not suffix else {spec.dtype for spec in specs.values()}
        if len(dtypes) != 1:
            issues.append(
                Issue(
                    where,
                    f"{key} is joined of different dtypes",
                    found=", ".join(sorted(dtypes)),
                    code="mapping-dtypes",
                )
            )
            continue
        regions = tuple(
            replace(region, source=specs[region.source].key, casts=() if suffix else region.casts)
            for region in image.regions
        )
        outputs.append(OutputTensor(key, next(iter(dtypes)), image.shape, regions))
    if not held:
        outputs.append(OutputTensor(name, image.dtype, image.shape, ()))
    return outputs, issues, notes
