"""Prefixes, globs and the names that come out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckptcore.errors import SelectionError
from ckptcore.rules.regions import passed_through
from ckptcore.rules.selection import Selection, select
from ckptcore.rules.tensors import TensorSpec

SOURCE = ("model.a", "model.layers.10.w", "model.layers.2.w", "model_ema.a", "modelx", "model", "opt.lr", "opt.m.a")


def specs(*keys: str) -> list[TensorSpec]:
    return [TensorSpec(key, "float32", (2, 3)) for key in keys]


def names(selection: Selection, *keys: str) -> list[tuple[str, str]]:
    """Output name and source key of each selected tensor."""
    return [(output.key, output.regions[0].source) for output in select(specs(*keys or SOURCE), selection)]


def refused(selection: Selection, *keys: str) -> list[str]:
    with pytest.raises(SelectionError) as refusal:
        select(specs(*keys or SOURCE), selection)
    return [str(issue) for issue in refusal.value.issues]


def test_nothing_asked_is_everything_in_natural_order() -> None:
    assert [name for name, _ in names(Selection())] == [
        "model", "model.a", "model.layers.2.w", "model.layers.10.w", "model_ema.a", "modelx", "opt.lr", "opt.m.a",
    ]  # fmt: skip
    assert select(specs("w"), Selection()) == (passed_through(specs("w")[0], "w"),)


@pytest.mark.parametrize("prefix", ["model", "model."])
def test_a_prefix_is_a_dotted_group(prefix: str) -> None:
    stripped = [("a", "model.a"), ("layers.2.w", "model.layers.2.w"), ("layers.10.w", "model.layers.10.w")]
    assert names(Selection(prefixes=(prefix,))) == stripped
    assert names(Selection(prefixes=(prefix,), keep_prefix=True)) == [(key, key) for _, key in stripped]


def test_several_prefixes_and_the_longest_that_fits_is_stripped() -> None:
    expected = [
        ("10.w", "model.layers.10.w"),
        ("a", "model.a"),
        ("2.w", "model.layers.2.w"),
        ("lr", "opt.lr"),
        ("m.a", "opt.m.a"),
    ]
    for prefixes in (("model", "model.layers", "opt"), ("opt.", "model.layers", "model", "model.")):
        assert sorted(names(Selection(prefixes=prefixes))) == sorted(expected)


def test_globs_match_the_whole_source_key() -> None:
    assert names(Selection(include=("*.w",))) == [(key, key) for key in ("model.layers.2.w", "model.layers.10.w")]
    assert names(Selection(prefixes=("model",), include=("model.*",), exclude=("*.1?.w", "model.a"))) == [
        ("layers.2.w", "model.layers.2.w")
    ]
    assert names(Selection(include=("model.layers.[2-3].w", "modelx"))) == [
        ("model.layers.2.w", "model.layers.2.w"),
        ("modelx", "modelx"),
    ]


def test_what_matches_nothing_is_refused() -> None:
    assert refused(Selection(prefixes=("mode", "model"))) == ["prefix 'mode': no tensor begins with 'mode.'"]
    assert refused(Selection(prefixes=("",))) == ["prefix '': no tensor begins with '.'"]
    assert refused(Selection(include=("*.W", "modelx"), exclude=("lr", "?"))) == [
        "exclude '?': no tensor matches it",
        "exclude 'lr': no tensor matches it",
        "include '*.W': no tensor matches it",
    ]
    assert refused(Selection(prefixes=("model",), include=("opt.*",))) == [
        "include 'opt.*': no tensor under the prefixes matches it"
    ]
    assert refused(Selection(exclude=("*",))) == ["no tensor is left to select: found 8 in the source"]


def test_names_that_collide_are_refused_with_both_sources() -> None:
    assert refused(Selection(prefixes=("a", "b")), "a.w", "b.w", "a.v") == [
        "output 'w': several tensors would get this name: expected one, found 'a.w', 'b.w'"
    ]
    assert names(Selection(prefixes=("a", "b"), exclude=("b.*",)), "a.w", "b.w") == [("w", "a.w")]
    assert len(names(Selection(prefixes=("a", "b"), keep_prefix=True), "a.w", "b.w")) == 2


def test_names_that_the_output_cannot_hold_are_refused() -> None:
    assert refused(Selection(prefixes=("a",)), "a.", "a.__metadata__", "a.\udcff") == [
        "tensor 'a.': stripping its prefix leaves no name",
        "tensor 'a.\\udcff': its name is no Unicode text, which safetensors needs",
        "tensor 'a.__metadata__': safetensors reserves the name '__metadata__'",
    ]
    assert refused(Selection(), "__metadata__") == [
        "tensor '__metadata__': safetensors reserves the name '__metadata__'"
    ]
    assert names(Selection(), "") == [("", "")]


KEYS = st.lists(
    st.lists(st.sampled_from(["a", "ab", "b", "1", "12"]), min_size=1, max_size=3).map(".".join), unique=True
)


@given(KEYS, st.sampled_from(["a", "b", "a.b"]), st.booleans())
def test_a_prefix_takes_its_group_and_no_more(keys: list[str], prefix: str, keep: bool) -> None:
    group = [key for key in keys if key.split(".")[: prefix.count(".") + 1] == prefix.split(".") and key != prefix]
    selection = Selection(prefixes=(prefix,), keep_prefix=keep)
    if not group:
        with pytest.raises(SelectionError):
            select(specs(*keys), selection)
        return
    outputs = names(selection, *keys)
    assert sorted(source for _, source in outputs) == sorted(group)
    assert all(source == (name if keep else f"{prefix}.{name}") for name, source in outputs)


@given(KEYS.filter(bool), st.data())
def test_the_result_does_not_depend_on_order(keys: list[str], data: st.DataObject) -> None:
    shuffled = data.draw(st.permutations(keys))
    assert names(Selection(), *keys) == names(Selection(), *shuffled)
