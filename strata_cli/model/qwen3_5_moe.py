"""The architecture `qwen3_5_moe` (Qwen3.5 and Qwen3.6 mixture-of-experts): which tensors it has, under which names.

Canonical names carry no prefix: `embed_tokens.weight`, `layers.3.self_attn.q_proj.weight`; those of the MTP head begin
with `mtp.`.
Routed experts are always stacked: `mlp.experts.gate_up_proj` [E, 2F, D] (rows 0..F-1 gate, F..2F-1 up) and
`mlp.experts.down_proj` [E, D, F].
"""

from strata_cli.model.config import FULL, ModelConfig

Shape = tuple[int, ...]

PREFIXES = ("model.", "language_model.")
VISION = ("visual.", "vision_tower.")
MTP = "mtp."


def rename(name: str) -> str | None:
    """The canonical name of a tensor on disk, or None for one of the vision tower, which is not used."""
    while name.startswith(PREFIXES):
        name = name[name.index(".") + 1 :]
    return None if name.startswith(VISION) else name


def tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Canonical name -> shape of every tensor of the main model, `lm_head.weight` included (tied or not)."""
    vocabulary = (config.vocab_size, config.hidden_size)
    shapes: dict[str, Shape] = {"embed_tokens.weight": vocabulary}
    for i, kind in enumerate(config.layer_types):
        shapes |= {f"layers.{i}.{name}": shape for name, shape in _layer(config, kind).items()}
    return shapes | {"norm.weight": (config.hidden_size,), "lm_head.weight": vocabulary}


def mtp_tensor_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Name without `mtp.` -> shape of every tensor of the MTP head; embedding and output head are the main model's."""
    d = config.hidden_size
    norms = ("pre_fc_norm_embedding.weight", "pre_fc_norm_hidden.weight", "norm.weight")
    layer = {f"layers.0.{name}": shape for name, shape in _layer(config, FULL).items()}
    return {"fc.weight": (d, 2 * d), **{name: (d,) for name in norms}, **layer}


def expert_parts(name: str, shape: Shape) -> dict[str, Shape]:
    """The matrices that a checkpoint with split experts has in place of a stack; one below the other they are its rows.

    Empty for a tensor that is not a stack of experts.
    """
    stem, _, projection = name.rpartition(".")
    if not stem.endswith("mlp.experts"):
        return {}
    count, rows, width = shape
    halves = {"gate_proj": rows // 2, "up_proj": rows // 2} if projection == "gate_up_proj" else {projection: rows}
    return {f"{stem}.{e}.{half}.weight": (n, width) for e in range(count) for half, n in halves.items()}


def _layer(config: ModelConfig, kind: str) -> dict[str, Shape]:
    d, mixer = config.hidden_size, _attention(config) if kind == FULL else _linear_attention(config)
    norms: dict[str, Shape] = {"input_layernorm.weight": (d,), "post_attention_layernorm.weight": (d,)}
    return norms | mixer | _experts(config)


def _attention(config: ModelConfig) -> dict[str, Shape]:
    d, dim = config.hidden_size, config.head_dim
    queries, keys = config.num_attention_heads * dim, config.num_key_value_heads * dim
    return {
        "self_attn.q_proj.weight": (2 * queries, d),  # per head: query, gate
        "self_attn.k_proj.weight": (keys, d),
        "self_attn.v_proj.weight": (keys, d),
        "self_attn.o_proj.weight": (d, queries),
        "self_attn.q_norm.weight": (dim,),
        "self_attn.k_norm.weight": (dim,),
    }


def _linear_attention(config: ModelConfig) -> dict[str, Shape]:
    d, heads = config.hidden_size, config.linear_num_value_heads
    keys, values = config.linear_num_key_heads * config.linear_key_head_dim, heads * config.linear_value_head_dim
    channels = 2 * keys + values  # q, k, v
    return {
        "linear_attn.in_proj_qkv.weight": (channels, d),
        "linear_attn.in_proj_z.weight": (values, d),
        "linear_attn.in_proj_b.weight": (heads, d),
        "linear_attn.in_proj_a.weight": (heads, d),
        "linear_attn.conv1d.weight": (channels, 1, config.linear_conv_kernel_dim),
        "linear_attn.A_log": (heads,),
        "linear_attn.dt_bias": (heads,),
        "linear_attn.norm.weight": (config.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (d, values),
    }


def _experts(config: ModelConfig) -> dict[str, Shape]:
    d, e = config.hidden_size, config.num_experts
    inner, shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
    return {
        "mlp.gate.weight": (e, d),
        "mlp.experts.gate_up_proj": (e, 2 * inner, d),
        "mlp.experts.down_proj": (e, d, inner),
        "mlp.shared_expert.gate_proj.weight": (shared, d),
        "mlp.shared_expert.up_proj.weight": (shared, d),
        "mlp.shared_expert.down_proj.weight": (d, shared),
        "mlp.shared_expert_gate.weight": (1, d),
    }
