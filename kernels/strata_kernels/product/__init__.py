"""Products of a window's rows with packed weights: for linears, embeddings and banks of experts.

Which sibling runs is `strata_kernels.table`'s choice, by the weights' formats and the device of the rows.
"""

from collections.abc import Sequence

from torch import Tensor

from strata_kernels.table import sibling
from strata_kernels.weight import ExpertBank, Weight


def product(x: Tensor, weights: Sequence[Weight], count: int) -> Tensor:
    """x [R, in] times each weight [out, in], side by side: [R, sum of out] in x's dtype, summed in float32.

    `count`: real rows; the others come out as 0. A row's bits depend on that row and the weights alone.
    """
    formats = tuple(weight.format for weight in weights)
    return sibling("product", formats, x.device.type).product(x, weights, count)


def product_at(x: Tensor, weight: Weight, ids: Tensor, count: int) -> Tensor:
    """As `product` with those rows of one weight that ids (int64 [n]) name: [R, n]. No copy of them is kept."""
    return sibling("product", (weight.format,), x.device.type).product_at(x, weight, ids, count)


def lookup(weight: Weight, ids: Tensor) -> Tensor:
    """The rows of a weight that ids (int64 [n], on the weight's device) name, float32 [n, in]."""
    return sibling("product", (weight.format,), ids.device.type).lookup(weight, ids)


def expert_products(x: Tensor, chosen: Tensor, shares: Tensor, bank: ExpertBank, count: int) -> Tensor:
    """Each row's sum over its chosen experts, in rank order, of share * down(silu(gate(row)) * up(row)).

    x [R, D], chosen int64 [R, K] experts, shares float32 [R, K]; returns [R, D] in x's dtype. `count`: real rows; the
    others come out as 0 and reach no expert.
    """
    formats = (*(stack.format for stack in bank.gate_up), bank.down.format)
    run = sibling("product", formats, x.device.type).expert_products
    return run(x, chosen, shares, bank, count)


__all__ = ["expert_products", "lookup", "product", "product_at"]
