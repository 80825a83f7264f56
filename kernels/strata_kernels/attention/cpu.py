"""The attention block on a CPU, one call a block: the tensors' side of `compiled.py`."""

from functools import cache
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from strata_kernels.attention import compiled
from strata_kernels.params import AttentionParams, AttentionWeights
from strata_kernels.product.cpu import scratch
from strata_kernels.product.records import FLOATS, Table, block_table
from strata_kernels.window import KVPool, Rows
from strata_kernels.workspace import attention_bytes, product_bytes


def attention(
    x: Tensor, rows: Rows, pool: KVPool, layer: int, weights: AttentionWeights, params: AttentionParams
) -> Tensor:
    """As the reference's."""
    p, block, window = params, _block(pool, layer, weights, params), _window(rows, params)
    source = x.float().contiguous()
    out = torch.empty_like(source)
    own = attention_bytes(p, rows.count)
    room = scratch.address(own + product_bytes(block.groups))
    compiled.attention(source.data_ptr(), out.data_ptr(), block.address, window.ctypes.data, room, room + own)
    return out.to(x.dtype)


def _block(pool: KVPool, layer: int, weights: AttentionWeights, p: AttentionParams) -> Table:
    """Kept with the pool, as a layer's weights are."""
    blocks = pool.cache.get(("compiled attention", layer))
    if blocks is None:
        blocks = pool.cache["compiled attention", layer] = WeakKeyDictionary()
    block = blocks.get(weights)
    if block is None or block.of is not p:
        w = weights
        matrices = (w.norm, w.q, w.k, w.v, w.out, w.q_norm, w.k_norm)
        sizes = (p.hidden, p.heads, p.kv_heads, p.head_dim, p.rotary_dim, p.eps, int(p.gated), p.first_key)
        pools = (pool.k[layer], pool.v[layer], FLOATS[pool.k.dtype])
        block = blocks[weights] = block_table(p, (*matrices, *sizes, *pools))
    assert isinstance(block, Table)
    return block


@cache
def _rates(rotary_dim: int, theta: float) -> Tensor:
    """Angles of one position, float32 [rotary_dim / 2]."""
    return 1.0 / theta ** (torch.arange(0, rotary_dim, 2, dtype=torch.float32) / rotary_dim)


def _window(rows: Rows, p: AttentionParams) -> np.ndarray:
    """Addresses of the rows' tensors and the rows' angles, once a forward and kind of rotation."""
    key = ("compiled attention", p.rotary_dim, p.rope_theta)
    found = rows.cache.get(key)
    if found is None:
        half, rates = p.rotary_dim // 2, _rates(p.rotary_dim, p.rope_theta)
        table = np.empty((rows.count, 2, half), np.float32)
        compiled.angles(rows.positions.data_ptr(), rates.data_ptr(), rows.count, half, table.ctypes.data)
        tensors = (rows.positions, rows.places, rows.first, rows.many, rows.tables)
        slots, pages = rows.tables.shape
        assert rows.tables.is_contiguous()
        fields = [t.data_ptr() for t in tensors]
        fields += [pages, slots, rows.count, rows.padded, table.ctypes.data]
        found = rows.cache[key] = np.array(fields, np.int64), table
    window: np.ndarray = found[0]
    return window
