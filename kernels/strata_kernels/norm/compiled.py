"""Norms of rows as compiled functions of addresses. A row's bits depend on its length and its numbers alone."""

import math

from strata_kernels.compiling import kernel
from strata_kernels.vectors import WIDTH, all_lanes, f32, fma, get_some, i64, put_some, total, void


@kernel(f32(i64, i64))
def sum_of_squares(x: int, many: int) -> float:
    sums = all_lanes(0.0)
    for i in range(0, many, WIDTH):
        part = get_some(x + i * 4, many - i)
        sums = fma(part, part, sums)
    return total(sums)


@kernel(void(i64, i64, i64, i64, f32))
def rms_norm(x: int, weight: int, out: int, many: int, eps: float) -> None:
    """out = x * rsqrt(mean(x^2) + eps) * weight; one row. out may be x."""
    scale = all_lanes(1.0 / math.sqrt(sum_of_squares(x, many) / many + eps))
    for i in range(0, many, WIDTH):
        some = many - i
        put_some(out + i * 4, get_some(x + i * 4, some) * scale * get_some(weight + i * 4, some), some)


@kernel(void(i64, i64, i64, i64, i64, f32))
def rms_norm_rows(x: int, weight: int, out: int, rows: int, many: int, eps: float) -> None:
    """The rms norm of each of the rows, which lie behind each other."""
    for r in range(rows):
        rms_norm(x + r * many * 4, weight, out + r * many * 4, many, eps)


@kernel(void(i64, i64, f32))
def l2_norm(x: int, many: int, scale: float) -> None:
    """x * scale / sqrt(sum(x^2) + 1e-6), in place; one row."""
    factor = all_lanes(scale / math.sqrt(sum_of_squares(x, many) + 1e-6))
    for i in range(0, many, WIDTH):
        put_some(x + i * 4, get_some(x + i * 4, many - i) * factor, many - i)


@kernel(void(i64, i64, i64))
def add(x: int, to: int, many: int) -> None:
    """to += x."""
    for i in range(0, many, WIDTH):
        some = many - i
        put_some(to + i * 4, get_some(to + i * 4, some) + get_some(x + i * 4, some), some)
