"""`ModelConfig`: the sizes of a model, read from a checkpoint's config.json. No torch.

Only numbers of the file are used, none of a known model; what the code cannot honour is refused by name.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_cli.errors import UsageError

# model_type in config.json (of its text_config, where it has one) -> architecture, the module that implements it
ARCHITECTURES = {"qwen3_5_moe": "qwen3_5_moe", "qwen3_5_moe_text": "qwen3_5_moe"}

LINEAR = "linear_attention"
FULL = "full_attention"

REQUIRED = object()


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """What determines a model's tensors and arithmetic. Letters in brackets: the shape alphabet of this package."""

    architecture: str
    hidden_size: int  # [D]
    num_hidden_layers: int
    layer_types: tuple[str, ...]  # LINEAR or FULL, one a layer
    num_attention_heads: int  # [H]
    num_key_value_heads: int  # [G]
    head_dim: int
    rotary_dim: int  # leading dimensions of a head that RoPE turns
    rope_theta: float
    rms_norm_eps: float
    linear_num_key_heads: int
    linear_num_value_heads: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_conv_kernel_dim: int
    num_experts: int  # [E]
    num_experts_per_tok: int  # [K]
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    vocab_size: int  # [V], rows of the embedding; the tokenizer may know fewer ids
    max_position_embeddings: int
    tie_word_embeddings: bool
    attn_output_gate: bool
    eos_token_ids: tuple[int, ...]  # generation_config.json's where it names any, else config.json's


def load_config(directory: Path) -> ModelConfig:
    """Read `directory`/config.json (and the stop ids of generation_config.json).

    Raises UsageError: no such directory or file, a JSON fault, an unsupported architecture, a field that is missing or
    nonsensical, a feature that is not implemented.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory" if directory.exists() else f"no such model: {directory}")
    path = directory / "config.json"
    if not path.is_file():
        raise UsageError(
            f"{directory} has no config.json", "a checkpoint is a directory with config.json and *.safetensors"
        )
    generation = directory / "generation_config.json"
    stop_ids = _read_json(generation).get("eos_token_id") if generation.is_file() else None
    return parse_config(_read_json(path), stop_ids, str(path))


def parse_config(top: dict[str, Any], stop_ids: Any = None, source: str = "config.json") -> ModelConfig:
    """The ModelConfig of a parsed config.json.

    Args:
        top: the whole file; its `text_config` is read where there is one, else the top level (text-only exports).
        stop_ids: `eos_token_id` of generation_config.json, an id, a list of ids, or None.
        source: what error messages call the file.
    """
    text = top["text_config"] if isinstance(top.get("text_config"), dict) else top
    kind = text.get("model_type") or top.get("model_type")
    if kind not in ARCHITECTURES:
        named = kind or ", ".join(map(str, top.get("architectures") or [])) or "none named"
        supported = ", ".join(sorted(set(ARCHITECTURES.values())))
        raise UsageError(f"{source}: architecture {named} is not supported", f"supported: {supported}")
    fields = _Fields(text, source)
    rope = _rope(fields)
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_bias", False, default=False)
    fields.only("attn_output_gate", True, default=True)
    fields.only("norm_topk_prob", True, default=True)
    head_dim = fields.size("head_dim")
    layers = fields.size("num_hidden_layers")
    if stop_ids is None:
        stop_ids = text.get("eos_token_id", top.get("eos_token_id"))
    config = ModelConfig(
        architecture=ARCHITECTURES[kind],
        hidden_size=fields.size("hidden_size"),
        num_hidden_layers=layers,
        layer_types=_layer_types(fields, layers),
        num_attention_heads=fields.size("num_attention_heads"),
        num_key_value_heads=fields.size("num_key_value_heads"),
        head_dim=head_dim,
        rotary_dim=int(head_dim * rope.number("partial_rotary_factor", default=0.25)),
        rope_theta=rope.number("rope_theta"),
        rms_norm_eps=fields.number("rms_norm_eps"),
        linear_num_key_heads=fields.size("linear_num_key_heads"),
        linear_num_value_heads=fields.size("linear_num_value_heads"),
        linear_key_head_dim=fields.size("linear_key_head_dim"),
        linear_value_head_dim=fields.size("linear_value_head_dim"),
        linear_conv_kernel_dim=fields.size("linear_conv_kernel_dim"),
        num_experts=fields.size("num_experts"),
        num_experts_per_tok=fields.size("num_experts_per_tok"),
        moe_intermediate_size=fields.size("moe_intermediate_size"),
        shared_expert_intermediate_size=fields.size("shared_expert_intermediate_size"),
        norm_topk_prob=True,
        vocab_size=fields.size("vocab_size"),
        max_position_embeddings=fields.size("max_position_embeddings"),
        tie_word_embeddings=bool(text.get("tie_word_embeddings", top.get("tie_word_embeddings", False))),
        attn_output_gate=True,
        eos_token_ids=_token_ids(stop_ids, fields),
    )
    _check(config, fields)
    return config


def _check(config: ModelConfig, fields: "_Fields") -> None:
    """Relations between fields."""

    def divides(small: str, large: str) -> None:
        n, m = getattr(config, small), getattr(config, large)
        if m % n:
            raise fields.fault(large, m, f"not a multiple of {small} = {n}")

    divides("num_key_value_heads", "num_attention_heads")
    divides("linear_num_key_heads", "linear_num_value_heads")
    if config.num_experts_per_tok > config.num_experts:
        raise fields.fault(
            "num_experts_per_tok", config.num_experts_per_tok, f"above num_experts = {config.num_experts}"
        )
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        what = f"gives {config.rotary_dim} of head_dim = {config.head_dim}, not an even number of them"
        raise fields.fault("partial_rotary_factor", config.rotary_dim / config.head_dim, what)
    for token in config.eos_token_ids:
        if token >= config.vocab_size:
            raise fields.fault("eos_token_id", token, f"outside vocab_size = {config.vocab_size}")


class _Fields:
    """Typed access to one JSON object; every fault names the file and the field."""

    def __init__(self, values: dict[str, Any], source: str):
        self.values = values
        self.source = source

    def fault(self, name: str, value: Any, why: str) -> UsageError:
        return UsageError(f"{self.source}: {name} = {json.dumps(value, default=str)}: {why}")

    def get(self, name: str, default: Any = REQUIRED) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is REQUIRED:
                raise UsageError(f"{self.source}: {name} is missing")
            return default
        return value

    def size(self, name: str, default: Any = REQUIRED) -> int:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(name, value, "must be a whole number above 0")
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < float("inf"):
            raise self.fault(name, value, "must be a number above 0")
        return float(value)

    def only(self, name: str, supported: Any, default: Any) -> None:
        value = self.get(name, default)
        if value != supported:
            raise self.fault(name, value, f"not supported, only {json.dumps(supported)}")


def _rope(fields: _Fields) -> _Fields:
    """The RoPE fields: in `rope_parameters`, or at the top in files of older versions."""
    inner = fields.get("rope_parameters", default={})
    scaling = fields.get("rope_scaling", default={})
    for name, value in (("rope_parameters", inner), ("rope_scaling", scaling)):
        if not isinstance(value, dict):
            raise fields.fault(name, value, "must be an object")
        kind = value.get("rope_type", value.get("type", "default"))
        # "mrope" differs from plain RoPE only for images; for text all its position rows are equal
        if kind not in ("default", "mrope"):
            raise fields.fault(f"{name}.rope_type", kind, 'not supported, only "default"')
    outer = {name: fields.values.get(name) for name in ("rope_theta", "partial_rotary_factor")}
    return _Fields({**outer, **inner}, fields.source)


def _layer_types(fields: _Fields, layers: int) -> tuple[str, ...]:
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


def _token_ids(value: Any, fields: _Fields) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise fields.fault("eos_token_id", value, "must be a token id or a list of them")
    return tuple(ids)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as fault:
        raise UsageError(f"cannot read {path}: {fault}") from fault
    except json.JSONDecodeError as fault:
        raise UsageError(f"{path}:{fault.lineno}: not valid JSON: {fault.msg}") from fault
    if not isinstance(value, dict):
        raise UsageError(f"{path}: must be a JSON object, found {type(value).__name__}")
    return value
