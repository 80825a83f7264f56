"""Products with packed weights as compiled functions of addresses. `cpu.py` calls them with tensors.

The order of sums is fixed by a weight's shape: columns in blocks of BLOCK, in each the even and the odd ones apart, in
rising order. How many rows there are chooses only how many are computed beside each other.

A weight is a record and a bank a table of int64, as `records.py` has them.
"""

from strata_kernels.compiling import entry, kernel
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
    field,
    fma,
    get,
    get_bf16,
    get_f16,
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
from strata_kernels.workspace import PIECE

_one, _two, _four = rows_tile(1, 2), rows_tile(2, 2), rows_tile(4, 2) if MOST_ROWS == 8 else rows_tile(4, 1)
_eight = rows_tile(8, 1)
WIDE = MOST_ROWS == 8


NUMBERS = WIDTH * BYTES  # places in the scratch: numbers of a panel's rows, the panel, the scales of its rows
PANEL = NUMBERS + 2 * WIDTH * 8
SCALES = PANEL + BLOCK * PANEL_STRIDE


@kernel(f32(i64, i64))
def float_at(address: int, kind: int) -> float:
    """One stored float."""
    if kind == F32:
        return f32_at(address)
    return bf16_at(address) if kind == BF16 else f16_at(address)


@kernel(void(i64, i64, i64))
def copy_floats(source: int, to: int, many: int) -> None:
    """`many` floats."""
    for i in range(0, many, WIDTH):
        put_some(to + i * 4, get_some(source + i * 4, many - i), many - i)


@kernel(void(i64, i64, i64, i64))
def widen(source: int, kind: int, to: int, many: int) -> None:
    """`many` stored floats as float32."""
    if kind == F32:
        copy_floats(source, to, many)
        return
    whole = many // WIDTH * WIDTH
    for i in range(0, whole, WIDTH):
        put(to + i * 4, get_bf16(source + i * 2) if kind == BF16 else get_f16(source + i * 2))
    for i in range(whole, many):
        set_f32(to + i * 4, float_at(source + i * 2, kind))


@entry(void(i64, i64, i64, i64, i64, i64, i64, i64))
def dense_panel(
    kind: int, base: int, stride: int, numbers: int, start: int, many: int, panel: int, scratch: int
) -> None:
    """Columns start..start + many of WIDTH rows of plain floats, a vector each PANEL_STRIDE. numbers: int64 [WIDTH] of
    the rows.
    """
    size = 4 if kind == F32 else 2
    if kind != F32 and (many & 1 or start & 1):  # no whole words
        for lane in range(WIDTH):
            row = base + i64_at(numbers + lane * 8) * stride
            for k in range(many):
                set_f32(panel + k * PANEL_STRIDE + lane * 4, float_at(row + (start + k) * size, kind))
        return
    words = many * size // 4
    for word in range(0, words, WIDTH):
        here = min(WIDTH, words - word)
        columns(base + start * size + word * 4, stride, numbers, here, scratch)
        for j in range(here):
            column = get_ints(scratch + j * BYTES)
            if kind == F32:
                f32_word(column, panel + (word + j) * PANEL_STRIDE)
            elif kind == BF16:
                bf16_word(column, panel + (word + j) * 2 * PANEL_STRIDE)
            else:
                f16_word(column, panel + (word + j) * 2 * PANEL_STRIDE)


@kernel(void(i64, i64, i64, i64))
def scale_panels(weight: int, numbers: int, scales: int, scratch: int) -> None:
    """Scales of WIDTH rows at `scales`, a vector each PANEL_STRIDE for a group, and behind each its -zero * scale."""
    groups, bits = field(weight, GROUPS), 4 if field(weight, KIND) == INT4 else 8
    kind, stride = field(weight, SCALE_KIND), field(weight, SCALE_STRIDE)
    dense_panel(kind, field(weight, SCALE), stride, numbers, 0, groups, scales, scratch)
    zero, zero_stride = field(weight, ZERO), field(weight, ZERO_STRIDE)
    offset = all_lanes(-8.0 if bits == 4 else -128.0)
    for g in range(groups):
        at = scales + g * PANEL_STRIDE
        if zero:
            for lane in range(WIDTH):
                n = i64_at(numbers + lane * 8)
                word = i32_at(zero + n * bits // 32 * zero_stride + g * 4)
                code = (word >> (n * bits & 31)) & ((1 << bits) - 1)
                set_f32(scratch + lane * 4, -float(code))
            put(at + BYTES, get(scratch) * get(at))
        else:
            put(at + BYTES, offset * get(at))


@kernel(void(i64, i64, i64, i64, i64, i64, i64))
def integer_panel(weight: int, numbers: int, start: int, many: int, panel: int, scales: int, scratch: int) -> None:
    """Columns start..start + many of WIDTH rows of packed integers."""
    kind, stride = field(weight, KIND), field(weight, STRIDE)
    per = 8 if kind == INT4 else 4
    base = field(weight, WEIGHT) + start // per * 4
    group = field(weight, IN) // field(weight, GROUPS)
    order = field(weight, ORDER)
    words = (many + per - 1) // per
    for word in range(0, words, WIDTH):
        here = min(WIDTH, words - word)
        columns(base + word * 4, stride, numbers, here, scratch)
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


@entry(void(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64))
def tiles(
    x: int,
    x_stride: int,
    rows: int,
    panel: int,
    stride: int,
    many: int,
    out: int,
    out_stride: int,
    lanes: int,
    first: int,
) -> None:
    """out [rows, lanes] = x [rows, many] times a panel [many, lanes], added to what is there unless first; as many rows
    beside each other as there are.
    """
    r = 0
    if WIDE:
        while rows - r >= 8:
            to = out + r * out_stride
            _eight(x + r * x_stride, x_stride, panel, stride, many, to, out_stride, lanes, first)
            if lanes > WIDTH:
                to, more = to + BYTES, lanes - WIDTH
                _eight(x + r * x_stride, x_stride, panel + BYTES, stride, many, to, out_stride, more, first)
            r += 8
    while rows - r >= 4:
        to = out + r * out_stride
        _four(x + r * x_stride, x_stride, panel, stride, many, to, out_stride, lanes, first)
        if not WIDE and lanes > WIDTH:
            to, more = to + BYTES, lanes - WIDTH
            _four(x + r * x_stride, x_stride, panel + BYTES, stride, many, to, out_stride, more, first)
        r += 4
    if rows - r >= 2:
        _two(x + r * x_stride, x_stride, panel, stride, many, out + r * out_stride, out_stride, lanes, first)
        r += 2
    if rows - r:
        _one(x + r * x_stride, x_stride, panel, stride, many, out + r * out_stride, out_stride, lanes, first)


@entry(void(i64, i64, i64, i64, i64, i64, i64, i64, i64))
def multiply(
    x: int, x_stride: int, rows: int, weight: int, ids: int, many_ids: int, out: int, out_stride: int, scratch: int
) -> None:
    """out [rows, out of the weight] = x [rows, in] times the weight, or those `many_ids` of its rows that ids (int64)
    name, where ids is not 0. `scratch`: of `workspace.product_bytes`.
    """
    kind, ins = field(weight, KIND), field(weight, IN)
    outs = many_ids if ids else field(weight, OUT)
    base, stride = field(weight, WEIGHT), field(weight, STRIDE)
    numbers, panel, scales = scratch + NUMBERS, scratch + PANEL, scratch + SCALES
    scale_size = (field(weight, GROUPS) + 1) * PANEL_STRIDE
    for n in range(0, outs, 2 * WIDTH):
        lanes = min(2 * WIDTH, outs - n)
        for i in range(2 * WIDTH):  # behind the last row, that one
            row = min(n + i, outs - 1)
            set_i64(numbers + i * 8, i64_at(ids + row * 8) if ids else row)
        if kind >= INT4:
            for u in range(0, lanes, WIDTH):
                scale_panels(weight, numbers + u * 8, scales + u // WIDTH * scale_size, scratch)
        for start in range(0, ins, BLOCK):
            many = min(BLOCK, ins - start)
            for u in range(0, lanes, WIDTH):
                if kind >= INT4:
                    at = scales + u // WIDTH * scale_size
                    integer_panel(weight, numbers + u * 8, start, many, panel + u * 4, at, scratch)
                else:
                    dense_panel(kind, base, stride, numbers + u * 8, start, many, panel + u * 4, scratch)
            first = 1 if start == 0 else 0
            tiles(x + start * 4, x_stride, rows, panel, PANEL_STRIDE, many, out + n * 4, out_stride, lanes, first)


@entry(void(i64, i64, i64, i64, i64))
def lookup(weight: int, ids: int, many: int, out: int, out_stride: int) -> None:
    """Those rows of a weight that ids (int64) name, float32."""
    kind, ins = field(weight, KIND), field(weight, IN)
    groups, order = field(weight, GROUPS), field(weight, ORDER)
    zero, zero_stride = field(weight, ZERO), field(weight, ZERO_STRIDE)
    scale_kind = field(weight, SCALE_KIND)
    bits = 4 if kind == INT4 else 8
    mask, per = (1 << bits) - 1, 32 // bits
    for i in range(many):
        n, to = i64_at(ids + i * 8), out + i * out_stride
        row = field(weight, WEIGHT) + n * field(weight, STRIDE)
        if kind < INT4:
            widen(row, kind, to, ins)
            continue
        scales = field(weight, SCALE) + n * field(weight, SCALE_STRIDE)
        size = 4 if scale_kind == F32 else 2
        for k in range(ins):
            g = i32_at(order + k * 4) if order else k // (ins // groups)
            code = (i32_at(row + k // per * 4) >> (k % per * bits)) & mask
            less = 1 << (bits - 1)
            if zero:
                less = (i32_at(zero + n * bits // 32 * zero_stride + g * 4) >> (n * bits & 31)) & mask
            set_f32(to + k * 4, f32(code - less) * float_at(scales + g * size, scale_kind))


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


@entry(void(i64, i64, i64, i64, i64, i64, i64, i64))
def experts(x: int, chosen: int, shares: int, rows: int, ranks: int, bank: int, out: int, scratch: int) -> None:
    """out [rows, D]: each row's sum over its experts in rank order. chosen int64, shares float32 [rows, ranks].

    `scratch`: of `workspace.bank_bytes`.
    """
    count, hidden, inner, stacks = i64_at(bank), i64_at(bank + 8), i64_at(bank + 16), i64_at(bank + 24)
    pairs, wide, stride = rows * ranks, hidden * 4, 2 * inner * 4
    piece = min(PIECE, pairs)
    ends = scratch + SCALES + 2 * (i64_at(bank + 32) + 1) * PANEL_STRIDE
    places = ends + (count + 1) * 8
    order = places + pairs * 8
    batch = order + pairs * 8  # float32 [piece, hidden]
    both = batch + piece * wide  # float32 [piece, 2 * inner]
    outputs = both + piece * stride  # float32 [pairs, hidden]
    sort_pairs(chosen, pairs, count, ends, places, order)
    for e in range(count):
        start = i64_at(ends + (e - 1) * 8) if e else 0
        stop = i64_at(ends + e * 8)
        record = bank + (BANK_FIELDS + e * (stacks + 1) * FIELDS) * 8
        for begin in range(start, stop, piece):
            many = min(piece, stop - begin)
            for i in range(many):
                copy_floats(x + i64_at(order + (begin + i) * 8) // ranks * wide, batch + i * wide, hidden)
            multiply(batch, wide, many, record, 0, 0, both, stride, scratch)
            if stacks == 2:
                multiply(batch, wide, many, record + FIELDS * 8, 0, 0, both + inner * 4, stride, scratch)
            gated(both, many, inner, stride)
            to = outputs + begin * wide
            multiply(both, stride, many, record + stacks * FIELDS * 8, 0, 0, to, wide, scratch)
    for r in range(rows):
        for i in range(0, hidden, WIDTH):
            some, sums = hidden - i, all_lanes(0.0)
            for rank in range(ranks):
                p = r * ranks + rank
                y = get_some(outputs + i64_at(places + p * 8) * wide + i * 4, some)
                sums = fma(y, all_lanes(f32_at(shares + p * 4)), sums)
            put_some(out + r * wide + i * 4, sums, some)
