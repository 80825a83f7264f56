"""The gated delta block as compiled functions of addresses. `cpu.py` calls them with tensors.

A state [K, V] of a head is worked on in strips of WIDTH columns, each of which stays in the nearest cache for all rows
of its slot: replayed ones first, then the window's. Both take the same step, so they leave the same bits.
"""

from strata_kernels.compiling import kernel
from strata_kernels.norm.compiled import add, l2_norm, rms_norm, rms_norm_rows
from strata_kernels.product.compiled import copy_floats, multiply
from strata_kernels.vectors import (
    BYTES,
    WIDTH,
    all_lanes,
    exp,
    f32_at,
    field,
    fma,
    get,
    get_some,
    i64,
    i64_at,
    put,
    put_some,
    set_i64,
    sigmoid,
    silu,
    softplus,
    void,
)

# Places in a block's table, int64 each; EPS a float32.
NORM, QKV, Z, B, A, OUT, CONV_WEIGHT, RATE, DT_BIAS, OUT_NORM = range(10)
HIDDEN, KEY_HEADS, VALUE_HEADS, KEY_DIM, VALUE_DIM, KERNEL, EPS = range(10, 17)
STATE, CONV, K, V, BETA, DECAY, CONV_ROWS, PENDING, SLOTS, HELD = range(17, 27)
SNAP_STATE, SNAP_STATE_STRIDE, SNAP_CONV, SNAP_CONV_STRIDE = range(27, 31)
# Places in a window's table: addresses of the rows' tensors, plain numbers, captures (slot, rows after which, place).
WINDOW_SLOTS, STEPS, FIRST, MANY, CERTAIN, COUNT, DECODE, PADDED, CAPTURES = range(9)
CAPTURE = 9


@kernel(void(i64, i64, i64, i64, i64, i64, i64))
def move(strip: int, key_dim: int, k: int, v: int, beta: int, decay: int, lanes: int) -> None:
    """One step of a strip [K, WIDTH]: S *= decay; S += k beta (v - k^T S)."""
    fade, even, odd = all_lanes(f32_at(decay)), all_lanes(0.0), all_lanes(0.0)
    whole = key_dim // 2 * 2
    for i in range(0, whole, 2):
        even = fma(all_lanes(f32_at(k + i * 4)), get(strip + i * BYTES) * fade, even)
        odd = fma(all_lanes(f32_at(k + i * 4 + 4)), get(strip + i * BYTES + BYTES) * fade, odd)
    if whole < key_dim:
        even = fma(all_lanes(f32_at(k + whole * 4)), get(strip + whole * BYTES) * fade, even)
    delta = (get_some(v, lanes) - (even + odd)) * all_lanes(f32_at(beta))
    for i in range(key_dim):
        put(strip + i * BYTES, fma(all_lanes(f32_at(k + i * 4)), delta, get(strip + i * BYTES) * fade))


@kernel(void(i64, i64, i64, i64, i64))
def read(strip: int, key_dim: int, q: int, out: int, lanes: int) -> None:
    """out = q^T S of a strip."""
    even, odd = all_lanes(0.0), all_lanes(0.0)
    whole = key_dim // 2 * 2
    for i in range(0, whole, 2):
        even = fma(all_lanes(f32_at(q + i * 4)), get(strip + i * BYTES), even)
        odd = fma(all_lanes(f32_at(q + i * 4 + 4)), get(strip + i * BYTES + BYTES), odd)
    if whole < key_dim:
        even = fma(all_lanes(f32_at(q + whole * 4)), get(strip + whole * BYTES), even)
    put_some(out, even + odd, lanes)


@kernel(void(i64, i64, i64, i64, i64))
def write(strip: int, state: int, key_dim: int, value_dim: int, lanes: int) -> None:
    """A strip to its columns of a state [K, V]."""
    for i in range(key_dim):
        put_some(state + i * value_dim * 4, get(strip + i * BYTES), lanes)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64))
def advance(block: int, window: int, slot: int, mixed: int, row: int, gates: int, y: int, strip: int) -> None:
    """States of one slot: past its pending rows, then through its rows of the window, whose outputs go to y."""
    key_dim, value_dim = field(block, KEY_DIM), field(block, VALUE_DIM)
    key_heads, heads = field(block, KEY_HEADS), field(block, VALUE_HEADS)
    keys, held = key_heads * key_dim * 4, slot * field(block, HELD)
    pending = field(field(block, PENDING), slot)
    first = field(field(window, FIRST), slot)
    many = field(field(window, MANY), slot)
    certain, captures = field(field(window, CERTAIN), slot), field(window, CAPTURES)
    size = key_dim * value_dim * 4
    for head in range(heads):
        shared = head // (heads // key_heads) * key_dim * 4
        state = field(block, STATE) + (slot * heads + head) * size
        for column in range(0, value_dim, WIDTH):
            lanes, at = value_dim - column, state + column * 4
            for i in range(key_dim):
                put(strip + i * BYTES, get_some(at + i * value_dim * 4, lanes))
            for t in range(pending):
                place = (held + t) * heads + head
                k = field(block, K) + (held + t) * keys + shared
                v = field(block, V) + (place * value_dim + column) * 4
                beta, decay = field(block, BETA) + place * 4, field(block, DECAY) + place * 4
                move(strip, key_dim, k, v, beta, decay, lanes)
            if pending:
                write(strip, at, key_dim, value_dim, lanes)
            for t in range(many):
                q = mixed + (first + t) * row
                v = q + 2 * keys + (head * value_dim + column) * 4
                beta = gates + ((first + t) * 2 * heads + head) * 4
                move(strip, key_dim, q + keys + shared, v, beta, beta + heads * 4, lanes)
                read(strip, key_dim, q + shared, y + (((first + t) * heads + head) * value_dim + column) * 4, lanes)
                for c in range(captures):
                    capture = window + (CAPTURE + c * 3) * 8
                    if i64_at(capture) == slot and i64_at(capture + 8) == t + 1:
                        place = field(block, SNAP_STATE)
                        place += i64_at(capture + 16) * field(block, SNAP_STATE_STRIDE)
                        write(strip, place + head * size + column * 4, key_dim, value_dim, lanes)
            if many and certain:
                write(strip, at, key_dim, value_dim, lanes)


@kernel(i64(i64, i64, i64, i64, i64, i64, i64))
def seen(conv: int, proj: int, row: int, first: int, channels: int, width: int, column: int) -> int:
    """Where a slot's column of the convolution lies: the old ones, then those of its rows."""
    if column < width:
        return conv + column * channels * 4
    return proj + (first + column - width) * row


@kernel(void(i64, i64, i64, i64, i64))
def convolve(block: int, window: int, proj: int, row: int, mixed: int) -> None:
    """silu of the causal convolution of each row; q and k normed."""
    heads, value_dim = field(block, VALUE_HEADS), field(block, VALUE_DIM)
    key_heads, key_dim = field(block, KEY_HEADS), field(block, KEY_DIM)
    channels, kernel_size = 2 * key_heads * key_dim + heads * value_dim, field(block, KERNEL)
    width, taps = kernel_size - 1, field(block, CONV_WEIGHT)
    for r in range(field(window, COUNT)):
        slot = field(field(window, WINDOW_SLOTS), r)
        first, step = field(field(window, FIRST), slot), field(field(window, STEPS), r)
        conv = field(block, CONV) + slot * width * channels * 4
        to = mixed + r * channels * 4
        for i in range(0, channels, WIDTH):
            some, sums = channels - i, all_lanes(0.0)
            for t in range(kernel_size):
                at = seen(conv, proj, row, first, channels, width, step + t) + i * 4
                sums = fma(get_some(at, some), get_some(taps + (t * channels + i) * 4, some), sums)
            put_some(to + i * 4, silu(sums), some)
        for head in range(2 * key_heads):
            l2_norm(to + head * key_dim * 4, key_dim, key_dim**-0.5 if head < key_heads else 1.0)


@kernel(void(i64, i64, i64, i64, i64, i64))
def leave(block: int, window: int, proj: int, row: int, mixed: int, gates: int) -> None:
    """What the next window needs: inputs of decode rows, columns of prompts and of snapshots."""
    heads, value_dim = field(block, VALUE_HEADS), field(block, VALUE_DIM)
    keys, values = field(block, KEY_HEADS) * field(block, KEY_DIM), heads * value_dim
    channels, width = 2 * keys + values, field(block, KERNEL) - 1
    for r in range(field(window, DECODE)):
        slot = field(field(window, WINDOW_SLOTS), r)
        place = slot * field(block, HELD) + field(field(window, STEPS), r)
        source = mixed + (r * channels + keys) * 4
        copy_floats(source, field(block, K) + place * keys * 4, keys)
        copy_floats(source + keys * 4, field(block, V) + place * values * 4, values)
        copy_floats(gates + r * 2 * heads * 4, field(block, BETA) + place * heads * 4, heads)
        copy_floats(gates + (2 * r + 1) * heads * 4, field(block, DECAY) + place * heads * 4, heads)
        copy_floats(proj + r * row, field(block, CONV_ROWS) + place * channels * 4, channels)
    for c in range(field(window, CAPTURES)):
        capture = window + (CAPTURE + c * 3) * 8
        slot, after = i64_at(capture), i64_at(capture + 8)
        conv = field(block, CONV) + slot * width * channels * 4
        first = field(field(window, FIRST), slot)
        to = field(block, SNAP_CONV) + i64_at(capture + 16) * field(block, SNAP_CONV_STRIDE)
        for j in range(width):
            at = seen(conv, proj, row, first, channels, width, after + j)
            copy_floats(at, to + j * channels * 4, channels)
    for slot in range(field(block, SLOTS)):
        many = field(field(window, MANY), slot)
        if many and field(field(window, CERTAIN), slot):
            conv = field(block, CONV) + slot * width * channels * 4
            first = field(field(window, FIRST), slot)
            for j in range(width):  # what is overwritten lies before what is still read
                at = seen(conv, proj, row, first, channels, width, many + j)
                copy_floats(at, conv + j * channels * 4, channels)


@kernel(void(i64, i64))
def replay_columns(block: int, slot: int) -> None:
    """Convolution columns of a slot past its pending rows."""
    keys = field(block, KEY_HEADS) * field(block, KEY_DIM)
    channels = 2 * keys + field(block, VALUE_HEADS) * field(block, VALUE_DIM)
    width, pending = field(block, KERNEL) - 1, field(field(block, PENDING), slot)
    conv = field(block, CONV) + slot * width * channels * 4
    held = field(block, CONV_ROWS) + slot * field(block, HELD) * channels * 4
    for j in range(width if pending else 0):
        copy_floats(seen(conv, held, channels * 4, 0, channels, width, pending + j), conv + j * channels * 4, channels)


@kernel(void(i64, i64, i64, i64, i64, i64))
def gated_delta(x: int, out: int, block: int, window: int, scratch: int, room: int) -> None:
    """out = x + the block. `scratch`: of `workspace.gated_delta_bytes`; `room`: a product's."""
    hidden, rows, eps = field(block, HIDDEN), field(window, COUNT), f32_at(block + EPS * 8)
    heads, value_dim = field(block, VALUE_HEADS), field(block, VALUE_DIM)
    values = heads * value_dim
    channels = 2 * field(block, KEY_HEADS) * field(block, KEY_DIM) + values
    wide, row = hidden * 4, (channels + values) * 4
    h = scratch
    proj = h + rows * wide
    mixed = proj + rows * row
    gates = mixed + rows * channels * 4
    y = gates + rows * 2 * heads * 4
    strip = y + rows * values * 4
    rms_norm_rows(x, field(block, NORM), h, rows, hidden, eps)
    multiply(h, wide, rows, field(block, QKV), 0, 0, proj, row, room)
    multiply(h, wide, rows, field(block, Z), 0, 0, proj + channels * 4, row, room)
    multiply(h, wide, rows, field(block, B), 0, 0, gates, 2 * heads * 4, room)
    multiply(h, wide, rows, field(block, A), 0, 0, gates + heads * 4, 2 * heads * 4, room)
    rate, bias = field(block, RATE), field(block, DT_BIAS)
    for r in range(rows):
        at = gates + r * 2 * heads * 4
        for i in range(0, heads, WIDTH):
            some = heads - i
            put_some(at + i * 4, sigmoid(get_some(at + i * 4, some)), some)
            to = at + (heads + i) * 4
            gate = softplus(get_some(to, some) + get_some(bias + i * 4, some))
            put_some(to, exp(get_some(rate + i * 4, some) * gate), some)
    slots, pending = field(block, SLOTS), field(block, PENDING)
    for slot in range(slots):
        replay_columns(block, slot)
    convolve(block, window, proj, row, mixed)
    for slot in range(slots):
        if i64_at(pending + slot * 8) or field(field(window, MANY), slot):
            advance(block, window, slot, mixed, channels * 4, gates, y, strip)
            set_i64(pending + slot * 8, 0)
    leave(block, window, proj, row, mixed, gates)
    out_norm = field(block, OUT_NORM)
    for r in range(rows):
        z = proj + r * row + channels * 4
        for head in range(heads):
            at = y + (r * values + head * value_dim) * 4
            rms_norm(at, out_norm, at, value_dim, eps)
        for i in range(0, values, WIDTH):
            some, at = values - i, y + (r * values + i) * 4
            put_some(at, get_some(at, some) * silu(get_some(z + i * 4, some)), some)
    multiply(y, values * 4, rows, field(block, OUT), 0, 0, out, wide, room)
    add(x, out, rows * hidden)
    copy_floats(x + rows * wide, out + rows * wide, (field(window, PADDED) - rows) * hidden)
