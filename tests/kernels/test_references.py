"""Norms, and elementwise functions whose bits do not depend on the number of rows."""

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F

from strata_kernels.norm import in_lanes, in_rows, l2_norm, rms_norm
from tests.support.blocks import randn


def test_norms() -> None:
    x, w = randn(6, 24), randn(24, seed=1)
    expected = x.double() / (x.double().pow(2).mean(-1, keepdim=True) + 1e-5).sqrt() * w.double()
    assert torch.allclose(rms_norm(x, w, 1e-5).double(), expected, atol=1e-6)
    scale = torch.tensor([[0.5], [1.0], [2.0]])
    found = l2_norm(x.view(2, 3, 24), scale)
    assert torch.allclose(found.double(), scale.double() * F.normalize(x.view(2, 3, 24).double(), dim=-1), atol=1e-5)


def test_a_norm_keeps_its_rows_type() -> None:
    x = randn(8, 32).bfloat16()
    assert rms_norm(x, torch.ones(32), 1e-6).dtype == torch.bfloat16
    assert torch.equal(rms_norm(x, torch.ones(32), 1e-6), rms_norm(x.float(), torch.ones(32), 1e-6).bfloat16())


@pytest.mark.parametrize("function", [torch.sigmoid, torch.exp, F.softplus, F.silu])
@pytest.mark.parametrize("width", [1, 2, 3, 14, 16, 33, 80])
def test_rows_of_an_elementwise_function_do_not_know_their_number(function, width: int) -> None:
    x = randn(40, width, seed=width) * 3
    whole = in_lanes(function, x)
    assert whole.shape == x.shape and torch.allclose(whole.double(), function(x.double()), atol=1e-5, rtol=1e-5)
    for start, stop in ((0, 8), (8, 24), (16, 40)):
        assert torch.equal(in_lanes(function, x[start:stop]), whole[start:stop])
    rolled = in_lanes(function, x.roll(3, 0))
    assert torch.equal(rolled, whole.roll(3, 0))
    wide = F.pad(x, (2, 5))[:, 2 : 2 + width]  # columns of a wider tensor
    assert torch.equal(in_lanes(function, wide), whole)


@pytest.fixture
def three_threads() -> Iterator[None]:
    """Threads among which eight rows are not divided evenly."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("function", [torch.sigmoid, F.softplus, F.silu])
@pytest.mark.parametrize("width", [1000, 2048, 4096, 6006, 40_000])
@pytest.mark.usefixtures("three_threads")
def test_threads_that_share_a_large_tensor_change_no_bit(function, width: int) -> None:
    x = randn(40, width, seed=width) * 3
    wide = F.pad(x, (2, 5))[:, 2 : 2 + width]
    whole, columns = in_lanes(function, x), in_rows(function, wide)
    assert torch.allclose(whole.double(), function(x.double()), atol=1e-5, rtol=1e-5)
    assert torch.allclose(columns, whole, atol=1e-5, rtol=1e-5)
    for start, stop in ((0, 8), (8, 24), (16, 40)):
        assert torch.equal(in_lanes(function, x[start:stop]), whole[start:stop])
        assert torch.equal(in_rows(function, wide[start:stop]), columns[start:stop])
    heads = wide.unflatten(1, (2, -1))
    assert torch.equal(in_rows(function, heads[:, 1:])[8:16], in_rows(function, heads[8:16, 1:]))
