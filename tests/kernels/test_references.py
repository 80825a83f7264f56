"""The kernels' references against plain recomputation on awkward shapes; bits that must not depend on company."""

import pytest
import torch
import torch.nn.functional as F

from strata_kernels.attention import KV_SPLIT_PAGES, QUERY_TILE, paged_attention, rope
from strata_kernels.gated_delta import gated_delta
from strata_kernels.linear import ROW_TILE, linear, padded_rows
from strata_kernels.moe_gemm import experts_grouped, route
from strata_kernels.norm import l2_norm, rms_norm


def randn(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(("heads", "groups", "dim"), [(4, 2, 32), (6, 2, 16), (3, 3, 24), (8, 1, 64)])
@pytest.mark.parametrize("first_key", [0, 1])
def test_paged_attention_is_softmax_attention(heads: int, groups: int, dim: int, first_key: int) -> None:
    page, splits = 8, 3
    span = page * KV_SPLIT_PAGES
    contexts = [1 + first_key, 5, span, span + 1, 2 * span + 3]
    k_pages, v_pages = randn(64, page, groups, dim, seed=1), randn(64, page, groups, dim, seed=2)
    tables = (
        torch.randperm(63, generator=torch.Generator().manual_seed(3))[: len(contexts) * splits * KV_SPLIT_PAGES] + 1
    )
    tables = tables.view(len(contexts), -1)
    q = randn(len(contexts), QUERY_TILE, heads, dim, seed=4)
    limits = torch.tensor([[max(0, c - 1 - QUERY_TILE + 1 + j) for j in range(QUERY_TILE)] for c in contexts])
    limits = limits.clamp(min=first_key)
    found = paged_attention(q, k_pages, v_pages, tables, limits, splits, first_key)
    for t in range(len(contexts)):
        k = k_pages[tables[t]].flatten(0, 1).repeat_interleave(heads // groups, 1).double()
        v = v_pages[tables[t]].flatten(0, 1).repeat_interleave(heads // groups, 1).double()
        for j in range(QUERY_TILE):
            seen = slice(first_key, int(limits[t, j]) + 1)
            scores = torch.einsum("hd,khd->hk", q[t, j].double(), k[seen]) * dim**-0.5
            expected = torch.einsum("hk,khd->hd", scores.softmax(-1), v[seen])
            assert torch.allclose(found[t, j].double(), expected, atol=1e-5)
    more = paged_attention(q[:2], k_pages, v_pages, tables[:2], limits[:2], 1, first_key)
    assert torch.equal(more, found[:2])  # neither other tiles nor further splits change a bit


def test_padding_rows_of_attention_stay_finite() -> None:
    q = randn(1, QUERY_TILE, 2, 16)
    pages = torch.full((5, 8, 1, 16), 1e4)
    limits = torch.full((1, QUERY_TILE), -1)
    out = paged_attention(q, pages, pages, torch.zeros(1, KV_SPLIT_PAGES, dtype=torch.int64), limits, 1, 1)
    assert torch.isfinite(out).all()


@pytest.mark.parametrize("lengths", [[1], [5, 3, 1], [17, 17, 2, 1]])
@pytest.mark.parametrize(("heads", "k_dim", "v_dim"), [(1, 4, 6), (4, 16, 16), (6, 8, 24)])
def test_gated_delta_is_the_recurrence(lengths: list[int], heads: int, k_dim: int, v_dim: int) -> None:
    steps, n = lengths[0], len(lengths)
    q, k = randn(steps, n, heads, k_dim, seed=1), F.normalize(randn(steps, n, heads, k_dim, seed=2), dim=-1)
    v, beta = randn(steps, n, heads, v_dim, seed=3), torch.sigmoid(randn(steps, n, heads, seed=4))
    decay = torch.sigmoid(randn(steps, n, heads, seed=5) + 2)
    state = randn(n, heads, k_dim, v_dim, seed=6)
    active = [sum(m > t for m in lengths) for t in range(steps)]
    moved = state.clone()
    out = gated_delta(moved, k, v, beta, decay, active, q)
    silent = state.clone()
    gated_delta(silent, k, v, beta, decay, active)
    assert torch.equal(silent, moved)
    for s, length in enumerate(lengths):
        for h in range(heads):
            S = state[s, h].double()
            for t in range(length):
                S = S * decay[t, s, h].double()
                delta = beta[t, s, h].double() * (v[t, s, h].double() - k[t, s, h].double() @ S)
                S = S + torch.outer(k[t, s, h].double(), delta)
                assert torch.allclose(out[t, s, h].double(), q[t, s, h].double() @ S, atol=1e-4)
            assert torch.allclose(moved[s, h].double(), S, atol=1e-4)


@pytest.mark.parametrize("rows", [1, 3, 16, 17, 40])
def test_grouped_experts_are_a_loop_over_rows(rows: int) -> None:
    experts, k, d, f = 7, 3, 20, 12
    x = F.pad(randn(rows, d), (0, 0, 0, padded_rows(rows) - rows))
    gate_up, down = randn(experts, d, 2 * f, seed=1) * 0.2, randn(experts, f, d, seed=2) * 0.2
    weights, chosen = route(F.pad(randn(rows, experts, seed=3), (0, 0, 0, padded_rows(rows) - rows)), k, True)
    found = experts_grouped(x, weights, chosen, gate_up, down, rows)
    for r in range(rows):
        expected = torch.zeros(d, dtype=torch.float64)
        for w, e in zip(weights[r].tolist(), chosen[r].tolist()):
            gate, up = (x[r].double() @ gate_up[e].double()).chunk(2)
            expected += w * ((F.silu(gate) * up) @ down[e].double())
        assert torch.allclose(found[r].double(), expected, atol=1e-5)
    assert not found[rows:].any()  # padding reaches no expert
    if rows > 1:
        alone = experts_grouped(x, weights, chosen, gate_up, down, 1)
        assert torch.equal(alone[0], found[0])


def test_route_is_softmax_then_the_largest_renormalised() -> None:
    logits = randn(5, 9)
    weights, chosen = route(logits, 4, True)
    p = logits.double().softmax(-1)
    for r in range(5):
        best = sorted(range(9), key=lambda e: -p[r, e].item())[:4]
        assert chosen[r].tolist() == best
        assert torch.allclose(weights[r].double(), p[r, best] / p[r, best].sum(), atol=1e-6)


@pytest.mark.parametrize(("d", "n"), [(64, 96), (192, 2336), (48, 131)])
def test_rows_of_a_product_do_not_know_their_number(d: int, n: int) -> None:
    x, w = randn(5 * ROW_TILE, d), randn(d, n, seed=1)
    whole = linear(x, w)
    assert torch.allclose(whole.double(), x.double() @ w.double(), atol=1e-3)
    for tiles in (1, 2, 3):
        assert torch.equal(linear(x[: tiles * ROW_TILE], w), whole[: tiles * ROW_TILE])
    shuffled = torch.cat((x[3 * ROW_TILE :], x[: 3 * ROW_TILE]))
    assert torch.equal(linear(shuffled, w)[2 * ROW_TILE :], whole[: 3 * ROW_TILE])


def test_norms() -> None:
    x, w = randn(6, 24), randn(24, seed=1)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w.double()
    assert torch.allclose(rms_norm(x, w, 1e-5).double(), expected, atol=1e-6)
    assert torch.allclose(l2_norm(x, 0.5).double(), 0.5 * F.normalize(x.double(), dim=-1), atol=1e-5)


def test_rope_turns_half_split_pairs() -> None:
    x, angle = randn(3, 2, 10), randn(3, 1, 3, seed=1)
    found = rope(x, angle.cos(), angle.sin())
    pairs = torch.complex(x[..., :3].double(), x[..., 3:6].double()) * torch.polar(
        torch.ones(3, 1, 3).double(), angle.double()
    )
    assert torch.allclose(found[..., :3].double(), pairs.real, atol=1e-6)
    assert torch.allclose(found[..., 3:6].double(), pairs.imag, atol=1e-6)
    assert torch.equal(found[..., 6:], x[..., 6:])
