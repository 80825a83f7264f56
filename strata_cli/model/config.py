"""`ModelConfig`: the sizes of a model, read from a checkpoint's config.json. No torch.

Only numbers of the file are used, none of a known model; what the code cannot honour is refused by name.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from strata_cli.errors import UsageError
from strata_cli.model.files import one_line, present, read_object, shown

# model_type in config.json (of its text_config, where it has one) -> architecture, the module that implements it
ARCHITECTURES = {"qwen3_5_moe": "qwen3_5_moe", "qwen3_5_moe_text": "qwen3_5_moe"}

LINEAR = "linear_attention"
FULL = "full_attention"

REQUIRED = object()

# No model is near these; beyond them a damaged number would take memory or hours before anything is compared.
SIZE_LIMIT = 2**31
LAYERS_LIMIT = 10_000
EXPERTS_LIMIT = 1_000_000  # in all layers
NUMBER_LIMIT = 1e30  # float32 holds it


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
    mtp_num_hidden_layers: int = 1  # 0: the model has no MTP head, or one that is not to be used


def load_config(directory: Path) -> ModelConfig:
    """Read `directory`/config.json (and the stop ids of generation_config.json).

    Raises UsageError: no such directory or file, something else of that name, a JSON fault, an unsupported
    architecture, a field that is missing or nonsensical, a feature that is not implemented.
    """
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory" if directory.exists() else f"no such model: {directory}")
    path = directory / "config.json"
    if not present(path):
        raise UsageError(
            f"{directory} has no config.json", "a checkpoint is a directory with config.json and *.safetensors"
        )
    generation = directory / "generation_config.json"
    stop_ids = read_object(generation).get("eos_token_id") if present(generation) else None
    present(directory / "tokenizer.json")  # what is not a file would pass for a checkpoint without a tokenizer
    return parse_config(read_object(path), stop_ids, str(path))


def parse_config(top: dict[str, Any], stop_ids: Any = None, source: str = "config.json") -> ModelConfig:
    """The ModelConfig of a parsed config.json.

    Args:
        top: the whole file; its `text_config` is read where there is one, else the top level (text-only exports).
        stop_ids: `eos_token_id` of generation_config.json, an id, a list of ids, or None.
        source: what error messages call the file.
    """
    outer = _Fields(top, source)
    text = outer.object("text_config") or top
    fields = _Fields(text, source)
    kind = text.get("model_type") or top.get("model_type")
    if not isinstance(kind, str | None):
        raise fields.fault("model_type", kind, "must be a string")
    if kind not in ARCHITECTURES:
        classes = top.get("architectures")
        named = kind or (", ".join(map(str, classes)) if isinstance(classes, list) else "") or "none named"
        supported = ", ".join(sorted(set(ARCHITECTURES.values())))
        raise UsageError(f"{source}: architecture {one_line(named)} is not supported", f"supported: {supported}")
    _check_quantization(outer)
    rope = _rope(fields)
    fields.only("hidden_act", "silu", default="silu")
    fields.only("attention_bias", False, default=False)
    fields.only("attn_output_gate", True, default=True)
    fields.only("norm_topk_prob", True, default=True)
    head_dim = fields.size("head_dim")
    tied = outer.flag("tie_word_embeddings", default=False)
    layers = fields.size("num_hidden_layers", limit=LAYERS_LIMIT)
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
        tie_word_embeddings=fields.flag("tie_word_embeddings", default=tied),
        attn_output_gate=True,
        eos_token_ids=_token_ids(stop_ids, fields),
        mtp_num_hidden_layers=_mtp_layers(fields),
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
    if config.num_experts * config.num_hidden_layers > EXPERTS_LIMIT:
        raise fields.fault("num_experts", config.num_experts, f"more than {EXPERTS_LIMIT} in all layers")
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
        return UsageError(f"{self.source}: {name} = {shown(value)}: {why}")

    def get(self, name: str, default: Any = REQUIRED) -> Any:
        value = self.values.get(name)
        if value is None:
            if default is REQUIRED:
                raise UsageError(f"{self.source}: {name} is missing")
            return default
        return value

    def size(self, name: str, limit: int = SIZE_LIMIT) -> int:
        value = self.get(name)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.fault(name, value, "must be a whole number above 0")
        if value > limit:
            raise self.fault(name, value, f"must be at most {limit}")
        return value

    def number(self, name: str, default: Any = REQUIRED) -> float:
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise self.fault(name, value, "must be a number above 0")
        if value > NUMBER_LIMIT:  # compared before it is converted: an integer may be too large for a float
            raise self.fault(name, value, f"must be at most {NUMBER_LIMIT:g}")
        return float(value)

    def flag(self, name: str, default: bool) -> bool:
        value = self.get(name, default)
        if not isinstance(value, bool):
            raise self.fault(name, value, "must be true or false")
        return value

    def object(self, name: str) -> dict[str, Any]:
        """An object, {} where there is none."""
        value = self.get(name, default={})
        if not isinstance(value, dict):
            raise self.fault(name, value, "must be an object")
        return value

    def only(self, name: str, supported: Any, default: Any) -> None:
        value = self.get(name, default)
        if value != supported:
            raise self.fault(name, value, f"not supported, only {shown(supported)}")


def _rope(fields: _Fields) -> _Fields:
    """The RoPE fields: in `rope_parameters`, or at the top in files of older versions."""
    inner = fields.object("rope_parameters")
    for name, value in (("rope_parameters", inner), ("rope_scaling", fields.object("rope_scaling"))):
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


def _check_quantization(top: _Fields) -> None:
    """What a model's format is named by. How its weights are stored, their tensors say."""
    groups = _Fields(top.object("quantization_config"), top.source).object("config_groups")
    for name in groups:
        _Fields(_Fields(groups, top.source).object(name), top.source).object("weights")


def _mtp_layers(fields: _Fields) -> int:
    """0 or 1, the number of layers in the MTP head."""
    layers = fields.get("mtp_num_hidden_layers", default=1)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers not in (0, 1):
        raise fields.fault("mtp_num_hidden_layers", layers, "not supported, only a head of 1 layer, or 0 for none")
    return layers


def _token_ids(value: Any, fields: _Fields) -> tuple[int, ...]:
    ids = [] if value is None else value if isinstance(value, list) else [value]
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, int) or token < 0:
            raise fields.fault("eos_token_id", value, "must be a token id or a list of them")
    return tuple(ids)
