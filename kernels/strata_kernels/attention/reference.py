"""Causal attention of ragged rows over paged keys and values, with rotary positions."""

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.attention.tables import AttentionTable, KVViews, split_of, table, views
from strata_kernels.layout import QUERY_TILE
from strata_kernels.norm import LANES, in_rows, rms_norm
from strata_kernels.params import AttentionParams, AttentionWeights
from strata_kernels.product import product
from strata_kernels.window import KVPool, Rows


def attention(
    x: Tensor, rows: Rows, pool: KVPool, layer: int, weights: AttentionWeights, params: AttentionParams
) -> Tensor:
    """x + out(gate(attention)), x [R, D]; the rows' keys and values are in the pool before they are read from it."""
    p, w, v, t = params, weights, views(pool, params), table(rows, pool, params)
    proj = product(rms_norm(x, w.norm, p.eps), [w.q, w.k, w.v], rows.count).view(-1, v.columns, p.head_dim)
    qk = (proj[:, : p.heads + p.kv_heads] if v.turned is None else proj[:, v.turned]).float()
    if w.q_norm is not None and w.k_norm is not None:
        scales = torch.where(v.is_query, w.q_norm, w.k_norm)
        qk = F.rms_norm(qk, (p.head_dim,), None, p.eps).mul_(scales)
    qk = (qk * t.cos).addcmul_(qk[..., v.pairs], t.sin)
    for held, new in ((v.k[layer], qk[: rows.count, p.heads :]), (v.v[layer], proj[: rows.count, -p.kv_heads :])):
        held.index_copy_(0, t.places, new.to(held.dtype))
    out = _attend(qk, v, t, layer, p)
    if p.gated:
        out.mul_(in_rows(torch.sigmoid, proj[:, 1 : 2 * p.heads : 2]))
    return product(out.view(-1, p.heads * p.head_dim).to(x.dtype), [w.out], rows.count).add_(x)


def _attend(qk: Tensor, views: KVViews, t: AttentionTable, layer: int, p: AttentionParams) -> Tensor:
    """Softmax attention of each tile's rows over its slot's pages, [R, H, D], one fixed split of keys after the other.

    Online softmax over splits (Milakov and Gimelshein, 2018), float32 throughout. More splits than a row needs change
    nothing.
    """
    # Rows and the query heads of one kv head share a product: [T * G, ratio * QUERY_TILE, D].
    queries = qk[t.fixed.query_rows, views.query_heads].view(-1, p.heads // p.kv_heads * QUERY_TILE, p.head_dim)
    top = total = out = None
    for split in range(len(t.keys)):
        lines, unseen = split_of(t, split)
        k, v = views.k_lines[layer][lines].float(), views.v_lines[layer][lines].float()
        scores = torch.baddbmm(unseen, queries, k.mT, alpha=p.head_dim**-0.5)
        best = scores.amax(-1, keepdim=True)
        if top is None or total is None or out is None:
            scores.sub_(best).exp_()
            total, out, top = scores.sum(-1, keepdim=True), torch.bmm(scores, v), best
        else:
            best = torch.maximum(top, best)
            # One whole vector wide: a narrow exp would round by its place in the tensor.
            fade = (top - best).expand(-1, -1, LANES).exp()[..., :1]
            scores.sub_(best).exp_()
            total = total * fade + scores.sum(-1, keepdim=True)
            out, top = out * fade + torch.bmm(scores, v), best
    assert out is not None and total is not None, "at least one split"
    return out.div_(total).view(-1, p.head_dim)[t.out_lines]
