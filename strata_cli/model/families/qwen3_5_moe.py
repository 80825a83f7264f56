"""The family `qwen3_5_moe`: Qwen3.5 and Qwen3.6 mixtures of experts, GatedDeltaNet and gated attention in turn.

Canonical names carry no prefix: `embed_tokens.weight`, `layers.3.self_attn.q_proj.weight`; those of the MTP head begin
with `mtp.`. Formulas: Qwen3.5 as transformers has it.
"""

from dataclasses import replace
from typing import Any

from strata_cli.model.config import EXPERTS_LIMIT, LAYERS_LIMIT, Fields
from strata_cli.model.families import CONV, NEGATIVE_EXP, PLUS_ONE, Bank, Block, Matrix, ModelConfig, Mtp, Vector
from strata_kernels.params import AttentionParams, ExpertsParams, GatedDeltaParams, HeadParams, MtpInputParams

NAME = "qwen3_5_moe"
MODEL_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")

LINEAR = "linear_attention"
FULL = "full_attention"

PREFIXES = ("model.", "language_model.")
VISION = ("visual.", "vision_tower.")
MTP = "mtp."


def rename(name: str) -> str | None:
    """The canonical name of a tensor on disk, or None for one of the vision tower, which is not used."""
    while name.startswith(PREFIXES):
        name = name[name.index(".") + 1 :]
    return None if name.startswith(VISION) else name


def parse(top: dict[str, Any], stop_ids: Any, source: str) -> ModelConfig:
    """See `strata_cli.model.families.Family`."""
    outer = Fields(top, source)
    fields = Fields(outer.object("text_config") or top, source)
    rope = _rope(fields)
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_bias", False, default=False)
    fields.only("attn_output_gate", True, default=True)
    fields.only("norm_topk_prob", True, default=True)
    layers = fields.size("num_hidden_layers", limit=LAYERS_LIMIT)
    kinds = _layer_types(fields, layers)
    hidden, vocab, eps = fields.size("hidden_size"), fields.size("vocab_size"), fields.number("rms_norm_eps")
    attention = _attention_params(fields, rope, hidden, eps)
    linear = _linear_params(fields, hidden, eps)
    experts = _experts_params(fields, hidden, eps, layers)
    head = HeadParams(hidden=hidden, vocab=vocab, real=vocab, eps=eps)
    tied = fields.flag("tie_word_embeddings", default=outer.flag("tie_word_embeddings", default=False))
    if stop_ids is None:
        stop_ids = fields.get("eos_token_id", outer.get("eos_token_id", None))
    return ModelConfig(
        family=NAME,
        hidden_size=hidden,
        vocab_size=vocab,
        max_position_embeddings=fields.size("max_position_embeddings"),
        tie_word_embeddings=tied,
        eos_token_ids=fields.token_ids("eos_token_id", stop_ids, vocab),
        embedding=Matrix("embed_tokens.weight", (vocab, hidden)),
        blocks=tuple(
            block
            for i, kind in enumerate(kinds)
            for block in _layer(f"layers.{i}.", attention if kind == FULL else linear, experts)
        ),
        head=_head("norm.weight", head),
        mtp=_mtp(fields, attention, experts, head),
    )


def _attention_params(fields: Fields, rope: Fields, hidden: int, eps: float) -> AttentionParams:
    heads, kv_heads = _multiple(fields, "num_key_value_heads", "num_attention_heads")
    dim = fields.size("head_dim")
    rotary = int(dim * rope.number("partial_rotary_factor", default=0.25))
    if rotary % 2 or not 0 < rotary <= dim:
        what = f"gives {rotary} of head_dim = {dim}, not an even number of them"
        raise fields.fault("partial_rotary_factor", rotary / dim, what)
    theta = rope.number("rope_theta")
    return AttentionParams(hidden, heads, kv_heads, dim, rotary, theta, eps, gated=True, qk_norm=True)


def _linear_params(fields: Fields, hidden: int, eps: float) -> GatedDeltaParams:
    value_heads, key_heads = _multiple(fields, "linear_num_key_heads", "linear_num_value_heads")
    key_dim, value_dim = fields.size("linear_key_head_dim"), fields.size("linear_value_head_dim")
    kernel = fields.size("linear_conv_kernel_dim")
    return GatedDeltaParams(hidden, key_heads, value_heads, key_dim, value_dim, kernel, eps)


def _experts_params(fields: Fields, hidden: int, eps: float, layers: int) -> ExpertsParams:
    experts, top_k = fields.size("num_experts"), fields.size("num_experts_per_tok")
    if top_k > experts:
        raise fields.fault("num_experts_per_tok", top_k, f"above num_experts = {experts}")
    if experts * layers > EXPERTS_LIMIT:
        raise fields.fault("num_experts", experts, f"more than {EXPERTS_LIMIT} in all layers")
    inner, shared = fields.size("moe_intermediate_size"), fields.size("shared_expert_intermediate_size")
    return ExpertsParams(hidden, experts, top_k, inner, shared, eps, shared_gated=True)


def _multiple(fields: Fields, small: str, large: str) -> tuple[int, int]:
    """Fields `large` and `small`, the first a multiple of the second."""
    n, m = fields.size(small), fields.size(large)
    if m % n:
        raise fields.fault(large, m, f"not a multiple of {small} = {n}")
    return m, n


def _rope(fields: Fields) -> Fields:
    """The RoPE fields: in `rope_parameters`, or at the top in files of older versions."""
    inner = fields.object("rope_parameters")
    for name, value in (("rope_parameters", inner), ("rope_scaling", fields.object("rope_scaling"))):
        kind = value.get("rope_type", value.get("type", "default"))
        # "mrope" differs from plain RoPE only for images; for text all its position rows are equal
        if kind not in ("default", "mrope"):
            raise fields.fault(f"{name}.rope_type", kind, 'not supported, only "default"')
    outer = {name: fields.values.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    return Fields({**outer, **inner}, fields.source)


def _layer_types(fields: Fields, layers: int) -> tuple[str, ...]:
    """One kind a layer; without a list every `full_attention_interval`-th layer is full attention."""
    kinds = fields.get("layer_types", default=None)
    if kinds is None:
        interval = fields.size("full_attention_interval")
        return tuple(LINEAR if (i + 1) % interval else FULL for i in range(layers))
    if not isinstance(kinds, list) or len(kinds) != layers:
        n = len(kinds) if isinstance(kinds, list) else 0
        raise fields.fault("num_hidden_layers", layers, f"but layer_types is a list of {n}")
    for kind in kinds:
        if kind not in (LINEAR, FULL):
            raise fields.fault("layer_types", kind, f"not supported, only {LINEAR} and {FULL}")
    return tuple(kinds)


def _mtp(fields: Fields, attention: AttentionParams, experts: ExpertsParams, head: HeadParams) -> Mtp:
    """A head of one layer. It stands one position behind: its row i pairs hidden row i - 1 with token i, so there is no
    key 0.
    """
    own = fields.get("mtp_num_hidden_layers", default=1)
    if isinstance(own, bool) or not isinstance(own, int) or own not in (0, 1):
        raise fields.fault("mtp_num_hidden_layers", own, "not supported, only a head of 1 layer, or 0 for none")
    d = attention.hidden
    joining = Block(
        "mtp_input",
        MtpInputParams(d, attention.eps),
        {
            "join": Matrix(MTP + "fc.weight", (d, 2 * d)),
            "embedding_norm": _norm(MTP + "pre_fc_norm_embedding.weight", d),
            "hidden_norm": _norm(MTP + "pre_fc_norm_hidden.weight", d),
        },
    )
    layer = _layer(MTP + "layers.0.", replace(attention, first_key=1), experts)
    return Mtp(MTP, joining, layer, _head(MTP + "norm.weight", head), own=bool(own))


def _norm(name: str, size: int) -> Vector:
    return Vector(name, (size,), PLUS_ONE)


def _head(norm: str, params: HeadParams) -> Block:
    out = Matrix("lm_head.weight", (params.vocab, params.hidden))
    return Block("head", params, {"norm": _norm(norm, params.hidden), "out": out})


def _layer(p: str, mixer: AttentionParams | GatedDeltaParams, experts: ExpertsParams) -> tuple[Block, ...]:
    """The two blocks of a layer whose tensors are named `p`..."""
    first = _attention(p, mixer) if isinstance(mixer, AttentionParams) else _linear_attention(p, mixer)
    return first, _experts(p, experts)


def _attention(p: str, a: AttentionParams) -> Block:
    d, dim = a.hidden, a.head_dim
    queries, keys = a.heads * dim, a.kv_heads * dim
    return Block(
        "attention",
        a,
        {
            "norm": _norm(f"{p}input_layernorm.weight", d),
            "q": Matrix(f"{p}self_attn.q_proj.weight", (2 * queries, d)),  # per head: query, gate
            "k": Matrix(f"{p}self_attn.k_proj.weight", (keys, d)),
            "v": Matrix(f"{p}self_attn.v_proj.weight", (keys, d)),
            "out": Matrix(f"{p}self_attn.o_proj.weight", (d, queries)),
            "q_norm": _norm(f"{p}self_attn.q_norm.weight", dim),
            "k_norm": _norm(f"{p}self_attn.k_norm.weight", dim),
        },
    )


def _linear_attention(p: str, g: GatedDeltaParams) -> Block:
    d, heads, values = g.hidden, g.value_heads, g.value_heads * g.value_dim
    return Block(
        "gated_delta",
        g,
        {
            "norm": _norm(f"{p}input_layernorm.weight", d),
            "qkv": Matrix(f"{p}linear_attn.in_proj_qkv.weight", (g.channels, d)),
            "z": Matrix(f"{p}linear_attn.in_proj_z.weight", (values, d)),
            "b": Matrix(f"{p}linear_attn.in_proj_b.weight", (heads, d)),
            "a": Matrix(f"{p}linear_attn.in_proj_a.weight", (heads, d)),
            "out": Matrix(f"{p}linear_attn.out_proj.weight", (d, values)),
            "conv": Vector(f"{p}linear_attn.conv1d.weight", (g.channels, 1, g.kernel), CONV),
            "rate": Vector(f"{p}linear_attn.A_log", (heads,), NEGATIVE_EXP),
            "dt_bias": Vector(f"{p}linear_attn.dt_bias", (heads,)),
            "out_norm": Vector(f"{p}linear_attn.norm.weight", (g.value_dim,)),  # the one norm stored whole
        },
    )


def _experts(p: str, e: ExpertsParams) -> Block:
    d, shared = e.hidden, e.shared_inner
    return Block(
        "experts",
        e,
        {
            "norm": _norm(f"{p}post_attention_layernorm.weight", d),
            "router": Matrix(f"{p}mlp.gate.weight", (e.experts, d)),
            "bank": Bank(f"{p}mlp.experts", e.experts, e.inner, d),
            "gate": Matrix(f"{p}mlp.shared_expert.gate_proj.weight", (shared, d)),
            "up": Matrix(f"{p}mlp.shared_expert.up_proj.weight", (shared, d)),
            "down": Matrix(f"{p}mlp.shared_expert.down_proj.weight", (d, shared)),
            "shared_gate": Matrix(f"{p}mlp.shared_expert_gate.weight", (1, d)),
        },
    )
