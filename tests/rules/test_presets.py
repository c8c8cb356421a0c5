"""Presets: a model in Hugging Face's layout is laid out as the trainer keeps it, and must come back bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckptcore.errors import MappingError
from ckptcore.rules.families import ModelConfig, family_of, release_issues
from ckptcore.rules.mapping import PieceStarts, compile_program
from ckptcore.rules.presets import preset_program
from ckptcore.rules.tensors import TensorSpec
from tests.rules.mapping.support import Array, Tensors, carried_out, read_checkpoint

TRAINER = Path(__file__).parents[2].parent / "shared/trainer"
TP = 2
SIZES = {
    "hidden_size": 16,
    "vocab_size": 40,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "moe_intermediate_size": 12,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama biased": {"attention_bias": True, "mlp_bias": True},
    "qwen2": {"tie_word_embeddings": False},
    "qwen2 tied": {"tie_word_embeddings": True},
    "qwen3": {"head_dim": 8},
    "qwen3_moe": {"head_dim": 8, "num_experts": 4, "decoder_sparse_step": 1, "mlp_only_layers": [0]},
    "qwen3_moe square": {"num_experts": 16},
    "ernie4_5": {"head_dim": 4, "use_bias": True, "tie_word_embeddings": False},
    "ernie4_5_moe": {
        "moe_num_experts": 4,
        "moe_num_shared_experts": 2,
        "moe_layer_start_index": 1,
        "moe_layer_end_index": -1,
        "tie_word_embeddings": True,
    },
    "deepseek_v3": {
        "q_lora_rank": 6,
        "kv_lora_rank": 8,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 4,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
    "glm4_moe": {
        "attention_bias": True,
        "use_qk_norm": True,
        "n_routed_experts": 4,
        "n_shared_experts": 1,
        "first_k_dense_replace": 1,
    },
}


def grid(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def _published(model_type: str, config: dict[str, Any]) -> dict[str, Array]:
    rng = np.random.default_rng(3)
    expected = family_of(model_type).expected(ModelConfig(config))
    return {name: rng.standard_normal(shape, np.float32) for name, shape in expected.items()}


def _trained(
    hf: dict[str, Array], config: dict[str, Any], *, is_fused: bool, is_router_transposed: bool
) -> dict[str, Array]:
    """The model as PaddleFormers keeps it: linear weights as [in, out]; fused ones by group or by rank."""
    left = dict(hf)
    made: dict[str, Array] = {}
    for name in sorted(hf):
        if name not in left:
            continue
        stem, _, kind = name.rpartition(".")
        if is_fused and stem.endswith(".k_proj"):
            parts = [left.pop(f"{stem.removesuffix('k_proj')}{part}_proj.{kind}").T for part in "qkv"]
            fused = _by_group(parts, config["num_key_value_heads"])
            made[f"{stem.removesuffix('k_proj')}qkv_proj.{kind}"] = fused
        elif is_fused and stem.endswith(".gate_proj"):
            prefix = stem.removesuffix("gate_proj")
            gate, up = (left.pop(f"{prefix}{part}_proj.{kind}").T for part in ("gate", "up"))
            ranks = 1 if ".experts." in stem else TP
            made[f"{prefix}up_gate_proj.{kind}"] = np.concatenate(
                [part for pair in zip(_parts(gate, ranks), _parts(up, ranks), strict=True) for part in pair], -1
            )
    for name, value in left.items():
        is_linear = name.endswith(("_proj.weight", "_with_mqa.weight"))
        is_router = name.endswith(".gate.weight") and is_router_transposed
        made[name] = value.T if is_linear or is_router else value
    return made


def _by_group(parts: list[Array], groups: int) -> Array:
    query, key, value = (_parts(part, groups) for part in parts)
    return np.concatenate([part for group in zip(query, key, value, strict=True) for part in group], -1)


def _parts(value: Array, count: int) -> list[Array]:
    return list(np.split(value, count, -1))


def _checkpoint(trained: dict[str, Array]) -> Tensors:
    """With the fused gate/up of tensor-parallel layers in two pieces side by side."""
    starts: dict[str, PieceStarts] = {}
    for name, value in trained.items():
        cuts: list[tuple[int, ...]] = [(0,)] * value.ndim
        if "up_gate_proj" in name and ".experts." not in name:
            cuts[-1] = (0, value.shape[-1] // TP)
        starts[name] = tuple(cuts)
    specs = tuple(TensorSpec(name, "float32", value.shape) for name, value in trained.items())
    return Tensors(specs, trained, starts)


def _assert_comes_back(
    model_type: str, config: dict[str, Any], trained: dict[str, Array], hf: dict[str, Array]
) -> None:
    source = _checkpoint(trained)
    compiled = compile_program(preset_program(model_type, config, source.specs), source.specs, source.starts)
    made = carried_out(compiled.outputs, source)
    assert made.keys() == hf.keys()
    assert [name for name in hf if made[name].tobytes() != hf[name].tobytes()] == []
    assert release_issues(model_type, config, [output.spec for output in compiled.outputs]) == ()
    assert {note.code for note in compiled.notes} <= {"mapping-passed-through"}


@pytest.mark.parametrize("is_fused", [False, True], ids=["separate", "fused"])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_family_comes_back_bit_for_bit(name: str, is_fused: bool) -> None:
    model_type, config = name.split()[0], SIZES | CONFIGS[name]
    hf = _published(model_type, config)
    is_flipped = family_of(model_type).is_router_transposed
    trained = _trained(hf, config, is_fused=is_fused, is_router_transposed=is_flipped)
    assert any(trained[key].shape != hf[key].shape for key in trained.keys() & hf.keys())
    _assert_comes_back(model_type, config, trained, hf)


def test_the_router_is_turned_by_its_shape() -> None:
    config = SIZES | CONFIGS["qwen3_moe"]
    hf = _published("qwen3_moe", config)
    trained = _trained(hf, config, is_fused=True, is_router_transposed=False)
    _assert_comes_back("qwen3_moe", config, trained, hf)


@pytest.mark.parametrize("is_grouped", [False, True], ids=["experts", "grouped experts"])
def test_fleet_models_have_other_names(is_grouped: bool) -> None:
    config = SIZES | CONFIGS["glm4_moe"]
    hf = _published("glm4_moe", config)
    trained = _trained(hf, config, is_fused=True, is_router_transposed=False)
    trained["model.embedding.embed_tokens.weight"] = trained.pop("model.embed_tokens.weight")
    trained["model.lm_head.weight"] = trained.pop("lm_head.weight")
    for name in [name for name in trained if name.endswith(("q_norm.weight", "k_norm.weight"))]:
        trained[name.replace("_norm.", "_layernorm.")] = trained.pop(name)
    if is_grouped:
        for weight, part in (("weight1", "up_gate_proj"), ("weight2", "down_proj")):
            experts = [trained.pop(f"model.layers.1.mlp.experts.{index}.{part}.weight") for index in range(4)]
            trained[f"model.layers.1.mlp.grouped_gemm_experts.{weight}"] = np.concatenate(experts, 0)
    _assert_comes_back("glm4_moe", config, trained, hf)


def test_a_nested_prediction_block_goes_where_published_checkpoints_have_it() -> None:
    config = SIZES | CONFIGS["glm4_moe"]
    hf = _published("glm4_moe", config | {"num_hidden_layers": 3})
    block = "model.layers.2."
    extra = {"eh_proj.weight": grid(16, 32), "enorm.weight": grid(16), "shared_head.norm.weight": grid(16)}
    hf |= {block + name: value for name, value in extra.items()}
    trained = _trained(hf, config, is_fused=True, is_router_transposed=False)
    trained[f"{block}norm.weight"] = trained.pop(f"{block}shared_head.norm.weight")
    for name in [name for name in trained if name.startswith((f"{block}self_attn", f"{block}mlp", f"{block}input"))]:
        trained[name.replace(block, f"{block}transformer_layer.")] = trained.pop(name)
    norm = "post_attention_layernorm.weight"
    trained[f"{block}transformer_layer.{norm}"] = trained.pop(block + norm)
    _assert_comes_back("glm4_moe", config, trained, hf)


def test_an_output_layer_that_is_tied_is_dropped() -> None:
    config = SIZES | CONFIGS["qwen2 tied"]
    hf = _published("qwen2", config)
    trained = _trained(hf, config, is_fused=True, is_router_transposed=False)
    trained["lm_head.weight"] = trained["model.embed_tokens.weight"]
    _assert_comes_back("qwen2", config, trained, hf)


def test_an_output_layer_as_linear_weight_is_turned() -> None:
    config = SIZES | CONFIGS["llama"]
    hf = _published("llama", config)
    trained = _trained(hf, config, is_fused=False, is_router_transposed=False)
    trained["lm_head.weight"] = trained["lm_head.weight"].T
    _assert_comes_back("llama", config, trained, hf)


def test_an_expert_that_is_missing_is_refused() -> None:
    config = SIZES | CONFIGS["deepseek_v3"]
    trained = _trained(_published("deepseek_v3", config), config, is_fused=False, is_router_transposed=True)
    for layer, expert in ((1, 2), (2, 0), (2, 1), (2, 2)):
        for part in ("gate", "up", "down"):
            name = f"model.layers.{layer}.mlp.experts.{expert}.{part}_proj.weight"
            if layer == 1:
                del trained[name]
            else:
                trained[name] = trained[f"model.layers.1.mlp.experts.0.{part}_proj.weight"]
    source = _checkpoint(trained)
    with pytest.raises(MappingError) as refusal:
        compile_program(preset_program("deepseek_v3", config, source.specs), source.specs, source.starts)
    assert any(
        "model.layers.1.mlp.experts.2.up_proj.weight is no source" in issue.what for issue in refusal.value.issues
    )


@pytest.mark.skipif(not TRAINER.exists(), reason="the trainer's output is not there")
def test_a_trained_llama_is_the_model_it_was_loaded_from() -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    config = json.loads((TRAINER / "llama-hf/config.json").read_text())
    source = read_checkpoint(TRAINER / "llama-run/checkpoint-10/model_state")
    program = preset_program(config["model_type"], config, source.specs)
    made = carried_out(compile_program(program, source.specs, source.starts).outputs, source)
    expected = load_file(TRAINER / "llama-hf/model.safetensors")
    assert made.keys() == expected.keys()
    assert [name for name in expected if made[name].tobytes() != expected[name].tobytes()] == []


@pytest.mark.skipif(not TRAINER.exists(), reason="the trainer's output is not there")
def test_optimizer_states_follow_their_parameters() -> None:
    config = json.loads((TRAINER / "llama-hf/config.json").read_text())
    source = read_checkpoint(TRAINER / "llama-run/checkpoint-100/optimizer_state")
    program = preset_program("llama", config, source.specs)
    made = carried_out(compile_program(program, source.specs, source.starts).outputs, source)
    assert made.keys() == source.values.keys()
    for name, value in source.values.items():
        is_turned = any(f"_proj.weight{suffix}" in name for suffix in (".moment", ".w_0"))
        assert made[name].tobytes() == (value.T if is_turned else value).tobytes()
