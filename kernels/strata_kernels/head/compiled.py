"""Scores to tokens as compiled functions of addresses. `cpu.py` calls them with tensors.

scores: float32 [W, V]. Addresses of int64: slots, positions, earlier [W]; those of the sampler's pool [S] and [S, V].
"""

import math

from llvmlite import ir

from strata_kernels.compiling import kernel
from strata_kernels.sampling.compiled import MOST, gumbel
from strata_kernels.vectors import (
    F32,
    VF,
    WIDTH,
    Builder,
    Value,
    all_lanes,
    call,
    const,
    exp,
    f32,
    f32_at,
    floats,
    get,
    i32_at,
    i64,
    i64_at,
    load,
    op,
    set_f32,
    set_i64,
    total,
    void,
)

I32, i64_type = ir.IntType(32), ir.IntType(64)


@op(i64, i64)
def byte_at(b: Builder, address: Value) -> Value:
    return b.zext(load(b, address, ir.IntType(8)), i64_type)


@op(floats, floats, floats)
def larger(b: Builder, x: Value, y: Value) -> Value:
    """The larger of each lane; not a number where either is not."""
    return call(b, f"llvm.maximum.v{WIDTH}f32", VF, x, y)


@op(f32, floats)
def largest(b: Builder, x: Value) -> Value:
    """The largest lane; not a number where one is not."""
    width = WIDTH
    while width > 1:
        width //= 2
        kind = ir.VectorType(I32, width)
        low = b.shuffle_vector(x, x, ir.Constant(kind, list(range(width))))
        high = b.shuffle_vector(x, x, ir.Constant(kind, list(range(width, 2 * width))))
        x = call(b, f"llvm.maximum.v{width}f32", ir.VectorType(F32, width), low, high)
    return b.extract_element(x, ir.Constant(I32, 0))


@op(floats, floats, floats, floats)
def where_at_least(b: Builder, x: Value, floor: Value, y: Value) -> Value:
    """y where x >= floor, else 0."""
    return b.select(b.fcmp_ordered(">=", x, floor), y, const(VF, 0.0))


@kernel(f32(i64, i64))
def best_of(row: int, width: int) -> float:
    """The largest of a row; not a number where one is not."""
    top = all_lanes(-math.inf)
    whole = width - width % WIDTH
    for i in range(0, whole, WIDTH):
        top = larger(top, get(row + i * 4))
    found = largest(top)
    for i in range(whole, width):
        value = f32_at(row + i * 4)
        if value > found or value != value:
            found = value
    return found


@kernel(i64(i64, i64, f32))
def place_of(row: int, width: int, value: float) -> int:
    """Where in a row a value stands first; where it is not a number, the first that is none."""
    for i in range(width):
        x = f32_at(row + i * 4)
        if x == value or (value != value and x != x):
            return i
    return 0


@kernel(f32(i64, i64, f32, f32, f32))
def mass(row: int, width: int, divisor: float, top: float, floor: float) -> float:
    """Sum of exp(x / divisor - top) over the x / divisor of at least `floor`."""
    sums = all_lanes(0.0)
    whole = width - width % WIDTH
    for i in range(0, whole, WIDTH):
        z = get(row + i * 4) / all_lanes(divisor)
        sums = sums + where_at_least(z, all_lanes(floor), exp(z - all_lanes(top)))
    rest = f32(0.0)
    for i in range(whole, width):
        x = f32_at(row + i * 4) / divisor
        if x >= floor:
            rest += f32(math.exp(x - top))
    return total(sums) + rest


@kernel(void(i64, i64, i64, i64))
def mask_behind(scores: int, rows: int, width: int, real: int) -> None:
    """-inf for the ids from `real` on."""
    for r in range(rows):
        for i in range(real, width):
            set_f32(scores + (r * width + i) * 4, -math.inf)


@kernel(f32(f32, f32, f32, f32, f32, i64))
def punished(x: float, repetition: float, frequency: float, presence: float, bias: float, times: int) -> float:
    """The score of a token that was generated `times` times."""
    y = x * repetition if x < 0 else x / repetition
    return float(y - f32(times) * frequency - (presence if times else f32(0.0)) + bias)


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64))
def penalize(
    scores: int,
    rows: int,
    width: int,
    out: int,
    slots: int,
    earlier: int,
    drafts: int,
    chain: int,
    repetition: int,
    frequency: int,
    presence: int,
    counts: int,
    seen: int,
    bias: int,
) -> None:
    """See `reference.penalize`."""
    for r in range(rows):
        s = i64_at(slots + r * 8)
        a, b, c = f32_at(repetition + s * 4), f32_at(frequency + s * 4), f32_at(presence + s * 4)
        row, to = scores + r * width * 4, out + r * width * 4
        own_counts, own_seen, own_bias = counts + s * width * 4, seen + s * width, bias + s * width * 4
        for i in range(width):
            x, times, more = f32_at(row + i * 4), i32_at(own_counts + i * 4), f32_at(own_bias + i * 4)
            known = times > 0 or byte_at(own_seen + i) != 0
            set_f32(to + i * 4, punished(x, a, b, c, more, times) if known else x + more)
        many = i64_at(earlier + r * 8)
        for j in range(many):
            token = i64_at(drafts + (s * chain + j) * 8)
            times = i32_at(own_counts + token * 4)
            for k in range(many):
                times += 1 if i64_at(drafts + (s * chain + k) * 8) == token else 0
            x, more = f32_at(row + token * 4), f32_at(own_bias + token * 4)
            set_f32(to + token * 4, punished(x, a, b, c, more, times))


@kernel(void(i64, i64, i64, i64, i64, i64))
def draw_best(scores: int, rows: int, width: int, tokens: int, best: int, probability: int) -> None:
    """The first of the largest scores of each row, int64; `best` the score, and its share where `probability` is not
    0.
    """
    for r in range(rows):
        row = scores + r * width * 4
        top = best_of(row, width)
        set_i64(tokens + r * 8, place_of(row, width, top))
        set_f32(best + r * 4, top)
        if probability:
            set_f32(probability + r * 4, f32(1.0) / mass(row, width, f32(1.0), top, f32(-math.inf)))


@kernel(void(i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64, i64))
def draw_noisy(
    scores: int,
    chosen: int,
    many: int,
    width: int,
    slots: int,
    positions: int,
    seeds: int,
    temperature: int,
    min_p: int,
    purpose: int,
    tokens: int,
    probability: int,
) -> None:
    """The argmax of score / temperature + noise over the ids that min_p leaves, of rows chosen [many] (int64; 0: all).

    An id is not given its noise where no noise could make it the largest, which changes nothing.
    """
    for n in range(many):
        r = i64_at(chosen + n * 8) if chosen else n
        s = i64_at(slots + r * 8)
        row, seed, position = scores + r * width * 4, i64_at(seeds + s * 8), i64_at(positions + r * 8)
        divisor = f32_at(temperature + s * 4)
        best = best_of(row, width)
        top = best / divisor
        floor = top + f32_at(min_p + s * 4)
        pick = place_of(row, width, best)
        ahead = top + gumbel(seed, pick, position, purpose)
        for i in range(width):
            z = f32_at(row + i * 4) / divisor
            if z >= floor and z + f32(MOST) >= ahead and z > -math.inf:
                noisy = z + gumbel(seed, i, position, purpose)
                if noisy > ahead or (noisy == ahead and i < pick):
                    ahead, pick = noisy, i
        set_i64(tokens + r * 8, pick)
        if probability:
            z = f32_at(row + pick * 4) / divisor
            set_f32(probability + r * 4, f32(math.exp(z - top)) / mass(row, width, divisor, top, floor))


@kernel(void(i64, i64, i64, i64, i64, i64))
def gather_rows(x: int, stride: int, rows: int, many: int, width: int, out: int) -> None:
    """out [many, width] = the rows of x that rows (int64 [many]) name."""
    for r in range(many):
        source = x + i64_at(rows + r * 8) * stride
        for i in range(width):
            set_f32(out + (r * width + i) * 4, f32_at(source + i * 4))
