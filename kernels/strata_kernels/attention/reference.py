"""Causal attention of ragged rows over a paged KV cache, and rotary positions."""

import torch
from torch import Tensor

QUERY_TILE = 8  # rows of one slot that read its keys together
KV_SPLIT_PAGES = 4  # pages of one pass over the keys: a fixed size, so that a longer neighbour changes no bit
LANES = 32
MASKED = -1e30  # finite, so that a row without keys (padding) stays finite


def rope(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the first 2 * cos.shape[-1] dimensions of x [R, H, D] by half-split pairs; cos, sin [R, 1, half],
    float32.
    """
    half = cos.shape[-1]
    x1, x2 = x[..., :half], x[..., half : 2 * half]
    return torch.cat((x1 * cos - x2 * sin, x2 * cos + x1 * sin, x[..., 2 * half :]), -1)


def paged_attention(
    q: Tensor, k_pages: Tensor, v_pages: Tensor, tables: Tensor, limits: Tensor, splits: int, first_key: int = 0
) -> Tensor:
    """Softmax attention of query tiles over their slot's pages, one fixed split of keys after the other.

    Args:
        q: [T, QUERY_TILE, H, D] query tiles, each of one slot.
        k_pages, v_pages: [N, page, G, D] the pool of one layer.
        tables: [T, splits * KV_SPLIT_PAGES] page ids of each tile's slot; page 0 stands for none.
        limits: [T, QUERY_TILE] last key each row may see (its position), -1 for padding rows.
        splits: key splits to read; more than a tile needs changes nothing.
        first_key: keys before this index are not there (the MTP head has none at 0).

    Returns [T, QUERY_TILE, H, D]. Online softmax over splits (Milakov and Gimelshein, 2018), float32 throughout.
    """
    tiles, rows, heads, dim = q.shape
    page, groups = k_pages.shape[1], k_pages.shape[2]
    span, ratio = KV_SPLIT_PAGES * page, heads // groups
    # Rows and the query heads of one kv head share a product: [T * G, ratio * rows, D].
    queries = (
        (q.float() * dim**-0.5)
        .view(tiles, rows, groups, ratio, dim)
        .permute(0, 2, 3, 1, 4)
        .reshape(tiles * groups, -1, dim)
    )
    limit = limits.view(tiles, 1, 1, rows, 1).expand(-1, groups, ratio, -1, -1).reshape(tiles * groups, -1, 1)
    keys = torch.arange(span, device=q.device)
    group = torch.arange(groups, device=q.device)[:, None]
    top = total = out = None
    for split in range(splits):
        pages = tables[:, split * KV_SPLIT_PAGES : (split + 1) * KV_SPLIT_PAGES]
        places = pages.repeat_interleave(page, 1) * page + keys % page  # [T, span]
        lines = (places[:, None] * groups + group).view(-1)
        k = k_pages.view(-1, dim).index_select(0, lines).view(tiles * groups, span, dim).float()
        v = v_pages.view(-1, dim).index_select(0, lines).view(tiles * groups, span, dim).float()
        index = keys + split * span
        seen = index <= limit
        if first_key and not split:
            seen &= index >= first_key
        scores = torch.bmm(queries, k.mT).masked_fill_(~seen, MASKED)
        best = scores.amax(-1, keepdim=True)
        if top is None or total is None or out is None:
            top = best
            weights = (scores - top).exp_()
            total, out = weights.sum(-1, keepdim=True), torch.bmm(weights, v)
        else:
            best = torch.maximum(top, best)
            # One whole vector wide: a narrow exp would round by its place in the tensor.
            fade = (top - best).expand(-1, -1, LANES).exp()[..., :1]
            weights = (scores - best).exp_()
            total, out, top = total * fade + weights.sum(-1, keepdim=True), out * fade + torch.bmm(weights, v), best
    assert out is not None and total is not None, "at least one split"
    out = (out / total).view(tiles, groups, ratio, rows, dim).permute(0, 3, 1, 2, 4)
    return out.reshape(tiles, rows, heads, dim).to(q.dtype)
