"""The two inner routines of a packed product: a panel of weights unpacked, and a tile of rows multiplied with it.

A panel is what BLOCK columns of 2 * WIDTH weight rows are as numbers, [BLOCK, 2 * WIDTH] float32, a vector for a column
of WIDTH rows. All formats lie along the columns in 32-bit words; `columns` turns WIDTH rows of WIDTH words about, and
`WORDS` makes of one word of WIDTH rows its columns: all that a new format of that kind must bring.
"""

from collections.abc import Callable, Sequence
from typing import Any

from llvmlite import ir
from numba.core import cgutils

from strata_kernels.vectors import (
    BYTES,
    F32,
    I64,
    VF,
    VI,
    WIDTH,
    Builder,
    Value,
    below,
    const,
    f32,
    fused,
    half,
    i64,
    ints,
    load,
    masked_load,
    masked_store,
    number,
    op,
    spread,
    store,
    void,
)
from strata_kernels.workspace import PANEL_COLUMNS

BLOCK = PANEL_COLUMNS  # columns summed before they are added to the output; a multiple of WIDTH words of every format
UNITS = 2  # vectors side by side in a panel
PANEL_STRIDE = UNITS * BYTES
CHAINS = 2  # sums of a block: of its even and of its odd columns
MOST_ROWS = 8 if WIDTH == 16 else 4  # what the registers hold


def rows_tile(rows: int, units: int) -> Any:
    """Multiply `rows` rows of x with `units` vectors of a panel."""

    @op(void, *[i64] * 9)
    def multiply(
        b: Builder,
        x: Value,
        x_stride: Value,
        panel: Value,
        panel_stride: Value,
        many: Value,
        out: Value,
        out_stride: Value,
        lanes: Value,
        first: Value,
    ) -> None:
        """out (+)= x [rows, many] times panel [many, lanes]; added to what is there unless first."""
        at = [b.add(x, b.mul(x_stride, number(r))) for r in range(rows)]
        sums = [
            [[cgutils.alloca_once(b, VF) for _ in range(CHAINS)] for _ in range(units)] for _ in range(rows)
        ]  # registers once optimised
        for chain in (chain for row in sums for unit in row for chain in unit):
            b.store(const(VF, 0.0), chain)

        def column(k: Value, chain: int) -> None:
            base = b.add(panel, b.mul(k, panel_stride))
            weights = [load(b, b.add(base, number(u * BYTES)), VF) for u in range(units)]
            for r in range(rows):
                value = spread(b, load(b, b.add(at[r], b.mul(k, number(4))), F32))
                for u in range(units):
                    b.store(fused(b, weights[u], value, b.load(sums[r][u][chain])), sums[r][u][chain])

        with cgutils.for_range(b, b.udiv(many, number(CHAINS)), intp=I64) as loop:
            for chain in range(CHAINS):
                column(b.add(b.mul(loop.index, number(CHAINS)), number(chain)), chain)
        done = b.mul(b.udiv(many, number(CHAINS)), number(CHAINS))
        for chain in range(CHAINS - 1):
            k = b.add(done, number(chain))
            with b.if_then(b.icmp_signed("<", k, many)):
                column(k, chain)
        for u in range(units):
            mask = below(b, b.sub(lanes, number(u * WIDTH)))
            for r in range(rows):
                value = b.load(sums[r][u][0])
                for chain in range(1, CHAINS):
                    value = b.fadd(value, b.load(sums[r][u][chain]))
                to = b.add(out, b.add(b.mul(out_stride, number(r)), number(u * BYTES)))
                more = b.fadd(masked_load(b, to, VF, mask), value)
                masked_store(b, b.select(b.icmp_signed("!=", first, number(0)), value, more), to, mask)

    return multiply


def _transposed(b: Builder, rows: Sequence[Value]) -> list[Value]:
    """WIDTH vectors of WIDTH words turned about: blocks of half, quarter ... of them change places."""
    rows, apart = list(rows), WIDTH // 2
    while apart:
        first = [lane if not lane & apart else lane - apart + WIDTH for lane in range(WIDTH)]
        second = [lane + apart if not lane & apart else lane + WIDTH for lane in range(WIDTH)]
        for i in range(WIDTH):
            if not i & apart:
                low, high = rows[i], rows[i + apart]
                rows[i] = b.shuffle_vector(low, high, ir.Constant(VI, first))
                rows[i + apart] = b.shuffle_vector(low, high, ir.Constant(VI, second))
        apart //= 2
    return rows


@op(void, *[i64] * 5)
def columns(b: Builder, base: Value, stride: Value, numbers: Value, words: Value, out: Value) -> None:
    """WIDTH words of WIDTH rows, [WIDTH, WIDTH] int32 at `out`, a vector for a word of all rows.

    `numbers`: int64 [WIDTH] of the rows. Words from `words` on are 0, and nothing outside is read.
    """
    mask, rows = below(b, words), []
    for i in range(WIDTH):
        row = load(b, b.add(numbers, number(8 * i)), I64)
        rows.append(masked_load(b, b.add(base, b.mul(row, stride)), VI, mask))
    for i, column in enumerate(_transposed(b, rows)):
        store(b, column, b.add(out, number(i * BYTES)))


def _dense(emit: Callable[[Builder, Value], list[Value]]) -> Any:
    @op(void, ints, i64)
    def word(b: Builder, column: Value, out: Value) -> None:
        """The numbers of one word of WIDTH rows, to the panel at `out`."""
        for i, value in enumerate(emit(b, column)):
            store(b, value, b.add(out, number(i * PANEL_STRIDE)))

    return word


def _short(b: Builder, column: Value) -> list[Value]:
    kind = ir.VectorType(ir.IntType(16), WIDTH)
    return [half(b, b.trunc(b.lshr(column, const(VI, shift)), kind)) for shift in (0, 16)]


f32_word = _dense(lambda b, column: [b.bitcast(column, VF)])
bf16_word = _dense(
    lambda b, column: [
        b.bitcast(b.shl(column, const(VI, 16)), VF),
        b.bitcast(b.and_(column, const(VI, -65536)), VF),
    ]
)
f16_word = _dense(_short)


def _integers(bits: int) -> Any:
    @op(void, ints, i64, i64, i64)
    def word(b: Builder, column: Value, scale: Value, bias: Value, out: Value) -> None:
        """(code - zero) * scale of one word of WIDTH rows, whose scales and -zero * scale lie at addresses.

        Exact but for the last rounding, as both products are, for scales of 16 bits.
        """
        scales, biases = load(b, scale, VF), load(b, bias, VF)
        for i in range(32 // bits):
            code = b.lshr(column, const(VI, i * bits))
            if (i + 1) * bits < 32:
                code = b.and_(code, const(VI, (1 << bits) - 1))
            value = fused(b, b.sitofp(code, VF), scales, biases)
            store(b, value, b.add(out, number(i * PANEL_STRIDE)))

    return word


def _integer(bits: int) -> Any:
    @op(void, ints, i64, i64, i64, i64)
    def one(b: Builder, column: Value, place: Value, scale: Value, bias: Value, out: Value) -> None:
        """As the word's routine, for its column number `place` alone."""
        shift = spread(b, b.trunc(b.mul(place, number(bits)), ir.IntType(32)))
        code = b.and_(b.lshr(column, shift), const(VI, (1 << bits) - 1))
        store(b, fused(b, b.sitofp(code, VF), load(b, scale, VF), load(b, bias, VF)), out)

    return one


int4_word, int8_word = _integers(4), _integers(8)
int4_one, int8_one = _integer(4), _integer(8)


@op(void, i64, i64, f32)
def set_lane(b: Builder, panel: Value, lane: Value, value: Value) -> None:
    """One number of a panel's column."""
    store(b, value, b.add(panel, b.mul(lane, number(4))))
