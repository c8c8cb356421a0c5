"""Layout statements from PaddleFormers' layout to Hugging Face's, for the families of ``families``.

Owns the two layouts' differences, as PaddleFormers 1.2.0 trains and transformers 5.24 loads: linear weights are
``[in, out]`` there and ``[out, in]`` here; query, key and value, and gate and up, may be fused; its fleet models name
some modules differently. No value is rounded: a router kept in float32 stays float32. One set of statements serves
every family, since the names are shared; a statement is used only where the checkpoint has what it reads.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from ckptcore.rules.families import Family, ModelConfig, family_of
from ckptcore.rules.mapping.expansion import is_found
from ckptcore.rules.mapping.parser import parse_statements
from ckptcore.rules.mapping.statements import Program
from ckptcore.rules.mapping.states import parameters_of
from ckptcore.rules.tensors import Shape, TensorSpec

_LAYER = "model.layers.$LAYER_ID"
# Where the blocks of a model lie, and where they go. Multi-token prediction blocks are kept where the published
# checkpoints have them.
_BLOCKS = (
    (_LAYER, _LAYER),
    (f"{_LAYER}.transformer_layer", _LAYER),
    ("model.mtp_block.$LAYER_ID", "model.mtp_block.$LAYER_ID"),
)
_ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj", "q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj")
_FEED_FORWARDS = ("mlp", "mlp.shared_experts", "mlp.experts.$EXPERT_ID")
_NORMS = ("q_norm", "k_norm", "q_a_layernorm", "kv_a_layernorm")


def preset_program(model_type: str, config: Mapping[str, object], sources: Iterable[TensorSpec]) -> Program:
    """The statements that bring ``sources`` to Hugging Face's layout.

    ``config`` is the decoded ``config.json`` of the model. Raises MappingError where no preset knows the family or
    the config lacks a field.
    """
    shapes = {name: parameter.shape for name, parameter in parameters_of(sources)[0].items()}
    family, fields = family_of(model_type), ModelConfig(config)
    lines = [*_ends(family, fields, shapes)]
    for source, target in _BLOCKS:
        lines += _attention(fields, source, target)
        lines += _feed_forward(source, target)
        lines += _router(family, fields, source, target, shapes)
        if source != target:
            lines += _renamed(source, target)
    lines += [
        f"{_LAYER}.eh_proj.weight^T -> {_LAYER}.eh_proj.weight",
        f"{_LAYER}.norm.weight -> {_LAYER}.shared_head.norm.weight",
        "model.mtp_linear_proj.$LAYER_ID.weight^T -> model.mtp_linear_proj.$LAYER_ID.weight",
    ]
    grouped = [*_grouped_experts(family, fields, shapes)]
    statements = parse_statements([*lines, *grouped]).statements
    return Program(tuple(each for each in statements if each.number > len(lines) or is_found(each, shapes.keys())))


def _ends(family: Family, config: ModelConfig, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """The embedding and the output layer, which PaddleFormers keeps as ``[vocab, hidden]``, PaddleNLP did not."""
    yield "model.embedding.embed_tokens.weight -> model.embed_tokens.weight"
    for name in ("lm_head.weight", "model.lm_head.weight"):
        if name not in shapes:
            continue
        if family.is_tied(config):
            yield f"{name} -> _"
            continue
        expected = (config.number("vocab_size"), config.number("hidden_size"))
        flip = "^T" if shapes[name] == expected[::-1] != expected else ""
        if flip or name != "lm_head.weight":
            yield f"{name}{flip} -> lm_head.weight"


def _attention(config: ModelConfig, source: str, target: str) -> Iterator[str]:
    for name in _ATTENTION:
        yield f"{source}.self_attn.{name}.weight^T -> {target}.self_attn.{name}.weight"
    heads = f"num_heads={config.heads}, num_key_value_groups={config.kv_heads}"
    for kind, flip in (("weight", "^T"), ("bias", "")):
        parts = ", ".join(f"{target}.self_attn.{name}_proj.{kind}" for name in "qkv")
        yield f"{source}.self_attn.qkv_proj.{kind}{flip} -> {parts}, fused_qkv, {heads}, axis=0"
    for name in "qk":
        yield f"{source}.self_attn.{name}_layernorm.weight -> {target}.self_attn.{name}_norm.weight"


def _feed_forward(source: str, target: str) -> Iterator[str]:
    for part in _FEED_FORWARDS:
        for name in ("gate_proj", "up_proj", "down_proj"):
            yield f"{source}.{part}.{name}.weight^T -> {target}.{part}.{name}.weight"
        for kind, flip in (("weight", "^T"), ("bias", "")):
            parts = f"{target}.{part}.gate_proj.{kind}, {target}.{part}.up_proj.{kind}"
            yield f"{source}.{part}.up_gate_proj.{kind}{flip} -> {parts}, fused_ffn, axis=0"


def _router(
    family: Family, config: ModelConfig, source: str, target: str, shapes: Mapping[str, Shape]
) -> Iterator[str]:
    """The router as ``[experts, hidden]``. Which way it lies depends on the trainer's parallelism, not on the family
    alone, so its shape decides; where that is square, what the family's usual model does."""
    if not family.experts_field:
        return
    expected = (config.number(family.experts_field), config.number("hidden_size"))
    before, after = source.split("$LAYER_ID")
    routers = [name for name in shapes if name.startswith(before) and name.endswith(f"{after}.mlp.gate.weight")]
    found = {shapes[name] for name in routers}
    is_fleet = "model.embedding.embed_tokens.weight" in shapes
    is_square = expected[0] == expected[1]
    is_flipped = (family.is_router_transposed and not is_fleet) if is_square else expected[::-1] in found
    if is_flipped or source != target:
        flip = "^T" if is_flipped else ""
        yield f"{source}.mlp.gate.weight{flip} -> {target}.mlp.gate.weight"


def _renamed(source: str, target: str) -> Iterator[str]:
    """What moves without change where a block is nested differently."""
    for name in ("input_layernorm.weight", "post_attention_layernorm.weight", "mlp.gate.e_score_correction_bias"):
        yield f"{source}.{name} -> {target}.{name}"
    for norm in _NORMS:
        yield f"{source}.self_attn.{norm}.weight -> {target}.self_attn.{norm}.weight"
    for name in _ATTENTION:
        yield f"{source}.self_attn.{name}.bias -> {target}.self_attn.{name}.bias"


def _grouped_experts(family: Family, config: ModelConfig, shapes: Mapping[str, Shape]) -> Iterator[str]:
    """All experts of a layer stacked by rows in one tensor (fleet models), ``[in, out]`` each or ``[out, in]``."""
    names = [name for name in shapes if name.endswith(".mlp.grouped_gemm_experts.weight1")]
    if not family.experts_field or not names:
        return
    count, hidden = config.number(family.experts_field), config.number("hidden_size")
    inner = config.number("moe_intermediate_size")
    # A square expert is [in, out], as the trainer's usual model keeps it.
    flip = "^T" if all(shapes[name] == (count * hidden, 2 * inner) for name in names) else ""
    for source, target in _BLOCKS[:2]:
        if all((".transformer_layer." in name) != (source != target) for name in names):
            continue
        for weight, part in (("weight1", "up_gate_proj"), ("weight2", "down_proj")):
            experts = ", ".join(f"{target}.mlp.experts.{index}.{part}.weight" for index in range(count))
            yield f"{source}.mlp.grouped_gemm_experts.{weight} -> {experts}, axis=0"
    # Once for all blocks: a second time would turn the experts of the first back.
    expert = f"{_LAYER}.mlp.experts.$EXPERT_ID"
    yield f"{expert}.up_gate_proj.weight{flip} -> {expert}.gate_proj.weight, {expert}.up_proj.weight, axis=0"
    if flip:
        yield f"{expert}.down_proj.weight^T -> {expert}.down_proj.weight"
