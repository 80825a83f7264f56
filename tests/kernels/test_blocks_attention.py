"""The attention block against float64 loops, and bits that must not depend on company."""

import pytest
import torch

from strata_kernels.attention import attention
from strata_kernels.params import AttentionParams
from strata_kernels.window import KVPool, Rows, Segment
from tests.support.blocks import (
    Seats,
    attention_weights,
    copy_of,
    new_kv,
    plain_attention,
    plain_keys,
    randn,
    segment,
    spread,
)

GATED = AttentionParams(48, 4, 2, 64, 16, 10_000.0, 1e-6, gated=True, qk_norm=True)
SHAPES = [
    GATED,
    AttentionParams(40, 6, 2, 80, 80, 500.0, 1e-5),
    AttentionParams(32, 3, 3, 128, 64, 1e6, 1e-6, qk_norm=True),
    AttentionParams(24, 8, 1, 256, 64, 1e7, 1e-6, gated=True),
]
# One row at the very beginning; contexts of several pages and one more, in company; one long prompt.
LAYOUTS = {
    "1 row": [segment(2, 0, 1)],
    "3 rows": [segment(1, 320, 3)],
    "17 rows, mixed": [segment(3, 321, 2), segment(0, 63, 5), segment(2, 1, 10, certain=True)],
    "63 rows": [segment(1, 254, 3), segment(0, 0, 60, certain=True)],
}


def row_values(segments: list[Segment], hidden: int) -> list[torch.Tensor]:
    """Hidden rows that depend on slot and position alone."""
    return [torch.stack([randn(hidden, seed=1000 * s.slot + s.position + i) for i in range(s.rows)]) for s in segments]


def run(
    segments: list[Segment], seats: Seats, pool: KVPool, p: AttentionParams, layer: int = 1, padded: int = 0
) -> tuple[Rows, list[torch.Tensor]]:
    """The window's rows and what each segment's became."""
    rows = seats.lay(segments, padded)
    x = spread(row_values(segments, p.hidden), rows)
    out = attention(x, rows, pool, layer, attention_weights(p), p)
    assert out.shape == x.shape and out.dtype == x.dtype
    return rows, list(out[: rows.count].split([s.rows for s in segments]))


@pytest.mark.parametrize("first_key", [0, 1])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("layout", LAYOUTS)
def test_attention_is_what_loops_give(layout: str, shape: int, dtype: str, first_key: int) -> None:
    p = SHAPES[shape]
    p = AttentionParams(**{name: getattr(p, name) for name in p.__slots__} | {"first_key": first_key})
    segments = [Segment(s.slot, s.position + first_key, s.tokens, certain=s.certain) for s in LAYOUTS[layout]]
    seats = Seats(4, 400)
    pool, w = new_kv(p, seats, dtype=dtype), attention_weights(p)
    before = copy_of(pool)
    _, found = run(segments, seats, pool, p)
    k, v = pool.k[1].flatten(0, 1), pool.v[1].flatten(0, 1)
    written = []
    for s, xs, outs in zip(segments, row_values(segments, p.hidden), found):
        places = [seats.place(s.slot, i) for i in range(s.position + s.rows)]
        for i in {0, s.rows // 2, s.rows - 1}:
            position = s.position + i
            k_row, v_row = plain_keys(xs[i], position, w, p)
            rounding = 0.02 if dtype == "bfloat16" else 1e-4  # of float32 angles
            assert torch.allclose(k[places[position]].double(), k_row, atol=rounding, rtol=rounding)
            assert torch.allclose(v[places[position]].double(), v_row, atol=rounding, rtol=rounding)
            seen = places[: position + 1]  # keys and values as they are stored
            expected = plain_attention(xs[i], position, k[seen], v[seen], w, p)
            assert torch.allclose(outs[i].double(), expected, atol=1e-4)
        written += places[s.position :]
    for now, then in ((pool.k, before.k), (pool.v, before.v)):
        now.flatten(1, 2)[1, written] = then.flatten(1, 2)[1, written]
        assert torch.equal(now, then), "nothing but the rows' own places of this layer is written"


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_company_order_and_padding_change_no_bit(shape: int) -> None:
    p, seats = SHAPES[shape], Seats(4, 700)
    segments = [segment(3, 321, 2), segment(0, 63, 5), segment(1, 600, 1), segment(2, 1, 17, certain=True)]
    start = new_kv(p, seats)
    pool = copy_of(start)
    _, together = run(segments, seats, pool, p)
    for order, padded in (([1, 2, 0, 3], 0), ([0, 1, 2, 3], 64), ([2, 1, 0, 3], 40)):
        again = copy_of(start)
        _, found = run([segments[i] for i in order], seats, again, p, padded=padded)
        assert all(torch.equal(rows, together[i]) for rows, i in zip(found, order))
        assert torch.equal(again.k, pool.k) and torch.equal(again.v, pool.v)
    for i, s in enumerate(segments):
        _, (alone,) = run([s], seats, copy_of(start), p)
        assert torch.equal(alone, together[i])


def test_a_prompt_in_chunks_has_the_bits_of_the_whole() -> None:
    seats = Seats(2, 400)
    pool = new_kv(GATED, seats)
    _, (whole,) = run([segment(1, 200, 63, certain=True)], seats, copy_of(pool), GATED)
    parts = [run([segment(1, at, n)], seats, pool, GATED)[1][0] for at, n in ((200, 1), (201, 3), (204, 59))]
    assert torch.equal(torch.cat(parts), whole)


@pytest.mark.parametrize("first_key", [0, 1])
def test_numbers_of_nobody_reach_no_row(first_key: int) -> None:
    """Page 0, pages of others, the places behind a slot's last key and before its first one may hold anything."""
    p = AttentionParams(48, 4, 2, 64, 16, 10_000.0, 1e-6, gated=True, qk_norm=True, first_key=first_key)
    seats = Seats(4, 700)
    segments = [segment(3, 321, 2), segment(0, 63, 5), segment(2, 1, 17, certain=True)]
    clean = new_kv(p, seats)
    poisoned = copy_of(clean)
    own = [seats.place(s.slot, i) for s in segments for i in range(first_key, s.position)]
    for pool in (poisoned.k, poisoned.v):
        kept = pool.flatten(1, 2)[:, own]
        pool.fill_(torch.nan)
        pool.view(2, -1, *pool.shape[3:])[:, own] = kept
    _, expected = run(segments, seats, clean, p)
    _, found = run(segments, seats, poisoned, p)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))


def test_padding_rows_stay_finite() -> None:
    seats = Seats(3, 300)
    rows = seats.lay([segment(1, 5, 2)], 24)
    x = spread([randn(2, GATED.hidden)], rows)
    out = attention(x, rows, new_kv(GATED, seats), 0, attention_weights(GATED), GATED)
    assert torch.isfinite(out).all()
