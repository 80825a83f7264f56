"""How fast products with packed weights are on this CPU, beside what the machine gives: a plain loop of fused
multiply-adds and a plain copy, measured in the same run, one thread each.

    python examples/product_speed.py [--shapes 512x192,2048x2048] [--rows 1,4,20,128] [--formats int4,int8,bf16,f32]

A figure is the best of several runs: GFLOP/s (2 x rows x out x in) and GB/s of packed weights. Big shapes are read from
memory, small ones from a cache; a product of one row is bound by reading, of many by arithmetic.
"""

import argparse
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch

from strata_cli.model.weights.formats.int4 import quantize
from strata_kernels import compiling
from strata_kernels.formats import label
from strata_kernels.product import product
from strata_kernels.weight import Weight

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


def best(run: Callable[[], object], seconds: float = 0.2) -> float:
    """Seconds of the fastest of several runs."""
    run()
    start = time.perf_counter()
    run()
    many = max(1, int(0.02 / max(time.perf_counter() - start, 1e-7)))
    found, end = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        for _ in range(many):
            run()
        found = min(found, (time.perf_counter() - start) / many)
    return found


def weight_of(format: str, n: int, k: int) -> Weight:
    values = torch.randn(n, k, generator=torch.Generator().manual_seed(1))
    if format in DTYPES:
        return Weight(format, {"weight": values.to(DTYPES[format])}, (n, k))
    stored = quantize(values, int(format.removeprefix("int")), 32)
    return Weight(format, {"packed": stored["weight_packed"], "scale": stored["weight_scale"]}, (n, k))


def plain_fma() -> float:
    """GFLOP/s of a loop that does nothing but fused multiply-adds of registers."""
    from strata_kernels.compiling import kernel
    from strata_kernels.vectors import WIDTH, all_lanes, f32, fma, i64, total

    @kernel(f32(i64, f32))
    def loop(many: int, value: float) -> float:
        x, y = all_lanes(value), all_lanes(0.999)
        a, b, c, d, e, f, g, h, i, j = x, x, x, x, x, x, x, x, x, x
        for _ in range(many):
            a, b, c, d, e = fma(a, y, x), fma(b, y, x), fma(c, y, x), fma(d, y, x), fma(e, y, x)
            f, g, h, i, j = fma(f, y, x), fma(g, y, x), fma(h, y, x), fma(i, y, x), fma(j, y, x)
        return total(a + b + c + d + e + (f + g + h + i + j))

    many = 100_000
    return 2 * 10 * WIDTH * many / best(lambda: loop(many, 1.0)) / 1e9


def plain_copy(mib: int) -> float:
    """GB/s of copying `mib` MiB: bytes read and bytes written."""
    source = np.ones(mib << 20, np.uint8)
    to = np.empty_like(source)
    return 2 * source.nbytes / best(lambda: np.copyto(to, source)) / 1e9


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default="128x192,512x192,2048x192,2048x2048")
    parser.add_argument("--rows", default="1,4,8,20,128")
    parser.add_argument("--formats", default="int4,int8,bf16,f32")
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    if compiling.fault():
        print(f"no compiled kernels: {compiling.fault()}; these are figures of the reference", file=sys.stderr)
    else:
        print(f"a plain loop of multiply-adds: {plain_fma():.1f} GFLOP/s")
    print(f"a plain copy: {plain_copy(256):.1f} GB/s of memory, {plain_copy(1):.1f} of a cache")
    rows = [int(r) for r in options.rows.split(",")]
    print(f"{'format':10} {'out x in':>12} " + "".join(f"{f'{r} rows':>18}" for r in rows) + "   (GFLOP/s, GB/s)")
    for shape in options.shapes.split(","):
        n, k = (int(size) for size in shape.split("x"))
        for format in options.formats.split(","):
            weight = weight_of(format, n, k)
            figures = []
            for r in rows:
                x = torch.randn(r, k, generator=torch.Generator().manual_seed(2))
                seconds = best(lambda x=x, weight=weight, r=r: product(x, [weight], r))  # type: ignore[misc]
                figures.append(f"{2 * r * n * k / seconds / 1e9:9.1f} {weight.nbytes / seconds / 1e9:8.1f}")
            print(f"{label(weight):10} {shape:>12} " + "".join(figures), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
