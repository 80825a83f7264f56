"""The experts block and the MTP head's input against float64 loops, and bits that must not depend on company."""

import pytest
import torch

from strata_kernels.experts import experts
from strata_kernels.experts.reference import route
from strata_kernels.mtp_input import mtp_input
from strata_kernels.params import ExpertsParams, MtpInputParams, MtpInputWeights
from tests.support.blocks import (
    Seats,
    dense,
    experts_weights,
    matrix,
    near_one,
    norm,
    plain_choice,
    plain_experts,
    randn,
    segment,
    spread,
)

SOFTMAX = ExpertsParams(48, 8, 2, 32, 64, 1e-6, shared_gated=True)
# (parameters, a bias that chooses, gate and up of the experts apart)
SHAPES = {
    "softmax, shared": (SOFTMAX, False, False),
    "softmax, not divided": (ExpertsParams(40, 13, 5, 24, 24, 1e-5, normalize=False), False, True),
    "sigmoid, biased, scaled": (ExpertsParams(32, 16, 3, 40, 0, 1e-6, router="sigmoid", scale=2.5), True, False),
    "sigmoid, shared, no gate": (ExpertsParams(64, 6, 6, 16, 80, 1e-6, router="sigmoid", scale=0.5), False, True),
    "dense": (ExpertsParams(48, 0, 0, 0, 96, 1e-6), False, False),
}


def rows_of(count: int, padded: int = 0):
    return Seats(4, 128).lay([segment(2, 5, count)], padded)


@pytest.mark.parametrize("count", [1, 3, 17, 63])
@pytest.mark.parametrize("shape", SHAPES)
def test_experts_are_what_loops_give(shape: str, count: int) -> None:
    p, biased, apart = SHAPES[shape]
    w, rows = experts_weights(p, biased, apart), rows_of(count)
    values = randn(count, p.hidden, seed=3)
    touched = torch.zeros(2, max(1, p.experts), dtype=torch.int64)
    touched[1, 0] = 1
    out = experts(spread([values], rows), rows, touched, 1, w, p)
    assert out.shape == (rows.padded, p.hidden)
    used = {0}  # as it was
    for x, found in zip(values, out):
        expected, chosen = plain_experts(x, w, p)
        assert torch.allclose(found.double(), expected, atol=2e-5)
        used |= chosen
    assert set(touched[1].nonzero().flatten().tolist()) == used, "padding touches no expert"
    assert not touched[0].any() and touched.max() == 1


@pytest.mark.parametrize("shape", SHAPES)
def test_company_and_padding_change_no_bit(shape: str) -> None:
    p, biased, apart = SHAPES[shape]
    w, touched = experts_weights(p, biased, apart), torch.zeros(1, max(1, p.experts), dtype=torch.int64)
    values = randn(21, p.hidden, seed=3)

    def run(x: torch.Tensor, padded: int = 0) -> torch.Tensor:
        rows = rows_of(len(x), padded)
        return experts(spread([x], rows), rows, touched, 0, w, p)[: len(x)]

    together = run(values)
    assert torch.equal(run(values, 40), together)
    assert torch.equal(run(values.flip(0)), together.flip(0))
    for i in (0, 7, 20):
        assert torch.equal(run(values[i : i + 1])[0], together[i])


def test_equal_scores_go_to_the_lower_id() -> None:
    logits = torch.tensor([[0.5, 2.0, 2.0, 0.5, 2.0, 0.5, 2.0, 0.5]]).repeat(3, 40)
    p = ExpertsParams(8, logits.shape[1], 7, 8, 0, 1e-6)
    for bias in (None, torch.zeros(p.experts)):
        chosen, shares = route(logits, bias, p)
        assert chosen.tolist() == [[1, 2, 4, 6, 9, 10, 12]] * 3
        assert torch.allclose(shares, torch.full_like(shares, 1 / 7))


def test_a_bias_chooses_and_does_not_weigh() -> None:
    p = ExpertsParams(8, 4, 2, 8, 0, 1e-6, router="sigmoid", normalize=False, scale=3.0)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]])
    chosen, shares = route(logits, torch.tensor([0.0, 0.0, 0.0, 5.0]), p)
    assert chosen.tolist() == [[3, 0]]
    assert torch.allclose(shares, 3 * logits.sigmoid()[:, [3, 0]])


def test_route_is_what_loops_give() -> None:
    p, biased, apart = SHAPES["sigmoid, biased, scaled"]
    w = experts_weights(p, biased, apart)
    x = randn(9, p.hidden, seed=4)
    chosen, shares = route((norm(x, w.norm, p.eps) @ matrix(w.router).T).float(), w.router_bias, p)
    for row, ids, parts in zip(x, chosen.tolist(), shares.tolist()):
        expected = plain_choice(norm(row, w.norm, p.eps), w, p)
        assert ids == [expert for expert, _ in expected]
        assert parts == pytest.approx([share for _, share in expected], abs=1e-5)


@pytest.mark.parametrize("count", [1, 3, 17, 63])
def test_mtp_input_joins_two_normed_rows(count: int) -> None:
    p = MtpInputParams(48, 1e-6)
    w = MtpInputWeights(near_one(48, 1), near_one(48, 2), dense(48, 96, 3))
    embedding, values, rows = dense(50, 48, 4), randn(count, 48, seed=5), rows_of(count)
    rows.tokens[:count] = torch.arange(count) * 7 % 50
    x = spread([values], rows)
    out = mtp_input(x, rows, embedding, 0, w, p)
    for i in range(count):
        token = norm(matrix(embedding)[i * 7 % 50], w.embedding_norm, p.eps)
        expected = matrix(w.join) @ torch.cat((token, norm(values[i], w.hidden_norm, p.eps)))
        assert torch.allclose(out[i].double(), expected, atol=1e-5)
    one = rows_of(1)
    one.tokens[0] = rows.tokens[count - 1]
    assert torch.equal(mtp_input(spread([values[-1:]], one), one, embedding, 0, w, p)[0], out[count - 1])
