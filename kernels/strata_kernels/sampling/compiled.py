"""The noise of `reference.py` as compiled functions: the same integers, logarithms in double precision."""

import math

from strata_kernels.compiling import kernel
from strata_kernels.vectors import f32, f32_at, i64, i64_at, set_f32, void

MOST = 22.9  # above any noise: -log(0.5 * 2^-32) = 22.87
MASK = 0xFFFFFFFF


@kernel(f32(i64, i64, i64, i64))
def gumbel(seed: int, token: int, position: int, purpose: int) -> float:
    """Standard Gumbel noise of one (seed, id, position, purpose)."""
    key0, key1 = seed & MASK, (seed >> 32) & MASK
    c0, c1, c2, c3 = token & MASK, position & MASK, purpose, 0
    for _ in range(10):
        # Signed 64-bit products wrap, but their bits are those of the unsigned ones.
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ key0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ key1, p0 & MASK
        key0, key1 = (key0 + 0x9E3779B9) & MASK, (key1 + 0xBB67AE85) & MASK
    v = min((float(c0) + 0.5) * 2.0**-32, 1.0 - 2.0**-24)
    return -math.log(-math.log1p(-float(f32(v))))


@kernel(void(i64, i64, i64, i64, i64, i64, i64))
def add_gumbel(scores: int, ids: int, rows: int, width: int, seeds: int, positions: int, purpose: int) -> None:
    """Add the noise of ids int64 [rows, width] to scores float32 of the same shape; seeds, positions int64 [rows]."""
    for r in range(rows):
        for i in range(width):
            at = (r * width + i) * 4
            noise = gumbel(i64_at(seeds + r * 8), i64_at(ids + at * 2), i64_at(positions + r * 8), purpose)
            set_f32(scores + at, f32_at(scores + at) + noise)
