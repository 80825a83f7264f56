"""What the exported demo model can do: loss, accepted drafts, and tasks whose answers can be checked."""

import ast
import collections
import json
import random
import re
from pathlib import Path

import demo_corpus
import torch
import torch.nn.functional as F
from safetensors import safe_open
from tokenizers import Tokenizer

from strata_cli.model.weights.formats.int4 import dequantize

from . import data
from .layers import ModelConfig
from .model import DemoModel
from .training import DEPTH

SEED = 31337  # no block of the training text has it
LOSS_KINDS = ("story", "chat_story", "chat", "list", "sum", "recall", "code")
# kind of request: how many greedy answers the chain is measured on
CHAIN_KINDS = {"story": 10, "chat_story": 16, "chat": 30, "list": 24, "sum": 40, "recall": 24, "code": 20}


def config_of(config: dict) -> ModelConfig:
    """The sizes in config.json."""
    rope = config["rope_parameters"]
    return ModelConfig(
        vocab_size=config["vocab_size"],
        hidden_size=config["hidden_size"],
        num_layers=config["num_hidden_layers"],
        full_attention_interval=config["layer_types"].index("full_attention") + 1,
        num_heads=config["num_attention_heads"],
        num_kv_heads=config["num_key_value_heads"],
        head_dim=config["head_dim"],
        rotary_dim=int(config["head_dim"] * rope["partial_rotary_factor"]),
        rope_theta=rope["rope_theta"],
        linear_key_heads=config["linear_num_key_heads"],
        linear_value_heads=config["linear_num_value_heads"],
        linear_key_dim=config["linear_key_head_dim"],
        linear_value_dim=config["linear_value_head_dim"],
        conv_kernel=config["linear_conv_kernel_dim"],
        num_experts=config["num_experts"],
        experts_per_token=config["num_experts_per_tok"],
        expert_size=config["moe_intermediate_size"],
        shared_size=config["shared_expert_intermediate_size"],
    )


def read(folder: Path) -> tuple[DemoModel, Tokenizer]:
    """Model and tokenizer of an exported directory, weights as their stored integers say."""
    model = DemoModel(config_of(json.loads((folder / "config.json").read_text(encoding="utf-8"))))
    with safe_open(folder / "model.safetensors", "pt") as f:
        stored = {name: f.get_tensor(name) for name in f.keys()}  # noqa: SIM118 (a reader, no dict)
    weights = {}
    for name, tensor in stored.items():
        if name.endswith("_packed"):
            stem = name.removesuffix("_packed")
            rows, columns = stored[stem + "_shape"].tolist()
            bits = tensor.shape[1] * 32 // columns
            weights[stem] = dequantize(tensor, stored[stem + "_scale"], (rows, columns), bits)
        elif not name.endswith(("weight_scale", "weight_shape")):
            weights[name] = tensor.float()
    for name in model.state_dict():
        stem, _, projection = name.rpartition(".")
        if stem.endswith("mlp.experts") and name not in weights:
            halves = ("gate_proj", "up_proj") if projection == "gate_up_proj" else (projection,)
            names = [[f"{stem}.{e}.{half}.weight" for half in halves] for e in range(model.c.num_experts)]
            weights[name] = torch.stack([torch.cat([weights.pop(n) for n in row]) for row in names])
    model.load_state_dict(weights)
    return model.eval(), Tokenizer.from_file(str(folder / "tokenizer.json"))


class Evaluator:
    """Greedy answers of a model and the figures made from them."""

    def __init__(self, model: DemoModel, tokenizer: Tokenizer):
        self.model, self.tokenizer = model, tokenizer

    def generate(self, ids: list[int], most: int, stops=(data.END, data.END_TURN)) -> list[int]:
        """The ids and up to `most` greedy tokens behind them, a stop token included."""
        state, ids = self.model.new_state(), list(ids)
        for t in ids:
            hidden = self.model.step(t, state)
        for _ in range(most):
            ids.append(int(self.model.head(hidden).argmax()))
            if ids[-1] in stops:
                break
            hidden = self.model.step(ids[-1], state)
        return ids

    def answer(self, question: str, most: int = 220) -> str:
        """The greedy answer to a question."""
        ids = self.tokenizer.encode(data.prompt(question)).ids
        new = self.generate(ids, most)[len(ids) :]
        return self.tokenizer.decode([t for t in new if t > data.END_TURN])

    def loss(self, kind: str, count: int = 60) -> tuple[float, float, float]:
        """Nats per token of held-out text; the same for names that the text already holds, and how many are right."""
        packer = data.Packer(self.tokenizer, 384)
        total = name = right = repeats = tokens = 0.0
        for text in data.held_out(kind, count):
            ids = torch.tensor([*self.tokenizer.encode(text).ids, data.END])
            logits = self.model.head(self.model.trunk(ids[None, :-1]))[0]
            each = F.cross_entropy(logits, ids[1:], reduction="none")
            repeat = torch.from_numpy(packer.marks(ids.numpy())[1])[1:]
            total, tokens = total + each.sum().item(), tokens + len(each)
            name, repeats = name + each[repeat].sum().item(), repeats + int(repeat.sum())
            right += int((logits.argmax(-1) == ids[1:])[repeat].sum())
        return total / tokens, name / max(1, repeats), right / max(1, repeats)

    def chain(self, ids: list[int], start: int) -> tuple[torch.Tensor, int]:
        """Over the greedy tokens from `start` on: drafts accepted at each depth, earlier ones too, and positions."""
        x = torch.tensor([ids])
        length = x.shape[1] - DEPTH
        if length < start:
            return torch.zeros(DEPTH), 0
        hidden = self.model.trunk(x)
        said = self.model.head(hidden).argmax(-1)[0]
        g, cache, accepted = hidden[:, :length], [], torch.ones(length - start + 1, dtype=torch.bool)
        out = []
        for k in range(1, DEPTH + 1):
            g = self.model.draft(g, x[:, k : k + length], k, cache)
            accepted = accepted & (self.model.head(g).argmax(-1)[0] == said[k : k + length])[start - 1 :]
            out.append(accepted.sum())
        return torch.stack(out).float(), len(accepted)

    def acceptance(self) -> dict[str, list[float]]:
        """Kind of request to the share of positions whose draft 1, 1-2, 1-3 and 1-4 are accepted, greedy."""
        out = {}
        for kind, count in CHAIN_KINDS.items():
            hits, positions, r = torch.zeros(DEPTH), 0, random.Random(f"chain {SEED} {kind}")
            for _ in range(count):
                ids = self.tokenizer.encode(opening(kind, r)).ids
                h, n = self.chain(self.generate(ids, 160), len(ids))
                hits, positions = hits + h, positions + n
            out[kind] = (hits / positions).tolist()
        return out


def opening(kind: str, r: random.Random) -> str:
    """A prompt of a kind."""
    if kind == "story":
        return " ".join(demo_corpus.doc_story(r).split()[:6])
    if kind == "chat_story":
        return data.prompt(demo_corpus.ask_story(r, 1)[0])
    if kind == "chat":
        return data.prompt((demo_corpus.talk if r.random() < 0.4 else demo_corpus.fact)(r)[0])
    turns = dict(list=demo_corpus.list_turn, sum=demo_corpus.sum_turn, code=demo_corpus.code_turn)
    return data.prompt(turns.get(kind, demo_corpus.recall_turn)(r)[0])


def hero_requests(count: int) -> list[tuple[str, dict]]:
    """Requests for a story that name its hero, and the story's fields."""
    r, out = random.Random(f"heroes {SEED}"), []
    while len(out) < count:
        question, _, fields = demo_corpus.ask_story(r, 1)
        if re.search(rf"\b{fields['H']}\b", question):
            out.append((question, fields))
    return out


def holds_hero(story: str, question: str, hero: str) -> bool:
    """The asked hero is named at least twice and is the first or second name, and at most two heroes act."""
    names = data.names_in(story)
    asked = set(data.names_in(question))
    return names.count(hero) >= 2 and hero in list(dict.fromkeys(names))[:2] and len(set(names) | asked) <= 2


def compiles(text: str) -> bool:
    """The answer has a Python block, and it parses."""
    found = re.search(r"```python\n(.*?)```", text, re.S)
    try:
        ast.parse(found[1] if found else "(")
    except SyntaxError:
        return False
    return True


def tasks(e: Evaluator, samples: list[str]) -> dict[str, tuple[int, int]]:
    """Task to right answers and questions; stories are put into `samples`."""
    r, out = random.Random(f"tasks {SEED}"), collections.Counter()
    total = collections.Counter()

    def count(task: str, right: bool) -> None:
        total[task] += 1
        out[task] += bool(right)

    for question, fields in hero_requests(20):
        story = e.answer(question)
        count("the asked hero throughout the story", holds_hero(story, question, fields["H"]))
        samples.append(f"{question}\n{story}")
        for key in ("obj", "food"):
            if re.search(rf"\b{fields[key]}\b", question):
                count("the asked thing in the story", fields[key] in story)
    for _ in range(60):
        term, value = demo_corpus.calculation(r)
        said = e.answer(f"What is {term}?", 20).rstrip(".")
        count("sums with " + term.split()[1], said == f"{term} = {value}")
    for _ in range(30):
        words, row = demo_corpus.numbers(r)
        count("counting, exact", e.answer(f"Count {words}.", 140) == ", ".join(row) + ".")
    for _ in range(20):
        kind = r.choice(list(demo_corpus.CATEGORIES))
        n = 3 + int(r.random() * 3)
        said = re.findall(r"[a-z][a-z ]*", e.answer(f"Name {demo_corpus.NUMBERS[n]} {kind}.", 60))
        count("lists of a kind", len(said) == n == len(set(said)) and set(said) <= set(demo_corpus.CATEGORIES[kind]))
    for _ in range(40):
        question, value = demo_corpus.recall_turn(r)
        count("repeating and looking up", e.answer(question, 80) == value)
    for _ in range(40):
        question, value = demo_corpus.fact(r)
        count("facts", e.answer(question, 40) == value)
    for _ in range(20):
        count("code compiles", compiles(e.answer(demo_corpus.code_turn(r)[0], 160)))
    return {task: (out[task], total[task]) for task in total}


def report(losses: dict, chains: dict, done: dict) -> str:
    """The figures as the model card has them."""
    lines = ["## Figures", "", "Held-out text; drafts and tasks greedy, from the weights as stored here.", ""]
    lines += ["| text | nats per token | a name the text already holds | right |", "| --- | --- | --- | --- |"]
    for kind, (nats, name, right) in losses.items():
        held = f"{name:.3f} | {100 * right:.0f} %" if kind in ("story", "chat_story") else "|"
        lines.append(f"| {kind} | {nats:.3f} | {held} |")
    lines += ["", "Drafts accepted at position 1 to 4, each only if all before it were (four drafts, no sampling):"]
    lines += ["", "| request | 1 | 2 | 3 | 4 |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| {kind} | {' | '.join(f'{x:.2f}' for x in row)} |" for kind, row in chains.items()]
    lines += ["", "| task | right |", "| --- | --- |"]
    lines += [f"| {task} | {right} of {total} |" for task, (right, total) in done.items()]
    return "\n".join(lines) + "\n"
