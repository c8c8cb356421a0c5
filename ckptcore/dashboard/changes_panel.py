"""How a release differs from another: in numbers, as a histogram for each layer, and as a table of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from ckptcore.dashboard.cells import key_link, real_of, text_of, written_shape
from ckptcore.dashboard.linking import Query
from ckptcore.dashboard.markup import Markup, joined, name_of, shown, tag
from ckptcore.dashboard.results import ChangesRead
from ckptcore.dashboard.table_panel import Kind, Shown
from ckptcore.dashboard.words import version
from ckptcore.rules.change_histogram import BUCKETS, HIGHEST, LOWEST, LayerChange, by_layer
from ckptcore.rules.observed import PipelineSeen
from ckptcore.rules.tables import Table

_MOST_LAYERS = 400
_MOST_OFFERED = 200
KINDS = ("removed", "added", "reshaped", "recast", "changed")


def against_field(seen: PipelineSeen, release: str, chosen: str) -> Markup:
    """A field to choose what the release is compared with: an alias or another release."""
    aliases = [each for each in seen.aliases if each.exists and each.release != release]
    aliases.sort(key=lambda each: (each.alias != "production", each.alias))
    groups = []
    if aliases:
        offered = [_option(shown(each.alias), f"{shown(each.alias)} → {_step(each.step)}", chosen) for each in aliases]
        groups.append(tag("optgroup", *offered, label="aliases"))
    others = [each for each in seen.releases if each.name != release][:_MOST_OFFERED]
    offered = [
        _option(each.name, f"{version(each.step, each.unique_id)} · {each.name[-12:]}", chosen) for each in others
    ]
    groups.append(tag("optgroup", *offered, label="releases"))
    return tag("label", "against ", tag("select", *groups), class_="against")


def _option(value: str, text: str, chosen: str) -> Markup:
    return tag("option", text, value=value, selected=value == chosen)


def _step(step: int | None) -> str:
    return "no step" if step is None else f"step {step}"


def counted(read: ChangesRead) -> Markup:
    """How many tensors were added, removed, and so on."""
    words = []
    for kind in KINDS:
        count = read.counts.get(kind, 0)
        is_known = kind != "changed" or read.head["is_measured"]
        word = kind if is_known else "not of the same digest"
        words.append(tag("span", tag("b", f"{count:,}"), f" {word}", class_="" if count else "muted"))
    words.append(tag("span", tag("b", f"{read.head['unchanged']:,}"), " unchanged", class_="muted"))
    return tag("p", joined(words, " "), class_="counted")


def histogram(read: ChangesRead) -> Markup:
    """For each layer, how many of its tensors changed by which power of ten."""
    columns = read.tensors.columns
    kinds = columns["difference"].values
    measured = (
        (key, None if math.isnan(relative) else relative)
        for key, kind, relative in zip(columns["key"].values, kinds, columns["relative"].values, strict=True)
        if kind in ("changed", "recast")
    )
    layers = by_layer(measured)
    if not layers:
        return Markup("")
    most = max(max((*layer.counts, layer.unmeasured)) for layer in layers)
    has_unmeasured = any(layer.unmeasured for layer in layers)
    heads = [tag("th", "layer"), *(tag("th", _power(place), class_="power") for place in range(BUCKETS))]
    heads += [tag("th", "no number", class_="power")] if has_unmeasured else []
    heads.append(tag("th", "largest", class_="number"))
    rows = [_layer(layer, most, has_unmeasured) for layer in layers[:_MOST_LAYERS]]
    more = len(layers) - len(rows)
    if more > 0:
        rows.append(tag("tr", tag("td", f"and {more:,} more layers", colspan=BUCKETS + 3, class_="muted")))
    table = tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *rows), class_="grid heat")
    hint = "Tensors of each layer by their relative change: the norm of the difference over the norm before."
    title = tag("h3", "Relative change by layer")
    return tag(
        "div", title, tag("p", hint, class_="muted small"), tag("div", table, class_="scroll tall"), class_="part"
    )


def _layer(layer: LayerChange, most: int, has_unmeasured: bool) -> Markup:
    cells = [_heat(count, most) for count in layer.counts]
    cells += [_heat(layer.unmeasured, most)] if has_unmeasured else []
    largest = "–" if layer.largest is None else f"{layer.largest:.3g}"
    return tag("tr", tag("td", name_of(layer.layer), class_="mono"), *cells, tag("td", largest, class_="number"))


def _heat(count: int, most: int) -> Markup:
    if not count:
        return tag("td", class_="power")
    return tag("td", f"{count:,}", class_="power full", style=f"--share:{25 + 75 * count / most:.0f}%")


def _power(place: int) -> str:
    power = LOWEST + place
    if power == HIGHEST:
        return "≥ 1"
    return f"< 1e{LOWEST + 1}" if place == 0 else f"1e{power}"


def changes_kind(query: Query, changed: Callable[[], ChangesRead | None]) -> Kind:
    """The table of what differs; ``changed`` gives the comparison that it shows now."""

    def described(table: Table, row: int) -> Markup | str:
        """The shape, or what the dtype and shape were and became."""
        key, read = table.value("key", row), changed()
        before, after = read.specs.get(key, (None, None)) if read is not None else (None, None)
        if before is not None and after is not None:
            return f"{_spec(before)} → {_spec(after)}"
        return f"{shown(table.value('dtype', row))} {written_shape(table.value('shape', row))}"

    def share(table: Table, row: int) -> Markup | str:
        value = table.value("differing", row)
        return tag("span", "–", class_="muted") if math.isnan(value) else f"{value:.1%}"

    return Kind(
        "d",
        (
            Shown("key", key_link(query, "norm")),
            Shown("difference", text_of("difference")),
            Shown("shape", described, "nowrap wide"),
            Shown("relative", real_of("relative")),
            Shown("largest", real_of("largest"), "wide"),
            Shown("differing", share, "wide"),
            Shown("not_finite", real_of("not_finite"), "wide"),
        ),
        "Find a tensor that differs",
        "No tensor differs.",
    )


def _spec(spec: Sequence[Any]) -> str:
    return f"{spec[0]} {written_shape(spec[1])}"
