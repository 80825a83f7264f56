"""The gated delta block on a CPU, one call a block: the tensors' side of `compiled.py`."""

from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from strata_kernels.gated_delta import compiled
from strata_kernels.params import GatedDeltaParams, GatedDeltaWeights
from strata_kernels.product.cpu import scratch
from strata_kernels.product.records import Table, block_table
from strata_kernels.window import RecurrentPool, Rows
from strata_kernels.workspace import gated_delta_bytes, product_bytes


def gated_delta(
    x: Tensor, rows: Rows, pool: RecurrentPool, layer: int, weights: GatedDeltaWeights, params: GatedDeltaParams
) -> Tensor:
    """As the reference's."""
    p, block = params, _block(pool, layer, weights, params)
    window = rows.cache.get("compiled gated_delta")
    if window is None:
        window = rows.cache["compiled gated_delta"] = _window(rows, pool.k.shape[2])
    source = x.float().contiguous()
    out = torch.empty_like(source)
    own = gated_delta_bytes(p, rows.count)
    room = scratch.address(own + product_bytes(block.groups))
    compiled.gated_delta(source.data_ptr(), out.data_ptr(), block.address, window.ctypes.data, room, room + own)
    return out.to(x.dtype)


def _block(pool: RecurrentPool, layer: int, weights: GatedDeltaWeights, p: GatedDeltaParams) -> Table:
    """Kept with the pool, as a layer's weights are."""
    blocks = pool.cache.get(("compiled gated_delta", layer))
    if blocks is None:
        blocks = pool.cache["compiled gated_delta", layer] = WeakKeyDictionary()
    block = blocks.get(weights)
    if block is None or block.of is not p:
        w = weights
        matrices = (w.norm, w.qkv, w.z, w.b, w.a, w.out, w.conv, w.rate, w.dt_bias, w.out_norm)
        sizes = (p.hidden, p.key_heads, p.value_heads, p.key_dim, p.value_dim, p.kernel, p.eps)
        names = ("state", "conv", "k", "v", "beta", "decay", "conv_rows", "pending")
        slots, held = pool.k.shape[1:3]
        pools = (*(getattr(pool, name)[layer] for name in names), slots, held)
        snaps: list[int] = []
        for snap in (pool.snap_state, pool.snap_conv):
            snaps += [snap.data_ptr() + layer * snap.stride(1) * 4, snap.stride(0) * 4]
        block = blocks[weights] = block_table(p, (*matrices, *sizes, *pools, *snaps))
    assert isinstance(block, Table)
    return block


def _window(rows: Rows, held: int) -> np.ndarray:
    """Addresses of the rows' tensors, plain numbers, captures. held: decode rows that a slot's pool has room for."""
    most = (rows.many.numpy() * (rows.certain.numpy() == 0)).max(initial=0)
    assert most <= held, f"{most} decode rows of a slot, room for {held}"
    tensors = (rows.slots, rows.steps, rows.first, rows.many, rows.certain)
    fields = [t.data_ptr() for t in tensors]
    fields += [rows.count, rows.decode, rows.padded, len(rows.captures)]
    return np.array([*fields, *(n for capture in rows.captures for n in capture)], np.int64)
