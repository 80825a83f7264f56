"""Random small qwen3_5_moe checkpoints with an MTP head, a tokenizer for them, and reference models that read them.

Names and shapes come from transformers' own modules, quantized tensors from compressed-tensors' own functions: nothing
here imports the code under test. Every checkpoint carries a twin under `reference/` with the same values (rounded to
the stored dtype, dequantized) as plain float32 tensors, which is what `reference_model` loads.
"""

import json
import re
from pathlib import Path
from typing import Any

import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils.helpers import calculate_qparams
from safetensors.torch import save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor
from transformers import AutoModelForCausalLM, Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
from transformers.modeling_layers import MtpModel

# Shapes that differ in every ratio a model has; a test takes one by name. The last layer is full attention in all of
# them: MtpModel takes the class of its norms from there.
SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "dense-attention": {  # attention every second layer, three query heads a group, three v heads a k head, odd sizes
        "full_attention_interval": 2,
        "hidden_size": 48,
        "num_attention_heads": 6,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "partial_rotary_factor": 0.5,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 6,
        "linear_key_head_dim": 8,
        "linear_value_head_dim": 24,
        "linear_conv_kernel_dim": 3,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 24,
        "shared_expert_intermediate_size": 40,
        "vocab_size": 131,
    },
    "wide": {  # whole groups of 128
        "hidden_size": 128,
        "moe_intermediate_size": 128,
        "shared_expert_intermediate_size": 256,
        "linear_num_key_heads": 4,
        "linear_num_value_heads": 8,
    },
    "one-of-each": {  # heads not shared between groups, every expert taken, tied embedding
        "full_attention_interval": 2,
        "num_hidden_layers": 2,
        "hidden_size": 32,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "linear_num_key_heads": 3,
        "linear_num_value_heads": 3,
        "num_experts": 4,
        "num_experts_per_tok": 4,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e6,
        "tie_word_embeddings": True,
    },
}

SIZES: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "full_attention_interval": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_conv_kernel_dim": 4,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "eos_token_id": 1,
    "pad_token_id": 0,
}

# The projections into the residual stream: quieter, so that the last token's embedding is still heard at the end and a
# head can guess what follows it, loud enough that every layer decides tokens.
OUTPUT = re.compile(r"(o_proj|out_proj|down_proj)(\.weight)?$")
OUTPUT_GAIN = 0.3

# What quantized releases leave unquantized beside norms and convolutions.
NOT_QUANTIZED = re.compile(r"(embed_tokens|lm_head|mlp\.gate|shared_expert_gate|in_proj_[ab]|\bfc)\.weight$")


def make_tiny(
    directory: Path,
    seed: int = 0,
    *,
    shape: str = "plain",
    mtp: bool = True,
    layout: str = "split",
    prefix: str = "model.",
    dtype: str = "float32",
    shards: int = 1,
    quant: str | None = None,
    quant_mtp: bool = False,
    agree: float = 0.8,
    **overrides: Any,
) -> Path:
    """Write a random checkpoint and return its directory.

    Args:
        directory: created; the checkpoint is what lies in it, its float32 twin is in `directory`/reference.
        seed: of all weights.
        shape: a key of SHAPES; `overrides` are config fields that stand over it (and over SIZES).
        mtp: with the `mtp.*` tensors.
        layout: experts "stacked" (one 3-D tensor) or "split" (a matrix an expert). Quantized tensors are always split.
        prefix: of the main model's tensors: "model.", "model.language_model." (with a nested text_config and vision
            tensors), "language_model.model." (`language_model.` before lm_head and mtp too), "".
        dtype: of every tensor on disk: "float32", "bfloat16", "float16".
        shards: files; more than one are listed in an index.
        quant: "int4-g32", "int8-g128", "int4-channel", each also with "-asym" behind it, or None. Matrices whose
            width is no multiple of the group stay dense.
        quant_mtp: the MTP head's matrices too.
        agree: how far the head copies the main model's own habit (its embedding goes straight through): 0 for a head
            whose drafts are noise, 1 for one that is nearly always right.
    """
    config = _config({**SIZES, **SHAPES[shape], **overrides})
    generator = torch.Generator().manual_seed(seed)
    stored = getattr(torch, dtype)
    main = {name: _random(name, size, generator).to(stored) for name, size in _main_shapes(config).items()}
    if config.tie_word_embeddings:
        main["model.embed_tokens.weight"] = main["lm_head.weight"]
        main["model.norm.weight"][::2] -= 2  # flips signs: a token would be its own likeliest successor
    head: dict[str, Tensor] = {}
    if mtp:
        head = {name: _random(name, size, generator).to(stored) for name, size in _mtp_shapes(config).items()}
        _make_agree(head, main, agree)
    if config.tie_word_embeddings:
        main.pop("lm_head.weight")
    reference: dict[str, Tensor] = {}
    tensors: dict[str, Tensor] = {}
    for name, weight in {**main, **head}.items():
        quantizable = "experts" in name or (weight.ndim == 2 and not NOT_QUANTIZED.search(name))
        if quant and quantizable and (quant_mtp or not name.startswith("mtp.")):
            parts, reference[name] = _quantized(name, weight, quant)
        else:
            parts, reference[name] = _split(name, weight) if layout == "split" else {name: weight}, weight.float()
        tensors.update({_prefixed(part, prefix): value for part, value in parts.items()})
    nested = prefix == "model.language_model."
    if nested:
        tensors["model.visual.blocks.0.norm1.weight"] = torch.ones(8, dtype=stored)
    document = config.to_dict()
    if quant:
        document["quantization_config"] = {"quant_method": "compressed-tensors", "format": "pack-quantized"}
    _write(directory, document, tensors, shards, nested)
    _write(directory / "reference", config.to_dict(), reference, 1, nested=False)
    return directory


def reference_model(directory: Path) -> Any:
    """transformers' own model of a tiny checkpoint: float32, eval."""
    return AutoModelForCausalLM.from_pretrained(directory / "reference", dtype=torch.float32).eval()


def reference_mtp(model: Any) -> MtpModel:
    """transformers' MtpModel with the head of the checkpoint that `model` (of `reference_model`) came from.

    Drafting: `forward_layer(0, hidden, position_ids, MtpCache(config=model.config.get_mtp_config()), input_ids=...)`
    gives the hidden rows after the head's norm, `shared_head` their logits.
    """
    model.config.num_mtp_layers = 1
    model.config.mtp_layer_types = ["full_attention"]
    return MtpModel.from_pretrained(model).eval()


def make_tokenizer(directory: Path, *, size: int = 300) -> Path:
    """A byte-level tokenizer with chat tokens, its template and a generation_config for the checkpoint in `directory`.

    `size` ids at most, so that a vocabulary of more rows is padded. Ids: 0 <|endoftext|>, 1 <|im_start|>, 2 <|im_end|>.
    """
    rows = json.loads((directory / "config.json").read_text())
    rows = rows.get("text_config", rows)["vocab_size"]
    assert rows >= 259, f"a byte-level tokenizer needs 259 ids, the checkpoint has {rows}"
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=min(size, rows),
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    text = "the quick brown fox and the lazy dog sat on the mat, then it rained all day"
    tokenizer.train_from_iterator([text] * 3, trainer)
    tokenizer.save(str(directory / "tokenizer.json"))
    _dump(
        directory / "tokenizer_config.json",
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>"},
    )
    _dump(directory / "generation_config.json", {"eos_token_id": [2, 0], "pad_token_id": 0})
    (directory / "chat_template.jinja").write_text(
        "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    return directory


def _config(fields: dict[str, Any]) -> Qwen3_5MoeTextConfig:
    rope = {
        "rope_type": "default",
        "rope_theta": fields.pop("rope_theta", 1e4),
        "partial_rotary_factor": fields.pop("partial_rotary_factor", 0.25),
    }
    config = Qwen3_5MoeTextConfig(rope_parameters=rope, **{**fields, "mtp_num_hidden_layers": 1})
    config.architectures = ["Qwen3_5MoeForCausalLM"]
    return config


def _main_shapes(config: Qwen3_5MoeTextConfig) -> dict[str, tuple[int, ...]]:
    with torch.device("meta"):
        model = Qwen3_5MoeForCausalLM(config)
    return {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}


def _mtp_shapes(config: Qwen3_5MoeTextConfig) -> dict[str, tuple[int, ...]]:
    """A full-attention layer as the main model has it, and the head's own four tensors."""
    one = Qwen3_5MoeTextConfig(**{**config.to_dict(), "num_hidden_layers": 1, "layer_types": ["full_attention"]})
    layer = {name.replace("model.", "mtp."): size for name, size in _main_shapes(one).items() if ".layers." in name}
    d = config.hidden_size
    norms = ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden")
    return {"mtp.fc.weight": (d, 2 * d), **{f"mtp.{name}.weight": (d,) for name in norms}, **layer}


def _random(name: str, size: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Values whose sizes make every part of the model matter and the logits neither flat nor certain."""
    noise = torch.randn(size, generator=generator)
    if name.endswith("linear_attn.norm.weight"):
        return 1 + 0.2 * noise
    if name.endswith("A_log"):
        return (0.05 + 4 * torch.rand(size, generator=generator)).log()
    if name.endswith("dt_bias"):
        return noise - 1
    if len(size) == 1:  # zero-centred norms
        return 0.2 * noise
    if name.endswith("conv1d.weight"):
        return 0.5 * noise
    if name.endswith("embed_tokens.weight"):
        return noise
    gain = 2.0 if name == "lm_head.weight" or "gate.weight" in name else OUTPUT_GAIN if OUTPUT.search(name) else 1.0
    return gain * noise / size[-1] ** 0.5


def _make_agree(head: dict[str, Tensor], main: dict[str, Tensor], agree: float) -> None:
    """Let the token's embedding through the head, as the main model's residual stream does, and quieten the rest."""
    fc = head["mtp.fc.weight"]
    d = fc.shape[0]
    fc *= 1 - agree
    fc[:, :d] += agree * torch.eye(d, dtype=fc.dtype)
    head["mtp.norm.weight"].lerp_(main["model.norm.weight"], agree)
    for name in head:
        if OUTPUT.search(name):
            head[name] *= 1 - agree / 2


def _split(name: str, weight: Tensor) -> dict[str, Tensor]:
    """Stacked experts as one matrix an expert and projection; anything else as it is."""
    if name.endswith("experts.gate_up_proj"):
        stem, half = name.removesuffix("gate_up_proj"), weight.shape[1] // 2
        parts = {f"{stem}{e}.gate_proj.weight": m[:half].contiguous() for e, m in enumerate(weight)}
        return {**parts, **{f"{stem}{e}.up_proj.weight": m[half:].contiguous() for e, m in enumerate(weight)}}
    if name.endswith("experts.down_proj"):
        stem = name.removesuffix("down_proj")
        return {f"{stem}{e}.down_proj.weight": m.contiguous() for e, m in enumerate(weight)}
    return {name: weight}


def _quantized(name: str, weight: Tensor, quant: str) -> tuple[dict[str, Tensor], Tensor]:
    """A matrix, or a stack of them, as compressed-tensors packs it, and its value in float32."""
    tensors: dict[str, Tensor] = {}
    values: dict[str, Tensor] = {}
    for part, matrix in _split(name, weight).items():
        packed, values[part] = compress(matrix, quant)
        stem = part.removesuffix("weight")
        tensors.update({f"{stem}{suffix}": tensor for suffix, tensor in packed.items()})
    if weight.ndim == 2:
        return tensors, values[name]
    experts = list(values.values())
    if name.endswith("gate_up_proj"):
        n = len(experts) // 2
        experts = [torch.cat(pair) for pair in zip(experts[:n], experts[n:], strict=True)]
    return tensors, torch.stack(experts)


def compress(matrix: Tensor, quant: str) -> tuple[dict[str, Tensor], Tensor]:
    """One matrix [N, K] by compressed-tensors itself: its tensors by suffix, and their value in float32."""
    bits, groups, *asym = re.fullmatch(r"int(\d)-(g\d+|channel)(-asym)?", quant).groups()  # type: ignore[union-attr]
    n, k = matrix.shape
    group = k if groups == "channel" else int(groups[1:])
    if k % group:
        return {"weight": matrix}, matrix.float()
    symmetric = asym == [None]
    args = QuantizationArgs(
        num_bits=int(bits),
        symmetric=symmetric,
        strategy="channel" if groups == "channel" else "group",
        group_size=None if groups == "channel" else group,
    )
    runs = matrix.view(n, k // group, group)
    scale, zero = calculate_qparams(runs.amin(-1), runs.amax(-1), args)
    codes = quantize(matrix, scale, zero, args, dtype=torch.int8)
    tensors = {
        "weight_packed": pack_to_int32(codes, args.num_bits),
        "weight_scale": scale,
        "weight_shape": torch.tensor([n, k]),
    }
    if not symmetric:
        tensors["weight_zero_point"] = pack_to_int32(zero.to(torch.int8), args.num_bits, packed_dim=0)
    return tensors, dequantize(codes, scale.float(), zero.float(), args)


def _prefixed(name: str, prefix: str) -> str:
    if name.startswith("model."):
        return prefix + name.removeprefix("model.")
    return "language_model." + name if prefix.startswith("language_model.") else name


def _write(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor], shards: int, nested: bool) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    if nested:
        config = {
            "architectures": ["Qwen3_5MoeForConditionalGeneration"],
            "model_type": "qwen3_5_moe",
            "tie_word_embeddings": config["tie_word_embeddings"],
            "text_config": {k: v for k, v in config.items() if k not in ("architectures", "quantization_config")},
            "vision_config": {"model_type": "qwen3_5_moe", "depth": 1, "hidden_size": 8, "num_heads": 2},
            **{k: v for k, v in config.items() if k == "quantization_config"},
        }
    _dump(directory / "config.json", config)
    names = sorted(tensors)
    if shards == 1:
        save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})
        return
    placed = {}
    for i in range(shards):
        file = f"model-{i + 1:05}-of-{shards:05}.safetensors"
        part = {name: tensors[name] for name in names[i::shards]}
        placed.update({name: file for name in part})
        save_file(part, directory / file, metadata={"format": "pt"})
    _dump(directory / "model.safetensors.index.json", {"metadata": {}, "weight_map": placed})


def _dump(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2))
