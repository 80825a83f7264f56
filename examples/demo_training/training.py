"""The training loop: losses, checkpoints, the progress line."""

import argparse
import dataclasses
import json
import math
import multiprocessing
import os
import time
from datetime import datetime, timedelta
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors import safe_open
from safetensors.torch import save_file
from tokenizers import Tokenizer

from . import data, layers
from .model import DemoModel, ModelConfig
from .optim import Optimizer, schedule

DEPTH = 4  # passes of the draft chain that are trained


def soft_loss(logits: torch.Tensor, main: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Half the data's next token, half what the main model says there; [N, V], [N, V], [N], [N] to a scalar."""
    log_p = logits.float().log_softmax(-1)
    hard = -log_p.gather(-1, target.unsqueeze(-1)).squeeze(-1)
    soft = -(main.float().softmax(-1) * log_p).sum(-1)
    return (0.5 * (hard + soft) * weight).sum() / weight.sum().clamp_min(1)


def main_loss(logits: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weighted cross entropy (a scalar) and the loss of every token [N]."""
    each = F.cross_entropy(logits.float(), target, reduction="none")
    return (each * weight).sum() / weight.sum(), each.detach()


def losses(model: DemoModel, rows: data.Rows, draft_rows: int) -> tuple[torch.Tensor, list[torch.Tensor], dict]:
    """Main loss, one loss per draft depth, and the figures to show."""
    first, mask = rows.first(), rows.mask()
    inputs, target = rows.ids[:, :-1], rows.ids[:, 1:]
    hidden = model.trunk(inputs, first, mask)
    logits = model.head(hidden)
    weight = rows.weight[:, 1:]
    loss, each = main_loss(logits.flatten(0, 1), target.flatten(), weight.flatten())
    repeat = rows.repeat[:, 1:].flatten()
    plain = (weight > 0).flatten()
    n, length = draft_rows, inputs.shape[1] - DEPTH
    g, cache, drafts = hidden[:n, :length], [], []
    said, document = logits[:n].detach(), rows.document[:n]
    mask = mask[:n, :, :length, :length]
    for k in range(1, DEPTH + 1):
        g = model.draft(g, inputs[:n, k : k + length], k, cache, mask)
        same = (document[:, :length] == document[:, k + 1 : k + 1 + length]).float()
        here = slice(k, k + length)
        drafts.append(
            soft_loss(
                model.head(g).flatten(0, 1),
                said[:, here].flatten(0, 1),
                target[:n, here].flatten(),
                (weight[:n, here] * same).flatten(),
            )
        )
    balance = model.balance()
    shown = dict(main=each[plain].mean(), name=each[repeat].mean(), balance=balance.detach())
    return loss + 0.01 * balance, drafts, shown


def save(path: Path, model: DemoModel, optimizer: Optimizer, progress: dict) -> None:
    """A checkpoint: weights, optimizer state, progress; written beside and renamed, so never half a file."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"optimizer.{k}": v for k, v in optimizer.state().items()}
    tensors = {k: v.detach().contiguous().clone() for k, v in tensors.items()}
    meta = dict(config=json.dumps(dataclasses.asdict(model.c)), progress=json.dumps(progress))
    beside = path.with_suffix(".part")
    save_file(tensors, beside, metadata=meta)
    os.replace(beside, path)


def load(path: Path) -> tuple[DemoModel, dict[str, torch.Tensor], dict]:
    """Model, optimizer state and progress of a checkpoint."""
    with safe_open(path, "pt") as f:
        meta = f.metadata()
        tensors = {k: f.get_tensor(k) for k in f.keys()}  # noqa: SIM118 (a reader, no dict)
    model = DemoModel(ModelConfig(**json.loads(meta["config"])))
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    state = {k.removeprefix("optimizer."): v for k, v in tensors.items() if k.startswith("optimizer.")}
    return model, state, json.loads(meta["progress"])


@torch.no_grad()
def validate(model: DemoModel, packer: data.Packer, kinds=("story", "chat_story"), count: int = 40) -> dict:
    """Nats per token of held-out text, and of the names that the text already holds (guessing gives 4.55)."""
    out, name, right, total = {}, 0.0, 0, 0
    for kind in kinds:
        rows = packer.rows(data.held_out(kind, count))
        logits = model.head(model.trunk(rows.ids[:, :-1], rows.first(), rows.mask())).float()
        target, repeat = rows.ids[:, 1:], rows.repeat[:, 1:]
        each = F.cross_entropy(logits.flatten(0, 1), target.flatten(), reduction="none").view(target.shape)
        out[kind] = each[rows.weight[:, 1:] > 0].mean().item()
        name += each[repeat].sum().item()
        right += (logits.argmax(-1) == target)[repeat].sum().item()
        total += int(repeat.sum())
    shown = total or math.nan  # text without names
    out["name"], out["name_right"] = name / shown, right / shown
    return out


def deadline(args: argparse.Namespace, spent: float) -> float:
    """Seconds of training in all, from `--until` or `--minutes`."""
    if not args.until:
        return args.minutes * 60
    now = datetime.now()
    hour, minute = (int(p) for p in args.until.split(":"))
    end = now.replace(hour=hour, minute=minute, second=0, microsecond=0)
    return spent + ((end if end > now else end + timedelta(days=1)) - now).total_seconds()


def compile_parts() -> None:
    """Compile what is element-wise or looped."""
    compiled = torch.compile
    layers.GatedDeltaNet.forward = compiled(layers.GatedDeltaNet.forward)
    layers.Attention.forward = compiled(layers.Attention.forward)
    layers.RMSNorm.forward = compiled(layers.RMSNorm.forward)
    layers.swiglu = compiled(layers.swiglu)
    globals()["soft_loss"] = compiled(soft_loss)
    globals()["main_loss"] = compiled(main_loss)


class Report:
    """Means since the last progress line."""

    def __init__(self, tokens: int):
        self.tokens, self.clock, self.figures = tokens, time.time(), []

    def add(self, shown: dict, drafts: list[torch.Tensor]) -> None:
        """The figures of one step."""
        self.figures.append([shown["main"], shown["name"], shown["balance"], *(d.detach() for d in drafts)])

    def line(self, progress: dict, rate: float) -> str:
        """The progress line; starts anew."""
        main, name, balance, *deep = torch.tensor(self.figures).nanmean(0).tolist()
        speed = (progress["tokens"] - self.tokens) / (time.time() - self.clock)
        self.tokens, self.clock, self.figures = progress["tokens"], time.time(), []
        return (
            f"{datetime.now():%H:%M:%S} step {progress['step']} {progress['tokens'] / 1e6:.2f} Mtok {speed:.0f} tok/s "
            f"rate {rate:.2f} main {main:.4f} name {name:.3f} "
            f"draft {' '.join(f'{d:.3f}' for d in deep)} balance {balance:.3f}"
        )


def work(worker: int, args: argparse.Namespace, run: dict) -> None:
    """One worker's share of every step; worker 0 keeps the time, reports and saves."""
    torch.set_num_threads(1)
    torch.manual_seed(args.seed + worker)
    model, optimizer, packer = run["model"], run["optimizer"], run["packer"]
    progress, whole, signal, barrier = dict(run["progress"]), run["whole"], run["signal"], run["barrier"]
    if args.compile:
        compile_parts()
    flat, views = optimizer.flat[worker], optimizer.views(worker)
    start = time.time() - progress["seconds"]
    rows, at, report, kept, validated = None, 0, Report(progress["tokens"]), time.time(), time.time()
    while True:
        if worker == 0:
            progress["seconds"] = time.time() - start
            signal[0] = 2.0 if progress["step"] == args.steps else progress["seconds"] / whole
        if rows is None or at + args.batch > len(rows.ids):
            column = 3 if signal[0] > args.tasks_from else 1
            column = 2 if progress["tokens"] < args.copy_tokens * 1e6 else column
            rows, at = data.block(packer, args.seed, progress["block"] * args.workers + worker, column), 0
            progress["block"] += 1
        batch = rows.take(slice(at, at + args.batch))
        at += args.batch
        flat.zero_()
        for p, view in zip(optimizer.parameters, views, strict=True):
            p.grad = view
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.bf16):
            loss, drafts, shown = losses(model, batch, max(1, args.batch // 4))
        (loss + args.draft_weight * sum(drafts) / DEPTH).backward()
        barrier.wait()
        fraction = float(signal[0])
        if fraction >= 1:
            break
        optimizer.step(worker, schedule(fraction, progress["step"]))
        progress["step"] += 1
        progress["tokens"] += args.workers * args.batch * args.length
        if worker == 0:
            report.add(shown, drafts)
            if progress["step"] % args.report == 0:
                print(report.line(progress, schedule(fraction, progress["step"])), flush=True)
        barrier.wait()
        if worker == 0 and time.time() - validated > args.validate_minutes * 60:
            validated = time.time()
            with torch.compiler.set_stance("force_eager"):  # other shapes than in training: not worth compiling
                figures = validate(model, packer)
            print("held out " + " ".join(f"{k} {v:.4f}" for k, v in figures.items()), flush=True)
        if worker == 0 and time.time() - kept > args.keep_minutes * 60:
            kept = time.time()
            save(run["last"], model, optimizer, progress)
    if worker == 0:
        save(run["last"], model, optimizer, progress)
        with torch.compiler.set_stance("force_eager"):
            print("done " + json.dumps(progress) + " " + json.dumps(validate(model, packer)), flush=True)


def train(args: argparse.Namespace) -> None:
    """Train from the start or from the last checkpoint in the folder."""
    torch.set_num_threads(1)  # a worker per core is faster than threads, and a fork must not follow a thread pool
    torch.manual_seed(args.seed)
    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "last.safetensors"
    if args.resume:
        model, state, progress = load(last)
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    else:
        sizes = {f.name: getattr(args, f.name) for f in dataclasses.fields(ModelConfig) if hasattr(args, f.name)}
        model, state, progress = DemoModel(ModelConfig(**sizes)), None, dict(step=0, tokens=0, seconds=0.0, block=0)
        tokenizer = data.train_tokenizer(model.c.vocab_size)
        tokenizer.save(str(folder / "tokenizer.json"))
    model.share_memory()
    optimizer = Optimizer(model, args.workers, args.muon_rate, args.adam_rate, args.embedding_rate)
    if state:
        optimizer.load(state)
    fork = multiprocessing.get_context("fork")
    whole = deadline(args, progress["seconds"])
    packer = data.Packer(tokenizer, args.length, args.name_weight)
    run = dict(model=model, optimizer=optimizer, packer=packer, progress=progress, last=last)
    run |= dict(whole=whole, signal=torch.zeros(1).share_memory_(), barrier=fork.Barrier(args.workers))
    count = sum(p.numel() for p in model.parameters())
    print(f"{count / 1e6:.2f} M parameters, {whole / 60:.0f} minutes, {vars(args)}", flush=True)
    helpers = [fork.Process(target=work, args=(w, args, run), daemon=True) for w in range(1, args.workers)]
    for h in helpers:
        h.start()
    work(0, args, run)
    for h in helpers:
        h.join()
