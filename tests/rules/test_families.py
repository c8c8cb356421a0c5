from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ckptcore.errors import MappingError
from ckptcore.rules.families import FAMILIES, ModelConfig, family_of, release_issues, unexpected_names
from ckptcore.rules.tensors import TensorSpec

HF = Path(__file__).parents[2].parent / "shared/trainer/llama-hf"

LLAMA = {
    "hidden_size": 8,
    "vocab_size": 32,
    "intermediate_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


def _specs(model_type: str, config: dict[str, Any]) -> list[TensorSpec]:
    expected = family_of(model_type).expected(ModelConfig(config))
    return [TensorSpec(name, "float32", shape) for name, shape in expected.items()]


def test_llama() -> None:
    assert family_of("llama").expected(ModelConfig(LLAMA)) == {
        "model.embed_tokens.weight": (32, 8),
        "model.norm.weight": (8,),
        "lm_head.weight": (32, 8),
        "model.layers.0.input_layernorm.weight": (8,),
        "model.layers.0.post_attention_layernorm.weight": (8,),
        "model.layers.0.self_attn.q_proj.weight": (8, 8),
        "model.layers.0.self_attn.k_proj.weight": (4, 8),
        "model.layers.0.self_attn.v_proj.weight": (4, 8),
        "model.layers.0.self_attn.o_proj.weight": (8, 8),
        "model.layers.0.mlp.gate_proj.weight": (12, 8),
        "model.layers.0.mlp.up_proj.weight": (12, 8),
        "model.layers.0.mlp.down_proj.weight": (8, 12),
    }


def test_norms_of_heads_experts_and_latent_attention() -> None:
    sizes = LLAMA | {"head_dim": 3, "moe_intermediate_size": 5, "num_experts": 2, "decoder_sparse_step": 2}
    layers = family_of("qwen3_moe").expected(ModelConfig(sizes | {"num_hidden_layers": 2}))
    assert layers["model.layers.0.self_attn.q_norm.weight"] == (3,)
    assert layers["model.layers.1.self_attn.q_proj.weight"] == (12, 8)
    assert {name: shape for name, shape in layers.items() if ".mlp." in name} == {
        "model.layers.0.mlp.gate_proj.weight": (12, 8),
        "model.layers.0.mlp.up_proj.weight": (12, 8),
        "model.layers.0.mlp.down_proj.weight": (8, 12),
        "model.layers.1.mlp.gate.weight": (2, 8),
        "model.layers.1.mlp.experts.0.gate_proj.weight": (5, 8),
        "model.layers.1.mlp.experts.0.up_proj.weight": (5, 8),
        "model.layers.1.mlp.experts.0.down_proj.weight": (8, 5),
        "model.layers.1.mlp.experts.1.gate_proj.weight": (5, 8),
        "model.layers.1.mlp.experts.1.up_proj.weight": (5, 8),
        "model.layers.1.mlp.experts.1.down_proj.weight": (8, 5),
    }
    latent = {
        "q_lora_rank": 6,
        "kv_lora_rank": 7,
        "qk_nope_head_dim": 4,
        "qk_rope_head_dim": 2,
        "v_head_dim": 5,
        "n_routed_experts": 2,
        "n_shared_experts": 3,
        "moe_intermediate_size": 5,
        "attention_bias": True,
    }
    layer = family_of("deepseek_v3").expected(ModelConfig(LLAMA | latent))
    assert {name: shape for name, shape in layer.items() if ".self_attn." in name or "shared" in name} == {
        "model.layers.0.self_attn.q_a_proj.weight": (6, 8),
        "model.layers.0.self_attn.q_a_proj.bias": (6,),
        "model.layers.0.self_attn.q_a_layernorm.weight": (6,),
        "model.layers.0.self_attn.q_b_proj.weight": (24, 6),
        "model.layers.0.self_attn.kv_a_proj_with_mqa.weight": (9, 8),
        "model.layers.0.self_attn.kv_a_proj_with_mqa.bias": (9,),
        "model.layers.0.self_attn.kv_a_layernorm.weight": (7,),
        "model.layers.0.self_attn.kv_b_proj.weight": (36, 7),
        "model.layers.0.self_attn.o_proj.weight": (8, 20),
        "model.layers.0.self_attn.o_proj.bias": (8,),
        "model.layers.0.mlp.shared_experts.gate_proj.weight": (15, 8),
        "model.layers.0.mlp.shared_experts.up_proj.weight": (15, 8),
        "model.layers.0.mlp.shared_experts.down_proj.weight": (8, 15),
    }
    assert "model.layers.0.self_attn.q_proj.weight" in family_of("deepseek_v3").expected(
        ModelConfig(LLAMA | latent | {"q_lora_rank": None})
    )


def test_ernie_has_experts_between_its_first_and_last_expert_layer() -> None:
    sizes = LLAMA | {"num_hidden_layers": 4, "moe_intermediate_size": 5, "moe_num_experts": 2, "use_bias": True}
    sizes |= {"moe_num_shared_experts": 1, "moe_layer_start_index": 1, "moe_layer_end_index": 2}
    expected = family_of("ernie4_5_moe").expected(ModelConfig(sizes | {"tie_word_embeddings": True}))
    routers = [name for name in expected if name.endswith("mlp.moe_statics.e_score_correction_bias")]
    assert routers == [f"model.layers.{index}.mlp.moe_statics.e_score_correction_bias" for index in (1, 2)]
    assert expected[routers[0]] == (1, 2)
    assert expected["model.layers.3.mlp.up_proj.bias"] == (12,)
    assert expected["lm_head.bias"] == (32,)
    assert "lm_head.weight" not in expected


@pytest.mark.skipif(not HF.exists(), reason="the trainer's output is not there")
def test_what_transformers_wrote_is_complete() -> None:
    load_file = pytest.importorskip("safetensors.numpy").load_file
    config = json.loads((HF / "config.json").read_text())
    arrays = load_file(HF / "model.safetensors")
    specs = [TensorSpec(name, "float32", array.shape) for name, array in arrays.items()]
    assert release_issues("llama", config, specs) == ()
    assert unexpected_names("llama", config, specs) == ()


def test_a_missing_output_layer_is_an_issue_unless_it_is_tied() -> None:
    specs = [spec for spec in _specs("llama", LLAMA) if spec.key != "lm_head.weight"]
    (issue,) = release_issues("llama", LLAMA, specs)
    assert str(issue) == "lm_head.weight: the config implies this tensor: expected [32, 8], found none"
    assert release_issues("llama", LLAMA | {"tie_word_embeddings": True}, specs) == ()


@pytest.mark.parametrize(
    ("field", "value", "name"),
    [
        ("num_hidden_layers", 2, "model.layers.1.mlp.up_proj.weight"),
        ("num_key_value_heads", 4, "model.layers.0.self_attn.k_proj.weight"),
        ("vocab_size", 31, "model.embed_tokens.weight"),
        ("hidden_size", 16, "model.norm.weight"),
        ("head_dim", 4, "model.layers.0.self_attn.q_proj.weight"),
        ("attention_bias", True, "model.layers.0.self_attn.o_proj.bias"),
        ("mlp_bias", True, "model.layers.0.mlp.down_proj.bias"),
    ],
)
def test_each_field_of_the_config_is_held_against_the_tensors(field: str, value: object, name: str) -> None:
    issues = release_issues("llama", LLAMA | {field: value}, _specs("llama", LLAMA))
    assert name in {issue.where for issue in issues}


def test_extra_tensors_are_named_and_no_issue() -> None:
    specs = [*_specs("llama", LLAMA), TensorSpec("model.rotary_emb.inv_freq", "float32", (2,))]
    assert release_issues("llama", LLAMA, specs) == ()
    assert unexpected_names("llama", LLAMA, specs) == ("model.rotary_emb.inv_freq",)


def test_an_unknown_family_and_an_incomplete_config_are_refused() -> None:
    with pytest.raises(MappingError, match="no preset for model type 'gpt2': expected one of deepseek_v3, "):
        release_issues("gpt2", {}, [])
    for model_type in FAMILIES:
        with pytest.raises(MappingError, match=r"config.json: \w+ must be a number: found None"):
            release_issues(model_type, {}, [])
    with pytest.raises(MappingError, match="num_hidden_layers must be a number: found 'two'"):
        release_issues("llama", LLAMA | {"num_hidden_layers": "two"}, [])
    with pytest.raises(MappingError, match="tie_word_embeddings must be true or false: found 1"):
        release_issues("llama", LLAMA | {"tie_word_embeddings": 1}, [])
