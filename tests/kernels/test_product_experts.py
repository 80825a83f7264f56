"""Banks of experts: both siblings against recomputation in double precision; bits that must not depend on company."""

from types import ModuleType

import pytest
import torch
import torch.nn.functional as F

from strata_kernels.weight import ExpertBank, Stack, Weight
from tests.kernels.test_product import SIBLINGS, dense_weight, distance, generator, packed_weight

siblings = pytest.mark.parametrize("sibling", SIBLINGS, ids=lambda module: module.__name__.rpartition(".")[2])
KINDS = ("f32", "bf16", "int4", "int4 zero", "int8")


def stack(kind: str, experts: int, n: int, k: int, apart: bool, seed: int) -> tuple[Stack, torch.Tensor]:
    """One matrix of every expert, and its values."""

    def make(seed: int) -> tuple[Weight, torch.Tensor]:
        if kind.startswith("int"):
            return packed_weight(int(kind[3]), n, k, 8, zero=kind.endswith("zero"), seed=seed)
        return dense_weight(kind, n, k, seed)

    made = [make(seed * 1000 + e) for e in range(experts)]
    parts = {name: tuple(weight.parts[name] for weight, _ in made) for name in made[0][0].parts}
    whole = {name: part if apart else torch.stack(part) for name, part in parts.items()}
    return Stack(made[0][0].format, whole, (experts, n, k)), torch.stack([values for _, values in made])


def choices(rows: int, ranks: int, experts: int) -> tuple[torch.Tensor, torch.Tensor]:
    g = generator(rows, ranks, experts)
    chosen = torch.stack([torch.randperm(experts, generator=g)[:ranks] for _ in range(rows)])
    return chosen, torch.rand(rows, ranks, generator=g)


@siblings
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("experts", "hidden", "inner", "ranks"), [(5, 40, 24, 3), (8, 192, 128, 2), (3, 200, 136, 1)])
def test_a_row_is_the_sum_over_its_experts_alone_or_in_company(
    sibling: ModuleType, kind: str, experts: int, hidden: int, inner: int, ranks: int
) -> None:
    gate, gate_values = stack(kind, experts, inner, hidden, True, 1)
    up, up_values = stack(kind, experts, inner, hidden, False, 2)
    down, down_values = stack(kind, experts, hidden, inner, True, 3)
    bank, rows = ExpertBank((gate, up), down), 150  # more rows of an expert than are multiplied at once
    x = torch.randn(rows, hidden, generator=generator(1))
    chosen, shares = choices(rows, ranks, experts)
    found = sibling.expert_products(x, chosen, shares, bank, rows)
    expected = torch.zeros(rows, hidden, dtype=torch.float64)
    for rank in range(ranks):
        for expert in range(experts):
            at = chosen[:, rank] == expert
            inside = F.silu(x[at].double() @ gate_values[expert].t()) * (x[at].double() @ up_values[expert].t())
            expected[at] += shares[at, rank, None].double() * (inside @ down_values[expert].t())
    assert distance(found, expected) < 3e-6
    for rows in (1, 2, 5, 64):
        some = slice(150 - rows, None)
        alone = sibling.expert_products(x[some], chosen[some], shares[some], bank, rows)
        assert torch.equal(alone, found[some])


@siblings
@pytest.mark.parametrize("kind", ["f16", "int4"])
def test_gate_and_up_may_lie_beside_each_other(sibling: ModuleType, kind: str) -> None:
    both, values = stack(kind, 4, 48, 64, False, 1)
    gate = Stack(both.format, {name: part[:, :24] for name, part in both.parts.items()}, (4, 24, 64))  # type: ignore
    up = Stack(both.format, {name: part[:, 24:] for name, part in both.parts.items()}, (4, 24, 64))  # type: ignore
    down, _ = stack(kind, 4, 64, 24, True, 2)
    x, (chosen, shares) = torch.randn(9, 64, generator=generator(2)), choices(9, 2, 4)
    found = sibling.expert_products(x, chosen, shares, ExpertBank((both,), down), 9)
    assert torch.equal(found, sibling.expert_products(x, chosen, shares, ExpertBank((gate, up), down), 9))
    assert values.shape == (4, 48, 64)


@siblings
def test_padding_rows_reach_no_expert(sibling: ModuleType) -> None:
    bank = ExpertBank((stack("f32", 3, 16, 8, False, 1)[0],), stack("f32", 3, 8, 8, False, 2)[0])
    x, (chosen, shares) = torch.randn(8, 8, generator=generator(3)), choices(8, 2, 3)
    chosen[5:], x[5:] = 1 << 40, torch.nan  # a padding row's choice is nobody's business
    found = sibling.expert_products(x, chosen, shares, bank, 5)
    assert torch.isfinite(found[:5]).all()
    assert not found[5:].any()


@siblings
def test_an_expert_chosen_twice_counts_twice_and_ranks_are_added_in_order(sibling: ModuleType) -> None:
    bank = ExpertBank((stack("f32", 3, 16, 8, False, 1)[0],), stack("f32", 3, 8, 8, False, 2)[0])
    x, one = torch.randn(6, 8, generator=generator(4)), torch.ones(6, 1)
    twice = sibling.expert_products(x, torch.full((6, 2), 2), torch.ones(6, 2), bank, 6)
    assert torch.equal(twice, 2 * sibling.expert_products(x, torch.full((6, 1), 2), one, bank, 6))
    each = [sibling.expert_products(x, torch.full((6, 1), e), one, bank, 6) for e in range(3)]
    order = torch.tensor([[2, 0, 1]]).expand(6, 3).contiguous()
    together = sibling.expert_products(x, order, torch.ones(6, 3), bank, 6)
    assert torch.equal(together, each[2] + each[0] + each[1])


@pytest.mark.skipif(len(SIBLINGS) == 1, reason="no compiled kernels here")
@pytest.mark.parametrize("kind", KINDS)
def test_siblings_agree_on_banks(kind: str) -> None:
    gate_up, down = stack(kind, 8, 256, 192, True, 1)[0], stack(kind, 8, 192, 128, True, 2)[0]
    bank = ExpertBank((gate_up,), down)
    x, (chosen, shares) = torch.randn(20, 192, generator=generator(5)), choices(20, 2, 8)
    found, expected = (sibling.expert_products(x, chosen, shares, bank, 20) for sibling in SIBLINGS)
    assert distance(found, expected) < 1e-5
