"""A checkpoint of the main family with random weights in int4, of any size; the default is the shape of the 35B-A3B.

python examples/make_shape.py OUT [--hidden 2048] [--layers 40] [--experts 256] [--active 8] [--inner 512]
                                  [--vocab 248320] [--group 128] [--no-mtp] [--seed 0]

For measuring memory and speed at sizes that no trained model at hand has; what it says is noise, and it never ends a
text by itself. The tokenizer is the demo model's: ids beyond its own are padding, which no prompt holds and nothing
draws. A vocabulary smaller than that has no tokenizer: prompts are token ids. Matrices of layers are packed as
compressed-tensors does, the rest is bfloat16. Written file by file, a part of one tensor in memory at a time.
"""

import argparse
import json
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch

from strata_cli.model.config import parse_config
from strata_cli.model.families import Bank, Matrix, ModelConfig, Vector

SHARD_BYTES = 2_000_000_000
PART = 2**22  # numbers of a tensor in memory at a time
DEMO = Path(__file__).parents[1] / "strata_cli/demo/model"
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")
DENSE = ("embed_tokens", "lm_head", "mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b", "mtp.fc")
CODE_STD = 4.61  # of int4 codes that are all equally likely


@dataclass(frozen=True, slots=True)
class Tensor:
    """What a file is to hold, but for its numbers. `dtype` in the words of safetensors.

    `columns` of the matrix it is a part of, 0 for vectors. `stated`: the numbers themselves, where they are not random.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    columns: int = 0
    stated: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * {"BF16": 2, "I32": 4, "I64": 8}[self.dtype]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    sizes = {"hidden": 2048, "layers": 40, "experts": 256, "active": 8, "inner": 512, "vocab": 248320, "group": 128}
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default {default}")
    parser.add_argument("--mtp", action=argparse.BooleanOptionalAction, default=True, help="an MTP head of one layer")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    if bad := fault(args):
        parser.error(bad)
    args.out.mkdir(parents=True)
    size = write(args.out, config_of(args), args.group, args.seed)
    if args.vocab >= json.loads((DEMO / "config.json").read_text())["vocab_size"]:
        for file in TOKENIZER:
            shutil.copy(DEMO / file, args.out)
    print(f"{args.out}: {size / 1e9:.2f} GB")


def fault(args: argparse.Namespace) -> str | None:
    """What is wrong with the sizes, in a line."""
    if args.out.exists():
        return f"{args.out} exists"
    if args.group not in (32, 64, 128):
        return f"--group {args.group} is none of 32, 64, 128"
    if args.hidden % 256 or args.inner % args.group:
        return "--hidden is a multiple of 256, --inner one of --group"
    if min(args.hidden, args.layers, args.inner, args.vocab, args.active) < 1 or args.active > args.experts:
        return "sizes are 1 or more, and no more experts --active than there are"
    return None


def config_of(args: argparse.Namespace) -> dict[str, Any]:
    """config.json, heads in the proportions of the 35B model; every fourth layer attends."""
    hidden = args.hidden
    return {
        "architectures": ["Qwen3_5MoeForCausalLM"],
        "model_type": "qwen3_5_moe_text",
        "dtype": "bfloat16",
        "vocab_size": args.vocab,
        "hidden_size": hidden,
        "num_hidden_layers": args.layers,
        "full_attention_interval": 4,
        "num_attention_heads": hidden // 128,
        "num_key_value_heads": max(1, hidden // 1024),
        "head_dim": 256,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "linear_num_key_heads": hidden // 128,
        "linear_num_value_heads": hidden // 64,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": args.experts,
        "num_experts_per_tok": args.active,
        "moe_intermediate_size": args.inner,
        "shared_expert_intermediate_size": args.inner,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 32768,
        "tie_word_embeddings": False,
        "mtp_num_hidden_layers": int(args.mtp),
        "eos_token_id": None,
        "quantization_config": {
            "quant_method": "compressed-tensors",
            "format": "pack-quantized",
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": {"num_bits": 4, "group_size": args.group}}},
        },
    }


def write(out: Path, config: dict[str, Any], group: int, seed: int) -> int:
    """Write the checkpoint into `out`, which exists; its size in bytes."""
    rng = np.random.default_rng(seed)
    shards: list[list[Tensor]] = [[]]
    for tensor in tensors(parse_config(config), group):
        if sum(t.nbytes for t in shards[-1]) + tensor.nbytes > SHARD_BYTES and shards[-1]:
            shards.append([])
        shards[-1].append(tensor)
    placed, total = {}, 0
    for i, shard in enumerate(shards):
        file = f"model-{i + 1:05}-of-{len(shards):05}.safetensors"
        write_shard(out / file, shard, rng)
        placed.update({t.name: file for t in shard})
        total += (out / file).stat().st_size
    index = {"metadata": {"total_size": total}, "weight_map": placed}
    (out / "model.safetensors.index.json").write_text(json.dumps(index))
    (out / "config.json").write_text(json.dumps(config, indent=2))
    return total


def tensors(config: ModelConfig, group: int) -> Iterator[Tensor]:
    """Everything that a checkpoint of this config holds, in the model's order."""
    own = (config.mtp.input, *config.mtp.blocks, config.mtp.head) if config.mtp is not None else ()
    blocks = (*config.blocks, config.head, *own)
    wanted = [config.embedding, *(tensor for block in blocks for tensor in block.tensors.values())]
    for tensor in {tensor.name: tensor for tensor in wanted}.values():
        name = tensor.name if tensor.name.startswith(("lm_head", "mtp.")) else f"model.{tensor.name}"
        if isinstance(tensor, Bank):
            for e in range(tensor.experts):
                yield from packed(f"{name}.{e}.gate_proj.weight", tensor.inner, tensor.hidden, group)
                yield from packed(f"{name}.{e}.up_proj.weight", tensor.inner, tensor.hidden, group)
                yield from packed(f"{name}.{e}.down_proj.weight", tensor.hidden, tensor.inner, group)
        elif isinstance(tensor, Vector):
            yield Tensor(name, "BF16", tensor.shape)
        elif isinstance(tensor, Matrix) and any(part in name for part in DENSE):
            yield Tensor(name, "BF16", tensor.shape, tensor.shape[1])
        else:
            yield from packed(name, *tensor.shape, group)


def packed(name: str, n: int, k: int, group: int) -> Iterator[Tensor]:
    """A matrix [n, k] in int4."""
    yield Tensor(f"{name}_packed", "I32", (n, k // 8), k)
    yield Tensor(f"{name}_scale", "BF16", (n, k // group), k)
    yield Tensor(f"{name}_shape", "I64", (2,), stated=(n, k))


def write_shard(file: Path, shard: list[Tensor], rng: np.random.Generator) -> None:
    """One safetensors file, tensors of wide numbers first, so that each lies at a multiple of its numbers' size."""
    shard = sorted(shard, key=lambda t: ("I64", "I32", "BF16").index(t.dtype))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in shard:
        start, end = end, end + tensor.nbytes
        header[tensor.name] = {"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        for tensor in shard:
            for part in values(tensor, rng):
                stream.write(part)


def values(tensor: Tensor, rng: np.random.Generator) -> Iterator[bytes]:
    """The tensor's bytes, part by part: numbers whose sizes keep a window's hidden rows within bounds."""
    if tensor.stated:
        yield np.asarray(tensor.stated, np.int64).tobytes()
        return
    many = prod(tensor.shape)
    for first in range(0, many, PART):
        count = min(PART, many - first)
        yield rng.bytes(4 * count) if tensor.dtype == "I32" else bfloat16(tensor, count, rng)


def bfloat16(tensor: Tensor, count: int, rng: np.random.Generator) -> bytes:
    """`count` numbers of the tensor."""
    noise = torch.from_numpy(rng.standard_normal(count, np.float32))
    if tensor.name.endswith("_scale"):
        noise = (1 + 0.1 * noise) / (CODE_STD * tensor.columns**0.5)
    elif tensor.name.endswith("A_log"):
        noise = noise.abs().log().clamp(min=-3)
    elif tensor.columns and "embed_tokens" not in tensor.name:
        noise /= tensor.columns**0.5
    elif not tensor.columns:
        noise *= 0.1
    return noise.to(torch.bfloat16).view(torch.int16).numpy().tobytes()


if __name__ == "__main__":
    main()
