"""Products with packed weights as compiled functions of addresses. `cpu.py` calls them with tensors.

The order of sums is fixed by a weight's shape: columns in blocks of BLOCK, in each the even and the odd ones apart, in
rising order. How many rows there are chooses only how many are computed beside each other.

A weight is a record and a bank a table of int64, as `records.py` has them.
"""

from strata_kernels.compiling import kernel
from strata_kernels.product.records import (
    BANK_FIELDS,
    BF16,
    F32,
    FIELDS,
    GROUPS,
    IN,
    INT4,
    KIND,
    ORDER,
    OUT,
    SCALE,
    SCALE_KIND,
    SCALE_STRIDE,
    STRIDE,
    WEIGHT,
    ZERO,
    ZERO_STRIDE,
)
from strata_kernels.product.tiles import (
    BLOCK,
    MOST_ROWS,
    PANEL_STRIDE,
    bf16_word,
    columns,
    f16_word,
    f32_word,
    int4_one,
    int4_word,
    int8_one,
    int8_word,
    rows_tile,
)
from strata_kernels.vectors import (
    BYTES,
    WIDTH,
    all_lanes,
    bf16_at,
    exp,
    f16_at,
    f32,
    f32_at,
    fma,
    get,
    get_ints,
    get_some,
    i32_at,
    i64,
    i64_at,
    put,
    put_some,
    set_f32,
    set_i64,
    void,
)

PIECE = 128  # rows of an expert that are multiplied at once

_one, _two, _four = rows_tile(1, 2), rows_tile(2, 2), rows_tile(4, 2) if MOST_ROWS == 8 else rows_tile(4, 1)
_eight = rows_tile(8, 1)
WIDE = MOST_ROWS == 8


def product_scratch(groups: int) -> int:
    """Bytes that `multiply` works in: a transposed tile, a panel, the scales of its rows."""
    return WIDTH * BYTES + BLOCK * PANEL_STRIDE + 2 * (groups + 1) * PANEL_STRIDE


def bank_scratch(rows: int, ranks: int, count: int, hidden: int, inner: int, groups: int) -> int:
    """Bytes that `experts` works in."""
    pairs = rows * ranks
    floats = PIECE * (hidden + 2 * inner) + pairs * hidden
    return product_scratch(groups) + 8 * (count + 1 + 2 * pairs) + 4 * floats


@kernel(f32(i64, i64))
def float_at(address: int, kind: int) -> float:
    """One stored float."""
    if kind == F32:
        return f32_at(address)
    return bf16_at(address) if kind == BF16 else f16_at(address)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def dense_panel(kind: int, base: int, stride: int, last: int, start: int, many: int, panel: int, scratch: int) -> None:
    """Columns start..start + many of WIDTH rows of plain floats, a vector each PANEL_STRIDE."""
    size = 4 if kind == F32 else 2
    if kind != F32 and (many & 1 or start & 1):  # no whole words
        for lane in range(WIDTH):
            row = base + min(lane, last) * stride
            for k in range(many):
                set_f32(panel + k * PANEL_STRIDE + lane * 4, float_at(row + (start + k) * size, kind))
        return
    words = many * size // 4
    for word in range(0, words, WIDTH):
        here = min(WIDTH, words - word)
        columns(base + start * size + word * 4, stride, last, here, scratch)
        for j in range(here):
            column = get_ints(scratch + j * BYTES)
            if kind == F32:
                f32_word(column, panel + (word + j) * PANEL_STRIDE)
            elif kind == BF16:
                bf16_word(column, panel + (word + j) * 2 * PANEL_STRIDE)
            else:
                f16_word(column, panel + (word + j) * 2 * PANEL_STRIDE)


@kernel(void(i64, i64, i64, i64, i64))
def scale_panels(weight: int, row: int, last: int, scales: int, scratch: int) -> None:
    """Scales of WIDTH rows at `scales`, a vector each PANEL_STRIDE for a group, and behind each its -zero * scale."""
    groups, bits = i64_at(weight + GROUPS * 8), 4 if i64_at(weight + KIND * 8) == INT4 else 8
    kind, stride = i64_at(weight + SCALE_KIND * 8), i64_at(weight + SCALE_STRIDE * 8)
    dense_panel(kind, i64_at(weight + SCALE * 8) + row * stride, stride, last, 0, groups, scales, scratch)
    zero, zero_stride = i64_at(weight + ZERO * 8), i64_at(weight + ZERO_STRIDE * 8)
    offset = all_lanes(-8.0 if bits == 4 else -128.0)
    for g in range(groups):
        at = scales + g * PANEL_STRIDE
        if zero:
            for lane in range(WIDTH):
                n = row + min(lane, last)
                word = i32_at(zero + n * bits // 32 * zero_stride + g * 4)
                code = (word >> (n * bits & 31)) & ((1 << bits) - 1)
                set_f32(scratch + lane * 4, -float(code))
            put(at + BYTES, get(scratch) * get(at))
        else:
            put(at + BYTES, offset * get(at))


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def integer_panel(
    weight: int, row: int, last: int, start: int, many: int, panel: int, scales: int, scratch: int
) -> None:
    """Columns start..start + many of WIDTH rows of packed integers."""
    kind, stride = i64_at(weight + KIND * 8), i64_at(weight + STRIDE * 8)
    per = 8 if kind == INT4 else 4
    base = i64_at(weight + WEIGHT * 8) + row * stride + start // per * 4
    group = i64_at(weight + IN * 8) // i64_at(weight + GROUPS * 8)
    order = i64_at(weight + ORDER * 8)
    words = (many + per - 1) // per
    for word in range(0, words, WIDTH):
        here = min(WIDTH, words - word)
        columns(base + word * 4, stride, last, here, scratch)
        for j in range(here):
            column = get_ints(scratch + j * BYTES)
            k = (word + j) * per
            to = panel + k * PANEL_STRIDE
            if order or group % per:
                for i in range(min(per, many - k)):
                    g = i32_at(order + (start + k + i) * 4) if order else (start + k + i) // group
                    at = scales + g * PANEL_STRIDE
                    if kind == INT4:
                        int4_one(column, i, at, at + BYTES, to + i * PANEL_STRIDE)
                    else:
                        int8_one(column, i, at, at + BYTES, to + i * PANEL_STRIDE)
            else:
                at = scales + (start + k) // group * PANEL_STRIDE
                if kind == INT4:
                    int4_word(column, at, at + BYTES, to)
                else:
                    int8_word(column, at, at + BYTES, to)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64, i64))
def tiles(
    x: int, x_stride: int, rows: int, panel: int, many: int, out: int, out_stride: int, lanes: int, first: int
) -> None:
    """Rows of x times a panel, as many beside each other as there are."""
    r = 0
    if WIDE:
        while rows - r >= 8:
            _eight(x + r * x_stride, x_stride, panel, many, out + r * out_stride, out_stride, lanes, first)
            if lanes > WIDTH:
                at = out + r * out_stride + BYTES
                _eight(x + r * x_stride, x_stride, panel + BYTES, many, at, out_stride, lanes - WIDTH, first)
            r += 8
    while rows - r >= 4:
        _four(x + r * x_stride, x_stride, panel, many, out + r * out_stride, out_stride, lanes, first)
        if not WIDE and lanes > WIDTH:
            at = out + r * out_stride + BYTES
            _four(x + r * x_stride, x_stride, panel + BYTES, many, at, out_stride, lanes - WIDTH, first)
        r += 4
    while rows - r >= 2:
        _two(x + r * x_stride, x_stride, panel, many, out + r * out_stride, out_stride, lanes, first)
        r += 2
    if rows - r:
        _one(x + r * x_stride, x_stride, panel, many, out + r * out_stride, out_stride, lanes, first)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64, i64))
def multiply(
    x: int, x_stride: int, rows: int, weight: int, begin: int, end: int, out: int, out_stride: int, scratch: int
) -> None:
    """out [rows, end - begin] = x [rows, in] times rows begin..end of a weight. `scratch`: of `product_scratch`."""
    kind, outs, ins = i64_at(weight + KIND * 8), i64_at(weight + OUT * 8), i64_at(weight + IN * 8)
    base, stride = i64_at(weight + WEIGHT * 8), i64_at(weight + STRIDE * 8)
    panel = scratch + WIDTH * BYTES
    scales = panel + BLOCK * PANEL_STRIDE
    scale_size = (i64_at(weight + GROUPS * 8) + 1) * PANEL_STRIDE
    for n in range(begin, end, 2 * WIDTH):
        lanes = min(2 * WIDTH, end - n)
        if kind >= INT4:
            for u in range(0, lanes, WIDTH):
                scale_panels(weight, n + u, outs - 1 - n - u, scales + u // WIDTH * scale_size, scratch)
        for start in range(0, ins, BLOCK):
            many = min(BLOCK, ins - start)
            for u in range(0, lanes, WIDTH):
                to, last = panel + u * 4, outs - 1 - n - u
                if kind >= INT4:
                    at = scales + u // WIDTH * scale_size
                    integer_panel(weight, n + u, last, start, many, to, at, scratch)
                else:
                    dense_panel(kind, base + (n + u) * stride, stride, last, start, many, to, scratch)
            to, first = out + (n - begin) * 4, 1 if start == 0 else 0
            tiles(x + start * 4, x_stride, rows, panel, many, to, out_stride, lanes, first)


@kernel(void(i64, i64, i64, i64))
def gated(both: int, rows: int, inner: int, stride: int) -> None:
    """silu(gate) * up of each row [gate, up], in place of the gate."""
    for r in range(rows):
        gate = both + r * stride
        for i in range(0, inner, WIDTH):
            some = inner - i
            g, u = get_some(gate + i * 4, some), get_some(gate + (inner + i) * 4, some)
            one = all_lanes(1.0)
            put_some(gate + i * 4, g / (one + exp(all_lanes(0.0) - g)) * u, some)


@kernel(void(i64, i64, i64))
def copy_floats(source: int, to: int, many: int) -> None:
    """`many` floats."""
    for i in range(0, many, WIDTH):
        put_some(to + i * 4, get_some(source + i * 4, many - i), many - i)


@kernel(void(i64, i64, i64, i64, i64, i64))
def sort_pairs(chosen: int, pairs: int, count: int, ends: int, places: int, order: int) -> None:
    """Counting sort of the pairs (row, rank) by their expert: `places` says where each pair stands, `order` which pair
    stands there, `ends` where each of the `count` experts ends; int64 all.
    """
    for e in range(count + 1):
        set_i64(ends + e * 8, 0)
    for p in range(pairs):
        at = ends + i64_at(chosen + p * 8) * 8 + 8
        set_i64(at, i64_at(at) + 1)
    for e in range(count):
        at = ends + e * 8
        set_i64(at + 8, i64_at(at + 8) + i64_at(at))
    for p in range(pairs):
        at = ends + i64_at(chosen + p * 8) * 8
        place = i64_at(at)
        set_i64(places + p * 8, place)
        set_i64(order + place * 8, p)
        set_i64(at, place + 1)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def experts(x: int, chosen: int, shares: int, rows: int, ranks: int, bank: int, out: int, scratch: int) -> None:
    """out [rows, D]: each row's sum over its experts in rank order. chosen int64, shares float32 [rows, ranks].

    `scratch`: of `bank_scratch` bytes.
    """
    count, hidden, inner, stacks = i64_at(bank), i64_at(bank + 8), i64_at(bank + 16), i64_at(bank + 24)
    pairs, wide, stride = rows * ranks, hidden * 4, 2 * inner * 4
    ends = scratch + WIDTH * BYTES + BLOCK * PANEL_STRIDE + 2 * (i64_at(bank + 32) + 1) * PANEL_STRIDE
    places = ends + (count + 1) * 8
    order = places + pairs * 8
    batch = order + pairs * 8  # float32 [PIECE, hidden]
    both = batch + PIECE * wide  # float32 [PIECE, 2 * inner]
    outputs = both + PIECE * stride  # float32 [pairs, hidden]
    sort_pairs(chosen, pairs, count, ends, places, order)
    for e in range(count):
        start = i64_at(ends + (e - 1) * 8) if e else 0
        stop = i64_at(ends + e * 8)
        record = bank + (BANK_FIELDS + e * (stacks + 1) * FIELDS) * 8
        for begin in range(start, stop, PIECE):
            many = min(PIECE, stop - begin)
            for i in range(many):
                copy_floats(x + i64_at(order + (begin + i) * 8) // ranks * wide, batch + i * wide, hidden)
            multiply(batch, wide, many, record, 0, i64_at(record + OUT * 8), both, stride, scratch)
            if stacks == 2:
                multiply(batch, wide, many, record + FIELDS * 8, 0, inner, both + inner * 4, stride, scratch)
            gated(both, many, inner, stride)
            to = outputs + begin * wide
            multiply(both, stride, many, record + stacks * FIELDS * 8, 0, hidden, to, wide, scratch)
    for r in range(rows):
        for i in range(0, hidden, WIDTH):
            some, sums = hidden - i, all_lanes(0.0)
            for rank in range(ranks):
                p = r * ranks + rank
                y = get_some(outputs + i64_at(places + p * 8) * wide + i * 4, some)
                sums = fma(y, all_lanes(f32_at(shares + p * 4)), sums)
            put_some(out + r * wide + i * 4, sums, some)
