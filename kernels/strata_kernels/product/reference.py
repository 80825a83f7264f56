"""What products with packed weights are, on any device: unpack a tile of rows, multiply, drop it.

A row's bits never depend on the other rows: every multiplication has the same shape, ROW_TILE rows of x by a number of
weight rows that is a multiple of LANES. (Measured: 4 and 8 rows differ from 16 on one CPU, 1, 2, 3 and 5 from 4 on
another; vector lanes and scalar tails round differently.)
"""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.formats import FORMATS, unpack
from strata_kernels.weight import ExpertBank, Weight

ROW_TILE = 8
LANES = 32
WEIGHT_TILE = 1024  # weight rows that are dense at one moment


def product(x: Tensor, weights: Sequence[Weight], count: int) -> Tensor:
    """x [R, in] times each weight [out, in], side by side: [R, sum of out] in x's dtype, summed in float32.

    Only the first `count` rows are computed, the others are 0.
    """
    out = x.new_zeros(x.shape[0], sum(weight.shape[0] for weight in weights))
    out[:count] = _multiply(x[:count].float(), weights)
    return out


def product_at(x: Tensor, weight: Weight, ids: Tensor, count: int) -> Tensor:
    """As `product` with those rows of one weight that ids (int64 [n]) name: [R, n]."""
    out = x.new_zeros(x.shape[0], ids.shape[0])
    rows = x[:count].float()
    for start in range(0, ids.shape[0], WEIGHT_TILE):
        tile = ids[start : start + WEIGHT_TILE]
        out[:count, start : start + WEIGHT_TILE] = _multiply_dense(rows, lookup(weight, tile))
    return out


def lookup(weight: Weight, ids: Tensor) -> Tensor:
    """The rows of a weight that ids (int64 [n]) name, float32 [n, in]."""
    return FORMATS[weight.format].gather(weight.parts, weight.shape, ids)


def expert_products(x: Tensor, chosen: Tensor, shares: Tensor, bank: ExpertBank, count: int) -> Tensor:
    """Each row's sum over its chosen experts, in rank order, of share * down(silu(gate(row)) * up(row)).

    x [R, D], chosen int64 [R, K] experts, shares float32 [R, K]; returns [R, D] in x's dtype. Only the first `count`
    rows are computed, the others are 0.
    """
    chosen, rows = chosen[:count], x[:count].float()
    ranks = chosen.shape[1]
    outputs = rows.new_zeros(count, ranks, bank.down.shape[1])
    for expert, at in _users(chosen, bank.count):
        both = _multiply(rows[at], [stack[expert] for stack in bank.gate_up])
        gate, up = both.split(bank.inner, -1)
        y = _multiply(_silu(gate) * up, [bank.down[expert]])
        outputs[at] = torch.where((chosen[at] == expert)[..., None], y[:, None], outputs[at])
    total = outputs[:, 0] * shares[:count, 0, None]
    for rank in range(1, ranks):
        total = total + outputs[:, rank] * shares[:count, rank, None]
    out = x.new_zeros(x.shape[0], total.shape[1])
    out[:count] = total
    return out


def _users(chosen: Tensor, experts: int) -> Iterable[tuple[int, slice | Tensor]]:
    """Experts and the rows they are computed for: on a CPU those that chose them, elsewhere all, as the choice is the
    device's own.
    """
    if chosen.device.type != "cpu":
        return ((expert, slice(None)) for expert in range(experts))
    return _choices(chosen)


def _choices(chosen: Tensor) -> Iterator[tuple[int, Tensor]]:
    ids = chosen.numpy()
    for expert in np.unique(ids):
        yield int(expert), torch.from_numpy(np.flatnonzero((ids == expert).any(1)))


def _multiply(x: Tensor, weights: Sequence[Weight]) -> Tensor:
    """float32 x [n, in] -> float32 [n, sum of out], in multiplications of one shape."""
    out = x.new_empty(x.shape[0], sum(weight.shape[0] for weight in weights))
    at = 0
    for weight in weights:
        for start in range(0, weight.shape[0], WEIGHT_TILE):
            stop = min(start + WEIGHT_TILE, weight.shape[0])
            out[:, at : at + stop - start] = _multiply_dense(x, unpack(weight, start, stop))
            at += stop - start
    return out


def _multiply_dense(x: Tensor, tile: Tensor) -> Tensor:
    """float32 x [n, in] times tile [many, in] -> [n, many], in multiplications of one shape."""
    n, many = x.shape[0], tile.shape[0]
    dense = F.pad(tile, (0, 0, 0, -many % LANES)).t()
    parts = [torch.mm(rows, dense) for rows in F.pad(x, (0, 0, 0, -n % ROW_TILE)).split(ROW_TILE)] if n else []
    return torch.cat(parts)[:n, :many] if parts else x.new_empty(0, many)


def _silu(x: Tensor) -> Tensor:
    """silu of [n, F], each row in whole vectors."""
    return F.silu(F.pad(x, (0, -x.shape[1] % LANES)))[:, : x.shape[1]]
