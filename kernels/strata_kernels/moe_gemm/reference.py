"""Routing, and each routed expert with its own rows."""

import torch.nn.functional as F
from torch import Tensor

from strata_kernels.linear.reference import linear, padded_rows


def route(logits: Tensor, k: int, normalize: bool) -> tuple[Tensor, Tensor]:
    """Router logits [R, E] -> weights [R, K] and expert ids [R, K]: softmax over all, the K largest, renormalised."""
    weights, experts = logits.float().softmax(-1).topk(k, -1)
    if normalize:
        weights = weights / weights.sum(-1, keepdim=True)
    return weights, experts


def experts_grouped(x: Tensor, weights: Tensor, experts: Tensor, gate_up: Tensor, down: Tensor, rows: int) -> Tensor:
    """Each expert with its own rows, outputs added in rank order.

    x [R, D], weights and experts [R, K], gate_up [E, D, 2F], down [E, F, D]; only the first `rows` rows are real and
    routed.
    Returns [R, D].
    """
    ranks = weights.shape[1]
    outputs = x.new_zeros(x.shape[0], ranks, x.shape[1])
    chosen = experts[:rows]
    for expert in chosen.unique().tolist():
        row, rank = (chosen == expert).nonzero(as_tuple=True)
        batch = x.new_zeros(padded_rows(len(row)), x.shape[1])
        batch[: len(row)] = x[row]
        gate, up = linear(batch, gate_up[expert]).chunk(2, -1)
        y = linear(F.silu(gate) * up, down[expert])[: len(row)]
        outputs[row, rank] = y * weights[row, rank, None].to(y.dtype)
    total = outputs[:, 0]
    for rank in range(1, ranks):
        total = total + outputs[:, rank]
    return total
