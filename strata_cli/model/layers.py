"""Layers of the hybrid family over ragged rows: gated attention, GatedDeltaNet, experts. Formulas: Qwen3.5 as
transformers has it.

Every layer takes the rows of a window, x [R, D] with R a multiple of the row tile, and returns [R, D].
"""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_cli.model.config import ModelConfig
from strata_cli.model.rows import Rows, TimePlan
from strata_kernels.attention import paged_attention, rope
from strata_kernels.gated_delta import gated_delta
from strata_kernels.linear import linear
from strata_kernels.moe_gemm import experts_grouped, route
from strata_kernels.norm import l2_norm, rms_norm

Weights = dict[str, Tensor]
LANES = 32  # narrow projections are this wide at least: vector lanes and scalar tails round differently
ALL_EXPERTS_WIDTH = 4096  # up to this E * F, computing every expert costs less than gathering rows


class KV(Protocol):
    """Paged keys and values, as the engine's cache provides them: pools [layers, N, page, G, D]."""

    k: Tensor
    v: Tensor

    def write(self, layer: int, places: Tensor, k: Tensor, v: Tensor) -> None: ...


class Recurrent(Protocol):
    """GatedDeltaNet state of all slots, as the engine's cache provides it."""

    state: Tensor
    conv: Tensor
    ratio: int
    steps: int

    def replay(self, layer: int, slots: list[int]) -> None: ...
    def hold(self, layer: int, plan: TimePlan, **inputs: Tensor) -> None: ...
    def capture(self, layer: int, slot: int, after: int, state: Tensor, conv: Tensor) -> None: ...


def fuse(*weights: Tensor) -> Tensor:
    """Checkpoint matrices [N_i, D] of the same input as one product's weight [D, sum N_i], padded to whole lanes."""
    joined = torch.cat(weights)
    return F.pad(joined, (0, 0, 0, -joined.shape[0] % LANES)).t().contiguous()


class Attention:
    """Gated attention with RoPE on the first dimensions of each head, keys and values in pages."""

    def __init__(self, w: Weights, config: ModelConfig):
        self.heads, self.groups, self.dim = config.num_attention_heads, config.num_key_value_heads, config.head_dim
        self.eps = config.rms_norm_eps
        self.w_in = fuse(w["q_proj.weight"], w["k_proj.weight"], w["v_proj.weight"])
        self.w_out = w["o_proj.weight"].t().contiguous()
        self.q_norm, self.k_norm = 1 + w["q_norm.weight"].float(), 1 + w["k_norm.weight"].float()

    def __call__(
        self, x: Tensor, rows: Rows, angles: tuple[Tensor, Tensor], kv: KV, layer: int, first_key: int = 0
    ) -> Tensor:
        h, g, d = self.heads, self.groups, self.dim
        proj = linear(x, self.w_in)
        qg = proj[:, : 2 * h * d].view(-1, h, 2 * d)  # per head: query, gate
        k = proj[:, 2 * h * d : (2 * h + g) * d].view(-1, g, d)
        v = proj[:, (2 * h + g) * d : (2 * h + 2 * g) * d].view(-1, g, d)
        q = rope(rms_norm(qg[..., :d], self.q_norm, self.eps), *angles)
        k = rope(rms_norm(k, self.k_norm, self.eps), *angles)
        kv.write(layer, rows.write_at, k[: rows.count], v[: rows.count])
        out = paged_attention(
            q[rows.tile_rows], kv.k[layer], kv.v[layer], rows.tables, rows.limits, rows.splits, first_key
        )
        out = out.reshape(-1, h, d)[rows.tile_of] * torch.sigmoid(qg[..., d:])
        return linear(out.reshape(-1, h * d).to(x.dtype), self.w_out)


class GatedDeltaNet:
    """The gated delta rule behind a short causal convolution; sequential for one row and for many."""

    def __init__(self, w: Weights, config: ModelConfig):
        self.keys, self.heads = config.linear_num_key_heads, config.linear_num_value_heads
        self.k_dim, self.v_dim = config.linear_key_head_dim, config.linear_value_head_dim
        self.kernel, self.eps = config.linear_conv_kernel_dim, config.rms_norm_eps
        self.w_in = fuse(w["in_proj_qkv.weight"], w["in_proj_z.weight"])
        self.w_gates = fuse(w["in_proj_b.weight"], w["in_proj_a.weight"])
        self.w_out = w["out_proj.weight"].t().contiguous()
        self.conv = w["conv1d.weight"].float().squeeze(1).t().contiguous()  # [kernel, C]
        lanes, h = self.w_gates.shape[1], self.heads
        self.dt_bias = F.pad(w["dt_bias"].float(), (h, lanes - 2 * h))
        self.rate = F.pad(-w["A_log"].float().exp(), (h, lanes - 2 * h))
        self.norm = w["norm.weight"].float()

    def __call__(self, x: Tensor, plan: TimePlan, cache: Recurrent, layer: int) -> Tensor:
        keys, heads = self.keys * self.k_dim, self.heads * self.v_dim
        channels = 2 * keys + heads
        proj, gates = linear(x, self.w_in), linear(x, self.w_gates).float()
        columns, z = proj[:, :channels].float(), proj[:, channels : channels + heads]
        beta = torch.sigmoid(gates)[:, : self.heads]
        decay = torch.exp(self.rate * F.softplus(gates + self.dt_bias))[:, self.heads : 2 * self.heads]

        cache.replay(layer, plan.slots)
        context = cache.conv[layer, plan.slot_ids]  # [n, kernel - 1, C]
        seen = torch.cat((context.flatten(0, 1), columns))
        mixed = F.silu((seen[plan.taps] * self.conv).sum(1))
        q = l2_norm(mixed[:, :keys].view(-1, self.keys, self.k_dim), self.k_dim**-0.5)
        k = l2_norm(mixed[:, keys : 2 * keys].view(-1, self.keys, self.k_dim))
        v = mixed[:, 2 * keys :].view(-1, self.heads, self.v_dim)
        cache.hold(layer, plan, k=k, v=v, beta=beta, decay=decay, conv=columns)

        at, ratio = plan.row_at, cache.ratio
        state = cache.state[layer, plan.slot_ids]  # a working copy: drafts may yet be rejected
        queries, keys_at = q[at].repeat_interleave(ratio, 2), k[at].repeat_interleave(ratio, 2)
        inputs = (keys_at, v[at], beta[at], decay[at])
        parts, done = [], 0
        for after, s in [*plan.captures, (len(plan.active), None)]:
            if after > done:
                k_, v_, beta_, decay_ = (t[done:after] for t in inputs)
                parts.append(gated_delta(state, k_, v_, beta_, decay_, plan.active[done:after], queries[done:after]))
                done = after
            if s is not None:
                cache.capture(layer, plan.slots[s], after, state[s], self._tail(context, columns, plan, s, after))
        cache.steps += sum(plan.lengths)
        for s, (slot, n, certain) in enumerate(zip(plan.slots, plan.lengths, plan.certain)):
            if certain:
                cache.state[layer, slot] = state[s]
                cache.conv[layer, slot] = self._tail(context, columns, plan, s, n)
        out = torch.cat(parts) if len(parts) > 1 else parts[0]
        y = out.flatten(0, 1)[plan.time_of]
        y = rms_norm(y, self.norm, self.eps) * F.silu(z.reshape(-1, self.heads, self.v_dim).float())
        return linear(y.reshape(-1, heads).to(x.dtype), self.w_out)

    def _tail(self, context: Tensor, columns: Tensor, plan: TimePlan, s: int, rows: int) -> Tensor:
        """Convolution columns of segment `s` after its first `rows` rows, [kernel - 1, C]."""
        width = self.kernel - 1
        return torch.cat((context[s], columns[plan.row_at[max(0, rows - width) : rows, s]]))[-width:]


class Experts:
    """Routed experts and the gated shared expert. Small banks are computed whole, large ones expert by expert."""

    def __init__(self, w: Weights, config: ModelConfig):
        self.count, self.k, self.normalize = config.num_experts, config.num_experts_per_tok, config.norm_topk_prob
        self.inner, self.shared = config.moe_intermediate_size, config.shared_expert_intermediate_size
        gate_up, down = w["experts.gate_up_proj"], w["experts.down_proj"]  # [E, 2F, D], [E, D, F]
        self.whole = self.count * self.inner <= ALL_EXPERTS_WIDTH
        routing = (w["gate.weight"], w["shared_expert_gate.weight"])
        shared = (w["shared_expert.gate_proj.weight"], w["shared_expert.up_proj.weight"])
        shared_down = w["shared_expert.down_proj.weight"]
        if self.whole:
            gate, up = gate_up.chunk(2, 1)
            self.w_in = fuse(gate.flatten(0, 1), shared[0], up.flatten(0, 1), shared[1], *routing)
            self.w_down = torch.cat((down.transpose(1, 2).flatten(0, 1), shared_down.t())).contiguous()  # [E F + Fs, D]
        else:
            self.w_in = fuse(*shared, *routing)
            self.w_down = shared_down.t().contiguous()
            self.gate_up, self.down = gate_up.transpose(1, 2).contiguous(), down.transpose(1, 2).contiguous()

    def __call__(self, x: Tensor, rows: int) -> Tensor:
        """x [R, D], the first `rows` of them real."""
        proj = linear(x, self.w_in)
        width = self.w_down.shape[0]
        logits = proj[:, 2 * width : 2 * width + self.count]
        shared = torch.sigmoid(proj[:, 2 * width + self.count :])[:, :1]
        weights, experts = route(logits, self.k, self.normalize)
        hidden = F.silu(proj[:, :width]) * proj[:, width : 2 * width]
        if not self.whole:
            return experts_grouped(x, weights, experts, self.gate_up, self.down, rows) + linear(
                hidden * shared, self.w_down
            )
        # One product over all experts: an unrouted expert's rows are weighted 0, the order of the sum never changes.
        routed = hidden[:, : self.count * self.inner].view(-1, self.count, self.inner)
        share = torch.zeros_like(logits).scatter_(1, experts, weights.to(logits.dtype))
        routed.mul_(share.unsqueeze(-1))
        hidden[:, self.count * self.inner :].mul_(shared)
        return linear(hidden, self.w_down)


def under(weights: Weights, prefix: str) -> Weights:
    """The weights whose name begins with `prefix`, without it."""
    return {name[len(prefix) :]: w for name, w in weights.items() if name.startswith(prefix)}


class DecoderLayer:
    """x += mixer(norm(x)); x += experts(norm(x))."""

    def __init__(self, w: Weights, config: ModelConfig, kind: str):
        self.eps = config.rms_norm_eps
        self.norm_in = 1 + w["input_layernorm.weight"].float()
        self.norm_out = 1 + w["post_attention_layernorm.weight"].float()
        self.attention = Attention(under(w, "self_attn."), config) if kind == "full_attention" else None
        self.recurrent = GatedDeltaNet(under(w, "linear_attn."), config) if kind == "linear_attention" else None
        self.experts = Experts(under(w, "mlp."), config)

    def attend(
        self, x: Tensor, rows: Rows, angles: tuple[Tensor, Tensor], kv: KV, layer: int, first_key: int = 0
    ) -> Tensor:
        """An attention layer; `layer` counts the attention layers of the cache."""
        assert self.attention is not None
        return self._mix(
            x, self.attention(rms_norm(x, self.norm_in, self.eps), rows, angles, kv, layer, first_key), rows
        )

    def recur(self, x: Tensor, rows: Rows, plan: TimePlan, cache: Recurrent, layer: int) -> Tensor:
        """A GatedDeltaNet layer; `layer` counts the recurrent layers of the cache."""
        assert self.recurrent is not None
        return self._mix(x, self.recurrent(rms_norm(x, self.norm_in, self.eps), plan, cache, layer), rows)

    def _mix(self, x: Tensor, mixed: Tensor, rows: Rows) -> Tensor:
        x = x + mixed
        return x + self.experts(rms_norm(x, self.norm_out, self.eps), rows.count)


class Rope:
    """Angles of plain RoPE by position: cos, sin [R, 1, rotary / 2] float32."""

    def __init__(self, config: ModelConfig, device: torch.device):
        half = torch.arange(0, config.rotary_dim, 2, dtype=torch.float32, device=device)
        self.rates = 1.0 / config.rope_theta ** (half / config.rotary_dim)

    def __call__(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.float()[:, None, None] * self.rates
        return angles.cos(), angles.sin()
