"""The attention block as compiled functions of addresses. `cpu.py` calls them with tensors.

Rows of one slot, and the query heads of one kv head, read the keys together: a page is a matrix [PAGE_TOKENS, D], its
scores a product with the queries, and what is read of its values another. Softmax is online over pages (Milakov and
Gimelshein, 2018): a row's pages are the same whatever other rows there are, and keys behind it add nothing.
"""

import math

from strata_kernels.compiling import kernel
from strata_kernels.layout import PAGE_TOKENS
from strata_kernels.norm.compiled import add, rms_norm, rms_norm_rows
from strata_kernels.product.compiled import NUMBERS, PANEL, copy_floats, dense_panel, multiply, tiles, widen
from strata_kernels.product.records import BF16, F32
from strata_kernels.product.tiles import BLOCK, PANEL_STRIDE
from strata_kernels.vectors import (
    WIDTH,
    all_lanes,
    exp,
    f32,
    f32_at,
    field,
    first_lane,
    get_some,
    i64,
    larger,
    only,
    put_some,
    set_bf16,
    set_f16,
    set_f32,
    set_i64,
    sigmoid,
    top,
    total,
    void,
)
from strata_kernels.workspace import QUERIES

# Places in a block's table, int64 each; EPS a float32, KIND what the pool holds, PAGES of a slot's table.
NORM, Q, K, V, OUT, Q_NORM, K_NORM = range(7)
HIDDEN, HEADS, KV_HEADS, DIM, ROTARY, EPS, GATED, FIRST_KEY = range(7, 15)
K_POOL, V_POOL, KIND = range(15, 18)
# Places in a window's table: addresses of the rows' tensors, plain numbers, cosines and sines [R, 2, ROTARY / 2].
POSITIONS, WINDOW_PLACES, FIRST, MANY, TABLES, PAGES, SLOTS, COUNT, PADDED, ANGLES = range(10)

SCORE_STRIDE = PAGE_TOKENS * 4
NONE = -math.inf


@kernel(void(i64, i64, i64, i64, i64))
def angles(positions: int, rates: int, rows: int, half: int, out: int) -> None:
    """Cosines, then sines of each row's angles, float32."""
    for r in range(rows):
        for i in range(half):
            angle = f32(field(positions, r)) * f32_at(rates + i * 4)
            set_f32(out + (2 * r * half + i) * 4, math.cos(float(angle)))
            set_f32(out + ((2 * r + 1) * half + i) * 4, math.sin(float(angle)))


@kernel(void(i64, i64, i64))
def turn(x: int, angle: int, half: int) -> None:
    """RoPE of one head, in place: pairs (i, half + i)."""
    for i in range(0, half, WIDTH):
        some, at, to = half - i, x + i * 4, x + (half + i) * 4
        cos, sin = get_some(angle + i * 4, some), get_some(angle + (half + i) * 4, some)
        a, b = get_some(at, some), get_some(to, some)
        put_some(at, a * cos - b * sin, some)
        put_some(to, b * cos + a * sin, some)


@kernel(void(i64, i64, i64, i64))
def narrow(source: int, kind: int, to: int, many: int) -> None:
    """`many` float32 as stored floats."""
    if kind == F32:
        copy_floats(source, to, many)
        return
    for i in range(many):
        if kind == BF16:
            set_bf16(to + i * 2, f32_at(source + i * 4))
        else:
            set_f16(to + i * 2, f32_at(source + i * 4))


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def score(queries: int, many: int, dim: int, keys: int, stride: int, kind: int, count: int, room: int) -> None:
    """Scores [many, PAGE_TOKENS], behind the queries [many, dim], of `count` keys."""
    scores = queries + many * dim * 4

    for n in range(0, count, 2 * WIDTH):
        lanes = min(2 * WIDTH, count - n)
        for i in range(2 * WIDTH):
            set_i64(room + NUMBERS + i * 8, min(n + i, count - 1))
        for start in range(0, dim, BLOCK):
            part = min(BLOCK, dim - start)
            for u in range(0, lanes, WIDTH):
                numbers, panel = room + NUMBERS + u * 8, room + PANEL + u * 4
                dense_panel(kind, keys, stride, numbers, start, part, panel, room)
            at, to, first = queries + start * 4, scores + n * 4, 1 if start == 0 else 0
            tiles(at, dim * 4, many, room + PANEL, PANEL_STRIDE, part, to, SCORE_STRIDE, lanes, first)


@kernel(void(i64, i64, i64, i64, i64, i64))
def soften(scores: int, seen: int, count: int, state: int, out: int, dim: int) -> None:
    """Scores of one query as shares, 0 behind the `seen` first; its largest score and its total at `state`, and what it
    has read so far, are moved to them.
    """
    if seen <= 0:
        for i in range(0, count, WIDTH):
            put_some(scores + i * 4, all_lanes(0.0), count - i)
        return
    best = all_lanes(NONE)
    for i in range(0, seen, WIDTH):
        best = larger(only(get_some(scores + i * 4, seen - i), seen - i, NONE), best)
    before = f32_at(state)
    largest = max(before, top(best))
    fade, middle, sums = exp(all_lanes(before) - all_lanes(largest)), all_lanes(largest), all_lanes(0.0)
    for i in range(0, count, WIDTH):
        share = only(exp(get_some(scores + i * 4, count - i) - middle), seen - i, 0.0)
        put_some(scores + i * 4, share, count - i)
        sums = sums + share
    set_f32(state, largest)
    set_f32(state + 4, f32_at(state + 4) * first_lane(fade) + total(sums))
    for i in range(0, dim, WIDTH):
        put_some(out + i * 4, get_some(out + i * 4, dim - i) * fade, dim - i)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64, i64))
def gather(
    shares: int, many: int, values: int, stride: int, kind: int, count: int, out: int, dim: int, room: int
) -> None:
    """out [many, dim] += shares [many, count] times values [count, dim]."""
    size = 4 if kind == F32 else 2
    for d in range(0, dim, 2 * WIDTH):
        lanes, panel, panel_stride = min(2 * WIDTH, dim - d), values + d * size, stride
        if kind != F32 or lanes < 2 * WIDTH:  # whole vectors are read
            panel, panel_stride = room + PANEL, PANEL_STRIDE
            for i in range(count):
                widen(values + i * stride + d * size, kind, panel + i * PANEL_STRIDE, lanes)
        tiles(shares, SCORE_STRIDE, many, panel, panel_stride, count, out + d * 4, dim * 4, lanes, 0)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64))
def attend(
    block: int, window: int, slot: int, start: int, rows: int, proj: int, row: int, y: int, work: int, room: int
) -> None:
    """What `rows` rows of a slot, from its row number `start` on, read: [rows, H, D] at y."""
    heads, groups, dim = field(block, HEADS), field(block, KV_HEADS), field(block, DIM)
    kind, ratio, pages = field(block, KIND), heads // groups, field(window, PAGES)
    head_stride = (2 if field(block, GATED) else 1) * dim * 4
    size = 4 if kind == F32 else 2
    begin, first_key = field(field(window, FIRST), slot) + start, field(block, FIRST_KEY)
    positions, table = field(window, POSITIONS) + begin * 8, field(window, TABLES) + slot * pages * 8
    last, many, stride = field(positions, rows - 1), rows * ratio, groups * dim * size
    scores = work + many * dim * 4
    out = scores + many * SCORE_STRIDE
    state = out + many * dim * 4
    scale = all_lanes(dim**-0.5)
    for g in range(groups):
        for q in range(many):
            source = proj + (begin + q // ratio) * row + (g * ratio + q % ratio) * head_stride
            for i in range(0, dim, WIDTH):
                some, at = dim - i, (q * dim + i) * 4
                put_some(work + at, get_some(source + i * 4, some) * scale, some)
                put_some(out + at, all_lanes(0.0), some)
            set_f32(state + q * 8, NONE)
            set_f32(state + q * 8 + 4, 0.0)
        key = first_key
        while key <= last:
            end = min(key // PAGE_TOKENS * PAGE_TOKENS + PAGE_TOKENS, last + 1)
            place = field(table, key // PAGE_TOKENS) * PAGE_TOKENS + key % PAGE_TOKENS
            at, count = place * stride + g * dim * size, end - key
            score(work, many, dim, field(block, K_POOL) + at, stride, kind, count, room)
            for q in range(many):
                seen = min(field(positions, q // ratio) + 1 - key, count)
                soften(scores + q * SCORE_STRIDE, seen, count, state + q * 8, out + q * dim * 4, dim)
            gather(scores, many, field(block, V_POOL) + at, stride, kind, count, out, dim, room)
            key = end
        for q in range(many):
            to = y + ((begin + q // ratio) * heads + g * ratio + q % ratio) * dim * 4
            share = all_lanes(f32(1.0) / f32_at(state + q * 8 + 4))
            for i in range(0, dim, WIDTH):
                put_some(to + i * 4, get_some(out + (q * dim + i) * 4, dim - i) * share, dim - i)


@kernel(void(i64, i64, i64, i64, i64, i64))
def attention(x: int, out: int, block: int, window: int, scratch: int, room: int) -> None:
    """out = x + the block. `scratch`: of `workspace.attention_bytes`; `room`: a product's."""
    hidden, rows, eps = field(block, HIDDEN), field(window, COUNT), f32_at(block + EPS * 8)
    heads, groups, dim = field(block, HEADS), field(block, KV_HEADS), field(block, DIM)
    gated, kind, half = field(block, GATED), field(block, KIND), field(block, ROTARY) // 2
    head_stride = (2 if gated else 1) * dim * 4
    keys = heads * head_stride  # where the keys of a projected row lie, and behind them its values
    values = keys + groups * dim * 4
    row, wide, size = values + groups * dim * 4, hidden * 4, 4 if kind == F32 else 2
    h = scratch
    proj = h + rows * wide
    y = proj + rows * row
    work = y + rows * heads * dim * 4
    rms_norm_rows(x, field(block, NORM), h, rows, hidden, eps)
    multiply(h, wide, rows, field(block, Q), 0, 0, proj, row, room)
    multiply(h, wide, rows, field(block, K), 0, 0, proj + keys, row, room)
    multiply(h, wide, rows, field(block, V), 0, 0, proj + values, row, room)
    for r in range(rows):
        at, angle = proj + r * row, field(window, ANGLES) + r * 2 * half * 4
        place = field(field(window, WINDOW_PLACES), r) * groups * dim * size
        for head in range(heads + groups):
            to = at + (head * head_stride if head < heads else keys + (head - heads) * dim * 4)
            weight = field(block, Q_NORM if head < heads else K_NORM)
            if weight:
                rms_norm(to, weight, to, dim, eps)
            turn(to, angle, half)
        narrow(at + keys, kind, field(block, K_POOL) + place, groups * dim)
        narrow(at + values, kind, field(block, V_POOL) + place, groups * dim)
    together = max(1, QUERIES // (heads // groups))
    for slot in range(field(window, SLOTS)):
        many = field(field(window, MANY), slot)
        for start in range(0, many, together):
            attend(block, window, slot, start, min(together, many - start), proj, row, y, work, room)
    if gated:
        for r in range(rows):
            for head in range(heads):
                gate, to = proj + r * row + head * head_stride + dim * 4, y + (r * heads + head) * dim * 4
                for i in range(0, dim, WIDTH):
                    some = dim - i
                    put_some(to + i * 4, get_some(to + i * 4, some) * sigmoid(get_some(gate + i * 4, some)), some)
    multiply(y, heads * dim * 4, rows, field(block, OUT), 0, 0, out, wide, room)
    add(x, out, rows * hidden)
    copy_floats(x + rows * wide, out + rows * wide, (field(window, PADDED) - rows) * hidden)
