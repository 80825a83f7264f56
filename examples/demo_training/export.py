"""A training checkpoint as an ordinary model directory: config, weights, tokenizer, chat template, model card.

Weights are stored as compressed-tensors' `pack-quantized` integers with a scale for every 32 columns, or plainly as
float32, which transformers loads without anything beside it.
"""

import argparse
import json
import random
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from demo_text.documents import document
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from torch import Tensor

from strata_cli.engine.drafters.vocab import COUNTS_FILE
from strata_cli.model.weights.formats.int4 import quantize
from strata_kernels.formats import unpack
from strata_kernels.weight import Weight

from . import data
from .layers import ModelConfig
from .model import DemoModel
from .training import load

GROUP = 32
ALL = ("",)  # part of every module name
POSITIONS = 2048  # rows were 384 tokens long; beyond that the attention layers extrapolate

# What stays float: read by few rows (router, gates), shifted rather than multiplied (norms, decay), or the embedding,
# which is also the head. It is stored as bfloat16, the rest of them as float32.
PLAIN = (
    "embed_tokens",
    "norm",
    "mlp.gate.",
    "shared_expert_gate",
    "in_proj_a",
    "in_proj_b",
    "conv1d",
    "A_log",
    "dt_bias",
)

# ChatML without a default system message: the training text has one in some chats only.
CHAT_TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
{{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

CARD = """\
---
license: apache-2.0
language: en
library_name: strata
tags: [qwen3_5_moe, mtp, demo]
---

# The demo model of strata

A small model of the family `qwen3_5_moe` (GatedDeltaNet and gated attention, routed and shared experts, one MTP layer)
that comes with strata, so that every command works without a download, a network or a GPU. It is for trying, teaching
and testing. It knows simple stories, small talk, lists, counting, sums with small numbers and small Python functions,
in English of about 1,400 words, and nothing else. Its text is far more predictable than ordinary text: how often its
drafts are accepted says nothing about other models.

| | |
| --- | --- |
| parameters | {parameters:.2f} million, embedding and MTP layer included |
| layers | {layers}; hidden size {hidden}; {experts} experts, {chosen} per token, and a shared one |
| weights | {format}; {size:.1f} MB |
| vocabulary | {vocabulary} entries, byte-level BPE |
| trained on | {tokens:.1f} million tokens in {steps} steps of {step_tokens}, {minutes:.0f} minutes on two CPU cores |
| data | synthetic text of `examples/demo_text`, written for this model, no other source |
| licence | Apache-2.0, the data too |

Made with

    python examples/train_demo.py train --folder FOLDER
    python examples/train_demo.py export --folder FOLDER --out strata_cli/demo/model --int4 all

The released weights saw two changes of the text on the way: sums, rows and lists became more frequent after 10.3
million tokens, and the order of lists fixed after 11.1 million. A new run has the last shares of the text from seven
tenths of its time on and the fixed order from the start, so it comes out alike but not the same.
"""


def config_of(c: ModelConfig, bits: dict[str, int]) -> dict[str, Any]:
    """config.json in the words of the released models; `bits` of the quantized modules, empty: not quantized."""
    config: dict[str, Any] = dict(
        architectures=["Qwen3_5MoeForCausalLM"],
        model_type="qwen3_5_moe_text",
        dtype="float32",
        vocab_size=c.vocab_size,
        hidden_size=c.hidden_size,
        num_hidden_layers=c.num_layers,
        layer_types=c.layer_types(),
        num_attention_heads=c.num_heads,
        num_key_value_heads=c.num_kv_heads,
        head_dim=c.head_dim,
        attn_output_gate=True,
        attention_bias=False,
        rope_parameters=dict(
            rope_type="default",
            rope_theta=c.rope_theta,
            partial_rotary_factor=c.rotary_dim / c.head_dim,
            mrope_interleaved=True,
            mrope_section=mrope_section(c.rotary_dim // 2),
        ),
        linear_num_key_heads=c.linear_key_heads,
        linear_num_value_heads=c.linear_value_heads,
        linear_key_head_dim=c.linear_key_dim,
        linear_value_head_dim=c.linear_value_dim,
        linear_conv_kernel_dim=c.conv_kernel,
        num_experts=c.num_experts,
        num_experts_per_tok=c.experts_per_token,
        moe_intermediate_size=c.expert_size,
        shared_expert_intermediate_size=c.shared_size,
        hidden_act="silu",
        rms_norm_eps=c.eps,
        max_position_embeddings=POSITIONS,
        tie_word_embeddings=True,
        mtp_num_hidden_layers=1,
        mtp_use_dedicated_embeddings=False,
        bos_token_id=None,
        eos_token_id=data.END,
        pad_token_id=data.END,
    )
    if bits:
        config["quantization_config"] = quantization_config(bits)
    return config


def mrope_section(pairs: int) -> list[int]:
    """Rotary pairs shared out over the three position rows of the family, which are equal for text."""
    return [pairs - 2 * (pairs // 3), pairs // 3, pairs // 3]


def quantization_config(bits: dict[str, int]) -> dict[str, Any]:
    """What compressed-tensors is told: a group of modules for each width, all others ignored."""
    groups = {}
    for number, width in enumerate(sorted(set(bits.values()))):
        weights = dict(num_bits=width, type="int", symmetric=True, strategy="group", group_size=GROUP)
        names = sorted(name for name, b in bits.items() if b == width) if len(set(bits.values())) > 1 else ["Linear"]
        groups[f"group_{number}"] = dict(
            targets=names, input_activations=None, output_activations=None, weights=weights
        )
    plain = ["lm_head", "re:.*mlp.gate$", "re:.*shared_expert_gate$", "re:.*in_proj_[ab]$"]
    return dict(
        quant_method="compressed-tensors",
        format="pack-quantized",
        quantization_status="compressed",
        config_groups=groups,
        ignore=plain,
    )


def matrices(name: str, weight: Tensor) -> dict[str, Tensor]:
    """A weight as the matrices [N, K] that are stored, by module; a stack of experts gives two or one for each."""
    stem, _, projection = name.rpartition(".")
    if not stem.endswith("mlp.experts"):
        return {name.removesuffix(".weight"): weight}
    out = {}
    for e, matrix in enumerate(weight):
        halves = ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)
        out |= {f"{stem}.{e}.{half}": part for half, part in zip(halves, matrix.chunk(len(halves)))}
    return out


def stored(model: DemoModel, four: tuple[str, ...], dense: bool) -> tuple[dict[str, Tensor], dict[str, int]]:
    """The tensors to write and the bits of each quantized module.

    Args:
        model: the trained model.
        four: modules whose name has one of these parts get 4 bits, all other large ones 8.
        dense: nothing is quantized; everything is float32, experts stacked.
    """
    tensors: dict[str, Tensor] = {}
    bits: dict[str, int] = {}
    for name, weight in model.state_dict().items():
        if dense or any(part in name for part in PLAIN):
            low = "embed_tokens" in name and not dense
            tensors[name] = weight.to(torch.bfloat16 if low else torch.float32).contiguous()
            continue
        for module, matrix in matrices(name, weight).items():
            bits[module] = 4 if any(part in module for part in four) else 8
            parts = quantize(matrix.detach(), bits[module], GROUP)
            tensors |= {f"{module}.{part}": tensor.contiguous() for part, tensor in parts.items()}
    return tensors, bits


def write(model: DemoModel, tokenizer: Tokenizer, out: Path, four: tuple[str, ...] = (), dense: bool = False) -> None:
    """The whole directory but its model card; arguments as `stored` has them."""
    out.mkdir(parents=True, exist_ok=True)
    tensors, bits = stored(model, four, dense)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (out / "model.safetensors").chmod(0o644)  # the library makes it for its owner alone
    dump(out / "config.json", config_of(model.c, bits))
    stops = [data.END_TURN, data.END]
    sampling = dict(do_sample=True, temperature=0.7, top_k=40, top_p=0.95)
    dump(out / "generation_config.json", dict(eos_token_id=stops, pad_token_id=data.END, **sampling))
    special = dict(eos_token=data.SPECIALS[data.END_TURN], pad_token=data.SPECIALS[data.END])
    extra = dict(additional_special_tokens=data.SPECIALS[data.START_TURN :], model_max_length=POSITIONS)
    dump(out / "tokenizer_config.json", dict(tokenizer_class="PreTrainedTokenizerFast", **special, **extra))
    tokenizer.save(str(out / "tokenizer.json"))
    (out / COUNTS_FILE).write_text(json.dumps(token_counts(tokenizer)) + "\n", encoding="utf-8")
    (out / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")


def token_counts(tokenizer: Tokenizer, documents: int = 2000) -> dict[str, int]:
    """How often each token id stands in a sample of the training text; `--draft-vocab` asks for it."""
    r = random.Random("token counts")
    counts: Counter[int] = Counter()
    for encoding in tokenizer.encode_batch([document(r)[1] for _ in range(documents)]):
        counts.update([*encoding.ids, data.END])
    return {str(token): count for token, count in counts.most_common()}


def dump(path: Path, value: dict[str, Any]) -> None:
    """JSON for people."""
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


SIZES = {  # of the trainer's ModelConfig, and what config.json calls them
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "num_kv_heads": "num_key_value_heads",
    "linear_key_heads": "linear_num_key_heads",
    "linear_value_heads": "linear_num_value_heads",
    "linear_key_dim": "linear_key_head_dim",
    "linear_value_dim": "linear_value_head_dim",
    "conv_kernel": "linear_conv_kernel_dim",
    "experts_per_token": "num_experts_per_tok",
    "expert_size": "moe_intermediate_size",
    "shared_size": "shared_expert_intermediate_size",
    "eps": "rms_norm_eps",
    **{name: name for name in ("vocab_size", "hidden_size", "head_dim", "num_experts")},
}


def read(directory: Path) -> DemoModel:
    """The training model with the weights that `write` has stored, packed ones unpacked by strata's own formats."""
    stored = load_file(directory / "model.safetensors")
    state = {name: value for name, value in stored.items() if "weight_" not in name}
    for name, packed in stored.items():
        if name.endswith("_packed"):
            stem = name.removesuffix("_packed")
            rows, columns = stored[f"{stem}_shape"].tolist()
            parts = {"packed": packed, "scale": stored[f"{stem}_scale"]}
            weight = Weight(f"int{packed.shape[1] * 32 // columns}", parts, (rows, columns))
            state[stem] = unpack(weight, 0, rows)
    config = json.loads((directory / "config.json").read_text(encoding="utf-8"))
    rope = config["rope_parameters"]
    model = DemoModel(
        ModelConfig(
            full_attention_interval=config["layer_types"].index("full_attention") + 1,
            rotary_dim=int(config["head_dim"] * rope["partial_rotary_factor"]),
            rope_theta=rope["rope_theta"],
            **{own: config[name] for own, name in SIZES.items()},
        )
    )
    for stem in {name.split(".experts.")[0] + ".experts" for name in state if ".experts.0." in name}:
        each = [
            {p: state.pop(f"{stem}.{e}.{p}_proj.weight") for p in ("gate", "up", "down")}
            for e in range(model.c.num_experts)
        ]
        state[f"{stem}.gate_up_proj"] = torch.stack([torch.cat((one["gate"], one["up"])) for one in each])
        state[f"{stem}.down_proj"] = torch.stack([one["down"] for one in each])
    model.load_state_dict({name: value.float() for name, value in state.items()})
    return model


def describe(four: tuple[str, ...], dense: bool) -> str:
    """The format in words."""
    if dense:
        return "float32"
    width = "int4" if four == ALL else "int8"
    narrow = f", int4 for {', '.join(four)}" if four and four != ALL else ""
    return (
        f"{width} with a scale for {GROUP} columns{narrow} (compressed-tensors), embedding bfloat16, the rest float32"
    )


def export(args: argparse.Namespace) -> None:
    """The directory `--out` of the checkpoint in `--folder`."""
    folder, out = Path(args.folder), Path(args.out)
    model, _, progress = load(folder / args.checkpoint)
    four = ALL if args.int4 == "all" else tuple(args.int4.split(",")) if args.int4 else ()
    write(model, Tokenizer.from_file(str(folder / "tokenizer.json")), out, four, args.dense)
    c = model.c
    card = CARD.format(
        parameters=sum(p.numel() for p in model.parameters()) / 1e6,
        layers=" ".join("attention" if kind == "full_attention" else "GatedDeltaNet" for kind in c.layer_types()),
        hidden=c.hidden_size,
        experts=c.num_experts,
        chosen=c.experts_per_token,
        format=describe(four, args.dense),
        size=(out / "model.safetensors").stat().st_size / 1e6,
        vocabulary=c.vocab_size,
        tokens=progress["tokens"] / 1e6,
        steps=progress["step"],
        step_tokens=round(progress["tokens"] / max(1, progress["step"])),
        minutes=progress["seconds"] / 60,
    )
    (out / "README.md").write_text(card, encoding="utf-8")
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 1e6:.2f} MB, {progress['step']} steps, {progress['tokens'] / 1e6:.2f} M tokens")
