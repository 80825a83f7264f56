"""The blocks' compiled twins against their references: outputs, pools, and bits that must not depend on company."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from strata_kernels import compiling
from strata_kernels.params import AttentionParams, ExpertsParams, GatedDeltaParams, MtpInputParams, MtpInputWeights
from strata_kernels.table import sibling
from strata_kernels.weight import Weight
from strata_kernels.window import Segment
from strata_kernels.workspace import block_bytes
from tests.kernels.test_product import distance, packed_weight
from tests.support.blocks import (
    Seats,
    attention_weights,
    copy_of,
    dense,
    experts_weights,
    gated_delta_weights,
    near_one,
    new_kv,
    new_recurrent,
    randn,
    segment,
    spread,
)

pytestmark = pytest.mark.skipif(bool(compiling.fault()), reason="no compiled kernels here")

Run = Callable[..., Tensor]

ATTENTION = [
    AttentionParams(48, 4, 2, 64, 16, 10_000.0, 1e-6, gated=True, qk_norm=True),
    AttentionParams(40, 6, 1, 256, 64, 1e6, 1e-5, gated=True, qk_norm=True, first_key=1),
    AttentionParams(33, 3, 3, 24, 24, 10_000.0, 1e-6),
]
DELTA = [
    GatedDeltaParams(48, 2, 4, 64, 64, 4, 1e-6),
    GatedDeltaParams(40, 1, 3, 81, 24, 3, 1e-5),
    GatedDeltaParams(33, 3, 3, 16, 128, 2, 1e-6),
]
EXPERTS = [
    ExpertsParams(48, 8, 2, 32, 64, 1e-6, shared_gated=True),
    ExpertsParams(40, 17, 5, 24, 0, 1e-6, router="sigmoid", scale=2.5),
    ExpertsParams(33, 0, 0, 0, 71, 1e-6),
    ExpertsParams(64, 5, 3, 40, 16, 1e-6, normalize=False),
]
# Decode rows at the edges of pages, drafts, and a prompt's rows; the last window has more than any tile.
WINDOWS: list[list[Segment]] = [
    [segment(1, 9, 1)],
    [segment(2, 63, 3), segment(0, 1, 1)],
    [segment(3, 127, 5), segment(0, 300, 1), segment(1, 64, 4), segment(2, 128, 33, True, [(32, 1), (33, 2)])],
    [segment(0, 0 + 1, 70, True, [(1, 0), (64, 3)])],
]


def twins(what: str) -> tuple[Run, Run]:
    found = tuple(sibling(what, formats, "cpu") for formats in (("f32",), ("what no kernel reads",)))
    assert [module.__name__.rpartition(".")[2] for module in found] == ["cpu", "reference"]
    return getattr(found[0], what), getattr(found[1], what)


def rows_of(segments: Sequence[Segment], hidden: int) -> list[Tensor]:
    """Hidden rows that depend on slot and position alone."""
    return [torch.stack([randn(hidden, seed=1000 * s.slot + s.position + i) for i in range(s.rows)]) for s in segments]


def pools_agree(found: Any, expected: Any, before: Any) -> None:
    for field in dataclasses.fields(found):
        a, b = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "cache":
            continue
        if not a.dtype.is_floating_point:
            assert torch.equal(a, b), field.name
            continue
        assert distance(a.float(), b.float()) < 1e-5, field.name
        same = b == getattr(before, field.name)
        assert torch.equal(a[same], b[same]), f"{field.name}: written where the reference writes nothing"


def packed(weights: Any) -> Any:
    """The same weights with their matrices as int4 where groups of eight fit."""
    changed = {}
    for field in dataclasses.fields(weights):
        value = getattr(weights, field.name)
        if isinstance(value, Weight) and value.shape[1] % 8 == 0:
            changed[field.name] = packed_weight(4, *value.shape, 8)[0]
    return dataclasses.replace(weights, **changed)


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", range(len(ATTENTION)))
def test_attention_agrees_with_its_reference(shape: int, dtype: str, window: int) -> None:
    p, segments, seats = ATTENTION[shape], WINDOWS[window], Seats(4, 512)
    fast, reference = twins("attention")
    rows, x = seats.lay(segments), spread(rows_of(segments, p.hidden), seats.lay(segments))
    for weights in (attention_weights(p), packed(attention_weights(p))):
        before = new_kv(p, seats, dtype=dtype)
        first, second = copy_of(before), copy_of(before)
        expected = reference(x, rows, second, 1, weights, p)[: rows.count]
        rows.cache.clear()
        found = fast(x, rows, first, 1, weights, p)
        assert found.isfinite().all()
        if dtype == "float32":
            assert distance(found[: rows.count], expected) < 1e-5
            pools_agree(first, second, before)
        else:  # a key that rounds otherwise moves its row a little
            assert distance(found[: rows.count], expected) < 2e-3
        rows.cache.clear()


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize("shape", range(len(DELTA)))
def test_gated_delta_agrees_with_its_reference(shape: int, window: int) -> None:
    p, segments, seats = DELTA[shape], WINDOWS[window], Seats(4, 512)
    fast, reference = twins("gated_delta")
    rows = seats.lay(segments, replay=5)
    x = spread(rows_of(segments, p.hidden), rows)
    for weights in (gated_delta_weights(p), packed(gated_delta_weights(p))):
        before = new_recurrent(p, 4)
        before.pending[1] = torch.tensor([2, 0, 5, 1])
        first, second = copy_of(before), copy_of(before)
        expected = reference(x, rows, second, 1, weights, p)[: rows.count]
        rows.cache.clear()
        found = fast(x, rows, first, 1, weights, p)
        rows.cache.clear()
        assert found.isfinite().all()
        assert distance(found[: rows.count], expected) < 1e-5
        pools_agree(first, second, before)


@pytest.mark.parametrize("window", range(len(WINDOWS)))
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", range(len(EXPERTS)))
def test_experts_agree_with_their_reference(shape: int, biased: bool, window: int) -> None:
    p, segments, seats = EXPERTS[shape], WINDOWS[window], Seats(4, 512)
    fast, reference = twins("experts")
    rows = seats.lay(segments)
    x = spread(rows_of(segments, p.hidden), rows)
    for weights in (experts_weights(p, biased, biased), packed(experts_weights(p, biased))):
        first, second = torch.zeros(2, max(1, p.experts), dtype=torch.int64), torch.zeros(2, max(1, p.experts)).long()
        expected = reference(x, rows, second, 1, weights, p)[: rows.count]
        rows.cache.clear()
        found = fast(x, rows, first, 1, weights, p)
        rows.cache.clear()
        assert found.isfinite().all()
        assert distance(found[: rows.count], expected) < 1e-5
        assert torch.equal(first, second)


def test_equal_scores_take_the_lower_expert_and_nan_is_not_dropped() -> None:
    p = EXPERTS[1]
    weights = experts_weights(p)
    assert weights.router is not None and weights.bank is not None
    fast, _ = twins("experts")
    rows = Seats(1, 64).lay([segment(0, 3, 2)])
    x = randn(rows.padded, p.hidden)
    router = weights.router.parts["weight"]
    router.zero_()
    touched = torch.zeros(1, p.experts, dtype=torch.int64)
    fast(x, rows, touched, 0, weights, p)
    assert touched[0].nonzero().flatten().tolist() == list(range(p.top_k))
    router[13] = torch.nan
    touched.zero_()
    out = fast(x, rows, touched, 0, weights, p)
    assert touched[0].nonzero().flatten().tolist() == [0, 1, 2, 3, 13]
    assert out[: rows.count].isnan().all()


@pytest.mark.parametrize("format", ["f32", "int4", "bf16"])
def test_mtp_input_agrees_with_its_reference(format: str) -> None:
    fast, reference = twins("mtp_input")
    hidden, vocab = 48, 70
    p = MtpInputParams(hidden, 1e-6)
    weights = MtpInputWeights(near_one(hidden, 1), near_one(hidden, 2), dense(hidden, 2 * hidden, 3))
    pool = dense(vocab, hidden, 4)
    if format == "int4":
        pool = packed_weight(4, vocab, hidden, 16)[0]
    elif format == "bf16":
        pool = Weight("bf16", {"weight": pool.parts["weight"].bfloat16()}, pool.shape)
    rows = Seats(3, 64).lay([segment(1, 5, 4), segment(0, 9, 9, True)])
    rows.tokens[: rows.count] = torch.arange(rows.count) * 5
    x = randn(rows.padded, hidden, seed=5)
    found, expected = (run(x, rows, pool, 0, weights, p) for run in (fast, reference))
    assert distance(found[: rows.count], expected[: rows.count]) < 1e-5
    assert found.isfinite().all()


@pytest.mark.parametrize("what", ["attention", "experts", "gated_delta", "mtp_input"])
def test_company_order_and_padding_change_no_bit(what: str) -> None:
    """Each slot's rows alone, and all in another order and with more padding, over pools that start alike."""
    fast, _ = twins(what)
    segments, seats = WINDOWS[2], Seats(4, 512)
    p: Any = {"attention": ATTENTION[0], "gated_delta": DELTA[0], "experts": EXPERTS[0]}.get(what)
    p = p or MtpInputParams(48, 1e-6)
    weights: Any
    if what == "attention":
        weights, pool = attention_weights(p), new_kv(p, seats)
    elif what == "gated_delta":
        weights, pool = gated_delta_weights(p), new_recurrent(p, 4)
        pool.pending[1] = torch.tensor([2, 0, 5, 1])
    elif what == "experts":
        weights, pool = experts_weights(p), torch.zeros(2, p.experts, dtype=torch.int64)
    else:
        weights, pool = MtpInputWeights(near_one(48, 1), near_one(48, 2), dense(48, 96, 3)), dense(7, 48, 4)

    def run(which: Sequence[Segment], padded: int = 0) -> tuple[list[Tensor], Any]:
        start = pool.clone() if isinstance(pool, Tensor) else pool if isinstance(pool, Weight) else copy_of(pool)
        rows = seats.lay(which, padded, 5)
        out = fast(spread(rows_of(which, 48), rows), rows, start, 1, weights, p)
        return list(out[: rows.count].split([s.rows for s in which])), start

    together, after = run(segments)
    for order, padded in (([1, 2, 0, 3], 64), ([2, 0, 1, 3], 0)):
        found, again = run([segments[i] for i in order], padded)
        assert all(torch.equal(rows, together[i]) for rows, i in zip(found, order))
        if dataclasses.is_dataclass(again) and not isinstance(again, Weight):
            names = [f.name for f in dataclasses.fields(again) if f.name != "cache"]
            assert all(torch.equal(getattr(again, name), getattr(after, name)) for name in names)
    for i, s in enumerate(segments):
        assert torch.equal(run([s])[0][0], together[i])


def test_drafts_that_are_kept_leave_what_reading_them_leaves() -> None:
    """Rows that were drafts, replayed, give state and columns bit for bit as one after the other does."""
    fast, _ = twins("gated_delta")
    p, seats = DELTA[0], Seats(1, 64)
    weights, at_once = gated_delta_weights(p), new_recurrent(p, 1)
    one_by_one = copy_of(at_once)
    x = randn(8, p.hidden, seed=3)
    fast(x, seats.lay([segment(0, 9, 4)]), at_once, 1, weights, p)
    at_once.pending[1] = 3
    for i in range(3):
        fast(x[i : i + 1].expand(8, -1), seats.lay([segment(0, 9 + i, 1)], replay=1), one_by_one, 1, weights, p)
        one_by_one.pending[1] = 1
    for pool, replay in ((at_once, 3), (one_by_one, 1)):
        last = fast(x[3:4].expand(8, -1), seats.lay([segment(0, 12, 1)], replay=replay), pool, 1, weights, p)[:1]
        pool.cache["last"] = last
    assert torch.equal(at_once.cache["last"], one_by_one.cache["last"])
    assert torch.equal(at_once.state, one_by_one.state) and torch.equal(at_once.conv, one_by_one.conv)


def test_more_drafts_than_a_pool_holds_are_refused() -> None:
    fast, _ = twins("gated_delta")
    p, seats = DELTA[0], Seats(1, 64)
    with pytest.raises(AssertionError, match="decode rows"):
        fast(randn(8, p.hidden), seats.lay([segment(0, 3, 6)]), new_recurrent(p, 1), 1, gated_delta_weights(p), p)


@pytest.mark.parametrize("rows", [1, 5, 130])
def test_blocks_work_in_the_room_that_the_plan_counts(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is written behind it, and a block asks for just what `workspace` says."""
    seats, asked = Seats(1, 512), []

    class Guarded:
        def address(self, size: int) -> int:
            self.room = torch.full((size + 4096,), 0xA5, dtype=torch.uint8)
            asked.append(size)
            return self.room.data_ptr()

    laid = seats.lay([segment(0, 1, rows, rows > 5)])
    cases: list[tuple[str, Any, Any, Any, int]] = []
    for a in ATTENTION:
        cases.append(("attention", a, packed(attention_weights(a)), new_kv(a, seats), a.heads * a.head_dim // 8))
    for d in DELTA:
        cases.append(("gated_delta", d, packed(gated_delta_weights(d)), new_recurrent(d, 1), 48))
    for e in EXPERTS:
        touched = torch.zeros(2, max(1, e.experts), dtype=torch.int64)
        cases.append(("experts", e, packed(experts_weights(e)), touched, max(e.hidden, e.shared_inner) // 8))
    for what, p, weights, pool, groups in cases:
        guarded = Guarded()
        monkeypatch.setattr(sibling(what, ("f32",), "cpu"), "scratch", guarded)
        twins(what)[0](randn(laid.padded, p.hidden), laid, pool, 1, weights, p)
        laid.cache.clear()
        assert (guarded.room[-4096:] == 0xA5).all(), what
        assert asked[-1] <= block_bytes(p, rows, groups)
        if rows == 130:  # it is not idly large
            assert (guarded.room[: asked[-1]] != 0xA5).float().mean() > 0.5
