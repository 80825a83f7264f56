"""Layers of the demo model, with the names, shapes and arithmetic of `qwen3_5_moe`.

Letters in shapes: B rows, T tokens, D hidden size, H heads, K and V head sizes, C chunk, E experts.
Linear layers follow autocast; norms, softmax and the recurrent state stay in float32.
"""

import dataclasses
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn

BLOCK = 64  # tokens per expert are rounded up to a multiple of this
RESET = -30.0  # log decay that empties the recurrent state at the first token of a document


@dataclasses.dataclass
class ModelConfig:
    """Sizes of the demo model."""

    vocab_size: int = 2048
    hidden_size: int = 192
    num_layers: int = 6
    full_attention_interval: int = 2
    num_heads: int = 4
    num_kv_heads: int = 2
    head_dim: int = 64
    rotary_dim: int = 16
    rope_theta: float = 10000.0
    linear_key_heads: int = 4
    linear_value_heads: int = 8
    linear_key_dim: int = 32
    linear_value_dim: int = 32
    conv_kernel: int = 4
    chunk: int = 32
    num_experts: int = 8
    experts_per_token: int = 2
    expert_size: int = 128
    shared_size: int = 128
    eps: float = 1e-6

    def layer_types(self) -> list[str]:
        """The mixer of each layer, in the words of the released configs."""
        step = self.full_attention_interval
        return ["full_attention" if i % step == step - 1 else "linear_attention" for i in range(self.num_layers)]


@functools.cache
def causal_bias(size: int) -> torch.Tensor:
    """[size, size] additive mask: 0 on and under the diagonal, a large negative number above."""
    return torch.full((size, size), -1e30).triu(1)


@functools.cache
def strictly_lower(size: int) -> torch.Tensor:
    """[size, size] ones under the diagonal."""
    return torch.ones(size, size).tril(-1)


def linear(inputs: int, outputs: int) -> nn.Linear:
    """A linear layer without bias."""
    return nn.Linear(inputs, outputs, bias=False)


class RMSNorm(nn.Module):
    """x / rms(x) * (1 + weight)."""

    def __init__(self, size: int, eps: float):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Normalise the last axis in float32; the result is float32."""
        return F.rms_norm(x.float(), (x.shape[-1],), 1 + self.weight, self.eps)


class UnitLowerInverse(torch.autograd.Function):
    """Inverse of (I - A) for strictly lower triangular A [..., C, C], by doubling."""

    @staticmethod
    def forward(ctx, a: torch.Tensor) -> torch.Tensor:
        """I + A + A^2 + ... in log2(C) products."""
        size = a.shape[-1]
        power, n = a, 2
        x = a + torch.eye(size)
        while n < size:
            power = power @ power
            x = x + x @ power
            n *= 2
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx, grad: torch.Tensor) -> torch.Tensor:
        """d(X) = X dA X."""
        (x,) = ctx.saved_tensors
        return x.mT @ grad @ x.mT


def delta_rule_chunked(q, k, v, g, beta, chunk: int) -> torch.Tensor:
    """Gated delta rule over whole chunks.

    q, k [B, H, T, K], v [B, H, T, V], g (log decay) and beta [B, H, T], T a multiple of `chunk`; returns [B, H, T, V].
    """
    rows, heads, length, size_k = q.shape
    size_v, n = v.shape[-1], length // chunk
    q, k, v = (t.reshape(rows * heads, n, chunk, t.shape[-1]) for t in (q, k, v))
    total = g.reshape(rows * heads, n, chunk).cumsum(-1)
    beta = beta.reshape(rows * heads, n, chunk, 1)
    decay = (total.unsqueeze(-1) - total.unsqueeze(-2) + causal_bias(chunk)).exp()
    grown = total.exp().unsqueeze(-1)
    k_beta = k * beta
    scores = torch.cat((q, k_beta), 2) @ k.mT
    inside = scores[:, :, :chunk] * decay
    inverse = UnitLowerInverse.apply(scores[:, :, chunk:] * decay * -strictly_lower(chunk))
    u, w = (inverse @ torch.cat((v * beta, k_beta * grown), -1)).split((size_v, size_k), -1)
    against_state = torch.cat((q * grown, w), 2)
    k_left = (k * (total[..., -1:] - total).exp().unsqueeze(-1)).mT
    keep = total[..., -1].exp()[..., None, None]
    state = q.new_zeros(rows * heads, size_k, size_v)
    out = []
    parts = (inside, u, against_state, k_left, keep)
    for inside_i, u_i, against_i, k_i, keep_i in zip(*(t.unbind(1) for t in parts), strict=True):
        seen = against_i @ state
        new = u_i - seen[:, chunk:]
        out.append(torch.baddbmm(seen[:, :chunk], inside_i, new))
        state = torch.baddbmm(state * keep_i, k_i, new)
    return torch.stack(out, 1).reshape(rows, heads, length, size_v)


class GatedDeltaNet(nn.Module):
    """Linear attention: causal convolution, gated delta rule, gated norm."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.c = c
        self.key_size = c.linear_key_heads * c.linear_key_dim
        self.value_size = c.linear_value_heads * c.linear_value_dim
        channels = 2 * self.key_size + self.value_size
        self.in_proj_qkv = linear(c.hidden_size, channels)
        self.in_proj_z = linear(c.hidden_size, self.value_size)
        self.in_proj_b = linear(c.hidden_size, c.linear_value_heads)
        self.in_proj_a = linear(c.hidden_size, c.linear_value_heads)
        self.out_proj = linear(self.value_size, c.hidden_size)
        self.conv1d = nn.Conv1d(channels, channels, c.conv_kernel, groups=channels, bias=False)
        self.A_log = nn.Parameter(torch.empty(c.linear_value_heads).uniform_(0.5, 16).log())
        dt = torch.exp(torch.empty(c.linear_value_heads).uniform_(math.log(0.001), math.log(0.1)))
        self.dt_bias = nn.Parameter(dt + torch.log(-torch.expm1(-dt)))  # inverse of softplus
        self.norm = nn.Module()
        self.norm.weight = nn.Parameter(torch.ones(c.linear_value_dim))

    def heads(self, x: torch.Tensor, mixed: torch.Tensor):
        """x [B, T, D] and the convolved channels [B, T, *] to q, k, v [B, T, H, *], g and beta [B, T, H]."""
        c = self.c
        rows, length, _ = x.shape
        q, k, v = mixed.split((self.key_size, self.key_size, self.value_size), -1)
        q = q.reshape(rows, length, c.linear_key_heads, c.linear_key_dim)
        k = k.reshape(rows, length, c.linear_key_heads, c.linear_key_dim)
        v = v.reshape(rows, length, c.linear_value_heads, c.linear_value_dim)
        q = q * (torch.rsqrt((q * q).sum(-1, True) + 1e-6) * c.linear_key_dim**-0.5)
        k = k * torch.rsqrt((k * k).sum(-1, True) + 1e-6)
        repeat = c.linear_value_heads // c.linear_key_heads
        q, k = q.repeat_interleave(repeat, 2), k.repeat_interleave(repeat, 2)
        g = -self.A_log.exp() * F.softplus(self.in_proj_a(x).float() + self.dt_bias)
        return q, k, v, g, self.in_proj_b(x).float().sigmoid()

    def finish(self, out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Norm, gate and output projection; out [B, T, H, V], x [B, T, D]."""
        rows, length, _ = x.shape
        z = self.in_proj_z(x).float().view(rows, length, self.c.linear_value_heads, -1)
        out = F.rms_norm(out, (self.c.linear_value_dim,), self.norm.weight, self.c.eps) * F.silu(z)
        return self.out_proj(out.reshape(rows, length, -1))

    def prepare(self, x: torch.Tensor, first: torch.Tensor | None):
        """x [B, T, D] to the inputs of the chunked rule, heads before time; `first` [B, T] marks document starts."""
        length, taps = x.shape[1], self.c.conv_kernel
        mixed = self.in_proj_qkv(x).float()
        padded = F.pad(mixed, (0, 0, taps - 1, 0))
        weight = self.conv1d.weight[:, 0]
        mixed = F.silu(sum(padded[:, i : i + length] * weight[:, i] for i in range(taps)))
        q, k, v, g, beta = self.heads(x, mixed)
        if first is not None:
            g = torch.where(first.unsqueeze(-1), RESET, g)
        short = -length % self.c.chunk
        q, k, v = (F.pad(t.transpose(1, 2), (0, 0, 0, short)) for t in (q, k, v))
        g, beta = (F.pad(t.transpose(1, 2), (0, short)) for t in (g, beta))
        return q, k, v, g, beta

    def forward(self, x: torch.Tensor, first: torch.Tensor | None = None) -> torch.Tensor:
        """x [B, T, D] to [B, T, D] for whole rows that start with an empty state."""
        q, k, v, g, beta = self.prepare(x, first)
        with torch.autocast("cpu", enabled=False):
            out = delta_rule_chunked(q, k, v, g, beta, self.c.chunk)
        return self.finish(out[:, :, : x.shape[1]].transpose(1, 2), x)

    def step(self, x: torch.Tensor, state: dict) -> torch.Tensor:
        """One token, x [1, 1, D]; `state` keeps the convolution's last inputs and the recurrent matrix."""
        c = self.c
        now = self.in_proj_qkv(x)
        if not state:
            state["conv"] = now.new_zeros(1, c.conv_kernel - 1, now.shape[-1])
            state["S"] = now.new_zeros(1, c.linear_value_heads, c.linear_key_dim, c.linear_value_dim)
        window = torch.cat((state["conv"], now), 1)
        state["conv"] = window[:, 1:]
        mixed = F.silu((window * self.conv1d.weight[:, 0].T).sum(1, True))
        q, k, v, g, beta = (t[:, 0] for t in self.heads(x, mixed))
        s = state["S"] * g.exp()[..., None, None]
        delta = beta[..., None] * (v - torch.einsum("bhk,bhkv->bhv", k, s))
        state["S"] = s = s + k[..., None] * delta[..., None, :]
        return self.finish(torch.einsum("bhk,bhkv->bhv", q, s)[:, None], x)


class Attention(nn.Module):
    """Grouped attention with normed queries and keys, partial RoPE and an output gate."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.c = c
        self.q_proj = linear(c.hidden_size, 2 * c.num_heads * c.head_dim)
        self.k_proj = linear(c.hidden_size, c.num_kv_heads * c.head_dim)
        self.v_proj = linear(c.hidden_size, c.num_kv_heads * c.head_dim)
        self.o_proj = linear(c.num_heads * c.head_dim, c.hidden_size)
        self.q_norm = RMSNorm(c.head_dim, c.eps)
        self.k_norm = RMSNorm(c.head_dim, c.eps)

    def rotate(self, x: torch.Tensor, start: int) -> torch.Tensor:
        """RoPE on the first `rotary_dim` channels of x [B, H, T, K], positions from `start`."""
        size = self.c.rotary_dim
        frequencies = self.c.rope_theta ** (-torch.arange(0, size, 2).float() / size)
        angle = torch.outer(torch.arange(start, start + x.shape[2]).float(), frequencies)
        cos, sin = angle.cos(), angle.sin()
        a, b, rest = x.split((size // 2, size // 2, x.shape[-1] - size), -1)
        return torch.cat((a * cos - b * sin, b * cos + a * sin, rest), -1)

    def project(self, x: torch.Tensor, start: int = 0):
        """x [B, T, D] to q, k, v [B, H, T, K] (keys and values repeated for their group) and the gate [B, T, H*K]."""
        c = self.c
        rows, length, _ = x.shape
        q, gate = self.q_proj(x).view(rows, length, c.num_heads, 2 * c.head_dim).chunk(2, -1)
        k = self.k_proj(x).view(rows, length, c.num_kv_heads, c.head_dim)
        v = self.v_proj(x).view(rows, length, c.num_kv_heads, c.head_dim).transpose(1, 2)
        q = self.rotate(self.q_norm(q).transpose(1, 2), start).to(v.dtype)
        k = self.rotate(self.k_norm(k).transpose(1, 2), start).to(v.dtype)
        repeat = c.num_heads // c.num_kv_heads
        k, v = k.repeat_interleave(repeat, 1), v.repeat_interleave(repeat, 1)
        return q, k, v, gate.reshape(rows, length, -1).float().sigmoid()

    def finish(self, out: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
        """Gate and output projection; out [B, H, T, K]."""
        return self.o_proj(out.transpose(1, 2).reshape(gate.shape) * gate)

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        """x [B, T, D] to [B, T, D]; `mask` [B, 1, T, T] additive, causal without one."""
        q, k, v, gate = self.project(x)
        if mask is not None:
            mask = mask.to(q.dtype)
        return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None), gate)

    def step(self, x: torch.Tensor, state: dict) -> torch.Tensor:
        """One token, x [1, 1, D]; `state` keeps keys and values."""
        q, k, v, gate = self.project(x, state["k"].shape[2] if state else 0)
        if state:
            k, v = torch.cat((state["k"], k), 2), torch.cat((state["v"], v), 2)
        state["k"], state["v"] = k, v
        return self.finish(F.scaled_dot_product_attention(q, k, v), gate)

    def draft(self, x: torch.Tensor, depth: int, mask: torch.Tensor, cache: list) -> torch.Tensor:
        """Pass number `depth` of the draft chain over every base position at once, as at inference.

        A base position sees the keys that pass 1 wrote up to it, then the chain's own deeper keys; `cache` holds the
        keys and values of the passes so far.
        """
        q, k, v, gate = self.project(x, depth - 1)
        cache.append((k, v))
        if depth == 1:
            return self.finish(F.scaled_dot_product_attention(q, k, v, attn_mask=mask.to(q.dtype)), gate)
        scale = self.c.head_dim**-0.5
        first_k, first_v = cache[0]
        near = (q @ first_k.mT).float() * scale + mask
        own = torch.stack([(q * deep).float().sum(-1) * scale for deep, _ in cache[1:]], -1)
        p = torch.cat((near, own), -1).softmax(-1)
        length = x.shape[1]
        out = (p[..., :length].to(v.dtype) @ first_v).float()
        for j, (_, deep) in enumerate(cache[1:]):
            out = out + p[..., length + j, None] * deep
        return self.finish(out, gate)


def swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    """silu(gate) * up for the two halves of the last axis."""
    gate, up = gate_up.chunk(2, -1)
    return F.silu(gate) * up


class SharedExpert(nn.Module):
    """SwiGLU."""

    def __init__(self, size: int, inner: int):
        super().__init__()
        self.gate_proj, self.up_proj = linear(size, inner), linear(size, inner)
        self.down_proj = linear(inner, size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [N, D] to [N, D]."""
        return self.down_proj(swiglu(torch.cat((self.gate_proj(x), self.up_proj(x)), -1)))


class Experts(nn.Module):
    """Stacked weights of the routed experts."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        n, size, inner = c.num_experts, c.hidden_size, c.expert_size
        self.gate_up_proj = nn.Parameter(torch.randn(n, 2 * inner, size) * size**-0.5)
        self.down_proj = nn.Parameter(torch.randn(n, size, inner) * inner**-0.5)


class MixtureOfExperts(nn.Module):
    """Top-k routed experts plus a gated shared expert."""

    def __init__(self, c: ModelConfig):
        super().__init__()
        self.c = c
        self.gate = linear(c.hidden_size, c.num_experts)
        self.experts = Experts(c)
        self.shared_expert = SharedExpert(c.hidden_size, c.shared_size)
        self.shared_expert_gate = linear(c.hidden_size, 1)
        self.balance = torch.zeros(())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x [B, T, D] to [B, T, D]; leaves the load-balancing loss (1 when even) in `balance`."""
        c, shape = self.c, x.shape
        x = x.reshape(-1, shape[-1])
        with torch.autocast("cpu", enabled=False):
            probabilities = self.gate(x).softmax(-1)
        weights, chosen = probabilities.topk(c.experts_per_token, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        chosen = chosen.reshape(-1)
        order = chosen.argsort()
        counts = torch.bincount(chosen, minlength=c.num_experts)
        rows, expert = order // c.experts_per_token, chosen[order]
        # every expert gets a block of one round size: few distinct shapes, so the library compiles its kernels once
        block = min(BLOCK, len(x))
        size = -(-int(counts.max()) // block) * block
        place = expert * size + torch.arange(len(order)) - (counts.cumsum(0) - counts)[expert]
        low = x.to(torch.bfloat16) if torch.is_autocast_enabled("cpu") else x
        blocks = low.new_zeros(c.num_experts * size, shape[-1]).index_copy(0, place, low.index_select(0, rows))
        gate_up = torch.bmm(blocks.view(c.num_experts, size, -1), self.experts.gate_up_proj.mT)
        out = torch.bmm(swiglu(gate_up), self.experts.down_proj.mT).view(-1, shape[-1])
        routed = out.index_select(0, place).float() * weights.reshape(-1).index_select(0, order).unsqueeze(-1)
        self.balance = c.num_experts * (probabilities.mean(0) * (counts / chosen.numel())).sum()
        shared = self.shared_expert_gate(x).float().sigmoid() * self.shared_expert(low).float()
        return shared.index_add(0, rows, routed).view(shape)
