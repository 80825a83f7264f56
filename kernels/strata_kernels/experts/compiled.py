"""The experts block as compiled functions of addresses. `cpu.py` calls them with tensors."""

import math

from strata_kernels.compiling import kernel
from strata_kernels.norm.compiled import add, rms_norm_rows
from strata_kernels.product.compiled import copy_floats, gated, multiply
from strata_kernels.product.compiled import experts as routed
from strata_kernels.vectors import (
    WIDTH,
    all_lanes,
    exp,
    f32,
    f32_at,
    field,
    get_some,
    i64,
    larger,
    only,
    put_some,
    set_f32,
    set_i64,
    sigmoid,
    top,
    total,
    void,
)

# Places in a block's table, int64 each; EPS and SCALE float32. BANK, SHARED_* 0 where there is none.
NORM, ROUTER, ROUTER_BIAS, BANK, GATE, UP, DOWN, SHARED_GATE = range(8)
HIDDEN, EXPERTS, TOP_K, SHARED_INNER, EPS, SIGMOID, NORMALIZE, SCALE = range(8, 16)

NONE = -math.inf


@kernel(void(i64, i64, i64, i64, i64, i64, i64))
def choose(scores: int, many: int, ranked: int, top_k: int, chosen: int, shares: int, taken: int) -> None:
    """The `top_k` of largest `ranked`, the lower id first among equals and NaN before all, and their scores."""
    for e in range(many):
        set_f32(taken + e * 4, 0.0)
    for rank in range(top_k):
        best, value = -1, f32(0.0)
        for e in range(many):
            found = f32_at(ranked + e * 4)
            if f32_at(taken + e * 4) == 0.0 and (
                best < 0 or found > value or (math.isnan(found) and not math.isnan(value))
            ):
                best, value = e, found
        set_f32(taken + best * 4, 1.0)
        set_i64(chosen + rank * 8, best)
        set_f32(shares + rank * 4, f32_at(scores + best * 4))


@kernel(void(i64, i64))
def softmax(x: int, many: int) -> None:
    """Of one row, in place."""
    best = all_lanes(NONE)
    for i in range(0, many, WIDTH):
        best = larger(only(get_some(x + i * 4, many - i), many - i, NONE), best)
    middle, sums = all_lanes(top(best)), all_lanes(0.0)
    for i in range(0, many, WIDTH):
        part = only(exp(get_some(x + i * 4, many - i) - middle), many - i, 0.0)
        put_some(x + i * 4, part, many - i)
        sums = sums + part
    whole = all_lanes(total(sums))
    for i in range(0, many, WIDTH):
        put_some(x + i * 4, get_some(x + i * 4, many - i) / whole, many - i)


@kernel(void(i64, i64, i64, i64, i64, i64))
def route(block: int, scores: int, rows: int, chosen: int, shares: int, work: int) -> None:
    """Router scores [rows, E], which are overwritten, to experts [rows, K] and their shares."""
    many, top_k, bias = field(block, EXPERTS), field(block, TOP_K), field(block, ROUTER_BIAS)
    for r in range(rows):
        at, ranked, share = scores + r * many * 4, scores + r * many * 4, shares + r * top_k * 4
        if field(block, SIGMOID):
            for i in range(0, many, WIDTH):
                put_some(at + i * 4, sigmoid(get_some(at + i * 4, many - i)), many - i)
        else:
            softmax(at, many)
        if bias:
            ranked = work + many * 4
            for i in range(0, many, WIDTH):
                some = many - i
                put_some(ranked + i * 4, get_some(at + i * 4, some) + get_some(bias + i * 4, some), some)
        choose(at, many, ranked, top_k, chosen + r * top_k * 8, share, work)
        factor = f32_at(block + SCALE * 8)
        if field(block, NORMALIZE):
            whole = f32(0.0)
            for rank in range(top_k):
                whole = whole + f32_at(share + rank * 4)
            factor = factor / whole
        for rank in range(top_k):
            set_f32(share + rank * 4, f32_at(share + rank * 4) * factor)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def experts(x: int, out: int, touched: int, block: int, rows: int, padded: int, scratch: int, room: int) -> None:
    """out = x + the block, 1 in `touched` (int64 [E]) for the experts that rows chose. `scratch`: of
    `workspace.experts_bytes`; `room`: a product's or a bank's.
    """
    hidden, many, top_k, inner = field(block, HIDDEN), field(block, EXPERTS), field(block, TOP_K), 0
    wide, row = hidden * 4, 2 * field(block, SHARED_INNER) * 4
    chosen = scratch
    h = chosen + rows * top_k * 8
    y = h + rows * wide
    both = y + rows * wide
    scores = both + rows * row
    shares = scores + rows * many * 4
    gates = shares + rows * top_k * 4
    work = gates + rows * 4
    rms_norm_rows(x, field(block, NORM), h, rows, hidden, f32_at(block + EPS * 8))
    copy_floats(x, out, padded * hidden)
    if many:
        multiply(h, wide, rows, field(block, ROUTER), 0, 0, scores, many * 4, room)
        route(block, scores, rows, chosen, shares, work)
        for p in range(rows * top_k):
            set_i64(touched + field(chosen, p) * 8, 1)
        routed(h, chosen, shares, rows, top_k, field(block, BANK), y, room)
        add(y, out, rows * hidden)
    if field(block, DOWN):
        inner = field(block, SHARED_INNER)
        multiply(h, wide, rows, field(block, GATE), 0, 0, both, row, room)
        multiply(h, wide, rows, field(block, UP), 0, 0, both + inner * 4, row, room)
        gated(both, rows, inner, row)
        if field(block, SHARED_GATE):
            multiply(h, wide, rows, field(block, SHARED_GATE), 0, 0, gates, 4, room)
            for r in range(rows):
                factor = sigmoid(all_lanes(f32_at(gates + r * 4)))
                for i in range(0, inner, WIDTH):
                    at = both + r * row + i * 4
                    put_some(at, get_some(at, inner - i) * factor, inner - i)
        multiply(both, row, rows, field(block, DOWN), 0, 0, y, wide, room)
        add(y, out, rows * hidden)
