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
