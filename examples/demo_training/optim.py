"""Muon for the matrices, AdamW for the rest."""

import torch
from torch import nn

# small or row-wise tensors, where an orthogonal update has no meaning
ADAM_NAMES = ("embed_tokens", "mlp.gate.", "shared_expert_gate", "in_proj_a", "in_proj_b", "conv1d")


class Muon:
    """Orthogonalised momentum; matrices of one shape are done together."""

    def __init__(self, named: list[tuple[str, nn.Parameter]], momentum: float = 0.95, decay: float = 0.1):
        self.groups: dict[tuple[int, int], list[nn.Parameter]] = {}
        for _, p in named:
            self.groups.setdefault(tuple(p.shape[-2:]), []).append(p)
        self.momentum, self.decay = momentum, decay
        self.buffers = {
            shape: torch.zeros(sum(p.numel() // (shape[0] * shape[1]) for p in ps), *shape)
            for shape, ps in self.groups.items()
        }

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """One update with this learning rate."""
        for shape, parameters in self.groups.items():
            grad = torch.cat([p.grad.reshape(-1, *shape) for p in parameters])
            buffer = self.buffers[shape]
            buffer.lerp_(grad, 1 - self.momentum)
            x = grad.lerp(buffer, self.momentum)
            tall = shape[0] > shape[1]
            x = x.mT if tall else x
            x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).to(torch.bfloat16)
            for _ in range(5):
                b = x @ x.mT
                b = torch.baddbmm(b, b, b, beta=-4.7750, alpha=2.0315)
                x = torch.baddbmm(x, b, x, beta=3.4445)
            x = (x.mT if tall else x).float()
            scale, start = rate * max(1, shape[0] / shape[1]) ** 0.5, 0
            for p in parameters:
                n = p.numel() // (shape[0] * shape[1])
                p.mul_(1 - rate * self.decay).add_(x[start : start + n].reshape(p.shape), alpha=-scale)
                start += n


class Optimizer:
    """Both optimizers over parameters in shared memory; two workers share the updates.

    Worker 0 has AdamW's parameters and every other group of Muon's, worker 1 the remaining groups.  Gradients come as
    one flat tensor per worker, in shared memory too.
    """

    def __init__(self, model: nn.Module, workers: int, muon_rate: float, adam_rate: float, embedding_rate: float):
        named = list(model.named_parameters())
        matrices = [(n, p) for n, p in named if p.ndim >= 2 and not any(t in n for t in ADAM_NAMES)]
        taken = {n for n, _ in matrices}
        self.rest = [(n, p) for n, p in named if n not in taken]
        self.rates = (muon_rate, adam_rate, embedding_rate)
        shapes = sorted({tuple(p.shape[-2:]) for _, p in matrices})
        load, owner = [0.0] * workers, {}
        for shape in sorted(shapes, key=lambda s: -sum(p.numel() for _, p in matrices if tuple(p.shape[-2:]) == s)):
            owner[shape] = load.index(min(load))
            load[owner[shape]] += sum(p.numel() for _, p in matrices if tuple(p.shape[-2:]) == shape) * min(shape)
        self.muon = [Muon([x for x in matrices if owner[tuple(x[1].shape[-2:])] == w]) for w in range(workers)]
        self.adam = torch.optim.AdamW(
            [
                dict(params=[p for n, p in self.rest if "embed_tokens" not in n], lr=adam_rate),
                dict(params=[p for n, p in self.rest if "embed_tokens" in n], lr=embedding_rate),
            ],
            betas=(0.9, 0.95),
            weight_decay=0.0,
            foreach=True,
        )
        self.parameters = [p for _, p in named]
        sizes = [p.numel() for p in self.parameters]
        self.flat = torch.zeros(workers, sum(sizes)).share_memory_()
        for m in self.muon:
            for buffer in m.buffers.values():
                buffer.share_memory_()

    def views(self, worker: int) -> list[torch.Tensor]:
        """A worker's gradients, shaped like the parameters."""
        parts = self.flat[worker].split([p.numel() for p in self.parameters])
        return [part.view_as(p) for part, p in zip(parts, self.parameters, strict=True)]

    def own(self, worker: int) -> list[nn.Parameter]:
        """The parameters that this worker updates."""
        out = [p for group in self.muon[worker].groups.values() for p in group]
        return out + ([p for _, p in self.rest] if worker == 0 else [])

    def gather(self, worker: int) -> None:
        """The mean gradient of all workers as `grad` of this worker's parameters."""
        own, index = self.own(worker), {id(p): i for i, p in enumerate(self.parameters)}
        views = [self.views(w) for w in range(len(self.flat))]
        for p in own:
            p.grad = sum(v[index[id(p)]] for v in views) / len(views)

    def step(self, worker: int, scale: float) -> None:
        """This worker's updates; `scale` is the schedule's factor on every learning rate."""
        self.gather(worker)
        if worker == 0:
            torch.nn.utils.clip_grad_norm_([p for _, p in self.rest], 1.0)
            for group, rate in zip(self.adam.param_groups, self.rates[1:], strict=True):
                group["lr"] = rate * scale
            self.adam.step()
        self.muon[worker].step(self.rates[0] * scale)

    def state(self) -> dict[str, torch.Tensor]:
        """Everything that a resumed run needs (of worker 0)."""
        out = {f"muon.{a}x{b}": t for m in self.muon for (a, b), t in m.buffers.items()}
        for name, p in self.rest:
            for key, value in self.adam.state.get(p, {}).items():
                out[f"adam.{key}.{name}"] = value.reshape(1) if value.ndim == 0 else value
        return out

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """The opposite of `state`."""
        for m in self.muon:
            for (a, b), t in m.buffers.items():
                t.copy_(state[f"muon.{a}x{b}"])
        for name, p in self.rest:
            keys = {k: state[f"adam.{k}.{name}"].clone() for k in ("step", "exp_avg", "exp_avg_sq")}
            keys["step"] = keys["step"].reshape(())
            self.adam.state[p] = keys


def schedule(fraction: float, step: int, warmup: int = 100, hold: float = 0.45) -> float:
    """Factor on the learning rates: warm-up by steps, then flat, then falling to 0 at the end of the time."""
    return min(1.0, (step + 1) / warmup) * min(1.0, max(0.0, (1 - fraction) / (1 - hold)))
