"""Rows, pools and weights for one block at a time, and each block in plain float64 loops."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
import torch
from torch import Tensor

from strata_kernels.layout import PAGE_TOKENS, Array, kv_pool, recurrent_pool, section_size, table_pages
from strata_kernels.params import (
    AttentionParams,
    AttentionWeights,
    ExpertsParams,
    ExpertsWeights,
    GatedDeltaParams,
    GatedDeltaWeights,
)
from strata_kernels.weight import ExpertBank, Stack, Weight
from strata_kernels.window import KVPool, RecurrentPool, Rows, Section, Segment, torch_dtype

TILE = 8


def randn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def dense(out: int, into: int, seed: int) -> Weight:
    return Weight("f32", {"weight": randn(out, into, seed=seed) / math.sqrt(into)}, (out, into))


def matrix(weight: Weight) -> Tensor:
    return weight.parts["weight"].double()


def near_one(n: int, seed: int) -> Tensor:
    return 1 + 0.2 * randn(n, seed=seed)


@dataclass
class Seats:
    """S slots with pages of their own, scattered over the pool; page 0 is nobody's."""

    slots: int
    ctx: int

    def __post_init__(self) -> None:
        width = table_pages(self.ctx)
        used = -(-self.ctx // PAGE_TOKENS)
        self.pages = self.slots * used + 3
        order = 1 + np.random.default_rng(7).permutation(self.pages - 1)
        self.tables = np.zeros((self.slots, width), np.int64)
        self.tables[:, :used] = order[: self.slots * used].reshape(self.slots, used)

    def section(self, rows: int) -> Section:
        staging = np.zeros(section_size(rows, self.slots), np.int64)
        tables = torch.from_numpy(self.tables), self.tables
        return Section(torch.from_numpy(staging), staging, 0, rows, tables, drafts_at=0, chain=0)

    def lay(self, segments: Sequence[Segment], padded: int = 0, replay: int = 0) -> Rows:
        padded = padded or -(-sum(s.rows for s in segments) // TILE) * TILE
        return self.section(padded).lay(segments, padded, replay)

    def place(self, slot: int, position: int) -> int:
        return int(self.tables[slot, position // PAGE_TOKENS]) * PAGE_TOKENS + position % PAGE_TOKENS


def segment(slot: int, position: int, rows: int, certain: bool = False, captures: Sequence[tuple[int, int]] = ()):
    return Segment(slot, position, [0] * rows, certain=certain, captures=captures)


def spread(values: Sequence[Tensor], rows: Rows) -> Tensor:
    """Rows of each segment -> the window's rows, padding last, with numbers in it that must not matter."""
    x = torch.cat(list(values))
    return torch.cat((x, 100 * randn(rows.padded - len(x), x.shape[1], seed=99)))


def _fill(arrays: dict[str, Array], seed: int) -> dict[str, Tensor]:
    made = {}
    for name, array in arrays.items():
        dtype = torch_dtype(array.dtype)
        made[name] = randn(*array.shape, seed=seed + len(made)).to(dtype) if dtype.is_floating_point else None
        if made[name] is None:
            made[name] = torch.zeros(array.shape, dtype=dtype)
    return made


def new_kv(params: AttentionParams, seats: Seats, layers: int = 2, dtype: str = "float32") -> KVPool:
    """Filled: what earlier windows left."""
    return KVPool(**_fill(kv_pool(params, layers, seats.pages, dtype), 20))


def new_recurrent(params: GatedDeltaParams, slots: int, rows: int = 5, layers: int = 2, places: int = 4):
    """Filled: what earlier windows left; nothing pending."""
    made = _fill(recurrent_pool(params, layers, slots, rows, places), 30)
    made["k"] = torch.nn.functional.normalize(made["k"], dim=-1)
    made["beta"], made["decay"] = made["beta"].sigmoid(), (made["decay"] + 2).sigmoid()
    return RecurrentPool(**made)


def copy_of(pool):
    """A pool with the same numbers, elsewhere."""
    return type(pool)(**{f.name: getattr(pool, f.name).clone() for f in fields(pool) if f.name != "cache"})


def attention_weights(p: AttentionParams) -> AttentionWeights:
    norms = (near_one(p.head_dim, 6), near_one(p.head_dim, 7)) if p.qk_norm else (None, None)
    return AttentionWeights(
        near_one(p.hidden, 1),
        dense(p.heads * p.head_dim * (1 + p.gated), p.hidden, 2),
        dense(p.kv_heads * p.head_dim, p.hidden, 3),
        dense(p.kv_heads * p.head_dim, p.hidden, 4),
        dense(p.hidden, p.heads * p.head_dim, 5),
        *norms,
    )


def gated_delta_weights(p: GatedDeltaParams) -> GatedDeltaWeights:
    values = p.value_heads * p.value_dim
    return GatedDeltaWeights(
        near_one(p.hidden, 1), dense(p.channels, p.hidden, 2), dense(values, p.hidden, 3),
        dense(p.value_heads, p.hidden, 4), dense(p.value_heads, p.hidden, 5), dense(p.hidden, values, 6),
        conv=randn(p.kernel, p.channels, seed=7) * 0.5, rate=-randn(p.value_heads, seed=8).exp(),
        dt_bias=randn(p.value_heads, seed=9) - 2, out_norm=near_one(p.value_dim, 10),
    )  # fmt: skip


def experts_weights(p: ExpertsParams, biased: bool = False, apart: bool = False) -> ExpertsWeights:
    """apart: gate and up of the experts as two stacks."""

    def stack(out: int, into: int, seed: int) -> Stack:
        return Stack(
            "f32", {"weight": randn(p.experts, out, into, seed=seed) / math.sqrt(into)}, (p.experts, out, into)
        )

    f, d, shared = p.inner, p.hidden, p.shared_inner
    gate_up = (stack(f, d, 2), stack(f, d, 3)) if apart else (stack(2 * f, d, 2),)
    return ExpertsWeights(
        near_one(d, 1),
        router=dense(p.experts, d, 4) if p.experts else None,
        router_bias=randn(p.experts, seed=5) * 0.3 if biased else None,
        bank=ExpertBank(gate_up, stack(d, f, 6)) if p.experts else None,
        gate=dense(shared, d, 7) if shared else None,
        up=dense(shared, d, 8) if shared else None,
        down=dense(d, shared, 9) if shared else None,
        shared_gate=dense(1, d, 10) if p.shared_gated else None,
    )


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def silu(x: Tensor) -> Tensor:
    return x / (1 + (-x).exp())


def turn(head: Tensor, position: int, p: AttentionParams) -> Tensor:
    """RoPE of one head [head_dim], float64, as multiplication of complex numbers."""
    half = p.rotary_dim // 2
    angles = torch.tensor(
        [position * p.rope_theta ** (-2 * i / p.rotary_dim) for i in range(half)], dtype=torch.float64
    )
    z = torch.complex(head[:half], head[half : 2 * half]) * torch.polar(torch.ones_like(angles), angles)
    return torch.cat((z.real, z.imag, head[2 * half :]))


def plain_keys(x: Tensor, position: int, w: AttentionWeights, p: AttentionParams) -> tuple[Tensor, Tensor]:
    """Key and value [G, head_dim] of one row."""
    h = norm(x, w.norm, p.eps)
    k, v = (matrix(m) @ h for m in (w.k, w.v))
    k = k.view(p.kv_heads, -1)
    if w.k_norm is not None:
        k = norm(k, w.k_norm, p.eps)
    return torch.stack([turn(head, position, p) for head in k]), v.view(p.kv_heads, -1)


def plain_attention(
    x: Tensor, position: int, keys: Tensor, values: Tensor, w: AttentionWeights, p: AttentionParams
) -> Tensor:
    """One row at `position` over keys, values [position + 1, G, head_dim]."""
    h = norm(x, w.norm, p.eps)
    q = (matrix(w.q) @ h).view(p.heads, -1)
    gate = q[:, p.head_dim :]
    q = q[:, : p.head_dim]
    if w.q_norm is not None:
        q = norm(q, w.q_norm, p.eps)
    out = []
    for head in range(p.heads):
        group = head // (p.heads // p.kv_heads)
        query = turn(q[head], position, p)
        scores = keys[p.first_key :, group].double() @ query / math.sqrt(p.head_dim)
        shares = (scores - scores.max()).exp()
        read = (shares / shares.sum()) @ values[p.first_key :, group].double()
        out.append(read / (1 + (-gate[head]).exp()) if p.gated else read)
    return x.double() + matrix(w.out) @ torch.cat(out)


@dataclass
class PlainDelta:
    """State of one slot in float64: S [H, K, V], columns [kernel - 1, C]."""

    state: Tensor
    columns: Tensor

    def move(self, k: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> None:
        """One step; k [G, K], v [H, V], beta, decay [H]."""
        heads = len(v)
        for head in range(heads):
            key = k[head // (heads // len(k))].double()
            s = self.state[head] * decay[head].double()
            self.state[head] = s + torch.outer(key, beta[head].double() * (v[head].double() - key @ s))

    def shift(self, column: Tensor) -> None:
        self.columns = torch.cat((self.columns, column.double()[None]))[1:]

    def row(self, x: Tensor, w: GatedDeltaWeights, p: GatedDeltaParams) -> tuple[Tensor, dict[str, Tensor]]:
        """One row through the block, and the inputs that it leaves."""
        h = norm(x, w.norm, p.eps)
        column, z, b, a = (matrix(m) @ h for m in (w.qkv, w.z, w.b, w.a))
        mixed = silu((torch.cat((self.columns, column[None])) * w.conv.double()).sum(0))
        keys = p.key_heads * p.key_dim
        q, k, v = mixed[:keys].view(-1, p.key_dim), mixed[keys : 2 * keys].view(-1, p.key_dim), mixed[2 * keys :]
        q, k = (y / (y.pow(2).sum(-1, keepdim=True) + 1e-6).sqrt() for y in (q, k))
        v, beta = v.view(-1, p.value_dim), 1 / (1 + (-b).exp())
        decay = (w.rate.double() * (1 + (a + w.dt_bias.double()).exp()).log()).exp()
        self.move(k, v, beta, decay)
        self.shift(column)
        ratio = p.value_heads // p.key_heads
        read = torch.stack([q[i // ratio] @ s for i, s in enumerate(self.state)]) / math.sqrt(p.key_dim)
        y = norm(read, w.out_norm, p.eps).view(-1) * silu(z)
        held = {"k": k, "v": v, "beta": beta, "decay": decay, "conv_rows": column}
        return x.double() + matrix(w.out) @ y, held


def plain_mlp(h: Tensor, gate: Tensor, up: Tensor, down: Tensor) -> Tensor:
    return down.double() @ (silu(gate.double() @ h) * (up.double() @ h))


def plain_choice(h: Tensor, w: ExpertsWeights, p: ExpertsParams) -> list[tuple[int, float]]:
    """Experts of one normed row by rank, and their shares."""
    assert w.router is not None
    logits = (matrix(w.router) @ h).tolist()
    if p.router == "softmax":
        total = sum(math.exp(y) for y in logits)
        scores = [math.exp(y) / total for y in logits]
    else:
        scores = [1 / (1 + math.exp(-y)) for y in logits]
    bias = [0.0] * p.experts if w.router_bias is None else w.router_bias.tolist()
    best = sorted(range(p.experts), key=lambda e: -(scores[e] + bias[e]))[: p.top_k]
    whole = sum(scores[e] for e in best) if p.normalize else 1.0
    return [(e, p.scale * scores[e] / whole) for e in best]


def plain_experts(x: Tensor, w: ExpertsWeights, p: ExpertsParams) -> tuple[Tensor, set[int]]:
    """One row, and the experts that it chose."""
    h, out, chosen = norm(x, w.norm, p.eps), x.double(), []
    if p.experts:
        assert w.bank is not None
        chosen = plain_choice(h, w, p)
        for expert, share in chosen:
            gate, up = torch.cat([stack.parts["weight"][expert] for stack in w.bank.gate_up]).chunk(2)
            out = out + share * plain_mlp(h, gate, up, w.bank.down.parts["weight"][expert])
    if w.gate is not None and w.up is not None and w.down is not None:
        share = 1 / (1 + (-(matrix(w.shared_gate) @ h)).exp()) if w.shared_gate is not None else 1.0
        out = out + share * plain_mlp(h, matrix(w.gate), matrix(w.up), matrix(w.down))
    return out, {expert for expert, _ in chosen}
