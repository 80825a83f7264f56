"""Norms as compiled functions of addresses."""

import math

from strata_kernels.compiling import kernel
from strata_kernels.vectors import WIDTH, all_lanes, f32, fma, get_some, i64, put_some, total, void


@kernel(void(i64, i64, i64, i64, i64, f32, i64, i64))
def rms_norm_rows(
    x: int, x_stride: int, rows: int, width: int, weight: int, eps: float, out: int, out_stride: int
) -> None:
    """out [rows, width] = x * rsqrt(mean(x^2) + eps) * weight [width]; float32."""
    for r in range(rows):
        row, to = x + r * x_stride, out + r * out_stride
        squares = all_lanes(0.0)
        for i in range(0, width, WIDTH):
            some = get_some(row + i * 4, width - i)
            squares = fma(some, some, squares)
        scale = all_lanes(1.0 / math.sqrt(total(squares) / f32(width) + eps))
        for i in range(0, width, WIDTH):
            put_some(
                to + i * 4, get_some(row + i * 4, width - i) * scale * get_some(weight + i * 4, width - i), width - i
            )
