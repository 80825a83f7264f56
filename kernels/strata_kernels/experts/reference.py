"""Router, routed experts, shared expert; a dense MLP is the shared expert alone."""

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.norm import in_rows, rms_norm
from strata_kernels.params import ExpertsParams, ExpertsWeights
from strata_kernels.product import expert_products, product
from strata_kernels.window import Rows


def experts(x: Tensor, rows: Rows, pool: Tensor, layer: int, weights: ExpertsWeights, params: ExpertsParams) -> Tensor:
    """x + the chosen experts' outputs, each times its share, + the shared expert; x [R, D].

    pool: int64 [layers, E], set to 1 where a real row chose the expert.
    """
    w = weights
    matrices = {"gate": w.gate, "up": w.up, "router": w.router, "shared_gate": w.shared_gate}
    present = {name: matrix for name, matrix in matrices.items() if matrix is not None}
    h = rms_norm(x, w.norm, params.eps)
    proj = product(h, list(present.values()), rows.count)
    parts = dict(zip(present, proj.split_with_sizes([matrix.shape[0] for matrix in present.values()], 1)))
    total = None
    if params.experts:
        assert w.bank is not None
        chosen, shares = route(parts["router"].float(), w.router_bias, params)
        _touch(pool, rows, layer, chosen)
        total = expert_products(h, chosen, shares, w.bank, rows.count)
    if w.down is not None:
        hidden = in_rows(F.silu, parts["gate"]).mul_(parts["up"])
        if params.shared_gated:
            # One column of a wider tensor: no row's is computed as part of a vector.
            hidden.mul_(torch.sigmoid(parts["shared_gate"]))
        shared = product(hidden, [w.down], rows.count)
        total = shared if total is None else total.add_(shared)
    assert total is not None, "routed experts, a shared one, or both"
    return total.add_(x)


def route(logits: Tensor, bias: Tensor | None, params: ExpertsParams) -> tuple[Tensor, Tensor]:
    """Router logits [R, E], float32 -> ids [R, K] by falling score, the lower id first among equals, and their shares
    [R, K].
    """
    scores = logits.softmax(-1) if params.router == "softmax" else logits.sigmoid()
    if bias is None:
        ordered, ids = scores.sort(dim=-1, descending=True, stable=True)
        chosen, shares = ids[:, : params.top_k], ordered[:, : params.top_k]
    else:
        chosen = (scores + bias).sort(dim=-1, descending=True, stable=True)[1][:, : params.top_k]
        shares = scores.gather(1, chosen)
    if params.normalize:
        shares = shares / shares.sum(-1, keepdim=True)
    return chosen, shares if params.scale == 1 else shares * params.scale


def _touch(pool: Tensor, rows: Rows, layer: int, chosen: Tensor) -> None:
    if "touched" not in rows.cache:
        rows.cache["touched"] = pool.unbind(), torch.ones((), dtype=pool.dtype, device=pool.device)
    layers, one = rows.cache["touched"]
    layers[layer].index_put_((chosen[: rows.count],), one)
