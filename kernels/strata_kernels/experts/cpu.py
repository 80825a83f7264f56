"""The experts block on a CPU, one call a block: the tensors' side of `compiled.py`."""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from strata_kernels.experts import compiled
from strata_kernels.params import ExpertsParams, ExpertsWeights
from strata_kernels.product.cpu import scratch
from strata_kernels.product.records import Table, block_table
from strata_kernels.window import Rows
from strata_kernels.workspace import block_bytes, experts_bytes

_blocks: WeakKeyDictionary[ExpertsWeights, Table] = WeakKeyDictionary()


def experts(x: Tensor, rows: Rows, pool: Tensor, layer: int, weights: ExpertsWeights, params: ExpertsParams) -> Tensor:
    """As the reference's."""
    p, block = params, _blocks.get(weights)
    if block is None or block.of is not p:
        block = _blocks[weights] = _block(weights, params)
    source = x.float().contiguous()
    out = torch.empty_like(source)
    own = experts_bytes(p, rows.count)
    room = scratch.address(block_bytes(p, rows.count, block.groups))
    touched = pool.data_ptr() + layer * pool.stride(0) * 8 if p.experts else 0
    compiled.experts(
        source.data_ptr(), out.data_ptr(), touched, block.address, rows.count, rows.padded, room, room + own
    )
    return out.to(x.dtype)


def _block(weights: ExpertsWeights, p: ExpertsParams) -> Table:
    w = weights
    matrices = (w.norm, w.router, w.router_bias, w.bank, w.gate, w.up, w.down)
    sizes = (p.hidden, p.experts, p.top_k, p.shared_inner, p.eps, int(p.router == "sigmoid"), int(p.normalize))
    gate = w.shared_gate if p.shared_gated else None
    return block_table(p, (*matrices, gate, *sizes, float(p.scale)))
