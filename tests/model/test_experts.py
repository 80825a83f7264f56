"""The routed experts of loaded checkpoints: each one on its own, in every way that they are stored and computed."""

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.params import ExpertsWeights
from strata_kernels.product import cpu, reference
from strata_kernels.weight import ExpertBank
from tests.support.engine import loaded, tiny
from tests.support.tiny import SHAPES

LAYOUTS: dict[str, dict[str, str]] = {"split": {}, "stacked": {"layout": "stacked"}, "int4": {"quant": "int4-g32"}}


def bank(shape: str, layout: str) -> ExpertBank:
    """Of the second layer."""
    found = [w.bank for w in loaded(tiny(shape, **LAYOUTS[layout])).weights.blocks if isinstance(w, ExpertsWeights)][1]
    assert found is not None
    return found


def plain(x: Tensor, chosen: Tensor, shares: Tensor, matrices: ExpertBank) -> Tensor:
    """One product a row and expert, in double precision."""
    whole = [torch.stack([_dense(stack[e]) for e in range(matrices.count)]) for stack in matrices.gate_up]
    gate_up, down = torch.cat(whole, 1), torch.stack([_dense(matrices.down[e]) for e in range(matrices.count)])
    out = torch.zeros(x.shape, dtype=torch.float64)
    for i, row in enumerate(x.double()):
        for e, share in zip(chosen[i].tolist(), shares[i].double()):
            gate, up = (gate_up[e] @ row).chunk(2)
            out[i] += share * (down[e] @ (F.silu(gate) * up))
    return out


def _dense(weight: object) -> Tensor:
    return reference.lookup(weight, torch.arange(weight.shape[0])).double()  # type: ignore[arg-type,attr-defined]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("rows", [1, 13, 16, 30])
def test_the_bank_is_each_expert_on_its_own(shape: str, layout: str, rows: int) -> None:
    matrices = bank(shape, layout)
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(32, matrices.down.shape[1], generator=generator)
    k = min(3, matrices.count)
    chosen = torch.rand(32, matrices.count, generator=generator).argsort(-1)[:, :k].contiguous()
    shares = torch.rand(32, k, generator=generator)
    expected = plain(x[:rows], chosen, shares, matrices).float()
    for product in (cpu, reference):
        found = product.expert_products(x, chosen, shares, matrices, rows)
        assert torch.allclose(found[:rows], expected, atol=2e-5, rtol=1e-5)
        assert not found[rows:].any()
