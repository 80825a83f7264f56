"""Gated DeltaNet (Yang et al., 2024) by its sequential recurrence, the same for one row and for many.

Per step and head: S *= decay; d = beta (v - k^T S); S += k d^T; o = q^T S. Slots take a step together,
those with most rows first, so that one without a row at a step is not touched by it.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.gated_delta.tables import DeltaTable, DeltaViews, table, views
from strata_kernels.norm import in_lanes, in_rows, l2_norm, rms_norm
from strata_kernels.params import GatedDeltaParams, GatedDeltaWeights
from strata_kernels.product import product
from strata_kernels.window import RecurrentPool, Rows


def gated_delta(
    x: Tensor, rows: Rows, pool: RecurrentPool, layer: int, weights: GatedDeltaWeights, params: GatedDeltaParams
) -> Tensor:
    """x + out(gated norm(delta rule(conv(qkv)))), x [R, D].

    Rows of earlier windows that were kept move the state first. Decode rows read a working copy and leave their inputs
    in the pool; prompt rows move state and convolution columns at once.
    """
    p, w, v, t = params, weights, views(pool, params), table(rows, pool, params)
    if rows.replay:
        _replay(v, t, layer)
    heads, keys = p.value_heads, 2 * p.key_heads * p.key_dim
    h = rms_norm(x, w.norm, p.eps)
    proj = product(h, [w.qkv, w.z], rows.count)
    columns, z = proj.split_with_sizes([p.channels, heads * p.value_dim], 1)
    gates = product(h, [w.b, w.a], rows.count).float()
    beta = in_lanes(torch.sigmoid, gates)
    decay = in_lanes(torch.exp, in_lanes(F.softplus, gates[:, heads:] + w.dt_bias).mul_(w.rate))

    columns = columns.float()
    seen = torch.cat((v.conv[layer], columns))
    mixed = in_lanes(F.silu, seen[t.taps].mul_(w.conv).sum(1))
    qk, values = mixed.split_with_sizes([keys, heads * p.value_dim], 1)
    qk = l2_norm(qk.view(-1, 2 * p.key_heads, p.key_dim), v.scales)
    values = values.view(-1, heads, p.value_dim)
    if t.held is not None:
        n = rows.decode
        new = (qk[:n, p.key_heads :], values[:n], beta[:n, :heads], decay[:n], columns[:n])
        for held, rows_of in zip(v.held[layer], new):
            held.index_copy_(0, t.held, rows_of)

    lines = qk.view(-1, p.key_dim)[t.qk_lines]  # [2 * count * H, 1, K]
    by_step = lines.split(t.qk_sizes)
    turns = zip(
        t.sizes,
        by_step[::2],
        by_step[1::2],
        lines.mT.split(t.qk_sizes)[1::2],
        values[t.rows, t.heads].split(t.sizes),
        beta[t.gate_rows, t.gate_heads].split(t.sizes),
        decay[t.gate_rows, t.gate_heads].split(t.sizes),
    )
    state = v.state[layer][t.states]  # a copy: drafts may yet be rejected
    moved, out, captures = state, [], list(t.captures)
    for step, (size, q_t, k_t, column_t, v_t, beta_t, decay_t) in enumerate(turns):
        while captures and captures[0][0] == step:
            _capture(pool, layer, state, seen, captures.pop(0))
        moved = moved if size == len(moved) else state[:size]
        _step(moved, k_t, column_t, v_t, beta_t, decay_t)
        out.append(torch.bmm(q_t, moved))
    for capture in captures:
        _capture(pool, layer, state, seen, capture)
    if t.certain is not None and t.tails is not None:
        v.state[layer].index_copy_(0, t.states, torch.where(t.certain, state, v.state[layer][t.states]))
        torch.index_select(seen, 0, t.tails, out=v.conv[layer])
    y = torch.cat(out).view(-1, heads, p.value_dim)[t.out_lines]
    y = rms_norm(y, w.out_norm, p.eps).view(z.shape).mul_(in_rows(F.silu, z.float()))
    return product(y.to(x.dtype), [w.out], rows.count).add_(x)


def _step(state: Tensor, k: Tensor, column: Tensor, v: Tensor, beta: Tensor, decay: Tensor) -> None:
    """state [S * H, K, V], in place; k [S * H, 1, K], column its transpose, v [S * H, 1, V], beta, decay [S * H, 1, 1].

    Replayed rows pass through the same products as they did when they were drafts, so they leave the same bits.
    """
    state.mul_(decay)
    delta = torch.baddbmm(v, k, state, alpha=-1).mul_(beta)
    state.addcmul_(column, delta)


def _replay(v: DeltaViews, t: DeltaTable, layer: int) -> None:
    """Move each slot's state and convolution columns past its pending rows. Repeatable until the last write."""
    pending = v.pending[layer]
    over = t.replay_steps >= pending[v.head_slot]  # [replay, S * H, 1]
    # Past its pending rows a slot reads its first one, which is its own: what others left may not be a number.
    lines = torch.where(over, v.held_lines[0], t.replay_lines)
    k = v.k_lines[layer][torch.where(over, v.held_k_lines[0], t.replay_k_lines)]
    over = over[..., None]
    beta, decay = v.beta_lines[layer][lines].masked_fill_(over, 0), v.decay_lines[layer][lines].masked_fill_(over, 1)
    state = v.state[layer].clone()
    turns = zip(k.unbind(), k.mT.unbind(), v.v_lines[layer][lines].unbind(), beta.unbind(), decay.unbind())
    for k_t, column_t, v_t, beta_t, decay_t in turns:
        _step(state, k_t, column_t, v_t, beta_t, decay_t)
    columns = torch.cat(v.conv_both[layer], 1).flatten(0, 1)
    conv_lines = pending[v.conv_slot] + v.conv_lines
    still = over[0]
    # Nothing below allocates.
    torch.where(still, v.state[layer], state, out=v.state[layer])
    torch.index_select(columns, 0, conv_lines, out=v.conv[layer])
    pending.zero_()


def _capture(
    pool: RecurrentPool, layer: int, state: Tensor, seen: Tensor, capture: tuple[int, int, Tensor, Tensor]
) -> None:
    """Copy a slot's state and columns into its place of the snapshot pool."""
    _, place, heads, columns = capture
    torch.index_select(state, 0, heads, out=pool.snap_state[place, layer])
    torch.index_select(seen, 0, columns, out=pool.snap_conv[place, layer])
