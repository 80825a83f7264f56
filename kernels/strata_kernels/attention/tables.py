"""Views of the KV pool, made once, and tables of a forward: angles, and which lines of the pool each tile reads."""

from dataclasses import dataclass

import torch
from torch import Tensor

from strata_kernels.layout import PAGE_TOKENS, QUERY_TILE, SPLIT_PAGES
from strata_kernels.params import AttentionParams
from strata_kernels.window import KVPool, Rows

SPAN = PAGE_TOKENS * SPLIT_PAGES  # keys of one split
MASKED = -1e30  # finite, so that rows without keys stay finite
NEVER = 1 << 40  # behind every position
KEPT = 1 << 22  # scores of a forward up to which their masks are kept for the next layer


@dataclass(slots=True)
class KVViews:
    """Of a pool, for its life; tuples by layer. H, G query and kv heads."""

    k: tuple[Tensor, ...]  # [N * PAGE_TOKENS, G, D]
    v: tuple[Tensor, ...]
    k_lines: tuple[Tensor, ...]  # [N * PAGE_TOKENS * G, D]
    v_lines: tuple[Tensor, ...]
    columns: int  # heads of one row of the product
    turned: Tensor | None  # of them queries, then keys, where they are not beside each other
    is_query: Tensor  # [H + G, 1]
    pairs: Tensor  # [D] the other half of each dimension's pair
    rates: Tensor  # [D] of the angles: minus, plus, none
    query_heads: Tensor  # [G, ratio, 1]
    groups: Tensor  # [G, 1]
    head_lines: Tensor  # [H] first line of each head in its tile


def views(pool: KVPool, p: AttentionParams) -> KVViews:
    key = ("attention", p)
    if key not in pool.cache:
        layers, pages, page, groups, dim = pool.k.shape
        device, heads, half = pool.k.device, p.heads, p.rotary_dim // 2
        every = torch.arange(heads + groups, device=device)
        angle = torch.arange(0, p.rotary_dim, 2, dtype=torch.float32, device=device)
        rates = 1.0 / p.rope_theta ** (angle / p.rotary_dim)
        dims = torch.arange(dim, device=device)
        cells, lines = (layers, pages * page, groups, dim), (layers, pages * page * groups, dim)
        pool.cache[key] = KVViews(
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
            head_lines=every[:heads] * QUERY_TILE,
        )
    found = pool.cache[key]
    assert isinstance(found, KVViews)
    return found


@dataclass(slots=True)
class Fixed:
    """Of rows of so many tiles and splits: views of their buffers, and numbers of keys."""

    positions: Tensor  # [R, 1, 1]
    tile_of: Tensor  # [R, 1]
    last: Tensor  # [S, 1]
    tile_slots: Tensor  # [T]
    query_rows: Tensor  # [T, 1, 1, QUERY_TILE]
    limits: Tensor  # [T, G, ratio, QUERY_TILE, 1] last key that a row sees
    numbers: Tensor  # [splits * SPAN] keys; those that do not exist as the first that does
    until: tuple[Tensor, ...]  # a split each: [SPAN] the least limit that sees a key


def _fixed(rows: Rows, p: AttentionParams) -> Fixed:
    key = ("attention", p, rows.tiles, rows.splits)
    if key not in rows.views:
        many, numbers = rows.tiles, torch.arange(rows.splits * SPAN, device=rows.positions.device)
        rows.views[key] = Fixed(
            positions=rows.positions[:, None, None],
            tile_of=rows.tile_of[:, None],
            last=rows.last[:, None],
            tile_slots=rows.tile_slots[:many],
            query_rows=rows.tile_rows[:many, None, None],
            limits=rows.tile_limits[:many, None, None, :, None].expand(-1, p.kv_heads, p.heads // p.kv_heads, -1, -1),
            numbers=numbers.clamp(min=p.first_key),
            until=numbers.masked_fill(numbers < p.first_key, NEVER).split(SPAN),
        )
    found = rows.views[key]
    assert isinstance(found, Fixed)
    return found


@dataclass(slots=True)
class AttentionTable:
    """Of a forward, for all its layers."""

    fixed: Fixed
    cos: Tensor  # [R, 1, D]: 1 behind the rotary dimensions
    sin: Tensor  # [R, 1, D]: minus for the first of a pair, 0 behind the rotary dimensions
    places: Tensor  # [count]
    keys: tuple[Tensor, ...]  # a split each: [S, G, SPAN] line of each key in the pool
    out_lines: Tensor  # [R, H] where a row's heads lie among the tiles' lines
    masks: dict[int, tuple[Tensor, Tensor]] | None  # kept, where that is not too much


def table(rows: Rows, pool: KVPool, p: AttentionParams) -> AttentionTable:
    key = ("attention", p)
    if key not in rows.cache:
        v, fixed = views(pool, p), _fixed(rows, p)
        angles = fixed.positions * v.rates
        # A key that a slot lacks is read as its last one, and masked: nobody's numbers are never multiplied with.
        index = torch.minimum(fixed.numbers, fixed.last)  # [S, keys]
        page = rows.tables.gather(1, index // PAGE_TOKENS)
        place = torch.add(index % PAGE_TOKENS, page, alpha=PAGE_TOKENS)
        lines = torch.add(v.groups, place[:, None], alpha=p.kv_heads)  # [S, G, keys]
        before = fixed.tile_of // QUERY_TILE
        rows.cache[key] = AttentionTable(
            fixed=fixed,
            cos=angles.cos(),
            sin=angles.sin(),
            places=rows.places[: rows.count],
            keys=lines.split(SPAN, 2) if rows.splits > 1 else (lines,),
            out_lines=torch.add(fixed.tile_of, before, alpha=(p.heads - 1) * QUERY_TILE) + v.head_lines,
            masks={} if fixed.limits.numel() * fixed.numbers.numel() <= KEPT else None,
        )
    found = rows.cache[key]
    assert isinstance(found, AttentionTable)
    return found


def split_of(t: AttentionTable, split: int) -> tuple[Tensor, Tensor]:
    """Lines of the pool that each tile reads, [T * G, SPAN], and MASKED where a row does not see one, 0 elsewhere,
    [T * G, ratio * QUERY_TILE, SPAN].
    """
    if t.masks is not None and split in t.masks:
        return t.masks[split]
    tiles, groups, ratio = t.fixed.limits.shape[:3]
    lines = t.keys[split][t.fixed.tile_slots].view(tiles * groups, SPAN)
    unseen = (t.fixed.until[split] > t.fixed.limits).view(tiles * groups, ratio * QUERY_TILE, SPAN)
    found = lines, unseen * MASKED
    if t.masks is not None:
        t.masks[split] = found
    return found
