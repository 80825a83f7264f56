"""strata against transformers' `generate` on the same weights, in the same process, on the same greedy prompts.

python examples/speed.py [PROMPTS.jsonl] [--model demo] [--rounds 5] [--prompts 8] [--max-tokens 128]

Every way runs all prompts once a round, in alternating order (A B C, C B A, ...), after a round that warms up and is
not counted. Tokens per second are tokens over wall time, prompts included; medians over the rounds, and ratios round
by round, so that a machine that is busy for a while spoils a round and not the result.
Needs `pip install 'transformers>=5.2'`.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from strata_cli.batch.records import parse
from strata_cli.config import EngineConfig
from strata_cli.engine.engine import Engine
from strata_cli.engine.types import Finished
from strata_cli.model.families import Bank, Vector, family
from strata_cli.session import Checkpoint, LoadedModel, Prompt, load_model, read_checkpoint
from strata_kernels.formats import unpack

Texts = list[list[int]]  # completion tokens of every prompt


@dataclass
class Way:
    """One way to complete all prompts, and what it came to: seconds by round, the tokens of the last one."""

    name: str
    threads: int  # of torch: strata's own choice, and as many as there are for transformers
    run: Callable[[], Texts]
    seconds: list[float] = field(default_factory=list)
    texts: Texts = field(default_factory=list)

    def measure(self) -> None:
        torch.set_num_threads(self.threads)
        began = time.perf_counter()
        self.texts = self.run()
        self.seconds.append(time.perf_counter() - began)

    @property
    def rates(self) -> list[float]:
        """Tokens per second by round; greedy text has the same length in all of them."""
        tokens = sum(map(len, self.texts))
        return [tokens / s for s in self.seconds]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", type=Path, default=Path(__file__).parent / "prompts.jsonl")
    parser.add_argument("--model", default="demo")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--prompts", type=int, default=8, help="how many lines of the file")
    parser.add_argument("--max-tokens", type=int, default=128)
    args = parser.parse_args()

    checkpoint = read_checkpoint(args.model, EngineConfig())
    cores = torch.get_num_threads()
    model = load_model(checkpoint, EngineConfig(device="cpu"))
    own = torch.get_num_threads()  # as the builder settled them
    records = parse(args.file.read_bytes(), args.file.name)[: args.prompts]
    prompts = [checkpoint.prompt(r.prompt, r.template_kwargs) for r in records]
    reference = transformers_model(model)

    def strata(name: str, **settings: Any) -> Way:
        engine = model.engine(EngineConfig(prefix_cache=False, device="cpu", **settings))
        return Way(name, own, lambda: complete(engine, checkpoint, prompts, args.max_tokens))

    def other(name: str, batch: int) -> Way:
        return Way(name, cores, lambda: generate(reference, checkpoint, prompts, args.max_tokens, batch))

    ways = [
        strata("strata, 1 slot, no drafts", batch=1, spec=0),
        strata("strata, 4 slots, no drafts", batch=4, spec=0),
        strata("strata, 4 slots, MTP, 4 drafts", batch=4, spec=4, mtp_varlen=False),
        strata("strata, 4 slots, MTP, adaptive", batch=4, spec=4),
        other("transformers, 1 sequence", 1),
        other("transformers, batch of 4", 4),
    ]
    for round in range(args.rounds + 1):
        for way in ways if round % 2 else reversed(ways):
            way.measure()
            print(f"round {round}: {way.name}: {way.rates[-1]:.0f} tok/s", file=sys.stderr)
    for way in ways:
        del way.seconds[0]  # the warm-up
    report(ways, len(prompts), args.rounds)


def report(ways: Sequence[Way], prompts: int, rounds: int) -> None:
    """The table, and the ratios that matter."""
    print(f"{prompts} prompts, greedy, float32, median of {rounds} rounds")
    print(f"{'':<32}{'threads':>8}{'tok/s':>8}{'min .. max':>15}{'tokens':>9}  same text as the first")
    for way in ways:
        same = sum(a == b for a, b in zip(way.texts, ways[0].texts))
        spread = f"{min(way.rates):.0f} .. {max(way.rates):.0f}"
        tokens = sum(map(len, way.texts))
        print(f"{way.name:<32}{way.threads:>8}{median(way.rates):>8.0f}{spread:>15}{tokens:>9}  {same} of {prompts}")
    for way in ways[2:4]:
        for base in (ways[0], ways[4], ways[5]):
            ratios = [a / b for a, b in zip(way.rates, base.rates)]
            print(f"{way.name} / {base.name}: {median(ratios):.2f} ({min(ratios):.2f} .. {max(ratios):.2f})")


def complete(engine: Engine, checkpoint: Checkpoint, prompts: Sequence[Prompt], max_tokens: int) -> Texts:
    """Greedy completions of all prompts, as many side by side as the engine has slots."""
    params = checkpoint.params({"temperature": 0.0, "max_tokens": max_tokens, "repetition_penalty": 1.0})
    for i, prompt in enumerate(prompts):
        engine.submit(checkpoint.request(str(i), prompt, params))
    found: dict[int, list[int]] = {}
    while engine.has_work:
        for event in engine.step():
            if isinstance(event, Finished):
                found[int(event.request_id)] = event.result.token_ids
    return [found[i] for i in range(len(prompts))]


def generate(model: Any, checkpoint: Checkpoint, prompts: Sequence[Prompt], max_tokens: int, batch: int) -> Texts:
    """The same by transformers, `batch` prompts at a time, the shorter ones padded on the left."""
    eos, texts = list(checkpoint.eos_token_ids), []
    for first in range(0, len(prompts), batch):
        group = prompts[first : first + batch]
        width = max(len(p.ids) for p in group)
        ids = torch.tensor([[eos[0]] * (width - len(p.ids)) + p.ids for p in group])
        mask = torch.tensor([[0] * (width - len(p.ids)) + [1] * len(p.ids) for p in group])
        out = model.generate(
            ids,
            attention_mask=mask,
            max_new_tokens=max_tokens,
            do_sample=False,
            eos_token_id=eos,
            pad_token_id=eos[0],
        )
        texts += [until_end(row, eos) for row in out[:, width:].tolist()]
    return texts


def until_end(tokens: list[int], eos: Sequence[int]) -> list[int]:
    """Tokens up to the first that ends the text, that one included: what follows pads the batch."""
    return tokens[: next((i + 1 for i, t in enumerate(tokens) if t in eos), len(tokens))]


def transformers_model(of: LoadedModel) -> Any:
    """transformers' own model around the weights of a checkpoint (dequantized, float32)."""
    try:
        from transformers import Qwen3_5MoeForCausalLM, Qwen3_5MoeTextConfig
    except ImportError:
        sys.exit("error: transformers 5.2 or newer is missing\nhint: pip install 'transformers>=5.2'")
    top = json.loads((of.checkpoint.path / "config.json").read_text(encoding="utf-8"))
    fields = top.get("text_config", top)
    fields.pop("quantization_config", None)
    model = Qwen3_5MoeForCausalLM(Qwen3_5MoeTextConfig(**fields)).float().eval()
    named = {n if n == "lm_head.weight" else f"model.{n}": tensor for n, tensor in plain_tensors(of).items()}
    model.load_state_dict(named)
    return model


def plain_tensors(of: LoadedModel) -> dict[str, Tensor]:
    """The main model's tensors by canonical name: matrices unpacked, vectors as they lie in the files."""
    config, weights = of.loaded.model, of.loaded.weights
    rename = family(config.family).rename
    files = [load_file(path) for path in sorted(of.checkpoint.path.glob("*.safetensors"))]
    stored = {rename(name): tensor for file in files for name, tensor in file.items()}
    found = {config.embedding.name: unpack(weights.embedding, 0, weights.embedding.shape[0])}
    for block, own in zip((*config.blocks, config.head), (*weights.blocks, weights.head), strict=True):
        for role, tensor in block.tensors.items():
            value = getattr(own, role)
            if isinstance(tensor, Vector):
                found[tensor.name] = stored[tensor.name].float()
            elif isinstance(tensor, Bank):
                for name, stacks in (("gate_up_proj", value.gate_up), ("down_proj", (value.down,))):
                    experts = [[unpack(stack[e], 0, stack.shape[1]) for stack in stacks] for e in range(value.count)]
                    found[f"{tensor.name}.{name}"] = torch.stack([torch.cat(parts) for parts in experts])
            else:
                found[tensor.name] = unpack(value, 0, value.shape[0])
    return found


if __name__ == "__main__":
    main()
