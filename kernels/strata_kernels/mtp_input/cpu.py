"""The MTP head's input on a CPU, one call: the tensors' side of `compiled.py`."""

from weakref import WeakKeyDictionary

import torch
from torch import Tensor

from strata_kernels.mtp_input import compiled
from strata_kernels.params import MtpInputParams, MtpInputWeights
from strata_kernels.product.cpu import scratch
from strata_kernels.product.records import Table, block_table, weight_records
from strata_kernels.weight import Weight
from strata_kernels.window import Rows
from strata_kernels.workspace import mtp_input_bytes, product_bytes

_blocks: WeakKeyDictionary[MtpInputWeights, Table] = WeakKeyDictionary()


def mtp_input(
    x: Tensor, rows: Rows, pool: Weight, layer: int, weights: MtpInputWeights, params: MtpInputParams
) -> Tensor:
    """As the reference's."""
    block = _blocks.get(weights)
    if block is None or block.of is not params:
        w = weights
        block = _blocks[weights] = block_table(
            params, (w.embedding_norm, w.hidden_norm, w.join, params.hidden, params.eps)
        )
    embedding = weight_records(pool)
    source = x.float().contiguous()
    out = torch.zeros(source.shape) if rows.count < rows.padded else torch.empty_like(source)
    own = mtp_input_bytes(params, rows.count)
    room = scratch.address(own + product_bytes(block.groups))
    compiled.mtp_input(
        source.data_ptr(),
        embedding.address,
        rows.tokens.data_ptr(),
        out.data_ptr(),
        block.address,
        rows.count,
        room,
        room + own,
    )
    return out.to(x.dtype)
