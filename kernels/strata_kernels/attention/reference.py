"""Causal attention of ragged rows over paged keys and values, with rotary positions."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from strata_kernels.layout import PAGE_TOKENS, QUERY_TILE, SPLIT_PAGES
from strata_kernels.norm import LANES, rms_norm
from strata_kernels.params import AttentionParams, AttentionWeights
from strata_kernels.product import product
from strata_kernels.window import KVPool, Rows

SPAN = PAGE_TOKENS * SPLIT_PAGES  # keys of one split
MASKED = -1e30  # finite, so that rows without keys stay finite
KEPT = 1 << 22  # scores of a forward up to which their masks are kept for the next layer


def attention(
    x: Tensor, rows: Rows, pool: KVPool, layer: int, weights: AttentionWeights, params: AttentionParams
) -> Tensor:
    """x + out(gate(attention)), x [R, D]; the rows' keys and values are in the pool before they are read from it."""
    p, w = params, weights
    views, table = _views(pool, p), _table(rows, pool, p)
    proj = product(rms_norm(x, w.norm, p.eps), [w.q, w.k, w.v], rows.count).view(-1, views.columns, p.head_dim)
    qk = (proj[:, : p.heads + p.kv_heads] if views.turned is None else proj[:, views.turned]).float()
    if w.q_norm is not None and w.k_norm is not None:
        scales = torch.where(views.is_query, w.q_norm, w.k_norm)
        qk = F.rms_norm(qk, (p.head_dim,), None, p.eps).mul_(scales)
    qk = (qk * table.cos).addcmul_(qk[..., views.pairs], table.sin)
    for held, new in (views.k[layer], qk[: rows.count, p.heads :]), (views.v[layer], proj[: rows.count, -p.kv_heads :]):
        held.index_copy_(0, table.places, new.to(held.dtype))
    out = _attend(qk, views, table, layer, p)
    if p.gated:
        out.mul_(torch.sigmoid(proj[:, 1 : 2 * p.heads : 2]))
    return product(out.view(-1, p.heads * p.head_dim).to(x.dtype), [w.out], rows.count).add_(x)


def _attend(qk: Tensor, views: "_Views", table: "_Table", layer: int, p: AttentionParams) -> Tensor:
    """Softmax attention of each tile's rows over its slot's pages, [R, H, D], one fixed split of keys after the other.

    Online softmax over splits (Milakov and Gimelshein, 2018), float32 throughout. More splits than a row needs change
    nothing.
    """
    # Rows and the query heads of one kv head share a product: [T * G, ratio * QUERY_TILE, D].
    queries = qk[table.query_rows, views.query_heads].view(*table.limits.shape[:2], p.head_dim)
    top = total = out = None
    for split in range(len(table.keys)):
        lines, unseen = _split(table, split)
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
    return out.div_(total)[table.out_tiles, table.out_lines]


@dataclass(slots=True)
class _Views:
    """Of a pool, for its life: [N * PAGE_TOKENS, G, D] and [N * PAGE_TOKENS * G, D] of each layer; head numbers."""

    k: tuple[Tensor, ...]
    v: tuple[Tensor, ...]
    k_lines: tuple[Tensor, ...]
    v_lines: tuple[Tensor, ...]
    columns: int  # heads of one row of the product
    turned: Tensor | None  # of them queries, then keys, where they are not beside each other
    is_query: Tensor  # [H + G, 1]
    pairs: Tensor  # [D] the other half of each dimension's pair
    rates: Tensor  # [D] of the angles: minus, plus, none
    query_heads: Tensor  # [G, ratio, 1]
    groups: Tensor  # [G, 1]


def _views(pool: KVPool, p: AttentionParams) -> _Views:
    key = ("attention", p)
    if key not in pool.cache:
        layers, pages, page, groups, dim = pool.k.shape
        device, heads, half = pool.k.device, p.heads, p.rotary_dim // 2
        every = torch.arange(heads + groups, device=device)
        angle = torch.arange(0, p.rotary_dim, 2, dtype=torch.float32, device=device)
        rates = 1.0 / p.rope_theta ** (angle / p.rotary_dim)
        dims = torch.arange(dim, device=device)
        cells, lines = (layers, pages * page, groups, dim), (layers, pages * page * groups, dim)
        pool.cache[key] = _Views(
            k=pool.k.view(cells).unbind(),
            v=pool.v.view(cells).unbind(),
            k_lines=pool.k.view(lines).unbind(),
            v_lines=pool.v.view(lines).unbind(),
            columns=(1 + p.gated) * heads + 2 * groups,
            turned=torch.where(every < heads, every * 2, every + heads) if p.gated else None,
            is_query=(every < heads)[:, None],
            pairs=torch.cat((dims[half : 2 * half], dims[:half], dims[2 * half :])),
            rates=torch.cat((-rates, rates, rates.new_zeros(dim - 2 * half))),
            query_heads=every[:heads].view(groups, -1, 1),
            groups=every[:groups, None],
        )
    views = pool.cache[key]
    assert isinstance(views, _Views)
    return views


@dataclass(slots=True)
class _Table:
    """Of a forward, for all its layers."""

    cos: Tensor  # [R, 1, D]: 1 behind the rotary dimensions
    sin: Tensor  # [R, 1, D]: minus for the first of a pair, 0 behind the rotary dimensions
    places: Tensor  # [count]
    keys: Sequence[Tensor]  # a split each: [S * G, SPAN] line of each key in the pool
    slot_groups: Tensor  # [T * G] line of `keys` that a tile reads
    limits: Tensor  # [T * G, ratio * QUERY_TILE, 1] last key that a row sees
    first_key: int
    numbers: Tensor  # [SPAN]
    query_rows: Tensor  # [T, 1, 1, QUERY_TILE]
    out_tiles: Tensor  # [R, H] where a row's heads lie among the tiles' lines
    out_lines: Tensor
    masks: dict[int, tuple[Tensor, Tensor]] | None  # kept, where that is not too much


def _table(rows: Rows, pool: KVPool, p: AttentionParams) -> _Table:
    key = ("attention", p)
    if key not in rows.cache:
        views, many, groups, ratio = _views(pool, p), rows.tiles, p.kv_heads, p.heads // p.kv_heads
        angles = rows.positions[:, None, None] * views.rates
        numbers = torch.arange(rows.splits * SPAN, device=angles.device)
        # A key that a slot lacks is read as its last one, and masked: nobody's numbers are never multiplied with.
        last = rows.positions[(rows.first + rows.many - 1).clamp_(min=0)]
        index = torch.minimum(numbers, last[:, None]).clamp_(min=p.first_key)  # [S, keys]
        places = rows.tables.gather(1, index // PAGE_TOKENS) * PAGE_TOKENS + index % PAGE_TOKENS
        lines = (places[:, None] * groups + views.groups).view(-1, rows.splits, SPAN)
        limits = rows.tile_limits[:many, None, None].expand(-1, groups, ratio, -1).reshape(many * groups, -1, 1)
        heads = views.query_heads.view(-1)
        rows.cache[key] = _Table(
            cos=angles.cos(),
            sin=angles.sin(),
            places=rows.places[: rows.count],
            keys=lines.unbind(1),
            slot_groups=(rows.tile_slots[:many, None] * groups + views.groups[:, 0]).view(-1),
            limits=limits,
            first_key=p.first_key,
            numbers=numbers[:SPAN],
            query_rows=rows.tile_rows[:many, None, None],
            out_tiles=(rows.tile_of // QUERY_TILE * groups)[:, None] + heads // ratio,
            out_lines=(rows.tile_of % QUERY_TILE)[:, None] + heads % ratio * QUERY_TILE,
            masks={} if limits.numel() * rows.splits * SPAN <= KEPT else None,
        )
    table = rows.cache[key]
    assert isinstance(table, _Table)
    return table


def _split(table: _Table, split: int) -> tuple[Tensor, Tensor]:
    """Lines of the pool that each tile reads, [T * G, SPAN], and MASKED where a row does not see one, 0 elsewhere,
    [T * G, ratio * QUERY_TILE, SPAN].
    """
    if table.masks is not None and split in table.masks:
        return table.masks[split]
    index = table.numbers + split * SPAN
    unseen = index > table.limits
    if table.first_key and not split:
        unseen |= index < table.first_key
    found = table.keys[split][table.slot_groups], unseen * MASKED
    if table.masks is not None:
        table.masks[split] = found
    return found
