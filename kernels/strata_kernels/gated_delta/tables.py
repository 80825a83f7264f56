"""Views of the recurrent pool, made once, and index tables of a forward: which row or held row takes which step."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strata_kernels.params import GatedDeltaParams
from strata_kernels.window import RecurrentPool, Rows


@dataclass(slots=True)
class DeltaViews:
    """Of a pool, for its life; tuples by layer. S slots, H value heads, G key heads, w = kernel - 1, `rows` held rows
    a slot; the heads of all slots are one dimension, S * H.
    """

    pending: tuple[Tensor, ...]  # [S]
    state: tuple[Tensor, ...]  # [S * H, K, V]
    conv: tuple[Tensor, ...]  # [S * w, C]
    conv_both: tuple[tuple[Tensor, Tensor], ...]  # [S, w, C], [S, rows, C]
    held: tuple[tuple[Tensor, ...], ...]  # k, v, beta, decay, conv_rows, each [S * rows, ...]
    k_lines: tuple[Tensor, ...]  # [S * rows * G, K]
    v_lines: tuple[Tensor, ...]  # [S * rows * H, V]
    beta_lines: tuple[Tensor, ...]  # [S * rows * H, 1]
    decay_lines: tuple[Tensor, ...]
    head_slot: Tensor  # [S * H, 1] slot of each head
    head: Tensor  # [H] value heads
    key_head: Tensor  # [H] the key head that each shares
    scales: Tensor  # [2 G, 1] of the normed queries and keys
    steps: Tensor  # [rows, 1, 1]
    held_lines: tuple[Tensor, Tensor]  # [S * H, 1] of the first step, [rows, S * H, 1] among v, beta, decay
    held_k_lines: tuple[Tensor, Tensor]  # the same among k
    columns: Tensor  # [w]
    conv_lines: Tensor  # [S * w] line of each slot's columns in conv and conv_rows side by side, with nothing pending
    conv_slot: Tensor  # [S * w]


def views(pool: RecurrentPool, p: GatedDeltaParams) -> DeltaViews:
    if "gated_delta" not in pool.cache:
        slots, rows = pool.k.shape[1:3]
        width, device = p.kernel - 1, pool.k.device

        def flat(x: Tensor, dims: int) -> tuple[Tensor, ...]:
            """By layer, with the first `dims` dimensions behind it as one."""
            return x.flatten(1, dims).unbind() if dims > 1 else x.unbind()

        def first(lines: Tensor) -> tuple[Tensor, Tensor]:
            return lines[:1].squeeze(0), lines

        def count(n: int) -> Tensor:
            return torch.arange(n, device=device)

        slot = count(slots)[:, None].expand(-1, p.value_heads)
        head = count(p.value_heads)
        key_head = head // (p.value_heads // p.key_heads)
        cells = slot * rows + count(rows)[:, None, None]  # [rows, S, H]
        held = (pool.k, pool.v, pool.beta, pool.decay, pool.conv_rows)
        ones = torch.ones(p.key_heads, 1, device=device)
        pool.cache["gated_delta"] = DeltaViews(
            pending=pool.pending.unbind(),
            state=flat(pool.state, 2),
            conv=flat(pool.conv, 2),
            conv_both=tuple(zip(pool.conv.unbind(), pool.conv_rows.unbind())),
            held=tuple(zip(*(flat(x, 2) for x in held))),
            k_lines=flat(pool.k, 3),
            v_lines=flat(pool.v, 3),
            beta_lines=flat(pool.beta[..., None], 3),
            decay_lines=flat(pool.decay[..., None], 3),
            head_slot=slot.reshape(-1, 1),
            head=head,
            key_head=key_head,
            scales=torch.cat((ones * p.key_dim**-0.5, ones)),
            steps=count(rows).view(-1, 1, 1),
            held_lines=first((cells * p.value_heads + head).view(rows, -1, 1)),
            held_k_lines=first((cells * p.key_heads + key_head).view(rows, -1, 1)),
            columns=count(width),
            conv_lines=(count(slots)[:, None] * (width + rows) + count(width)).view(-1),
            conv_slot=count(slots).repeat_interleave(width),
        )
    found = pool.cache["gated_delta"]
    assert isinstance(found, DeltaViews)
    return found


@dataclass(slots=True)
class DeltaTable:
    """Of a forward, for all its layers. Slots with rows, n of them, are ranked by their number of rows, so those that
    take a step are the first ones; `sizes[t]` heads of them take step t. "seen" are the convolution's columns:
    [S * w] of the slots, then [R] of the rows.
    """

    sizes: list[int]
    taps: Tensor  # [R, kernel] columns of "seen" under each row
    qk_lines: Tensor  # [2 * count * H, 1] lines of [R * 2 G]: queries and keys of a step by turns
    qk_sizes: list[int]
    rows: Tensor  # [count * H, 1] row of each line, in the order of steps
    heads: Tensor  # [count * H, 1] and value head
    gate_rows: Tensor  # [count * H, 1, 1]
    gate_heads: Tensor
    out_lines: Tensor  # [R] place of each row in the order of steps
    held: Tensor | None  # [decode] slot * rows + step
    states: Tensor  # [n * H] heads of the ranked slots
    certain: Tensor | None  # [n * H, 1, 1] of prompts; None where there are none
    tails: Tensor | None  # [S * w] last columns of "seen" of prompts, the old ones of others
    captures: tuple[tuple[int, int, Tensor, Tensor], ...]  # (step, place, heads of the state, columns of "seen")
    replay_steps: Tensor  # [replay, 1, 1]
    replay_lines: Tensor  # [replay, S * H, 1]
    replay_k_lines: Tensor  # [replay, S * H, 1]


def table(rows: Rows, pool: RecurrentPool, p: GatedDeltaParams) -> DeltaTable:
    if "gated_delta" not in rows.cache:
        v, width, slots = views(pool, p), p.kernel - 1, rows.first.shape[0]
        old = slots * width  # columns of "seen" before the rows' own

        def seen(slot: Tensor | int, first: Tensor, column: Tensor) -> Tensor:
            """Where in "seen" a slot's column lies, counted from its first old one."""
            return torch.where(column < width, slot * width + column, old + first + column - width)

        device, heads, active = v.columns.device, p.value_heads, len(rows.runs)
        order = rows.many.sort(descending=True, stable=True)[1]
        rank = order.argsort()
        # Rows by step, then by rank; padding, whose rank is nobody's, behind them.
        turn = torch.where(rows.slots < slots, rows.steps * slots + rank[rows.slots % slots], rows.padded * slots)
        by_step = turn.argsort(stable=True)
        row = by_step[: rows.count, None].expand(-1, heads)
        q_lines = (row * (2 * p.key_heads) + v.key_head).view(-1, 1)
        sizes = [heads * sum(n > step for n in rows.runs) for step in range(rows.longest)]
        pairs = zip(q_lines.split(sizes), (q_lines + p.key_heads).split(sizes))
        step_rows, step_heads = row.reshape(-1, 1), v.head.repeat(rows.count)[:, None]
        prompts = rows.count > rows.decode
        slot = v.conv_slot
        tail = (rows.many * rows.certain)[slot] + v.columns.repeat(slots)
        states = (order[:active, None] * heads + v.head).view(-1)
        column = rows.steps[:, None] + torch.arange(p.kernel, device=device)
        begin = torch.arange(rows.padded, device=device) - rows.steps
        rows.cache["gated_delta"] = DeltaTable(
            sizes=sizes,
            taps=seen(rows.slots[:, None], begin[:, None], column),
            qk_lines=torch.cat([lines for pair in pairs for lines in pair]),
            qk_sizes=[size for size in sizes for _ in range(2)],
            rows=step_rows,
            heads=step_heads,
            gate_rows=step_rows[..., None],
            gate_heads=step_heads[..., None],
            out_lines=by_step.argsort() % rows.count,
            held=(rows.slots * pool.k.shape[2] + rows.steps)[: rows.decode] if rows.decode else None,
            states=states,
            certain=rows.certain.bool()[order[:active]].repeat_interleave(heads)[:, None, None] if prompts else None,
            tails=seen(slot, rows.first[slot], tail) if prompts else None,
            captures=tuple(
                (after, place, rank[s] * heads + v.head, seen(s, rows.first[s], v.columns + after))
                for s, after, place in sorted(rows.captures, key=lambda capture: capture[1])
            ),
            replay_steps=v.steps[: rows.replay],
            replay_lines=v.held_lines[1][: rows.replay],
            replay_k_lines=v.held_k_lines[1][: rows.replay],
        )
    found = rows.cache["gated_delta"]
    assert isinstance(found, DeltaTable)
    return found
