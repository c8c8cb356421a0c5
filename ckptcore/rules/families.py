"""What a model's ``config.json`` implies for its tensors: their names and shapes in Hugging Face's layout.

Owns the families that layout presets exist for; facts are those of transformers 5.24's modeling files, experts one
by one as the published checkpoints hold them. Whether a release that lacks something is refused is the verbs'.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ckptcore.errors import MappingError
from ckptcore.rules.issues import Issue, in_order
from ckptcore.rules.tensors import Shape, TensorSpec


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A ``config.json``'s fields, read with their types."""

    fields: Mapping[str, object]

    def number(self, name: str, default: int | None = None) -> int:
        """A count or size. Null counts as absent."""
        value = self.fields.get(name)
        if value is None and default is not None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise MappingError(f"config.json: {name} must be a number: found {value!r}")
        return value

    def numbers(self, name: str) -> tuple[int, ...]:
        value = self.fields.get(name)
        if value is None:
            return ()
        if not isinstance(value, list) or not all(type(item) is int for item in value):
            raise MappingError(f"config.json: {name} must be a list of numbers: found {value!r}")
        return tuple(value)

    def flag(self, name: str, default: bool = False) -> bool:
        value = self.fields.get(name)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise MappingError(f"config.json: {name} must be true or false: found {value!r}")
        return value

    @property
    def heads(self) -> int:
        return self.number("num_attention_heads")

    @property
    def kv_heads(self) -> int:
        return self.number("num_key_value_heads", self.heads)


Tensors = dict[str, Shape]


@dataclass(frozen=True, slots=True)
class Family:
    """How one ``model_type`` differs from the others.

    ``attention`` and ``feed_forward`` give the tensors of layer ``index`` below its prefix. ``experts_field`` is the
    config's name for the number of routed experts, empty for dense models; ``is_router_transposed`` says whether
    PaddleFormers 1.2.0 keeps the router as ``[hidden, experts]``.
    """

    model_type: str
    attention: Callable[[ModelConfig], Tensors]
    feed_forward: Callable[[ModelConfig, int], Tensors]
    is_tied_by_default: bool = False
    experts_field: str = ""
    is_router_transposed: bool = False
    lm_head_bias_field: str = ""

    def is_tied(self, config: ModelConfig) -> bool:
        """Whether the output layer is the embedding, so that a release holds no ``lm_head.weight``."""
        return config.flag("tie_word_embeddings", self.is_tied_by_default)

    def expected(self, config: ModelConfig) -> Tensors:
        """Every tensor of the model by name. Raises MappingError where the config lacks a size."""
        hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
        tensors: Tensors = {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
        if not self.is_tied(config):
            tensors["lm_head.weight"] = (vocab, hidden)
        if self.lm_head_bias_field and config.flag(self.lm_head_bias_field):
            tensors["lm_head.bias"] = (vocab,)
        attention = self.attention(config)
        for index in range(config.number("num_hidden_layers")):
            layer = {
                "input_layernorm.weight": (hidden,),
                "post_attention_layernorm.weight": (hidden,),
                **attention,
                **self.feed_forward(config, index),
            }
            tensors.update({f"model.layers.{index}.{name}": shape for name, shape in layer.items()})
        return tensors


def family_of(model_type: str) -> Family:
    """The family of a config's ``model_type``. Raises MappingError where no preset knows it."""
    if model_type not in FAMILIES:
        raise MappingError(f"no preset for model type {model_type!r}: expected one of {', '.join(sorted(FAMILIES))}")
    return FAMILIES[model_type]


def release_issues(model_type: str, config: Mapping[str, object], tensors: Iterable[TensorSpec]) -> tuple[Issue, ...]:
    """What the release lacks or has in another shape than its config says; extra tensors are no issue."""
    found = {spec.key: spec.shape for spec in tensors}
    issues = []
    for name, shape in family_of(model_type).expected(ModelConfig(config)).items():
        if name not in found:
            issues.append(Issue(name, "the config implies this tensor", str(list(shape)), "none", "family-missing"))
        elif found[name] != shape:
            what = "the config implies another shape"
            issues.append(Issue(name, what, str(list(shape)), str(list(found[name])), "family-shape"))
    return in_order(issues)


def unexpected_names(model_type: str, config: Mapping[str, object], tensors: Iterable[TensorSpec]) -> tuple[str, ...]:
    """Tensors that the config does not imply, sorted: multi-token prediction layers, buffers, other models' parts."""
    return tuple(sorted({spec.key for spec in tensors} - family_of(model_type).expected(ModelConfig(config)).keys()))


def _linear(name: str, rows: int, columns: int, has_bias: bool = False) -> Tensors:
    weight: Tensors = {f"{name}.weight": (rows, columns)}
    return {**weight, f"{name}.bias": (rows,)} if has_bias else weight


def _mlp(prefix: str, hidden: int, inner: int, has_bias: bool = False) -> Tensors:
    return {
        **_linear(f"{prefix}.gate_proj", inner, hidden, has_bias),
        **_linear(f"{prefix}.up_proj", inner, hidden, has_bias),
        **_linear(f"{prefix}.down_proj", hidden, inner, has_bias),
    }


def _attention(
    config: ModelConfig, head_dim: int | None = None, qkv_bias: bool = False, o_bias: bool = False, norms: bool = False
) -> Tensors:
    hidden, heads, kv_heads = config.number("hidden_size"), config.heads, config.kv_heads
    default = head_dim if head_dim is not None else hidden // max(heads, 1)
    dim = config.number("head_dim", default)
    tensors = {
        **_linear("self_attn.q_proj", heads * dim, hidden, qkv_bias),
        **_linear("self_attn.k_proj", kv_heads * dim, hidden, qkv_bias),
        **_linear("self_attn.v_proj", kv_heads * dim, hidden, qkv_bias),
        **_linear("self_attn.o_proj", hidden, heads * dim, o_bias),
    }
    if norms:
        tensors |= {"self_attn.q_norm.weight": (dim,), "self_attn.k_norm.weight": (dim,)}
    return tensors


def _latent_attention(config: ModelConfig) -> Tensors:
    """DeepSeek's: queries and keys/values through low-rank projections."""
    hidden, heads, bias = config.number("hidden_size"), config.heads, config.flag("attention_bias")
    rope, nope, value = (config.number(f"{name}_head_dim") for name in ("qk_rope", "qk_nope", "v"))
    kv_rank, q_rank = config.number("kv_lora_rank"), config.number("q_lora_rank", 0)
    if q_rank:
        query = {
            **_linear("self_attn.q_a_proj", q_rank, hidden, bias),
            "self_attn.q_a_layernorm.weight": (q_rank,),
            **_linear("self_attn.q_b_proj", heads * (nope + rope), q_rank),
        }
    else:
        query = _linear("self_attn.q_proj", heads * (nope + rope), hidden)
    return {
        **query,
        **_linear("self_attn.kv_a_proj_with_mqa", kv_rank + rope, hidden, bias),
        "self_attn.kv_a_layernorm.weight": (kv_rank,),
        **_linear("self_attn.kv_b_proj", heads * (nope + value), kv_rank),
        **_linear("self_attn.o_proj", hidden, heads * value, bias),
    }


def _dense(bias_field: str = "") -> Callable[[ModelConfig, int], Tensors]:
    def feed_forward(config: ModelConfig, _: int) -> Tensors:
        bias = bool(bias_field) and config.flag(bias_field)
        return _mlp("mlp", config.number("hidden_size"), config.number("intermediate_size"), bias)

    return feed_forward


def _experts(config: ModelConfig, count: int, shared: int, bias: bool = False) -> Tensors:
    """A router, ``count`` experts, and as one feed-forward the ``shared`` experts that see every token."""
    hidden, inner = config.number("hidden_size"), config.number("moe_intermediate_size")
    tensors: Tensors = {"mlp.gate.weight": (count, hidden)}
    for index in range(count):
        tensors |= _mlp(f"mlp.experts.{index}", hidden, inner, bias)
    return tensors | (_mlp("mlp.shared_experts", hidden, inner * shared, bias) if shared else {})


def _qwen3_moe(config: ModelConfig, index: int) -> Tensors:
    count = config.number("num_experts")
    is_sparse = (index + 1) % max(config.number("decoder_sparse_step", 1), 1) == 0
    if index in config.numbers("mlp_only_layers") or not count or not is_sparse:
        return _dense()(config, index)
    return _experts(config, count, 0)


def _ernie_moe(config: ModelConfig, index: int) -> Tensors:
    last = config.fields.get("moe_layer_end_index")
    end = config.number("num_hidden_layers") - 1 if last in (None, -1) else config.number("moe_layer_end_index")
    is_sparse = (index + 1) % max(config.number("moe_layer_interval", 1), 1) == 0
    if not (is_sparse and config.number("moe_layer_start_index", 1) <= index <= end):
        return _dense("use_bias")(config, index)
    count = config.number("moe_num_experts")
    tensors = _experts(config, count, config.number("moe_num_shared_experts", 0), config.flag("use_bias"))
    return {**tensors, "mlp.moe_statics.e_score_correction_bias": (1, count)}


def _deepseek_moe(config: ModelConfig, index: int) -> Tensors:
    """DeepSeek's and GLM's: the first layers dense, then experts with a correction of the router's scores."""
    if index < config.number("first_k_dense_replace", 0):
        return _dense()(config, index)
    count = config.number("n_routed_experts")
    tensors = _experts(config, count, config.number("n_shared_experts", 0))
    return {**tensors, "mlp.gate.e_score_correction_bias": (count,)}


def _with_bias(config: ModelConfig, field: str, head_dim: int | None = None, norms: bool = False) -> Tensors:
    bias = config.flag(field)
    return _attention(config, head_dim, bias, bias, norms)


FAMILIES: Mapping[str, Family] = {
    family.model_type: family
    for family in (
        Family("llama", lambda config: _with_bias(config, "attention_bias"), _dense("mlp_bias")),
        Family("qwen2", lambda config: _attention(config, qkv_bias=True), _dense()),
        Family("qwen3", lambda config: _with_bias(config, "attention_bias", 128, norms=True), _dense()),
        Family(
            "qwen3_moe",
            lambda config: _with_bias(config, "attention_bias", norms=True),
            _qwen3_moe,
            experts_field="num_experts",
            is_router_transposed=True,
        ),
        Family(
            "ernie4_5", lambda config: _with_bias(config, "use_bias", 128), _dense("use_bias"), is_tied_by_default=True
        ),
        Family(
            "ernie4_5_moe",
            lambda config: _with_bias(config, "use_bias"),
            _ernie_moe,
            is_tied_by_default=True,
            experts_field="moe_num_experts",
            is_router_transposed=True,
            lm_head_bias_field="use_bias",
        ),
        Family(
            "deepseek_v3",
            _latent_attention,
            _deepseek_moe,
            experts_field="n_routed_experts",
            is_router_transposed=True,
        ),
        Family(
            "glm4_moe",
            lambda config: _attention(config, qkv_bias=config.flag("attention_bias"), norms=config.flag("use_qk_norm")),
            _deepseek_moe,
            experts_field="n_routed_experts",
        ),
    )
}
