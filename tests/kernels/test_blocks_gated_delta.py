"""The gated delta block against float64 loops: replay, drafts, prompts, snapshots; and a window that is done again."""

import dataclasses
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from strata_kernels.gated_delta import gated_delta
from strata_kernels.params import GatedDeltaParams
from strata_kernels.window import RecurrentPool, Segment
from tests.support.blocks import (
    PlainDelta,
    Seats,
    copy_of,
    gated_delta_weights,
    new_recurrent,
    randn,
    segment,
    spread,
)

HELD = ("k", "v", "beta", "decay", "conv_rows")
SHAPES = [
    GatedDeltaParams(48, 2, 4, 64, 64, 4, 1e-6),
    GatedDeltaParams(40, 1, 3, 80, 24, 3, 1e-5),
    GatedDeltaParams(32, 3, 3, 16, 128, 2, 1e-6),
]
# Rows of slots, and pending rows of all four of them.
CASES: dict[str, tuple[list[Segment], list[int]]] = {
    "1 row": ([segment(2, 9, 1)], [0, 0, 0, 0]),
    "3 rows after 1": ([segment(1, 9, 3)], [0, 1, 0, 0]),
    "a slot that sits out has pending rows": ([segment(3, 9, 2), segment(0, 30, 5)], [5, 3, 2, 1]),
    "17 rows, mixed": ([segment(3, 9, 2), segment(0, 4, 5), segment(2, 0, 10, True, [(4, 1)])], [2, 0, 0, 5]),
    "63 rows, captures": (
        [segment(1, 3, 3), segment(3, 64, 33, True, [(32, 0), (33, 3)]), segment(0, 0, 27, True, [(1, 2)])],
        [0, 4, 0, 0],
    ),
}


def values(segments: Sequence[Segment], hidden: int) -> list[Tensor]:
    """Hidden rows that depend on slot and position alone."""
    return [torch.stack([randn(hidden, seed=1000 * s.slot + s.position + i) for i in range(s.rows)]) for s in segments]


def waiting(pool: RecurrentPool, pending: Sequence[int]) -> RecurrentPool:
    pool.pending[:] = torch.tensor(pending)
    return pool


def run(
    segments: Sequence[Segment], pool: RecurrentPool, p: GatedDeltaParams, layer: int = 1, padded: int = 0
) -> list[Tensor]:
    seats = Seats(pool.pending.shape[1], 64)
    rows = seats.lay(segments, padded, int(pool.pending.max()))
    x = spread(values(segments, p.hidden), rows)
    out = gated_delta(x, rows, pool, layer, gated_delta_weights(p), p)
    assert out.shape == x.shape and out.dtype == x.dtype
    return list(out[: rows.count].split([s.rows for s in segments]))


def close(found: Tensor, expected: Tensor) -> bool:
    return torch.allclose(found.double(), expected.double(), atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("shape", range(len(SHAPES)))
@pytest.mark.parametrize("case", CASES)
def test_gated_delta_is_what_loops_give(case: str, shape: int) -> None:
    (segments, pending), p = CASES[case], SHAPES[shape]
    w, layer = gated_delta_weights(p), 1
    pool = waiting(new_recurrent(p, 4), pending)
    before = copy_of(pool)
    found = run(segments, pool, p, layer)
    plain = []
    for slot in range(4):
        plain.append(PlainDelta(before.state[layer, slot].double(), before.conv[layer, slot].double()))
        for t in range(pending[slot]):
            plain[slot].move(*(getattr(before, name)[layer, slot, t] for name in HELD[:4]))
            plain[slot].shift(before.conv_rows[layer, slot, t])
    committed = [dataclasses.replace(s, state=s.state.clone()) for s in plain]
    snapped = set()
    for s, xs, outs in zip(segments, values(segments, p.hidden), found):
        moving = plain[s.slot]
        for i in range(s.rows):
            expected, held = moving.row(xs[i], w, p)
            assert close(outs[i], expected)
            if not s.certain:
                assert all(close(getattr(pool, name)[layer, s.slot, i], held[name]) for name in HELD)
            for _, place in [c for c in s.captures if c[0] == i + 1]:
                assert close(pool.snap_state[place, layer], moving.state)
                assert close(pool.snap_conv[place, layer], moving.columns)
                snapped.add(place)
        if s.certain:
            committed[s.slot] = moving
    for slot in range(4):
        assert close(pool.state[layer, slot], committed[slot].state)
        assert close(pool.conv[layer, slot], committed[slot].columns)
    assert not pool.pending[layer].any()
    # Other layers, other places and the held rows of slots without decode rows are as they were.
    assert torch.equal(pool.state[0], before.state[0]) and torch.equal(pool.conv[0], before.conv[0])
    assert torch.equal(pool.pending[0], before.pending[0])
    for place in set(range(4)) - snapped:
        assert torch.equal(pool.snap_state[place], before.snap_state[place])
    assert torch.equal(pool.snap_state[:, 0], before.snap_state[:, 0])
    for slot in {0, 1, 2, 3} - {s.slot for s in segments if not s.certain}:
        for name in HELD:
            assert torch.equal(getattr(pool, name)[:, slot], getattr(before, name)[:, slot])


def test_nothing_pending_leaves_state_bit_for_bit() -> None:
    p = SHAPES[0]
    pool = waiting(new_recurrent(p, 4), [0, 3, 0, 0])
    before = copy_of(pool)
    run([segment(0, 9, 2), segment(1, 9, 1)], pool, p)
    for slot in (0, 2, 3):
        assert torch.equal(pool.state[1, slot], before.state[1, slot])
        assert torch.equal(pool.conv[1, slot], before.conv[1, slot])


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_company_order_padding_and_slots_change_no_bit(shape: int) -> None:
    p = SHAPES[shape]
    segments = [segment(3, 9, 2), segment(0, 4, 5), segment(1, 7, 1), segment(2, 0, 17, True, [(16, 1)])]
    start = waiting(new_recurrent(p, 4), [2, 5, 1, 3])
    pool = copy_of(start)
    together = run(segments, pool, p)
    for order, padded in (([1, 2, 0, 3], 0), ([2, 1, 0, 3], 64)):
        again = copy_of(start)
        found = run([segments[i] for i in order], again, p, padded=padded)
        assert all(torch.equal(rows, together[i]) for rows, i in zip(found, order))
        for field in dataclasses.fields(pool):
            if field.name != "cache":
                assert torch.equal(getattr(again, field.name), getattr(pool, field.name)), field.name
    for i, s in enumerate(segments):
        # In an engine of one slot, which is that slot.
        lone = RecurrentPool(
            **{
                f.name: getattr(start, f.name)[:, s.slot : s.slot + 1].clone()
                for f in dataclasses.fields(start)
                if f.name != "cache" and not f.name.startswith("snap")
            },
            snap_state=start.snap_state.clone(),
            snap_conv=start.snap_conv.clone(),
        )
        rows = Seats(1, 64).lay([dataclasses.replace(s, slot=0)], 0, int(lone.pending.max()))
        x = spread(values([s], p.hidden), rows)
        alone = gated_delta(x, rows, lone, 1, gated_delta_weights(p), p)[: s.rows]
        assert torch.equal(alone, together[i])
        assert torch.equal(lone.state[1, 0], pool.state[1, s.slot])
        assert torch.equal(lone.conv[1, 0], pool.conv[1, s.slot])
        if not s.certain:
            assert torch.equal(lone.k[1, 0, : s.rows], pool.k[1, s.slot, : s.rows])


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_kept_rows_in_windows_of_any_size_leave_the_same_bits(shape: int) -> None:
    """Five drafts of which three are kept, or the three one by one: later rows do not know."""
    p = SHAPES[shape]
    start = new_recurrent(p, 2)
    wide, narrow, prompt = copy_of(start), copy_of(start), copy_of(start)
    kept = run([segment(1, 20, 5)], wide, p)[0][:3]
    wide.pending[:, 1] = 3
    last = run([segment(1, 23, 2)], wide, p)[0]
    singles = []
    for at in range(20, 23):
        singles += run([segment(1, at, 1)], narrow, p)
        narrow.pending[:, 1] = 1
    assert torch.equal(torch.cat(singles), kept)
    assert torch.equal(run([segment(1, 23, 2)], narrow, p)[0], last)
    assert torch.equal(narrow.state[1], wide.state[1]) and torch.equal(narrow.conv[1], wide.conv[1])
    chunks = [run([segment(1, at, n, True)], prompt, p)[0] for at, n in ((20, 1), (21, 2))]
    assert torch.equal(torch.cat(chunks), kept)
    assert torch.equal(run([segment(1, 23, 2)], prompt, p)[0], last)


def test_numbers_of_nobody_reach_no_slot() -> None:
    """Held rows that are not pending, and the states of slots that have no rows, may hold anything."""
    p = SHAPES[0]
    segments = [segment(3, 9, 2), segment(2, 0, 10, True, [(4, 1)])]
    clean = waiting(new_recurrent(p, 4), [0, 0, 1, 4])
    poisoned = copy_of(clean)
    for name in HELD:
        held = getattr(poisoned, name)
        held[:, :2], held[:, 2, 1:], held[:, 3, 4:] = torch.nan, torch.nan, torch.nan
    poisoned.state[:, :2], poisoned.conv[:, :2] = torch.nan, torch.nan
    expected, found = run(segments, clean, p), run(segments, poisoned, p)
    assert all(torch.equal(a, b) for a, b in zip(found, expected))
    assert torch.equal(poisoned.state[1, 2:], clean.state[1, 2:])
    assert torch.equal(poisoned.conv[1, 2:], clean.conv[1, 2:])
    # A slot that got a new request after one that failed: nothing is pending, so nothing of it moves.
    admitted = copy_of(clean)
    admitted.k[:, 0], admitted.v[:, 0] = torch.nan, torch.nan
    waiting(admitted, [0, 0, 0, 2])
    state = admitted.state[1, 0].clone()
    run(segments, admitted, p)
    assert torch.equal(admitted.state[1, 0], state)


def test_a_slot_that_fails_fails_alone() -> None:
    p = SHAPES[0]
    segments = [segment(3, 9, 2), segment(2, 0, 10, True), segment(0, 0, 13, True)]
    clean = waiting(new_recurrent(p, 4), [0, 0, 1, 2])
    broken = copy_of(clean)
    broken.state[:, 0] = torch.nan
    expected, found = run(segments, clean, p), run(segments, broken, p)
    assert all(torch.equal(a, b) for a, b in zip(found[:2], expected[:2]))
    assert not torch.isfinite(found[2]).any()
    assert torch.equal(broken.state[1, 2:], clean.state[1, 2:])


class FailAt(TorchDispatchMode):
    """Out of memory at the n-th operation that makes a tensor."""

    def __init__(self, n: int):
        super().__init__()
        self.left = n

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        if not func._schema.is_mutable and not func.is_view:
            self.left -= 1
            if self.left < 0:
                raise torch.OutOfMemoryError("a test's")
        return func(*args, **(kwargs or {}))


def test_a_window_that_failed_anywhere_is_done_again() -> None:
    p = dataclasses.replace(SHAPES[1], hidden=16, key_dim=8, value_dim=8)
    first = waiting(new_recurrent(p, 3), [2, 0, 1])
    segments = [segment(2, 9, 2), segment(0, 4, 1)]
    straight = copy_of(first)
    expected = [run(segments, straight, p, layer) for layer in (0, 1)]
    n, failures = 0, 0
    while True:
        pool = copy_of(first)
        run(segments, pool, p, 0)
        try:
            with FailAt(n):
                run(segments, pool, p, 1)
        except torch.OutOfMemoryError:
            failures += 1
        else:
            break
        found = [run(segments, pool, p, layer) for layer in (0, 1)]
        for a, b in zip(found, expected):
            assert all(torch.equal(x, y) for x, y in zip(a, b))
        for name in ("state", "conv", "pending"):
            assert torch.equal(getattr(pool, name), getattr(straight, name)), (n, name)
        n += 1
    assert failures > 40


@pytest.mark.parametrize("shape", range(len(SHAPES)))
def test_padding_rows_stay_finite(shape: int) -> None:
    p = SHAPES[shape]
    rows = Seats(3, 64).lay([segment(1, 5, 2)], 24)
    x = spread([randn(2, p.hidden)], rows)
    assert torch.isfinite(gated_delta(x, rows, new_recurrent(p, 3), 0, gated_delta_weights(p), p)).all()
